"""Encoders of the K-quants: least squares for every group, then for the integers that carry its scale.

A group of 16 or 32 weights is fitted by `a * q + b` (or `a * q`). For given integers q the best a and b
are linear least squares; for given a and b the best q is rounding. So: try a few starting scales around
the one that just covers the range, solve for a and b each time, and keep the best. The error needs no
second pass: it follows from the sums. Then the scales of a block are themselves rounded, and q is rounded
once more for the scales that will be read back.

Everything works on groups as columns, `float32[group_size, groups]`: sums over a group are then whole-row
additions, which is what NumPy does fast.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .base import Bytes, Encoder, Floats, Integers
from .encode_legacy import half_bytes, pack_low_high, reciprocal

TINY = np.float32(1e-30)
SMALLEST_NORMAL = np.finfo(np.float16).smallest_normal


def pack_crumbs(q: Integers, run: int) -> Bytes:
    """Inverse of `base.crumbs`: `[n, 4k] -> [n, k]`."""
    parts = q.reshape(len(q), -1, 4, run)
    packed = parts[:, :, 0] | parts[:, :, 1] << 2 | parts[:, :, 2] << 4 | parts[:, :, 3] << 6
    return packed.reshape(len(q), -1).astype(np.uint8, copy=False)


def pack_planes(bits: Integers) -> Bytes:
    """Inverse of `kquants.bit_planes`: bit i of byte l from element 32 i + l. `[n, 256] -> [n, 32]`."""
    return np.packbits(bits.reshape(len(bits), 8, 32).astype(np.uint8, copy=False), axis=1, bitorder="little").reshape(
        len(bits), 32
    )


def pack_scales_and_mins(scales: Bytes, mins: Bytes) -> Bytes:
    """Inverse of `kquants.scales_and_mins`: twice `[n, 8] -> [n, 12]`."""
    low = scales[:, :4] | (scales[:, 4:] >> 4) << 6
    middle = mins[:, :4] | (mins[:, 4:] >> 4) << 6
    return np.hstack([low, middle, (scales[:, 4:] & 15) | (mins[:, 4:] & 15) << 4])


def columns(x: Floats, size: int) -> Floats:
    """Blocks `[n, 256]` as groups in columns, `[size, n * 256 / size]`."""
    return np.ascontiguousarray(x.reshape(-1, size).T)


def rows(q: Floats, n: int) -> Bytes:
    """Columns of quants back to blocks `uint8[n, 256]`."""
    return np.ascontiguousarray(q.astype(np.uint8).T).reshape(n, 256)


def fit_affine(x: Floats, levels: int, tries: Sequence[float]) -> tuple[Floats, Floats]:
    """Scale a >= 0 and minimum m >= 0 of every column, for x ~ a * q - m with q in 0 .. levels."""
    size = np.float32(len(x))
    low = np.minimum(x.min(axis=0), 0)
    span = x.max(axis=0) - low
    sum_x = x.sum(axis=0)
    shifted = x - low
    inverse_span = reciprocal(span)
    best_gain = np.full_like(low, -1)
    scale, minimum = np.zeros_like(low), -low
    q, product = np.empty_like(x), np.empty_like(x)
    for more in tries:
        np.multiply(shifted, inverse_span * np.float32(levels + more), out=q)
        np.rint(q, out=q)
        np.minimum(q, levels, out=q)
        sum_q = q.sum(axis=0)
        sum_xq = np.multiply(x, q, out=product).sum(axis=0)
        sum_qq = np.multiply(q, q, out=product).sum(axis=0)
        determinant = size * sum_qq - sum_q * sum_q
        a = (size * sum_xq - sum_x * sum_q) / np.maximum(determinant, TINY)
        b = (sum_x - a * sum_q) / size
        alone = (b > 0) | (determinant <= 0)  # no minimum, or one below zero: the best line through zero
        a = np.where(alone, sum_xq / np.maximum(sum_qq, TINY), a)
        b = np.where(alone, 0, b)
        gain = a * sum_xq + b * sum_x  # sum of squares that the fit explains
        better = (gain > best_gain) & (sum_qq > 0)
        np.copyto(best_gain, gain, where=better)
        np.copyto(scale, a, where=better)
        np.copyto(minimum, -b, where=better)
    return scale, minimum


def fit_symmetric(x: Floats, levels: int, tries: Sequence[float]) -> Floats:
    """Scale a (of either sign) of every column, for x ~ a * q with q in -levels .. levels - 1."""
    extreme: Floats = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    inverse = -reciprocal(extreme)
    best_gain, scale = np.zeros_like(extreme), np.zeros_like(extreme)
    q, product = np.empty_like(x), np.empty_like(x)
    for more in tries:
        np.multiply(x, inverse * np.float32(levels + more), out=q)
        np.rint(q, out=q)
        np.clip(q, -levels, levels - 1, out=q)
        sum_xq = np.multiply(x, q, out=product).sum(axis=0)
        sum_qq = np.maximum(np.multiply(q, q, out=product).sum(axis=0), TINY)
        a = sum_xq / sum_qq
        gain = a * sum_xq
        better = gain > best_gain
        np.copyto(best_gain, gain, where=better)
        np.copyto(scale, a, where=better)
    return scale


def covering_half(values: Floats) -> Bytes:
    """The nearest half; below the smallest normal one, the next away from zero.

    A subnormal half has few bits. Rounded down, the integers that multiply it would saturate, and the d of a
    Q6_K block is subnormal for all weights below 1/4.
    """
    nearest = values.astype(np.float16)
    away = np.nextafter(nearest, np.copysign(np.float16(np.inf), values).astype(np.float16))
    short = (np.abs(nearest) < np.abs(values)) & (np.abs(values) < SMALLEST_NORMAL)
    return half_bytes(np.where(short, away, nearest).astype(np.float32))


def read_back(halves: Bytes) -> Floats:
    """The scales as a decoder will see them."""
    return halves.view("<f2").astype(np.float32)


def encode_affine(x: Floats, size: int, levels: int, scale_levels: int, tries: Sequence[float]) -> list[Bytes]:
    """The parts of Q2_K, Q4_K and Q5_K: d, dmin (halves), scales, mins `[n, g]`, quants `[n, 256]`."""
    n = len(x)
    groups = columns(x, size)
    fitted = [part.reshape(n, -1) for part in fit_affine(groups, levels, tries)]
    halves, integers, seen = [], [], []
    for part in fitted:
        halves.append(covering_half(part.max(axis=1, keepdims=True) / np.float32(scale_levels)))
        d = read_back(halves[-1])
        integers.append(np.clip(np.rint(part * reciprocal(d)), 0, scale_levels).astype(np.uint8))
        seen.append((d * integers[-1]).reshape(-1))
    groups += seen[1]
    groups *= reciprocal(seen[0])
    q = np.clip(np.rint(groups, out=groups), 0, levels, out=groups)
    return [*halves, *integers, rows(q, n)]


def encode_symmetric(x: Floats, levels: int, scale_levels: int, tries: Sequence[float]) -> tuple[Bytes, Floats, Bytes]:
    """The parts of Q3_K and Q6_K: d (half), signed scales `[n, 16]`, quants from 0 `[n, 256]`."""
    n = len(x)
    groups = columns(x, 16)
    scale = fit_symmetric(groups, levels, tries).reshape(n, 16)
    extreme = np.take_along_axis(scale, np.abs(scale).argmax(axis=1, keepdims=True), axis=1)
    half = covering_half(extreme / np.float32(-scale_levels))
    d = read_back(half)
    integers = np.clip(np.rint(scale * reciprocal(d)), -scale_levels, scale_levels - 1)
    groups *= reciprocal((d * integers).reshape(-1))
    q = np.clip(np.rint(groups, out=groups), -levels, levels - 1, out=groups)
    q += levels
    return half, integers, rows(q, n)


def steps(first: float, last: float, count: int) -> tuple[float, ...]:
    """Starting scales, as levels more or fewer than fit the range: fewer leave room, more cut the extremes off.
    The ranges below were found on Gaussian rows."""
    return tuple(float(v) for v in np.linspace(first, last, count))


def encode_q2_k(x: Floats) -> Bytes:
    d, dmin, scales, mins, q = encode_affine(x, 16, 3, 15, steps(-0.5, 1, 16))
    return np.hstack([scales | mins << 4, pack_crumbs(q, 32), d, dmin])


def encode_q3_k(x: Floats) -> Bytes:
    d, scales, q = encode_symmetric(x, 4, 32, steps(-2, 2, 13))
    codes = (scales + 32).astype(np.uint8)
    packed = np.hstack([pack_low_high(codes & 15, 8), pack_crumbs(codes >> 4, 4)])
    return np.hstack([pack_planes(q >> 2), pack_crumbs(q & 3, 32), packed, d])


def encode_q4_k(x: Floats) -> Bytes:
    d, dmin, scales, mins, q = encode_affine(x, 32, 15, 63, steps(-3, 1, 13))
    return np.hstack([d, dmin, pack_scales_and_mins(scales, mins), pack_low_high(q, 32)])


def encode_q5_k(x: Floats) -> Bytes:
    d, dmin, scales, mins, q = encode_affine(x, 32, 31, 63, steps(-3, 1, 13))
    packed = pack_scales_and_mins(scales, mins)
    return np.hstack([d, dmin, packed, pack_planes(q >> 4), pack_low_high(q & 15, 32)])


def encode_q6_k(x: Floats) -> Bytes:
    d, scales, q = encode_symmetric(x, 32, 128, steps(-6, 2, 17))
    signed = np.ascontiguousarray(scales.astype(np.int8)).view(np.uint8)
    return np.hstack([pack_low_high(q & 15, 64), pack_crumbs(q >> 4, 32), signed, d])


ENCODERS: dict[str, Encoder] = {
    "Q2_K": encode_q2_k,
    "Q3_K": encode_q3_k,
    "Q4_K": encode_q4_k,
    "Q5_K": encode_q5_k,
    "Q6_K": encode_q6_k,
}
