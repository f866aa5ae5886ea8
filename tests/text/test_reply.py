"""Answers taken apart: reasoning, content and calls of each family, whole and in pieces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.text import calls as notation
from assay.text.calls import Call, Tools
from assay.text.reply import (
    FAMILIES,
    THINKING,
    WRAPPING,
    Family,
    ReplyParser,
    assistant_message,
    family_of,
    opened,
    takes_tools,
)

TEMPLATES: dict[str, str] = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "data/chat_templates.json.gz").read_bytes())
)["templates"]


def tool(name: str, **arguments: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in arguments.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


TOOLS = [tool("f", a="integer", s="string"), tool("g"), tool("python")]
F = Call("f", '{"a": 1, "s": "1"}')
G = Call("g", "{}")


def parse(family: Family, text: str, cuts: list[int] | None = None, **options: Any) -> tuple[str, str, list[Call]]:
    parser = ReplyParser(family, **options)
    ends = sorted(cuts or [])
    pieces = [parser.push(text[a:b]) for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
    pieces.append(parser.finish())
    return (
        "".join(piece.content for piece in pieces),
        "".join(piece.reasoning for piece in pieces),
        [call for piece in pieces for call in piece.calls],
    )


def like(template: str) -> Family:
    """The family of a published template, by the beginning of its name."""
    return family_of(next(source for name, source in TEMPLATES.items() if name.startswith(template)))


# --- what each family writes: template, answer, content, reasoning, calls

F_JSON = '{"name": "f", "arguments": {"a": 1, "s": "1"}}'
G_JSON = '{"name": "g", "arguments": {}}'
CASES: list[tuple[str, str, str, str, list[Call]]] = [
    ("Qwen-Qwen2.5", f"Well. <tool_call>\n{F_JSON}\n</tool_call>", "Well. ", "", [F]),
    ("Qwen-Qwen2.5", f"<tool_call>{F_JSON}</tool_call>\n<tool_call>\n{G_JSON}\n</tool_call>", "", "", [F, G]),
    ("Qwen-Qwen2.5", "no call, only <tool", "no call, only <tool", "", []),
    ("Qwen-Qwen2.5", '<tool_call>{"name": "f", "argum', '<tool_call>{"name": "f", "argum', "", []),
    ("Qwen-Qwen2.5", "<tool_call>what?</tool_call> Hm.", "<tool_call>what?</tool_call> Hm.", "", []),
    ("Qwen-Qwen2.5", f"<tool_call>{F_JSON}", "", "", [F]),
    ("Qwen-Qwen2.5", " Hello", " Hello", "", []),
    (
        "Qwen-Qwen2.5",
        '<tool_call>{"name": "f", "arguments": {"s": "</tool_call> \\" "}}</tool_call>!',
        "!",
        "",
        [Call("f", '{"s": "</tool_call> \\" "}')],
    ),
    ("Qwen-Qwen2.5", '<tool_call>{"name</tool_call> a', '<tool_call>{"name</tool_call> a', "", []),
    ("Qwen-Qwen3-0", "<think>\nHm.\n\nYes.\n</think>\n\n4", "4", "Hm.\n\nYes.", []),
    ("Qwen-Qwen3-0", "<think>\n\n</think>\n\n4 <think>", "4 ", "", []),
    ("Qwen-Qwen3-0", f"<think>a</think>\n\n<tool_call>{G_JSON}</tool_call>", "", "a", [G]),
    ("Qwen-Qwen3-0", f"<think>a <tool_call>{G_JSON}", "", f"a <tool_call>{G_JSON}", []),
    (
        "Qwen3-Coder",
        "So.\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=s>\n1\n</parameter>\n</function>\n"
        "</tool_call><tool_call>\n<function=g>\n</function>\n</tool_call>",
        "So.\n",
        "",
        [F, G],
    ),
    (
        "GLM-4.6",
        "\n<think>b</think>\nOk\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>s</arg_key>\n"
        "<arg_value>1</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>",
        "Ok\n",
        "b",
        [F, G],
    ),
    ("mistralai-Mistral-Nemo", f"[TOOL_CALLS][{F_JSON}, {G_JSON}]", "", "", [F, G]),
    (
        "mistralai-Ministral",
        '[THINK]c[/THINK][TOOL_CALLS]f[ARGS]{"a": 1, "s": "1"}[TOOL_CALLS]g[ARGS]{}',
        "",
        "c",
        [F, G],
    ),
    ("Mistral-Small", '[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"a": 1, "s": "1"}', "", "", [F]),
    ("Mistral-Small", "[TOOL_CALLS]f[ARGS]{broken", "[TOOL_CALLS]f[ARGS]{broken", "", []),
    ("meta-llama-Llama-3.1", '{"name": "f", "parameters": {"a": 1, "s": "1"}}', "", "", [F]),
    ("meta-llama-Llama-3.1", '<|python_tag|>{"name": "g", "parameters": {}}', "", "", [G]),
    ("meta-llama-Llama-3.1", '<|python_tag|>f.call(a=1, s="1")', "", "", [F]),
    ("meta-llama-Llama-3.1", "<|python_tag|>print(1)", "", "", [Call("python", '{"code": "print(1)"}')]),
    ("meta-llama-Llama-3.1", "Hello {you}", "Hello {you}", "", []),
    ("meta-llama-Llama-3.1", '{"just": "json"}', '{"just": "json"}', "", []),
    ("meta-llama-Llama-3.1", '{"name": "Ada", "age": 3}', '{"name": "Ada", "age": 3}', "", []),
    ("meta-llama-Llama-3.1", '[f(a=1, s="1"), g()]', "", "", [F, G]),
    (
        "openai-gpt-oss",
        "<|channel|>analysis<|message|>Hm. <|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"a": 1, "s": "1"}<|call|>',
        "",
        "Hm.",
        [F],
    ),
    ("openai-gpt-oss", ' to=functions.f<|channel|>commentary json<|message|>{"a": 1, "s": "1"}', "", "", [F]),
    ("openai-gpt-oss", "<|channel|>final<|message|>Hello. <|return|>", "Hello. ", "", []),
    (
        "openai-gpt-oss",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>b",
        "I look.b",
        "a",
        [],
    ),
    ("openai-gpt-oss", "today", "today", "", []),
    ("openai-gpt-oss", "<|channel|>fin", "<|channel|>fin", "", []),
    (
        "openai-gpt-oss",
        "<|channel|>commentary to=functions.f<|message|>{no<|call|>",
        "<|channel|>commentary to=functions.f<|message|>{no",
        "",
        [],
    ),
    (
        "llama-cpp-deepseek-r1",
        "<think>d</think>e<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"a": 1, "s": "1"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "e",
        "d",
        [F, G],
    ),
    (
        "deepseek-ai-DeepSeek-V3.1",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1, "s": "1"}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        "",
        "",
        [F],
    ),
    (
        "deepseek-ai-DeepSeek-V3.2",
        '\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="false">1'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="s" string="true">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>",
        "",
        "",
        [F],
    ),
    ("ibm-granite-granite-3.3", f"<|tool_call|>[{F_JSON}]", "", "", [F]),
    ("ibm-granite-granite-3.3", "<think>h</think><response>i</response>", "i", "h", []),
    ("ibm-granite-granite-4.0", f"<tool_call>\n{F_JSON}\n</tool_call>", "", "", [F]),
    (
        "CohereForAI-c4ai-command-r7b",
        '<|START_THINKING|>j<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", '
        '"parameters": {"a": 1, "s": "1"}}\n]<|END_ACTION|>',
        "",
        "j",
        [F],
    ),
    ("CohereForAI-c4ai-command-r7b", "<|START_RESPONSE|>Hi.<|END_RESPONSE|>", "Hi.", "", []),
    (
        "CohereForAI-c4ai-command-r-plus",
        'Action: ```json\n[\n    {\n        "tool_name": "f",\n        "parameters": {"a": 1, "s": "1"}\n    }\n]\n```',
        "",
        "",
        [F],
    ),
    (
        "moonshotai-Kimi-K2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"a": 1, "s": "1"}<|tool_call_end|><|tool_calls_section_end|>',
        "",
        "",
        [F],
    ),
    (
        "google-gemma-4-31B-it",
        '<|channel>thought\nk<channel|><|tool_call>call:f{a:1,s:<|"|>1<|"|>}<tool_call|>',
        "",
        "k",
        [F],
    ),
    (
        "MiniMax-M2",
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n<parameter name="s">1</parameter>\n'
        "</invoke>\n</minimax:tool_call>",
        "",
        "",
        [F],
    ),
    (
        "ByteDance-Seed",
        "<seed:think>l</seed:think><seed:tool_call>\n<function=g>\n</function>\n</seed:tool_call>",
        "",
        "l",
        [G],
    ),
    ("NVIDIA-Nemotron-Nano-v2", f"<TOOLCALL>[{F_JSON}]</TOOLCALL>", "", "", [F]),
    ("unsloth-Apriel", f"<tool_calls>[{F_JSON}]</tool_calls>", "", "", [F]),
    ("LFM2.5-8B", '<|tool_call_start|>[f(a=1, s="1"), g()]<|tool_call_end|>Done', "Done", "", [F, G]),
    ("Apertus", '<|tools_prefix|>[{"f": {"a": 1, "s": "1"}}]<|tools_suffix|>', "", "", [F]),
    ("meetkai-functionary-medium-v3.1", '<function=f>{"a": 1, "s": "1"}</function>', "", "", [F]),
    ("google-gemma-2", "```python\nf(a=1)\n```", "```python\nf(a=1)\n```", "", []),
]  # fmt: skip
PHI4_MINI = "{% if tools %}<|tool|>{{ tools }}<|/tool|>{% endif %}"


@pytest.mark.parametrize(("template", "text", "content", "reasoning", "calls"), CASES)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_parts_are_found_however_the_text_is_cut(
    template: str, text: str, content: str, reasoning: str, calls: list[Call], data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=10))
    assert parse(like(template), text, cuts, tools=TOOLS) == (content, reasoning, calls)


@pytest.mark.parametrize("text", [f"<|tool_call|>[{F_JSON}]<|/tool_call|>", f"functools[{F_JSON}]"])
def test_phi4_mini(text: str) -> None:
    assert parse(family_of(PHI4_MINI), text, tools=TOOLS) == ("", "", [F])


def with_all(family: Family) -> Family:
    """A row of the table as no template has it: with reasoning and every wrapping mark."""
    return family_of(" ".join((*family.mentions[:1], THINKING[0][1], *WRAPPING)))


@st.composite
def _answers(draw: st.DrawFn) -> tuple[Family, str]:
    """Texts made of a family's own marks, of pieces of calls and of anything else."""
    family = with_all(draw(st.sampled_from(FAMILIES)))
    marks = [mark for pair in (*family.calls, THINKING[0]) for mark in pair if mark]
    marks += [*family.wrapping, *family.form, "<|channel|>analysis", "<|message|>", "<|end|>", "<|start|>assistant"]
    other = [F_JSON, G_JSON, "{", "}", "[", "]", " ", "\n", "a", "<", "<|", "|>", '"', " to=functions.f"]
    parts = st.one_of(st.sampled_from(marks + other), st.text(max_size=4), st.sampled_from(marks).map(lambda m: m[:-1]))
    return family, "".join(draw(st.lists(parts, max_size=12)))


