"""One and two bits under one scale: TQ1_0 and TQ2_0 (values -1, 0, 1), Q1_0 (-1, 1), Q2_0 (-1, 0, 1, 2)."""

from __future__ import annotations

import numpy as np

from assay.gguf.types import by_name

from .codec import Bytes, Codec, Fields, Floats, crumbs, half

# A byte holds five base-3 digits as the fraction byte / 256; multiplying by 3 ** k modulo 256 brings digit k
# to the front, and the front digit is floor(3 * fraction).
DIGITS = np.array([[(byte * 3**k % 256) * 3 >> 8 for byte in range(256)] for k in range(5)], np.uint8)


def unpack_tq1_0(blocks: Bytes) -> Fields:
    """54 bytes: `qs[48]` (32 bytes hold elements 0-159, digit k of byte j being element 32 k + j; 16 bytes hold
    elements 160-239 likewise), `qh[4]` (elements 240-255, four digits per byte), `d` half."""
    n = len(blocks)
    parts = [DIGITS[:, blocks[:, 0:32]], DIGITS[:, blocks[:, 32:48]], DIGITS[:4, blocks[:, 48:52]]]
    q = np.concatenate([part.transpose(1, 0, 2).reshape(n, -1) for part in parts], axis=1)
    return {"d": half(blocks, 52), "q": q}


def unpack_tq2_0(blocks: Bytes) -> Fields:
    """66 bytes: `qs[64]` (32 bytes give four runs of 32 from bit pairs 0, 2, 4, 6), `d` half."""
    return {"d": half(blocks, 64), "q": crumbs(blocks[:, :64], 32)}


def unpack_q1_0(blocks: Bytes) -> Fields:
    """18 bytes for 128 elements: `d` half, `qs[16]` bits, lowest first."""
    return {"d": half(blocks, 0), "q": np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")}


def unpack_q2_0(blocks: Bytes) -> Fields:
    """18 bytes for 64 elements: `d` half, `qs[16]`, each four neighbours, the lowest bits first."""
    q = blocks[:, 2:, None] >> np.arange(0, 8, 2, dtype=np.uint8) & np.uint8(3)
    return {"d": half(blocks, 0), "q": q.reshape(len(blocks), 64)}


def combine_ternary(f: Fields, out: Floats) -> None:
    """y = d * (q - 1)"""
    np.subtract(f["q"].view(np.int8), np.int8(1), out=out, casting="unsafe")
    out *= f["d"]


def combine_q1_0(f: Fields, out: Floats) -> None:
    """y = d where the bit is set, else -d"""
    np.copyto(out, np.where(f["q"] != 0, f["d"], -f["d"]))


CODECS = (
    Codec(by_name("TQ1_0"), unpack_tq1_0, combine_ternary),
    Codec(by_name("TQ2_0"), unpack_tq2_0, combine_ternary),
    Codec(by_name("Q1_0"), unpack_q1_0, combine_q1_0),
    Codec(by_name("Q2_0"), unpack_q2_0, combine_ternary),
)
