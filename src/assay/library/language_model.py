"""A model on an engine: generates from text, ids or messages; gives logits, embeddings and traces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.library import argument_checks as checks
from assay.library.notebook import watched
from assay.library.settings import GenerationSettings, Settings, lists_settings, settings
from assay.runtime.cache_folder import DEFAULT_BYTES
from assay.runtime.generate import Failed, Generation, Generator, Pending, Result
from assay.runtime.opening import Opened, OpenOptions, open_model
from assay.runtime.pooling import check_dimensions, embedding_of
from assay.runtime.registry_models import ReportProgress
from assay.runtime.scheduler import RUNNING
from assay.runtime.sequence_errors import NoLogits
from assay.text import encode_chat

if TYPE_CHECKING:
    from assay.library.judgement import Judgement
    from assay.library.trace_view import Trace
    from assay.runtime.image_places import Images

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]  # text, ids, or a conversation for the chat template


def load(
    model: str | Path | None = None,
    engine: str | None = None,
    *,
    precision: str | None = None,
    threads: int | None = None,
    kv_type: str | None = None,
    ctx_size: int | None = None,
    cache_size: int | None = None,
    template: str | None = None,
    template_arguments: Mapping[str, Any] | None = None,
    lookahead: bool = True,
    draft: str | None = None,
    parallel: int = RUNNING,
    progress: ReportProgress | None = None,
    cache_dir: str | Path | None = None,
    cache_dir_size: int = DEFAULT_BYTES,
    lora: Sequence[str] = (),
    mmproj: str | Path | None = None,
    tier: int | None = None,
    cpu_experts: int = 0,
) -> LanguageModel:
    """Open a model and an engine; a context manager closes them.

    >>> with assay.load("smollm2") as model:
    ...     print(model.chat("Why is the sky blue?", max_new_tokens=64))

    model       a path, a name such as smollm2 (the default) or qwen3:8b (downloaded once; `assay search` lists them),
                hf:owner/repo[:file] or ollama:name[:tag]
    engine      "cpu", "cuda" or "reference"; default: the fastest on this machine
    precision   arithmetic of the engine: fast or exact (cpu, cuda), tensor or mixed (cuda), f64 or f32 (reference);
                default: mixed on a GPU, else fast. fast has the same bits on every engine, and `logits`,
                `embed`, `trace` and `evaluate` have it by default
    kv_type     data type of the KV cache: f16, f32, bf16, q8_0
    ctx_size    context size in tokens; 0: the training context
    cache_size  KV cache size in tokens, for all sequences
    template    name of a built-in chat template, or a file, instead of the model's own
    template_arguments  variables of the template, such as {"enable_thinking": False}
    lookahead   speculate: guess tokens from earlier text and check several in one step; the output is the same
    draft       draft model for speculation: a small model with the same vocabulary, an EAGLE-3 head or an assistant of
                Gemma 4; "mtp": the file's own draft head
    parallel    maximum sequences computed at once
    progress    called during downloads and loading with (stage, bytes done, total bytes)
    cache_dir   folder in which computed prefixes outlive the process; a prompt that begins alike is not computed again
    cache_dir_size  bytes that the folder may hold; the least recently used prefixes go first
    lora        LoRA adapters as GGUF files, each "FILE" or "FILE=SCALE"
    mmproj      file with the tower for pictures; default: the one beside the model
    tier        of the wgpu engine's arithmetic: 0, 1 or 2; default: the first that gives the cpu's bits
    cpu_experts  layers whose experts the cpu computes, beside the cuda engine; the output is the same
    """
    checks.check_load_options(
        {"engine": engine, "precision": precision, "threads": threads, "kv_type": kv_type, "ctx_size": ctx_size,
         "cache_size": cache_size, "template": template, "template_arguments": template_arguments, "draft": draft,
         "parallel": parallel, "progress": progress, "cache_dir": cache_dir, "cache_dir_size": cache_dir_size,
         "tier": tier}
    )  # fmt: skip
    options = OpenOptions(
        engine, precision, threads, kv_type, ctx_size, cache_size, template, template_arguments, lookahead, draft,
        cache_dir=None if cache_dir is None else str(cache_dir), cache_dir_size=cache_dir_size,
        lora=checks.texts("lora", lora), mmproj=None if mmproj is None else str(mmproj), tier=tier,
        cpu_experts=cpu_experts,
    )  # fmt: skip
    with watched(progress):
        return LanguageModel(open_model(model, options), parallel=parallel)


class LanguageModel:
    """A model on an engine. Use it as a context, or `close` it. Calls of several threads are batched."""

    def __init__(self, opened: Opened, *, parallel: int = RUNNING, progress: ReportProgress | None = None) -> None:
        self.opened = opened
        self.file, self.model, self.tokenizer = opened.file, opened.model, opened.tokenizer
        self.n_ctx = opened.n_ctx
        self.engine = opened.engine(progress, scheduled=True)
        self.generator = Generator(
            self.engine, self.tokenizer, n_ctx=self.n_ctx, running=parallel, speculator=opened.speculator(self.engine),
            folder=opened.folder(),
        )  # fmt: skip
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"context {self.n_ctx}"
        return f"<LanguageModel {self.file.path.name} on {self.engine.name}, {self.model.hparams.arch}, {state}>"

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the weights and the cache. Running generations end as interrupted."""
        if not self._closed:
            self._closed = True
            with self.generator.lock:
                scheduler = self.generator.scheduler
                scheduler.cancel([*scheduler.running, *scheduler.waiting])
                self.generator.deliver_updates()
                scheduler.close()

    @property
    def path(self) -> Path:
        return self.file.path

    # --- text and ids

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of a text, with the BOS and EOS that the file requires, unless `add_special` is false.

        >>> model.tokenize("Hello world")
        """
        checks.check_text("text", text, also_bytes=True)
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Iterable[int], *, special: bool = True) -> str:
        """The text of ids; `special=False` hides control tokens."""
        return self.tokenizer.decode(checks.token_list("ids", ids), special=special)

    def ids(
        self, prompt: Prompt, *, tools: Sequence[Mapping[str, Any]] | None = None, **template_arguments: Any
    ) -> list[int]:
        """The ids of a prompt: of a text, of messages rendered by the chat template, or the given ids.

        `tools` (OpenAI's list) and all other arguments are passed to the template.
        """
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if not isinstance(prompt, Iterable) or isinstance(prompt, bytes | Mapping):
            raise _no_prompt(prompt)
        items: list[Any] = list(prompt)
        if items and isinstance(items[0], Mapping):
            if self.opened.template is None:
                raise AssayError(f"{self.path}: has no chat template; give one with template=, or give a text")
            _check_messages(items)
            return encode_chat(self.tokenizer, self.opened.template, items, tools=tools, **template_arguments)
        if not all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items):
            raise _no_prompt(prompt)
        return [int(item) for item in items]

    # --- answers

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is also a sequence of texts; it is one prompt
        self,
        prompt: str | Sequence[int] | Sequence[Message],
        *,
        n: Literal[1] = 1,
        resume: Sequence[int] = (),
        images: Sequence[Any] = (),
        **given: Unpack[GenerationSettings],
    ) -> Result: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], *, n: int = 1, **given: Unpack[GenerationSettings]
    ) -> list[Result]: ...
    @overload
    def generate(
        self,
        prompt: Prompt,
        *,
        n: int,
        resume: Sequence[int] = (),
        images: Sequence[Any] = (),
        **given: Unpack[GenerationSettings],
    ) -> Result | list[Result]: ...

    @lists_settings
    def generate(
        self,
        prompt: Any,
        *,
        n: int = 1,
        resume: Sequence[int] = (),
        images: Sequence[Any] = (),
        **given: Unpack[GenerationSettings],
    ) -> Any:
        """Answer a prompt, or each of a list of them, computed together.

        >>> model.generate("Once upon a time", max_new_tokens=32, temperature=0).text
        >>> model.generate([{"role": "user", "content": "Hello!"}], seed=1)
        >>> for result in model.generate(["One", "Two", "Three"], max_new_tokens=8):
        ...     print(result)

        A prompt is a text, used without a template; ids; or messages, which the chat template renders. The `n` answers
        to each prompt are one list, in the order of the prompts; answer i has the seed plus i. `resume` are the ids of
        a partial answer: with the same prompt, settings and seed, the answer continues with the same tokens.

        `images` are the pictures of one prompt, each a path or the bytes of a file. They go where a text has
        `<__media__>` or a message has a part of type "image", else before the text of the last user message. The model
        needs its mmproj file, beside it or as `load(mmproj=…)`.

        Settings: max_new_tokens (or max_tokens, of the whole answer), temperature, top_k, top_p, min_p,
        repetition_penalty, seed, stop, logprobs, grammar (GBNF or Lark), json_schema, ignore_eos, do_sample, params,
        and every other field of SamplerParams. `GenerationSettings` has all of them with their types. Defaults are
        those of llama.cpp.
        """
        checks.check_whole("n", n, 1)
        if not _several(prompt):
            made = self._prepare(prompt, n, resume, settings(self.opened, given), images)
            done = [generation.result for generation in self.generator.together(made)]
            return done if n > 1 else done[0]
        if resume:
            raise AssayError("resume: needs one prompt, not a list of prompts")
        if images:
            raise AssayError("images: need one prompt, not a list of prompts")
        asked = settings(self.opened, given)
        prepared = (generation for item in prompt for generation in self._prepare(item, n, (), asked))
        return [generation.result for generation in self.generator.together(prepared)]

    @lists_settings
    def stream(
        self,
        prompt: Prompt,
        *,
        resume: Sequence[int] = (),
        images: Sequence[Any] = (),
        **given: Unpack[GenerationSettings],
    ) -> Generation:
        """Stream the answer: iterate over events (`id`, `text`, `logprob`); `result` is available at the end.

        >>> for event in model.stream("Once upon a time", max_new_tokens=32):
        ...     print(event.text, end="", flush=True)

        Prompt, settings, `resume` and `images` are those of `generate`.
        """
        return self._prepare(prompt, 1, resume, settings(self.opened, given), images)[0]

    @lists_settings
    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_arguments: Mapping[str, Any] | None = None,
        images: Sequence[Any] = (),
        **given: Unpack[GenerationSettings],
    ) -> Result:
        """Answer a conversation with the model's chat template. A text is one user message.

        >>> model.chat("Why is the sky blue?", system="Be brief.", max_new_tokens=64)

        `tools` (OpenAI's list) and `template_arguments` (such as enable_thinking) are passed to the template; `images`
        are those of `generate`.
        """
        checks.check_list("tools", tools)
        checks.check_mapping("template_arguments", template_arguments)
        turns, variables = conversation(messages, system), template_arguments or {}
        if not images:
            return self.stream(self.ids(turns, tools=tools, **variables), **given).run()
        prompt = self._with_pictures(turns, images, tools=tools, **variables)
        return self._begin(prompt, 1, (), settings(self.opened, given))[0].run()

    def batch(self, requests: Iterable[tuple[Prompt, Mapping[str, Any]] | AssayError]) -> Iterator[Pending]:
        """Answer requests with individual settings, computed together. Results are yielded in order.

        Requests are consumed as the scheduler has room. The `result` of a failed request raises its error, also for a
        request that is an error itself; other requests are not affected.
        """

        def prepare(request: tuple[Prompt, Mapping[str, Any]] | AssayError) -> Pending:
            if isinstance(request, AssayError):
                return Failed(request)
            try:
                if not (isinstance(request, tuple | list) and len(request) == 2 and isinstance(request[1], Mapping)):
                    raise AssayError(f"request: must be a prompt and its settings (found {request!r:.80})")
                return self._prepare(request[0], 1, (), settings(self.opened, request[1]))[0]
            except AssayError as error:
                return Failed(error)

        if not isinstance(requests, Iterable):
            raise AssayError(f"requests: must be an iterable of prompts with settings (found {requests!r:.60})")
        return self.generator.together(map(prepare, requests))

    def _prepare(
        self, prompt: Prompt, n: int, resume: Sequence[int], asked: Settings, images: Sequence[Any] = ()
    ) -> list[Generation]:
        self._check_open()
        resume = checks.token_list("resume", resume)
        return self._begin(self._with_pictures(prompt, images) if images else (self.ids(prompt), ()), n, resume, asked)

    def _with_pictures(self, prompt: Prompt, images: Sequence[Any], **options: Any) -> tuple[Sequence[int], Images]:
        """The ids of a prompt with pictures, and their places."""
        from assay.runtime.pictured_prompt import named_picture, prompt_with_pictures

        self._check_open()
        if isinstance(images, str | bytes) or not isinstance(images, Sequence):
            raise AssayError("images: must be a list of paths or of the bytes of pictures")
        said: Any = prompt if isinstance(prompt, str) else list(prompt)
        if not isinstance(said, str) and not all(isinstance(item, Mapping) for item in said):
            raise AssayError("images: need a text or messages, not ids")
        found = [named_picture(self.opened.pictures, image) for image in images]
        return prompt_with_pictures(self.tokenizer, said, found, self.opened.template, **options)

    def _begin(
        self, prompt: tuple[Sequence[int], Images], n: int, resume: Sequence[int], asked: Settings
    ) -> list[Generation]:
        ids, images = prompt
        return [
            self.generator.generate(
                ids, one.params, max_tokens=one.max_tokens, stop=one.stop, logprobs=one.logprobs,
                ignore_eos=one.ignore_eos, constraint=one.constraint, answered=resume, images=images,
            )
            for one in map(asked.answer, range(n))
        ]  # fmt: skip

    # --- numbers

    def logits(self, prompt: Prompt, *, images: Sequence[Any] = ()) -> NDArray[np.float32]:
        """The logits after every token of a prompt, and every row of its `images`: [n_tokens, n_vocab].

        >>> model.logits("The capital of France is")[-1].argmax()
        """
        self._check_open()
        output = self.model.graph.output
        if not self.model.graph.generates:
            raise NoLogits(self.path.name)
        ids, places = self._with_pictures(prompt, images) if images else (self.ids(prompt), ())
        probe = self.generator.probe(ids, output, places)
        _ = probe.run()
        return np.concatenate(probe.nodes[output]).astype(np.float32, copy=False)

    @overload
    def embed(self, text: str, *, pooling: str | None = None, dimensions: int | None = None) -> NDArray[np.float32]: ...
    @overload
    def embed(
        self, text: Sequence[Prompt], *, pooling: str | None = None, dimensions: int | None = None
    ) -> NDArray[np.float32]: ...

    def embed(self, text: Any, *, pooling: str | None = None, dimensions: int | None = None) -> NDArray[np.float32]:
        """The normalised embedding of a text [n], or of each of a list of texts [texts, n], computed together.

        >>> a, b = model.embed(["a cat", "a dog"])
        >>> float(a @ b)

        Rows are pooled as the file says; by their mean if it says nothing, as in most generative models.
        `pooling` (mean, first, last) overrides it. `dimensions` keeps the first values of each vector.
        """
        self._check_open()
        how = embedding_of(self.model.graph, pooling)
        if dimensions is not None:
            checks.check_whole("dimensions", dimensions)
        check_dimensions(dimensions, how.width)
        several = _several(text)
        begun = (self.generator.embed(self.ids(item), how) for item in (text if several else [text]))
        vectors = []
        for one in self.generator.together(begun):
            _ = one.result  # raises the error of a failed text
            vectors.append(one.vector(dimensions))
        return np.array(vectors, np.float32).reshape(-1, dimensions or how.width) if several else vectors[0]

    def trace(self, prompt: Prompt, *, nodes: str | None = None, decode: int = 0) -> Trace:
        """The value of every node for a prompt, by name. `nodes` is a regular expression that selects some.

        >>> model.trace("The capital of France is", nodes="l_out")["l_out-0"].shape

        The last `decode` tokens are decoded one by one, with the KV cache.
        """
        from assay.library.trace_view import Trace
        from assay.verify.dumps.tracing import take_trace

        self._check_open()
        if nodes is not None:
            checks.check_text("nodes", nodes)
        checks.check_whole("decode", decode, 0)
        ids = self.generator.checked(self.ids(prompt))
        with self.generator.exclusive() as engine:
            prompts = self.opened.options.precision is not None  # by default, numbers are those of precision fast
            found = take_trace(engine, ids, decode=decode, nodes=nodes, prompts=prompts)
            return Trace(self.model.graph, found)

    def evaluate(
        self,
        text: str,
        against: LanguageModel | None = None,
        *,
        window: int | None = None,
        chunks: int | None = None,
        worst: int = 10,
    ) -> Judgement:
        """Perplexity of a text and, with `against`, the KL divergence from that model, as in `assay eval`.

        The text is cut into windows of `window` tokens (512, or the context), at most `chunks` of them.
        """
        from assay.library.judgement import JudgedModel, judge

        self._check_open()
        checks.check_text("text", text)
        if against is not None and not isinstance(against, LanguageModel):
            raise AssayError(f"against: must be a LanguageModel (found {against!r:.60}); open it with assay.load")
        other = None if against is None else JudgedModel(against.opened, against.generator)
        return judge(JudgedModel(self.opened, self.generator), text, other, window, chunks, worst)

    def _check_open(self) -> None:
        if self._closed:
            raise AssayError(f"{self.path}: the model has been closed; load it again")


def conversation(messages: str | Sequence[Message], system: str | None = None) -> list[Message]:
    """Messages with an optional system message before them. A text is one user message."""
    if isinstance(messages, bytes | Mapping) or not isinstance(messages, str | Iterable):
        raise AssayError(f"messages: must be a text or a list of messages (found {messages!r:.80})")
    turns: list[Message] = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    _check_messages(turns)
    if system is not None:
        checks.check_text("system", system)
    return turns if system is None else [{"role": "system", "content": system}, *turns]


def _check_messages(messages: Sequence[Any]) -> None:
    """Each has a role, and a content unless it only calls tools."""
    for message in messages:
        fine = isinstance(message, Mapping) and isinstance(message.get("role"), str)
        if not fine or ("content" not in message and not message.get("tool_calls")):
            raise AssayError(f"messages: each must be an object with a role and a content (found {message!r:.60})")


def _several(prompt: Any) -> bool:
    """Whether it is a list of prompts (possibly empty), not a text, ids or a conversation."""
    if isinstance(prompt, str | bytes | Mapping) or not isinstance(prompt, Iterable):
        return False
    if isinstance(prompt, Iterator):
        raise AssayError("prompt: must be a list, not an iterator; use list(...), or `batch` for many prompts")
    first = next(iter(prompt), "")
    return isinstance(first, str | bytes | Sequence | np.ndarray)


def _no_prompt(found: object) -> AssayError:
    return AssayError(f"prompt: must be a text, ids or messages (found {found!r:.80})")
