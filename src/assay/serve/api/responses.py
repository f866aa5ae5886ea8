"""`/v1/responses`: OpenAI's newer chat API, with items for input and output, translated to a chat request.

Responses are not stored. The client sends the whole conversation, so `previous_response_id` is refused, and so is
`background`, whose answer a client would fetch later.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from assay.serve.api import answers as common
from assay.serve.api.chat_completions import Conversation, as_chat_request, begin, prompt_of
from assay.serve.api.schemas import (
    LIMITS,
    ChatRequest,
    Function,
    FunctionName,
    ImagePart,
    Name,
    OnlyPictures,
    Schema,
    Share,
    Text,
)
from assay.serve.api.server_state import HttpCall
from assay.serve.api_errors import ApiError
from assay.serve.http.exchange import NAMED, Events, HttpReply, json_reply


class ContentPart(Schema, wire="Part"):
    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: Text


ContentParts = Annotated[list[Annotated[ContentPart | ImagePart, OnlyPictures]], Field(max_length=256, fail_fast=True)]


class InputItem(Schema, wire="Item"):
    """A message, a function call, or the result of a call."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] | None = None
    role: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    content: Text | ContentParts | None = None
    call_id: Name | None = None
    name: Name | None = None
    namespace: Name | None = None
    arguments: Text | None = None
    output: Text | ContentParts | None = None


class FunctionTool(Function):
    type: Literal["function"]


_OWN_KINDS = ("function", "namespace")


def _kind(value: Any) -> str:
    found = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return found if found in _OWN_KINDS else "other"


class HostedTool(Schema):
    """A tool that OpenAI's servers run, or that has no schema. The model is not told of it, as in llama-server."""

    type: Annotated[str, Field(max_length=64, json_schema_extra={"not": {"enum": [*_OWN_KINDS]}})]


_GroupedTool = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[HostedTool, Tag("other")],
    Discriminator(_kind),
]


class NamespaceTool(Schema):
    """A group of tools. The model knows its functions as `namespace__function`; a call of one names the namespace."""

    type: Literal["namespace"]
    name: FunctionName
    tools: Annotated[list[_GroupedTool], Field(max_length=LIMITS.tools, fail_fast=True)]


AnyTool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[HostedTool, Tag("other")],
    Discriminator(_kind),
]


class NamedChoice(Schema):
    type: Literal["function"]
    name: Name
    namespace: Name | None = None


class AllowedChoice(Schema):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedChoice], Field(min_length=1, max_length=LIMITS.tools, fail_fast=True)]


class TextFormat(Schema):
    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Schema):
    format: TextFormat | None = None


class Reasoning(Schema):
    effort: Annotated[str, Field(max_length=32)] | None = None


class ResponsesRequest(Schema):
    model: Name | None = Field(None, description="one of /v1/models; default: the first")
    input: Text | Annotated[list[InputItem], Field(min_length=1, max_length=LIMITS.messages, fail_fast=True)]
    instructions: Text | None = Field(None, description="a system message before the input")
    max_output_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Share | None = None
    stream: bool | None = None
    tools: Annotated[list[AnyTool], Field(max_length=LIMITS.tools, fail_fast=True)] | None = None
    tool_choice: (
        Literal["none", "auto", "required"] | Annotated[NamedChoice | AllowedChoice, Field(discriminator="type")] | None
    ) = None
    parallel_tool_calls: bool | None = Field(None, description="false: an answer has one call at most")
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    previous_response_id: Name | None = Field(None, description="refused: responses are not stored")
    conversation: Name | dict[str, Any] | None = Field(None, description="refused: conversations are not stored")
    background: bool | None = Field(None, description="true is refused: responses are not stored")
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = Field(None, description="an extension")


class InputTokens(Schema):
    object: Literal["response.input_tokens"]
    input_tokens: int


async def input_tokens(call: HttpCall, request: ResponsesRequest) -> HttpReply:
    """The tokens of the prompt that such a request would have."""
    chat = await call.state.threads.run("text", lambda: as_chat(request))
    prompt = await prompt_of(call, chat, counted=True)
    return json_reply({"object": "response.input_tokens", "input_tokens": len(prompt.ids)})


async def responses(call: HttpCall, request: ResponsesRequest) -> HttpReply | Events:
    for name in ("previous_response_id", "conversation"):
        if getattr(request, name) is not None:
            raise ApiError(
                "unsupported", f"{name}: responses are not stored; send the whole conversation as input", name
            )
    if request.background:
        raise ApiError(
            "unsupported", "background: responses are not stored for later; leave it out, or stream", "background"
        )
    begun = await begin(call, await call.state.threads.run("text", lambda: as_chat(request)))
    made = _Response(request, begun)
    if request.stream:
        return Events(made.events(), NAMED)
    async for _ in made.events():
        pass
    return json_reply(made.body())


