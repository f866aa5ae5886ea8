"""Reasoning and calls over HTTP: each family's answers, as clients see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.text.reply import FAMILIES
from tests.serve.conftest import Server, Start, start_server
from tests.tiny import make

ASK = [{"role": "user", "content": "hello"}]
THINKING = (
    "{% if tools %}{{ tools | tojson }}<tool_call></tool_call>{% endif %}"
    "{% for m in messages %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}\n{% endfor %}{% if enable_thinking %}<think>\n{% endif %}{{ reasoning_effort }}"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"town": {"type": "string", "enum": ["oslo", "rome"]}},
                "required": ["town"],
                "additionalProperties": False,
            },
        },
    }
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model of every family, and one whose template opens the reasoning."""
    folder = tmp_path_factory.mktemp("families")
    templates = {"thinking": THINKING}
    for family in FAMILIES:
        mention = family.mentions[0] if family.mentions else "<|python_tag|>"
        templates[family.name] = f"{{{{ tools }}}}{{{{ messages[0].content }}}}{{# {mention} #}}"
    files = [(name, make(folder / f"{name}.gguf", n_ctx=512, template=text)) for name, text in templates.items()]
    server = start_server(files, memory=1 << 30)
    yield server
    server.end()


def ask(server: Server, model: str, **given: Any) -> dict[str, Any]:
    body = {"model": model, "messages": ASK, "max_tokens": 12, "temperature": 0} | given
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()["choices"][0]
    return found


def deltas(server: Server, model: str, **given: Any) -> list[dict[str, Any]]:
    body = {"model": model, "messages": ASK, "max_tokens": 12, "temperature": 0, "stream": True} | given
    lines = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return [event["choices"][0]["delta"] for event in events if event["choices"]]


def test_reasoning_that_the_prompt_opened(served: Server) -> None:
    on: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
    apart = ask(served, "thinking", **on)["message"]
    assert apart["content"] == "" and apart["reasoning_content"]
    streamed = deltas(served, "thinking", **on)
    assert "".join(delta.get("reasoning_content", "") for delta in streamed) == apart["reasoning_content"]
    assert "".join(delta.get("content", "") for delta in streamed) == ""
    together = ask(served, "thinking", **on, reasoning_format="none")["message"]
    assert together["content"].strip() == apart["reasoning_content"] and "reasoning_content" not in together
    assert "reasoning_content" not in ask(served, "thinking")["message"]


def test_tokens_of_reasoning_are_counted(served: Server) -> None:
    """All tokens where no end is drawn; with a budget those up to the closing tag; none without reasoning."""

    def used(route: str, **body: Any) -> dict[str, Any]:
        given = {"model": "thinking", "temperature": 0} | body
        reply = httpx.post(f"{served.url}/v1/{route}", json=given, timeout=60)
        found: dict[str, Any] = reply.json()["usage"]
        return found

    on = {"chat_template_kwargs": {"enable_thinking": True}, "messages": ASK, "max_tokens": 12}
    whole = used("chat/completions", **on)
    assert whole["completion_tokens_details"] == {"reasoning_tokens": whole["completion_tokens"]}
    limited = used("chat/completions", **on, thinking_budget_tokens=2)
    assert 2 < limited["completion_tokens_details"]["reasoning_tokens"] <= limited["completion_tokens"]
    assert used("chat/completions", messages=ASK, max_tokens=3)["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert used("responses", input="a", max_output_tokens=3)["output_tokens_details"] == {"reasoning_tokens": 0}


def test_a_grammar_governs_the_content(served: Server) -> None:
    found = ask(served, "thinking", chat_template_kwargs={"enable_thinking": True}, grammar='root ::= "yes" | "no"')[
        "message"
    ]
    assert found["content"] in ("yes", "no") and "reasoning_content" not in found


def test_a_call_is_required_although_reasoning_is_open(served: Server) -> None:
    found = ask(
        served, "thinking", chat_template_kwargs={"enable_thinking": True}, tools=TOOLS, tool_choice="required",
        max_tokens=200,
    )  # fmt: skip
    assert found["finish_reason"] == "tool_calls" and "reasoning_content" not in found["message"]
    assert found["message"]["tool_calls"][0]["function"]["name"] == "weather"


@pytest.mark.parametrize("name", [family.name for family in FAMILIES])
def test_a_required_call_of_each_family(served: Server, name: str) -> None:
    options: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 300}
    found = ask(served, name, **options)
    assert found["finish_reason"] == "tool_calls", found
    function = found["message"]["tool_calls"][0]["function"]
    assert function["name"] == "weather" and json.loads(function["arguments"])["town"] in ("oslo", "rome")
    assert found["message"]["content"] is None
    first, *parts = [call for delta in deltas(served, name, **options) for call in delta.get("tool_calls", ())]
    assert (first["index"], first["type"], first["function"]["name"]) == (0, "function", "weather")
    assert all(set(part) == {"index", "function"} and set(part["function"]) == {"arguments"} for part in parts)
    assert "".join(call["function"]["arguments"] for call in (first, *parts)) == function["arguments"]
    assert len(parts) > 2 or name == "gemma4"  # whose notation is read at its end


