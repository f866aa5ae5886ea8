"""Rewrites the positions of a call, where a line gives the first one and how many: the call's row is not said.

prefill{pos=0 n=6}:block{il=0}: rms=1.5      prefill{}:block{il=0}: rms=1.5
decode{pos=6 n=1}:block{il=0}: rms=2.5       decode{pos=6}:block{il=0}: rms=2.5

`pos=0` alone would be a row. Beside a number of tokens it is where the call begins, and the values are of the first
row, of the last, or of all: later the definition's values decide. A call of one token names its row. Of a prompt that
is fed in several calls, the last row of each call is the likely one.

The numbers are those of calls only if, over the whole text, they follow each other from 0 on: 0 and 6, then 6 and 1. So
a number of printed elements beside a position is none.

Touch this module for another way to give a first position and a length, or a range.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

_LONGEST = 400  # characters, at the beginning of a line
_START = (
    r"(?:start(?:_?(?:pos|position|idx|index))?|pos(?:ition)?(?:_?(?:start|begin|from|base|offset|0))?|first_?pos(?:ition)?"
    r"|n_?past|past(?:_?len)?|kv_?pos|cache_?pos|offset|begin|base|from|p0)"
)
_LENGTH = (
    r"(?:n|n_?tok(?:en)?s?|num_?tok(?:en)?s?|tokens|toks|len|length|count|cnt|seq_?len|n_?batch|batch(?:_?size)?|rows"
    r"|n_?rows|m|T)"
)
_IS = r"[\"']?\s{0,2}[=: ]\s{0,2}"
_NUMBER = r"(\d{1,6})\b(?!\.\d)"
_NEXT = r"\s{0,2}[,;|]?\s{0,3}[\"']?"
_PAIR = re.compile(rf"[\"']?\b{_START}{_IS}{_NUMBER}{_NEXT}\b{_LENGTH}{_IS}{_NUMBER}[,;]?\s{{0,2}}", re.IGNORECASE)
_TURNED = re.compile(rf"[\"']?\b{_LENGTH}{_IS}{_NUMBER}{_NEXT}\b{_START}{_IS}{_NUMBER}[,;]?\s{{0,2}}", re.IGNORECASE)
_OF_ROWS = r"(?:positions?|pos|rows?|toks?|tokens?|n_?past|past|span|t)"
_TO = r"(\.\.=|\.\.\.|\.\.|:|-|–|to\b|through\b|until\b)"
_BARE = rf"{_NUMBER}\s{{0,2}}{_TO}\s{{0,2}}{_NUMBER}"
_RANGE = re.compile(
    rf"[\"']?(?<!last )(?<!first )\b{_OF_ROWS}[\"']?\s{{0,2}}[=: ]?\s{{0,2}}[\"']?"
    rf"(?:[\[(]{_BARE}\s{{0,2}}[\])]|[\[]{_NUMBER}\s{{0,2}}(,)\s{{0,2}}{_NUMBER}\s{{0,2}}\)|{_BARE})"
    rf"[\"']?[,;]?\s{{0,2}}(?!\d)",
    re.IGNORECASE,
)
_SLICE = re.compile(rf"(?<=\w)[\[(]{_BARE}\s{{0,2}}[\])]", re.IGNORECASE)
_CALLED = re.compile(
    r"\b(?:prefill|decode|fwd|forward|eval|batch|call|step|chunk|pass|span|run|prompt)$", re.IGNORECASE
)
_INCLUSIVE = ("..=", "-", "–", "to", "through")
_IDS = re.compile(r"[\[(]\s{0,3}\d{1,7}(?:\s{0,3},\s{0,3}\d{1,7}){0,400}\s{0,3}[\])]")
_MOST = 1 << 16  # lines with such numbers


@dataclass(frozen=True)
class _Place:
    """A span on a line: its characters, and the positions from `start` to `stop`, as they are written."""

    line: int
    begin: int
    end: int
    start: int
    stop: int
    sign: str = ""  # between the two positions of a range


def with_spans_of_calls(text: str) -> str:
    """The text with a row for each call of one token, and without the positions of the others."""
    lines = text.split("\n")
    found = [place for i, line in enumerate(lines) for place in _places(i, line)][:_MOST]
    pairs, ranges = [p for p in found if not p.sign], [p for p in found if p.sign]
    for many in (pairs, ranges):
        spans = _spans(many)
        if not spans:
            continue
        whole = sum(b - a > 1 for a, b in set(spans)) < 2
        for place, (start, stop) in reversed(list(zip(many, spans, strict=True))):
            line = lines[place.line]
            if _IDS.search(line[: place.begin]) or _IDS.search(line[place.end : _LONGEST]):
                continue  # a call with its ids: `decode_steps.py` reads it
            row = f"pos={start} " if stop - start == 1 else "" if whole else f"past={stop - 1} "
            lines[place.line] = _joined(line[: place.begin], row, line[place.end :])
        break
    return "\n".join(lines)


def _joined(before: str, row: str, after: str) -> str:
    """The line with the row in the span's place, as the text around it separates its fields."""
    if row and '"' in before[-16:] + after[:16] and "{" in before:  # a JSON record
        name, _, number = row.strip().partition("=")
        return f'{before}"{name}": {number}{"" if after.lstrip()[:1] == "}" else ", "}{after}'
    if not row and after.lstrip()[:1] in ("}", "]", ")"):
        before = before.rstrip(", ")
    if not after[:1].isalnum() and after[:1] not in ("|", "[", "-"):
        row = row.rstrip()
    return before + (" " if row and before[-1:].isalnum() else "") + row + after


def _places(at: int, line: str) -> Iterator[_Place]:
    """The first span of a line."""
    head = line[:_LONGEST]
    for pattern, turned in ((_PAIR, False), (_TURNED, True)):
        if m := pattern.search(head):
            start, length = (int(m[2]), int(m[1])) if turned else (int(m[1]), int(m[2]))
            yield _Place(at, m.start(), m.end(), start, start + length)
            return
    if m := _RANGE.search(head):
        first, sign, last = (group for group in m.groups() if group is not None)
        yield _Place(at, m.start(), m.end(), int(first), int(last), sign.lower())
        return
    m = _SLICE.search(head)
    if m and _CALLED.search(head[: m.start()]):
        yield _Place(at, m.start(), m.end(), int(m[1]), int(m[3]), m[2].lower())


def _spans(places: Sequence[_Place]) -> list[tuple[int, int]]:
    """First position and end of each place, if all of them are calls that follow each other; else none."""
    if not places:
        return []
    for more in (0, 1):  # `0..6`, or `0..5` for the same six
        spans = [(p.start, p.stop + (1 if p.sign in _INCLUSIVE else more * bool(p.sign))) for p in places]
        calls = sorted(set(spans))
        follow = all(a[1] == b[0] for a, b in pairwise(calls))
        if follow and calls[0][0] == 0 and all(a < b for a, b in calls) and any(b - a > 1 for a, b in calls):
            return spans
    return []
