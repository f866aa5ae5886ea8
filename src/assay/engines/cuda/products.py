"""Matrix products as launches: one token, a few, many. Those of several matrices are in experts.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from assay.engines.cuda import structs
from assay.engines.cuda.arrange import Part, arrange, by_kernel, by_layouts, warps_for
from assay.engines.cuda.device import Launch
from assay.engines.cuda.layout import LANES, UNIT, Format, Matrix
from assay.engines.cuda.program import COPIES, HALVED, Quantised, Value, quantised, room
from assay.engines.cuda.walk import LONG
from assay.engines.cuda.walk_few import FewWalks
from assay.engines.plan.fuse import Gated, Products
from assay.errors import AssayError
from assay.graph import Node

_GIVEN, _PLAIN, _NORMED = range(3)
# Tiles of gemm_many.cu: rows, tokens, groups of warps that share the units, most stages.
TILES = ((128, 128, 1, 2), (128, 64, 1, 2), (64, 64, 1, 2), (32, 64, 2, 3), (32, 32, 1, 2))
TENSOR_TILES = tuple(structs.TENSOR_TILES)  # kernels of gemm_tensor.cu
HALF_TILES = tuple(structs.HALF_TILES)  # those of gemm_halves.cu
Tiles = tuple[str, int, int, int, int, int]  # a kernel, its rows and tokens a tile, threads, stages, shared memory


def _tiles(matrix: Matrix, rows: int) -> int:
    """Of so many rows each."""
    return -(-matrix.groups * matrix.group // rows)


def _weights(formats: Sequence[Format], tile: int) -> int:
    return max(tile * (16 * f.chunks + 4 * f.word) for f in formats)


def few_room(formats: Sequence[Format], tile: int, tokens: int, warps: int) -> tuple[int, int]:
    """Of gemm.h: bytes of a stage, and shared memory."""
    more = max(64 * tile + (64 * tile + 32 * tokens) * f.sums for f in formats)
    size = tokens * 336 + _weights(formats, tile) + more
    return size, warps * (size + 8 * tile * (tokens if tokens == 8 else tokens + 8))


def tile_room(
    formats: Sequence[Format], tile: int, tokens: int, groups: int, most_stages: int, room: int
) -> tuple[int, int]:
    """Of gemm_tiles.h: stages that fit, and shared memory."""
    sums = any(f.sums for f in formats)
    fixed, stage = 2 * tile * (336 + 64 * sums), tokens * (336 + 32 * sums) + _weights(formats, tile)
    sent = 8 * (groups - 1) * tile * tokens  # partial sums on their way from one group of warps to another
    stages = min(most_stages, ((room - sent) // groups - fixed) // stage)
    return stages, groups * (fixed + stages * stage) + sent


class ProductSteps(FewWalks):
    """Those of a group of linears, and of a gate with its up."""

    # -- products ------------------------------------------------------------------------------------------------

    def _prepare(self, x: Value, rows: int, norm: Node | None, matrix: Matrix, step: int = 0) -> Quantised:
        """Quantised rows of a value, normed on the way; by whoever made it, or here. `step`: activations.h."""
        key = id(x), matrix.columns, step, norm.name if norm else ""
        if key not in self.prepared:
            width, stride = matrix.columns, matrix.units * UNIT
            blocks = COPIES if rows == 1 and not step else rows
            acts = quantised(step or blocks, stride)

            def make() -> Launch:
                args = structs.RowArgs(
                    x=self._at(x),
                    w=self.tensors.vector(norm.weights[0]) if norm else 0,
                    acts=self._acts(acts, stride, step),
                    width=width,
                    parts=rows,
                    eps=float(norm.attr("eps")) if norm else 0.0,
                )
                if norm:
                    return Launch("quantise_rows", (blocks, 1, 1), min(1024, stride // 8), args, 16 + 4 * width)
                return Launch("quantise_rows", (blocks, -(-stride // 2048), 1), 256, args)

            self._step([x, *acts], make)
            self.prepared[key] = acts
        return self.prepared[key]

    def _halved(self, name: str, norm: str | None, domain: str, matrix: Matrix) -> Value:
        """Rows of a value as 16-bit floats of the matrix's type, normed on the way if `norm` names a node."""
        node = self.graph[norm] if norm else None
        x, rows, stride = self._get(node.inputs[0] if node else name, domain), self._rows(domain), matrix.units * UNIT
        if id(x) in self.as_halves:
            return x
        out, width = Value(2 * room(rows) * stride), matrix.columns

        def make() -> Launch:
            weights, eps = (self.tensors.vector(node.weights[0]), float(node.attr("eps"))) if node else (0, 0.0)
            kind = HALVED.index(matrix.format.name if matrix.format.floats else "half")
            args = structs.HalveArgs(self._at(x), weights, self._at(out), width, stride, room(rows), eps, kind)
            return Launch("halve_rows", (rows, 1, 1), min(512, stride // 8), args, 48 + 4 * width)

        self._step([x, out], make)
        return out

    def _norm(self, node: Node) -> None:
        domain, shape = self._domain(node.name), self.graph.shapes[node.inputs[0]]
        parts = int(shape[1]) if len(shape) == 3 else node.attr("n_head") or 1
        x, out, width = self._get(node.inputs[0], domain), self._new(node.name), self._width(node.name)
        each = width // parts
        whole = bool(node.weights) and math.prod(int(n) for n in self.graph.weights[node.weights[0]]) == width

        def make() -> Launch:
            w, b = (*(self.tensors.vector(name) for name in node.weights), 0, 0)[:2]
            args = structs.RowArgs(
                x=self._at(x),
                w=w,
                b=b,
                out=self._at(out),
                width=width,
                parts=parts,
                eps=float(node.attr("eps")),
                w_step=each if whole else 0,
            )
            return Launch(node.op, (self._rows(domain) * parts, 1, 1), 256 if each >= 256 else 64, args, 16 + 4 * each)

        self._step([x, out], make)

    def _products(self, group: Products) -> None:
        first = group.products[0].linear
        domain = self._domain(first.name)
        parts = []
        for p in group.products:
            residual = self._get(p.residual, domain) if p.residual else None
            bias = p.bias.weights[0] if p.bias else ""
            matrix = self.tensors.matrix(p.linear.weights[0])
            for n in self.sliced.get(p.last.name, ()):
                start, rows = int(n.attr("start")), self._width(n.name)
                view = replace(matrix, rows=rows, data=matrix.data + start // matrix.group * matrix.group_bytes)
                parts.append(Part(view, n.name, bias, first=start))
            if p.last.name not in self.sliced:
                parts.append(Part(matrix, p.last.name, bias, residual=residual))
        self._multiply(first, domain, parts)

    def _gated(self, group: Gated) -> None:
        gate, up, glu = group.gate, group.up, group.glu
        domain, act = self._domain(glu.name), self._act(glu)
        if glu.op == "glu_split":  # halves of one linear
            self._multiply(gate, domain, [Part(self.tensors.matrix(gate.weights[0]), gate.name)])
            self._map(glu, glu.inputs, integer=act)
            return
        names = gate.weights[0], up.weights[0]
        if self.tensors.same_format(*names):
            kept = tuple(self._new(n.name) if n.name in self.keep else None for n in (gate, up))
            part = Part(self.tensors.matrix(*names), glu.name, act=act, kept=kept)
            self._multiply(gate, domain, [part])
            return
        self._multiply(gate, domain, [Part(self.tensors.matrix(n.weights[0]), n.name) for n in (gate, up)])
        self._map(glu, glu.inputs, integer=act)

    def _multiply(self, linear: Node, domain: str, parts: list[Part]) -> None:
        rows, norm = self._rows(domain), self.fused_norms.get(linear.name)
        form = parts[0].matrix.format
        halves = len(parts) == 1 and self.tensors.tensor(form) and (rows > 8 or not form.floats)
        for p in parts:
            p.out = self._new_read(p.name, form.name if form.floats else "half") if halves else self._new(p.name)
        if self.tensors.tensor(form):
            halved = self._halved(linear.inputs[0], norm, domain, parts[0].matrix)
            tiles = self._half_tiles if form.floats else self._tensor_tiles
            for layouts, some in by_layouts(parts):
                found = tiles(rows, some)
                if f"{found[0]}_{layouts}" in structs.KERNELS:
                    found = (f"{found[0]}_{layouts}", *found[1:])
                self._many((halved, None, None), rows, some, found)
            return
        if rows == 1:
            for kernel, chosen in by_kernel(parts):
                self._few(kernel, linear.inputs[0], norm, domain, chosen)
            return
        if form.floats:
            for i in range(0, len(parts), 4):
                if not self._float_products(linear.inputs[0], norm, domain, parts[i : i + 4]):
                    self._few("", linear.inputs[0], norm, domain, parts[i : i + 4])
            return
        node, gating = self.graph[norm] if norm else None, self.gatings.get(linear.inputs[0])
        before = node or gating
        x = self._get(before.inputs[0] if before else linear.inputs[0], domain)
        if self.walks:
            for _, chosen in by_kernel(parts):
                self._few_product(x, node, chosen, gating)
            return
        acts = self._prepare(x, rows, node, parts[0].matrix, room(rows))
        for i in range(0, len(parts), 4):
            self._many(acts, rows, parts[i : i + 4], self._tiles_for(rows, parts[i : i + 4]))

    def _few(self, kernel: str, name: str, norm: str | None, domain: str, parts: Sequence[Part]) -> None:
        """One token; of floats, a few: a block of threads norms for itself."""
        node, gating = self.graph[norm] if norm else None, self.gatings.get(name)
        before = node or gating
        x = self._get(before.inputs[0] if before else name, domain)
        matrix, rows = parts[0].matrix, self._rows(domain)
        given = None if matrix.format.floats or self.walks else self._prepare(x, rows, node, matrix)

        def make() -> Any:
            array, groups = self._part_structs(parts, lambda m: m.groups)
            args = structs.ProductArgs(
                parts=array,
                acts=self._acts(given, matrix.units * UNIT),
                x=self._at(x),
                norm=self.tensors.vector(node.weights[0]) if node else 0,
                n_parts=len(parts),
                groups=groups,
                tokens=rows,
                columns=matrix.columns,
                x_stride=matrix.columns,
                prologue=_GIVEN if given else _NORMED if node else _PLAIN,
                rows_of_x=COPIES,
                eps=float(node.attr("eps")) if node else 0.0,
            )
            if not kernel:
                each = 4 * (matrix.units * UNIT + max(64, matrix.tiles * LANES))  # bytes that a row of x takes
                fit = next((n for n in (4, 2) if n * each <= self.shared), 1)
                grid = (groups, -(-rows // fit), 1)
                return Launch(f"product_floats_{fit}", grid, 32 * warps_for(matrix.tiles), args, fit * each)
            if self.walks:
                return self._walk_product(args, parts, groups, x)
            return self._one(kernel, args, parts, groups, (1, 1))

        long = not (node or matrix.format.floats or id(x) in self.as_codes) and matrix.columns >= LONG
        if self.walks and (long or gating):
            x = self._walk_codes(x, matrix, gating)
        if self.walks:
            # The second layout of a walk is the larger one.
            parts = sorted(parts, key=lambda p: p.matrix.format.tile_bytes)
            self.read_by_all.add(id(x))
            self.of_products |= {id(p.out) for p in parts}
            self.side_by_side |= {id(p.out) for p in parts if len(parts) > 1}
        used = [*(given or [x]), *(v for p in parts for v in (p.out, p.residual, *p.kept))]
        if self.walks:
            layouts = frozenset(p.matrix.format.name for p in parts)
            self._step(used, make, layouts, self._walk_room(parts, id(x) in self.as_codes))
        else:
            self._step(used, make)

    def _float_products(self, name: str, norm: str | None, domain: str, parts: Sequence[Part]) -> bool:
        """Float weights by the tiles of gemm_floats.cu, for more than eight tokens where there is room."""
        rows, matrix = self._rows(domain), parts[0].matrix
        fitting: list[Tiles] = []
        for kernel, (tile, tokens, groups) in structs.FLOAT_TILES.items():
            sums, step = 4 * tokens * (tile + 4), 4 * 16 * (tile + 4 + tokens + 4)
            shared = sums * (groups + 1 if groups > 1 else 1) + 2 * groups * step
            if shared <= self.shared - 1024 and (tokens < 2 * rows or tokens == 32):
                fitting.append((kernel, tile, tokens, 256, 0, shared))
        if rows <= 8 or not fitting:
            return False
        if norm and (norm, domain) not in self.values:
            self._norm(self.graph[norm])
        x = self._get(norm or name, domain)
        kernel, tile, tokens, threads, _, shared = self._largest(rows, parts, fitting)

        def make() -> Launch:
            array, tiles = self._part_structs(parts, lambda m: _tiles(m, tile))
            args = structs.ProductArgs(
                parts=array, x=self._at(x), n_parts=len(parts), groups=tiles, tokens=rows, columns=matrix.columns,
                x_stride=matrix.columns, prologue=_PLAIN,
            )  # fmt: skip
            return Launch(kernel, (-(-rows // tokens), tiles, 1), threads, args, shared)

        self._step([x, *(v for p in parts for v in (p.out, p.residual, *p.kept))], make)
        return True

    def _one(self, kernel: str, args: Any, parts: Sequence[Part], groups: int, rest: tuple[int, int]) -> Launch:
        """product_one: one row of x for each of `rest` blocks."""
        processors = max(1, self._processors() // (rest[0] * rest[1]))
        found = arrange(parts, groups, processors=processors, most=self.shared)
        if found is None:
            columns = parts[0].matrix.columns
            raise AssayError(
                f"node {parts[0].name}: rows of {columns} values do not fit this GPU's shared memory; use --engine cpu"
            )
        args.slots, args.stages, args.share, args.extra = found.slots, found.piece, found.share, found.extra
        args.shift = parts[0].matrix.group.bit_length() - 1
        return Launch(f"product_one_{kernel}", (found.blocks, *rest), found.threads, args, found.shared)

    def _many(
        self,
        acts: tuple[Value, Value | None, Value | None],
        rows: int,
        parts: Sequence[Part],
        tiles_of: Tiles,
    ) -> None:
        """Tensor cores: tiles of rows and tokens."""
        kernel, tile, tokens, threads, stages, shared = tiles_of
        matrix, made = parts[0].matrix, self.tensors.made(parts[0].matrix.format)
        chains = matrix.chains if made else 1
        split, grid = chains > 1 and tokens <= 64, (-(-rows // tokens), sum(_tiles(p.matrix, tile) for p in parts))
        sums = Value(4 * math.prod(grid) * tile * tokens * (chains if split else 1)) if chains > 1 else None

        def make() -> Launch:
            array, tiles = self._part_structs(parts, lambda m: _tiles(m, tile))
            args = structs.ProductArgs(
                parts=array,
                acts=structs.Acts(*(self._at(v) for v in acts), matrix.units * UNIT, room(rows)),
                n_parts=len(parts),
                groups=tiles,
                tokens=rows,
                columns=matrix.columns,
                prologue=_GIVEN,
                stages=stages,
                share=room(rows) if id(parts[0].out) in self.as_halves else 0,
            )
            if kernel in structs.HALF_TILES:  # blocks of threads take tiles in turn
                return Launch(kernel, (min(math.prod(grid), self._processors()), 1, 1), threads, args, shared)
            if made:
                args = structs.TensorArgs(
                    product=args,
                    partial=self._at(sums),
                    arrived=self.memory.counters,
                    room=room(rows) if id(parts[0].out) in self.as_halves else 0,
                    chains=chains,
                    split=int(split),
                )
                for i, p in enumerate(parts):
                    args.factors[i] = self.tensors.factors_of(p.matrix)
                    args.codes[i], args.pairs[i] = p.matrix.format.codes, p.matrix.format.pairs
            return Launch(kernel, (*grid, chains if split else 1), threads, args, shared)

        self._step([*acts, sums, *(v for p in parts for v in (p.out, p.residual, *p.kept))], make)

    def _tiles_for(self, rows: int, parts: Sequence[Part]) -> Tiles:
        """A kernel, its rows and tokens a tile, threads, stages (or the bytes of one) and shared memory."""
        formats, room = [p.matrix.format for p in parts], self.shared - 1024
        few = sum(_tiles(p.matrix, 32) for p in parts) <= self._processors() and not parts[0].matrix.paired
        tile, name = (16, "product_16_") if few else (32, "product_")
        for tokens in (8, 16):
            size, shared = few_room(formats, tile, tokens, 8)
            if rows <= tokens and shared <= room:
                return f"{name}{tokens}", tile, tokens, 256, size, shared
        fitting = []
        for tile, tokens, groups, most_stages in TILES:
            stages, shared = tile_room(formats, tile, tokens, groups, most_stages, room)
            if stages >= 2:
                name = f"product_{tile}_{tokens}"
                fitting.append((name, tile, tokens, structs.KERNELS[name][1], stages, shared))
        fitting = [t for t in fitting if t[2] < 2 * rows] or fitting[-1:]
        if rows > 32 and len(fitting) > 1:
            fitting = [t for t in fitting if t[2] > 32]
        return self._largest(rows, parts, fitting)

    def _largest(self, rows: int, parts: Sequence[Part], tiles: Sequence[Tiles]) -> Tiles:
        """The first that every multiprocessor has one of, or the last."""
        for found in tiles:
            blocks = sum(_tiles(p.matrix, found[1]) for p in parts) * -(-rows // found[2])
            if blocks >= 0.9 * self._processors():
                return found
        return tiles[-1]

    def _tensor_tiles(self, rows: int, parts: Sequence[Part]) -> Tiles:
        """The same for quantised weights as halves, by kernels of gemm_tensor.cu."""
        fitting = {name: t for name in TENSOR_TILES if (t := self._tensor_tile(name, rows, parts))}
        few = max(8, 1 << (rows - 1).bit_length())
        tiles, processors = self._chains_of(parts), self._processors()
        full = few >= 32 and -(-rows // 32) * tiles > 3 * processors
        most = 64 if 0.7 * processors <= tiles <= processors else 32  # of turns: as many blocks of threads as can be
        chosen = fitting.get(f"tensor_{few}" if full else f"turns_{min(few, most)}")
        if rows <= 64 and chosen:
            return chosen
        large = [t for t in fitting.values() if t[2] < 2 * rows and (t[2] >= 64) == t[0].startswith("tensor")]
        return self._largest(rows, parts, large or list(fitting.values())[-1:])

    def _chains_of(self, parts: Sequence[Part]) -> int:
        """Chains of 64 rows."""
        return sum(_tiles(p.matrix, 64) for p in parts) * parts[0].matrix.chains

    def _tensor_tile(self, kernel: str, rows: int, parts: Sequence[Part]) -> Tiles | None:
        """How a kernel of gemm_tensor.cu is launched, if there is room: groups of four warps have 64 rows each, or take
        units in turn. A warp has two units of weights in shared memory."""
        tokens, formats = int(kernel.split("_")[1]), [p.matrix.format for p in parts]
        row = 2 * max(16 * (f.codes + f.pairs) for f in formats)
        work, most = self._chains_of(parts) * -(-rows // tokens), self.shared - 1024
        if kernel.startswith("tensor"):
            stage = 128 * tokens * (1 if tokens > 64 else 2)  # steps of 64 or 128 columns
            ring = 8 if tokens == 128 else 4
            chains = parts[0].matrix.chains > 1 and tokens == 64
            for groups in (2,) if tokens > 64 else (1,) if rows > 64 or chains else (2, 4, 1):
                shared = ring * (stage + 16) + 64 * groups * row + 8
                at_once = groups * self._processors() * min(4 // groups, most // (shared + 1024))
                if shared <= most and (at_once >= work or groups != 2 or tokens > 64):
                    name = f"{kernel}_alone" if (groups, tokens) == (1, 64) else kernel  # it has registers for two
                    return name, 64 * groups, tokens, 128 * groups, 0, shared
            return None
        alone = work <= self._processors()  # else two blocks a multiprocessor
        first = structs.TENSOR_TILES[kernel] // 128
        for groups, limit in ((first, most), (3, most), (2, most)) if alone else ((2, most // 2 - 512), (2, most)):
            shared = groups * (512 * tokens + 64 * row + 8) + 256 * tokens + 8
            if shared <= limit:
                return kernel, 64, tokens, 128 * groups, 0, shared
        return None

    def _half_tiles(self, rows: int, parts: Sequence[Part]) -> Tiles:
        """The same for 16-bit floats, by kernels of gemm_halves.cu: what a multiprocessor reads decides, of tiles that
        have half of the tokens, or 64: weights are read again for every tile of tokens."""
        most, found = self.shared - 1024, []
        for kernel in HALF_TILES:
            tile, tokens = (int(n) for n in kernel.split("_")[1:])
            step = 128 * (tile + tokens) * (2 if tile == 64 else 1) + 16
            beside = 0 if tokens == 128 else 16384  # room for a launch that halves
            ring = max(3, min(12, (most - beside) // step))
            turns = -(-sum(_tiles(p.matrix, tile) for p in parts) * -(-rows // tokens) // self._processors())
            if tokens <= room(rows) and ring * step <= most:
                launch = kernel, tile, tokens, structs.HALF_TILES[kernel], ring, ring * step
                found.append((2 * tokens < min(128, room(rows)), turns * (tile + tokens), launch))
        if rows <= 8 and (not found or sum(_tiles(p.matrix, 64) for p in parts) < self._processors()):
            size = 8 * 528 + 32 * 512  # a unit of 8 tokens and 32 rows
            for name, splits in (("product_tensor_8", 8), ("product_tensor_8_small", 4)):
                shared = splits * (size + 2 * 32 * 8 * 4)
                if shared <= most:
                    return name, 32, 8, 32 * splits, size, shared
        return min(found)[2]
