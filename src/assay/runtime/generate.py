"""The generation loop of one sequence at a time: prompt in, events out, a result at the end.

    generator = Generator(engine, tokenizer)
    generation = generator.generate(tokenizer.encode("Once upon a time"), GREEDY, max_tokens=32)
    for event in generation:
        print(event.text, end="")
    print(generation.result.finish_reason)

The prompt is computed in chunks; what an earlier prompt left in the cache is not computed again. The token that
was drawn last has been shown but not yet computed: it goes into the cache with the next step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from assay.engines.base import Array, Chunk, PagedEngine
from assay.errors import AssayError
from assay.runtime.pages import Lease, Pages
from assay.runtime.params import SamplerParams
from assay.runtime.sampler import Choice, Ranked, make_rng, sample
from assay.runtime.stops import StopStrings
from assay.text import Tokenizer

FINISH_REASONS = {
    "eos": "the model ended its answer",
    "stop": "a stop string came",
    "length": "the number of tokens asked for was reached",
    "context": "the context is full",
    "interrupted": "the user ended it",
}


@dataclass(frozen=True)
class Event:
    """One token. `text` is what may be shown now: nothing while a character or a stop string may be unfinished."""

    id: int
    text: str
    logprob: float | None = None
    top: tuple[Ranked, ...] = ()


@dataclass(frozen=True)
class Timing:
    """Where the time went. The prompt's share counts up to its last logits, without what the cache had."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_seconds: float = 0.0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens computed per second."""
        computed = self.prompt_tokens - self.cached_tokens
        return computed / self.prompt_seconds if self.prompt_seconds > 0 else 0.0

    @property
    def rate(self) -> float:
        """Tokens generated per second. The first came with the prompt, so its time is not counted, nor is it."""
        return (self.tokens - 1) / self.seconds if self.tokens > 1 and self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Result:
    """A finished generation. `ids` include a token that ended it; `text` has neither that nor a stop string."""

    prompt_ids: list[int]
    ids: list[int]
    text: str
    finish_reason: str  # one of FINISH_REASONS
    timing: Timing
    logprobs: list[Choice] | None = None


class Generator:
    """One engine, one tokenizer, one cache: generations one after the other, prefixes reused."""

    def __init__(
        self, engine: PagedEngine, tokenizer: Tokenizer, *, n_ctx: int | None = None, chunk: int = 512
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.pages = Pages(engine.n_pages, copy=engine.copy_page)
        self.n_ctx = min(n_ctx or self.pages.capacity, self.pages.capacity)
        self.chunk = chunk

    def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplerParams | None = None,
        *,
        max_tokens: int = -1,
        stop: Sequence[str] = (),
        logprobs: int | None = None,
        ignore_eos: bool = False,
    ) -> Generation:
        """Prepare a generation; it runs as it is iterated. `max_tokens` -1 is as many as the context takes."""
        ids = [int(token) for token in prompt_ids]
        n_vocab = self.engine.model.hparams.n_vocab
        if not ids:
            raise AssayError("prompt: has no tokens; give some text (this model adds no BOS token to an empty one)")
        if wrong := [token for token in ids if not 0 <= token < n_vocab]:
            raise AssayError(f"prompt: token {wrong[0]} is not in the vocabulary of {n_vocab}")
        if len(ids) > self.n_ctx:
            trained = self.engine.model.hparams.n_ctx_train
            raise AssayError(
                f"prompt: {len(ids)} tokens do not fit the context of {self.n_ctx}; shorten it by "
                f"{len(ids) - self.n_ctx}, or use a larger --ctx-size (the model was trained on {trained})"
            )
        options = _Options(params or SamplerParams(), max_tokens, tuple(stop), logprobs, ignore_eos)
        return Generation(self, ids, options)


@dataclass(frozen=True)
class _Options:
    params: SamplerParams
    max_tokens: int
    stop: tuple[str, ...]
    logprobs: int | None
    ignore_eos: bool


class _Interrupted(Exception):
    """Leaves the loop from inside a step."""


