"""Values: the pieces of device memory that the kernel steps of a program read and write, each with its layout.

The schedule pass creates values, and place.py gives each an offset. Touch this module when kernels read rows in
another layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Layout(Enum):
    """How the numbers of a value lie in memory."""

    F32 = "f32"  # Rows of float32.
    HALF = "half"  # Padded rows of f16, in the column order of gemm_tensor.cu.
    F16 = "f16"  # Padded rows of f16, in the column order of gemm_halves.cu.
    BF16 = "bf16"  # Padded rows of bf16, in the same order.
    CODES = "codes"  # int8 codes with their scales, which one step of a walk writes for its products.
    SCRATCH = "scratch"  # Known to one kernel family only: partial sums, lists, parts of quantised rows.


HALVES = (Layout.HALF, Layout.F16, Layout.BF16)


@dataclass(frozen=True, eq=False)
class Value:
    """Memory of a program. Two values are never equal: each has its own bytes while it is live."""

    size: int
    layout: Layout = Layout.F32
    resident: bool = False  # keeps its memory from the first launch to the last
    base: Value | None = None  # this value is a part of that one's memory, from byte `offset` on
    offset: int = 0

    @property
    def memory(self) -> Value:
        """The value that has its memory."""
        return self.base or self


@dataclass(frozen=True)
class Quantised:
    """Rows of int8 codes, their scales with sums, and sums of half blocks (activations.h, Acts)."""

    codes: Value
    scales: Value
    sums: Value
    stride: int  # columns of a row, padded to whole units
    padded_rows: int = 0  # rows of whole tiles of tokens; 0: row by row

    @property
    def values(self) -> tuple[Value, Value, Value]:
        return self.codes, self.scales, self.sums


def quantised(rows: int, stride: int, padded_rows: int = 0) -> Quantised:
    """New memory for quantised rows."""
    codes, scales, sums = (Value(rows * stride // divisor, Layout.SCRATCH) for divisor in (1, 4, 8))
    return Quantised(codes, scales, sums, stride, padded_rows)


def padded_rows(rows: int) -> int:
    """Rows of activations that memory is reserved for: whole tiles of tokens."""
    return max(8, 1 << (rows - 1).bit_length()) if rows <= 128 else -(-rows // 256) * 256
