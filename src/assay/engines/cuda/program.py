"""A program while it is made: values, their memory, and launches in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.engines.cuda import structs
from assay.engines.cuda.device import Launch, Played
from assay.engines.cuda.layout import UNIT, Tensors
from assay.engines.cuda.shapes import CacheLayout, Shape
from assay.engines.plan.batching import External
from assay.engines.plan.fuse import Plan
from assay.engines.reference.functions import rope_angles
from assay.errors import AssayError
from assay.graph import Graph, Node

ACTS = {"silu": 0, "gelu_tanh": 1, "gelu_erf": 2, "relu": 3}  # arithmetic.h
_MAPS = ("add", "glu", "bias", "scale", "softcap", "clamp_min", "div", "gather", "expert_scale", "expert_sum", "slice",
         "row_sum", "clamp", "act", "glu_split", "glu_oai", "expert_input", "expert_bias", "expert_gain", "sigmoid",
         "mul", "mul_weight", "concat")  # fmt: skip
MAP = {name: i for i, name in enumerate(_MAPS)}  # rows.cu, MapOp
_EACH = {
    "add",
    "glu",
    "scale",
    "softcap",
    "clamp_min",
    "clamp",
    "act",
    "sigmoid",
    "mul",
    "glu_oai",
}  # no matter what a row is
_POOLING = {"mean": 0, "first": 1, "last": 2}  # steps.cu, Pooling


@dataclass
class Value:
    """Memory of a program: bytes, live from the launch that writes it to the last that reads it."""

    size: int
    first: int = -1
    last: int = -1
    offset: int = 0
    pinned: bool = False  # results stay to the end
    inside: Value | None = None  # a larger one that it is part of: written and read by one walk (walk.py)
    copies: int = 1  # side by side, of a row that every block of threads reads


@dataclass(frozen=True)
class Folded:
    """What attention does itself: cache writes, RoPE of q and k; in a walk also norms of their heads before that, and a
    factor of q behind it."""

    names: frozenset[str]
    q: str  # what it reads
    k: str
    v: str
    rope: Node | None = None
    norms: tuple[Node, Node] | None = None  # of q, of k
    factor: float = 1.0


@dataclass(frozen=True)
class WalkNorm:
    """A norm that is a step of a walk, with the add of its input, and of its result."""

    norm: Node
    before: Node | None = None
    behind: Node | None = None

    @property
    def folded(self) -> set[str]:
        return {n.name for n in (self.norm, self.before, self.behind) if n}


Quantised = tuple[Value, Value, Value]  # rows of int8, scales with sums, sums (activations.h, Acts)


COPIES = 4  # of one row that all blocks of a product read
HALVED = ("half", "f16", "bf16")  # what products on tensor cores read: those of gemm_tensor.cu, and of gemm_halves.cu


def quantised(rows: int, stride: int) -> Quantised:
    return Value(rows * stride), Value(rows * stride // 4), Value(rows * stride // 8)


def room(rows: int) -> int:
    """Rows of activations that there is memory for: whole tiles of tokens."""
    return max(8, 1 << (rows - 1).bit_length()) if rows <= 128 else -(-rows // 256) * 256


@dataclass
class Program:
    """Launches in order, the memory they need, and where results lie in it."""

    shape: Shape
    launches: list[Launch]
    arena: int
    results: list[tuple[External, int]]  # and its offset
    aliases: dict[str, str]
    play: Played | None = None  # its graph,
    again: Played | None = None  # and without the tables from the host
    tables: dict[str, Any] = field(default_factory=dict)  # views of the step's words on the host

    def close(self) -> None:
        for graph in (self.play, self.again):
            if graph:
                graph.close()
        self.play = self.again = None


@dataclass
class Memory:
    """Addresses that a program is made for."""

    arena: int
    step: int  # the tables of the step
    counters: int  # zeros
    cache: int


@dataclass
class Steps:
    """The launches of a program as they are added, and the values that they read and write."""

    graph: Graph
    tensors: Tensors
    layout: CacheLayout
    shape: Shape
    keep: frozenset[str]
    shared: int
    cuts: tuple[tuple[int, int], ...]
    walks: bool = False  # whether steps of one token are those of a walk, where they can be
    steps: list[tuple[list[Value], Callable[[], Any]]] = field(default_factory=list)
    as_codes: set[int] = field(default_factory=set)  # values that a walk leaves quantised
    as_halves: dict[int, int] = field(default_factory=dict)  # values as products on tensor cores read them: whose
    read_by_all: set[int] = field(default_factory=set)  # x of its products
    side_by_side: set[int] = field(default_factory=set)  # results of one step
    of_products: set[int] = field(default_factory=set)
    walked: list[tuple[frozenset[str] | None, int, int]] = field(default_factory=list)  # as `_step` is told
    results: list[tuple[External, Value]] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    memory: Memory = field(default_factory=lambda: Memory(0, 0, 0, 0))
    plan: Plan = field(init=False)
    values: dict[tuple[str, str], Value] = field(default_factory=dict)
    prepared: dict[tuple[int, int, int, str], Quantised] = field(default_factory=dict)  # by value, columns, step, norm
    sorted_pairs: dict[tuple[int, ...], tuple[Value, Value]] = field(default_factory=dict)  # by choices, shape and tile
    turns: dict[tuple[Any, ...], Value] = field(default_factory=dict)
    fused_norms: dict[str, str] = field(default_factory=dict)
    fused_attention: dict[str, Folded] = field(default_factory=dict)
    walk_norms: dict[str, list[WalkNorm]] = field(default_factory=dict)  # a step each: walk.py
    sliced: dict[str, list[Node]] = field(default_factory=dict)  # of a product in a walk: parts that it leaves apart
    gatings: dict[str, Node] = field(default_factory=dict)  # nodes that who quantises them computes

    @property
    def table_at(self) -> dict[str, tuple[int, int]]:
        return self.shape.tables()

    # -- values --------------------------------------------------------------------------------------------------

    def _domain(self, name: str) -> str:
        domain = self.plan.domains[name]
        return "tokens" if domain == "outputs" and self.shape.one else domain

    def _wanted(self, node: Node) -> bool:
        """Not where only outputs need it and there are none."""
        return self._domain(node.name) != "outputs" or self.shape.outputs > 0

    def _rows(self, domain: str) -> int:
        return self.shape.rows(domain)

    def _width(self, name: str) -> int:
        width = 1
        for dim in self.graph.shapes[name]:
            width *= dim if isinstance(dim, int) else 1
        return width

    def _step(
        self,
        uses: Sequence[Value | None],
        make: Callable[[], Any],
        layouts: frozenset[str] | None = None,
        work: int = 0,
        piece: int = 0,
    ) -> None:
        """One launch; or, where layouts of weights are given, a step of a walk: its shared memory, a cached piece."""
        self.walked.append((layouts, work, piece))
        used = [v for v in uses if v]
        for value in used:
            if value.first < 0:
                value.first = len(self.steps)
            value.last = len(self.steps)
        self.steps.append((used, make))

    def _at(self, value: Value | None) -> int:
        return self.memory.arena + value.offset if value else 0

    def _acts(self, of: Quantised | None, stride: int, step: int = 0) -> Any:
        return structs.Acts(*(self._at(v) for v in of), stride, step) if of else structs.Acts()

    def _table(self, name: str) -> int:
        return self.memory.step + 4 * self.table_at[name][0]

    def _new(self, name: str) -> Value:
        domain, width = self._domain(name), self._width(name)
        value = self.values[name, domain] = Value(4 * width * self._rows(domain))
        if name in self.keep or name == self.graph.output:
            value.pinned = True
            self.results.append((External(name, self.plan.domains[name], width), value))
        return value

    def _new_read(self, name: str, *forms: str) -> Value:
        """A new value as those who read it want it: in 16 bits, if all of them multiply it so on tensor cores."""
        domain, width = self._domain(name), self._width(name)
        form = next((f for f in forms if self._read_as(f, name, domain)), "")
        if name == self.graph.output or name in self.keep or width % UNIT or not form:
            return self._new(name)
        value = self.values[name, domain] = Value(2 * room(self._rows(domain)) * width)
        self.as_halves[id(value)] = HALVED.index(form)
        return value

    def _room_of(self, value: Value, rows: int) -> int:
        """What a kernel is told of a value that it may have to leave in 16 bits (arithmetic.h, store_halved)."""
        return room(rows) | self.as_halves[id(value)] << 28 if id(value) in self.as_halves else 0

    def _read_as(self, form: str, name: str, domain: str = "") -> bool:
        """Whether every reader of a value multiplies it in this form, in this domain, and wants nothing else of it."""
        readers = [self.graph[reader] for reader in self.graph.users.get(name, ())]
        if len(readers) == 1 and readers[0].op in ("merge_heads", "split_heads"):
            return readers[0].name not in self.keep and self._read_as(form, readers[0].name, domain)
        return all(
            n.op == "linear"
            and self.tensors.format(n.weights[0]) == form
            and self._domain(n.name) == (domain or self._domain(n.name))
            for n in readers
        )

    def _bring(self, name: str) -> None:
        """A value that the caller brings: it is there before the first launch."""
        width = self._width(name)
        value = self.values[name, "tokens"] = Value(4 * width * self.shape.tokens, first=0, pinned=True)
        self.results.append((External(name, "tokens", width, given=True), value))

    def _get(self, name: str, domain: str) -> Value:
        found = self.values.get((name, domain))
        if found is not None:
            return found
        if domain == "outputs" and (name, "tokens") in self.values:
            source = self.values[name, "tokens"]
            value = Value(4 * self._width(name) * self._rows("outputs"))
            self._take(source, value, self._width(name), "outputs")
        elif domain == "keys" and name in self.layout.pools:
            self._fill(name)
            value = self._read_cache(name)
        else:
            raise AssayError(f"node {name}: the cuda engine cannot use it here; use --engine cpu")
        self.values[name, domain] = value
        return value

    def _assign(self) -> int:
        """Addresses for values that live at the same time, first fit; the size of the whole."""
        placed: list[Value] = []
        end = 0
        order = {id(v): v for v in [v for _, v in self.results] + [v for used, _ in self.steps for v in used]}
        inner = [v for v in order.values() if v.inside]
        for value in (v for v in order.values() if not v.inside):
            if value.pinned:
                value.last = len(self.steps)
            size = -(-value.size // 256) * 256
            taken = sorted(
                (v.offset, v.offset + -(-v.size // 256) * 256)
                for v in placed
                if v.first <= value.last and value.first <= v.last
            )
            at = 0
            for begin, stop in taken:
                if at + size <= begin:
                    break
                at = max(at, stop)
            value.offset = at
            end = max(end, at + size)
            placed.append(value)
        for value in inner:
            assert value.inside
            value.offset += value.inside.offset
        return end

    # -- what a step begins with ---------------------------------------------------------------------------------

    def _rows_struct(self) -> Any:
        return structs.Rows(*(self._table(n) for n in ("tokens", "positions", "slots", "tables", "pages")))

    def _cache_struct(self) -> Any:
        return structs.Cache(self.memory.cache, self.layout.page_bytes, self.layout.positions_at)

    def _step_args(self, **fields: Any) -> Any:
        return structs.StepArgs(rows=self._rows_struct(), cache=self._cache_struct(), **fields)

    def _embed(self, node: Node) -> None:
        which = {"inp_tokens": "tokens", "inp_pos": "positions"}.get(node.inputs[0])
        if which is None:
            raise AssayError(
                f"node {node.name}: the cuda engine embeds inp_tokens or inp_pos (found {node.inputs[0]}); "
                "use --engine cpu"
            )
        table, out, width = self.tensors.matrix(node.weights[0]), self._new(node.name), self._width(node.name)

        def make() -> Launch:
            args = self._step_args(table=table.struct(), out=self._at(out), which=self._table(which), width=width)
            return Launch("embed", (self.shape.tokens, 1, 1), 256, args)

        self._step([out], make)

    def _take(self, x: Value, out: Value, width: int, which: str) -> None:
        def make() -> Launch:
            args = self._step_args(x=self._at(x), out=self._at(out), which=self._table(which), width=width)
            return Launch("take_rows", (self.shape.outputs, 1, 1), 256, args)

        self._step([x, out], make)

    def _turn_key(self, node: Node) -> tuple[Any, ...]:
        attrs = node.all_attrs()
        mode = attrs.pop("mode")
        del attrs["n_head"], attrs["offset"]
        factors = self.tensors.array(node.weights[0]) if node.weights else None
        angles, magnitude = rope_angles(np.ones(1), factors, **attrs)
        return (mode == "neox", angles.astype(np.float64).tobytes(), float(magnitude), node.inputs[1])

    def _turn(self, key: tuple[Any, ...], domain: str) -> Value:
        """Cosines and sines of the rows' positions."""
        _, raw, magnitude, positions = key
        if (domain == "keys") != (positions == "inp_kpos") or positions not in ("inp_pos", "inp_kpos"):
            raise AssayError(f"the cuda engine cannot turn by {positions} here; use --engine cpu")
        found = self.turns.get((raw, magnitude, domain))
        if found:
            return found
        frequencies = np.frombuffer(raw, np.float64)
        n, n_rot = self._rows(domain), 2 * len(frequencies)
        table = {"tokens": "positions", "outputs": "output_positions", "keys": "key_positions"}[domain]
        value = self.turns[raw, magnitude, domain] = Value(4 * n * n_rot)

        def make() -> Launch:
            args = self._step_args(
                out=self._at(value),
                frequencies=self.tensors.constant(frequencies),
                which=self._table(table),
                n=n,
                n_rot=n_rot,
                magnitude=magnitude,
            )
            return Launch("rope_table", (max(1, min(-(-n * n_rot // 256), 1024)), 1, 1), 128, args)

        self._step([value], make)
        return value

    def _rope(self, node: Node) -> None:
        domain, key = self._domain(node.name), self._turn_key(node)
        table = self._turn(key, domain)
        x, out, width = self._get(node.inputs[0], domain), self._new(node.name), self._width(node.name)
        rows, heads, offset = self._rows(domain), int(node.attr("n_head")), int(node.attr("offset"))

        def make() -> Launch:
            args = structs.RopeArgs(
                self._at(x), self._at(table), self._at(out), rows, width, heads, len(key[1]) // 4, int(key[0]), offset
            )
            return Launch("rope", (max(1, min(-(-rows * width // 256), 4096)), 1, 1), 256, args)

        self._step([x, table, out], make)

    def _cache(self, node: Node) -> None:
        self._write_cache(node.inputs[0], node.name)
        if node.name in self.keep:
            self._read_cache(node.name, self._new(node.name))

    def _write_cache(self, source: str, to: str) -> None:
        x, pool = self._get(source, "tokens"), self.layout.pool(to)

        def make() -> Launch:
            args = self._step_args(pool=pool, x=self._at(x))
            return Launch("cache_write", (self.shape.tokens, 1, 1), 256, args)

        self._step([x], make)

    def _fill(self, name: str) -> None:
        """Keys or values that the graph does not cache are put into pages for the pass that reads them."""
        if self.layout.pools[name].passing:
            self._write_cache(name, name)

    def _read_cache(self, name: str, out: Value | None = None) -> Value:
        value = out or Value(4 * self._width(name) * self.shape.keys)
        pool, width = self.layout.pool(name), self._width(name)

        def make() -> Launch:
            args = self._step_args(pool=pool, out=self._at(value), which=self._table("keys"), width=width)
            return Launch("cache_read", (self.shape.keys, 1, 1), 256, args)

        self._step([value], make)
        return value

    def _pos_scale(self, node: Node) -> None:
        domain = self._domain(node.name)
        if node.inputs[1] != "inp_pos" or domain not in ("tokens", "outputs"):
            raise AssayError(f"node {node.name}: the cuda engine scales rows by inp_pos only; use --engine cpu")
        x, out, width = self._get(node.inputs[0], domain), self._new(node.name), self._width(node.name)
        table = "positions" if domain == "tokens" else "output_positions"

        def make() -> Launch:
            args = structs.PositionArgs(
                self._at(x),
                self._at(out),
                self._table(table),
                float(node.attr("beta")),
                int(node.attr("unit")),
                int(node.attr("offset")),
                width,
            )
            return Launch("pos_scale", (self._rows(domain), 1, 1), 256, args)

        self._step([x, out], make)

    def _pool_rows(self, node: Node) -> None:
        x, out, width = self._get(node.inputs[0], "tokens"), self._new(node.name), self._width(node.name)
        kind = _POOLING[str(node.attr("kind"))]

        def make() -> Launch:
            args = self._step_args(
                x=self._at(x), out=self._at(out), which=self._table("chunks"), width=width, kind=kind
            )
            return Launch("pool_rows", (self.shape.chunks, 1, 1), 256, args)

        self._step([x, out], make)

    def _relabel(self, node: Node) -> None:
        """Heads first or tokens first is a matter of the graph: in memory they lie token by token, side by side."""
        domain, source = self._domain(node.name), node.inputs[0]
        if (node.name, domain) in self.values:
            return
        value = self.values[node.name, domain] = self._get(source, domain)
        if node.name in self.keep:
            if source in self.keep:
                self.aliases[node.name] = source
            else:
                value.pinned = True
                self.results.append((External(node.name, self.plan.domains[node.name], self._width(node.name)), value))

    def _act(self, node: Node) -> int:
        act = str(node.attr("act"))
        if act not in ACTS:
            raise AssayError(f"node {node.name}: the cuda engine has no activation {act}; use --engine cpu")
        return ACTS[act]

    def _map(
        self,
        node: Node,
        inputs: Sequence[str],
        *,
        op: str = "",
        integer: int = 0,
        number: float = 0.0,
        second: float = 0.0,
        vector: str = "",
        row: int = 0,
        table: str = "",
        parts: int = 1,
    ) -> None:
        """A value each: of one or two inputs, of a vector of weights (row `row` of it), or of a row that y chooses."""
        domain = self._domain(node.name)
        if domain == "scores" and (op or node.op) not in _EACH:
            raise AssayError(f"node {node.name}: the cuda engine has {node.op} for rows only; use --engine cpu")
        sources = [self._get(name, domain) for name in inputs]
        widths = [self._width(name) for name in inputs]
        rows, out, width = self._rows(domain), self._new(node.name), self._width(node.name)
        if vector:
            widths.append(int(self.graph.weights[vector][-1]))
        widths = (widths * 2)[:2]
        experts = int(self.graph.weights[table][0]) if table else 0

        def make() -> Launch:
            y = self.tensors.vector(vector) + 4 * row * widths[1] if vector else self._at(sources[-1])
            args = structs.MapArgs(
                x=self._at(sources[0]),
                y=y,
                z=self.tensors.vector(table) if table else 0,
                out=self._at(out),
                rows=rows,
                width=width,
                x_width=widths[0],
                y_width=widths[1],
                op=MAP[op or node.op],
                integer=integer,
                z_rows=experts,
                parts=parts,
                number=number,
                second=second,
            )
            return Launch("map", (max(1, min(-(-rows * width // 256), 4096)), 1, 1), 256, args)

        self._step([*sources, out], make)

    def _processors(self) -> int:
        return self.tensors.device.multiprocessors
