"""How exactly a printed number is known: half a unit of its last digit.

A value printed as `1.50` lies between 1.495 and 1.505. The judge compares within that interval and no closer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Number:
    """A printed number: its value, and half a unit of its last printed digit."""

    text: str
    value: float
    half: float

    @property
    def whole(self) -> bool:
        """Printed like a count."""
        return self.text.lstrip("+-\u2212").isdecimal()


def half_unit(text: str) -> float:
    """Half a unit of the last printed digit."""
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** max(-320, min(int(exponent or 0) - decimals, 308))


def half_units(numbers: Sequence[Number]) -> tuple[float, ...]:
    """Half a unit of each number of one list, where the format left trailing zeros out.

    `%g` and shortest prints drop zeros at the end, rounding to so many decimals and printing the result does too.
    Where the numbers of a list have different numbers of decimals, the longest tells how many digits or decimals
    were printed; the coarser of the two readings is taken, so that no number is trusted further than it was printed.
    """
    plain = [n for n in numbers if n.half and "e" not in n.text]
    decimals = {len(n.text.partition(".")[2]) for n in plain}
    if len(plain) < 2 or len(decimals) < 2:
        return tuple(n.half for n in numbers)
    digits = max(len(n.text.replace(".", "").lstrip("+-0")) for n in plain)
    fixed = 0.5 * 10.0 ** -max(decimals)
    found = []
    for n in numbers:
        if not n.half or "e" in n.text:
            found.append(n.half)
            continue
        lead = math.floor(math.log10(abs(n.value))) + 1 if n.value else -max(decimals) + digits
        found.append(min(n.half, max(fixed, 0.5 * 10.0 ** (lead - digits))))
    return tuple(found)
