"""Products of several matrices: each pair (token, choice) has the matrix of an expert, or of a head."""

from __future__ import annotations

from assay.engines.cuda import structs
from assay.engines.cuda.arrange import Part, by_kernel
from assay.engines.cuda.device import Launch
from assay.engines.cuda.layout import UNIT, Matrix
from assay.engines.cuda.products import ProductSteps, Tiles, few_room, tile_room
from assay.engines.cuda.program import Quantised, Value, quantised
from assay.graph import Node

_GIVEN, _PLAIN = range(2)  # product.h, Prologue
_ROWS = 32768  # most blocks of threads along the second axis of a grid
# Kernels of experts.cu: pairs a matrix from which they are taken, their rows and slots a tile.
TILES = ((48, 64, 64), (24, 32, 32), (0, 32, 8))
# Pairs a matrix from which they are sorted: where a matrix is small, and from so many bytes on.
SORTED, SORTED_LARGE, _LARGE = 4, 2, 2 << 20


class ExpertSteps(ProductSteps):
    """Pair by pair or, where many pairs have the same matrix, sorted by matrix and in tiles."""

    def _expert_linear(self, node: Node) -> None:
        """A matrix a chosen expert, or a head: heads lie side by side in a row, and matrix h takes head h."""
        domain = self._domain(node.name)
        x, idx = (*(self._get(name, domain) for name in node.inputs), None)[:2]
        assert x
        matrix, out = self.tensors.matrix(node.weights[0]), self._new(node.name)
        choices = self._width(node.inputs[1]) if idx else matrix.count
        pairs = self._rows(domain) * choices
        shared_rows = choices if idx and self._width(node.inputs[0]) == matrix.columns else 1
        tiles = self._expert_tiles(pairs, matrix)
        if tiles:
            self._sorted(x, idx, Part(matrix, node.name, out=out), pairs, shared_rows, tiles)
            return
        rest = (min(pairs, _ROWS), -(-pairs // _ROWS))
        given = None if matrix.format.floats else self._prepare(x, pairs // shared_rows, None, matrix)

        def make() -> Launch:
            array_parts = [Part(matrix, node.name, out=out)]
            array, groups = self._part_structs(array_parts, lambda m: m.groups)
            args = structs.ProductArgs(
                parts=array,
                acts=self._acts(given, matrix.units * UNIT),
                x=self._at(x),
                experts=self._at(idx),
                expert_bytes=matrix.size,
                n_parts=1,
                groups=groups,
                tokens=pairs,
                columns=matrix.columns,
                x_stride=matrix.columns,
                prologue=_PLAIN,
                rows_of_x=shared_rows,
                n_experts=matrix.count,
            )
            return self._one(by_kernel(array_parts)[0][0], args, array_parts, groups, rest)

        self._step([*(given or [x]), idx, out], make)

    def _expert_tiles(self, pairs: int, matrix: Matrix) -> Tiles | None:
        """How sorted pairs are multiplied, if they are."""
        each, formats, room = pairs / matrix.count, [matrix.format], self.shared - 1024
        if matrix.format.floats or each < (SORTED_LARGE if matrix.size >= _LARGE else SORTED):
            return None
        for least, tile, tokens in TILES:
            name = f"experts_{tile}_{tokens}"
            threads = structs.KERNELS[name][1]
            if tokens == 8:
                stages, shared = few_room(formats, tile, tokens, threads // 32)
            else:
                stages, shared = tile_room(formats, tile, tokens, 1, 2, room)
            if each >= least and stages >= 2 and shared <= room:
                return name, tile, tokens, threads, stages, shared
        return None

    def _sorted(self, x: Value, idx: Value | None, part: Part, pairs: int, share: int, tiled: Tiles) -> None:
        """`share` pairs have one row of x."""
        kernel, tile, tokens, threads, stages, shared = tiled
        matrix = part.matrix
        tiles = (pairs + min(pairs, matrix.count) * (tokens - 1)) // tokens  # the most that there can be
        slots, stride = tiles * tokens, matrix.units * UNIT
        lists = self._sort(idx, pairs, matrix.count, tokens, tiles)
        acts = self._prepare_pairs(x, lists[0], matrix, slots, share)

        def make() -> Launch:
            array, rows = self._part_structs([part], lambda m: -(-m.groups * m.group // tile))
            args = structs.ProductArgs(
                parts=array,
                acts=self._acts(acts, stride, slots),
                expert_bytes=matrix.size,
                n_parts=1,
                groups=rows,
                tokens=pairs,
                columns=matrix.columns,
                prologue=_GIVEN,
                stages=stages,
            )
            return Launch(kernel, (tiles, rows, 1), threads, structs.SortedArgs(args, *map(self._at, lists)), shared)

        self._step([*acts, *lists, part.out], make)

    def _sort(self, idx: Value | None, pairs: int, count: int, tokens: int, tiles: int) -> tuple[Value, Value]:
        """The pair of each slot and the matrix of each tile, once for all products that make the same choice."""
        key = id(idx), pairs, count, tokens
        if key not in self.sorted_pairs:
            # Nobody else's memory: a launch may be run again on its own (bench/gpu.py), and these say what it touches.
            order, matrices = (Value(4 * n, first=0, pinned=True) for n in (tiles * tokens, tiles))

            def make() -> Launch:
                args = structs.SortArgs(*map(self._at, (idx, order, matrices)), pairs, count, tokens, tiles)
                threads = min(1024, max(256, -(-pairs // 256) * 32))
                return Launch("sort_pairs", (count, 1, 1), threads, args, 4 * (count + threads // 32))

            self._step([idx, order, matrices], make)
            self.sorted_pairs[key] = order, matrices
        return self.sorted_pairs[key]

    def _prepare_pairs(self, x: Value, order: Value, matrix: Matrix, slots: int, share: int) -> Quantised:
        """The quantised row of each slot, once for all products that read x."""
        key = id(x), matrix.columns, slots, f"pairs {id(order)}"
        if key not in self.prepared:
            stride = matrix.units * UNIT
            acts = self.prepared[key] = quantised(slots, stride)

            def make() -> Launch:
                args = structs.PairArgs(
                    self._at(x), self._at(order), self._acts(acts, stride, slots), matrix.columns, share
                )
                return Launch("quantise_pairs", (slots, -(-stride // 2048), 1), 256, args)

            self._step([x, order, *acts], make)
        return self.prepared[key]
