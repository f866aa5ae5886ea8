"""Alternatives with a number, such as the base of RoPE: which number fits the answers best?

The usual values are tried first, elsewhere. This search begins with their losses. It narrows the values around the
smallest one by the golden section, on a logarithmic scale, and assumes that the loss falls towards the right number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from assay.models import Model
from assay.verify.endpoint.alternatives import BASES, SCALES, Alternative, rope_base, rope_bases, rope_scales

GOLDEN = (math.sqrt(5) - 1) / 2
TRIALS, FIRST_TRIALS = 11, 4  # values of a search; without a gain after the first ones it ends
GAIN = 0.7  # of the smallest loss so far
DIGITS = 3  # of the number that is named


@dataclass(frozen=True)
class Numbered:
    """A family of alternatives with one positive number. `right` is the claim's own number, where it has one."""

    make: Callable[[float], Alternative | None]  # None: this number changes nothing
    usual: tuple[float, ...]
    low: float
    high: float
    right: float | None = None


def rope_numbers(model: Model) -> list[Numbered]:
    """The base and the scale of RoPE; none if the model has no RoPE."""
    own = rope_base(model)
    if not own:
        return []
    return [
        Numbered(lambda p: next(rope_bases(model, [p], "about "), None), BASES, 100.0, 1e8, own),
        Numbered(lambda p: next(rope_scales(model, [p], "about "), None), SCALES, 1 / 64, 64.0, 1.0),
    ]


def fitted(family: Numbered, losses: Mapping[float, float], loss: Callable[[Alternative], float]) -> Alternative | None:
    """The alternative with the number that fits best; None if no number is better than the known ones.

    `losses` has those of the usual values, and of the claim under its own number.
    """
    known = {p: v for p, v in losses.items() if math.isfinite(v) and p > 0}
    if not known:
        return None
    order, least = sorted(known), min(known, key=known.__getitem__)
    at = order.index(least)
    low = math.log(order[at - 1] if at else min(family.low, least))
    high = math.log(order[at + 1] if at + 1 < len(order) else max(family.high, least))
    best, best_loss = least, known[least]

    def tried(x: float) -> float:
        nonlocal best, best_loss
        p = float(f"{math.exp(x):.{DIGITS}g}")
        if p not in known:
            made = None if p == family.right else family.make(p)
            known[p] = math.inf if made is None else loss(made)
        if known[p] < best_loss:
            best, best_loss = p, known[p]
        return known[p]

    a, b = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_a, at_b = tried(a), tried(b)
    for trial in range(2, TRIALS):
        if trial == FIRST_TRIALS and best_loss > GAIN * losses[least]:
            break
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - GOLDEN * (high - low)
            at_a = tried(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + GOLDEN * (high - low)
            at_b = tried(b)
    return None if best in losses else family.make(best)
