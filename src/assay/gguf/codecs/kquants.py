"""The K-quants: 256-element super-blocks, a half scale over small integer scales over small quants.

    type  bits  groups       formula                       where d is
    Q2_K  2     16 of 16     d * sc * q - dmin * m         end
    Q3_K  3     16 of 16     d * (sc - 32) * (q - 4)       end
    Q4_K  4     8 of 32      d * sc * q - dmin * m         start
    Q5_K  5     8 of 32      d * sc * q - dmin * m         start
    Q6_K  6     16 of 16     d * sc * (q - 32)             end
    Q8_K  8     1 of 256     d * q                         start, float32

Products are rounded in this order: (d * sc) first, then times q, then minus (dmin * m).
"""

from __future__ import annotations

import numpy as np

from assay.gguf.types import by_name

from .codec import Bytes, Codec, Fields, Floats, crumbs, half, low_high, scale_groups


def bit_planes(packed: Bytes, planes: int) -> Bytes:
    """Group i of 32 elements takes bit i of each of the 32 bytes. `[n, 32] -> [n, 32 * planes]`."""
    shifts = np.arange(planes, dtype=np.uint8)[:, None]
    q = np.right_shift(packed[:, None, :], shifts)
    q &= 1
    return q.reshape(len(packed), -1)


def scales_and_mins(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight 6-bit scales and eight 6-bit minima in 12 bytes (Q4_K, Q5_K).

        byte 0-3:  bits 0-5 scale j,    bits 6-7 the top two bits of scale j + 4
        byte 4-7:  bits 0-5 minimum j,  bits 6-7 the top two bits of minimum j + 4
        byte 8-11: bits 0-3 the low four of scale j + 4, bits 4-7 the low four of minimum j + 4

    `[n, 12] -> ([n, 8], [n, 8])`.
    """
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([a & 63, (c & 15) | ((a >> 6) << 4)], axis=1)
    mins = np.concatenate([b & 63, (c >> 4) | ((b >> 6) << 4)], axis=1)
    return scales, mins


def scales_q3(packed: Bytes) -> Bytes:
    """Sixteen 6-bit scales in 12 bytes (Q3_K).

        byte 0-7:  bits 0-3 the low four of scale j, bits 4-7 the low four of scale j + 8
        byte 8-11: bits 2i, 2i+1 the top two of scale j + 4i, i = 0..3

    `[n, 12] -> [n, 16]`.
    """
    scales = low_high(packed[:, :8], 8)
    scales |= crumbs(packed[:, 8:], 4) << 4
    return scales


def unpack_q2_k(blocks: Bytes) -> Fields:
    """84 bytes: `scales[16]` (low nibble scale, high nibble minimum, one byte per 16 elements), `qs[64]`
    (per 128 elements 32 bytes: four runs of 32 from bit pairs 0, 2, 4, 6), `d`, `dmin` halves."""
    packed = blocks[:, 0:16]
    return {
        "d": half(blocks, 80),
        "dmin": half(blocks, 82),
        "scales": packed & 15,
        "mins": packed >> 4,
        "q": crumbs(blocks[:, 16:80], 32),
    }


def unpack_q3_k(blocks: Bytes) -> Fields:
    """110 bytes: `hmask[32]` (bit i of byte l is the third bit of element 32 i + l), `qs[64]` (low two bits,
    as Q2_K), `scales[12]` (6 bits each, see `scales_q3`), `d` half."""
    q = crumbs(blocks[:, 32:96], 32)
    q |= bit_planes(blocks[:, 0:32], 8) << 2
    return {"d": half(blocks, 108), "scales": scales_q3(blocks[:, 96:108]), "q": q}


def unpack_q4_k(blocks: Bytes) -> Fields:
    """144 bytes: `d`, `dmin` halves, `scales[12]` (see `scales_and_mins`), `qs[128]` (32 bytes give 32 low
    nibbles, then 32 high ones)."""
    scales, mins = scales_and_mins(blocks[:, 4:16])
    q = low_high(blocks[:, 16:], 32)
    return {"d": half(blocks, 0), "dmin": half(blocks, 2), "scales": scales, "mins": mins, "q": q}


def unpack_q5_k(blocks: Bytes) -> Fields:
    """176 bytes: `d`, `dmin` halves, `scales[12]` as Q4_K, `qh[32]` (bit i of byte l is the fifth bit of
    element 32 i + l), `qs[128]` as Q4_K."""
    scales, mins = scales_and_mins(blocks[:, 4:16])
    q = low_high(blocks[:, 48:], 32)
    q |= bit_planes(blocks[:, 16:48], 8) << 4
    return {"d": half(blocks, 0), "dmin": half(blocks, 2), "scales": scales, "mins": mins, "q": q}


def unpack_q6_k(blocks: Bytes) -> Fields:
    """210 bytes: `ql[128]` (per 128 elements 64 bytes: 64 low nibbles, then 64 high ones), `qh[64]` (top two
    bits; per 128 elements 32 bytes in four runs as Q2_K), `scales[16]` signed bytes, `d` half."""
    q = low_high(blocks[:, 0:128], 64)
    q |= crumbs(blocks[:, 128:192], 32) << 4
    return {"d": half(blocks, 208), "scales": blocks[:, 192:208].view(np.int8), "q": q}


def unpack_q8_k(blocks: Bytes) -> Fields:
    """292 bytes: `d` float32, `qs[256]` signed bytes, `bsums[16]` int16, sums of 16 quants each."""
    return {
        "d": blocks[:, 0:4].view("<f4").astype(np.float32),
        "q": blocks[:, 4:260].view(np.int8),
        "bsums": blocks[:, 260:292].view("<i2"),
    }


def combine_min(f: Fields, out: Floats) -> None:
    """y = d * sc * q - dmin * m"""
    out[...] = f["q"]
    scale_groups(out, f["d"] * f["scales"].astype(np.float32), f["dmin"] * f["mins"].astype(np.float32))


def combine_q3_k(f: Fields, out: Floats) -> None:
    """y = d * (sc - 32) * (q - 4)"""
    np.subtract(f["q"].view(np.int8), np.int8(4), out=out, casting="unsafe")
    scale_groups(out, f["d"] * (f["scales"].astype(np.float32) - np.float32(32)))


def combine_q6_k(f: Fields, out: Floats) -> None:
    """y = d * sc * (q - 32), sc signed"""
    np.subtract(f["q"].view(np.int8), np.int8(32), out=out, casting="unsafe")
    scale_groups(out, f["d"] * f["scales"].astype(np.float32))


def combine_q8_k(f: Fields, out: Floats) -> None:
    """y = d * q"""
    out[...] = f["q"]
    out *= f["d"]


CODECS = (
    Codec(by_name("Q2_K"), unpack_q2_k, combine_min),
    Codec(by_name("Q3_K"), unpack_q3_k, combine_q3_k),
    Codec(by_name("Q4_K"), unpack_q4_k, combine_min),
    Codec(by_name("Q5_K"), unpack_q5_k, combine_min),
    Codec(by_name("Q6_K"), unpack_q6_k, combine_q6_k),
    Codec(by_name("Q8_K"), unpack_q8_k, combine_q8_k),
)
