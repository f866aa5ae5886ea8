"""One vector for a text out of a row for each of its tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

POOLED = "result_norm"  # what the head reads, and so the most that the model knows of a token
POOLINGS = ("mean", "last")


def pool(rows: NDArray[Any], pooling: str = "mean") -> NDArray[np.float32]:
    """The mean over the tokens, or the last one, of length 1."""
    vector = rows[-1].astype(np.float64) if pooling == "last" else rows.mean(axis=0, dtype=np.float64)
    unit: NDArray[np.float32] = (vector / max(float(np.linalg.norm(vector)), 1e-12)).astype(np.float32)
    return unit
