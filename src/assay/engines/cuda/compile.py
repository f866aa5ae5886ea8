"""From the plan of a graph to launches: for one shape of a step, which kernels run on which memory.

A program holds no data of a batch: tokens, slots, page tables and positions are tables in device memory, written
before each run. So it is made once a shape, and the launches of a small step are kept as one CUDA graph.

Beside the groups of engines/fuse.py, three things are folded where nobody else reads them:

    a norm before products            into the quantisation of their input
    RoPE of q and k, cache writes     into attention, when every sequence has one token
    take the rows of the outputs      into nothing, when every row is one
"""

from __future__ import annotations


from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.engines.batch import External
from assay.engines.cache import CachePool, cache_pools
from assay.engines.cuda import structs
from assay.engines.cuda.device import Launch
from assay.engines.cuda.layout import LANES, UNIT, Matrix, Tensors
from assay.engines.functions import rope_angles
from assay.engines.fuse import Attention, Gated, Products, Single, fuse
from assay.errors import AssayError
from assay.graph import Graph, Node

ACTS = {"silu": 0, "gelu_tanh": 1, "gelu_erf": 2, "relu": 3}
KV_NUMBERS = {"f32": 0, "f16": 1, "bf16": 2, "q8_0": 3}
_MAPS = ("add", "glu", "bias", "scale", "softcap", "clamp_min", "div", "gather", "expert_scale", "expert_sum", "slice",
         "row_sum")  # fmt: skip
_MAP = {name: i for i, name in enumerate(_MAPS)}
_UNARY = {"scale": "factor", "softcap": "cap", "clamp_min": "lo"}
_KQ, _SOFTMAX, _KQV, _CAPPED, _WEIGHTS = range(5)
_GIVEN, _PLAIN, _NORMED = range(3)
_BLOCK = 256  # keys
_WARPS = 16  # most of a block that multiplies
_PAIRS = {"q4_k_q6_k", "q5_k_q6_k"}  # layouts that one launch can mix
_SHARING = {"q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"}  # two groups a warp


