"""Changes of a tensor's values on the way from a folder to a file: reordered, folded, reshaped or cut."""

from __future__ import annotations

import math

import numpy as np

from assay.convert.architecture_row import Array, Shape, TensorChange
from assay.errors import AssayError


def paired(x: Array, n_head: int) -> Array:
    """Reorder the rows of each head for RoPE: from halves (pairs i and i + d/2) to neighbours (pairs 2i and 2i + 1)."""
    if len(x) % (2 * n_head):
        raise AssayError(f"{len(x)} rows cannot be divided into halves of {n_head} heads; config.json is wrong")
    return x.reshape(n_head, 2, len(x) // n_head // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


NEGATIVE_EXP = TensorChange(lambda x: -np.exp(x))  # A = -exp(A_log), in float32


SQUEEZED = TensorChange(  # without the middle axis of a convolution
    lambda x: x.reshape(x.shape[0], x.shape[-1]), lambda s: (s[0], s[-1]) if len(s) > 2 else s
)
FLAT = TensorChange(lambda x: x.reshape(-1), lambda s: (math.prod(s),))
TRANSPOSED = TensorChange(lambda x: np.swapaxes(x, -1, -2), lambda s: (*s[:-2], s[-1], s[-2]))


def scaled(factor: float) -> TensorChange:
    return TensorChange(lambda x: x * np.float32(factor))


def rows_scaled(factors: list[tuple[int, float]]) -> TensorChange:
    """Runs of rows, each times its factor."""
    sizes = [n for n, _ in factors]

    def values(x: Array) -> Array:
        if sum(sizes) != len(x) or min(sizes) < 0:
            raise ValueError(f"{len(x)} rows for parts of {sizes}")
        return x * np.repeat(np.array([factor for _, factor in factors], np.float32), sizes)[:, None]

    return TensorChange(values)


def half_of(which: int) -> TensorChange:
    """The first or second half of the rows of every matrix."""

    def values(x: Array) -> Array:
        n = x.shape[-2] // 2
        return x[..., which * n : (which + 1) * n, :]

    return TensorChange(values, lambda s: (*s[:-2], s[-2] // 2, s[-1]))


def padded_rows(n: int) -> TensorChange:
    """Rows of zeros up to n, for a few tokens without an embedding."""

    def shape(s: Shape) -> Shape:
        if n > 2 * s[0]:
            raise ValueError(f"{s[0]} rows for {n}")
        return (max(n, s[0]), *s[1:])

    return TensorChange(lambda x: np.pad(x, ((0, shape(x.shape)[0] - len(x)), (0, 0))), shape)


def tiled(x: Array, groups: int, each: int, width: int, axis: int = 0) -> Array:
    """Reorder heads, from runs that share a key head to tiles: head h then uses key head h mod groups."""
    shape = list(x.shape)
    x = x.reshape(*shape[:axis], groups, each, width, *shape[axis + 1 :])
    return x.swapaxes(axis, axis + 1).reshape(shape)


def kv_b(n_head: int, nope: int, value: int, keys: bool) -> TensorChange:
    """MLA's matrix from latent to keys and values, cut by heads. Keys are transposed, because queries absorb them."""

    def values(x: Array) -> Array:
        both = x.reshape(n_head, nope + value, x.shape[-1])
        return both[:, :nope].swapaxes(1, 2) if keys else both[:, nope:]

    return TensorChange(values, lambda s: (n_head, s[-1], nope) if keys else (n_head, value, s[-1]))


def halves(source: str, name: str) -> TensorChange | None:
    """Gate and up of a matrix that has both, gate first."""
    if source.endswith(("gate_up_proj", "input_linear.weight")):
        return half_of(0 if "_gate" in name else 1)
    return None
