"""`/v1/chat/completions`: render messages with the chat template; answer with reasoning, tool calls and logprobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any

from pydantic import ValidationError

from assay.runtime.image_places import Images, only_tokens
from assay.runtime.sequence import Constraint, Job, Update
from assay.serve.api import answers as common
from assay.serve.api import request_tokens
from assay.serve.api.answer_receipts import signed
from assay.serve.api.reasoning import allowed_tokens, thinking_budget
from assay.serve.api.schemas import ChatRequest, Function, SchemaFormat, Tool
from assay.serve.api.server_state import HttpCall
from assay.serve.api.tools import callable_tools, offered_rule, required_rule, requires_call
from assay.serve.api.turns import TAUGHT, plain_tools
from assay.serve.api_errors import ApiError
from assay.serve.http.exchange import Event, Events, HttpReply, dumps, json_template, large_reply
from assay.serve.pool.models import ServedModel
from assay.serve.pool.update_queue import Reader
from assay.text.marks import ReplyPiece
from assay.text.reply import TAIL, Family, ReplyParser, family_of, opened, takes_tools


@dataclass(frozen=True)
class Conversation:
    """A running chat request. Every chat dialect (OpenAI, responses, Ollama) builds its response from it."""

    entry: ServedModel
    reader: Reader
    answers: list[ChoiceBuilder]
    origin: common.Origin


@dataclass(frozen=True)
class ChatPrompt:
    """The conversation of a request as the ids of a prompt."""

    entry: ServedModel
    ids: Sequence[int]
    family: Family
    tools: list[Tool] | None  # that the model may call
    native: bool  # the template describes the tools
    images: Images = ()  # the places of its pictures


def as_chat_request(given: dict[str, Any], param: str) -> ChatRequest:
    """The chat request that another dialect's request was translated to. An error names `param`."""
    try:
        return ChatRequest.model_validate(given)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[0]["msg"]
        raise ApiError("invalid_value", f"{param}: {found}"[:300], param) from None


async def prompt_of(call: HttpCall, request: ChatRequest, *, counted: bool = False) -> ChatPrompt:
    """Render and tokenize the conversation of a request. `counted`: pictures are not encoded."""
    state = call.state
    entry = state.models.find(request.model)
    callable_ones = callable_tools(request)
    tools = request.tools if callable_ones and entry.template else None  # all are described
    native = entry.template is not None and takes_tools(entry.template.tool_source)
    said = request_tokens.RenderInput(
        request.messages, tools=tools if native else None, described=None if native else tools,
        variables=_variables(request), continued=bool(request.continue_final_message),
    )  # fmt: skip
    ids, images = await request_tokens.chat_prompt(state, entry, said, counted=counted)
    assert entry.template is not None  # otherwise chat_prompt would have failed
    family = family_of(entry.template.tool_source if tools else entry.template.source)
    if tools and not native:
        family = replace(TAUGHT, thinking=family.thinking, wrapping=family.wrapping)
    return ChatPrompt(entry, ids, family, callable_ones if tools else None, native, images)


async def begin(call: HttpCall, request: ChatRequest) -> Conversation:
    """Start the sequences of a validated request."""
    state, prompt = call.state, await prompt_of(call, request)
    entry, ids, family, tools, native = prompt.entry, prompt.ids, prompt.family, prompt.tools, prompt.native
    limits, origin = state.limits, common.Origin.of(call.headers)
    request_tokens.check(ids, entry, param="messages", images=prompt.images)
    thinking = opened(family, entry.tokenizer.decode(only_tokens(ids[-TAIL:])))
    make = _constraint(request, entry, family, tools, thinking=thinking)
    free = make is None or requires_call(request)  # without a grammar that fixes the start of the answer
    if make is None and tools and not native and not thinking:  # reasoning is not constrained
        make = _offered(entry, family, [tool.function for tool in tools])
    constraint = await common.compile_grammar(make, state.threads) if make else None
    most, shift = common.answer_limits(request, entry, ids, request.max_completion_tokens or request.max_tokens)
    scored = common.scored_tokens(
        limits, (request.top_logprobs or 0) if request.logprobs and not request.stream else None,
        request.n or 1, request.max_completion_tokens or request.max_tokens,
    )  # fmt: skip
    allowed = allowed_tokens(request, entry, state.reasoning_budget)
    budget = thinking_budget(allowed, entry, family, opened=thinking) if constraint is None else None
    biases = await common.token_biases(request, entry, state.threads)
    until, shared = common.deadline(limits, request.timeout), tuple(ids)
    jobs = [
        Job(
            ids=shared,
            params=common.sampler_params(request, entry, index, origin, biases),
            adapters=common.adapters(request, entry),
            max_tokens=min(most, scored),
            shift=shift,
            stop=common.stops(request, entry),
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            constraint=constraint,
            show_special=bool(tools) or family.marked,
            ignore_eos=bool(request.ignore_eos),
            deadline=until,
            thinking=budget,
            receipt=state.signer is not None,
            images=prompt.images,
        )
        for index in range(request.n or 1)
    ]
    worker = await call.stack.enter_async_context(state.models.use(entry))
    reader = call.stack.enter_context(Reader(worker, jobs, limits.buffer, call.owner, call.pause))
    apart = free and request.reasoning_format != "none"
    offered = await state.threads.run("text", lambda: plain_tools(tools)) if free and tools else None
    answers = [
        ChoiceBuilder(
            entry,
            ReplyParser(family, offered, thinking=thinking, apart=apart, stream=bool(request.stream)),
            f"{origin.id}/{index}",
            parallel=request.parallel_tool_calls is not False,
        )
        for index in range(len(jobs))
    ]
    return Conversation(entry, reader, answers, origin)


