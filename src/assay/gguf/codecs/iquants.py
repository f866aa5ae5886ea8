"""The IQ types: 256-element super-blocks whose weights are points of a code book, with signs and scales.

    type     groups     book          signs               formula
    IQ2_XXS  8 of 32    256 x 8       7 bits and parity   d * (0.5 + sc) / 4 * point * sign
    IQ2_XS   16 of 16   512 x 8       7 bits and parity   d * (0.5 + sc) / 4 * point * sign
    IQ2_S    16 of 16   1024 x 8      8 bits              d * (0.5 + sc) / 4 * point * sign
    IQ3_XXS  8 of 32    256 x 4       7 bits and parity   d * (0.5 + sc) / 2 * point * sign
    IQ3_S    8 of 32    512 x 4       8 bits              d * (1 + 2 sc) * point * sign
    IQ1_S    8 of 32    2048 x 8      none                d * (1 + 2 sc) * (point + delta)
    IQ1_M    16 of 16   2048 x 8      none                d * (1 + 2 sc) * (point + delta)
    IQ4_NL   1 of 32    16 values     in the values       d * value
    IQ4_XS   8 of 32    16 values     in the values       d * (sc - 32) * value

If seven bits store eight signs, the eighth sign makes the number of minus signs even.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from assay.gguf.types import by_name

from .codec import Bytes, Codec, Fields, Floats, crumbs, half, low_high, scale_groups
from .grids import grid

IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)  # denser near zero, where most weights are

BITS = (np.arange(256)[:, None] >> np.arange(8)) & 1  # bit i of every byte value
SIGNS = (1 - 2 * BITS).astype(np.float32)  # a sign byte as eight factors, lowest bit first
EVEN = (np.arange(128) | (BITS[:128].sum(axis=1) % 2) << 7).astype(np.uint8)  # 7 bits to 8, parity even


def nibbles(packed: Bytes) -> Bytes:
    """Each byte as its low then its high nibble. `[n, k] -> [n, 2k]`."""
    return low_high(packed, 1)


def packed_signs(words: NDArray[np.uint32]) -> tuple[Bytes, Bytes]:
    """A 32-bit word for 32 elements: four 7-bit sign codes, then a 4-bit scale. `[n, 8] -> [n, 32], [n, 8]`."""
    codes = (words[:, :, None] >> np.arange(0, 28, 7, dtype=np.uint32)) & 127
    return EVEN[codes.reshape(len(words), -1)], (words >> 28).astype(np.uint8)


def unpack_iq2_xxs(blocks: Bytes) -> Fields:
    """66 bytes: `d` half, then per 32 elements 8 bytes: four book indices, one word of signs and scale."""
    words = blocks[:, 2:].view("<u4").reshape(-1, 8, 2)
    signs, scales = packed_signs(words[:, :, 1])
    index = blocks[:, 2:].reshape(-1, 8, 8)[:, :, :4].reshape(-1, 32)
    return {"d": half(blocks, 0), "scales": scales, "index": index, "signs": signs}


def unpack_iq2_xs(blocks: Bytes) -> Fields:
    """74 bytes: `d` half, `qs[32]` uint16 (9 bits index, 7 bits signs), `scales[8]` (a nibble per 16)."""
    qs = blocks[:, 2:66].view("<u2")
    return {
        "d": half(blocks, 0),
        "scales": nibbles(blocks[:, 66:]),
        "index": qs & 511,
        "signs": EVEN[qs >> 9],
    }


def unpack_iq2_s(blocks: Bytes) -> Fields:
    """82 bytes: `d` half, `qs[32]` low 8 bits of the index, `signs[32]`, `qh[8]` (bit pairs: top two bits of
    the index), `scales[8]` (a nibble per 16)."""
    return {
        "d": half(blocks, 0),
        "scales": nibbles(blocks[:, 74:]),
        "index": blocks[:, 2:34] | crumbs(blocks[:, 66:74], 1).astype(np.uint16) << 8,
        "signs": blocks[:, 34:66],
    }


def unpack_iq3_xxs(blocks: Bytes) -> Fields:
    """98 bytes: `d` half, `qs[64]` book indices (4 elements each), per 32 elements a word of signs and scale."""
    signs, scales = packed_signs(blocks[:, 66:].view("<u4"))
    return {"d": half(blocks, 0), "scales": scales, "index": blocks[:, 2:66], "signs": signs}


def unpack_iq3_s(blocks: Bytes) -> Fields:
    """110 bytes: `d` half, `qs[64]` low 8 bits of the index, `qh[8]` (bit j of byte k: ninth bit of index
    8 k + j), `signs[32]`, `scales[4]` (a nibble per 32)."""
    ninth = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little").astype(np.uint16)
    return {
        "d": half(blocks, 0),
        "scales": nibbles(blocks[:, 106:]),
        "index": blocks[:, 2:66] | ninth << 8,
        "signs": blocks[:, 74:106],
    }


def unpack_iq1_s(blocks: Bytes) -> Fields:
    """50 bytes: `d` half, `qs[32]` low 8 bits of the index, `qh[8]` uint16 per 32 elements: four 3-bit tops of
    the index, bits 12-14 the scale, bit 15 the sign of delta."""
    qh = blocks[:, 34:].view("<u2")
    tops = (qh[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16)) & 7
    return {
        "d": half(blocks, 0),
        "scales": ((qh >> 12) & 7).astype(np.uint8),
        "index": blocks[:, 2:34] | tops.reshape(-1, 32) << 8,
        "delta": (qh >> 15).astype(np.uint8),
    }


def unpack_iq1_m(blocks: Bytes) -> Fields:
    """56 bytes: `qs[32]` low 8 bits of the index, `qh[16]` (a nibble per 8 elements: 3-bit top of the index,
    then the sign of delta), `scales[8]` as four uint16: four 3-bit scales of 16 elements each, and in their
    top nibbles the half `d`, lowest nibble first."""
    words = blocks[:, 48:].view("<u2")
    top = words >> 12
    d = top[:, 0] | top[:, 1] << 4 | top[:, 2] << 8 | top[:, 3] << 12
    high = nibbles(blocks[:, 32:48])
    scales = (words[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16)) & 7
    return {
        "d": d.view(np.float16).astype(np.float32)[:, None],
        "scales": scales.reshape(-1, 16).astype(np.uint8),
        "index": blocks[:, :32] | (high & 7).astype(np.uint16) << 8,
        "delta": high >> 3,
    }


def unpack_iq4_nl(blocks: Bytes) -> Fields:
    """18 bytes: `d` half, `qs[16]` nibbles in halves, each an index of `IQ4_VALUES`."""
    return {"d": half(blocks, 0), "q": low_high(blocks[:, 2:], 16)}


def unpack_iq4_xs(blocks: Bytes) -> Fields:
    """136 bytes: `d` half, `scales_h` uint16 (bit pairs: top two bits of the eight scales), `scales_l[4]`
    (nibbles: their low four), `qs[128]` (per 32 elements 16 bytes, nibbles in halves)."""
    scales = nibbles(blocks[:, 4:8]) | crumbs(blocks[:, 2:4], 1) << 4
    return {"d": half(blocks, 0), "scales": scales, "q": low_high(blocks[:, 8:], 16)}


def look_up(book: Floats, index: NDArray[np.integer], out: Floats) -> None:
    """out[n, 256] = the book's points one after another; every index is in range by its bit width."""
    np.take(book, index, axis=0, out=out.reshape(*index.shape, -1), mode="clip")


