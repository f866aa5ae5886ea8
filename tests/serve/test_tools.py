"""Tool calls of each family, whole and in pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.serve.api.tools import FORMATS, Call, ToolText, format_of

BY_NAME = {form.name: form for form in FORMATS}
CASES = [
    (
        "hermes",
        'Well. <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        "Well. ",
        [Call("f", '{"a": 1}')],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
        '<tool_call>{"name": "g", "arguments": {"b": "}"}}</tool_call>',
        "",
        [Call("f", "{}"), Call("g", '{"b": "}"}')],
    ),
    ("hermes", "no call, only <tool", "no call, only <tool", []),
    ("hermes", '<tool_call>{"name": "f", "argum', '<tool_call>{"name": "f", "argum', []),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": [1, 2]}}]', "", [Call("f", '{"a": [1, 2]}')]),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', "", [Call("f", '{"a": 1}'), Call("g", "{}")]),
    ("llama3", '{"name": "f", "parameters": {"a": "é"}}', "", [Call("f", '{"a": "é"}')]),
    ("llama3", '<|python_tag|>{"name": "f", "parameters": {}}', "", [Call("f", "{}")]),
    ("llama3", "Hello {you}", "Hello {you}", []),
    ("llama3", '{"just": "json"}', '{"just": "json"}', []),
]


@pytest.mark.parametrize(("name", "text", "visible", "calls"), CASES)
@given(data=st.data())
def test_calls_are_found_however_the_text_is_cut(
    name: str, text: str, visible: str, calls: list[Call], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parser = ToolText(BY_NAME[name])
    shown = ""
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        shown += parser.push(text[start:end])
    rest, found = parser.finish()
    assert found == calls
    assert shown + rest == visible
    assert all(json.loads(call.arguments) is not None for call in found)


@given(st.text(alphabet='{}[]":,<tool_call>/name arguments\\ 1', max_size=200), st.sampled_from(FORMATS))
def test_any_text_is_taken(text: str, form: object) -> None:
    parser = ToolText(form)  # type: ignore[arg-type]
    shown = parser.push(text)
    rest, calls = parser.finish()
    assert calls or shown + rest == text


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("{{ tools }} [TOOL_CALLS]", "mistral"),
        ("{% for t in tools %}{% endfor %}<|python_tag|>", "llama3"),
        ("{{ tools }}", "llama3"),
        ("{{ messages }}", None),
        ("{{ toolset }}", None),
    ],
)
def test_a_template_tells_its_format(template: str, name: str | None) -> None:
    form = format_of(template)
    assert (form.name if form else None) == name