def as_chat(request: ResponsesRequest) -> ChatRequest:
    """The request in the form of `/v1/chat/completions`."""
    functions = [
        {"type": "function", "function": tool.model_dump(exclude={"type"}) | {"name": name}}
        for name, (_, tool) in _functions(request).items()
    ]
    given: dict[str, Any] = {
        "model": request.model, "temperature": request.temperature, "top_p": request.top_p, "seed": request.seed,
        "max_completion_tokens": request.max_output_tokens, "messages": _messages(request),
        "reasoning_effort": request.reasoning.effort if request.reasoning else None,
        "response_format": _format(request.text.format if request.text else None),
        "tools": functions, "tool_choice": request.tool_choice, "parallel_tool_calls": request.parallel_tool_calls,
        "stream": request.stream,
    }  # fmt: skip
    if isinstance(chosen := request.tool_choice, NamedChoice):
        given["tool_choice"] = _named(chosen)
    elif isinstance(chosen, AllowedChoice):
        allowed = {"mode": chosen.mode, "tools": [_named(tool) for tool in chosen.tools]}
        given["tool_choice"] = {"type": "allowed_tools", "allowed_tools": allowed}
    return as_chat_request(given, "input")


def _named(chosen: NamedChoice) -> dict[str, Any]:
    return {"type": "function", "function": {"name": _full_name(chosen.namespace, chosen.name)}}


def _full_name(namespace: str | None, name: str) -> str:
    """The name of a function as the model knows it."""
    return f"{namespace.rstrip('_')}__{name}" if namespace else name


def _functions(request: ResponsesRequest) -> dict[str, tuple[str | None, FunctionTool]]:
    """The functions that are offered, by the name that the model knows, each with its namespace."""
    found: dict[str, tuple[str | None, FunctionTool]] = {}
    for tool in request.tools or ():
        namespace, inner = (tool.name, tool.tools) if isinstance(tool, NamespaceTool) else (None, [tool])
        for one in inner:
            if isinstance(one, FunctionTool):
                found[_full_name(namespace, one.name)] = (namespace, one)
    return found


def _messages(request: ResponsesRequest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    thoughts: dict[str, Any] = {}  # the reasoning before a message or call of the assistant
    if request.instructions:
        found.append({"role": "system", "content": request.instructions})
    items = [InputItem(role="user", content=request.input)] if isinstance(request.input, str) else request.input
    for item in items:
        if item.type == "reasoning":
            thoughts = {"reasoning_content": text} if (text := _text(item.content)) else {}
        elif item.type == "function_call":
            function = {"name": _full_name(item.namespace, item.name or ""), "arguments": item.arguments or "{}"}
            made = {"id": item.call_id or "", "type": "function", "function": function}
            if found and found[-1]["role"] == "assistant" and not thoughts:
                found[-1].setdefault("tool_calls", []).append(made)
            else:
                found.append({"role": "assistant", "content": None, "tool_calls": [made], **thoughts})
            thoughts = {}
        elif item.type == "function_call_output":
            found.append({"role": "tool", "tool_call_id": item.call_id or "", "content": _content(item.output)})
        else:
            if item.role is None:
                raise ApiError("invalid_value", "input: a message needs a role", "input")
            found.append({"role": item.role, "content": _content(item.content)})
            if item.role == "assistant":
                found[-1] |= thoughts
                thoughts = {}
    return found


def _content(content: str | list[ContentPart | ImagePart] | None) -> Any:
    """A text; with pictures, a list of parts."""
    if not isinstance(content, list) or not any(isinstance(part, ImagePart) for part in content):
        return _text(content)
    return [
        part.model_dump() if isinstance(part, ImagePart) else {"type": "text", "text": part.text} for part in content
    ]


def _text(content: str | Sequence[ContentPart | ImagePart] | None) -> str:
    """The text of parts; a picture has none."""
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content or () if isinstance(part, ContentPart))


def _format(wanted: TextFormat | None) -> dict[str, Any] | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": wanted.name or "answer", "schema": wanted.schema_}}


