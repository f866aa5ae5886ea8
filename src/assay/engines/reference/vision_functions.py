"""The definition of the operations of vision towers: one textbook function each, as in `functions.py`.

The regrouping ones are also what every other engine's host runs in float32 (`engines/plan/segments.py`): sums go from
the first index to the last, each rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def take_rows(x: Array, idx: Array, more: Array | None = None, *, n: int, apart: bool) -> Array:
    """y[t] = the n rows x[idx[t,j]] one after the other; with `apart`, y[t, c·n + j] = x[idx[t,j], c].

    Indices from the number of rows of x on are rows of `more`.
    """
    rows = x.reshape(len(x), -1)
    if more is not None:
        rows = np.concatenate([rows, np.asarray(more).reshape(-1, rows.shape[1]).astype(x.dtype)])
    found = rows[idx.reshape(-1, n)]
    return np.ascontiguousarray(found.transpose(0, 2, 1) if apart else found).reshape(len(found), -1)


def mean_rows(x: Array, idx: Array) -> Array:
    """y[t] = Σ_j x[idx[t,j]] / n, added in the order of j."""
    rows = x.reshape(len(x), -1)
    total = np.zeros((len(idx), rows.shape[1]), x.dtype)
    for column in idx.T:
        total += rows[column]
    return np.asarray(total / x.dtype.type(idx.shape[1]))


def mix_rows(idx: Array, c: Array, W: Array) -> Array:
    """y[t] = Σ_j c[t,j] W[idx[t,j]], added in the order of j."""
    table = np.asarray(W)
    c = c.astype(table.dtype, copy=False)
    total = np.zeros((len(idx), table.shape[1]), table.dtype)
    for j in range(idx.shape[1]):
        total += c[:, j, None] * table[idx[:, j]]
    return total


def rope_given(x: Array, table: Array, *, n_head: int, mode: str, offset: int = 0) -> Array:
    """Each pair (a, b) of a head's values from `offset` on becomes (a cos θ - b sin θ, a sin θ + b cos θ).

    table[t] has the cosines of all pairs, then their sines. Pairs are (2i, 2i+1) in mode `norm`, (i, i + n) in `neox`.
    """
    pairs = table.shape[1] // 2
    cos, sin = (part.astype(x.dtype)[:, None, :] for part in (table[:, :pairs], table[:, pairs:]))
    heads = x.reshape(len(x), n_head, -1)
    out = heads.copy()
    if mode == "norm":
        first, second = slice(offset, offset + 2 * pairs, 2), slice(offset + 1, offset + 2 * pairs, 2)
    else:
        middle = offset + pairs
        first, second = slice(offset, middle), slice(middle, middle + pairs)
    a, b = heads[..., first], heads[..., second]
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out


FUNCTIONS: tuple[Callable[..., Any], ...] = (take_rows, mean_rows, mix_rows, rope_given)
