"""The 32-element types: Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1, with one scale (and sometimes a minimum) per block.

4-bit quants are split in halves, not pairs: byte `j` holds element `j` in its low nibble and element
`j + 16` in its high one. The fifth bit of element `j` is bit `j` of the 32-bit word `qh`.
"""

from __future__ import annotations

import numpy as np

from assay.gguf.types import by_name

from .codec import Bytes, Codec, Fields, Floats, half, low_high


def fifth_bit(qh: Bytes) -> Bytes:
    """The four bytes `qh[n, 4]` as 32 values 0 or 16: element j takes bit j."""
    bits = np.unpackbits(qh, axis=1, bitorder="little")
    return np.left_shift(bits, 4, out=bits)


def unpack_q4_0(blocks: Bytes) -> Fields:
    """18 bytes: `d` half, `qs[16]` nibbles in halves."""
    return {"d": half(blocks, 0), "q": low_high(blocks[:, 2:], 16)}


def unpack_q4_1(blocks: Bytes) -> Fields:
    """20 bytes: `d` half, `m` half, `qs[16]` nibbles in halves."""
    return {"d": half(blocks, 0), "m": half(blocks, 2), "q": low_high(blocks[:, 4:], 16)}


def unpack_q5_0(blocks: Bytes) -> Fields:
    """22 bytes: `d` half, `qh[4]` fifth bits, `qs[16]` nibbles in halves."""
    q = low_high(blocks[:, 6:], 16)
    q |= fifth_bit(blocks[:, 2:6])
    return {"d": half(blocks, 0), "q": q}


def unpack_q5_1(blocks: Bytes) -> Fields:
    """24 bytes: `d` half, `m` half, `qh[4]` fifth bits, `qs[16]` nibbles in halves."""
    q = low_high(blocks[:, 8:], 16)
    q |= fifth_bit(blocks[:, 4:8])
    return {"d": half(blocks, 0), "m": half(blocks, 2), "q": q}


def unpack_q8_0(blocks: Bytes) -> Fields:
    """34 bytes: `d` half, `qs[32]` signed bytes."""
    return {"d": half(blocks, 0), "q": blocks[:, 2:].view(np.int8)}


def unpack_q8_1(blocks: Bytes) -> Fields:
    """36 bytes: `d` half, `s` half (d times the sum of the quants), `qs[32]` signed bytes."""
    return {"d": half(blocks, 0), "s": half(blocks, 2), "q": blocks[:, 4:].view(np.int8)}


def combine_q4_0(f: Fields, out: Floats) -> None:
    """y = d * (q - 8)"""
    np.subtract(f["q"].view(np.int8), np.int8(8), out=out, casting="unsafe")
    out *= f["d"]


def combine_q5_0(f: Fields, out: Floats) -> None:
    """y = d * (q - 16)"""
    np.subtract(f["q"].view(np.int8), np.int8(16), out=out, casting="unsafe")
    out *= f["d"]


def combine_min(f: Fields, out: Floats) -> None:
    """y = d * q + m"""
    out[...] = f["q"]
    out *= f["d"]
    out += f["m"]


def combine_scale(f: Fields, out: Floats) -> None:
    """y = d * q"""
    out[...] = f["q"]
    out *= f["d"]


CODECS = (
    Codec(by_name("Q4_0"), unpack_q4_0, combine_q4_0),
    Codec(by_name("Q4_1"), unpack_q4_1, combine_min),
    Codec(by_name("Q5_0"), unpack_q5_0, combine_q5_0),
    Codec(by_name("Q5_1"), unpack_q5_1, combine_min),
    Codec(by_name("Q8_0"), unpack_q8_0, combine_scale),
    Codec(by_name("Q8_1"), unpack_q8_1, combine_scale),
)
