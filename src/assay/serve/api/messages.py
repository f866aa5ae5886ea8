"""`/v1/messages`: Anthropic's chat API, with blocks for input and output, translated to a chat request.

`/v1/messages/count_tokens` renders the same conversation and counts its tokens. `cache_control` is ignored, because the
prefix cache shares every prompt.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from assay.engines.contract import PAGE
from assay.runtime.sequence import Progress
from assay.serve.api.chat_completions import Conversation, as_chat_request, begin, prompt_of
from assay.serve.api.schemas import (
    LIMITS,
    ChatRequest,
    FunctionName,
    ImageUrl,
    Name,
    NoMedia,
    OnlyPictures,
    Schema,
    Share,
    Stop,
    Text,
)
from assay.serve.api.server_state import HttpCall
from assay.serve.api_errors import ApiError
from assay.serve.http.exchange import MESSAGES, Events, HttpReply, json_reply

# A block that some agents put before the system prompt. It changes with every request, so it would end the shared
# prefix there, and it is not meant for the model.
BILLING = "x-anthropic-billing-header:"
SIGNATURE = "assay"  # of a thinking block: clients send it back, and nothing checks it
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def _written(value: Any) -> Any:
    """A document or a search result that consists of texts, as a text block; any other block as it is."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in ("document", "search_result"):
        return value
    holder = value if kind == "search_result" else value.get("source")
    if not isinstance(holder, dict):
        return value
    found: Any = holder.get("data") if holder.get("type") == "text" else holder.get("content")
    texts: list[Any] = (
        [part.get("text") if isinstance(part, dict) else None for part in found] if isinstance(found, list) else [found]
    )
    if not texts or not all(isinstance(text, str) for text in texts):
        return value
    heads = [value.get(name) for name in ("title", "source", "context")]
    return {"type": "text", "text": "\n".join([*(head for head in heads if isinstance(head, str)), *texts])}


def _as_image(value: Any) -> Any:
    """A picture under Anthropic's own name, which the refusal of an unknown block lists."""
    return {**value, "type": "image"} if isinstance(value, dict) and value.get("type") == "image_url" else value


Written = BeforeValidator(_written)
AsImage = BeforeValidator(_as_image)


class TextBlock(Schema):
    type: Literal["text"]
    text: Text


TextBlocks = Annotated[list[Annotated[TextBlock, NoMedia]], Field(max_length=256, fail_fast=True)]


class ImageBlock(Schema):
    type: Literal["image"]
    image_url: ImageUrl = Field(description="the `source` of an image is read as this")


ResultBlock = Annotated[TextBlock | ImageBlock, Field(discriminator="type"), AsImage, OnlyPictures, Written]
ResultBlocks = Annotated[list[ResultBlock], Field(max_length=256, fail_fast=True)]


class MessageBlock(Schema, wire="Block"):
    """A text, a picture, a call (`tool_use`), the result of a call, or reasoning.

    A `document` or `search_result` that consists of texts is read as a text.
    """

    type: Literal["text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking"]
    image_url: ImageUrl | None = Field(None, description="the `source` of an image is read as this")
    text: Text | None = None
    id: Name | None = None
    name: Name | None = None
    input: dict[str, Any] | None = None
    tool_use_id: Name | None = None
    content: Text | ResultBlocks | None = None
    thinking: Text | None = None


class TurnMessage(Schema, wire="Turn"):
    role: Literal["user", "assistant", "system"]
    content: (
        Text
        | Annotated[
            list[Annotated[MessageBlock, AsImage, OnlyPictures, Written]], Field(max_length=1024, fail_fast=True)
        ]
    )


class InputTool(Schema):
    type: Annotated[str, Field(max_length=64)] | None = None
    name: FunctionName
    description: Annotated[str, Field(max_length=65536)] | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Schema):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Schema):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None


class OutputFormat(Schema):
    type: Literal["json_schema"]
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class OutputConfig(Schema):
    effort: Annotated[str, Field(max_length=32)] | None = None
    format: OutputFormat | None = None