@given(_answers(), st.data(), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=400, deadline=None)
def test_any_cut_gives_the_same_parts(
    answer: tuple[Family, str], data: st.DataObject, offered: bool, thinking: bool, apart: bool
) -> None:
    family, text = answer
    options: dict[str, Any] = {"tools": TOOLS if offered else None, "thinking": thinking, "apart": apart}
    whole = parse(family, text, **options)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    assert parse(family, text, cuts, **options) == whole
    assert parse(family, text, list(range(len(text) + 1)), **options) == whole
    assert all(isinstance(json.loads(call.arguments), dict | str | list | int | float | None) for call in whole[2])


@given(_answers(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_nothing_is_lost(answer: tuple[Family, str], offered: bool) -> None:
    """What is not a call is content or reasoning; only marks and white space go missing."""
    family, text = answer
    content, reasoning, calls = parse(family, text, tools=TOOLS if offered else None)
    if calls or family.name == "harmony":  # whose headings are marks of any length
        return
    marks = sorted({*THINKING[0], *family.wrapping}, key=len, reverse=True)

    def bare(some: str) -> list[str]:
        for mark in marks:
            some = some.replace(mark, "")
        return sorted("".join(some.split()))

    assert bare(content + reasoning) == bare(text)


@given(st.text(alphabet='{}[]":,<tool_call>/namef arguments()=\\ 1\n', max_size=200))
@settings(deadline=None)
def test_no_reader_fails(text: str) -> None:
    tools = Tools.offered(TOOLS)
    for name, reader in vars(notation).items():
        if name.startswith("read_"):
            for call in reader(text, tools):
                assert call.name


def test_hostile_calls_take_little_time() -> None:
    """Deep nesting, endless openings: an answer is no way to keep the server busy."""
    tools = Tools.offered([tool("f")])
    texts = ["[" * 200_000, "<function=a>" * 20_000, '<invoke name="a">' * 20_000, "f(" * 20_000, "<arg_key>" * 20_000]
    texts += ["x " + text for text in texts] + ["```\n" + "\n" * 100_000 + "`"]
    for text in texts:
        for name, reader in vars(notation).items():
            if name.startswith("read_"):
                assert reader(text, tools) == []


# --- reasoning


@pytest.mark.parametrize(
    ("template", "prompt", "is_open"),
    [
        ("MiniMax-M2", "]~b]ai\n<think>\n", True),
        ("Qwen-Qwen3-0", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("Qwen-Qwen3-0", "<|im_start|>assistant\n", False),
        ("Cohere2MoE", "<|CHATBOT_TOKEN|><|START_THINKING|>", True),
        ("google-gemma-4-31B-it", "<|turn>model\n<|channel>thought\n<channel|>", False),
        ("Qwen-Qwen2.5", "<think>", False),
    ],
)
def test_reasoning_that_the_prompt_has_opened(template: str, prompt: str, is_open: bool) -> None:
    assert opened(like(template), prompt) is is_open


def test_reasoning_goes_on_from_the_prompt() -> None:
    family = like("MiniMax-M2")
    assert parse(family, "Hm.\n</think>\n\nYes", thinking=True) == ("Yes", "Hm.", [])
    assert parse(family, "Hm, no end", thinking=True) == ("", "Hm, no end", [])
    assert parse(family, "<think>Hm.</think>Yes", thinking=False) == ("Yes", "Hm.", [])


def test_reasoning_left_in_the_content() -> None:
    assert parse(like("Qwen-Qwen3-0"), "<think>a</think>b", apart=False) == ("<think>a</think>b", "", [])
    text = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b"
    assert parse(like("openai-gpt-oss"), text, apart=False) == ("ab", "", [])


def test_an_answer_goes_back_without_its_marks() -> None:
    """gpt-oss's template refuses content with channels in it."""
    text = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b"
    found = assistant_message(TEMPLATES["openai-gpt-oss-120b"], "<|start|>assistant", text)
    assert found == {"role": "assistant", "content": "b", "reasoning_content": "a"}
    found = assistant_message(TEMPLATES["MiniMax-M2"], "<think>\n", "a\n</think>\n\nb")
    assert found == {"role": "assistant", "content": "b", "reasoning_content": "a"}
    assert assistant_message("{{ messages }}", "", " a <think>") == {"role": "assistant", "content": " a <think>"}


CALL = '<tool_call>{"name": "f", "arguments": {"a": 1, "s": "1"}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "calls"),
    [
        (f"Hm. {CALL}", "", "Hm.", [F]),
        (f"Hm. {CALL} So.</think>4", "4", "Hm.So.", [F]),
        (CALL.removesuffix("</tool_call>") + "</think>4", "4", "", [F]),
        ("The mark is <tool_call>, see?</think>4", "4", "The mark is <tool_call>, see?", []),
        ("Or <tool_call>x</tool_call> then</think>4", "4", "Or <tool_call>x</tool_call> then", []),
        ('<tool_call>{"name": "f", "arguments": {"s": "</think>"}}</tool_call></think>4', "4", "",
         [Call("f", '{"s": "</think>"}')]),
    ],
)  # fmt: skip
def test_calls_in_the_middle_of_reasoning(text: str, content: str, reasoning: str, calls: list[Call]) -> None:
    family = like("Qwen-Qwen3-0")
    for cuts in ([], list(range(1, len(text)))):
        assert parse(family, text, cuts, tools=TOOLS, thinking=True) == (content, reasoning, calls)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_call_that_a_limit_cut_off_is_no_content(family: Family) -> None:
    before, after = family.form
    whole = before.replace("NAME", "f") + '{"a": 1, "s": "some text"}' + after
    for end in range(whole.index("f") + 3, whole.index("some text") + 4):
        parser = ReplyParser(family, TOOLS)
        pieces = [parser.push(whole[:end]), parser.finish(cut=True)]
        assert not any(piece.content or piece.calls for piece in pieces), (end, pieces)
        assert pieces[1].cut


def test_the_end_of_a_mark_is_no_content_either() -> None:
    for end in ("Yes <tool_c", "Yes <too"):
        parser = ReplyParser(like("Qwen-Qwen3-0"), TOOLS)
        pieces = [parser.push(end), parser.finish(cut=True)]
        assert "".join(piece.content for piece in pieces).strip() == "Yes"


def test_without_tools_nothing_is_a_call() -> None:
    text = f"<tool_call>{F_JSON}</tool_call>"
    assert parse(like("Qwen-Qwen2.5"), text) == (text, "", [])
    assert parse(like("meta-llama-Llama-3.1"), F_JSON) == (F_JSON, "", [])


def test_text_is_shown_as_soon_as_it_is_certain() -> None:
    parser = ReplyParser(like("Qwen-Qwen3-0"), TOOLS)
    assert parser.push("Hello <").content == "Hello "
    assert parser.push("b> <tool").content == "<b> "
    assert not parser.push("_call>") and not parser.push(F_JSON)
    assert parser.push("</tool_call>").calls == [F]
    assert parser.push("Bye").content == "Bye" and not parser.finish()


# --- families


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_required_call_is_read_again(family: Family) -> None:
    before, after = (part.replace("NAME", "f") for part in family.form)
    text = before + '{"a": 1, "s": "1"}' + after
    content, reasoning, calls = parse(family, text, tools=TOOLS)
    assert (content, reasoning) == ("", "") and [call.name for call in calls] == ["f"]
    assert json.loads(calls[0].arguments) == {"a": 1, "s": "1"}


@pytest.mark.parametrize(
    ("template", "name", "tools"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "hermes", True),
        ("{{ tools }} [TOOL_CALLS]", "mistral", True),
        ("{% for t in tools %}{% endfor %}<|python_tag|>", "llama", True),
        ("{{ xml_tools }}", "hermes", True),
        ("{{ messages }}", "llama", False),
        ("{{ toolset }}", "llama", False),
    ],
)
def test_a_template_tells_its_family(template: str, name: str, tools: bool) -> None:
    assert family_of(template).name == name and takes_tools(template) is tools


def test_families_of_published_templates() -> None:
    expected = {
        "Qwen-Qwen3-0.6B": "hermes", "openai-gpt-oss-120b": "harmony", "GLM-4.6": "hermes", "Mistral-Small": "mistral",
        "meta-llama-Llama-3.2": "llama", "deepseek-ai-DeepSeek-V3.1": "deepseek", "ibm-granite-granite-3.3": "granite",
        "CohereForAI-c4ai-command-r7b": "command", "CohereForAI-c4ai-command-r-plus": "command-r", "Kimi-K2": "kimi",
        "google-gemma-4-31B-it": "gemma4", "HuggingFaceTB-SmolLM3": "llama", "NousResearch-Hermes-3": "hermes",
        "microsoft-Phi-3.5": "llama", "LFM2-8B": "lfm2", "Apertus": "apertus",
    }  # fmt: skip
    assert {name: like(name).name for name in expected} == expected