class _Response:
    """Builds a response: its items, and the events about them."""

    def __init__(self, request: ResponsesRequest, begun: Conversation) -> None:
        self._request = request
        self._functions = _functions(request)
        self._begun = begun
        self._number = 0
        self._output: list[dict[str, Any]] = []
        self._finish = ""
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())

    @cached_property
    def _given(self) -> dict[str, Any]:
        """The request, which each body repeats in part."""
        return self._request.model_dump(
            mode="json", by_alias=True, exclude_none=True, include={"text", "tool_choice", "tools"}
        )

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        (answer,) = self._begun.answers
        yield self._event("response.created", response=self.body())
        yield self._event("response.in_progress", response=self.body())
        async for _, update in self._begun.reader:
            for delta, _logprobs in answer.add(update):
                for event in self._events_of(delta):
                    yield event
        for event in self._close():
            yield event
        self._finish = answer.finish_reason
        kind = "incomplete" if self._finish == "length" else "completed"
        yield self._event(f"response.{kind}", response=self.body())

    def _events_of(self, delta: dict[str, Any]) -> list[dict[str, Any]]:
        events = []
        for kind, name in (("reasoning", "reasoning_content"), ("message", "content")):
            if delta.get(name):
                if not self._output or self._output[-1]["type"] != kind:
                    events += self._close() + self._open(kind)
                item = self._output[-1]
                item["content"][0]["text"] += delta[name]
                events.append(self._about(f"response.{_PART[kind]}.delta", content_index=0, delta=delta[name]))
        for call in delta.get("tool_calls") or ():
            if "id" in call:
                events += self._close() + self._call_begun(call)
            events += self._call_grown(call["function"]["arguments"])
        return events

    def _open(self, kind: str) -> list[dict[str, Any]]:
        part: dict[str, Any] = {"type": _PART[kind], "text": ""}
        item: dict[str, Any] = {"type": kind, "status": "in_progress", "content": []}
        if kind == "message":
            part |= {"annotations": [], "logprobs": []}
            item |= {"id": f"msg_{uuid.uuid4().hex}", "role": "assistant"}
        else:
            item |= {"id": f"rs_{uuid.uuid4().hex}", "summary": []}
        self._output.append(item)
        events = [
            self._event("response.output_item.added", output_index=len(self._output) - 1, item=item | {"content": []})
        ]
        item["content"].append(part)
        if kind == "message":
            events.append(self._about("response.content_part.added", content_index=0, part=dict(part)))
        return events

    def _close(self) -> list[dict[str, Any]]:
        """Finish the current item."""
        if not self._output or self._output[-1]["status"] != "in_progress":
            return []
        item = self._output[-1]
        item["status"] = "completed"
        if item["type"] == "function_call":
            whole = self._about("response.function_call_arguments.done", arguments=item["arguments"], name=item["name"])
            return [whole, self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)]
        part = item["content"][0]
        events = [self._about(f"response.{_PART[item['type']]}.done", content_index=0, text=part["text"])]
        if item["type"] == "message":
            events.append(self._about("response.content_part.done", content_index=0, part=part))
        return [*events, self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)]

    def _call_begun(self, call: dict[str, Any]) -> list[dict[str, Any]]:
        name = call["function"]["name"]
        namespace, function = self._functions.get(name, (None, None))
        item = {
            "id": f"fc_{uuid.uuid4().hex}", "type": "function_call", "status": "in_progress", "call_id": call["id"],
            "name": function.name if function else name, "arguments": "",
        } | ({"namespace": namespace} if namespace else {})  # fmt: skip
        self._output.append(item)
        return [self._event("response.output_item.added", output_index=len(self._output) - 1, item=dict(item))]

    def _call_grown(self, text: str) -> list[dict[str, Any]]:
        if not text:
            return []
        self._output[-1]["arguments"] += text
        return [self._about("response.function_call_arguments.delta", delta=text)]

    def _about(self, kind: str, **fields: Any) -> dict[str, Any]:
        """An event about the last item."""
        extra: dict[str, Any] = {"logprobs": []} if kind.startswith("response.output_text") else {}
        at = len(self._output) - 1
        return self._event(kind, item_id=self._output[-1]["id"], output_index=at, **fields, **extra)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def body(self) -> dict[str, Any]:
        request, sequences = self._request, self._begun.reader.sequences
        usage = common.usage(sequences)
        done = bool(self._finish)
        cut = self._finish == "length"
        given = self._given
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": ("incomplete" if cut else "completed") if done else "in_progress",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "model": self._begun.entry.id,
            "output": self._output,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": request.reasoning.effort if request.reasoning else None, "summary": None},
            "store": False,
            "temperature": request.temperature,
            "text": given.get("text") or {"format": {"type": "text"}},
            "tool_choice": given.get("tool_choice", "auto"),
            "tools": given.get("tools", []),
            "top_p": request.top_p,
            "truncation": "disabled",
            "metadata": {},
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {
                    "reasoning_tokens": sum(answer.reasoning_tokens for answer in self._begun.answers),
                },
                "total_tokens": usage["total_tokens"],
            } if done else None,
        }  # fmt: skip


_PART = {"message": "output_text", "reasoning": "reasoning_text"}