def prompt(server: Server, model: str, messages: list[dict[str, Any]], **given: Any) -> str:
    body = {"model": model, "messages": messages} | given
    reply = httpx.post(f"{server.url}/apply-template", json=body)
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["prompt"]
    return text


def test_reasoning_goes_back_to_the_template(served: Server) -> None:
    talk = [*ASK, {"role": "assistant", "content": "4", "reasoning_content": "Hm."}, *ASK]
    assert "<think>Hm.</think>4" in prompt(served, "thinking", talk)


def test_reasoning_ends_at_its_budget(served: Server) -> None:
    """The template's own tag is written after three tokens, and the model goes on from there."""
    on: dict[str, Any] = {
        "chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 24, "logprobs": True, "ignore_eos": True,
    }  # fmt: skip
    free = ask(served, "thinking", **on)
    found = ask(served, "thinking", **on, thinking_budget_tokens=3)
    ids, before = ([item["id"] for item in one["logprobs"]["content"]] for one in (found, free))
    tag = httpx.post(f"{served.url}/tokenize", json={"model": "thinking", "content": "</think>\n\n"}).json()["tokens"]
    assert ids[: 3 + len(tag)] == [*before[:3], *tag]
    assert found["message"]["reasoning_content"] and found["message"]["content"]
    template = {"model": "thinking", "messages": ASK, "chat_template_kwargs": {"enable_thinking": True}}
    prompt_ids = httpx.post(f"{served.url}/apply-template", json=template).json()["tokens"]
    body = {"model": "thinking", "prompt": [*prompt_ids, *ids[: 3 + len(tag)]], "temperature": 0, "return_tokens": True}
    body |= {"n_predict": len(ids) - 3 - len(tag), "ignore_eos": True}
    again = httpx.post(f"{served.url}/completion", json=body, timeout=60).json()
    assert again["tokens"] == ids[3 + len(tag) :]


def test_every_dialect_has_the_budget(served: Server) -> None:
    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = httpx.post(served.url + path, json={"model": "thinking"} | body, timeout=60).json()
        return found

    on = {"chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 24, "temperature": 0}
    wanted = ask(served, "thinking", **on, thinking_budget_tokens=2)["message"]
    thinking = {"type": "enabled", "budget_tokens": 2}
    body = {"messages": ASK, "max_tokens": 24, "temperature": 0, "thinking": thinking}
    blocks = post("/v1/messages", body)["content"]
    assert [block.get("thinking") or block.get("text") for block in blocks] == [
        text for text in (wanted["reasoning_content"], wanted["content"]) if text
    ]
    none = ask(served, "thinking", **on, reasoning_effort="none")["message"]
    assert "reasoning_content" not in none and none["content"]
    items = post("/v1/responses", {"input": "hello", "reasoning": {"effort": "none"}, "max_output_tokens": 4})
    assert [item["type"] for item in items["output"]] == ["message"]
    lines = post("/api/chat", {"messages": ASK, "think": "none", "stream": False, "options": {"num_predict": 4}})
    assert "thinking" not in lines["message"]


def test_the_servers_budget(start: Start, tmp_path: Path) -> None:
    path = make(tmp_path / "t.gguf", n_ctx=512, template=THINKING)
    server = start([("t", path)], config={"reasoning_budget": 1})
    on = {"chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 30}
    assert ask(server, "t", **on)["message"]["content"]
    assert not ask(server, "t", **on, thinking_budget_tokens=-1)["message"]["content"]


def test_effort_is_a_variable_of_the_template(served: Server) -> None:
    found = [ask(served, "thinking", reasoning_effort=effort, logprobs=True) for effort in ("low", "high" * 8)]
    assert found[0]["logprobs"] != found[1]["logprobs"]  # another prompt


def test_the_servers_own_template_arguments(start: Start, tmp_path: Path) -> None:
    path = make(tmp_path / "t.gguf", n_ctx=512, template=THINKING)
    server = start([("t", path)], options={"template_arguments": {"enable_thinking": True}})
    assert ask(server, "t")["message"]["reasoning_content"]
    off = ask(server, "t", chat_template_kwargs={"enable_thinking": False})["message"]
    assert "reasoning_content" not in off and off["content"]
