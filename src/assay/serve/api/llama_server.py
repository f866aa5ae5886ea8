"""Routes of llama-server: `/completion`, `/infill`, `/props`, `/slots`. They continue text without a template."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from assay.runtime.image_places import Images as Places
from assay.runtime.params import SamplerParams
from assay.runtime.pictured_prompt import MEDIA
from assay.runtime.sequence import Job, Update
from assay.serve.api import answers as common
from assay.serve.api import request_tokens
from assay.serve.api.request_pictures import data_url, with_pictures
from assay.serve.api.schemas import (
    LIMITS,
    EmbeddingRequest,
    Encoded,
    Images,
    LoraScales,
    Name,
    Prompt,
    Sampling,
    Schema,
    TokenId,
)
from assay.serve.api.schemas import Text as AnyText
from assay.serve.api.server_state import HttpCall
from assay.serve.api.texts import embed_texts, embeddings
from assay.serve.api_errors import ApiError
from assay.serve.http.exchange import BARE, Events, HttpReply, json_reply, large_reply
from assay.serve.pool.models import ServedModel
from assay.serve.pool.update_queue import Reader
from assay.version import __version__

# Finish reasons under llama-server's names.
STOPS = {"eos": "eos", "stop": "word", "grammar": "eos", "length": "limit", "context": "limit"}


class Text(Sampling):
    """Settings of llama-server's routes, beside the sampling settings of every route."""

    n_predict: Annotated[int, Field(ge=-2, lt=2**31)] | None = Field(
        None, description="maximum tokens; default -1: no limit"
    )
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(None, description="another name of n_predict")
    n_probs: Annotated[int, Field(ge=0, le=LIMITS.logprobs)] | None = Field(
        None, description="number of alternatives per token"
    )
    json_schema: dict[str, Any] | None = None
    return_tokens: bool | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    id_slot: Annotated[int, Field(ge=-1, lt=4096)] | None = Field(
        None, description="the slot under which `/slots` saves these tokens; default 0"
    )


class MediaPrompt(Schema):
    prompt_string: AnyText = Field(description="with <__media__> at the place of each picture")
    multimodal_data: Images = Field(description="pictures in base64")


class ImageData(Schema):
    id: Annotated[int, Field(ge=0, lt=2**31)] = Field(description="the prompt has [img-ID] at its place")
    data: Encoded


class LlamaCompletionRequest(Text):
    image_data: Annotated[list[ImageData], Field(max_length=LIMITS.pictures, fail_fast=True)] | None = None
    prompt: (
        AnyText
        | MediaPrompt
        | Annotated[list[AnyText | TokenId], Field(min_length=1, max_length=LIMITS.body, fail_fast=True)]
    )


class LlamaEmbeddingRequest(Schema):
    model: Name | None = None
    content: Prompt | None = None
    input: Prompt | None = Field(None, description="in place of content: the answer is that of /v1/embeddings")
    encoding_format: Literal["float", "base64"] | None = Field(None, description="with input")
    pooling: Literal["mean", "first", "last"] | None = None
    dimensions: Annotated[int, Field(ge=1, lt=2**31)] | None = None


class LoraAdaptersRequest(RootModel[LoraScales]):
    """A list of numbers and scales."""


class Extra(Schema):
    text: AnyText
    filename: Name | None = None


class InfillRequest(Text):
    input_prefix: AnyText
    input_suffix: AnyText
    input_extra: Annotated[list[Extra], Field(max_length=64, fail_fast=True)] | None = Field(
        None, description="other files, put before the text"
    )
    prompt: AnyText | None = Field(None, description="text after the prefix, before the gap")


# --- text to text: what Ollama's raw generation uses too


async def text_of(call: HttpCall, entry: ServedModel, text: str) -> list[int]:
    return await request_tokens.text_ids(call.state, entry, text)