async def chat(call: HttpCall, request: ChatRequest) -> HttpReply | Events:
    begun = await begin(call, request)
    entry, reader, answers, origin = begun.entry, begun.reader, begun.answers, begun.origin
    if request.stream:
        with_usage = bool(request.stream_options and request.stream_options.include_usage)
        chunks = _chunks(entry, reader, answers, with_usage, origin, partial(signed, call.state, entry, reader))
        return Events(chunks, name=origin.name, seen=origin.seen) if len(answers) == 1 else Events(chunks)
    async for index, update in reader:
        for _, logprobs in answers[index].add(update):
            answers[index].keep(logprobs)
    head = common.heading("chat.completion", "chatcmpl", entry.id, origin)
    receipts = await signed(call.state, entry, reader)

    def reply() -> HttpReply:
        return large_reply(
            head
            | {
                "choices": [answer.choice(i) for i, answer in enumerate(answers)],
                "usage": _usage(reader, answers),
                "timings": common.timings(reader.sequences),
            }
            | receipts
        )

    return await call.state.threads.run("reply", reply) if request.logprobs else reply()


async def _chunks(
    entry: ServedModel,
    reader: Reader,
    answers: list[ChoiceBuilder],
    with_usage: bool,
    origin: common.Origin,
    receipts: Callable[[], Awaitable[dict[str, Any]]],
) -> AsyncIterator[Event]:
    head = common.heading("chat.completion.chunk", "chatcmpl", entry.id, origin)
    if with_usage:
        head["usage"] = None

    def chunk(index: int, delta: dict[str, Any], logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return head | {"choices": [choice]}

    def content(index: int, text: str) -> dict[str, Any]:
        return chunk(index, {"content": text})

    plain = [json_template(partial(content, index)) for index in range(len(answers))]
    begun = [False] * len(answers)
    async for index, update in reader:
        answer = answers[index]
        if not begun[index]:
            begun[index] = True
            yield chunk(index, {"role": "assistant", "content": ""})
        for delta, logprobs in answer.add(update):
            if not logprobs and "content" in delta:  # the common case, encoded fast
                yield plain[index](delta["content"])
                continue
            shown = {"content": logprobs, "refusal": None} if logprobs else None
            yield chunk(index, delta, shown)
        if update.finish:
            yield chunk(index, {}, None, answer.finish_reason)
    if with_usage:
        totals = {"usage": _usage(reader, answers), "timings": common.timings(reader.sequences)}
        yield head | {"choices": []} | totals
    if made := await receipts():
        yield head | {"choices": []} | made


def _usage(reader: Reader, answers: list[ChoiceBuilder]) -> dict[str, Any]:
    """Tokens of all choices, and those of them that are reasoning."""
    details = {"reasoning_tokens": sum(answer.reasoning_tokens for answer in answers)}
    return common.usage(reader.sequences) | {"completion_tokens_details": details}


class ChoiceBuilder:
    """Builds one choice from its updates."""

    def __init__(self, entry: ServedModel, reply: ReplyParser, name: str, *, parallel: bool = True) -> None:
        self._entry = entry
        self._parallel = parallel  # otherwise calls after the first are left out
        self._left_out = False  # whether the call that grows is
        self._name = name  # unique; ids of tool calls are derived from it
        self._reply = reply
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._logprobs: list[bytes] = []  # encoded, because objects take ten times the memory
        self._finish = "stop"
        self._cut = False  # whether the answer ended inside a call
        self.reasoning_tokens = 0  # the closing mark counts

    def add(self, update: Update) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Add an update and return the new deltas. The logprobs of the token go with the first delta."""
        inside = self._reply.in_reasoning
        pieces = [self._reply.push(update.text)]
        if update.choice and (inside or self._reply.in_reasoning):
            self.reasoning_tokens += 1
        if update.finish:
            self._finish = update.finish
            pieces.append(self._reply.finish(cut=update.finish == "length"))
            self._cut = pieces[-1].cut
        deltas = [delta for piece in pieces for delta in self._deltas(piece)]
        scored = update.choice is not None and update.choice.logprob is not None
        new = [common.token_logprob(self._entry, update.choice)] if scored and update.choice else []
        if new and not deltas:
            deltas = [{"content": ""}]
        return [(delta, new if i == 0 else []) for i, delta in enumerate(deltas)]

    def keep(self, logprobs: list[dict[str, Any]]) -> None:
        """Keep logprobs for `choice`."""
        self._logprobs += map(dumps, logprobs)

    def _deltas(self, piece: ReplyPiece) -> list[dict[str, Any]]:
        self._reasoning.append(piece.reasoning)
        self._content.append(piece.content)
        calls: list[dict[str, Any]] = []
        for part in piece.parts:
            if part.name:
                self._left_out = self._full
            if self._left_out:
                continue
            if part.name:
                calls.append(self._begin(part.name, part.arguments))
            else:
                self._calls[-1]["function"]["arguments"] += part.arguments
                calls.append({"index": len(self._calls) - 1, "function": {"arguments": part.arguments}})
        calls += [self._begin(call.name, call.arguments) for call in piece.calls if not self._full]
        found = {"reasoning_content": piece.reasoning, "content": piece.content, "tool_calls": calls}
        return [{name: value} for name, value in found.items() if value]

    @property
    def _full(self) -> bool:
        return bool(self._calls) and not self._parallel

    def _begin(self, name: str, arguments: str) -> dict[str, Any]:
        """The delta of a new call: all of it, or its name and the beginning of its arguments."""
        call: dict[str, Any] = {
            "index": len(self._calls),
            "id": f"call_{sha256(f'{self._name}/{len(self._calls)}'.encode()).hexdigest()[:24]}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        self._calls.append(call | {"function": dict(call["function"])})
        return call

    @property
    def finish_reason(self) -> str:
        return "tool_calls" if self._calls and not self._cut else self._finish

    def choice(self, index: int) -> dict[str, Any]:
        text, reasoning = "".join(self._content), "".join(self._reasoning)
        calls = [{key: value for key, value in call.items() if key != "index"} for call in self._calls]
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        return {
            "index": index,
            "message": message,
            "logprobs": {"content": self._logprobs, "refusal": None} if self._logprobs else None,
            "finish_reason": self.finish_reason,
        }


# --- tools and formats


def _variables(request: ChatRequest) -> dict[str, Any]:
    """The variables of the template, beside the messages."""
    effort: dict[str, Any] = {"reasoning_effort": request.reasoning_effort} if request.reasoning_effort else {}
    if request.reasoning_effort == "none" or request.thinking_budget_tokens == 0:
        effort["enable_thinking"] = False
    return effort | (request.chat_template_kwargs or {})


def _constraint(
    request: ChatRequest, entry: ServedModel, family: Family, tools: list[Tool] | None, *, thinking: bool
) -> Callable[[], Callable[[], Constraint]] | None:
    """The grammar that the request needs, for a required call, a response format or a given grammar."""
    grammars, wanted = entry.grammars, request.response_format
    if tools and requires_call(request):
        functions = [tool.function for tool in tools]
        return lambda: grammars.lark(required_rule(family, functions, entry.tokenizer, thinking=thinking), "tools")
    if wanted and request.grammar:
        raise ApiError("invalid_value", "grammar: response_format is given too; use one of them", "grammar")
    if isinstance(wanted, SchemaFormat):
        schema = wanted.json_schema.schema_
        return lambda: grammars.schema(schema if schema is not None else {"type": "object"})
    if wanted and wanted.type == "json_object":
        return lambda: grammars.schema({"type": "object"})
    if request.grammar:
        text = request.grammar
        return lambda: grammars.gbnf(text)
    return None


def _offered(entry: ServedModel, family: Family, functions: list[Function]) -> Callable[[], Callable[[], Constraint]]:
    """The grammar of an answer that may be a call."""
    return lambda: entry.grammars.lark(offered_rule(family, functions, entry.tokenizer), "tools")
