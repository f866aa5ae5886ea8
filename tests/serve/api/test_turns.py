"""Messages as templates take them, within limits on what hides in their texts."""

from __future__ import annotations

import json
import time

from assay.serve.api.schemas import ChatMessage, Tool
from assay.serve.api.turns import ARGUMENTS, plain_messages, with_tools_as_text


def called(*arguments: str) -> ChatMessage:
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": text}} for text in arguments]
    return ChatMessage.model_validate({"role": "assistant", "content": None, "tool_calls": calls})


def arguments_of(*messages: ChatMessage) -> list[object]:
    return [call["function"]["arguments"] for turn in plain_messages(messages) for call in turn["tool_calls"]]


def test_arguments_become_objects() -> None:
    assert arguments_of(called('{"a": [1, "x"]}', "[1]", "no json", "")) == [{"a": [1, "x"]}, "[1]", "no json", ""]


def test_a_million_arrays_in_arguments_stay_text() -> None:
    text = '{"a": [' + "[]," * 600_000 + "[]]}"
    started = time.monotonic()
    assert arguments_of(called(text), called('{"a": 1}')) == [text, {"a": 1}]
    assert time.monotonic() - started < 5


def test_all_calls_of_a_conversation_share_a_limit() -> None:
    text = json.dumps({"a": [1] * (ARGUMENTS // 4)})
    found = arguments_of(*(called(text) for _ in range(8)))
    assert [isinstance(item, dict) for item in found] == [True] * 3 + [False] * 5


def test_tools_that_are_longer_as_text_than_any_message() -> None:
    """Characters outside ASCII take six letters there. The limit on a client's message does not hold for it."""
    tool = {"type": "function", "function": {"name": "f", "description": "é" * 65_000}}
    messages = [ChatMessage.model_validate({"role": "system", "content": "be kind"})]
    (first,) = with_tools_as_text(messages, [Tool.model_validate(tool)] * 8)
    assert first.role == "system" and len(first.content or "") > 8 * 6 * 65_000
    assert str(first.content).startswith("be kind\n\n")