def signed(name: str, bias: float, step: float) -> Callable[[Fields, Floats], None]:
    """y = d * (bias + sc) * step * point * sign, products from the left."""
    bias32, step32 = np.float32(bias), np.float32(step)

    def combine(f: Fields, out: Floats) -> None:
        look_up(grid(name), f["index"], out)
        out *= SIGNS[f["signs"]].reshape(out.shape)
        scale_groups(out, f["d"] * (bias32 + f["scales"].astype(np.float32)) * step32)

    return combine


def combine_iq3_s(f: Fields, out: Floats) -> None:
    """y = d * (1 + 2 sc) * point * sign"""
    look_up(grid("IQ3_S"), f["index"], out)
    out *= SIGNS[f["signs"]].reshape(out.shape)
    scale_groups(out, f["d"] * (1 + 2 * f["scales"]).astype(np.float32))


def combine_iq1(f: Fields, out: Floats) -> None:
    """y = d * (1 + 2 sc) * (point + delta), delta = +1/8 or -1/8 per group"""
    look_up(grid("IQ1_S"), f["index"], out)
    delta = np.float32(0.125) - np.float32(0.25) * f["delta"].astype(np.float32)
    groups = out.reshape(*delta.shape, -1)
    groups += delta[..., None]
    scale_groups(out, f["d"] * (1 + 2 * f["scales"]).astype(np.float32))


def combine_iq4_nl(f: Fields, out: Floats) -> None:
    """y = d * value[q]"""
    np.take(IQ4_VALUES, f["q"], out=out, mode="clip")
    out *= f["d"]


def combine_iq4_xs(f: Fields, out: Floats) -> None:
    """y = d * (sc - 32) * value[q]"""
    np.take(IQ4_VALUES, f["q"], out=out, mode="clip")
    scale_groups(out, f["d"] * (f["scales"].astype(np.float32) - np.float32(32)))


CODECS = (
    Codec(by_name("IQ2_XXS"), unpack_iq2_xxs, signed("IQ2_XXS", 0.5, 0.25)),
    Codec(by_name("IQ2_XS"), unpack_iq2_xs, signed("IQ2_XS", 0.5, 0.25)),
    Codec(by_name("IQ2_S"), unpack_iq2_s, signed("IQ2_S", 0.5, 0.25)),
    Codec(by_name("IQ3_XXS"), unpack_iq3_xxs, signed("IQ3_XXS", 0.5, 0.5)),
    Codec(by_name("IQ3_S"), unpack_iq3_s, combine_iq3_s),
    Codec(by_name("IQ1_S"), unpack_iq1_s, combine_iq1),
    Codec(by_name("IQ1_M"), unpack_iq1_m, combine_iq1),
    Codec(by_name("IQ4_NL"), unpack_iq4_nl, combine_iq4_nl),
    Codec(by_name("IQ4_XS"), unpack_iq4_xs, combine_iq4_xs),
)