class Generation:
    """A generation on its way. Iterate it once for its events; `result` is there at the end, unless that is an error.

    `interrupt` ends it after the step that is under way, from a signal handler or another thread. A
    KeyboardInterrupt while the engine computes ends it too: what has been shown is kept either way.
    """

    def __init__(self, generator: Generator, prompt_ids: list[int], options: _Options) -> None:
        self._generator = generator
        self._options = options
        self._started = False
        self._stop_requested = False
        self._choices: list[Choice] = []
        self._text: list[str] = []
        self._timing = Timing(prompt_tokens=len(prompt_ids))
        self._finish: str | None = None
        self.prompt_ids = prompt_ids
        self.computing = False  # whether the engine is at work this moment

    def interrupt(self) -> None:
        self._stop_requested = True

    @property
    def ended(self) -> bool:
        return self._finish is not None

    @property
    def result(self) -> Result:
        if self._finish is None:
            raise RuntimeError("the generation has not ended: iterate it first")
        return Result(
            prompt_ids=self.prompt_ids,
            ids=[choice.id for choice in self._choices],
            text="".join(self._text),
            finish_reason=self._finish,
            timing=self._timing,
            logprobs=self._choices if self._options.logprobs is not None else None,
        )

    def run(self) -> Result:
        """To the end, without looking."""
        for _ in self:
            pass
        return self.result

    def __iter__(self) -> Iterator[Event]:
        if self._started:
            raise RuntimeError("a generation can be iterated once")
        self._started = True
        lease = self._generator.pages.open(self.prompt_ids)
        self._timing = replace(self._timing, cached_tokens=lease.length)
        try:
            yield from self._events(lease)
        except GeneratorExit:  # the reader has had enough
            self._finish = self._finish or "interrupted"
            raise
        finally:
            self._generator.pages.close(lease)

    def _events(self, lease: Lease) -> Iterator[Event]:
        options, tokenizer = self._options, self._generator.tokenizer
        detokenizer = tokenizer.detokenizer(special=False)
        stops = StopStrings(options.stop)
        rng = make_rng(options.params)
        history = list(self.prompt_ids)
        try:
            logits = self._prefill(lease)
            start = time.perf_counter()
            while options.max_tokens < 0 or len(self._choices) < options.max_tokens:
                choice = sample(logits, history, options.params, rng, logprobs=options.logprobs)
                history.append(choice.id)
                self._choices.append(choice)
                now = time.perf_counter()
                self._timing = replace(self._timing, tokens=len(self._choices), seconds=now - start)
                ended = choice.id in tokenizer.eog and not options.ignore_eos
                text = stops.push("" if ended else detokenizer.push(choice.id))
                finish = self._why_stop(ended, stops, lease)
                if finish:
                    if stops.found is None:
                        text += stops.push(detokenizer.flush()) + stops.flush()
                    self._finish = finish
                self._text.append(text)
                yield Event(choice.id, text, choice.logprob, choice.top)
                if finish:
                    return
                logits = self._forward(lease, [choice.id])
            self._finish = "length"  # no tokens were asked for
        except _Interrupted:
            self._finish = "interrupted"
            self._text.append(stops.push(detokenizer.flush()) + stops.flush())

    def _why_stop(self, ended: bool, stops: StopStrings, lease: Lease) -> str | None:
        if ended:
            return "eos"
        if stops.found is not None:
            return "stop"
        if len(self._choices) == self._options.max_tokens:
            return "length"
        if lease.length >= self._generator.n_ctx:
            return "context"
        return None

    def _prefill(self, lease: Lease) -> Array:
        """The logits after the prompt, of which the lease may already have a part."""
        start = time.perf_counter()
        logits: Array = np.empty(0)
        while lease.length < len(self.prompt_ids):
            part = self.prompt_ids[lease.length : lease.length + self._generator.chunk]
            last = lease.length + len(part) == len(self.prompt_ids)
            logits = self._forward(lease, part, "last" if last else "none")
        self._timing = replace(self._timing, prompt_seconds=time.perf_counter() - start)
        return logits

    def _forward(self, lease: Lease, tokens: list[int], outputs: str = "last") -> Array:
        pages = self._generator.pages
        if self._stop_requested:
            raise _Interrupted
        pages.reserve(lease, len(tokens))
        chunk = Chunk(np.array(tokens, dtype=np.int32), lease.length, lease.pages, outputs)
        try:
            self.computing = True
            output = self._generator.engine.forward([chunk])[0]
            self.computing = False
        except KeyboardInterrupt:
            raise _Interrupted from None
        finally:
            self.computing = False
        pages.commit(lease, tokens)
        return output.logits[-1] if outputs != "none" else output.logits
