"""Recognises the length of a list in brackets before it, and leaves it out.

q[64]: 0.5 0.25 ... 1.5        q: 0.5 0.25 ... 1.5
att_h0[1]: 1.000000            att_h0: [1.000000]
att_h0[2]: 0.25 0.75           att_h0: 0.25 0.75
[run] prompt (4): 1, 9, 7, 2   [run] prompt: 1, 9, 7, 2

The number may as well be an element, a layer or a row. It is a length if no list of the log has more values than its
number says, and the number is that of the values in several lists, or differs from name to name and from no line to the
next of a name, where the middle of the lists is left out. Of ids, one list with as many values is enough.

Touch this module when a length behind a name is taken for an index.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_LONGEST = 1 << 16  # characters of a line
_FEWEST = 3  # lists whose values are as many as their numbers say
_NAMES = 3  # names with a number of their own
_NUMBER = r"[-+\u2212]?(?>\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][-+]?\d{1,4})?"
_COUNTED = re.compile(
    r"([^\[\](){}]{0,120}?\b([A-Za-z]\w{0,40}))\s?[\[(](\d{1,7})[\])](\s{0,4}[:=]?\s{0,8})"
    rf"([\[({{]?\s{{0,8}}((?:(?:{_NUMBER}|\.{{2,3}}|…)[\s,;]*+){{1,20000}})[\])}}]?)\s*"
)
_IDS = re.compile(
    r"(.{0,120}?\b(?:prompt|input|inputs|tokens|token|ids)(?:[ _]ids)?)"
    r"\s?[\[(](\d{1,7})(?: (?:tokens|ids))?[\])](\s{0,4}[:=]\s{0,8})"
    r"([\[({]?\s{0,8}((?:\d{1,8}[\s,;]*+){2,20000})[\])}]?)\s*",
    re.IGNORECASE,
)
_PARTS = {"prefix", "suffix", "take", "head", "tail", "first", "last", "top", "slice", "array", "vec", "end", "begin"}
_DOTS = re.compile(r"\.\.|…")
_DECIMAL = re.compile(r"\d\.\d|\de[-+]\d")


@dataclass(frozen=True)
class _CountedList:
    """A line with a number in brackets behind a name, and a list."""

    at: int  # of the line
    head: str
    name: str
    number: int
    sign: str
    shown: str
    values: int
    cut: bool  # the middle is left out


def without_lengths(text: str) -> str:
    """The text without the lengths of lists, where it is certain that the numbers are lengths."""
    lines = [_ids_alone(line) for line in text.split("\n")]
    text = "\n".join(lines)
    found = [one for at, line in enumerate(lines) if (one := _counted(at, line)) is not None]
    if not _are_lengths(found):
        return text
    for one in found:
        shown = one.shown if one.values > 1 or one.shown[:1] in "[({" else f"[{one.shown.strip()}]"
        lines[one.at] = f"{one.head}{one.sign if one.sign.strip() else ': '}{shown}"
    return "\n".join(lines)


def _ids_alone(line: str) -> str:
    m = _IDS.fullmatch(line) if len(line) < _LONGEST and not _DECIMAL.search(line) else None
    counted = m is not None and int(m[2]) == len(re.findall(r"\d+", m[5]))
    return f"{m[1]}{m[3]}{m[4]}" if m is not None and counted else line


def _counted(at: int, line: str) -> _CountedList | None:
    m = _COUNTED.fullmatch(line) if len(line) < _LONGEST and _DECIMAL.search(line) else None
    if m is None or not _DECIMAL.search(m[5]) or _DECIMAL.search(m[1]) or m[2].lower() in _PARTS:
        return None  # last[5]: the length of a part, which says where the values stand
    values = [part for part in re.split(r"[\s,;]+", m[6].strip()) if part and not _DOTS.fullmatch(part)]
    return _CountedList(at, m[1], m[2], int(m[3]), m[4], m[5], len(values), bool(re.search(r"(?<!\d)\.\.|…", m[6])))


def _are_lengths(found: Sequence[_CountedList]) -> bool:
    if any(one.values > one.number or (one.cut and one.values == one.number) for one in found):
        return False
    if sum(1 for one in found if one.values == one.number > 1) >= _FEWEST:
        return True
    numbers: dict[str, set[int]] = {}
    for one in found:
        if one.cut:
            numbers.setdefault(one.name, set()).add(one.number)
    own = len({min(of) for of in numbers.values()}) > 1 and all(len(of) == 1 for of in numbers.values())
    return len(numbers) >= _NAMES and own
