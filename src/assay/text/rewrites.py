"""Rewrite a conversation for templates that fail on OpenAI's form.

`given` are the variables of a template. Each rewrite changes one convention, and returns None if nothing changes.
Rewrites are tried only after a template failed or left out a system message, first alone and then combined. So a
template that accepts OpenAI's form always gets it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from itertools import combinations, takewhile
from typing import Any

Given = dict[str, Any]
Rewrite = Callable[[Given], Given | None]
DROPPED = "a system message is missing"  # a complaint about a prompt
_SYSTEM = ("system", "developer")
_REASONING = ("reasoning_content", "thinking", "reasoning")  # synonyms


def with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its reasoning under every name that templates use."""
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if reasoning is None:
        return dict(message)
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _each(given: Given, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Given | None:
    messages = [change(message) for message in given["messages"]]
    return None if messages == given["messages"] else {**given, "messages": messages}


def _arguments_as_text(given: Given) -> Given | None:
    """Arguments of calls as text, because DeepSeek's templates concatenate them."""

    def call(item: Any) -> Any:
        function = item.get("function") if isinstance(item, Mapping) else None
        if not isinstance(function, Mapping) or isinstance(function.get("arguments"), str | None):
            return item
        text = json.dumps(function["arguments"], ensure_ascii=False)
        return {**item, "function": {**function, "arguments": text}}

    def change(message: dict[str, Any]) -> dict[str, Any]:
        calls = message.get("tool_calls")
        return {**message, "tool_calls": [call(item) for item in calls]} if isinstance(calls, list) else message

    return _each(given, change)


def _no_null(given: Given) -> Given | None:
    """An empty text in place of null content, which OpenAI sends beside calls."""
    return _each(given, lambda message: {**message, "content": ""} if message.get("content") is None else message)


def _one_system(given: Given) -> Given | None:
    """The developer role under its older name, and the messages of either before the first user as one."""
    messages = [{**m, "role": "system"} if m.get("role") == "developer" else m for m in given["messages"]]
    leading = list(takewhile(lambda m: m.get("role") == "system", messages))
    found = [*_joined(leading), *messages[len(leading) :]]
    return None if found == given["messages"] else {**given, "messages": found}


def _in_turns(given: Given) -> Given | None:
    """Turns that alternate: a system message after the first as the user's, and texts of one role in a row as one."""
    messages = given["messages"]
    asked = [{**m, "role": "user"} if m.get("role") in _SYSTEM else m for m in messages[1:]]
    return None if (found := _joined([*messages[:1], *asked])) == messages else {**given, "messages": found}


def _is_text(message: Mapping[str, Any]) -> bool:
    """Whether a message has a text and nothing else."""
    return message.keys() == {"role", "content"} and isinstance(message["content"], str)


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with those of one role in a row as one, if they are plain texts."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if found and found[-1].get("role") == message.get("role") and _is_text(found[-1]) and _is_text(message):
            found[-1] = {**found[-1], "content": f"{found[-1]['content']}\n\n{message['content']}"}
        else:
            found.append(message)
    return found


def _answered(given: Given) -> Given | None:
    """A blank answer between the result of a call and the user's next text, where a turn was interrupted."""
    found: list[dict[str, Any]] = []
    for message in given["messages"]:
        if found and (found[-1].get("role"), message.get("role")) == ("tool", "user"):
            found.append({"role": "assistant", "content": " "})
        found.append(message)
    return None if found == given["messages"] else {**given, "messages": found}


def _single_calls(given: Given) -> Given | None:
    """A message for each of several calls, followed by its result."""
    found: list[dict[str, Any]] = []
    messages = given["messages"]
    at = 0
    while at < len(messages):
        message, at = messages[at], at + 1
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or len(calls) < 2:
            found.append(message)
            continue
        results = list(takewhile(lambda m: m.get("role") == "tool", messages[at:]))
        at += len(results)
        for i, call in enumerate(calls):
            found.append({**message, "tool_calls": [call]} | ({"content": ""} if i else {}))
            mine = [r for r in results if isinstance(call, Mapping) and r.get("tool_call_id") == call.get("id")]
            found += mine[:1]
            results = [r for r in results if r not in mine[:1]]
        found += results
    return None if found == messages else {**given, "messages": found}


def _short_ids(given: Given) -> Given | None:
    """Ids of calls as nine letters and digits, which Mistral's older templates demand."""

    def short(name: Any) -> Any:
        if not isinstance(name, str) or (len(name) == 9 and name.isalnum()):
            return name
        return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:9]

    def change(message: dict[str, Any]) -> dict[str, Any]:
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            message = {**message, "tool_calls": [
                {**call, "id": short(call["id"])} if isinstance(call, Mapping) and "id" in call else call
                for call in calls
            ]}  # fmt: skip
        return {**message, "tool_call_id": short(message["tool_call_id"])} if "tool_call_id" in message else message

    return _each(given, change)


def _empty_tools(given: Given) -> Given | None:
    return {**given, "tools": []} if given["tools"] is None else None


def fold_system(given: Given) -> Given | None:
    """The system message put in front of the first user message."""
    messages = given["messages"]
    if len(messages) < 2 or messages[0].get("role") != "system" or messages[1].get("role") != "user":
        return None
    texts = [message.get("content") for message in messages[:2]]
    if not all(isinstance(text, str) for text in texts):
        return None
    return {**given, "messages": [{**messages[1], "content": f"{texts[0]}\n{texts[1]}"}, *messages[2:]]}


_REWRITES: tuple[Rewrite, ...] = (
    _arguments_as_text,
    _no_null,
    _empty_tools,
    _one_system,
    _in_turns,
    _single_calls,
    _short_ids,
    _answered,
    fold_system,
)


_OF_SYSTEM: tuple[Rewrite, ...] = (_one_system, _in_turns, fold_system)  # that find a place for a system message


def rewritten(given: Given, complaint: str, attempt: Callable[[Given], str]) -> Given | None:
    """The conversation with the rewrites after which the template has no complaint; None if none help.

    `attempt` renders a conversation and returns what is wrong, empty if nothing is. A rewrite after which something
    else is wrong is kept, and the others are tried on top of it. If the template refuses them all, all combinations are
    tried, the small ones first.
    """
    rest, current, refused = _REWRITES, given, complaint != DROPPED
    while rest:
        rest = _OF_SYSTEM if complaint == DROPPED else rest
        further: tuple[Rewrite, Given, str] | None = None
        for rewrite in rest:
            if (other := rewrite(current)) is None:
                continue
            if not (wrong := attempt(other)):
                return other
            if further is None and wrong != complaint:
                further = rewrite, other, wrong
                if wrong == DROPPED:  # the template takes it: only a place for the system message is wanted
                    break
        if further is None:
            break
        tried, current, complaint = further
        rest = tuple(rewrite for rewrite in rest if rewrite is not tried)
    return next((other for other in _combined(given) if not attempt(other)), None) if refused else None


def _combined(given: Given) -> Iterator[Given]:
    for size in range(2, len(_REWRITES) + 1):
        for chosen in combinations(_REWRITES, size):
            other: Given | None = given
            for rewrite in chosen:
                other = rewrite(other) if other is not None else None
            if other is not None:
                yield other


def dropped_system(messages: list[dict[str, Any]], text: str | None) -> bool:
    """Whether a system or developer message is missing from the prompt."""
    told = [m.get("content") for m in messages if m.get("role") in _SYSTEM]
    return text is not None and any(isinstance(said, str) and said.strip() not in text for said in told)
