"""Calls passed on while they are written: the parts joined are the whole call, however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.text.calls import Call
from assay.text.marks import ReplyPiece
from assay.text.reply import FAMILIES, Family, ReplyParser, family_of
from tests.text.test_reply import CASES, TOOLS, _answers, like

LONG = {"a": 12, "s": 'a "quoted" line\n\tand é 😀 \\ ' + "x" * 40}
# Families whose own notation is passed on; the others write calls that are read at their end.
STREAMED = [family for family in FAMILIES if family.name != "gemma4"]


def pieces_of(family: Family, text: str, cuts: list[int], *, cut: bool = False, **options: Any) -> list[ReplyPiece]:
    parser = ReplyParser(family, TOOLS, stream=True, **options)
    ends = sorted(cuts)
    found = [parser.push(text[a:b]) for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
    return [*found, parser.finish(cut=cut)]


def joined(pieces: list[ReplyPiece]) -> tuple[str, str, list[Call]]:
    calls: list[Call] = []
    for piece in pieces:
        for part in piece.parts:
            if not part.name:
                calls[-1] = Call(calls[-1].name, calls[-1].arguments + part.arguments)
            else:
                calls.append(Call(part.name, part.arguments))
        calls += piece.calls
    return "".join(p.content for p in pieces), "".join(p.reasoning for p in pieces), calls


@pytest.mark.parametrize(("template", "text", "content", "reasoning", "calls"), CASES)
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_the_parts_are_the_call(
    template: str, text: str, content: str, reasoning: str, calls: list[Call], data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=10))
    assert joined(pieces_of(like(template), text, cuts)) == (content, reasoning, calls)


@pytest.mark.parametrize("family", STREAMED, ids=lambda family: family.name)
@pytest.mark.parametrize("escaped", [False, True])
def test_arguments_arrive_before_the_call_ends(family: Family, escaped: bool) -> None:
    before, after = (part.replace("NAME", "f") for part in family.form)
    text = before + json.dumps(LONG, ensure_ascii=escaped) + after
    pieces = pieces_of(family, text, list(range(1, len(text))))
    content, reasoning, (call,) = joined(pieces)
    assert (content, reasoning, call.name) == ("", "", "f")
    assert json.loads(call.arguments) == LONG
    shown = text.index("x" * 40) + 20
    assert '"s": "a \\"quoted' in joined(pieces[:shown])[2][0].arguments
    assert len([part for piece in pieces for part in piece.parts]) > 40
    assert not any(piece.calls for piece in pieces)
    for end in range(text.index("x" * 40), shown):  # a limit ends it: the part that was passed on stays, and no text
        content, reasoning, calls = joined(cut := pieces_of(family, text[:end], [end // 2], cut=True))
        assert (content, reasoning, calls[0].name) == ("", "", "f") and cut[-1].cut
        assert call.arguments.startswith(calls[0].arguments)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", "<tool_call>\n<function=f>\n<parameter=a>\n12\n</parameter>\n<parameter=s>\nVALUE\n</parameter>\n"
                   "</function>\n</tool_call>"),
        ("hermes", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>12</arg_value>\n<arg_key>s</arg_key>\n"
                   "<arg_value>VALUE</arg_value>\n</tool_call>"),
        ("minimax", '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">12</parameter>\n<parameter name="s">'
                    "VALUE</parameter>\n</invoke>\n</minimax:tool_call>"),
        ("dsml", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="false">12'
                 '</｜DSML｜parameter>\n<｜DSML｜parameter name="s" string="true">VALUE</｜DSML｜parameter>\n'
                 "</｜DSML｜invoke>\n</｜DSML｜function_calls>"),
    ],
)  # fmt: skip
def test_long_texts_in_tags(family: str, text: str) -> None:
    """A file that an agent writes: its lines arrive one by one, and look-alikes of tags are text."""
    value = 'def f():\n\treturn "<b>" < "</param"\n' + "x" * 40
    row = next(f for f in FAMILIES if f.name == family)
    text = text.replace("VALUE", value)
    whole = ReplyParser(row, TOOLS).push(text).calls
    assert [json.loads(call.arguments) for call in whole] == [{"a": 12, "s": value}]
    for cuts in ([], list(range(1, len(text))), list(range(5, len(text), 7))):
        assert joined(pieces_of(row, text, cuts)) == ("", "", whole)
    half = joined(pieces_of(row, text, list(range(1, len(text))))[: text.index("x" * 40) + 20])[2]
    assert "xxxxxxxx" in half[0].arguments


def test_parallel_calls() -> None:
    one, two = '{"name": "f", "arguments": {"a": 1, "s": "1"}}', '{"name": "g", "arguments": {}}'
    family = like("Qwen-Qwen3-0")
    texts = (
        f"<tool_call>{one}</tool_call>\n<tool_call>{two}</tool_call>",
        f"<tool_call>[{one}, {two}]</tool_call>",
        f"<tool_call>\n{one}\n{two}\n</tool_call>",
    )
    for text in texts:
        content, _, calls = joined(pieces_of(family, text, list(range(1, len(text)))))
        assert (content, [call.name for call in calls]) == ("", ["f", "g"])


def test_what_is_no_offered_function_is_read_at_its_end() -> None:
    family = like("Qwen-Qwen3-0")
    for text in (
        '<tool_call>{"name": "other", "arguments": {"a": 1}}</tool_call>',
        '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>',
        '<think>maybe <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
        "<tool_call>no call</tool_call>",
        '<tool_call>{"name": "f", "arguments": "text"}</tool_call>',
    ):
        pieces = pieces_of(family, text, list(range(1, len(text))))
        parser = ReplyParser(family, TOOLS)
        assert not any(piece.parts for piece in pieces), text
        assert joined(pieces) == joined([parser.push(text), parser.finish()])


@given(_answers(), st.data())
@settings(max_examples=200, deadline=None)
def test_any_cut_gives_the_same_calls(answer: tuple[Family, str], data: st.DataObject) -> None:
    """And no text makes it fail."""
    family, text = answer
    whole = joined(pieces_of(family, text, []))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    assert joined(pieces_of(family, text, cuts)) == whole
    assert joined(pieces_of(family, text, list(range(len(text) + 1)))) == whole


@given(st.text(alphabet='{}[]":,\\u0d8f1 \n<>/', max_size=60))
@settings(max_examples=200, deadline=None)
def test_arguments_that_are_no_json_leak_no_marks(body: str) -> None:
    family = family_of("<tool_call>")
    text = f'<tool_call>{{"name": "f", "arguments": {body}'
    for cut in (False, True):
        content = joined(pieces_of(family, text, list(range(1, len(text))), cut=cut))[0]
        assert not cut or "<tool_call>" not in content
