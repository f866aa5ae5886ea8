"""How sure a diagnosis may be: the one place where a fit becomes a confidence.

The hypotheses are the rows of the catalogue, the descriptions of the grammar, and "something else". Their prior is the
length of their description: log2 of the number of hypotheses tried, and ten bits more for a solved number. The
likelihood is the number of bits by which the hypothesis shortens the description of the observed values, with the
engine's honest noise as the unit. "Something else" shortens nothing: it has 0 bits.

Rivals are hypotheses of comparable length that fit as well. They share the probability, so a cause with one rival is
never above one half. Touch this module to change how sure a verdict is; `bench/calibration.py` grades it.
"""

from __future__ import annotations

import numpy as np

from assay.verify.thresholds import A_GUESS

SURE = 0.99  # the highest confidence: a mistake outside the catalogue may give the same values
PARAMETER_BITS = 10.0  # of a solved number


def posterior(bits: float, *, rivals: int = 0, leaves_much: bool = False, most: float = SURE) -> float:
    """The probability of a hypothesis that gains `bits` over "something else", and that has rivals.

    `leaves_much`: more is left than the noise, so it is a guess at best. `most` is a bound from elsewhere: the share of
    the wrong nodes that it explains, or a search that was cut short.
    """
    alone = 1 / (1 + 2.0 ** -float(np.clip(bits, -40, 40)))
    return float(min(SURE, most, A_GUESS if leaves_much else SURE, alone)) / (1 + rivals)


def gained(described: float, tried: int, fitted: bool, nodes: int = 1, lost: float = 0.0) -> float:
    """The bits of a hypothesis: those by which the values are described shorter, less the length of its description.

    Every further node that it explains is worth a bit. The bits `lost` at right nodes are subtracted.
    """
    return float(described - np.log2(max(tried, 1)) - PARAMETER_BITS * fitted + nodes - 1 - lost)