async def infill_ids(
    call: HttpCall, entry: ServedModel, prefix: str, suffix: str, extra: list[Extra] | None = None
) -> list[int]:
    """The ids for filling in: other files, then prefix, suffix and the middle token, in the order models expect."""
    special = entry.tokenizer.vocab.special
    if not {"fim_pre", "fim_suf", "fim_mid"} <= set(special):
        raise ApiError("unsupported", f"the model {entry.id} has no tokens for filling in", "input_suffix")

    async def ids_of(text: str) -> list[int]:
        return await request_tokens.text_ids(call.state, entry, text, add_special=False, parse_special=False)

    ids = [entry.tokenizer.bos] if entry.tokenizer.add_bos and entry.tokenizer.bos is not None else []
    for file in extra or ():
        if "fim_sep" in special:
            ids.append(special["fim_sep"])
        ids += await ids_of(f"{file.filename or 'file'}\n{file.text}\n")
    return [
        *ids, special["fim_pre"], *await ids_of(prefix), special["fim_suf"], *await ids_of(suffix), special["fim_mid"],
    ]  # fmt: skip


async def continue_text(
    call: HttpCall, entry: ServedModel, ids: Sequence[int], request: Text, images: Places = ()
) -> Reader:
    """Start the sequences that continue a text."""
    state = call.state
    request_tokens.check(ids, entry, images=images)
    constraint = None
    if request.json_schema is not None and request.grammar:
        raise ApiError("invalid_value", "grammar: json_schema is given too; use one of them", "grammar")
    schema, grammar = request.json_schema, request.grammar
    if schema is not None:
        constraint = await common.compile_grammar(
            lambda: entry.grammars.schema(schema or {"type": "object"}, "json_schema"), state.threads
        )
    elif grammar:
        constraint = await common.compile_grammar(lambda: entry.grammars.gbnf(grammar), state.threads)
    wanted = next((n for n in (request.n_predict, request.max_tokens) if n is not None), None)
    most, shift = common.answer_limits(request, entry, ids, wanted if wanted is None or wanted >= 0 else None)
    job = Job(
        ids=tuple(ids),
        params=common.sampler_params(
            request, entry, 0, common.Origin.of(call.headers), await common.token_biases(request, entry, state.threads)
        ),
        adapters=common.adapters(request, entry),
        max_tokens=most,
        shift=shift,
        stop=common.stops(request, entry),
        logprobs=request.n_probs or None,
        constraint=constraint,
        ignore_eos=bool(request.ignore_eos),
        deadline=common.deadline(state.limits, request.timeout),
        images=images,
    )
    worker = await call.stack.enter_async_context(state.models.use(entry))
    return call.stack.enter_context(Reader(worker, [job], state.limits.buffer, call.owner, call.pause))


# --- the routes


async def completion(call: HttpCall, request: LlamaCompletionRequest) -> HttpReply | Events:
    entry = call.state.models.find(request.model)
    prompt, data = _media(request)
    if data:
        ids, images = await with_pictures(
            call.state, entry, str(prompt), [data_url(d) for d in data], mark=MEDIA, rendered=False
        )
        return await _reply(call, entry, ids, request, images)
    return await _reply(call, entry, await _prompt(call, entry, prompt), request)


def _media(request: LlamaCompletionRequest) -> tuple[str | list[str | int], list[str]]:
    """The prompt with `<__media__>` at the place of each picture, and the pictures in this order."""
    prompt, given = request.prompt, request.image_data
    if isinstance(prompt, MediaPrompt):
        return prompt.prompt_string, prompt.multimodal_data
    if not given:
        return prompt, []
    if not isinstance(prompt, str):
        raise ApiError("invalid_value", "image_data: needs a prompt that is one text", "image_data")
    by_id = {image.id: image.data for image in given}
    named = [int(n) for n in re.findall(r"\[img-(\d{1,9})\]", prompt)]
    if missing := [n for n in named if n not in by_id]:
        raise ApiError("invalid_value", f"image_data: has no picture {missing[0]}", "image_data")
    if not named:
        return MEDIA * len(given) + prompt, [image.data for image in given]
    return re.sub(r"\[img-\d{1,9}\]", MEDIA, prompt), [by_id[n] for n in named]


