"""Puts the weights of chosen experts on a line of their own, so that the line's other values keep their name.

pos 0  gate_logits -4.4 2.5  -> e6*0.386  e2*0.336       pos 0  gate_logits -4.4 2.5
                                                         pos 0  expert weights: [0.386, 0.336]

Touch this module for another way of printing an expert beside its weight.
"""

from __future__ import annotations

import re

_LONGEST = 2000  # characters of a line
_CHOSEN = re.compile(
    r"(?:->|→|=>|:|\|)?\s{0,4}"
    r"((?:\b(?:e|exp|expert)[ _#]?\d{1,4}\s?[*x×:=@(]\s?\d?\.\d{1,12}\)?[,;+]?\s{0,8}){2,64})$",
    re.IGNORECASE,
)
_WEIGHT = re.compile(r"\d?\.\d{1,12}")
_PLACE = re.compile(
    r"\s{0,16}(?:(?:layer|blk|block|l|pos|position|tok|token|row|t)[ _=#]?\d{1,6}[:,|]?\s{1,4}){1,3}", re.I
)


def with_expert_lists(text: str) -> str:
    """The text with such lines as two."""
    out = list[str]()
    for line in text.split("\n"):
        m = _CHOSEN.search(line) if len(line) < _LONGEST else None
        if m is None:
            out.append(line)
            continue
        place = _PLACE.match(line)
        out += [line[: m.start()].rstrip()] if line[: m.start()].strip() else []
        out.append(f"{place[0] if place else ''}expert weights: [{', '.join(_WEIGHT.findall(m[1]))}]")
    return "\n".join(out)
