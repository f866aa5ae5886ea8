"""Rewrite a conversation for templates that fail on OpenAI's form.

`given` are the variables of a template. Each rewrite changes one convention, and returns None if nothing changes.
Rewrites are tried only after a template failed, first alone and then combined. So a template that accepts OpenAI's
form always gets it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

Given = dict[str, Any]
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


def _developer_as_system(given: Given) -> Given | None:
    return _each(given, lambda m: {**m, "role": "system"} if m.get("role") == "developer" else m)


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


_REWRITES: tuple[Callable[[Given], Given | None], ...] = (
    _arguments_as_text,
    _no_null,
    _empty_tools,
    _developer_as_system,
    fold_system,
)


def rewritten(given: Given) -> Iterator[Given]:
    """The conversation with one rewrite, then with two, and so on."""
    for size in range(1, len(_REWRITES) + 1):
        for chosen in combinations(_REWRITES, size):
            other: Given | None = given
            for rewrite in chosen:
                other = rewrite(other) if other is not None else None
            if other is not None:
                yield other


def dropped_system(messages: list[dict[str, Any]], text: str | None) -> bool:
    """Whether the system message is missing from the prompt."""
    first = messages[0] if messages else {}
    said = first.get("content")
    return text is not None and first.get("role") == "system" and isinstance(said, str) and said.strip() not in text