class CountRequest(Schema, wire="CountTokensRequest"):
    model: Name | None = Field(None, description="one of /v1/models; default: the first")
    messages: Annotated[list[TurnMessage], Field(min_length=1, max_length=LIMITS.messages, fail_fast=True)]
    system: Text | TextBlocks | None = None
    tools: Annotated[list[InputTool], Field(max_length=LIMITS.tools, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountRequest):
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)]
    stop_sequences: Annotated[list[Stop], Field(max_length=LIMITS.stops, fail_fast=True)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = Field(None, description="an extension")


class TokenCount(Schema):
    input_tokens: int


async def messages(call: HttpCall, request: MessagesRequest) -> HttpReply | Events:
    begun = await begin(call, await call.state.threads.run("text", lambda: as_chat(request)))
    made = _Message(begun)
    if request.stream:
        return Events(made.events(), MESSAGES)
    async for _ in made.events():
        pass
    return json_reply(made.body())


async def count_tokens(call: HttpCall, request: CountRequest) -> HttpReply:
    chat = await call.state.threads.run("text", lambda: as_chat(request))
    prompt = await prompt_of(call, chat, counted=True)
    return json_reply({"input_tokens": len(prompt.ids)})


# --- the request in the form of /v1/chat/completions


def as_chat(request: CountRequest) -> ChatRequest:
    given: dict[str, Any] = {
        "model": request.model,
        "messages": _conversation(request),
        "tools": [_tool(i, tool) for i, tool in enumerate(request.tools or ())] or None,
        "tool_choice": _choice(request.tool_choice),
        "parallel_tool_calls": not (request.tool_choice and request.tool_choice.disable_parallel_tool_use),
        "continue_final_message": request.messages[-1].role == "assistant",
    }
    if request.thinking:
        given["chat_template_kwargs"] = {"enable_thinking": request.thinking.type != "disabled"}
        given["thinking_budget_tokens"] = request.thinking.budget_tokens
    if request.output_config:
        given["reasoning_effort"] = request.output_config.effort
        if wanted := request.output_config.format:
            given["response_format"] = {"type": "json_schema", "json_schema": {"schema": wanted.schema_}}
    if isinstance(request, MessagesRequest):
        given |= {name: getattr(request, name) for name in ("max_tokens", "temperature", "top_p", "top_k", "seed")}
        given["stream"] = request.stream
        given["stop"] = request.stop_sequences
    return as_chat_request(given, "messages")


def _conversation(request: CountRequest) -> list[dict[str, Any]]:
    system = [request.system] if isinstance(request.system, str) else [block.text for block in request.system or ()]
    told = "\n\n".join(text for text in system if text and not text.startswith(BILLING))
    found: list[dict[str, Any]] = [{"role": "system", "content": told}] if told else []
    names: dict[str, str] = {}  # of the functions, by the id of their call
    for turn in request.messages:
        if isinstance(turn.content, str):
            found.append({"role": turn.role, "content": turn.content})
        else:
            found += _turns(turn.role, turn.content, names)
    return found


def _turns(role: str, blocks: list[MessageBlock], names: dict[str, str]) -> list[dict[str, Any]]:
    """The messages of one turn: the results of calls, then its texts with its reasoning and calls."""
    results: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    texts: list[str | dict[str, Any]] = []  # pictures between them are parts in OpenAI's form
    thoughts: list[str] = []
    for block in blocks:
        if block.type == "text":
            texts.append(block.text or "")
        elif block.image_url:
            texts.append(_picture(block.image_url))
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            name, key = block.name or "", block.id or ""
            names[key] = name
            function = {"name": name, "arguments": json.dumps(block.input or {}, ensure_ascii=False)}
            calls.append({"id": key, "type": "function", "function": function})
        elif block.type == "tool_result":
            key = block.tool_use_id or ""
            result = {"role": "tool", "tool_call_id": key, "content": _result(block.content)}
            results.append(result | ({"name": names[key]} if key in names else {}))
    said: dict[str, Any] = {"role": role, "content": _content(texts)}
    if thoughts:
        said["reasoning_content"] = "\n".join(thoughts)
    if calls:
        said["tool_calls"] = calls
    return [*results, said] if texts or calls or thoughts or not results else results


def _content(texts: list[str | dict[str, Any]]) -> Any:
    """Texts joined by line ends; with pictures, a list of parts."""
    if all(isinstance(text, str) for text in texts):
        return "\n".join(map(str, texts)) if texts else None
    parts: list[Any] = []
    for i, text in enumerate(texts):
        after = "\n" if i and isinstance(texts[i - 1], str) else ""
        parts.append({"type": "text", "text": after + text} if isinstance(text, str) else text)
    return parts


def _result(content: str | Sequence[TextBlock | ImageBlock] | None) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    return _content([_picture(block.image_url) if isinstance(block, ImageBlock) else block.text for block in content])


def _picture(image: ImageUrl) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image.url}}


def _tool(index: int, tool: InputTool) -> dict[str, Any]:
    if tool.input_schema is None:
        kind = tool.type or "none"
        raise ApiError(
            "unsupported",
            f"tools.{index}: a tool needs an input_schema (found type {kind!r:.64}, which only Anthropic's servers and "
            "models know); describe it as a tool of your own",
            f"tools.{index}",
        )
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice | None) -> Any:
    if choice is None or choice.type in ("auto", "none"):
        return choice.type if choice else None
    return "required" if choice.type == "any" else {"type": "function", "function": {"name": choice.name or ""}}


