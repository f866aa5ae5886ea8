"""Sessions of coding agents, request for request: what Claude Code, Codex, opencode and Continue's terminal sent.

Each was run against a server and its requests were recorded (`tests/data/recordings/agents`). The sessions have calls,
two calls in one turn, and (Claude Code) a turn that was cut off and one that ended at `max_tokens`. Texts longer than
20 characters are replaced by their number and length, `«7 1200»`, which stand for words of the same length here.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.serve.api import messages, responses
from assay.serve.api.schemas import ChatRequest
from assay.serve.api.turns import content_of, plain_messages, plain_tools, with_tools_as_text
from assay.text import ChatTemplate
from assay.text.reply import takes_tools
from tests.serve.conftest import TOOL_TEMPLATE, Server, start_server
from tests.tiny import make

DATA = Path(__file__).parents[2] / "data"
AGENTS = sorted(path.stem for path in (DATA / "recordings" / "agents").glob("*.json"))
TEMPLATES: dict[str, str] = json.loads(gzip.decompress((DATA / "chat_templates.json.gz").read_bytes()))["templates"]
# These ask for what no OpenAI-style request has.
UNUSABLE = ("fireworks-ai-llama-3-firefunction-v2", "CohereForAI-c4ai-command-r-plus-tool_use")
WORDS = " hello the world in a"


@cache
def recording(agent: str) -> str:
    return (DATA / "recordings" / "agents" / f"{agent}.json").read_text()


def session(agent: str, longest: int = 1 << 20) -> dict[str, Any]:
    """The recording with words in place of its texts, each with at most `longest` characters."""

    def words(found: re.Match[str]) -> str:
        length = min(int(found[2]), longest)
        return (f"text {found[1]}." + WORDS * (length // len(WORDS) + 1))[:length]

    made: dict[str, Any] = json.loads(re.sub("«([0-9]+) ([0-9]+)»", words, recording(agent)))
    for request in made["requests"]:
        if "tools" in request["body"]:
            request["body"]["tools"] = made["tools"][request["body"]["tools"]]
    return made


def as_chat(path: str, body: dict[str, Any]) -> ChatRequest:
    if path.startswith("/v1/messages"):
        return messages.as_chat(messages.MessagesRequest.model_validate(body))
    if path == "/v1/responses":
        return responses.as_chat(responses.ResponsesRequest.model_validate(body))
    return ChatRequest.model_validate(body)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in UNUSABLE])
def test_every_template_takes_what_an_agent_sends(name: str, agent: str) -> None:
    """No text of a system message, of the user or of a tool's result is refused or left out."""
    template = ChatTemplate(TEMPLATES[name], name=name, bos="<s>", eos="</s>")
    found = session(agent, longest=60)
    last = found["requests"][-1]
    chat = as_chat(last["request"][1], last["body"])
    native = takes_tools(template.tool_source)
    turns = plain_messages(chat.messages if native else with_tools_as_text(chat.messages, chat.tools or ()))
    text = template.render(turns, tools=plain_tools(chat.tools) if native else None)
    for message in chat.messages:
        if message.role != "assistant":  # a text beside calls is left out by some templates
            assert str(content_of(message)).strip() in text.replace("\\n", "\n").replace("\\t", "\t"), message


@pytest.fixture(scope="module")
def agent_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = make(
        tmp_path_factory.mktemp("agents") / "agent.gguf", n_ctx=131072, n_embd=32, n_layer=1, template=TOOL_TEMPLATE
    )
    found = start_server([("agent", path)], options={"ctx_size": 131072, "cache_size": 262144}, limits={"chunk": 2048})
    yield found
    assert found.end() == 0


def answer(server: Server, request: dict[str, Any], headers: dict[str, str]) -> tuple[int, int, int]:
    """Tokens of the prompt, those of them from the cache, and tokens of the answer, as the stream tells them."""
    method, path = request["request"]
    given = {name: value for name, value in headers.items() if name != "accept-encoding"}
    reply = httpx.request(method, server.url + path, headers=given, json=request["body"], timeout=300)
    assert reply.status_code == 200, reply.text
    lines = [line[6:] for line in reply.text.split("\n") if line.startswith("data: ")]
    if path == "/v1/chat/completions":
        assert lines.pop() == "[DONE]"
    events = [json.loads(line) for line in lines]
    assert not any("error" in event and event["error"] for event in events)
    if path == "/v1/chat/completions":
        used = events[-1]["usage"]
        return used["prompt_tokens"], used["prompt_tokens_details"]["cached_tokens"], used["completion_tokens"]
    if path == "/v1/responses":
        assert events[-1]["type"] in ("response.completed", "response.incomplete")
        used = events[-1]["response"]["usage"]
        return used["input_tokens"], used["input_tokens_details"]["cached_tokens"], used["output_tokens"]
    assert events[-1]["type"] == "message_stop"
    used = events[0]["message"]["usage"]
    read = used["cache_read_input_tokens"]
    return (
        used["input_tokens"] + used["cache_creation_input_tokens"] + read,
        read,
        events[-2]["usage"]["output_tokens"],
    )


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_a_session_is_answered_and_each_request_computes_only_what_it_adds(agent_server: Server, agent: str) -> None:
    found = session(agent, longest=1500)
    before = 0
    for request in found["requests"]:
        body = request["body"]
        for limit in ("max_tokens", "max_output_tokens"):
            if limit in body or (limit, request["request"][1]) == ("max_output_tokens", "/v1/responses"):
                body[limit] = 4
        prompt, cached, generated = answer(agent_server, request, found["headers"])
        assert 0 < generated <= 4
        if not body.get("tools"):
            continue  # a title of the session: another prompt
        assert prompt > before
        assert cached >= (before - 8) // 32 * 32, (prompt, cached, before)
        before = prompt
    assert before > 2_000


