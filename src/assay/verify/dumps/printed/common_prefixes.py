"""Removes what a logger puts before every line, whatever the logger: the beginning that all lines of a text share.

Lines share a beginning if its words are the same and its numbers stand at the same places: `[rank0]: `,
`(0.41s) `, `[0x7f3a] [INFO ] `, `engine-1  | `, `0012 | `. Numbers of a prefix are constant, times, addresses, behind
a word such as `tid`, or count the lines. A word that may name a layer, a node or a statistic ends the prefix, because
it is content; so does a number that repeats, which may be a layer.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from assay.verify.dumps.naming.layer_and_row import LAYER, MAYBE_ROW, ROW
from assay.verify.dumps.naming.phrases import meaning, split_words
from assay.verify.dumps.naming.statistic_names import statistic
from assay.verify.dumps.printed.line_prefixes import without_colours

_FEWEST_LINES = 6
_SHARE = 0.95  # of the lines that begin so
_SEEN = 100  # characters of a line, and pieces
_MOST_PIECES = 24
_MOST_LINES = 200_000
_PIECE = re.compile(
    r"(?P<hex>0[xX][0-9a-fA-F]{1,16}\b)|(?P<real>\d{1,12}\.\d{1,12}(?![\d.]))|(?P<whole>\d{1,19})|(?P<word>[^\W\d_]+)"
    r"|(?P<space>[ \t]+)|(?P<sign>.)"
)
_LETTER = re.compile(r"[^\W\d_]{2}")
_LEVELS = {
    "trace", "debug", "dbg", "dbug", "verbose", "fine", "finer", "finest", "info", "inf", "notice", "warn", "wrn",
    "warning", "error", "err", "fatal", "log", "d", "i", "w", "e", "v",
}  # fmt: skip
_MONTHS = {"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec", "am", "pm"}
_BEFORE_NUMBERS = {
    "tid",
    "pid",
    "thread",
    "rank",
    "worker",
    "goroutine",
    "gpu",
    "cuda",
    "dev",
    "device",
    "proc",
    "core",
}
_UNITS = {"ms", "us", "ns", "s", "sec", "µs", "μs"}


def without_common_prefix(text: str) -> str:
    """The text without the beginning that its lines share."""
    lines = text.split("\n")
    if not _FEWEST_LINES < len(lines) < _MOST_LINES:
        return text
    begin = [without_colours(line[: 4 * _SEEN])[:_SEEN] for line in lines]
    seen = [line for line in begin if line.strip()]
    for some in (seen, [line for line in seen if _LETTER.search(line)]):  # rows of an array may have no prefix
        if len(some) < _FEWEST_LINES or some[0][:1].isspace():
            continue
        pieces = [_pieces(line) for line in some]
        shapes = _shared(pieces)
        if ended := _end(shapes, pieces):
            return "\n".join(_cut(line, shapes[:ended]) for line in lines)
    return text


def _pieces(line: str) -> list[tuple[str, str]]:
    """Shape and text of the first pieces of a line."""
    found: list[tuple[str, str]] = []
    for m in _PIECE.finditer(line):
        kind, text = m.lastgroup or "", m[0]
        if kind == "space" and found and found[-1][0] in ("[", "("):
            found[-1] = found[-1][0], found[-1][1] + text  # [ 9.5] and [10.5]
            continue
        low = text.lower()
        shape = "9" if kind in ("real", "whole") else kind if kind in ("hex", "space") else text
        if kind == "word":
            shape = "level" if low in _LEVELS else "month" if low in _MONTHS else low
        found.append((shape, text))
        if len(found) >= _MOST_PIECES:
            break
    return found


def _shared(pieces: Sequence[list[tuple[str, str]]]) -> list[str]:
    """The shapes that nearly all lines have at the same places, from the first on."""
    enough = _SHARE * len(pieces)
    left = list(pieces)
    shapes: list[str] = []
    for at in range(_MOST_PIECES):
        counts = Counter(line[at][0] for line in left if at < len(line))
        if not counts:
            break
        shape, n = counts.most_common(1)[0]
        if n < enough:
            break
        shapes.append(shape)
        left = [line for line in left if at < len(line) and line[at][0] == shape]
    return shapes


def _end(shapes: Sequence[str], pieces: Sequence[list[tuple[str, str]]]) -> int:
    """How many of the shapes are a prefix: up to a blank behind it, and 0 without a prefix."""
    lines = [line for line in pieces if [s for s, _ in line[: len(shapes)]] == list(shapes)]
    ended, marked = 0, False
    for at, shape in enumerate(shapes):
        if shape == "space":
            ended = at + 1 if marked else ended
        elif shape == "9":
            if not _is_number_of_a_prefix(at, shapes, lines):
                before = [s for s in shapes[:at] if s != "space"][-1:]
                return ended if before and before[0] in (":", "]", "|", ">", ")") else 0
        elif shape.isalpha() and shape not in ("level", "month", "hex"):
            if not _is_word_of_a_prefix(shape, at, shapes) and not _names_logger(at, shapes):
                break
            marked = True
        else:
            marked = marked or shape in ("level", "month", "hex") or shape in "[](){}|>#:+@$"
    return ended


def _names_logger(at: int, shapes: Sequence[str]) -> bool:
    """Whether the word is part of a name between the level and a colon: `DEBUG moe-run: `. All lines share it, those
    of the embedding and of the logits too, so that it names no node."""
    rest = itertools.takewhile(lambda shape: shape.isalpha() or shape in "-._", shapes[at:])
    end = at + len(list(rest))
    return "level" in shapes[:at] and shapes[end : end + 2] == [":", "space"] and "space" not in shapes[at:end]


def _is_word_of_a_prefix(word: str, at: int, shapes: Sequence[str]) -> bool:
    if word in LAYER | ROW | MAYBE_ROW and not (word in ("h", "l", "t") and "level" in shapes):
        return False
    words = split_words([word])
    return not (statistic([word]) or meaning([*words, "layer", "0"], generic=False).nodes)


def _is_number_of_a_prefix(at: int, shapes: Sequence[str], lines: Sequence[list[tuple[str, str]]]) -> bool:
    values = [line[at][1] for line in lines]
    before = shapes[at - 1] if at else ""
    after = shapes[at + 1] if at + 1 < len(shapes) else ""
    if (after == ":" and shapes[at + 2 : at + 3] == ["9"]) or (before == ":" and shapes[at - 2] == "9"):
        return True  # of a time
    if len(set(values)) == 1 or all("." in v for v in values):
        return len(set(values)) == 1 or after not in ("space", "")
    joined = (bool(before) and before in "-/") or after in ("-", "/") or after in _UNITS
    if joined or before in (".", ",", "month", "level"):
        return joined or not _few(values)
    word = next((s for s in reversed(shapes[:at]) if s.isalpha() and s not in ("level", "month", "space")), "")
    if word in _BEFORE_NUMBERS or len(values[0]) > 5:
        return True
    numbers = [int(v) for v in values if v.isdecimal()]
    counts = len(numbers) == len(values) and all(b > a for a, b in pairwise(numbers))
    padded = len(values[0]) > 1 and values[0][0] == "0"
    return counts and (padded or numbers[0] > 1)


def _few(values: Sequence[str]) -> bool:
    """Whether values repeat as the numbers of layers do."""
    return 2 * len(set(values)) <= len(values)


def _cut(line: str, shapes: Sequence[str]) -> str:
    if not line.strip():
        return line
    if "\x1b" in line[: 4 * _SEEN]:
        line = without_colours(line)
    found = _pieces(line[:_SEEN])[: len(shapes)]
    if [shape for shape, _ in found] != list(shapes):
        stripped = list(shapes)
        while stripped and stripped[-1] == "space":
            stripped.pop()  # a prefix without a message
        same = [shape for shape, _ in found[: len(stripped)]] == stripped and len(found) == len(stripped)
        return "" if same else line
    # Blanks behind the prefix beyond the first are the message's indentation.
    cut = sum(len(text) for _, text in found)
    blanks = len(found[-1][1]) - 1 if found[-1][0] == "space" else 0
    return line[cut - blanks :]
