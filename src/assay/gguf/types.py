"""The two type tables of GGUF: tensor element types (ggml's) and metadata value types.

A ggml type stores a row of `n` elements as `n / block_size` blocks of `type_size` bytes. `layout` is the block as ggml
reads it, in NumPy's notation: `u2` and `u4` are words, which a big-endian machine swaps; `u1` are bytes. IQ2_XXS
has no layout: ggml also reads its words byte by byte, so it has no defined big-endian form.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from assay.errors import AssayError


@dataclass(frozen=True)
class GGMLType:
    """One ggml tensor type; `bits_per_weight` includes scales and padding."""

    id: int
    name: str
    block_size: int  # elements per block
    type_size: int  # bytes per block
    layout: str | None = None

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.type_size / self.block_size

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of `n` elements; `n` must be a multiple of the block size."""
        if n % self.block_size:
            raise AssayError(f"{self.name}: a row of {n} elements is not a whole number of blocks of {self.block_size}")
        return n // self.block_size * self.type_size

    def __str__(self) -> str:
        return self.name


_TABLE = (
    # id, name, elements and bytes per block, struct
    GGMLType(0, "F32", 1, 4, "u4"),
    GGMLType(1, "F16", 1, 2, "u2"),
    GGMLType(2, "Q4_0", 32, 18, "u2,16u1"),
    GGMLType(3, "Q4_1", 32, 20, "2u2,16u1"),
    GGMLType(6, "Q5_0", 32, 22, "u2,u4,16u1"),
    GGMLType(7, "Q5_1", 32, 24, "2u2,u4,16u1"),
    GGMLType(8, "Q8_0", 32, 34, "u2,32u1"),
    GGMLType(9, "Q8_1", 32, 36, "2u2,32u1"),
    GGMLType(10, "Q2_K", 256, 84, "16u1,64u1,2u2"),
    GGMLType(11, "Q3_K", 256, 110, "32u1,64u1,12u1,u2"),
    GGMLType(12, "Q4_K", 256, 144, "2u2,12u1,128u1"),
    GGMLType(13, "Q5_K", 256, 176, "2u2,12u1,32u1,128u1"),
    GGMLType(14, "Q6_K", 256, 210, "128u1,64u1,16u1,u2"),
    GGMLType(15, "Q8_K", 256, 292, "u4,256u1,16u2"),
    GGMLType(16, "IQ2_XXS", 256, 66),
    GGMLType(17, "IQ2_XS", 256, 74, "u2,32u2,8u1"),
    GGMLType(18, "IQ3_XXS", 256, 98, "u2,64u1,8u4"),
    GGMLType(19, "IQ1_S", 256, 50, "u2,32u1,8u2"),
    GGMLType(20, "IQ4_NL", 32, 18, "u2,16u1"),
    GGMLType(21, "IQ3_S", 256, 110, "u2,64u1,8u1,32u1,4u1"),
    GGMLType(22, "IQ2_S", 256, 82, "u2,64u1,8u1,8u1"),
    GGMLType(23, "IQ4_XS", 256, 136, "u2,u2,4u1,128u1"),
    GGMLType(24, "I8", 1, 1, "u1"),
    GGMLType(25, "I16", 1, 2, "u2"),
    GGMLType(26, "I32", 1, 4, "u4"),
    GGMLType(27, "I64", 1, 8, "u8"),
    GGMLType(28, "F64", 1, 8, "u8"),
    GGMLType(29, "IQ1_M", 256, 56, "32u1,16u1,4u2"),
    GGMLType(30, "BF16", 1, 2, "u2"),
    GGMLType(34, "TQ1_0", 256, 54, "48u1,4u1,u2"),
    GGMLType(35, "TQ2_0", 256, 66, "64u1,u2"),
    GGMLType(39, "MXFP4", 32, 17, "u1,16u1"),
    GGMLType(40, "NVFP4", 64, 36, "4u1,32u1"),
    GGMLType(41, "Q1_0", 128, 18, "u2,16u1"),
    GGMLType(42, "Q2_0", 64, 18, "u2,16u1"),
)

TYPES: dict[int, GGMLType] = {t.id: t for t in _TABLE}

REMOVED: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Ids that ggml has withdrawn; files with them must be converted again."""

_BY_NAME = {t.name: t for t in _TABLE}


def by_name(name: str) -> GGMLType:
    """The type called `name`, in any letter case."""
    found = _BY_NAME.get(name.upper())
    if found is None:
        raise AssayError(f"{name}: no such tensor type; known are {', '.join(_BY_NAME)}")
    return found


class ValueType(IntEnum):
    """Metadata value types, numbered as in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALARS: dict[ValueType, str] = {
    ValueType.UINT8: "u1",
    ValueType.INT8: "i1",
    ValueType.UINT16: "u2",
    ValueType.INT16: "i2",
    ValueType.UINT32: "u4",
    ValueType.INT32: "i4",
    ValueType.FLOAT32: "f4",
    ValueType.BOOL: "u1",
    ValueType.UINT64: "u8",
    ValueType.INT64: "i8",
    ValueType.FLOAT64: "f8",
}
"""Fixed-size value types and their NumPy codes; STRING and ARRAY carry their own length."""


@dataclass(frozen=True)
class Typed:
    """A metadata value with its type in the file; `item` is the element type of an ARRAY."""

    type: ValueType
    value: object
    item: ValueType | None = None
