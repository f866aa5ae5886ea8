"""Anthropic's dialect: the `anthropic` package unchanged, and plain HTTP for what it has no words for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.later import import_later
from tests.serve.conftest import TOOL_TEMPLATE, Server, start_server
from tests.tiny import make

anthropic = import_later("anthropic")

ASK = [{"role": "user", "content": "hello the world"}]
SHORT: dict[str, Any] = {"model": "tiny", "messages": ASK, "max_tokens": 4, "extra_body": {"temperature": 0}}
WEATHER = {
    "name": "weather",
    "description": "the weather of a town",
    "input_schema": {"type": "object", "properties": {"town": {"enum": ["oslo", "rome"]}}, "required": ["town"]},
}
THINKING = (
    "{% if tools %}{{ tools | tojson }}<tool_call></tool_call>{% endif %}"
    "{% for m in messages %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if enable_thinking %}<think>\n{% endif %}"
)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose template opens the reasoning, with a key."""
    path = make(tmp_path_factory.mktemp("messages") / "thinker.gguf", n_ctx=512, template=THINKING)
    found = start_server([("thinker", path)], key="secret")
    yield found
    assert found.end() == 0


def client_of(server: Server, key: str = "none") -> Any:
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0)


@pytest.fixture
def client(server: Server) -> Any:
    return client_of(server)


def chat(server: Server, **given: Any) -> dict[str, Any]:
    body = {"messages": ASK, "max_tokens": 4, "temperature": 0} | given
    found: dict[str, Any] = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    return found


def prompt(server: Server, body: dict[str, Any]) -> int:
    reply = httpx.post(f"{server.url}/v1/messages/count_tokens", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return int(reply.json()["input_tokens"])


def test_a_message_is_the_chat_routes_answer(client: Any, server: Server) -> None:
    made = client.messages.create(**SHORT)
    same = chat(server)
    assert made.content[0].text == same["choices"][0]["message"]["content"]
    assert (made.role, made.stop_reason, made.usage.output_tokens) == ("assistant", "max_tokens", 4)
    used = made.usage
    total = used.input_tokens + used.cache_read_input_tokens + used.cache_creation_input_tokens
    assert total == same["usage"]["prompt_tokens"]
    assert client.messages.count_tokens(model="tiny", messages=ASK).input_tokens == total


def test_a_stream_adds_up(client: Any) -> None:
    with client.messages.stream(**SHORT) as stream:
        kinds = [event.type for event in stream]
        text, final = stream.get_final_text(), stream.get_final_message()
    whole = client.messages.create(**SHORT)
    assert text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 4)
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_every_event_has_its_name(server: Server) -> None:
    body = {"messages": ASK, "max_tokens": 8, "stream": True}
    text = httpx.post(f"{server.url}/v1/messages?beta=true", json=body, timeout=60).text
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
    assert "event: ping\n" in text and "[DONE]" not in text


def test_stop_sequences(client: Any) -> None:
    text = client.messages.create(**SHORT | {"max_tokens": 20}).content[0].text
    word = text[4:7]
    cut = client.messages.create(**SHORT | {"max_tokens": 20}, stop_sequences=["never", word])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", word)
    assert cut.content[0].text == text[: text.index(word)]


def test_a_tool_is_called_and_its_result_goes_back(client: Any, server: Server) -> None:
    given = SHORT | {"max_tokens": 100, "tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"}}
    made = client.messages.create(**given)
    (call,) = made.content
    assert (made.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "weather")
    assert call.input["town"] in ("oslo", "rome") and set(call.input) == {"town"}
    with client.messages.stream(**given) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        assert stream.get_final_message().content[0].input == call.input
    assert len(parts) > 2 and json.loads("".join(parts)) == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]}
    turns = [*ASK, {"role": "assistant", "content": made.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(**SHORT | {"messages": turns}, tools=[WEATHER]).content
    # The template is given what OpenAI's dialect would give it.
    function = {"name": "weather", "arguments": json.dumps(call.input)}
    same = [*ASK, {"role": "assistant", "content": None, "tool_calls": [
        {"id": call.id, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "rain"}]  # fmt: skip
    body = json.loads(json.dumps({"messages": turns}, default=lambda block: block.to_dict()))
    shown = httpx.post(f"{server.url}/apply-template", json={"messages": same}).json()
    assert prompt(server, body) == len(shown["tokens"])


def test_thinking_blocks(thinker: Server) -> None:
    client = client_of(thinker, "secret")
    ask = SHORT | {"model": "thinker", "thinking": {"type": "enabled", "budget_tokens": 1024}}
    made = client.messages.create(**ask)
    assert made.content[0].type == "thinking" and made.content[0].thinking
    with client.messages.stream(**ask) as stream:
        final = stream.get_final_message()
    assert final.content[0].thinking == made.content[0].thinking and final.content[0].signature
    off = client.messages.create(**ask | {"thinking": {"type": "disabled"}})
    assert [block.type for block in off.content] == ["text"]
    back = [*ASK, {"role": "assistant", "content": [made.content[0].to_dict(), {"type": "text", "text": "4"}]}, *ASK]
    assert client.messages.create(**ask | {"messages": back}).content


def test_a_begun_answer_is_continued(client: Any, server: Server) -> None:
    whole = client.messages.create(**SHORT).content[0].text
    begun = [*ASK, {"role": "assistant", "content": whole}]
    rendered = httpx.post(f"{server.url}/apply-template", json={"messages": ASK}).json()["prompt"] + whole
    ids = httpx.post(f"{server.url}/tokenize", json={"content": rendered, "add_special": True}).json()["tokens"]
    assert prompt(server, {"messages": begun}) == len(ids)


def test_what_the_prefix_cache_did_is_counted(client: Any) -> None:
    ask = SHORT | {"system": [{"type": "text", "text": "be brief " * 30}], "max_tokens": 1}
    first, second = (client.messages.create(**ask).usage for _ in range(2))
    total = first.input_tokens + first.cache_creation_input_tokens + first.cache_read_input_tokens
    assert first.cache_creation_input_tokens > 64
    assert second.cache_creation_input_tokens == 0
    assert second.cache_read_input_tokens >= total - 32
    assert second.input_tokens + second.cache_read_input_tokens == total


def test_a_billing_block_does_not_end_the_shared_prefix(server: Server) -> None:
    def system(nonce: str) -> dict[str, Any]:
        line = f"x-anthropic-billing-header: cc_version=2.1; cch={nonce};"
        return {"messages": ASK, "system": [{"type": "text", "text": line}, {"type": "text", "text": "be brief"}]}

    assert prompt(server, system("36ee5")) == prompt(server, {"messages": ASK, "system": "be brief"})


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"model": None, "max_tokens": 0}, "BadRequestError", "max_tokens"),
        ({"messages": [{"role": "user", "content": "hello " * 600}]}, "BadRequestError", "shorten"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "BadRequestError",
         "needs an input_schema"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "BadRequestError",
         "images are not supported by this model"),
        ({"messages": [{"role": "user", "content": [{"type": "picture"}]}]}, "BadRequestError",
         r"content.*type: input should be 'text', 'image', 'tool_use', 'tool_result', 'thinking'"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a",
                                                     "content": [{"type": "picture"}]}]}]},
         "BadRequestError", "'picture' found using 'type' does not match any of the expected tags: 'text', 'image'"),
    ],
)  # fmt: skip
def test_errors_have_anthropics_form(client: Any, given: dict[str, Any], error: str, words: str) -> None:
    with pytest.raises(getattr(anthropic, error), match=words) as found:
        client.messages.create(**SHORT | given)
    assert found.value.body["error"]["type"] == "invalid_request_error"
    assert found.value.request_id


