"""Element types that NumPy has no name for: bfloat16 and the eight-bit floats, read as float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _e4m3() -> Array:
    """The 256 values of float8_e4m3fn: four bits of exponent with bias 7, three of mantissa, no infinities."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value = np.where((code & 127) == 127, np.nan, value)
    return np.where(code >= 128, -value, value).astype(np.float32)


_E4M3 = _e4m3()
# Names as PyTorch writes them: the type of the stored elements, and how they become numbers.
STORED: dict[str, str] = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "float8_e4m3fn": "u1",
    "float8_e5m2": "u1", "int64": "<i8", "int32": "<i4", "int16": "<i2", "int8": "i1", "uint64": "<u8",
    "uint32": "<u4", "uint16": "<u2", "uint8": "u1", "bool": "u1",
}  # fmt: skip


def as_numbers(raw: Array, name: str) -> Array:
    """The stored elements of type `name` as numbers."""
    if name == "bfloat16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if name == "float8_e4m3fn":
        return _E4M3[raw]
    if name == "float8_e5m2":
        return (raw.astype(np.uint16) << 8).view(np.float16)
    return raw
