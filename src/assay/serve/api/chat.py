"""`/v1/chat/completions`: messages through the model's template, answers with tool calls and logprobs."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

from assay.runtime.sequence import Constraint, Job, Update
from assay.serve.api import answers as common
from assay.serve.api import prompts
from assay.serve.api.schemas import ChatRequest, Function, NamedTool, SchemaFormat
from assay.serve.api.state import Call
from assay.serve.api.tools import Call as ToolCall
from assay.serve.api.tools import Format, ToolText, format_of, required_rule
from assay.serve.errors import ApiError
from assay.serve.http.exchange import Events, Reply, json_reply
from assay.serve.pool.models import Entry
from assay.serve.pool.reader import Reader


async def chat(call: Call, request: ChatRequest) -> Reply | Events:
    state = call.state
    entry = state.models.find(request.model)
    limits = state.limits
    form = _tool_format(request, entry)
    tools = request.tools if form else None
    ids = await prompts.chat_ids(state, entry, request.messages, tools, request.chat_template_kwargs)
    prompts.check(ids, entry, param="messages")
    make = _constraint(request, entry, form)
    constraint = await common.compile_grammar(make, limits) if make else None
    asked = request.max_completion_tokens or request.max_tokens or entry.n_ctx
    until = common.deadline(limits, request.timeout)
    jobs = [
        Job(
            ids=tuple(ids),
            params=common.sampler_params(request, entry, index),
            max_tokens=min(asked, entry.n_ctx - len(ids)),
            stop=common.stops(request),
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            constraint=constraint,
            show_special=form is not None,
            ignore_eos=bool(request.ignore_eos),
            deadline=until,
        )
        for index in range(request.n or 1)
    ]
    worker = await call.stack.enter_async_context(state.models.use(entry))
    reader = call.stack.enter_context(Reader(worker, jobs, limits.buffer))
    answers = [_Answer(entry, form) for _ in jobs]
    if request.stream:
        with_usage = bool(request.stream_options and request.stream_options.include_usage)
        return Events(_chunks(entry, reader, answers, with_usage))
    async for index, update in reader:
        answers[index].take(update)
    head = common.heading("chat.completion", "chatcmpl", entry.id)
    return json_reply(
        head
        | {
            "choices": [answer.choice(i) for i, answer in enumerate(answers)],
            "usage": common.usage(reader.sequences),
            "timings": common.timings(reader.sequences),
        }
    )


async def _chunks(
    entry: Entry, reader: Reader, answers: list[_Answer], with_usage: bool
) -> AsyncIterator[dict[str, Any]]:
    head = common.heading("chat.completion.chunk", "chatcmpl", entry.id)
    if with_usage:
        head["usage"] = None

    def chunk(index: int, delta: dict[str, Any], logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return head | {"choices": [choice]}

    begun = [False] * len(answers)
    async for index, update in reader:
        answer = answers[index]
        if not begun[index]:
            begun[index] = True
            yield chunk(index, {"role": "assistant", "content": ""})
        text, logprobs = answer.take(update)
        if text or logprobs:
            shown = {"content": logprobs, "refusal": None} if logprobs else None
            yield chunk(index, {"content": text}, shown)
        if update.finish:
            calls = [{"index": i} | item for i, item in enumerate(answer.tool_calls())]
            if calls:
                yield chunk(index, {"tool_calls": calls})
            yield chunk(index, {}, None, answer.finish_reason)
    if with_usage:
        totals = {"usage": common.usage(reader.sequences), "timings": common.timings(reader.sequences)}
        yield head | {"choices": []} | totals


class _Answer:
    """One choice as it grows."""

    def __init__(self, entry: Entry, form: Format | None) -> None:
        self._entry = entry
        self._tools = ToolText(form) if form else None
        self._text: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._calls: list[ToolCall] = []
        self._ids: list[str] = []
        self._finish = "stop"

    def take(self, update: Update) -> tuple[str, list[dict[str, Any]]]:
        """What is new to show: text, and the logprobs of the token."""
        text = self._tools.push(update.text) if self._tools else update.text
        if update.finish:
            self._finish = update.finish
            if self._tools:
                rest, self._calls = self._tools.finish()
                text += rest
                self._ids = [f"call_{uuid.uuid4().hex[:24]}" for _ in self._calls]
        self._text.append(text)
        scored = update.choice is not None and update.choice.logprob is not None
        new = [common.token_logprob(self._entry, update.choice)] if scored and update.choice else []
        self._logprobs += new
        return text, new

    @property
    def finish_reason(self) -> str:
        return "tool_calls" if self._calls else self._finish

    def tool_calls(self) -> list[dict[str, Any]]:
        return [
            {"id": name, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for name, call in zip(self._ids, self._calls, strict=True)
        ]

    def choice(self, index: int) -> dict[str, Any]:
        text, calls = "".join(self._text), self.tool_calls()
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
        if calls:
            message["tool_calls"] = calls
        return {
            "index": index,
            "message": message,
            "logprobs": {"content": self._logprobs, "refusal": None} if self._logprobs else None,
            "finish_reason": self.finish_reason,
        }


# --- tools and formats


def _tool_format(request: ChatRequest, entry: Entry) -> Format | None:
    """How this answer may write calls; None where no tools are offered."""
    if not request.tools or request.tool_choice == "none" or entry.template is None:
        return None
    form = format_of(entry.template.source)
    if form is None:
        raise ApiError("unsupported", f"the chat template of {entry.id} takes no tools", "tools")
    return form


def _constraint(
    request: ChatRequest, entry: Entry, form: Format | None
) -> Callable[[], Callable[[], Constraint]] | None:
    """The compilation that the request needs: of a required call, a response format or a grammar."""
    grammars, wanted = entry.grammars, request.response_format
    choice = request.tool_choice
    if form and (choice == "required" or isinstance(choice, NamedTool)):
        functions = _chosen(request, choice)
        return lambda: grammars.lark(required_rule(form, functions, entry.tokenizer), "tools")
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


def _chosen(request: ChatRequest, choice: NamedTool | str | None) -> list[Function]:
    functions = [tool.function for tool in request.tools or ()]
    if not isinstance(choice, NamedTool):
        return functions
    named = [function for function in functions if function.name == choice.function.name]
    if not named:
        raise ApiError(
            "invalid_value", f"tool_choice: there is no tool {choice.function.name!r:.80}", "tool_choice.function.name"
        )
    return named