# --- the answer


class _Message:
    """Builds a message: its blocks, and the events about them."""

    def __init__(self, begun: Conversation) -> None:
        self._begun = begun
        self._blocks: list[dict[str, Any]] = []
        self._open = False  # whether the last block may grow
        self._arguments = ""  # of the last call, so far
        self._ended: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        (answer,) = self._begun.answers
        started = False
        async for _, update in self._begun.reader:
            if not started:  # the counts of the prompt are known with the first token
                started = True
                yield {"type": "message_start", "message": self.body()}
                yield {"type": "ping"}
            for delta, _logprobs in answer.add(update):
                for event in self._events_of(delta):
                    yield event
        for event in self._close():
            yield event
        self._ended = self._end(answer.finish_reason)
        yield {"type": "message_delta", "delta": self._ended, "usage": usage(self._sequence)}
        yield {"type": "message_stop"}

    @property
    def _sequence(self) -> Progress:
        return self._begun.reader.sequences[0]

    def _events_of(self, delta: dict[str, Any]) -> list[dict[str, Any]]:
        events = []
        for name, (kind, field, change) in _GROWING.items():
            if text := delta.get(name):
                if not self._open or self._blocks[-1]["type"] != kind:
                    events += self._close() + self._begin({"type": kind, field: ""} | _EXTRA.get(kind, {}))
                self._blocks[-1][field] += text
                events.append(self._about("content_block_delta", delta={"type": change, field: text}))
        for call in delta.get("tool_calls") or ():
            if "id" in call:
                events += self._close() + self._call_begun(call)
            events += self._call_grown(call["function"]["arguments"])
        return events

    def _begin(self, block: dict[str, Any]) -> list[dict[str, Any]]:
        self._blocks.append(block)
        self._open = True
        return [self._about("content_block_start", content_block=dict(block))]

    def _close(self) -> list[dict[str, Any]]:
        """Finish the current block."""
        if not self._open:
            return []
        self._open = False
        events = [self._about("content_block_stop")]
        if self._blocks[-1]["type"] == "tool_use":
            self._blocks[-1]["input"] = _object(self._arguments)
        if self._blocks[-1]["type"] == "thinking":
            self._blocks[-1]["signature"] = SIGNATURE
            events.insert(
                0, self._about("content_block_delta", delta={"type": "signature_delta", "signature": SIGNATURE})
            )
        return events

    def _call_begun(self, call: dict[str, Any]) -> list[dict[str, Any]]:
        name = call["function"]["name"]
        self._arguments = ""
        return self._begin(
            {"type": "tool_use", "id": f"toolu_{call['id'].removeprefix('call_')}", "name": name, "input": {}}
        )

    def _call_grown(self, text: str) -> list[dict[str, Any]]:
        if not text:
            return []
        self._arguments += text
        return [self._about("content_block_delta", delta={"type": "input_json_delta", "partial_json": text})]

    def _about(self, kind: str, **fields: Any) -> dict[str, Any]:
        """An event about the last block."""
        return {"type": kind, "index": len(self._blocks) - 1, **fields}

    def _end(self, reason: str) -> dict[str, Any]:
        if self._begun.reader.ends[0] == "stop":
            stops = self._sequence.job.stop
            word = self._sequence.stop_string or (stops[0] if len(stops) == 1 else None)
            return {"stop_reason": "stop_sequence", "stop_sequence": word}
        return {"stop_reason": STOP_REASONS[reason], "stop_sequence": None}

    def body(self) -> dict[str, Any]:
        return {
            "id": f"msg_{self._begun.origin.id}",
            "type": "message",
            "role": "assistant",
            "model": self._begun.entry.id,
            "content": self._blocks,
            **self._ended,
            "usage": usage(self._sequence),
        }


# Deltas of a choice that make a block grow: the block's type, its field, and the type of the event's delta.
_GROWING = {
    "reasoning_content": ("thinking", "thinking", "thinking_delta"),
    "content": ("text", "text", "text_delta"),
}
_EXTRA: dict[str, dict[str, Any]] = {"thinking": {"signature": ""}}


def _object(arguments: str) -> Any:
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def usage(sequence: Progress) -> dict[str, Any]:
    """Tokens in Anthropic's words. The three counts of the input add up to the prompt.

    Read: found in the prefix cache. Created: computed for this request and kept there, which whole pages are. The rest
    was computed and is not kept.
    """
    n, read = sequence.n_prompt, sequence.cached
    created = max(n - n % PAGE - read, 0)
    return {
        "input_tokens": n - read - created,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": read,
        "output_tokens": sequence.generated,
    }
