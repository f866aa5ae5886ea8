"""Encoders of the K-quants: uses of `fit`, and the packing of their parts.

The ranges of the starting scales were found on Gaussian rows: too few levels waste range, too many clip the extremes.
"""

from __future__ import annotations

import numpy as np

from .codec import Bytes, Encoder, Floats, Integers
from .encode_legacy import pack_low_high
from .fit import BlockForm, encode_blocks, halves, rows, steps, whole


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


Q2_K = BlockForm(16, whole(0, 3), (0, 15), 15, steps(2.5, 4, 16))
Q3_K = BlockForm(16, whole(-4, 3), (-32, 31), 0, (*steps(2, 6, 13), *steps(-2, -5, 10)))
Q4_K = BlockForm(32, whole(0, 15), (0, 63), 63, steps(10, 17, 20))
Q5_K = BlockForm(32, whole(0, 31), (0, 63), 63, steps(26, 33, 18))
Q6_K = BlockForm(16, whole(-32, 31), (-128, 127), 0, steps(26, 34, 17))


def encode_affine(x: Floats, w: Floats | None, form: BlockForm, levels: int) -> list[Bytes]:
    """The parts of Q2_K, Q4_K and Q5_K: d, dmin (halves), scales, mins `[n, g]`, quants `[n, 256]`."""
    b = encode_blocks(x, w, form, levels)
    integers = [part.astype(np.uint8) for part in (b.scales, b.minima, rows(b.values, len(x)))]
    return [halves(b.d), halves(b.dmin), *integers]


def encode_symmetric(x: Floats, w: Floats | None, form: BlockForm, zero: int) -> tuple[Bytes, Floats, Bytes]:
    """The parts of Q3_K and Q6_K: d (half), signed scales `[n, 16]`, quants from 0 `[n, 256]`."""
    b = encode_blocks(x, w, form)
    return halves(b.d), b.scales, (rows(b.values, len(x)) + zero).astype(np.uint8)


def encode_q2_k(x: Floats, w: Floats | None) -> Bytes:
    d, dmin, scales, mins, q = encode_affine(x, w, Q2_K, 3)
    return np.hstack([scales | mins << 4, pack_crumbs(q, 32), d, dmin])


def encode_q3_k(x: Floats, w: Floats | None) -> Bytes:
    d, scales, q = encode_symmetric(x, w, Q3_K, 4)
    codes = (scales + 32).astype(np.uint8)
    packed = np.hstack([pack_low_high(codes & 15, 8), pack_crumbs(codes >> 4, 4)])
    return np.hstack([pack_planes(q >> 2), pack_crumbs(q & 3, 32), packed, d])


def encode_q4_k(x: Floats, w: Floats | None) -> Bytes:
    d, dmin, scales, mins, q = encode_affine(x, w, Q4_K, 15)
    return np.hstack([d, dmin, pack_scales_and_mins(scales, mins), pack_low_high(q, 32)])


def encode_q5_k(x: Floats, w: Floats | None) -> Bytes:
    d, dmin, scales, mins, q = encode_affine(x, w, Q5_K, 31)
    packed = pack_scales_and_mins(scales, mins)
    return np.hstack([d, dmin, packed, pack_planes(q >> 4), pack_low_high(q & 15, 32)])


def encode_q6_k(x: Floats, w: Floats | None) -> Bytes:
    d, scales, q = encode_symmetric(x, w, Q6_K, 32)
    signed = np.ascontiguousarray(scales.astype(np.int8)).view(np.uint8)
    return np.hstack([pack_low_high(q & 15, 64), pack_crumbs(q >> 4, 32), signed, d])


ENCODERS: dict[str, Encoder] = {
    "Q2_K": encode_q2_k,
    "Q3_K": encode_q3_k,
    "Q4_K": encode_q4_k,
    "Q5_K": encode_q5_k,
    "Q6_K": encode_q6_k,
}
