"""Recognises headings and bare cells by how their numbers count, and names what they leave to the reader.

PROMPT pos=0 id=3            == pos 0 id 3 ==            a line that names a position and nothing else
tok 1 (id 144)               == pos 1 id 144 ==
pos 2                        == pos 2 ==

# layer: rms after mixer | rms after ffn | [first three]      a legend for the lines below
  0: 1.25 | 2.5 | [0.5, 0.25, 1.5]                            layer 0: rms after mixer 1.25 | rms after ffn 2.5 | …

Positions must count from 0 by one, with decimal values below each. The cells of a legend must be as many as those of
each line, and the numbers before them must count by one.

Touch this module when the layout of a text, and no word of a line, says what a number is.
"""

from __future__ import annotations

import re
from itertools import pairwise

_LONGEST = 200  # characters of a heading
_FEWEST = 2  # headings
_DECIMAL = re.compile(r"\d\.\d|\de[-+]\d")
_POSITION = re.compile(
    r"^\W{0,8}(?:(?:prompt|prefill|decode|decoding|gen|generate|step|feed)\b\W{0,3})?"
    r"(?:pos|position|tok|token|t|row)\s{0,3}[#:=]?\s{0,3}(\d{1,6})"
    r"(?:\W{0,5}(?:(?:token[ _]?)?id|tok|token)?\s{0,2}[#:=]{0,2}\s{0,3}(\d{1,7})\b)?"
    r"(?:\s{0,3}(?:\"[^\"]{0,40}\"|'[^']{0,40}'))?[^\w.]{0,12}$",
    re.IGNORECASE,
)
_LEGEND = re.compile(r"^\s{0,8}(?:#|//|--|;|%)\W{0,4}(?:layer|blk|block|il?|l)\b\s{0,4}[:=]\s{0,4}(\S.{0,400})$", re.I)
_CELLS = re.compile(r"^(\s{0,16})(\d{1,3})\s{0,4}:\s{0,8}(\S.{0,4000})$")
_SEPARATORS = ("|", ";", ",")
_BRACKETS = "[](){}<> "


def with_positions_marked(text: str) -> str:
    """The text with such headings and cells rewritten."""
    return "\n".join(_cells_named(_headings_marked(text.split("\n"))))


def _headings_marked(lines: list[str]) -> list[str]:
    found = [(i, m) for i, line in enumerate(lines) if len(line) < _LONGEST and (m := _POSITION.match(line))]
    numbers = [int(m[1]) for _, m in found]
    if len(found) < _FEWEST or numbers[0] or any(b != a + 1 for a, b in pairwise(numbers)):
        return lines
    ends = [i for i, _ in found[1:]] + [len(lines)]
    for (i, _), end in zip(found, ends, strict=True):
        if not any(_DECIMAL.search(line[:_LONGEST]) for line in lines[i + 1 : end]):
            return lines
    lines = list(lines)
    for i, m in found:
        lines[i] = f"== pos {m[1]}{f' id {m[2]}' if m[2] else ''} =="
    return lines


def _cells_named(lines: list[str]) -> list[str]:
    """The lines with the names of a legend before their cells."""
    out, names, separator, last = list[str](), list[str](), "", -1
    for line in lines:
        if m := _LEGEND.match(line):
            separator = next((s for s in _SEPARATORS if s in m[1]), "")
            names = [name.strip(_BRACKETS) for name in m[1].split(separator)] if separator else []
            last = -1
        elif names and (m := _CELLS.match(line)) and int(m[2]) in (0, last + 1):
            cells = _split(m[3], separator)
            if len(cells) == len(names):
                last = int(m[2])
                named = (f"{name} {cell.strip()}" for name, cell in zip(names, cells, strict=True))
                line = f"{m[1]}layer {m[2]}: {f' {separator} '.join(named)}"
        out.append(line)
    return out


def _split(text: str, separator: str) -> list[str]:
    """The cells of a line; a comma inside brackets separates nothing."""
    depth, cells = 0, [""]
    for c in text:
        depth += (c in "[({") - (c in "])}")
        if c == separator and depth <= 0:
            cells.append("")
        else:
            cells[-1] += c
    return cells