@dataclass(frozen=True)
class Shape:
    """What a program depends on beside the graph. Rows are padded: padding has no slot and changes no bit."""

    tokens: int
    outputs: int
    one: bool  # every sequence has one token, and every row is an output
    blocks: int  # of 256 keys, of the longest sequence; 1, 2, 4, …
    pages: int  # room for page tables
    tiles: int = 0  # of query rows, by `tile_rows`
    chunks: int = 0
    longest: int = 0  # tokens of a chunk
    keys: int = 0  # exact, when a trace wants keys or scores
    scores: int = 0
    irregular: bool = False  # positions differ from slots

    def rows(self, domain: str) -> int:
        return {"tokens": self.tokens, "outputs": self.outputs, "keys": self.keys, "scores": self.scores}[domain]

    def tables(self) -> dict[str, tuple[int, int]]:
        """Where each table lies among the words of the step, and how many it has."""
        m, sizes = self.tokens, {}
        sizes |= {"tokens": m, "positions": m, "slots": m, "tables": m, "outputs": self.outputs}
        sizes |= {"output_positions": self.outputs, "tiles": 8 * self.tiles, "output_tiles": 8 * self.tiles}
        sizes |= {"chunks": 6 * self.chunks, "keys": 2 * self.keys, "key_positions": self.keys, "pages": self.pages}
        found, at = {}, 0
        for name, size in sizes.items():
            found[name] = (at, size)
            at += -(-size // 4) * 4
        return found

    @property
    def words(self) -> int:
        at, size = self.tables()["pages"]
        return at + size


@dataclass
class Value:
    """Memory of a program: bytes, live from the launch that writes it to the last that reads it."""

    size: int
    first: int = -1
    last: int = -1
    offset: int = 0
    pinned: bool = False  # results stay to the end


@dataclass(frozen=True)
class CacheLayout:
    """The device's pages: where each pool lies in one."""

    kv_type: str
    pools: dict[str, CachePool]
    offsets: dict[str, int]
    positions_at: int
    page_bytes: int

    def pool(self, name: str) -> Any:
        p = self.pools[name]
        return structs.Pool(
            self.offsets[name], KV_NUMBERS[self.kv_type], int(p.keys), p.heads, p.dim, head_bytes(p, self.kv_type)
        )


def head_bytes(pool: CachePool, kv_type: str) -> int:
    each = {"f32": 4, "q8_0": 16}.get(kv_type, 8)
    size = 32 * -(-pool.dim // each) * 16 + (2 * 32 * (pool.dim // 32) if kv_type == "q8_0" else 0)
    return -(-size // 16) * 16


def cache_layout(graph: Graph, kv_type: str) -> CacheLayout:
    pools, offsets, at = cache_pools(graph), {}, 0
    for name, pool in pools.items():
        if kv_type == "q8_0" and pool.dim % 32:
            raise AssayError(f"engine cuda: a q8_0 cache needs heads of a multiple of 32 values (found {pool.dim})")
        offsets[name] = at
        at += pool.heads * head_bytes(pool, kv_type)
    return CacheLayout(kv_type, pools, offsets, at, at + 128)


@dataclass
class Program:
    """Launches in order, the memory they need, and where results lie in it."""

    shape: Shape
    launches: list[Launch]
    arena: int
    results: list[tuple[External, int]]  # and its offset
    aliases: dict[str, str]
    play: Callable[[], None] | None = None  # its graph
    tables: dict[str, Any] = field(default_factory=dict)  # views of the step's words on the host
    landed: list[Any] = field(default_factory=list)  # host memory that a graph leaves its results in


@dataclass
class Memory:
    """Addresses that a program is made for."""

    arena: int
    step: int  # the tables of the step
    counters: int  # zeros
    cache: int


def tile_rows(v_dim: int, k_dim: int, shared: int) -> tuple[str, int, int]:
    """The kernel for long chunks, its query rows a tile and its shared memory."""
    quads = -(-k_dim // 4)
    for name, most, rows in (("64", 64, 8), ("128", 128, 8), ("256", 256, 4), ("512", 512, 2)):
        size = 4 * (8 * rows * 4 * quads + 4 * 32 * max(4 * quads, v_dim) + 8 * rows * (_BLOCK + 8) + 4)
        if v_dim <= most and size <= shared - 1024:
            return f"attend_tile_{name}", 8 * rows, size
    raise AssayError(f"engine cuda: heads of {k_dim} and {v_dim} values do not fit this GPU's shared memory")


def compile_program(
    graph: Graph,
    tensors: Tensors,
    layout: CacheLayout,
    shape: Shape,
    keep: frozenset[str],
    shared: int,
    place: Callable[[int], Memory],
) -> Program:
    """The program for a shape; `place` gives the addresses once the arena's size is known."""
    return _Compiler(graph, tensors, layout, shape, keep, shared).compile(place)


@dataclass
class _Compiler:
    graph: Graph
    tensors: Tensors
    layout: CacheLayout
    shape: Shape
    keep: frozenset[str]
    shared: int
    steps: list[tuple[list[Value], Callable[[], Launch]]] = field(default_factory=list)
    results: list[tuple[External, Value]] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    memory: Memory = field(default_factory=lambda: Memory(0, 0, 0, 0))

    def compile(self, place: Callable[[int], Memory]) -> Program:
        self.plan = fuse(self.graph, self.keep, self.tensors.format)
        self.values: dict[tuple[str, str], Value] = {}
        self.prepared: dict[tuple[str, str], tuple[Value, Value, Value]] = {}
        self.turns: dict[tuple[Any, ...], Value] = {}
        self.table_at = self.shape.tables()
        self.fused_norms = self._norms()
        self.fused_attention = self._attentions() if self.shape.one else {}
        skip = set(self.fused_norms.values()) | {n for names in self.fused_attention.values() for n in names}
        for group in self.plan.groups:
            match group:
                case Single(node):
                    if node.name not in skip and self._wanted(node):
                        self._emit(node)
                case Products(products):
                    if self._wanted(products[0].linear):
                        self._products(group)
                case Gated():
                    if self._wanted(group.glu):
                        self._gated(group)
                case Attention():
                    if self._wanted(group.kqv):
                        self._attention(group)
        size = self._assign()
        self.memory = place(size)
        launches = [make() for _, make in self.steps]
        results = [(e, v.offset) for e, v in self.results]
        if all(e.node != self.graph.output for e, _ in results):  # nobody asked for it
            results.append((External(self.graph.output, "outputs", self._width(self.graph.output)), 0))
        return Program(self.shape, launches, size, results, self.aliases)

    # -- what is folded ------------------------------------------------------------------------------------------

    def _readers(self, name: str) -> list[str]:
        return list(self.graph.users.get(name, ()))

    def _norms(self) -> dict[str, str]:
        """For the first linear of a group: the norm before it, if only that group reads it."""
        found = {}
        for group in self.plan.groups:
            if isinstance(group, Products):
                linears = [p.linear for p in group.products]
            elif isinstance(group, Gated):
                linears = [group.gate, group.up]
            else:
                continue
            norm = self.graph.by_name.get(linears[0].inputs[0])
            if not norm or norm.op != "rms_norm" or norm.attr("n_head") or norm.name in self.keep or not norm.weights:
                continue
            if len(self.graph.shapes[norm.name]) != 2 or norm.name == self.graph.output:
                continue
            if set(self._readers(norm.name)) == {n.name for n in linears}:
                found[linears[0].name] = norm.name
        return found

    def _attentions(self) -> dict[str, tuple[str, ...]]:
        """For a kqv: the rope of q and k and the cache writes that attention does itself."""
        found = {}
        for group in self.plan.groups:
            if not isinstance(group, Attention) or self.keep & group.inner:
                continue
            k, v = self.graph[group.kq.inputs[1]], self.graph[group.kqv.inputs[1]]
            q, turned = (self.graph.by_name.get(n) for n in (group.kq.inputs[0], k.inputs[0]))
            inner = {k.name, v.name}
            if not q or not turned or self.keep & {k.name, v.name}:
                continue
            if self._readers(k.name) != [group.kq.name] or self._readers(v.name) != [group.kqv.name]:
                continue
            ropes = [n for n in (q, turned) if n.op == "rope"]
            if len(ropes) == 2 and self._turn_key(q) == self._turn_key(turned):
                if self._readers(q.name) != [group.kq.name] or self._readers(turned.name) != [k.name]:
                    continue
                if {q.name, turned.name} & self.keep:
                    continue
                inner |= {q.name, turned.name}
            found[group.kqv.name] = tuple(inner)
        return found

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

    def _step(self, uses: Sequence[Value | None], make: Callable[[], Launch]) -> None:
        used = [v for v in uses if v]
        for value in used:
            if value.first < 0:
                value.first = len(self.steps)
            value.last = len(self.steps)
        self.steps.append((used, make))

    def _at(self, value: Value | None) -> int:
        return self.memory.arena + value.offset if value else 0

    def _table(self, name: str) -> int:
        return self.memory.step + 4 * self.table_at[name][0]

    def _new(self, name: str) -> Value:
        domain, width = self._domain(name), self._width(name)
        value = self.values[name, domain] = Value(4 * width * self._rows(domain))
        if name in self.keep or name == self.graph.output:
            value.pinned = True
            self.results.append((External(name, self.plan.domains[name], width), value))
        return value

    def _get(self, name: str, domain: str) -> Value:
        found = self.values.get((name, domain))
        if found is not None:
            return found
        if domain == "outputs" and (name, "tokens") in self.values:
            source = self.values[name, "tokens"]
            value = Value(4 * self._width(name) * self._rows("outputs"))
            self._take(source, value, self._width(name), "outputs")
        elif domain == "keys" and name in self.layout.pools:
            value = self._read_cache(name)
        else:
            raise AssayError(f"node {name}: the cuda engine cannot use it here; run the reference engine")
        self.values[name, domain] = value
        return value

    def _assign(self) -> int:
        """Addresses for values that live at the same time, first fit; the size of the whole."""
        placed: list[Value] = []
        end = 0
        order = {id(v): v for used, _ in self.steps for v in used}
        for value in order.values():
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
        return end

    # -- single nodes --------------------------------------------------------------------------------------------

    def _emit(self, node: Node) -> None:
        special: dict[str, Callable[[Node], None]] = {
            "embed": self._embed,
            "rms_norm": self._rms_norm,
            "rope": self._rope,
            "cache": self._cache,
            "merge_heads": self._merge_heads,
            "expert_linear": self._expert_linear,
            "kq": self._kq,
            "attn_softmax": self._attn_softmax,
            "kqv": self._kqv,
            "bias": lambda n: self._map(n, [n.inputs[0]], vector=n.weights[0]),
            "slice": lambda n: self._map(n, n.inputs, integer=int(n.attr("start"))),
            "topk": lambda n: self._map(n, n.inputs, op="slice"),
            "glu": lambda n: self._map(n, n.inputs, integer=ACTS[n.attr("act")]),
        }
        if node.op in special:
            special[node.op](node)
        elif node.op in ("softmax", "argsort"):
            self._by_row(node)
        elif node.op in _UNARY:
            self._map(node, node.inputs, number=float(node.attr(_UNARY[node.op])))
        elif node.op in _MAP:
            self._map(node, node.inputs)
        else:
            raise AssayError(f"node {node.name}: the cuda engine does not know the operation {node.op}; use --engine cpu")

    def _map(
        self,
        node: Node,
        inputs: Sequence[str],
        *,
        op: str = "",
        integer: int = 0,
        number: float = 0.0,
        vector: str = "",
    ) -> None:
        domain = self._domain(node.name)
        sources = [self._get(name, domain) for name in inputs]
        widths = [self._width(name) for name in inputs]
        rows, out, width = self._rows(domain), self._new(node.name), self._width(node.name)
        if vector:
            widths.append(int(np.prod(self.graph.weights[vector])))
        widths = (widths * 2)[:2]

        def make() -> Launch:
            x = self._at(sources[0])
            y = self.tensors.vector(vector) if vector else self._at(sources[-1])
            args = structs.MapArgs(
                x, y, self._at(out), rows, width, *widths, _MAP[op or node.op], integer, 0, number, 0
            )
            return Launch("map", (max(1, min(-(-rows * width // 256), 4096)), 1, 1), 256, args)

        self._step([*sources, out], make)

    def _by_row(self, node: Node) -> None:
        domain = self._domain(node.name)
        if domain in ("keys", "scores") or len(self.graph.shapes[node.inputs[0]]) != 2:
            raise AssayError(f"node {node.name}: the cuda engine has {node.op} for rows only")
        x, out, width = self._get(node.inputs[0], domain), self._new(node.name), self._width(node.name)
        threads = structs.KERNELS[node.op][1]

        def make() -> Launch:
            args = structs.RowArgs(self._at(x), 0, self._at(out), structs.Acts(), width, 1, 0.0, width)
            return Launch(node.op, (self._rows(domain), 1, 1), threads, args)

        self._step([x, out], make)

    def _rms_norm(self, node: Node) -> None:
        domain, shape = self._domain(node.name), self.graph.shapes[node.inputs[0]]
        parts = int(shape[1]) if len(shape) == 3 else node.attr("n_head") or 1
        x, out, width = self._get(node.inputs[0], domain), self._new(node.name), self._width(node.name)
        if not node.weights:
            raise AssayError(f"node {node.name}: the cuda engine has no norm without weights; use --engine cpu")

        def make() -> Launch:
            w = self.tensors.vector(node.weights[0])
            args = structs.RowArgs(
                self._at(x), w, self._at(out), structs.Acts(), width, parts, float(node.attr("eps")), width
            )
            threads = 256 if width // parts >= 256 else 64
            return Launch("rms_norm", (self._rows(domain) * parts, 1, 1), threads, args, 16 + 4 * width // parts)

        self._step([x, out], make)

    # -- what a step begins with ---------------------------------------------------------------------------------

    def _rows_struct(self) -> Any:
        return structs.Rows(*(self._table(n) for n in ("tokens", "positions", "slots", "tables", "pages")))

    def _cache_struct(self) -> Any:
        return structs.Cache(self.memory.cache, self.layout.page_bytes, self.layout.positions_at)

    def _step_args(self, **fields: Any) -> Any:
        return structs.StepArgs(rows=self._rows_struct(), cache=self._cache_struct(), **fields)

    def _embed(self, node: Node) -> None:
        if node.inputs != ("inp_tokens",):
            raise AssayError(f"node {node.name}: the cuda engine embeds inp_tokens only (found {node.inputs[0]})")
        table, out, width = self.tensors.matrix(node.weights[0]), self._new(node.name), self._width(node.name)

        def make() -> Launch:
            args = self._step_args(table=table.struct(), out=self._at(out), width=width)
            return Launch("embed", (self.shape.tokens, 1, 1), 256, args)

        self._step([out], make)

    def _take(self, x: Value, out: Value, width: int, which: str) -> None:
        def make() -> Launch:
            args = self._step_args(x=self._at(x), out=self._at(out), which=self._table(which), width=width)
            return Launch("take_rows", (self.shape.outputs, 1, 1), 256, args)

        self._step([x, out], make)

    def _turn_key(self, node: Node) -> tuple[Any, ...]:
        attrs = node.all_attrs()
        heads, mode = attrs.pop("n_head"), attrs.pop("mode")
        if attrs.pop("offset", 0):
            raise AssayError(f"node {node.name}: the cuda engine turns the first values of a head only; use --engine cpu")
        factors = self.tensors.array(node.weights[0]) if node.weights else None
        angles, magnitude = rope_angles(np.ones(1), factors, **attrs)
        assert heads
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
        rows, heads = self._rows(domain), int(node.attr("n_head"))

        def make() -> Launch:
            args = structs.RopeArgs(
                self._at(x), self._at(table), self._at(out), rows, width, heads, len(key[1]) // 4, int(key[0])
            )
            return Launch("rope", (max(1, min(-(-rows * width // 256), 4096)), 1, 1), 256, args)

        self._step([x, table, out], make)

    def _cache(self, node: Node) -> None:
        x, pool = self._get(node.inputs[0], "tokens"), self.layout.pool(node.name)

        def make() -> Launch:
            args = self._step_args(pool=pool, x=self._at(x))
            return Launch("cache_write", (self.shape.tokens, 1, 1), 256, args)

        self._step([x], make)
        if node.name in self.keep:
            self._read_cache(node.name, self._new(node.name))

    def _read_cache(self, name: str, out: Value | None = None) -> Value:
        value = out or Value(4 * self._width(name) * self.shape.keys)
        pool, width = self.layout.pool(name), self._width(name)

        def make() -> Launch:
            args = self._step_args(pool=pool, out=self._at(value), which=self._table("keys"), width=width)
            return Launch("cache_read", (self.shape.keys, 1, 1), 256, args)

        self._step([value], make)
        return value

    def _merge_heads(self, node: Node) -> None:
        """Nothing to do: kqv is stored token by token, heads side by side."""
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

    # -- products ------------------------------------------------------------------------------------------------

    def _prepare(self, name: str, norm: str | None, domain: str, matrix: Matrix) -> tuple[Value, Value, Value]:
        """Quantised rows of a value, normed on the way if `norm` names a node."""
        source = self.graph[norm].inputs[0] if norm else name
        if (name, domain) not in self.prepared:
            x, rows, stride = self._get(source, domain), self._rows(domain), matrix.units * UNIT
            acts = Value(rows * stride), Value(rows * stride // 4), Value(rows * stride // 8)
            width = self._width(source)
            node = self.graph[norm] if norm else None

            def make() -> Launch:
                args = structs.RowArgs(
                    self._at(x),
                    self.tensors.vector(node.weights[0]) if node else 0,
                    0,
                    structs.Acts(*(self._at(v) for v in acts), stride),
                    width,
                    1,
                    float(node.attr("eps")) if node else 0.0,
                    width,
                )
                return Launch("quantise_rows", (rows, 1, 1), 256, args, 16 + (4 * width if node else 0))

            self._step([x, *acts], make)
            self.prepared[name, domain] = acts
        return self.prepared[name, domain]

    def _products(self, group: Products) -> None:
        first = group.products[0].linear
        domain = self._domain(first.name)
        parts = []
        for p in group.products:
            residual = self._get(p.residual, domain) if p.residual else None
            bias = p.bias.weights[0] if p.bias else ""
            parts.append(_Part(self.tensors.matrix(p.linear.weights[0]), p.last.name, bias, residual))
        self._multiply(first, domain, parts)

    def _gated(self, group: Gated) -> None:
        gate, up, glu = group.gate, group.up, group.glu
        domain = self._domain(glu.name)
        names = gate.weights[0], up.weights[0]
        if self.tensors.same_format(*names):
            kept = tuple(self._new(n.name) if n.name in self.keep else None for n in (gate, up))
            part = _Part(self.tensors.matrix(*names), glu.name, act=ACTS[glu.attr("act")], kept=kept)
            self._multiply(gate, domain, [part])
            return
        self._multiply(gate, domain, [_Part(self.tensors.matrix(n.weights[0]), n.name) for n in (gate, up)])
        self._map(glu, glu.inputs, integer=ACTS[glu.attr("act")])

    def _multiply(self, linear: Node, domain: str, parts: list[_Part]) -> None:
        rows, norm = self._rows(domain), self.fused_norms.get(linear.name)
        floats = parts[0].matrix.format.floats
        for p in parts:
            p.out = self._new(p.name)
        if rows == 1 or floats:
            for kernel, chosen in _by_kernel(parts):
                self._few(kernel, linear.inputs[0], norm, domain, chosen)
            return
        acts = self._prepare(linear.inputs[0], norm, domain, parts[0].matrix)
        for i in range(0, len(parts), 4):
            self._many(acts, rows, parts[i : i + 4])

    def _part_structs(self, parts: Sequence[_Part], per: Callable[[Matrix], int]) -> tuple[Any, int]:
        array, first = (structs.Product * 4)(), 0
        for i, p in enumerate(parts):
            gate_out, up_out = (self._at(v) for v in p.kept)
            array[i] = structs.Product(
                p.matrix.struct(),
                self._at(p.out),
                self.tensors.vector(p.bias) if p.bias else 0,
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

    def _few(self, kernel: str, name: str, norm: str | None, domain: str, parts: Sequence[_Part]) -> None:
        """A block of threads norms and quantises for itself."""
        node = self.graph[norm] if norm else None
        x = self._get(node.inputs[0] if node else name, domain)
        matrix, rows = parts[0].matrix, self._rows(domain)
        shares = 2 if kernel.removeprefix("product_one_") in _SHARING else 1
        warps, together = _warps(matrix.tiles, shares)
        stride, items = matrix.units * UNIT, matrix.tiles * LANES

        def make() -> Launch:
            array, groups = self._part_structs(parts, lambda m: m.groups)
            args = structs.ProductArgs(
                parts=array,
                x=self._at(x),
                norm=self.tensors.vector(node.weights[0]) if node else 0,
                n_parts=len(parts),
                groups=groups,
                tokens=rows,
                columns=matrix.columns,
                x_stride=matrix.columns,
                prologue=_NORMED if node else _PLAIN,
                eps=float(node.attr("eps")) if node else 0.0,
                together=together,
            )
            if matrix.format.floats:
                each = 1 if rows == 1 else 4
                shared = 4 * (each * stride + max(64, each * items))
                return Launch(f"product_floats_{each}", (groups, -(-rows // each), 1), 32 * warps, args, shared)
            threads, units = 32 * warps * together // shares, -(-groups // together)
            for slots in (1, 2):  # one round of blocks wants one tile a warp, more want the next on its way
                shared = _one_shared(parts, stride, items * together, matrix.columns if node else 0, warps * together, slots)
                if slots == 2 and shared > self.shared - 1024:
                    break
                room = self.tensors.device.resident(kernel, threads, shared) * self._processors()
                blocks = -(-units // -(-units // room))  # all at once, or as many each
                launch = Launch(kernel, (blocks, 1, 1), threads, args, shared)
                args.slots = slots
                if units <= room and warps == matrix.tiles:
                    break
            return launch

        self._step([x, *(v for p in parts for v in (p.out, p.residual, *p.kept))], make)

    def _many(self, acts: tuple[Value, Value, Value], rows: int, parts: Sequence[_Part]) -> None:
        """Tensor cores: tiles of rows and tokens."""
        total = sum(p.matrix.groups * p.matrix.group for p in parts)
        kernel, tile, tokens, stages, threads = "product_eight", 32, 8, 4, 32
        if rows > 8:
            kernel, tile, tokens, stages, threads = "product_some", 32, 64, 2, 64
        if rows > 64 and -(-total // 128) * -(-rows // 64) >= self._processors():
            kernel, tile, tokens, stages, threads = "product_many", 128, 64, 2, 256
        size = 0
        for p in parts:
            f = p.matrix.format
            size = max(size, tokens * (272 + 80 + 48 * f.sums) + f.chunks * tile * 16 + 4 * tile * f.word)
        shared = stages * size
        if kernel == "product_eight":  # a stage a warp, and the partial sums of all units
            units = parts[0].matrix.units
            threads = 32 * min(8, units)
            shared, stages = 1024 * units + threads // 32 * size, size
        elif shared > self.shared - 1024:
            shared, stages = size, 1

        def make() -> Launch:
            array, tiles = self._part_structs(parts, lambda m: -(-m.groups * m.group // tile))
            matrix = parts[0].matrix
            args = structs.ProductArgs(
                parts=array,
                acts=structs.Acts(*(self._at(v) for v in acts), matrix.units * UNIT),
                n_parts=len(parts),
                groups=tiles,
                tokens=rows,
                columns=matrix.columns,
                prologue=_GIVEN,
                stages=stages,
            )
            return Launch(kernel, (tiles, -(-rows // tokens), 1), threads, args, shared)

        self._step([*acts, *(v for p in parts for v in (p.out, p.residual, *p.kept))], make)

    def _expert_linear(self, node: Node) -> None:
        domain = self._domain(node.name)
        x, idx = (self._get(name, domain) for name in node.inputs)
        matrix, out = self.tensors.matrix(node.weights[0]), self._new(node.name)
        choices = self._width(node.inputs[1])
        pairs = self._rows(domain) * choices
        shared_rows = choices if self._width(node.inputs[0]) == matrix.columns else 1
        shares = 2 if matrix.format.name in _SHARING else 1
        warps, _ = _warps(matrix.tiles, 1)
        stride, items = matrix.units * UNIT, matrix.tiles * LANES

        def make() -> Launch:
            array_parts = [_Part(matrix, node.name, out=out)]
            array, groups = self._part_structs(array_parts, lambda m: m.groups)
            args = structs.ProductArgs(
                parts=array,
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
                together=shares,
                slots=1,
            )
            floats = matrix.format.floats
            shared = 4 * (stride + max(64, items)) if floats else _one_shared(array_parts, stride, items * shares, 0, warps * shares, 1)
            kernel = "product_floats_1" if floats else f"product_one_{matrix.format.name}"
            return Launch(kernel, (-(-groups // (1 if floats else shares)), pairs, 1), 32 * warps, args, shared)

        self._step([x, idx, out], make)

    # -- attention -----------------------------------------------------------------------------------------------

    def _attention(self, group: Attention) -> None:
        kq, capped, softmax, kqv = group.kq, group.capped, group.softmax, group.kqv
        for attr, plain in (("causal", True), ("chunk", 0), ("max_bias", 0.0)):
            if attr in softmax.all_attrs() and softmax.attr(attr) != plain:
                raise AssayError(f"node {softmax.name}: the cuda engine has no {attr}; use --engine cpu")
        if softmax.weights:
            raise AssayError(f"node {softmax.name}: the cuda engine has no sinks; use --engine cpu")
        domain = self._domain(kqv.name)
        k_name, v_name = kq.inputs[1], kqv.inputs[1]
        k_pool, v_pool = self.layout.pool(k_name), self.layout.pool(v_name)
        heads = int(self.graph.shapes[kqv.name][0])
        folded = self.fused_attention.get(kqv.name, ())
        fields: dict[str, Any] = {
            "heads": heads,
            "window": int(softmax.attr("window")),
            "scale": float(softmax.attr("scale")),
            "cap": float(capped.attr("cap")) if capped else 0.0,
            "irregular": int(self.shape.irregular),
            "n_tokens": self._rows(domain),
            "max_blocks": self.shape.blocks,
        }
        q_node, turn = self.graph.by_name.get(kq.inputs[0]), None
        q_name = kq.inputs[0]
        if q_node and q_node.name in folded:
            key = self._turn_key(q_node)
            turn, q_name = self._turn(key, domain), q_node.inputs[0]
            fields |= {"n_rot": len(key[1]) // 4, "neox": int(key[0]), "turn_k": 1}
        q, out = self._get(q_name, domain), self._new(kqv.name)
        if domain == "tokens" and self.shape.one and not (self.keep & group.inner):
            k = v = None
            if k_name in folded:
                k_source = self.graph[k_name].inputs[0]
                if turn:
                    k_source = self.graph[k_source].inputs[0]
                k, v = self._get(k_source, domain), self._get(self.graph[v_name].inputs[0], domain)
            self._attend_one(q, k, v, turn, out, heads, k_pool, v_pool, fields)
            return
        kept = {role: self._new(n.name) if n and n.name in self.keep else None for role, n in
                (("kq", kq), ("capped", capped), ("soft_max", softmax))}  # fmt: skip
        self._attend_tile(q, out, heads, k_pool, v_pool, fields, domain, kept)

    def _attend_one(
        self,
        q: Value,
        k: Value | None,
        v: Value | None,
        turn: Value | None,
        out: Value,
        heads: int,
        k_pool: Any,
        v_pool: Any,
        fields: dict[str, Any],
    ) -> None:
        rows, blocks, group = self.shape.tokens, self.shape.blocks, heads // k_pool.heads
        staged = 2 * _BLOCK * (k_pool.dim + v_pool.dim)  # keys and values of a block, as halves
        halves = self.layout.kv_type == "f16" and k_pool.dim % 8 == v_pool.dim % 8 == 0 and max(
            k_pool.dim, v_pool.dim) <= 256 and staged + 32768 < self.shared  # fmt: skip
        at_once = 1
        sizes = (1, 2, 4, 8) if halves else (1, 4)
        for at_once in sizes:
            if at_once >= group or rows * k_pool.heads * -(-group // at_once) * blocks <= 2 * self._processors():
                break
        splits = -(-group // at_once)
        partial = Value(4 * rows * heads * blocks * (2 + v_pool.dim)) if blocks > 1 else None
        shared = 4 * (at_once * (k_pool.dim + _BLOCK + 2) + 2)
        if halves:
            shared += staged
        else:
            shared += 4 * (k_pool.dim + v_pool.dim + 64 + 8 * at_once * v_pool.dim)
        kernel = f"attend_{'halves' if halves else 'one'}_{at_once}"

        def make() -> Launch:
            args = structs.AttentionArgs(
                q=self._at(q),
                k=self._at(k),
                v=self._at(v),
                turn=self._at(turn),
                out=self._at(out),
                partial=self._at(partial),
                arrived=self.memory.counters,
                cache=self._cache_struct(),
                keys=k_pool,
                values=v_pool,
                rows=self._rows_struct(),
                splits=splits,
                **fields,
            )
            grid = (blocks, k_pool.heads * splits, rows)
            return Launch(kernel, grid, 256, args, shared)

        self._step([q, k, v, turn, out, partial], make)

    def _processors(self) -> int:
        return self.tensors.device.multiprocessors

    def _attend_tile(
        self,
        q: Value,
        out: Value,
        heads: int,
        k_pool: Any,
        v_pool: Any,
        fields: dict[str, Any],
        domain: str,
        kept: dict[str, Value | None],
    ) -> None:
        kernel, rows, shared = tile_rows(v_pool.dim, k_pool.dim, self.shared)
        assert rows
        traced = any(kept.values())
        raw = (kept["kq"] or Value(4 * heads * self.shape.scores)) if traced else None
        state = Value(8 * heads * self._rows(domain)) if traced else None

        def make() -> Launch:
            args = structs.AttentionArgs(
                q=self._at(q),
                out=self._at(out),
                tiles=self._table("tiles" if domain == "tokens" else "output_tiles"),
                kq=self._at(raw),
                state=self._at(state),
                query_rows=0 if domain == "tokens" else self._table("outputs"),
                cache=self._cache_struct(),
                keys=k_pool,
                values=v_pool,
                rows=self._rows_struct(),
                splits=1,
                **fields,
            )
            return Launch(kernel, (self.shape.tiles, k_pool.heads, 1), 256, args, shared)

        self._step([q, out, raw, state], make)
        if traced:
            cap, scale, window = fields["cap"], fields["scale"], fields["window"]
            if kept["capped"]:
                self._scores(_CAPPED, raw, None, kept["capped"], heads, cap=cap)
            if kept["soft_max"]:
                self._scores(_WEIGHTS, raw, state, kept["soft_max"], heads, cap=cap, scale=scale, window=window)

    def _scores(
        self,
        op: int,
        x: Value | None,
        y: Value | None,
        out: Value,
        heads: int,
        *,
        kv_heads: int = 0,
        dim: int = 0,
        cap: float = 0.0,
        scale: float = 1.0,
        window: int = 0,
    ) -> None:
        def make() -> Launch:
            args = structs.ScoreArgs(
                self._at(x),
                self._at(y),
                self._at(out),
                self._table("chunks"),
                self._table("positions"),
                self._table("key_positions"),
                heads,
                kv_heads,
                dim,
                window,
                scale,
                cap,
                op,
            )
            return Launch("scores", (self.shape.longest, heads, self.shape.chunks), 32, args)

        self._step([x, y, out], make)

    def _kq(self, node: Node) -> None:
        q, k = self._get(node.inputs[0], "tokens"), self._get(node.inputs[1], "keys")
        heads, kv_heads = (int(self.graph.shapes[name][1]) for name in node.inputs)
        dim = int(self.graph.shapes[node.inputs[0]][2])
        self._scores(_KQ, q, k, self._new(node.name), heads, kv_heads=kv_heads, dim=dim)

    def _attn_softmax(self, node: Node) -> None:
        if node.inputs[1:] != ("inp_pos", "inp_kpos"):
            raise AssayError(f"node {node.name}: the cuda engine masks by inp_pos and inp_kpos only")
        heads, window = self._width(node.name), int(node.attr("window"))
        x = self._get(node.inputs[0], "scores")
        self._scores(_SOFTMAX, x, None, self._new(node.name), heads, scale=float(node.attr("scale")), window=window)

    def _kqv(self, node: Node) -> None:
        p, v = self._get(node.inputs[0], "scores"), self._get(node.inputs[1], "keys")
        heads, _, dim = self.graph.shapes[node.name]
        kv_heads = int(self.graph.shapes[node.inputs[1]][1])
        self._scores(_KQV, p, v, self._new(node.name), int(heads), kv_heads=kv_heads, dim=int(dim))


def _warps(tiles: int, shares: int) -> tuple[int, int]:
    """Warps for the tiles of a group, and groups together: about 8 warps, so that they share the work on the input."""
    warps = -(-tiles // -(-tiles // _WARPS))
    return warps, max(1, 8 // warps) * shares


def _one_shared(parts: Sequence[_Part], stride: int, items: int, normed: int, tiles: int, slots: int) -> int:
    """Bytes of shared memory of product_one: activations, partial sums, tiles, and over the second ones the row."""
    slot = max(p.matrix.format.tile_bytes for p in parts)
    if {p.matrix.format.name for p in parts} != {parts[0].matrix.format.name}:
        slot = max(slot, 13 * 512 + 128)  # the kernel for a pair has room for the larger of the two
    return stride + stride // 32 * 12 + 16 + 8 * items + tiles * slot + max(4 * normed, (slots - 1) * tiles * slot)


def _by_kernel(parts: Sequence[_Part]) -> list[tuple[str, list[_Part]]]:
    """The launches that multiply one token by these matrices."""
    if parts[0].matrix.format.floats:
        return [("", list(parts[i : i + 4])) for i in range(0, len(parts), 4)]
    found: dict[str, list[_Part]] = {}
    for p in parts:
        found.setdefault(p.matrix.format.name, []).append(p)
    mixed = "_".join(sorted(found))
    if mixed in _PAIRS and len(parts) <= 4:
        return [(f"product_one_{mixed}", list(parts))]
    return [(f"product_one_{n}", some[i : i + 4]) for n, some in found.items() for i in range(0, len(some), 4)]


@dataclass
class _Part:
    """A matrix of a launch, where its result goes, and what follows it."""

    matrix: Matrix
    name: str
    bias: str = ""
    residual: Value | None = None
    act: int = 0
    kept: tuple[Value | None, ...] = (None, None)
    out: Value | None = None


