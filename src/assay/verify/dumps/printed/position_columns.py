"""Rewrites tables with a column for each position as lines that list one statistic of every token.

what,layer,t0,t1,t2                          layer 0 norm(attn) by token 5.42 3.82 2.82
norm(attn),0,5.42,3.82,2.82

L2 of the residual stream, per token         layer 0 residual stream norm by token 3.18 1.33 1.44
| layer | tok 0 | tok 1 | tok 2 |
|--:|--:|--:|--:|
| 0 | 3.18 | 1.33 | 1.44 |

The statistic stands in the row or in the line above the table. Without one the cells may be elements, and the table
stays as it is. Touch this module for another way to head columns of positions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_POSITION = re.compile(r"(?:t|tok|token|p|pos|position)[ _#:=.-]{0,2}(\d{1,6})", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:e[-+]?\d{1,4})?", re.IGNORECASE)
_RULE = re.compile(r"[\s|:+=─━┼-]*")
_STATISTIC = re.compile(
    r"(?<![A-Za-z])(norm|l2|rms|mean|std|sum|absmax|max|min|abssum|absmean)(?![A-Za-z])", re.IGNORECASE
)
_WORD = re.compile(r"[A-Za-z][\w-]{0,30}")
_PLAIN = {
    "a", "after", "all", "at", "before", "by", "each", "every", "for", "from", "in", "is", "layer", "layers", "of",
    "on", "per", "position", "positions", "row", "rows", "the", "token", "tokens",
}  # fmt: skip
_LONGEST = 20_000  # characters of a row
_FEWEST = 3  # columns of positions
_ABOVE = 3  # lines above a header in which a title may stand
_MARKS = ("|", "\t", ";", ",")


def with_position_columns_as_lists(text: str) -> str:
    """The text with such tables as lines."""
    if not _POSITION.search(text):
        return text
    lines = text.split("\n")
    out: list[str] = []
    at = 0
    while at < len(lines):
        rows, end = _rows_below(lines, at)
        out += rows or [lines[at]]
        at = end if rows else at + 1
    return "\n".join(out)


def _rows_below(lines: Sequence[str], at: int) -> tuple[list[str], int]:
    """The rows of the table whose header is line `at`, as lists, and the first line behind it."""
    for mark in _MARKS:
        heads = _cells(lines[at], mark)
        first = _first_position(heads)
        if first:
            break
    else:
        return [], at
    title = _title(lines, at)
    found: list[str] = []
    end = at + 1
    while end < len(lines):
        cells = _cells(lines[end], mark)
        if len(cells) == len(heads) and all(_NUMBER.fullmatch(cell) for cell in cells[first:]):
            row = _as_list(heads[:first], cells[:first], cells[first:], title)
            if row is None:
                return [], at
            found.append(row)
        elif not lines[end].strip() or not _RULE.fullmatch(lines[end]):
            break
        end += 1
    return found, end


def _cells(line: str, mark: str) -> list[str]:
    if len(line) > _LONGEST or mark not in line:
        return []
    text = line.strip()
    return [cell.strip(" `*'\"") for cell in (text.strip("|") if mark == "|" else line).split(mark)]


def _first_position(heads: Sequence[str]) -> int:
    """The first of the columns of positions, which are the last columns and count up; 0 if there are none."""
    matched = [_POSITION.fullmatch(head) for head in heads]
    first = len(heads)
    while first and matched[first - 1]:
        first -= 1
    places = [int(m[1]) for m in matched[first:] if m]
    counted = len(places) >= _FEWEST and places == list(range(places[0], places[0] + len(places)))
    return first if counted else 0


def _title(lines: Sequence[str], at: int) -> str:
    for line in reversed(lines[max(0, at - _ABOVE) : at]):
        if line.strip() and not _RULE.fullmatch(line):
            return line
    return ""


def _as_list(heads: Sequence[str], labels: Sequence[str], values: Sequence[str], title: str) -> str | None:
    """A row as a line, or None if nothing says what its numbers are."""
    layer, words = "", []
    for head, label in zip(heads, labels, strict=True):
        if head.lower() in ("layer", "l", "block", "blk", "il") and label.isdigit():
            layer = f"layer {label} "
        elif label not in ("", "-", "–", "—"):
            words.append(label)
    said = " ".join(words)
    if not _STATISTIC.search(said):
        told = _STATISTIC.search(title)
        if told is None:
            return None
        if not words:
            said = " ".join(w for w in _WORD.findall(title) if w.lower() not in _PLAIN and not _STATISTIC.fullmatch(w))
        said += " norm" if told[1].lower() == "l2" else f" {told[1].lower()}"
    return f"{layer}{said} by token {' '.join(values)}"
