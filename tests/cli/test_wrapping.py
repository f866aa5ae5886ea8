"""Words of an answer stay whole on a terminal: what a screen shows, for any text and any cut into tokens."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.cli.wrapping import WordWrap, cells


def screen(output: str, columns: int) -> list[str]:
    """What a terminal of that width shows: it breaks at its last column, and obeys `ESC [ n D` and `ESC [ K`."""
    lines: list[list[str]] = [[]]
    at = 0
    for part in re.findall(r"\033\[(\d+)D|(\033\[K)|(.|\n)", output):
        back, erase, c = part
        if back:
            at -= int(back)
            assert at >= 0, "the cursor left the screen"
        elif erase:
            del lines[-1][at:]
        elif c == "\n":
            lines.append([])
            at = 0
        else:
            width = 8 - at % 8 if c == "\t" else cells(c)
            if at + width > columns:
                lines.append([])
                at = 0
            if width:
                lines[-1][at:] = [c, *[""] * (width - 1)]
                at += width
            elif at:
                lines[-1][at - 1] += c
    return ["".join(line) for line in lines]


def wrapped(text: str, columns: int, sizes: list[int]) -> list[str]:
    wrap, out, i = WordWrap(lambda: columns), "", 0
    for size in sizes:
        out += wrap.feed(text[i : i + size])
        i += size
    return screen(out + wrap.feed(text[i:]), columns)


def test_words_are_not_broken() -> None:
    text = "The quick brown fox jumps over the lazy dog and then some more words follow it"
    lines = wrapped(text, 20, [1] * 100)
    assert max(map(len, lines)) <= 19
    assert " ".join(line.strip() for line in lines) == text


def test_a_word_longer_than_a_line_is_broken_where_it_must_be() -> None:
    lines = wrapped("see https://example.org/a/very/long/address and go on", 16, [3] * 30)
    assert "".join(lines).replace(" ", "") == "seehttps://example.org/a/very/long/addressandgoon"
    assert lines[0].strip() == "see"
    assert lines[-1].endswith("go on")


def test_code_keeps_its_lines() -> None:
    line = "    result = some_function(with_a_long_name, and_another_argument)"
    wrap = WordWrap(lambda: 20)
    out = wrap.feed(f"```python\n{line}\n```\nwords that are wrapped again after it\n")
    assert f"\n{line}\n" in out
    assert all(len(one) < 20 for one in screen(out, 200)[3:])


def test_wide_characters_break_anywhere_and_count_twice() -> None:
    lines = wrapped("日本語のテキストには空白がありません" * 2, 21, [2] * 40)
    assert all(sum(map(cells, line)) <= 20 for line in lines)
    assert "".join(lines) == "日本語のテキストには空白がありません" * 2


@given(
    words=st.lists(
        st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1, max_size=18), max_size=40
    ),
    columns=st.integers(24, 60),
    sizes=st.lists(st.integers(1, 12), max_size=60),
)
def test_any_text_keeps_its_words(words: list[str], columns: int, sizes: list[int]) -> None:
    words = [word for word in words if not word.startswith("`")]
    text = " ".join(words)
    lines = wrapped(text, columns, sizes)
    assert " ".join(line.strip() for line in lines).split() == text.split()
    assert all(len(line) < columns for line in lines)


@pytest.mark.parametrize("text", ["", "\n\n", " " * 200, "\t" * 30, "e\u0301" * 90, "🙂" * 50, "a\n" * 5, "x" * 500])
def test_nothing_is_lost_of_strange_text(text: str) -> None:
    shown = "".join(wrapped(text, 30, [1] * 20))
    assert re.sub(r"\s", "", shown) == re.sub(r"\s", "", text)
