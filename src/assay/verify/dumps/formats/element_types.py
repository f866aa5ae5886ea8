"""Element types that NumPy has no name for, read as float32; and the spellings of types that manifests use."""

from __future__ import annotations

import re
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


_BITS = {"f": "float", "fp": "float", "float": "float", "binary": "float", "real": "float", "bf": "bfloat",
         "bfloat": "bfloat", "i": "int", "s": "int", "int": "int", "u": "uint", "uint": "uint"}  # fmt: skip
_WORDS = {"float": "float32", "single": "float32", "half": "float16", "double": "float64", "int": "int32",
          "long": "int64", "byte": "uint8", "brain": "bfloat16", **{name: name for name in STORED}}  # fmt: skip
_SPELLED = re.compile(r"(?P<kind>[a-z]{1,8})[-_ ]?(?P<bits>8|16|32|64)(?:array|_t)?")
_NUMPY = re.compile(r"(?P<order>[<>=|]?)(?P<kind>[fiu])(?P<bytes>[1248])")
_ORDER = re.compile(r"[-_ ,]{0,2}\(?(?P<order>le|be|little|big)(?:[-_ ]?endian)?\)?$")


def element_type(text: str) -> tuple[str, bool] | None:
    """The type that a spelling names, and whether it is big-endian: `f32le`, `>f4`, `torch.bfloat16`, `half`."""
    said = text.strip(" \"'").lower()[:40]
    said = re.sub(r"^(?:torch|np|numpy|jnp|mx|tf|ggml_type|dt|dtype)[._]", "", said)
    m = _NUMPY.fullmatch(said)
    if m is not None and (m["order"] or m["bytes"] in "24"):
        name = f"{_BITS[m['kind']]}{8 * int(m['bytes'])}"
        return (name, m["order"] == ">") if name in STORED else None
    order = None if said in _WORDS else _ORDER.search(said)
    said = said[: order.start()] if order else said
    big = order is not None and order["order"].startswith("b")
    if said in _WORDS:
        return _WORDS[said], big
    if m := _SPELLED.fullmatch(said):
        name = f"{_BITS.get(m['kind'], '')}{m['bits']}"
        return (name, big) if name in STORED else None
    return None


def half_type(raw: Array) -> str:
    """float16 or bfloat16, by values: float16 read as bfloat16 spreads over eight times the powers of two."""
    values = np.abs(as_numbers(raw[:4096], "bfloat16").astype(np.float64))
    values = values[np.isfinite(values) & (values > 0)]
    return "bfloat16" if values.size and float(np.std(np.log2(values))) < 6 else "float16"
