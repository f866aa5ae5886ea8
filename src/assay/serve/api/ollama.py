"""Routes of Ollama: `/api/chat`, `/api/generate`, `/api/embed`, and those about models.

Each request is translated to OpenAI's form and handled in the same way; streams are JSON lines. A model
name may have Ollama's suffix `:latest`.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from assay.runtime.sequence import Progress
from assay.serve.api.answers import token_logprob
from assay.serve.api.chat_completions import Conversation, as_chat_request, begin
from assay.serve.api.llama_server import Text as PlainText
from assay.serve.api.llama_server import continue_text, infill_ids, text_of
from assay.serve.api.request_pictures import data_url
from assay.serve.api.schemas import (
    LIMITS,
    ChatRequest,
    EmbeddingRequest,
    Images,
    Name,
    Penalty,
    Schema,
    Share,
    Stop,
    Text,
    Tools,
)
from assay.serve.api.server_state import HttpCall
from assay.serve.api.texts import embed_texts
from assay.serve.api_errors import ApiError
from assay.serve.http.exchange import LINES, Events, HttpReply, json_reply, large_reply
from assay.serve.pool.models import Offer, ServedModel
from assay.version import __version__

StreamFormat = Literal["", "json"] | dict[str, Any]


class OllamaOptions(Schema, wire="Options"):
    """The settings of Ollama that assay has. Others are ignored, as Ollama ignores them."""

    num_predict: Annotated[int, Field(ge=-2, lt=2**31)] | None = None
    num_keep: Annotated[int, Field(ge=-1, lt=2**31)] | None = Field(None, description="n_keep of the other routes")
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=LIMITS.stops, fail_fast=True)] | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None


class CalledFunction(Schema):
    name: Name
    arguments: dict[str, Any] = Field(default_factory=dict)


class Called(Schema):
    function: CalledFunction


class OllamaMessage(Schema):
    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Text | None = None
    thinking: Text | None = None
    images: Images | None = Field(None, description="pictures before the text, in base64")
    tool_calls: Annotated[list[Called], Field(max_length=LIMITS.tools, fail_fast=True)] | None = None
    tool_name: Name | None = None


class Asking(Schema):
    """Fields of chat and generate requests."""

    model: Name
    stream: bool | None = Field(None, description="default true")
    format: StreamFormat | None = Field(None, description="json, or a JSON schema")
    options: OllamaOptions | None = None
    keep_alive: Annotated[float, Field(ge=-1e9, le=1e9)] | Annotated[str, Field(max_length=32)] | None = Field(
        None, description="seconds, or 5m: how long the model stays loaded afterwards; -1: always; 0: not at all"
    )
    think: bool | Annotated[str, Field(max_length=32)] | None = Field(
        None, description="sets enable_thinking of the template"
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(None, description="alternatives of each token")


class OllamaChatRequest(Asking):
    messages: Annotated[list[OllamaMessage], Field(max_length=LIMITS.messages, fail_fast=True)] | None = None
    tools: Tools | None = None


class OllamaGenerateRequest(Asking):
    prompt: Text | None = None
    suffix: Text | None = Field(None, description="text after the gap, for models that fill in")
    system: Text | None = None
    raw: bool | None = Field(None, description="do not apply the template")
    images: Images | None = Field(None, description="pictures before the prompt, in base64")


class OllamaShowRequest(Schema):
    model: Name | None = None
    name: Name | None = Field(None, description="the older name of `model`")


class OllamaOldEmbedRequest(Schema):
    model: Name
    prompt: Text


class OllamaEmbedRequest(Schema):
    model: Name
    dimensions: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        None, description="keep the first values and normalise again"
    )
    truncate: bool | None = Field(None, description="default true: cut a text that is longer than the context")
    input: Text | Annotated[list[Text], Field(min_length=1, max_length=LIMITS.prompts, fail_fast=True)]


# --- answers


async def ollama_chat(call: HttpCall, request: OllamaChatRequest) -> HttpReply | Events:
    entry = find(call, request.model)
    keep(call, entry, request.keep_alive)
    if not request.messages:
        return await _loaded(call, entry, {"message": {"role": "assistant", "content": ""}})
    messages, tools = request.messages, request.tools
    asked = await call.state.threads.run(
        "text", lambda: _as_chat(request, entry, [_message(m) for m in messages], tools)
    )
    begun = await begin(call, asked)

    def shown(delta: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": delta.get("content", "")}
        if "reasoning_content" in delta:
            message["thinking"] = delta["reasoning_content"]
        if calls := delta.get("tool_calls"):
            message["tool_calls"] = [_called(item) for item in calls]
        return {"message": message}

    return await _reply(request, _chat_lines(begun, shown), _joined_messages)


async def generate(call: HttpCall, request: OllamaGenerateRequest) -> HttpReply | Events:
    entry = find(call, request.model)
    keep(call, entry, request.keep_alive)
    if not request.prompt and not request.suffix:
        return await _loaded(call, entry, {"response": ""})
    if request.raw or request.suffix is not None or entry.template is None:
        if request.images:
            raise ApiError("unsupported", "images: need the template of a model; leave out raw and suffix", "images")
        return await _reply(request, await _text_lines(call, request, entry), _joined_response)
    turns: list[dict[str, Any]] = [{"role": "system", "content": request.system}] if request.system else []
    turns.append({"role": "user", "content": _content(request.prompt, request.images)})
    begun = await begin(call, _as_chat(request, entry, turns, None))

    def shown(delta: dict[str, Any]) -> dict[str, Any]:
        thinking = {"thinking": delta["reasoning_content"]} if "reasoning_content" in delta else {}
        return {"response": delta.get("content", "")} | thinking

    return await _reply(request, _chat_lines(begun, shown), _joined_response)


def _as_chat(request: Asking, entry: ServedModel, messages: list[dict[str, Any]], tools: Any) -> ChatRequest:
    given: dict[str, Any] = {"model": entry.id, "messages": messages, **_sampling(request.options)}
    if tools:
        given["tools"] = [tool.model_dump(exclude_none=True) for tool in tools]
    if request.format == "json":
        given["response_format"] = {"type": "json_object"}
    elif request.format:
        given["response_format"] = {"type": "json_schema", "json_schema": {"schema": request.format}}
    if isinstance(request.think, bool):
        given["chat_template_kwargs"] = {"enable_thinking": request.think}
    elif request.think:
        given["reasoning_effort"] = request.think
    if request.logprobs or request.top_logprobs:
        given |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    return as_chat_request(given, "messages")


def _sampling(options: OllamaOptions | None) -> dict[str, Any]:
    found = options.model_dump(exclude_none=True) if options else {}
    if (n := found.pop("num_predict", -1)) > 0:
        found["max_tokens"] = n
    if "num_keep" in found:
        found["n_keep"] = found.pop("num_keep")
    if "typical_p" in found:
        found["typical"] = found.pop("typical_p")
    return found


def _content(text: str | None, images: list[str] | None) -> Any:
    """A text with pictures before it, in OpenAI's form."""
    if not images:
        return text or ""
    pictures = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
    return [*pictures, {"type": "text", "text": text or ""}]


