"""Four-bit floats (E2M1) under a shared small float scale: MXFP4 and NVFP4.

E2M1 has the values 0 0.5 1 1.5 2 3 4 6 and their negatives. The tables hold them doubled, as integers
(code 8, minus zero, is plain zero), and the scale halved.
"""

from __future__ import annotations

import numpy as np

from assay.gguf.types import by_name

from .codec import Bytes, Codec, Fields, Floats, low_high, scale_groups

E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)

# E8M0: a bare exponent, 2 ** (e - 127), here halved. e = 0 and 1 give subnormal float32; e = 255 (NaN in
# the OCP standard) is an ordinary exponent in ggml.
E8M0 = np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)


def _ue4m3(code: int) -> float:
    """Unsigned E4M3, bias 7, halved. 0x7f (NaN) reads as zero; bit 7 is ignored otherwise."""
    exponent, mantissa = code >> 3 & 15, code & 7
    if code == 0x7F:
        return 0.0
    return 0.5 * (mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


UE4M3 = np.array([_ue4m3(code) for code in range(256)], np.float32)


def unpack_mxfp4(blocks: Bytes) -> Fields:
    """17 bytes for 32 elements: `e` E8M0 scale, `qs[16]` E2M1 nibbles in halves."""
    return {"e": blocks[:, :1], "q": low_high(blocks[:, 1:], 16)}


def unpack_nvfp4(blocks: Bytes) -> Fields:
    """36 bytes for 64 elements: `scales[4]` UE4M3, one per 16 elements; `qs[32]`, per 16 elements 8 bytes of
    E2M1 nibbles in halves."""
    return {"scales": blocks[:, :4], "q": low_high(blocks[:, 4:], 8)}


def combine_mxfp4(f: Fields, out: Floats) -> None:
    """y = 2 ** (e - 127) / 2 * (2 * value[q])"""
    np.take(E2M1, f["q"], out=out, mode="clip")
    out *= E8M0[f["e"]]


def combine_nvfp4(f: Fields, out: Floats) -> None:
    """y = scale / 2 * (2 * value[q])"""
    np.take(E2M1, f["q"], out=out, mode="clip")
    scale_groups(out, UE4M3[f["scales"]])


CODECS = (
    Codec(by_name("MXFP4"), unpack_mxfp4, combine_mxfp4),
    Codec(by_name("NVFP4"), unpack_nvfp4, combine_nvfp4),
)
