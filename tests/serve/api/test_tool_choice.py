"""Which functions an answer may call, and how many: the choices of OpenAI's and Anthropic's dialects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from assay.runtime.sequence import Update
from assay.serve.api import messages, responses
from assay.serve.api.chat_completions import ChoiceBuilder
from assay.serve.api.schemas import ChatRequest
from assay.text.reply import FAMILIES, ReplyParser
from tests.serve.conftest import TOOL_TEMPLATE, Server, start_server
from tests.tiny import make

ASK = [{"role": "user", "content": "hello the world"}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"town": {"enum": ["oslo", "rome"]}}, "required": ["town"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("weather", "travel", "eat")
]
HERMES = next(family for family in FAMILIES if family.name == "hermes")
TWO = "".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {{"town": "oslo"}}}}\n</tool_call>\n' for name in ("weather", "eat")
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = start_server(
        [("tiny", make(tmp_path_factory.mktemp("choice") / "t.gguf", n_ctx=2048, template=TOOL_TEMPLATE))]
    )
    yield found
    assert found.end() == 0


def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + path, json={"max_tokens": 90, "temperature": 0} | body, timeout=60)


@pytest.mark.parametrize("name", ["weather", "eat"])
def test_only_an_allowed_tool_is_called(server: Server, name: str) -> None:
    named = {"type": "function", "function": {"name": name}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    found = post(server, "/v1/chat/completions", {"messages": ASK, "tools": TOOLS, "tool_choice": choice}).json()
    (call,) = found["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == name
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": name}]}
    body = {"input": "hello", "tools": flat, "tool_choice": choice, "parallel_tool_calls": False}
    made = post(server, "/v1/responses", body).json()
    assert [item["name"] for item in made["output"] if item["type"] == "function_call"] == [name]
    assert made["parallel_tool_calls"] is False
    assert made["tool_choice"] == choice


def test_the_model_is_told_of_tools_that_it_may_not_call(server: Server) -> None:
    """So that the start of the prompt stays the same, and the prefix cache has it."""
    named = {"type": "function", "function": {"name": "eat"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    body: dict[str, Any] = {"messages": ASK, "tools": TOOLS, "max_tokens": 1}
    free, some = (
        post(server, "/v1/chat/completions", body | more).json()["usage"]["prompt_tokens"]
        for more in ({}, {"tool_choice": choice})
    )
    assert free == some


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"messages": ASK, "tool_choice": "required"}, "no tools"),
    ("/v1/chat/completions", {"messages": ASK, "tool_choice": {"type": "function", "function": {"name": "x"}}},
     "no tools"),
    ("/v1/chat/completions", {"messages": ASK, "tools": TOOLS, "tool_choice": {
        "type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
            {"type": "function", "function": {"name": "zork"}}]}}}, "no tool 'zork'"),
    ("/v1/messages", {"messages": ASK, "tool_choice": {"type": "any"}}, "no tools"),
    ("/v1/messages", {"messages": ASK, "tools": [{"type": "bash_20250124", "name": "bash"}]}, "needs an input_schema"),
    ("/v1/responses", {"input": "x", "conversation": "conv_1"}, "not stored"),
    ("/v1/responses", {"input": "x", "conversation": {"id": "conv_1"}}, "not stored"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "words"), REFUSED)
def test_what_cannot_be_done_is_refused(server: Server, path: str, body: dict[str, Any], words: str) -> None:
    reply = post(server, path, body)
    assert (reply.status_code, words in reply.json()["error"]["message"]) == (400, True), reply.text


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_these_choices_need_no_tools(server: Server, choice: str | None) -> None:
    body = {"messages": ASK, "tool_choice": choice, "max_tokens": 1}
    assert post(server, "/v1/chat/completions", body).status_code == 200


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
def test_an_answer_has_one_call_at_most(parallel: bool, stream: bool, size: int) -> None:
    """What the model writes after its first call is left out, however the text is cut."""
    parser = ReplyParser(HERMES, [tool["function"] for tool in TOOLS], stream=stream)
    made = ChoiceBuilder(None, parser, "answer", parallel=parallel)  # type: ignore[arg-type]
    deltas = [made.add(Update(text=TWO[i : i + size])) for i in range(0, len(TWO), size)] + [
        made.add(Update(finish="stop"))
    ]
    calls = made.choice(0)["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["weather", "eat"][: 1 + parallel]
    pieces = [call for some in deltas for delta, _ in some for call in delta.get("tool_calls", ())]
    assert {call["index"] for call in pieces} == set(range(1 + parallel))
    for i, call in enumerate(calls):
        text = "".join(piece["function"]["arguments"] for piece in pieces if piece["index"] == i)
        assert text == call["function"]["arguments"]
    assert made.finish_reason == "tool_calls"


def test_each_dialect_can_ask_for_one_call() -> None:
    tools = [{"name": "a", "input_schema": SCHEMA}]
    for choice, wanted in (({"type": "auto", "disable_parallel_tool_use": True}, False), ({"type": "auto"}, True)):
        body = {"messages": ASK, "max_tokens": 1, "tools": tools, "tool_choice": choice}
        assert messages.as_chat(messages.MessagesRequest.model_validate(body)).parallel_tool_calls is wanted
    asked = responses.ResponsesRequest.model_validate({"input": "x", "parallel_tool_calls": False})
    assert responses.as_chat(asked).parallel_tool_calls is False
    assert ChatRequest.model_validate({"messages": ASK}).parallel_tool_calls is None


def test_texts_in_documents_and_search_results_are_read(server: Server) -> None:
    def count(*blocks: dict[str, Any]) -> int:
        body = {"messages": [{"role": "user", "content": list(blocks)}]}
        reply = httpx.post(f"{server.url}/v1/messages/count_tokens", json=body, timeout=60)
        assert reply.status_code == 200, reply.text
        return int(reply.json()["input_tokens"])

    text = {"type": "text", "text": "hello the world"}
    source = {"type": "text", "media_type": "text/plain", "data": "hello the world"}
    assert count({"type": "document", "source": source}) == count(text)
    parts = {"type": "content", "content": [text]}
    assert count({"type": "document", "source": parts}) == count(text)
    assert count({"type": "document", "source": source, "title": "the"}) > count(text)
    found = {"type": "search_result", "source": "a", "title": "b", "content": [text]}
    assert count(found) == count({"type": "text", "text": "b\na\nhello the world"})
    result = {"type": "tool_result", "tool_use_id": "x", "content": [found]}
    assert count(result) > count({"type": "tool_result", "tool_use_id": "x", "content": []})


def test_a_document_that_is_no_text_is_refused(server: Server) -> None:
    for source in ({"type": "base64", "media_type": "application/pdf", "data": "aGk="}, {"type": "text"}, 3, None):
        block = {"type": "document", "source": source}
        reply = post(server, "/v1/messages", {"messages": [{"role": "user", "content": [block]}]})
        assert (reply.status_code, "files are not supported" in reply.text) == (400, True), reply.text


def test_the_list_of_models_has_the_context_in_anthropics_words(server: Server) -> None:
    (card,) = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert card["max_input_tokens"] == card["max_tokens"] == card["context_length"] == 2048