async def infill(call: HttpCall, request: InfillRequest) -> HttpReply | Events:
    entry = call.state.models.find(request.model)
    prefix = request.input_prefix + (request.prompt or "")
    ids = await infill_ids(call, entry, prefix, request.input_suffix, request.input_extra)
    return await _reply(call, entry, ids, request)


async def embedding(call: HttpCall, request: LlamaEmbeddingRequest) -> HttpReply:
    """The vectors of `/v1/embeddings` in llama-server's form: a list of rows for each text, here one.

    A client of OpenAI whose address has no `/v1` sends `input` and reads OpenAI's form.
    """
    texts = request.input if request.content is None else request.content
    if texts is None:
        raise ApiError("invalid_value", "content: field required", "content")
    asked = EmbeddingRequest.model_construct(
        model=request.model, input=texts, pooling=request.pooling, dimensions=request.dimensions,
        encoding_format=request.encoding_format if request.content is None else None,
    )  # fmt: skip
    if request.content is None:
        return await embeddings(call, asked)

    def reply(rows: list[dict[str, Any]], model: str, tokens: int) -> HttpReply:
        return large_reply([{"index": row["index"], "embedding": [row["embedding"]]} for row in rows])

    return await embed_texts(call, asked, reply)


async def _prompt(call: HttpCall, entry: ServedModel, prompt: str | list[str | int]) -> list[int]:
    """The ids of a text, of ids, or of a mixture."""
    if isinstance(prompt, str):
        return await text_of(call, entry, prompt)
    return await request_tokens.mixed_ids(call.state, entry, prompt)


async def _reply(
    call: HttpCall, entry: ServedModel, ids: Sequence[int], request: Text, images: Places = ()
) -> HttpReply | Events:
    reader = await continue_text(call, entry, ids, request, images)
    made = _Completion(entry, reader, request, call.state.slots)
    if request.stream:
        return Events(made.events(), BARE)
    events = [event async for event in made.events()]
    probs = [p for event in events for p in event.get("completion_probabilities", ())]
    found = events[-1] | {
        "content": "".join(event["content"] for event in events),
        "tokens": [token for event in events for token in event["tokens"]] if request.return_tokens else [],
    }
    return json_reply(found | ({"completion_probabilities": probs} if request.n_probs else {}))


class _Completion:
    """Builds one answer in llama-server's form."""

    def __init__(
        self, entry: ServedModel, reader: Reader, request: Text, slots: dict[tuple[str, int], tuple[int, ...]]
    ) -> None:
        self._entry = entry
        self._slots, self._slot = slots, max(request.id_slot or 0, 0)
        self._reader = reader
        self._request = request
        self._lines = False  # whether the text has a line break

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        (sequence,) = self._reader.sequences
        async for _, update in self._reader:
            tokens = [update.choice.id] if update.choice else []
            self._lines = self._lines or "\n" in update.text
            event: dict[str, Any] = {
                "index": 0, "content": update.text, "tokens": tokens, "stop": False, "id_slot": self._slot,
                "tokens_predicted": sequence.generated, "tokens_evaluated": sequence.n_prompt,
            }  # fmt: skip
            if self._request.n_probs and update.choice:
                event["completion_probabilities"] = [self._probability(update)]
            yield event | self._end() if update.finish else event

    def _probability(self, update: Update) -> dict[str, Any]:
        assert update.choice
        found = common.token_logprob(self._entry, update.choice)
        return found | {"top_logprobs": found["top_logprobs"][: self._request.n_probs]}

    def _end(self) -> dict[str, Any]:
        (sequence,), (end,) = self._reader.sequences, self._reader.ends
        if not sequence.job.images:  # a slot's file has tokens alone
            self._slots[self._entry.id, self._slot] = tuple(sequence.ids)
        t = sequence.times
        prompt_s = max((t.first or t.arrived) - (t.admitted or t.arrived), 1e-9)
        answer_s = max((t.last or t.arrived) - (t.first or t.arrived), 1e-9)
        n, m = sequence.n_prompt - sequence.cached, sequence.generated
        return {
            "stop": True,
            "model": self._entry.id,
            "stop_type": STOPS.get(end or "", "none"),
            "stopping_word": sequence.stop_string or "",
            "truncated": sequence.dropped > 0,
            "has_new_line": self._lines,
            "tokens_cached": sequence.cached,
            "generation_settings": settings(sequence.job.params),
            "timings": {
                "cache_n": sequence.cached,
                "prompt_n": n,
                "prompt_ms": round(1e3 * prompt_s, 3),
                "prompt_per_token_ms": round(1e3 * prompt_s / max(n, 1), 3),
                "prompt_per_second": round(n / prompt_s, 3),
                "predicted_n": m,
                "predicted_ms": round(1e3 * answer_s, 3),
                "predicted_per_token_ms": round(1e3 * answer_s / max(m - 1, 1), 3),
                "predicted_per_second": round(max(m - 1, 0) / answer_s, 3),
            },
        }


