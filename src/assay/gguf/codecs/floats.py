"""Types without blocks: F64, F32, F16, BF16 and the integers, converted to float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.errors import AssayError

from .codec import Bytes, Floats

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I8": np.dtype("<i1"),
    "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}


def decode_plain(name: str, raw: Bytes) -> Floats:
    """The numbers, rounded to float32 if they are wider. F32 is a view, not a copy."""
    values: Floats = raw.view(DTYPES[name]).astype(np.float32, copy=False)
    return values


def decode_bf16(raw: Bytes) -> Floats:
    """bfloat16: the upper 16 bits of a float32."""
    bits = raw.view("<u2").astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def encode_plain(name: str, x: Floats) -> Bytes:
    """Round to nearest even. A finite number out of range is an error, not an infinity."""
    values = x.astype(DTYPES[name])
    if name == "F16" and (np.isinf(values) & np.isfinite(x)).any():
        raise AssayError(f"F16: {float(np.abs(x).max()):g} is too large (at most 65504); use F32 or BF16")
    return np.ascontiguousarray(values).view(np.uint8)


def encode_bf16(x: Floats) -> Bytes:
    """Round to nearest even on the bit pattern; NaN stays NaN (made quiet), overflow rounds to infinity."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    quiet = (bits >> 16) | np.uint32(0x40)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.ascontiguousarray(np.where(is_nan, quiet, rounded).astype("<u2")).view(np.uint8)
