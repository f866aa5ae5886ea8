"""The published templates of many families, against what transformers renders from them."""

from __future__ import annotations

import gzip
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from assay.errors import AssayError
from assay.text import ChatTemplate

RECORDED: dict[str, Any] = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "data/chat_templates.json.gz").read_bytes())
)

# transformers leaves the system message out; here it joins the first user message, as in llama.cpp.
FOLDED = {("mistralai-Mistral-Nemo-Instruct-2407", "closed")}
# These ask for what no OpenAI-style request has.
UNUSABLE = {
    "fireworks-ai-llama-3-firefunction-v2": "'functions' is undefined",
    "CohereForAI-c4ai-command-r-plus-tool_use": "no attribute 'description'",  # of every argument of every tool
}


def render(name: str, conversation: str, **changed: Any) -> str:
    given = RECORDED["conversations"][conversation] | changed
    template = ChatTemplate(RECORDED["templates"][name], name=name, bos="<s>", eos="</s>")
    return template.render(
        given["messages"],
        tools=given.get("tools"),
        add_generation_prompt=given.get("add_generation_prompt", True),
        **given.get("variables", {}),
    )


def dated(text: str) -> str:
    """Dates were recorded as the format that the template asked for."""
    return re.sub("⟦(.*?)⟧", lambda found: datetime.now().strftime(found[1]), text)


def test_there_are_enough() -> None:
    assert len(RECORDED["templates"]) == 70 and len(RECORDED["conversations"]) == 13


@pytest.mark.parametrize("name", RECORDED["templates"])
def test_renders_as_transformers_does(name: str) -> None:
    """Equal text, or the template's own refusal; what only the form of the messages kept transformers from rendering
    comes out as a prompt."""
    for conversation, expected in RECORDED["rendered"][name].items():
        try:
            text = render(name, conversation)
        except AssayError as error:
            reason = UNUSABLE.get(name) or (expected["error"] if expected.get("kind") == "TemplateError" else None)
            assert reason is not None and reason in str(error), (conversation, str(error))
            continue
        if "text" not in expected or (name, conversation) in FOLDED:
            continue
        if conversation == "developer" and "Be brief." not in expected["text"]:
            # transformers leaves it out without a word where the template knows no developer; here it is the system's.
            assert text == render(name, conversation, messages=as_system(conversation)), conversation
        else:
            assert text == dated(expected["text"]), conversation


def as_system(conversation: str) -> list[dict[str, Any]]:
    return [
        {**m, "role": "system"} if m["role"] == "developer" else m
        for m in RECORDED["conversations"][conversation]["messages"]
    ]


def said(conversation: str) -> list[str]:
    return [str(m["content"]) for m in RECORDED["conversations"][conversation]["messages"] if m["content"]]


@pytest.mark.parametrize(
    "name",
    [
        "Qwen-Qwen3-0.6B",
        "openai-gpt-oss-120b",
        "ibm-granite-granite-3.3-2B-Instruct",
        "mistralai-Ministral-3-14B-Reasoning-2512",
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "Kimi-K2-Instruct",
        "llama-cpp-deepseek-r1",
    ],
)
def test_a_call_beside_no_content(name: str) -> None:
    """OpenAI's null and arguments as an object, which transformers passes on and these templates cannot take."""
    assert "text" not in RECORDED["rendered"][name]["results"]
    text = render(name, "results")
    assert "Weather?" in text and "sun" in text
    if name not in ("ibm-granite-granite-3.3-2B-Instruct",):  # whose template shows no calls at all
        assert "get_weather" in text.split("Weather?")[1] and "Köln" in text.split("Weather?")[1]


def test_gemma_has_no_system_role() -> None:
    assert RECORDED["rendered"]["google-gemma-2-2b-it"]["system"]["error"] == "System role not supported"
    assert "<start_of_turn>user\nBe brief.\n Hi<end_of_turn>" in render("google-gemma-2-2b-it", "system")
    assert "<start_of_turn>user\nBe brief.\nHello" in render("google-gemma-2-2b-it", "developer")


def test_thinking_is_switched_by_the_callers_variables() -> None:
    assert render("Qwen-Qwen3-0.6B", "no thinking").endswith("<think>\n\n</think>\n\n")
    assert render("Qwen-Qwen3-0.6B", "thinking").endswith("<|im_start|>assistant\n")
    assert "Reasoning: high" in render("openai-gpt-oss-120b", "effort")
    assert "Reasoning: medium" in render("openai-gpt-oss-120b", "plain")


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_under_any_of_its_names(name: str) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
            name: "Hmm.",
        },
        {"role": "tool", "content": "c"},
    ]
    for family in ("Qwen-Qwen3-0.6B", "openai-gpt-oss-120b"):
        text = ChatTemplate(RECORDED["templates"][family], name=family).render(messages)
        assert "Hmm." in text


def test_all_tokens_of_the_vocabulary_are_known() -> None:
    template = ChatTemplate("{{ bos_token }}{{ pad_token }}{{ unk_token is defined }}", name="t", bos="B", pad="P")
    assert template.render([{"role": "user", "content": "a"}]) == "BPFalse"
    with pytest.raises(AssayError, match="pad_token: cannot be set"):
        template.render([], pad_token="x")


def test_generators_become_lists_and_lists_are_queues() -> None:
    source = (
        "{{ messages | map(attribute='content') | tojson }}"
        "{% set l = [] %}{{ l.append(1) or l }}{{ l.pop(0) }}{{ x | tojson }}"
    )
    template = ChatTemplate(source, name="t")
    assert template.render([{"role": "user", "content": "é"}], x={"a": "<"}) == '["é"][1]1{"a": "<"}'
    with pytest.raises(AssayError, match="not JSON serializable"):
        template.render([{"role": "user", "content": "é"}])


def test_a_slow_template_is_not_tried_again_for_ever() -> None:
    """All attempts together have the time of one."""
    source = "{% for i in range(99999) %}{% set x = i * i %}{% endfor %}{{ raise_exception('no') }}"
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": None}]
    with pytest.raises(AssayError, match=r"rejects these messages|no result within"):
        ChatTemplate(source, name="t").render(messages, timeout=0.5)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", "21"),
        ("{% set n = namespace(x=1) %}{% generation %}{% set n.x = 2 %}{% endgeneration %}{{ n.x }}", "2"),
        ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", "ab"),
        ("{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.content }}{% endfor %}", "a"),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}", "b"),
        ("{{ {'b': 'é<', 'a': 1} | tojson(indent=1) }}", '{\n "b": "é<",\n "a": 1\n}'),
        ("{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=true, sort_keys=true) }}", '{"a": 1, "b": "\\u00e9"}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) | safe }}", "[1,2]"),
        ("{{ strftime_now('%%') }}", "%"),
    ],
)
def test_what_transformers_adds_to_jinja(source: str, text: str) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert ChatTemplate(source, name="t").render(messages) == text
