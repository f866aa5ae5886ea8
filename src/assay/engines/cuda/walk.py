"""Runs of products and attentions of one token as one launch (native/cuda/walk.cu)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.engines.cuda import structs
from assay.engines.cuda.arrange import Part
from assay.engines.cuda.device import Launch
from assay.engines.cuda.layout import FORMATS, UNIT, WIDE, WIDE_MIN, Format, Matrix
from assay.engines.cuda.program import ACTS, Folded, Steps, Value, WalkNorm
from assay.engines.cuda.shapes import BLOCK
from assay.graph import Node

PRODUCT, _ATTEND, _FOLD, QUANTISE, _NORM = range(5)
X, RESIDUAL, _CODES, _BY_TWO, _CUT, COUNTED = 1, 2, 4, 8, 16, 32  # walk.h, How
ANY: frozenset[str] = frozenset()  # a step that every kernel has
WARPS = 12  # that compute; one more fetches, and of several tokens there is another one
ROWS, COLUMN = 8, 10  # most tokens of a walk, and bytes of a column of theirs, quantised
_FIXED = 2 * ctypes.sizeof(structs.WalkStep) + 4 * ROWS  # shared memory beside pieces and what steps need, and
_PARTS = 32  # of several tokens, for parts of x
_AHEAD = 52 << 10  # bytes that a multiprocessor has asked for at a time, and
_AHEAD_OF_TWO = 44 << 10  # where two warps ask
_LARGE = 1.0  # pieces of a product, on average, by places of the ring, from which on they do
_PART = 2 + 256  # floats that 256 keys give a head: walk_attention.h
_COPIES = 2  # of what every block of threads reads
LONG = 8192  # columns from which a row is quantised once, and not by every block of threads
_FLOATS = 8 * 512  # bytes of a piece of floats
_FORMATS = {f.name: f for f in (*FORMATS.values(), WIDE, WIDE_MIN)}
_MOST = 4  # walks of a program; with more there are launches instead, which begin early


def _formats(layouts: frozenset[str], more: bool = False) -> list[Format]:
    """Those of the kernel that has all these; none where there is no such kernel."""
    kernels = structs.MORE_WALKS if more else structs.WALKS
    return [_FORMATS[name] for name in next((names for names in kernels if layouts <= set(names)), ())]


def _piece(form: Format) -> int:
    return _FLOATS if form.floats else form.tile_bytes


def _least(layouts: frozenset[str], piece: int = 0) -> tuple[int, int]:
    """Bytes of a place for pieces, and how many of them a kernel needs."""
    pieces = [_piece(form) for form in _formats(layouts) if form.name in layouts]
    return max(pieces[0], piece), 8 + WARPS * (1 + (pieces[-1] > pieces[0]))


@dataclass
class _Run:
    layouts: frozenset[str]
    begin: int
    end: int
    work: int
    piece: int
    memory: Value


def has_walk(layouts: frozenset[str]) -> bool:
    return bool(_formats(layouts))


class Walks(Steps):
    """Steps that can be those of a walk, and walks made of them."""

    runs: Sequence[_Run] = ()
    fits = True  # whether walks have all that the graph needs, and shared memory room for it
    more = False  # whether that is more than most need: walk.h

    def _few_whole(self, columns: int) -> bool:
        """Whether several rows of so many columns are taken at once, so that attention may leave them quantised."""
        raise NotImplementedError

    def _attention_args(
        self, values: tuple[Value | None, ...], k_pool: Any, v_pool: Any, splits: int, fields: dict[str, Any]
    ) -> Any:
        """What every kernel of one token is told; values: q, k, v, turn, out, partial."""
        q, k, v, turn, out, partial = map(self._at, values)
        return structs.AttentionArgs(
            q=q, k=k, v=v, turn=turn, out=out, partial=partial, arrived=self.memory.counters,
            cache=self._cache_struct(), keys=k_pool, values=v_pool, rows=self._rows_struct(), splits=splits, **fields,
        )  # fmt: skip

    def _part_structs(self, parts: Sequence[Part], per: Callable[[Matrix], int]) -> tuple[Any, int]:
        array, first = (structs.Product * 4)(), 0
        for i, p in enumerate(parts):
            gate_out, up_out = (self._at(v) for v in p.kept)
            array[i] = structs.Product(
                p.matrix.struct(),
                self._at(p.out),
                self.tensors.vector(p.bias) + 4 * p.first if p.bias else 0,
                self._at(p.residual),
                gate_out,
                up_out,
                p.matrix.rows,
                first,
                int(p.matrix.paired),
                p.act,
            )
            first += per(p.matrix)
        return array, first

    # -- steps ---------------------------------------------------------------------------------------------------

    def _walk_room(self, parts: Sequence[Part], codes: bool) -> int:
        """Shared memory of a product: x, then sums, or x as it was."""
        matrix = parts[0].matrix
        rows = -(-sum(p.matrix.groups for p in parts) // self._processors()) * matrix.group
        stride, sums = matrix.units * UNIT, 32 * rows * -(-matrix.units // 8)
        if matrix.format.floats:
            return 16 + 4 * stride + sums
        return 16 + stride // 8 * 11 + max(sums, 16 + 4 * stride * (not codes))

    def _walk_product(self, args: Any, parts: Sequence[Part], groups: int, x: Value) -> Any:
        args.share, args.extra = divmod(groups, self._processors())
        matrix = parts[0].matrix
        args.shift = matrix.group.bit_length() - 1
        tiles = matrix.tiles * -(-groups // self._processors())
        if len(parts) == 1 and WARPS % matrix.tiles == 0 and tiles <= 2 * WARPS:
            args.stages = WARPS // matrix.tiles  # a warp's second tile is so many groups behind the first
        fresh = X * bool(x.inside) + RESIDUAL * any(p.residual and p.residual.inside for p in parts)
        fresh += _CODES * (id(x) in self.as_codes)
        step = self._walk_step(PRODUCT, fresh, x, parts[0].out, structs.StepUnion(product=args))
        step.ahead, step.first = _piece(matrix.format), groups % self._processors()
        step.fresh += _BY_TWO * (2 * tiles <= WARPS and not matrix.format.floats)
        return step

    def _walk_step(self, kind: int, fresh: int, x: Value, out: Value | None, args: Any, *of_heads: int) -> Any:
        step = structs.WalkStep(kind, fresh, *of_heads, args=args)
        step.in_copies, step.in_bytes = x.copies, x.size // x.copies
        if out:
            step.out_copies, step.out_bytes = out.copies, out.size // out.copies
        return step

    def _walk_attention(
        self,
        values: tuple[Value, Value, Value, Value | None, Value],
        heads: int,
        k_pool: Any,
        v_pool: Any,
        fields: dict[str, Any],
        folded: Folded,
        codes: bool,
    ) -> None:
        """Attention, then the fold of its blocks; values: q, k, v, turn, out; `codes`: the result is wanted quantised
        and by nobody else."""
        dim, blocks, group = k_pool.dim, self.shape.blocks, heads // k_pool.heads
        window = fields["mask"].window
        if window:
            blocks = min(blocks, (window + BLOCK - 2) // BLOCK + 1)
            fields = {**fields, "max_blocks": blocks}
        all_heads = heads * self.shape.tokens
        self.more |= bool(folded.norms or folded.factor != 1.0 or window or fields["mask"].cap or dim == 256)
        at_once = 4 if group % 4 == 0 and dim <= 128 and all_heads * blocks > self._processors() else 1
        twos = self.shape.tokens > 1 and group % 2 == 0 and dim > 32
        if twos and all_heads * blocks <= 2 * self._processors():
            at_once = min(at_once, 2)
        codes = codes and (self.shape.tokens == 1 or self._few_whole(heads * dim))
        if codes:
            self.as_codes.add(id(values[-1]))
            values[-1].size = max(values[-1].size, heads * dim * COLUMN)
        partial = Value(4 * all_heads * blocks * _PART) if blocks > 1 else None

        def make(kind: int) -> Any:
            args = structs.WalkAttention(self._attention_args((*values, partial), k_pool, v_pool, group, fields))
            args.factor = folded.factor
            if folded.norms:
                args.q_norm, args.k_norm = (self.tensors.vector(n.weights[0]) for n in folded.norms)
                args.eps = float(folded.norms[0].attr("eps"))
            fresh = X * any(v.inside for v in values[:3]) + _CODES * codes
            of_heads = at_once, all_heads // at_once, dim.bit_length() - 1, -(-65536 // group)
            step = self._walk_step(kind, fresh, values[0], values[-1], structs.StepUnion(attention=args), *of_heads)
            step.second, step.per_row = -(-(1 << 24) // of_heads[1]), -(-65536 // k_pool.heads)
            if kind == _ATTEND:
                step.ahead, step.first = piece, min(of_heads[1] * blocks, self._processors())
            return step

        work, piece = 4 * (at_once * (9 * dim + 2 * BLOCK + 8) + dim + 4), min(64, dim) * 64
        self._step([*values, partial], lambda: make(_ATTEND), ANY, work, piece)
        if partial:
            self._step([*values, partial], lambda: make(_FOLD), ANY)

    def _walk_norm(self, norms: Sequence[WalkNorm]) -> None:
        """One norm or two, of rows that are there at the same time."""
        self.more = True
        rows, parts, tasks = self.shape.tokens, [], 0
        for n in norms:
            names = n.before.inputs if n.before else n.norm.inputs
            x, more = self._get(names[0], "tokens"), self._get(names[1], "tokens") if n.before else None
            other = [name for name in n.behind.inputs if name != n.norm.name] if n.behind else []
            residual = self._get(other[0], "tokens") if other else None
            out, total = self._new((n.behind or n.norm).name), self._new(n.before.name) if n.before else None
            parts.append((n.norm, (x, more, residual, total, out), self._width(n.norm.name), tasks))
            tasks += rows * -(-self._width(n.norm.name) // UNIT)
            if len(norms) == 1:
                self.of_products.add(id(out))

        def make() -> Any:
            args = structs.NormArgs(n_parts=len(parts), tokens=rows, tasks=tasks)
            fresh = 0
            for i, (norm, values, width, first) in enumerate(parts):
                x, more, residual, total, out = values
                w, b = (*(self.tensors.vector(name) for name in norm.weights), 0)[:2]
                args.parts[i] = structs.Norm(
                    x=self._at(x), w=w, b=b, residual=self._at(residual), out=self._at(out), more=self._at(more),
                    sum=self._at(total), columns=width, first=first, centred=norm.op == "layer_norm",
                    eps=float(norm.attr("eps")),
                )  # fmt: skip
                fresh |= X * any(v and v.inside for v in (x, more)) | RESIDUAL * bool(residual and residual.inside)
            x, *_, out = parts[0][1]
            step = self._walk_step(_NORM, fresh, x, out, structs.StepUnion(norm=args))
            step.first = tasks
            return step

        work = 16 + 4 * max(width for _, _, width, _ in parts)
        self._step([v for _, values, *_ in parts for v in values], make, ANY, work)

    def _gating(self, args: Any, gating: Node | None) -> None:
        """What a step does before it quantises a row (walk.h, Gating)."""
        if gating:
            args.parts[0].paired, args.parts[0].act = 1 + (gating.op == "act"), ACTS[str(gating.attr("act"))]

    def _walk_codes(self, x: Value, matrix: Matrix, gating: Node | None = None) -> Value:
        """A row that is long or gated, quantised by a step of its own."""
        self.more |= bool(gating)
        key = id(x), matrix.columns, -1, ""
        if key not in self.prepared:
            codes = Value(matrix.units * UNIT // 32 * 48)

            def make() -> Any:
                args = structs.ProductArgs(x=self._at(x), columns=matrix.columns)
                args.parts[0].out, args.parts[0].w = self._at(codes), matrix.struct()
                self._gating(args, gating)
                return self._walk_step(QUANTISE, X * bool(x.inside), x, codes, structs.StepUnion(product=args))

            self._step([x, codes], make, ANY)
            self.as_codes.add(id(codes))
            self.prepared[key] = codes, codes, codes
        return self.prepared[key][0]

    # -- walks ---------------------------------------------------------------------------------------------------

    def _join(self) -> bool:
        """Find the runs of steps that one kernel has, and give what they leave each other memory of its own: from the
        beginning of the program on, as it is cleared there."""
        runs: list[_Run] = []
        for i, (layouts, work, piece) in enumerate(self.walked):
            last = runs[-1] if runs and runs[-1].end == i else None
            if layouts is not None and last and _formats(last.layouts | layouts, self.more):
                last.layouts, last.end = last.layouts | layouts, i + 1
                last.work, last.piece = max(last.work, work), max(last.piece, piece)
            elif layouts is not None:
                runs.append(_Run(layouts, i, i + 1, work, piece, Value(0, 0, i)))
        self.runs = runs
        if not all(_formats(run.layouts, self.more) for run in runs):
            return False
        return 0 < len(runs) <= _MOST and all(self._keep_apart(run) and self._places(run)[0] for run in runs)

    def _keep_apart(self, run: _Run) -> bool:
        """Whether no result is read on the way, which nobody could wait for."""
        used = {id(v): v for values, _ in self.steps[run.begin : run.end] for v in values}
        inner = [v for v in used.values() if v.first >= run.begin]
        if any(v.pinned and v.first < v.last < run.end for v in inner) or run.layouts == ANY:
            return False
        for value in (v for v in inner if not v.pinned):
            if id(value) in self.read_by_all - self.side_by_side - self.as_codes and id(value) in self.of_products:
                value.size = -(-value.size // 256) * 256 * _COPIES
                value.copies = _COPIES
            value.inside, value.offset = run.memory, run.memory.size
            run.memory.size += -(-value.size // 256) * 256
        for value in (*used.values(), run.memory):
            value.first = min(value.first, run.begin)
            value.last = max(value.last, run.end - 1, *(v.last for v in inner if value is run.memory))
        self.steps[run.begin][0].append(run.memory)
        return True

    def _launches(self) -> list[Launch]:
        launches, done = [], 0
        for run in (*self.runs, None):
            until = run.begin if run else len(self.steps)
            launches += [self._made(make(), used) for used, make in self.steps[done:until]]
            if run:
                launches.append(self._walk(run))
                done = run.end
        cleared = [run.memory for run in self.runs if run.memory.size]
        return [self._made(self._clear(memory), [memory]) for memory in cleared] + launches

    def _made(self, launch: Launch, used: Sequence[Value]) -> Launch:
        launch.arena = self.memory.arena
        launch.values = tuple((self._at(value), value.size) for value in used)
        return launch

    def _clear(self, memory: Value) -> Launch:
        args = structs.ClearArgs(self._at(memory), memory.size // 16)
        return Launch("clear", (min(self._processors(), -(-memory.size // 4096)), 1, 1), 256, args)

    def _places(self, run: _Run) -> tuple[int, int]:
        """How many pieces there is room for (0: too few), and the bytes of each: of the first layout, if it has any."""
        room, fewest = _least(run.layouts, run.piece)
        found = min(60, (self.shared - 1024 - run.work - self._fixed()) // (room + 16))
        return found if found >= fewest else 0, room

    def _fixed(self) -> int:
        return _FIXED + (_PARTS if self.shape.tokens > 1 else 0)

    def _walk_free(self, layouts: frozenset[str]) -> int:
        """Shared memory that steps may have beside the fewest pieces of such weights."""
        room, fewest = _least(layouts)
        return self.shared - 1024 - self._fixed() - fewest * (room + 16)

    def _two_fetch(self, formats: Sequence[Format], steps: Sequence[Any], slots: int) -> bool:
        """Whether two warps fetch: one token, and products of which the ring does not hold one."""
        if self.more or self.shape.tokens > 1 or slots < 2 * WARPS + 12:
            return False
        products = [step.args.product for step in steps if step.kind == PRODUCT]
        pieces = sum(p.groups * int(p.parts[0].w.group_bytes) for p in products) / _piece(formats[0])
        large = pieces > _LARGE * slots * len(products) * self._processors()
        return bool(large and tuple(form.name for form in formats) in structs.TWO_WALKS)

    def _walk(self, run: _Run) -> Launch:
        steps = [make() for _, make in self.steps[run.begin : run.end]]
        (slots, room), formats = self._places(run), _formats(run.layouts, self.more)
        two, first = self._two_fetch(formats, steps, slots), 0
        for step in steps:
            piece, turn = step.ahead, WARPS
            step.first, first = first, (first + step.first) % self._processors()  # so far: how many it has
            if step.kind == PRODUCT:
                args, last = step.args.product, formats[-1] if len(formats) > 1 else None
                seconds = [p.first_group for p in args.parts[: args.n_parts] if last and p.w.format == last.number]
                step.second = (*seconds, args.groups)[0]
                if seconds:
                    step.fresh &= ~_BY_TWO
                if seconds and last and last.tile_bytes > room:
                    step.fresh |= _CUT
                    piece, turn = piece // 2, 2 * WARPS
            # A warp knows its next piece by its turn: the one that has that place now must be there, or it looks twice.
            most = slots - 4 if step.fresh & _CUT and (two or self.shape.tokens > 1) else slots - turn - 4
            step.ahead = max(4, min(most, _AHEAD // piece if piece else 0))
            if two:  # what either has asked for is there when the other one has asked for `ahead` more, an odd number
                step.ahead = min((most - 1) // 2, _AHEAD_OF_TWO // piece if piece else 5) - 1 | 1
        table = (structs.WalkStep * len(steps))(*steps)
        at = self.tensors.constant(np.frombuffer(bytes(table), np.uint8))
        args = structs.WalkArgs(at, self._table("slots"), len(steps), slots, room, self.shape.tokens)
        shared = slots * (room + 16) + self._fixed() + run.work
        used = {id(v): v for values, _ in self.steps[run.begin : run.end] for v in values if not v.inside}
        kind = ("few",) * (self.shape.tokens > 1) + ("more",) * self.more + ("two",) * two
        name = "_".join(kind + tuple(form.name for form in formats))
        grid, threads = (self._processors(), 1, 1), 32 * (WARPS + 1 + (two or self.shape.tokens > 1))
        launch = Launch(f"walk_{name}", grid, threads, args, shared, together=True)
        return self._made(launch, list(used.values()))
