"""Puts the weights of chosen experts on a line of their own, so that the line's other values keep their name.

pos 0  gate_logits -4.4 2.5  -> e6*0.386  e2*0.336       pos 0  gate_logits -4.4 2.5
                                                         pos 0  expert weights: [0.386, 0.336]

Touch this module for another way of printing an expert beside its weight.
"""

from __future__ import annotations

import re

_LONGEST = 2000  # characters of a line
_EXPERT = re.compile(r"\b(?:e|exp|expert)[ _#]?\d{1,4}\s?[*x×:=@(]\s?(\d?\.\d{1,12})\)?[,;+]?[ \t]{0,8}", re.IGNORECASE)
_ARROWS = "->→=:| \t"  # between the values and the experts
_PLACE = re.compile(
    r"\s{0,16}(?:(?:layer|blk|block|l|pos|position|tok|token|row|t)[ _=#]?\d{1,6}[:,|]?\s{1,4}){1,3}", re.I
)


def with_expert_lists(text: str) -> str:
    """The text with such lines as two."""
    if _EXPERT.search(text) is None:
        return text
    out = list[str]()
    for line in text.split("\n"):
        chosen = _chosen(line) if len(line) < _LONGEST else []
        if len(chosen) < 2:
            out.append(line)
            continue
        before, place = line[: chosen[0].start()].rstrip(_ARROWS), _PLACE.match(line)
        out += [before] if before else []
        out.append(f"{place[0] if place else ''}expert weights: [{', '.join(m[1] for m in chosen)}]")
    return "\n".join(out)


def _chosen(line: str) -> list[re.Match[str]]:
    """The experts beside each other at the end of a line."""
    end, found = len(line.rstrip()), list[re.Match[str]]()
    for m in reversed(list(_EXPERT.finditer(line))):
        if m.end() < end:
            break
        end = m.start()
        found.append(m)
    return found[::-1]
