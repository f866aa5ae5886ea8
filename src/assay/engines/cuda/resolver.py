"""Device addresses of everything that a launch points to: values, the step's tables, cache pages, weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.engines.cuda import structs
from assay.engines.cuda.abi.enumerations import HALVED, HALVED_SHIFT
from assay.engines.cuda.context import CompileContext
from assay.engines.cuda.device_values import Quantised, Value, padded_rows
from assay.engines.cuda.layout import Matrix
from assay.engines.cuda.place import Placement
from assay.engines.cuda.product_steps import Part
from assay.engines.plan.values import AttentionMask


@dataclass
class Addresses:
    """The buffers that a program is compiled for. The engine replaces a buffer when a program needs a larger one."""

    arena: int  # values
    step: int  # tables of the step
    counters: int  # zeros, which kernels leave as zeros
    cache: int
    states: int = 0  # state slots


@dataclass(frozen=True)
class Resolver:
    """The context of a compilation, where its values lie, and the buffers."""

    context: CompileContext
    placement: Placement
    base: Addresses

    def at(self, value: Value | None) -> int:
        return self.base.arena + self.placement.offsets[value.memory] + value.offset if value else 0

    def size(self, value: Value) -> int:
        return self.placement.sizes[value]

    def inside(self, value: Value | None) -> bool:
        """Whether the walk that reads the value also writes it."""
        return value is not None and value.memory in self.placement.inside

    def table(self, name: str) -> int:
        return self.base.step + 4 * self.context.shape.tables()[name][0]

    def weights(self, name: str) -> int:
        """A norm's weights or a bias; 0 for an empty name."""
        return self.context.tensors.vector(name) if name else 0

    def acts(self, of: Quantised | None) -> Any:
        return structs.Acts(*map(self.at, of.values), of.stride, of.padded_rows) if of else structs.Acts()

    def rows(self) -> Any:
        return structs.Rows(*(self.table(n) for n in ("tokens", "positions", "slots", "tables", "pages")))

    def cache(self) -> Any:
        return structs.Cache(self.base.cache, self.context.cache.page_bytes, self.context.cache.positions_at)

    def mask(self, mask: AttentionMask | None) -> Any:
        if mask is None:
            return structs.Mask()
        slopes = np.array(mask.slopes, np.float32)
        return structs.Mask(
            sinks=self.weights(mask.sinks),
            slopes=self.context.tensors.constant(slopes) if mask.slopes else 0,
            window=mask.window,
            chunk=mask.chunk,
            causal=int(mask.causal),
            scale=mask.scale,
            cap=mask.cap,
        )

    def parts(self, parts: Sequence[Part], count: Callable[[Matrix], int]) -> tuple[Any, int]:
        """The matrices of a product as structs, and the sum of their counts (groups, or tiles)."""
        array, first = (structs.Product * 4)(), 0
        for i, p in enumerate(parts):
            gate_out, up_out = (self.at(v) for v in p.kept)
            bias = self.weights(p.bias) + 4 * p.first if p.bias else 0
            array[i] = structs.Product(
                p.matrix.struct(), self.at(p.out), bias, self.at(p.residual), gate_out, up_out, p.matrix.rows, first,
                int(p.matrix.paired), p.act,
            )  # fmt: skip
            first += count(p.matrix)
        return array, first


def halved(value: Value | None, rows: int) -> int:
    """The argument `halved` of a kernel: padded rows and kind of a 16-bit result, or 0 (arithmetic.h, store_halved)."""
    kind = HALVED.get(value.layout.value) if value else None
    return 0 if kind is None else padded_rows(rows) | int(kind) << HALVED_SHIFT