def _message(message: OllamaMessage) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": _content(message.content, message.images)}
    if message.thinking:
        found["reasoning_content"] = message.thinking
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": f"call_{i}",
                "type": "function",
                "function": {"name": c.function.name, "arguments": json.dumps(c.function.arguments)},
            }
            for i, c in enumerate(message.tool_calls)
        ]
    if message.tool_name:
        found["name"] = message.tool_name
    return found


def _called(item: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments = json.loads(item["function"]["arguments"])
    except (ValueError, RecursionError):
        arguments = {}
    return {"function": {"name": item["function"]["name"], "arguments": arguments}}


async def _chat_lines(begun: Conversation, shown: Any) -> AsyncIterator[dict[str, Any]]:
    (answer,) = begun.answers
    async for _, update in begun.reader:
        for delta, logprobs in answer.add(update):
            if any(delta.values()) or logprobs:
                scored = {"logprobs": logprobs} if logprobs else {}
                yield _head(begun.entry) | shown(delta) | {"done": False} | scored
    (sequence,) = begun.reader.sequences
    reason = "length" if answer.finish_reason == "length" else "stop"
    yield _head(begun.entry) | shown({}) | {"done": True, "done_reason": reason} | _counts(sequence)


async def _text_lines(
    call: HttpCall, request: OllamaGenerateRequest, entry: ServedModel
) -> AsyncIterator[dict[str, Any]]:
    if request.suffix is not None:
        ids = await infill_ids(call, entry, request.prompt or "", request.suffix)
    else:
        ids = await text_of(call, entry, f"{request.system or ''}{request.prompt or ''}")
    given = _sampling(request.options)
    if request.format:
        schema = {"type": "object"} if request.format == "json" else request.format
        given["json_schema"] = schema
    top = (request.top_logprobs or 0) if request.logprobs or request.top_logprobs else None
    if top is not None:
        given["n_probs"] = max(top, 1)
    reader = await continue_text(call, entry, ids, PlainText.model_validate(given))

    async def lines() -> AsyncIterator[dict[str, Any]]:
        async for _, update in reader:
            scored: dict[str, Any] = {}
            if top is not None and update.choice:
                row = token_logprob(entry, update.choice)
                scored = {"logprobs": [row | {"top_logprobs": row["top_logprobs"][:top]}]}
            if update.text or scored:
                yield _head(entry) | {"response": update.text, "done": False} | scored
        reason = "length" if reader.ends[0] in ("length", "context") else "stop"
        yield _head(entry) | {"response": "", "done": True, "done_reason": reason} | _counts(reader.sequences[0])

    return lines()


async def _reply(request: Asking, lines: AsyncIterator[dict[str, Any]], join: Any) -> HttpReply | Events:
    if request.stream is not False:
        return Events(lines, LINES)
    return json_reply(join([line async for line in lines]))


def _joined_messages(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The lines of a stream joined to one answer."""
    found: dict[str, Any] = {"role": "assistant", "content": "".join(line["message"]["content"] for line in lines)}
    if thinking := "".join(line["message"].get("thinking", "") for line in lines):
        found["thinking"] = thinking
    if calls := [c for line in lines for c in line["message"].get("tool_calls", ())]:
        found["tool_calls"] = calls
    return lines[-1] | {"message": found} | _joined_scores(lines)


def _joined_scores(lines: list[dict[str, Any]]) -> dict[str, Any]:
    scores = [score for line in lines for score in line.get("logprobs", ())]
    return {"logprobs": scores} if scores else {}


def _joined_response(lines: list[dict[str, Any]]) -> dict[str, Any]:
    thinking = "".join(line.get("thinking", "") for line in lines)
    text = {"response": "".join(line["response"] for line in lines)}
    return lines[-1] | text | ({"thinking": thinking} if thinking else {}) | _joined_scores(lines)


async def _loaded(call: HttpCall, entry: ServedModel, empty: dict[str, Any]) -> HttpReply:
    """The answer to a request without a prompt, which loads the model, or unloads it if it is kept 0 seconds."""
    if entry.base.keep_s == 0:
        await call.state.models.unload(entry)
        return json_reply(_head(entry) | empty | {"done": True, "done_reason": "unload"})
    await call.stack.enter_async_context(call.state.models.use(entry))
    return json_reply(_head(entry) | empty | {"done": True, "done_reason": "load"})


def _head(entry: ServedModel) -> dict[str, Any]:
    return {"model": entry.id, "created_at": datetime.now(UTC).isoformat()}


def _counts(sequence: Progress) -> dict[str, int]:
    """Tokens, and durations in nanoseconds."""
    t = sequence.times
    first, last = t.first or t.arrived, t.last or t.arrived
    return {
        "total_duration": int(1e9 * (time.monotonic() - t.arrived)),
        "load_duration": int(1e9 * max(t.admitted - t.arrived, 0)),
        "prompt_eval_count": sequence.n_prompt,
        "prompt_eval_duration": int(1e9 * max(first - (t.admitted or t.arrived), 0)),
        "eval_count": sequence.generated,
        "eval_duration": int(1e9 * max(last - first, 0)),
    }


# --- models


def find(call: HttpCall, name: str | None, *, exact: bool = False) -> ServedModel:
    return call.state.models.find(name, exact=exact)


_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def keep(call: HttpCall, entry: ServedModel, asked: float | str | None) -> None:
    """Set how long a model stays in memory after its last use: seconds, or a duration such as 5m or 1h30m.

    A model that the server was started with stays, unless clients may manage models."""
    if asked is None:
        return
    seconds = asked
    if isinstance(asked, str):
        parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", asked)
        if not parts or "".join(map("".join, parts)) != asked.lstrip("-"):
            raise ApiError("invalid_value", f"keep_alive: expected seconds or 5m (found {asked!r:.40})", "keep_alive")
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts) * (-1 if asked[0] == "-" else 1)
    assert not isinstance(seconds, str)
    if call.state.manage or not call.state.models.is_resident(entry):
        entry.base.keep_s = math.inf if seconds < 0 else seconds


async def tags(call: HttpCall, _: None) -> HttpReply:
    pool = call.state.models
    digests = await _digests(call)
    cards = [_card(entry, digests) for entry in pool.entries.values()]
    opened = {str(entry.file.path.resolve()): card for entry, card in zip(pool.entries.values(), cards, strict=True)}
    return json_reply({"models": cards + [_offer_card(offer, opened) for offer in pool.unopened]})


async def ollama_ps(call: HttpCall, _: None) -> HttpReply:
    pool, digests = call.state.models, await _digests(call)
    return json_reply(
        {"models": [_card(e, digests) | {"size": e.base.bytes, "size_vram": 0, "context_length": e.n_ctx,
                                         "expires_at": _expiry(pool.expires(e.base))}
                    for e in pool.entries.values() if e.base.worker]}
    )  # fmt: skip


def _expiry(at: float) -> str:
    """A time on the clock of time.monotonic(), as a date; far away for never."""
    left = at - time.monotonic()
    return "9999-12-31T23:59:59Z" if left > 1e9 else (datetime.now(UTC) + timedelta(seconds=left)).isoformat()


async def _digests(call: HttpCall) -> dict[str, str]:
    """The digests of the files of loaded models. They are computed once, in a thread; others have none yet."""
    loaded = [e for e in call.state.models.entries.values() if e.base.worker]
    return await call.state.threads.run("disk", lambda: {e.id: e.file.sha256 for e in loaded})


# The version of Ollama whose API these routes have. Clients require a least version, and Open WebUI three numbers.
OLLAMA_VERSION = "0.12.11"


async def ollama_version(call: HttpCall, _: None) -> HttpReply:
    return json_reply({"version": OLLAMA_VERSION, "assay": __version__})


async def show(call: HttpCall, request: OllamaShowRequest) -> HttpReply:
    entry = find(call, request.model or request.name, exact=True)
    file = entry.file
    info = {key: _plain(file.metadata[key]) for key in file.metadata if file.metadata.length(key) is None}
    source = info.pop("tokenizer.chat_template", None)
    capable = ["completion"]
    if entry.template is not None:
        capable.append("tools")
    if entry.sees:
        capable.append("vision")
    if "fim_pre" in entry.tokenizer.vocab.special:
        capable.append("insert")
    if entry.template is not None and "enable_thinking" in entry.template.source:
        capable.append("thinking")
    return json_reply(
        {
            "modelfile": "",
            "parameters": _parameters(entry),
            "template": (source or "") + (_FILLS_IN if "insert" in capable else ""),
            "details": _details(entry),
            "model_info": info,
            "capabilities": capable,
            "modified_at": datetime.fromtimestamp(entry.created, UTC).isoformat(),
        }
    )


# A comment of Jinja, at the end of the template of a model that fills in: Continue and others look for this name of
# Ollama's templates, and send `suffix` only where they find it.
_FILLS_IN = "{# fills in before {{ .Suffix }} #}"


def _parameters(entry: ServedModel) -> str:
    """The context and the stop strings, as lines of a Modelfile. Without num_ctx Continue assumes 8192."""
    rows = [("num_ctx", str(entry.n_ctx)), *(("stop", json.dumps(text)) for text in entry.stop)]
    return "\n".join(f"{name:<30} {value}" for name, value in rows)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else str(value)


def _offer_card(offer: Offer, opened: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """A model that was not opened yet: its name, size and date. A preset of an opened file has what is known of it."""
    known = opened.get(str(offer.model), {})
    return {
        "size": offer.size, "digest": "",
        "details": {"parent_model": "", "format": "gguf", "family": "", "families": [], "parameter_size": "",
                    "quantization_level": ""},
        **known,
        "name": offer.name, "model": offer.name, "modified_at": datetime.fromtimestamp(offer.created, UTC).isoformat(),
    }  # fmt: skip


def _card(entry: ServedModel, digests: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": entry.id,
        "model": entry.id,
        "modified_at": datetime.fromtimestamp(entry.created, UTC).isoformat(),
        "size": entry.file.size,
        "digest": digests.get(entry.id, ""),
        "details": _details(entry),
    }


def _details(entry: ServedModel) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for tensor in entry.file.tensors.values():
        counts[tensor.type.name] = counts.get(tensor.type.name, 0) + tensor.nbytes
    n = entry.n_params
    return {
        "parent_model": "",
        "format": "gguf",
        "family": entry.model.hparams.arch,
        "families": [entry.model.hparams.arch],
        "parameter_size": f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.2f}M",
        "quantization_level": max(counts, key=lambda name: counts[name], default=""),
    }


async def embed(call: HttpCall, request: OllamaEmbedRequest) -> HttpReply:
    """The vectors of `/v1/embeddings` in Ollama's form."""
    began = time.monotonic()
    asked = EmbeddingRequest.model_construct(
        model=find(call, request.model).id, input=request.input, dimensions=request.dimensions
    )

    def reply(rows: list[dict[str, Any]], model: str, tokens: int) -> HttpReply:
        return large_reply(
            {
                "model": request.model,
                "embeddings": [row["embedding"] for row in rows],
                "total_duration": int(1e9 * (time.monotonic() - began)),
                "load_duration": 0,
                "prompt_eval_count": tokens,
            }
        )

    return await embed_texts(call, asked, reply, truncate=request.truncate is not False)


async def old_embeddings(call: HttpCall, request: OllamaOldEmbedRequest) -> HttpReply:
    """One vector, as the older route answers. It cuts a long text, as in Ollama."""
    asked = EmbeddingRequest.model_construct(model=find(call, request.model).id, input=request.prompt)

    def reply(rows: list[dict[str, Any]], model: str, tokens: int) -> HttpReply:
        return large_reply({"embedding": rows[0]["embedding"]})

    return await embed_texts(call, asked, reply, truncate=True)
