"""Reads a printed comparison whose lines begin with `-` and `+`: one of the two signs marks the engine's own values.

A legend decides ("expected = -, got = +"). Without one, `+` is what the engine gave, as test runners print it.
"""

from __future__ import annotations

import re
from itertools import pairwise

_SIGNED = re.compile(r"([-+])( {1,8}\S.{0,100000})")
_OWN = r"(?:got|actual|found|ours?|mine|engine|result|output|computed|new)"
_LEGEND = (re.compile(rf"\b{_OWN}\s{{0,3}}[=:]?\s{{0,3}}[\"'(`]?([-+])(?![\d.])", re.I),
           re.compile(rf"(?<![\w.])([-+])\s{{0,3}}[=:]?\s{{0,3}}{_OWN}\b", re.I))  # fmt: skip
_PAIRS = 3  # neighbouring lines with both signs make a text a comparison


def own_lines(text: str) -> tuple[str, str]:
    """The text with the engine's own lines alone, and a note; unchanged if it is no comparison by signs."""
    lines = text.splitlines()
    signs = [m[1] if (m := _SIGNED.fullmatch(line)) and any(c.isdigit() for c in m[2]) else "" for line in lines]
    pairs = sum(a + b == "-+" for a, b in pairwise(signs))
    if pairs < _PAIRS or abs(signs.count("-") - signs.count("+")) > pairs:
        return text, ""
    said = next((m[1] for legend in _LEGEND for line in lines if not _SIGNED.fullmatch(line)
                 and (m := legend.search(line[:400]))), "+")  # fmt: skip
    kept = [
        " " + line[1:] if sign == said else line for line, sign in zip(lines, signs, strict=True) if sign in ("", said)
    ]
    return "\n".join(kept) + "\n", f"of lines that begin with - and +, those with {said} are read as the engine's own"
