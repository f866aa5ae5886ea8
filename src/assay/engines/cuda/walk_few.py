"""The steps of walks of two to eight tokens (native/cuda/walk_few.h)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.engines.cuda import structs
from assay.engines.cuda.arrange import Part
from assay.engines.cuda.layout import UNIT, Matrix, rows_per_group
from assay.engines.cuda.program import Value
from assay.engines.cuda.walk import ANY, COLUMN, COUNTED, PRODUCT, QUANTISE, RESIDUAL, ROWS, WARPS, Walks, X, has_walk
from assay.graph import Node

_ALL, _SOME = 24, (12, 8, 6, 4)  # most units of x in shared memory at a time; where there are more, so many


class FewWalks(Walks):
    """Rows quantised for all blocks of threads, and products of them."""

    layouts: frozenset[str] = ANY  # of all products of the graph

    def _few_possible(self) -> bool:
        """Whether one kernel has all products of the graph."""
        names = {self.tensors.layout(n.weights[0]).name for n in self.graph if n.op == "linear"}
        self.layouts = frozenset(names)
        return not self.tensors.halves and has_walk(self.layouts) and not names & {*structs.NOT_FEW}

    def _few_codes(self, x: Value, norm: Node | None, matrix: Matrix, counted: bool, gating: Node | None) -> Value:
        if id(x) in self.as_codes:
            return x
        self.more |= bool(gating)
        key = id(x), matrix.columns, -1 - counted, norm.name if norm else ""
        if key not in self.prepared:
            codes, processors = Value(matrix.units * (UNIT * COLUMN + 4 * counted)), self._processors()

            def make() -> Any:
                args = structs.ProductArgs(x=self._at(x), columns=matrix.columns, tokens=self.shape.tokens)
                args.parts[0].out, args.parts[0].w = self._at(codes), matrix.struct()
                self._gating(args, gating)
                if norm:
                    args.norm, args.eps = self.tensors.vector(norm.weights[0]), float(norm.attr("eps"))
                fresh = X * bool(x.inside) + COUNTED * counted
                step = self._walk_step(QUANTISE, fresh, x, codes, structs.StepUnion(product=args))
                rows = min(self.shape.tokens, processors)
                step.first = rows * min(processors // rows, matrix.units) if norm else self.shape.tokens * matrix.units
                return step

            self._step([x, codes], make, ANY, 16 + 4 * matrix.columns if norm else 0)
            self.prepared[key] = codes, codes, codes
        return self.prepared[key][0]

    def _few_whole(self, columns: int) -> bool:
        if columns % UNIT or columns > _ALL * UNIT:
            return False
        least = columns * COLUMN + columns // UNIT * 4 * ROWS * rows_per_group(columns // UNIT, False)
        return least <= self._walk_free(self.layouts)

    def _few_cut(self, parts: Sequence[Part], free: int) -> tuple[int, int, int] | None:
        """Units of x that are taken at a time, groups of rows of a block of threads, and their shared memory: a thread
        has one result."""
        matrix = parts[0].matrix
        groups = -(-sum(p.matrix.groups for p in parts) // self._processors())
        x, sums = UNIT * COLUMN, 4 * ROWS * matrix.group  # of a unit
        most = 32 * WARPS // (ROWS * (matrix.group // 2 if matrix.paired else matrix.group))

        def turns(batch: int) -> float:
            """Tiles that a warp has, one after the other, and what a batch costs."""
            whole, rest = divmod(groups, batch)
            tiles = whole * -(-batch * matrix.tiles // WARPS) + -(-rest * matrix.tiles // WARPS)
            return tiles + 0.3 * -(-groups // batch)

        units = matrix.units
        fit = min(groups, most, (free - units * x) // (units * sums))
        if units <= _ALL and fit > 0:
            batch = min(range(1, 1 + fit), key=turns)
            return units, batch, units * (x + batch * sums)
        for units in _SOME:  # the next part is on its way
            size = units * (2 * x + groups * sums)
            if units < matrix.units and groups <= most and len(parts) == 1 and size <= free:
                return units, groups, size
        return None

    def _few_product(self, x: Value, norm: Node | None, parts: Sequence[Part], gating: Node | None) -> None:
        parts, matrix = sorted(parts, key=lambda p: p.matrix.format.tile_bytes), parts[0].matrix
        cut = self._few_cut(parts, self._walk_free(self.layouts))
        if cut is None:
            self.fits = False
            return
        codes = self._few_codes(x, norm, matrix, cut[0] < matrix.units, gating)

        def make() -> Any:
            array, groups = self._part_structs(parts, lambda m: m.groups)
            args = structs.ProductArgs(parts=array, x=self._at(codes), n_parts=len(parts), groups=groups)
            args.columns, args.tokens, args.stages, args.slots = matrix.columns, self.shape.tokens, cut[0], cut[1]
            args.share, args.extra = divmod(groups, self._processors())
            args.shift = matrix.group.bit_length() - 1
            fresh = X * bool(codes.inside) + RESIDUAL * any(p.residual and p.residual.inside for p in parts)
            step = self._walk_step(PRODUCT, fresh, codes, parts[0].out, structs.StepUnion(product=args))
            step.ahead, step.first = matrix.format.tile_bytes, groups % self._processors()
            return step

        layouts = frozenset(p.matrix.format.name for p in parts)
        self._step([codes, *(v for p in parts for v in (p.out, p.residual))], make, layouts, cut[2])