def function(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "function", "name": name, "parameters": schema}


def test_a_namespace_of_tools(server: Server) -> None:
    """The model knows `group__function`; the client gets both names apart and sends them back so."""
    group = {"type": "namespace", "name": "mcp__files", "tools": [function("close", what={"enum": ["it"]}),
                                                                  {"type": "custom", "name": "patch"}]}  # fmt: skip
    ask = {"input": "close it", "tools": [group, {"type": "web_search"}, {"type": "of_tomorrow"}], "temperature": 0}
    found = httpx.post(f"{server.url}/v1/responses", json=ask | {"tool_choice": "required"}, timeout=60).json()
    (call,) = found["output"]
    assert (call["namespace"], call["name"]) == ("mcp__files", "close")
    assert json.loads(call["arguments"]) == {"what": "it"}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "closed"}
    again = responses.ResponsesRequest.model_validate(ask | {"input": [{"role": "user", "content": "x"}, call, result]})
    chat = responses.as_chat(again)
    assert [tool.function.name for tool in chat.tools or ()] == ["mcp__files__close"]
    assert chat.messages[1].tool_calls and chat.messages[1].tool_calls[0].function.name == "mcp__files__close"


@pytest.mark.parametrize(
    "tool",
    ["x", 3, None, {}, {"type": "namespace", "name": "g", "tools": [{"type": "function", "name": ""}]},
     {"type": "namespace", "name": "g", "tools": [{"type": "namespace", "name": "h", "tools": []}]}],
    ids=str,
)  # fmt: skip
def test_what_is_no_tool_is_an_error_of_the_request(server: Server, tool: object) -> None:
    reply = httpx.post(f"{server.url}/v1/responses", json={"input": "x", "tools": [tool]}, timeout=60)
    assert reply.status_code == 400, reply.text


def test_reasoning_items_go_back_to_the_template() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": []}
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    items = [{"role": "user", "content": "x"}, thought, call, {"type": "function_call_output", "call_id": "c1",
             "output": "y"}, thought, {"role": "assistant", "content": "z"}, call]  # fmt: skip
    chat = responses.as_chat(responses.ResponsesRequest.model_validate({"input": items}))
    assert [(m.role, m.reasoning_content, bool(m.tool_calls)) for m in chat.messages] == [
        ("user", None, False), ("assistant", "hm", True), ("tool", None, False), ("assistant", "hm", True),
    ]  # fmt: skip


def test_pictures_in_the_result_of_a_call(server: Server) -> None:
    """An agent that reads a picture gets a clear refusal from a model without a tower, in both dialects."""
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    blocks = [{"type": "tool_result", "tool_use_id": "c1", "content": [
        {"type": "text", "text": "a.png"}, {"type": "image", "source": source}]}]  # fmt: skip
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "Read", "input": {}}]}
    turns = [{"role": "user", "content": "look"}, use, {"role": "user", "content": blocks}]
    chat = messages.as_chat(messages.CountRequest.model_validate({"messages": turns}))
    assert [part.type for part in chat.messages[2].content or () if not isinstance(part, str)] == ["text", "image_url"]
    body: dict[str, Any] = {"messages": turns, "max_tokens": 4}
    refused = httpx.post(f"{server.url}/v1/messages", json=body, timeout=60)
    assert (refused.status_code, "images are not supported by this model" in refused.text) == (400, True)
    output = [{"type": "input_image", "image_url": "data:image/png;base64,aGk="}]
    items = [{"role": "user", "content": "look"}, {"type": "function_call", "call_id": "c1", "name": "view",
             "arguments": "{}"}, {"type": "function_call_output", "call_id": "c1", "output": output}]  # fmt: skip
    refused = httpx.post(f"{server.url}/v1/responses", json={"input": items}, timeout=60)
    assert (refused.status_code, "images are not supported by this model" in refused.text) == (400, True)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_a_prompt_that_is_too_long_is_refused_in_the_words_that_agents_look_for(server: Server, path: str) -> None:
    """Claude Code and opencode shorten the conversation when they read this; Claude Code takes the two numbers.

    The second pattern holds OpenAI's and vLLM's words."""
    body = {"messages": [{"role": "user", "content": "hello " * 600}], "max_tokens": 4}
    told = httpx.post(server.url + path, json=body, timeout=60).json()["error"]["message"]
    found = re.search(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", told)
    assert found and int(found[1]) > int(found[2]) == 511
    assert re.search(r"this model's maximum context length is 512 tokens", told)
