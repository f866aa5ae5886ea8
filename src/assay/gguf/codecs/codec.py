"""The type of a block codec, and bit operations that codecs share.

A quantised tensor is a sequence of fixed-size blocks. A block is decoded in two separate steps:

* `unpack` turns the bytes of `n` blocks into named *fields*: scales as float32 `[n, 1]`, packed
  sub-scales and quants as plain integers `[n, ...]` **in element order**;
* `combine` is the formula: it writes `float32[n, block_size]` from those fields.

So a decoder with a known mistake is a small variant: another `unpack` (nibbles in the wrong order) or another
`combine` (a forgotten zero point), made with `dataclasses.replace`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.gguf.types import GGMLType

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Integers = NDArray[np.integer]
Fields = dict[str, NDArray[Any]]
Encoder = Callable[[Floats, Floats | None], Bytes]
"""float32[n, block_size], and a weight per element for its squared error (None: 1) -> uint8[n, type_size]"""


@dataclass(frozen=True)
class Codec:
    """One ggml block type: how its bytes are laid out, and its formula."""

    type: GGMLType
    unpack: Callable[[Bytes], Fields]  # uint8[n, type_size] -> fields
    combine: Callable[[Fields, Floats], None]  # fields, out float32[n, block_size]


def half(blocks: Bytes, offset: int) -> Floats:
    """The IEEE half at `offset` of every block, as float32 `[n, 1]`: exact, subnormals included."""
    return blocks[:, offset : offset + 2].view("<f2").astype(np.float32)


def low_high(qs: Bytes, run: int) -> Bytes:
    """4-bit quants: every `run` bytes give `run` low nibbles, then `run` high ones. `[n, k] -> [n, 2k]`."""
    n, k = qs.shape
    q = np.empty((n, k // run, 2, run), np.uint8)
    pairs = qs.reshape(n, k // run, run)
    np.bitwise_and(pairs, 15, out=q[:, :, 0])
    np.right_shift(pairs, 4, out=q[:, :, 1])
    return q.reshape(n, 2 * k)


def crumbs(qs: Bytes, run: int) -> Bytes:
    """2-bit quants: every `run` bytes give four runs, from bits 0-1, 2-3, 4-5, 6-7. `[n, k] -> [n, 4k]`."""
    n, k = qs.shape
    q = np.empty((n, k // run, 4, run), np.uint8)
    packed = qs.reshape(n, k // run, run)
    for i in range(4):
        np.right_shift(packed, 2 * i, out=q[:, :, i])
    q &= 3
    return q.reshape(n, 4 * k)


def scale_groups(out: Floats, scale: Floats, offset: Floats | None = None) -> None:
    """In place `out = out * scale (- offset)`, where `scale[n, g]` covers `block_size / g` elements each."""
    groups = out.reshape(*scale.shape, -1)
    groups *= scale[..., None]
    if offset is not None:
        groups -= offset[..., None]