def test_errors_of_shared_routes_have_anthropics_form_for_its_client(client: Any, server: Server) -> None:
    with pytest.raises(anthropic.NotFoundError) as found:
        client.models.retrieve("nobody")
    assert (found.value.body["type"], found.value.body["error"]["type"]) == ("error", "not_found_error")
    assert found.value.request_id
    openai = httpx.get(f"{server.url}/v1/models/nobody").json()
    assert openai["error"]["code"] == "model_not_found"
    asked = httpx.get(f"{server.url}/v1/nothing", headers={"anthropic-version": "2023-06-01"})
    assert asked.json()["error"]["type"] == "not_found_error"


def test_the_key_may_be_anthropics_header(thinker: Server) -> None:
    with pytest.raises(anthropic.AuthenticationError) as found:
        client_of(thinker, "wrong").messages.create(**SHORT)
    assert found.value.body["error"]["type"] == "authentication_error"


# --- an agent


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("agent")
    path = make(folder / "agent.gguf", n_ctx=32768, n_embd=32, n_layer=1, template=TOOL_TEMPLATE)
    found = start_server([("agent", path)], options={"ctx_size": 32768}, limits={"chunk": 2048})
    yield found
    assert found.end() == 0


def requests(rules: str) -> list[dict[str, Any]]:
    """The requests of an agent's session: each repeats the conversation and adds to it."""
    path = Path(__file__).parents[2] / "data" / "recordings" / "agent" / "session.json"
    found, talk, made = json.loads(path.read_text()), [], []
    for number, turns in enumerate(found["turns"]):
        talk = [*talk, *turns]
        text = json.dumps(found["common"] | {"messages": talk}).replace("NONCE", f"{number:05x}")
        made.append(json.loads(text.replace("RULES", rules)))
    return made


def events(server: Server, body: dict[str, Any]) -> list[dict[str, Any]]:
    reply = httpx.post(f"{server.url}/v1/messages?beta=true", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    return [json.loads(line[6:]) for line in reply.text.split("\n") if line.startswith("data: ")]


def test_an_agents_session(agent: Server) -> None:
    """Twenty tools, two calls in one turn, a turn that was cut off: each request computes only what it adds."""
    first, second, third = requests("be brief " * 40)
    with httpx.stream("POST", f"{agent.url}/v1/messages", json=first, timeout=120) as reply:
        assert next(reply.iter_lines()) == "event: message_start"  # and the client is gone
    before = prompt(agent, {key: first[key] for key in ("messages", "system", "tools")})
    for body, shared in ((second, before), (third, prompt(agent, second))):
        found = events(agent, body)
        used = found[0]["message"]["usage"]
        assert used["cache_read_input_tokens"] >= (shared - 32) // 32 * 32 > 1000
        assert sum(used[key] for key in used if key != "output_tokens") == prompt(agent, body)
        assert [event["type"] for event in found[-2:]] == ["message_delta", "message_stop"]


@pytest.mark.slow
def test_a_system_prompt_of_20_000_tokens_is_computed_once(agent: Server) -> None:
    first, second, _ = requests("be brief and exact " * 1200)
    size = prompt(agent, {key: first[key] for key in ("messages", "system", "tools")})
    assert size > 20_000
    created = events(agent, first)[0]["message"]["usage"]
    assert created["cache_creation_input_tokens"] > 20_000  # tools, which come first, may be those of another session
    again = events(agent, second)[0]["message"]["usage"]
    assert again["cache_read_input_tokens"] >= (size - 32) // 32 * 32
