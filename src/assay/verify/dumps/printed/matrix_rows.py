"""Names the rows of a matrix whose heading gives its shape, and whose lines are numbered.

q.0 (7 x 40)                         q.0 (7 x 40)
  [0] {0.5, 0.25}                      pos 0: {0.5, 0.25}
  [1] {1.5, 2}                         pos 1: {1.5, 2.0}

probs.0 (28 x 7)                     probs.0 (28 x 7)
  [7] {1, 0}                           head 1 pos 0: {1.0, 0.0}

A matrix with a row for each token of the log's prompt has their rows in order. One with several times as many rows is
of attention heads, if the zeros of its mask say how it is stacked: a token's row has no value behind its own key.

Touch this module when numbered rows below a shape are read as elements, layers or repeated prints.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_LONGEST = 1 << 16  # characters of a line
_HEAD = re.compile(
    r"\s{0,16}[^\d\s\[\](){}|][^=\[\](){}|]{0,60}?[\s:,]{0,3}(?:shape|size|dims)?[\s:=]{0,3}"
    r"[\[(<]?\s?(\d{1,6})\s?(?:x|×|,|by)\s?(\d{1,7})\s?[\])>]?\s{0,4}:?\s{0,4}",
    re.IGNORECASE,
)
_ROW = re.compile(
    r"(\s{0,16})(?:row\s?)?[\[(#]?\s{0,6}(\d{1,6})\s{0,3}[\])]?\s{0,3}[:|=]?\s{0,6}([\[({].{1,65000}[\])}]|-?\d.{1,65000})\s*"
)
_NUMBER = re.compile(r"(?<![\w.])[-+\u2212]?\d{1,20}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,4})?(?![\w.]*\w)")
_DECIMAL = re.compile(r"\d\.\d|\de[-+]\d")
_IDS = re.compile(
    r"\W{0,6}(?:[a-z]{1,12}[ _:]{1,2}){0,3}?(?:prompt|input|tokens?|ids)\b[^\d\n]{0,24}"
    r"(\d{1,7}(?:[\s,;]{1,4}\d{1,7}){1,4000})\W{0,4}",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _Row:
    indent: str
    number: int
    shown: str


def with_matrix_rows_named(text: str) -> str:
    """The text with the position, or the head and the position, before each row of such a matrix."""
    lines = text.split("\n")
    n = _n_tokens(lines)
    if n < 2:
        return text
    at = 0
    while at < len(lines):
        head = _HEAD.fullmatch(lines[at]) if len(lines[at]) < 200 else None
        rows = _rows(lines, at + 1, int(head[1])) if head else []
        if head and rows and (names := _names(rows, n, int(head[2]))):
            for i, (row, name) in enumerate(zip(rows, names, strict=True)):
                lines[at + 1 + i] = f"{row.indent}{name}: {_as_values(row.shown)}"
        at += 1 + len(rows)
    return "\n".join(lines)


def _n_tokens(lines: Sequence[str]) -> int:
    """The number of ids that the first list of tokens has."""
    for line in lines[:200]:
        if len(line) < 20000 and (m := _IDS.fullmatch(line)):
            return len(re.findall(r"\d{1,7}", m[1]))
    return 0


def _rows(lines: Sequence[str], at: int, count: int) -> list[_Row]:
    """The rows below a heading, if they are numbered from 0 and as many as it says."""
    found = list[_Row]()
    for line in lines[at : at + count]:
        m = _ROW.fullmatch(line) if len(line) < _LONGEST else None
        if m is None or int(m[2]) != len(found) or not _NUMBER.search(m[3]):
            return []
        found.append(_Row(m[1], int(m[2]), m[3]))
    return found if len(found) == count and any(_DECIMAL.search(row.shown) for row in found) else []


def _names(rows: Sequence[_Row], n: int, width: int) -> list[str]:
    if len(rows) == n:
        return [f"pos {row.number}" for row in rows]
    heads, rest = divmod(len(rows), n)
    if heads < 2 or rest or width != n:
        return []
    values = [[float(text.replace("\u2212", "-")) for text in _NUMBER.findall(row.shown)] for row in rows]
    stacked = _is_masked(values, [row.number % n for row in rows])
    beside = _is_masked(values, [row.number // heads for row in rows])
    if stacked == beside:
        return []
    return [
        f"head {row.number // n} pos {row.number % n}"
        if stacked
        else f"head {row.number % heads} pos {row.number // heads}"
        for row in rows
    ]


def _is_masked(values: Sequence[Sequence[float]], tokens: Sequence[int]) -> bool:
    return all(not any(row[token + 1 :]) for row, token in zip(values, tokens, strict=True))


def _as_values(shown: str) -> str:
    """The numbers with a decimal point: among values, `1` is one."""
    return _NUMBER.sub(lambda m: m[0] if re.search("[.eE]", m[0]) else f"{m[0]}.0", shown)
