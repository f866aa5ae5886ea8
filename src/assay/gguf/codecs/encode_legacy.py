"""Encoders of the 32-element types, and the packing that all encoders share.

Without weights they follow ggml's reference quantiser: the scale comes from the extreme value, the quants from
rounding. With weights, scale and minimum are fitted (`fit`).
"""

from __future__ import annotations

import numpy as np

from assay.errors import AssayError

from .codec import Bytes, Encoder, Floats, Integers
from .fit import columns, fit_affine, fit_symmetric, reciprocal, rows, steps, whole


def half_bytes(values: Floats) -> Bytes:
    """float32 `[n, k]` as IEEE halves, `uint8[n, 2k]`; a scale beyond the largest half is an error."""
    halves = values.astype("<f2")
    if not np.isfinite(halves).all():
        largest = float(np.abs(values).max())
        raise AssayError(f"scale {largest:g}: too large for a half (at most 65504); keep this tensor F32 or BF16")
    return np.ascontiguousarray(halves).view(np.uint8)


def pack_low_high(q: Integers, run: int) -> Bytes:
    """Inverse of `base.low_high`: `[n, 2k] -> [n, k]`."""
    pairs = q.reshape(len(q), -1, 2, run)
    return (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(len(q), -1).astype(np.uint8, copy=False)


def _from_extreme(x: Floats, w: Floats | None, levels: int) -> tuple[Floats, Bytes]:
    """Scale so that the value farthest from zero maps to -levels; quants 0 .. 2 * levels - 1."""
    if w is not None:
        return _fitted(x, w, levels)
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1)
    d = extreme / np.float32(-levels)
    q = np.minimum(x * reciprocal(d) + np.float32(levels + 0.5), 2 * levels - 1)
    return d, q.astype(np.uint8)


def _fitted(x: Floats, w: Floats, levels: int) -> tuple[Floats, Bytes]:
    """The scale with the least weighted error, of either sign."""
    groups, weights, snap = columns(x, 32), columns(w, 32), whole(-levels, levels - 1)
    starts = (*steps(levels * 0.82, levels * 1.1, 21), *steps(-levels * 0.82, -levels * 1.02, 15))
    d = fit_symmetric(groups, weights, snap, starts).astype(np.float16).astype(np.float32)
    q = rows(snap(groups * reciprocal(d), weights), len(x)) + np.float32(levels)
    return d[:, None], q.astype(np.uint8)


def _from_range(x: Floats, w: Floats | None, levels: int) -> tuple[Floats, Floats, Bytes]:
    """Scale and minimum so that the range of the block becomes 0 .. levels."""
    if w is not None:
        return _fitted_range(x, w, levels)
    low = x.min(axis=1, keepdims=True)
    d = (x.max(axis=1, keepdims=True) - low) / np.float32(levels)
    q = np.minimum((x - low) * reciprocal(d) + np.float32(0.5), levels)
    return d, low, q.astype(np.uint8)


def _fitted_range(x: Floats, w: Floats, levels: int) -> tuple[Floats, Floats, Bytes]:
    """Scale and minimum with the least weighted error."""
    groups, weights, snap = columns(x, 32), columns(w, 32), whole(0, levels)
    found = fit_affine(groups, weights, levels, steps(levels * 0.85, levels * 1.08, 21), free=True)
    d, m = (part.astype(np.float16).astype(np.float32) for part in found)
    q = rows(snap((groups + m) * reciprocal(d), weights), len(x))
    return d[:, None], -m[:, None], q.astype(np.uint8)


def _fifth_bits(q: Bytes) -> Bytes:
    return np.packbits(q >> 4, axis=1, bitorder="little")


def encode_q4_0(x: Floats, w: Floats | None) -> Bytes:
    d, q = _from_extreme(x, w, 8)
    return np.hstack([half_bytes(d), pack_low_high(q, 16)])


def encode_q4_1(x: Floats, w: Floats | None) -> Bytes:
    d, m, q = _from_range(x, w, 15)
    return np.hstack([half_bytes(d), half_bytes(m), pack_low_high(q, 16)])


def encode_q5_0(x: Floats, w: Floats | None) -> Bytes:
    d, q = _from_extreme(x, w, 16)
    return np.hstack([half_bytes(d), _fifth_bits(q), pack_low_high(q & 15, 16)])


def encode_q5_1(x: Floats, w: Floats | None) -> Bytes:
    d, m, q = _from_range(x, w, 31)
    return np.hstack([half_bytes(d), half_bytes(m), _fifth_bits(q), pack_low_high(q & 15, 16)])


def encode_q8_0(x: Floats, w: Floats | None) -> Bytes:
    """Ties round away from zero, as in C's roundf. Weights are ignored, because the error is small."""
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * reciprocal(d)
    whole = np.trunc(scaled)
    q = (whole + np.trunc(2 * (scaled - whole))).astype(np.int8)
    return np.hstack([half_bytes(d), q.view(np.uint8)])


ENCODERS: dict[str, Encoder] = {
    "Q4_0": encode_q4_0,
    "Q4_1": encode_q4_1,
    "Q5_0": encode_q5_0,
    "Q5_1": encode_q5_1,
    "Q8_0": encode_q8_0,
}