def settings(params: SamplerParams) -> dict[str, Any]:
    """The sampling settings under llama-server's names."""
    found = {name: value for name, value in vars(params).items() if name not in ("logit_bias", "dry_breakers")}
    found["temperature"] = found.pop("temp")
    found["typical_p"] = found.pop("typical")
    return found | {"seed": -1 if params.seed is None else params.seed}


async def props(call: HttpCall, _: None) -> HttpReply:
    await call.state.models.open(None)
    entry = call.state.models.default
    vocab = entry.tokenizer.vocab

    def token(role: str) -> str:
        return vocab.tokens[vocab.special[role]] if role in vocab.special else ""

    return json_reply(
        {
            "default_generation_settings": {"n_ctx": entry.n_ctx, "params": settings(SamplerParams())},
            "total_slots": call.state.limits.running,
            "model_alias": entry.id,
            "model_path": entry.file.path.name,
            "modalities": {"vision": entry.sees, "audio": False},
            "chat_template": entry.template.source if entry.template else "",
            "bos_token": token("bos"),
            "eos_token": token("eos"),
            "build_info": f"assay-{__version__}",
        }
    )


async def lora_adapters(call: HttpCall, _: None) -> HttpReply:
    await call.state.models.open(None)
    entry = call.state.models.default
    found = [
        {"id": i, "path": adapter.file.path.name, "scale": entry.base.lora_scales[i]}
        for i, adapter in enumerate(entry.adapters)
    ]
    return json_reply(found)


async def set_lora_adapters(call: HttpCall, request: LoraAdaptersRequest) -> HttpReply:
    """Set the scales of requests that name none. Adapters that are left out are not applied."""
    await call.state.models.open(None)
    entry = call.state.models.default
    asked = common.lora_scales(request.root, entry)
    entry.base.lora_scales = {i: asked.get(i, 0.0) for i in entry.base.lora_scales}
    return json_reply({"success": True})


async def slots(call: HttpCall, _: None) -> HttpReply:
    """One row per possible sequence, with its state but without its text."""
    found: list[dict[str, Any]] = []
    for entry in call.state.models.entries.values():
        running = entry.worker.streams() if entry.worker else []
        for i in range(call.state.limits.running if entry.worker else 0):
            slot: dict[str, Any] = {"id": len(found), "model": entry.id, "n_ctx": entry.n_ctx, "speculative": False}
            slot["is_processing"] = i < len(running)
            if i < len(running):
                slot["n_prompt_tokens"] = running[i].n_prompt
                slot["next_token"] = [{"n_decoded": running[i].generated, "has_next_token": True}]
            found.append(slot)
    return json_reply(found)
