"""Splits lines of numbers whose names have the layer as an index, below or behind words that name a statistic.

norms at last token: h_embd=7.5 mid[0]=7.25 out[0]=10.5 mid[1]=12.5

    norms at last token: h_embd norm=7.5
    norms at last token: layer 0 mid norm=7.25
    norms at last token: layer 0 out norm=10.5
    norms at last token: layer 1 mid norm=12.5

`out[0]` alone is the first element of a list. A norm has no elements: so the index counts layers, if several names
share it, or if the words name the row. Words such as "norms per token" say that it counts tokens; such lines stay.

Touch this module for another way to write the index behind a name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from assay.verify.dumps.naming.layer_and_row import layer_of, row_of
from assay.verify.dumps.naming.phrases import split_words
from assay.verify.dumps.naming.statistic_names import statistic_of_each_token
from assay.verify.dumps.printed.titles import title_statistic

_LONGEST = 4000  # characters of a line
_NAME = r"[\"']?([A-Za-z_][A-Za-z_0-9]{0,30}?)(?:[\[(#@]\s?(\d{1,3})\s?[\])]?|[._](\d{1,3}))?[\"']?"
_NUMBERED = re.compile(
    rf"{_NAME}(?:\s{{0,3}}[=:]\s{{0,3}}|\s{{1,24}})(-?\d{{1,9}}\.\d{{1,12}}(?:e[-+]?\d{{1,3}})?)(?![\w.])"
)
_BETWEEN = re.compile(r"[\s,;|]{0,24}")
_CLOSED = re.compile(r"[\s,;|})\]]{0,24}")
_INDEX = re.compile(r"[A-Za-z][\[(#@._]\s?\d{1,3}\b")
_DECIMAL = re.compile(r"\d\.\d")
_STATISTICS = ("norm", "rms", "std", "mean", "absmax", "absmean", "sum", "abssum", "min", "max")
Pair = tuple[str, int | None, str]  # name, index, number


def with_numbered_names(text: str) -> str:
    """The text with one number a line, where an index behind the names counts layers."""
    if not _INDEX.search(text):
        return text
    lines = text.split("\n")
    out = list[str]()
    at, title = 0, ""
    while at < len(lines):
        head, pairs = _pairs(lines[at])
        if not pairs:
            title = (
                lines[at]
                if lines[at].strip() and not _DECIMAL.search(lines[at])
                else ""
                if lines[at].strip()
                else title
            )
            out.append(lines[at])
            at += 1
            continue
        block, end = [pairs], at + 1
        while end < len(lines) and (more := _pairs(lines[end]))[1] and not more[0]:
            block.append(more[1])
            end += 1
        said = (head or title).strip()[:200]
        kind = _kind(said)
        every = [pair for several in block for pair in several]
        out += [_line(said, kind, pair) for pair in every] if kind and _count_layers(said, every) else lines[at:end]
        at = end
    return "\n".join(out)


def _kind(said: str) -> str:
    """The statistic that the words name, if they are about no single layer and no list of tokens."""
    words = split_words(said.split())
    kind = title_statistic([said]) if said else ""
    other = statistic_of_each_token(words) or layer_of(words)[0] is not None
    return kind if kind in _STATISTICS and not other else ""


def _count_layers(said: str, pairs: Sequence[Pair]) -> bool:
    names: dict[str, list[int]] = {}
    for name, index, _ in pairs:
        if index is not None:
            names.setdefault(name, []).append(index)
    from_zero = all(found == [*range(found[0], found[0] + len(found))] and found[0] < 2 for found in names.values())
    shared = sum(1 for found in names.values() if found[0] == min(map(min, names.values()))) > 1 if names else False
    row = row_of(split_words(said.split()), set()) is not None
    return from_zero and (shared or (row and any(len(found) > 1 for found in names.values())))


def _line(said: str, kind: str, pair: Pair) -> str:
    name, index, number = pair
    return f"{said.rstrip(' :=')}: {'' if index is None else f'layer {index} '}{name} {kind}={number}"


def _pairs(line: str) -> tuple[str, list[Pair]]:
    """The words before the first name and number, and all names and numbers; none where something else is between."""
    m = _NUMBERED.search(line) if len(line) < _LONGEST and _DECIMAL.search(line) else None
    if m is None:
        return "", []
    head = line[: m.start()].strip().rstrip("{[(").rstrip(" :=")
    if _DECIMAL.search(head):
        return "", []
    pairs = list[Pair]()
    at = m.start()
    while m := _NUMBERED.match(line, at):
        index = m[2] or m[3]
        pairs.append((m[1], None if index is None else int(index), m[4]))
        between = _BETWEEN.match(line, m.end())
        at = m.end() if between is None else between.end()
    return (head, pairs) if _CLOSED.fullmatch(line, at) else ("", [])
