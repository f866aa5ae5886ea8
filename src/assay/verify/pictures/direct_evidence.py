"""Evidence of values that are compared directly, without a noise model: pixels, and arrays of another shape."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.compare_nodes import NodeVerdict
from assay.verify.judge.evidence import Evidence
from assay.verify.judge.noise import Level

Array = NDArray[Any]


def direct_evidence(name: str, found: Array, right: Array) -> Evidence:
    """The evidence of values that are compared directly."""
    none = Level(np.zeros(0), np.zeros(0))
    if found.shape != right.shape:
        ratio = np.full(len(ARITHMETICS), np.inf)
        return Evidence(
            name, np.inf, 0.0, np.inf, tuple(found.shape), np.nan, np.nan, ratio, ratio, np.inf, None, True, (name,),
            none, none,
        )  # fmt: skip
    error = np.abs(found - right)
    at = np.unravel_index(int(np.nan_to_num(error, nan=np.inf).argmax()), error.shape)
    base = float(np.sum(right**2)) + 1e-30
    nmse = float(np.sum(error**2)) / base
    cosine = float(np.sum(found * right) / (np.sqrt(base * np.sum(found**2)) + 1e-30))
    ratio = np.zeros(len(ARITHMETICS))
    return Evidence(
        name, nmse, cosine, float(error.max()), tuple(map(int, at)), float(found[at]), float(right[at]), ratio, ratio,
        nmse, None, True, (name,), none, none,
    )  # fmt: skip


def misshapen(name: str, found: Array) -> NodeVerdict:
    """The verdict on an array whose shape is not the definition's."""
    evidence = direct_evidence(name, found, np.zeros((1,) * (found.ndim + 1)))
    return NodeVerdict(name, "wrong", True, None, evidence)
