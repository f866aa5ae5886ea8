"""The compiler of the wgpu engine: every group of a graph's plan becomes dispatches, in order.

`_SINGLES` and `_EXPRESSIONS` have a row for each operation. Values are rows of floats in buffers; slices of rows and
joined heads are views without a dispatch. A value that products read as int8 blocks is quantised by the kernel that
computes it, where that kernel can. Touch this module when the engine gets a kernel for a further operation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from assay.engines.plan.batching import External
from assay.engines.plan.fuse import Attention, Gated, Product, Products, Single, fuse
from assay.engines.plan.state_layout import CachePool, cache_pools, slot_offsets
from assay.engines.plan.values import RopeTable, attention_mask, heads_in_row, rope_table, row_width
from assay.engines.wgpu.dispatches import NOTHING, SPARE, Count, Dispatch, DispatchPlan, KeptScores, View, share_memory
from assay.engines.wgpu.shaders import Kernel
from assay.engines.wgpu.weight_tiles import ROWS, TileFormat, units_of
from assay.errors import AssayError
from assay.graph import Graph, Node, Trait

GATES = ("glu", "glu_split")
KEY_BLOCK = 256  # keys of a block of attention
TOKENS = 8  # of a workgroup of products, where a step may have as many
MAX_TAPS = 16  # of a convolution
MAX_HEAD = 256  # widest head that the attention kernels take
_NO_TURN = {"n_rot": 0, "offset": 0, "neox": 0, "table": 0}  # numbers of kernels that do not turn their rows


@dataclass(frozen=True)
class WeightSlice:
    """Tiles [first, first + tiles) of a stack's matrices in a buffer."""

    buffer: str
    first: int
    tiles: int


@dataclass(frozen=True)
class WeightPart:
    """Where a tensor lies: some tiles of a stack of tensors that are multiplied together."""

    stack: str
    form: TileFormat
    first: int  # tile of the stack
    tiles: int
    rows: int
    columns: int
    slices: tuple[WeightSlice, ...]


class PlacedWeights(Protocol):
    """The weights on the device."""

    def part(self, name: str) -> WeightPart: ...
    def vector(self, name: str) -> str: ...
    def bias_row(self, parts: tuple[tuple[WeightPart, str], ...]) -> str: ...
    def constant(self, values: NDArray[np.float32]) -> str: ...
    def array(self, name: str) -> NDArray[np.float32]: ...
    def format(self, name: str) -> str: ...


@dataclass(frozen=True)
class ProgramShape:
    """What the memory of a program is sized for: rows of a step, keys of a sequence, and the cache's type.

    With `best`, the program ends with the largest logit of each output row in the buffer `chosen`.
    """

    rows: int
    keys: int
    kv_type: str
    best: bool = False


def compile_dispatches(
    graph: Graph, weights: PlacedWeights, shape: ProgramShape, keep: Collection[str] = ()
) -> DispatchPlan:
    """The program that fills the cache, gives the logits, and keeps the nodes in `keep`."""
    compiler = _Compiler(graph, weights, shape, frozenset(keep))
    compiler.compile()
    return compiler.finished()


def bits(x: float) -> int:
    """The bits of a number rounded to float32."""
    return int(struct.unpack("<I", struct.pack("<f", np.float32(x)))[0])


def cache_words(dim: int, kv_type: str) -> int:
    """Words of one head of one slot."""
    return {"f32": dim, "f16": (dim + 1) // 2, "bf16": (dim + 1) // 2, "q8_0": dim // 32 * 9}[kv_type]


def block_words(width: int) -> int:
    """Words of a row as int8 blocks: the codes, then three lists with a float for each block (`quantise.wgsl`)."""
    return width // 4 + 3 * (-(-(width // 32) // 4) * 4)


def rows_at_once(tiles: int, units: int) -> int:
    """Rows of a workgroup of products: few where a matrix has too few tiles to keep a large GPU busy."""
    if units < 8 or tiles > 256:
        return ROWS
    return 8 if tiles <= 64 else 16


# Operations on one value at a time: an expression of operands A and B and of the numbers P, Q, R.
_EXPRESSIONS = {
    "add": "add(A, B)",
    "bias": "add(A, B)",
    "add_row": "add(A, B)",
    "add_scalar": "add(A, P)",
    "mul": "mul(A, B)",
    "mul_weight": "mul(A, B)",
    "expert_scale": "mul(A, B)",
    "expert_input": "mul(A, B)",
    "scale": "mul(A, P)",
    "div": "div(A, B)",
    "softcap": "mul(P, tanh_of(div(A, P)))",
    "sigmoid": "sigmoid(A)",
    "softplus": "softplus(A)",
    "exp": "exp_of(A)",
    "clamp": "clamp_of(A, P, Q)",
    "clamp_min": "select(A, P, less(A, P))",
    "glu": "mul({act}(A), B)",
    "glu_split": "mul({act}(A), B)",
    "glu_oai": "glu_oai(A, B, P, Q)",
    "act": "{act}(A)",
    "slice": "A",
    "repeat_heads": "A",
    "join": "A",
    "head_gain": "mul(A, B)",
    "add_gain": "fused(C, B, A)",
}
_ACTS = {"silu": "silu", "gelu_tanh": "gelu_tanh", "gelu_erf": "gelu_erf", "relu": "relu", "relu_sqr": "relu_sqr",
         "sigmoid": "sigmoid", "softplus": "softplus", "tanh": "tanh_of"}  # fmt: skip


@dataclass(frozen=True)
class _Operand:
    """How an elementwise kernel reads a view: word (i / div) * jump + (i % mod) * step of a row; mod 0 means div."""

    view: View
    div: int
    jump: int = 0
    step: int = 1
    mod: int = 0

    def numbers(self, name: str) -> dict[str, int]:
        walk = {"div": self.div, "jump": self.jump, "step": self.step, "mod": self.mod or self.div}
        return {**self.view.numbers(name), **{f"{name}_{key}": value for key, value in walk.items()}}


@dataclass
class _Compiler:
    graph: Graph
    weights: PlacedWeights
    shape: ProgramShape
    keep: frozenset[str]
    dispatches: list[Dispatch] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    results: list[tuple[External, View | KeptScores | str]] = field(default_factory=list)
    tables: list[RopeTable] = field(default_factory=list)
    turns: dict[str, dict[str, int]] = field(default_factory=dict)  # keys and queries that their readers turn
    writes: list[tuple[str, CachePool]] = field(default_factory=list)  # rows that wait to be written to the cache

    def compile(self) -> None:
        plan = fuse(self.graph, self.keep, self.weights.format, GATES)
        self.domains = plan.domains
        self.pools = cache_pools(self.graph)
        self.values: dict[tuple[str, str], View] = {}
        self.acts: dict[tuple[View, str], View] = {}  # int8 blocks of a value, by its rows' domain
        self.wanted = self._read_as_blocks(plan.groups)
        for name in self.graph.given:
            view = self._memory(name, "tokens", row_width(self.graph, name))
            self.values[name, "tokens"] = view
            self.results.append((External(name, "tokens", view.width, given=True), view))
        if any(isinstance(group, Attention) for group in plan.groups):
            self._emit("key_positions", ("T", 1, 1), {}, step="step", positions="positions")
        for group in plan.groups:
            match group:
                case Single(node):
                    self._single(node)
                case Products(products):
                    self._products(products)
                case Gated():
                    self._gated(group)
                case Attention():
                    self._attention(group)
        self._write_pools()

    def finished(self) -> DispatchPlan:
        """The plan, with memory shared between values that do not live at the same time."""
        logits = self.values[self.graph.output, self.domains[self.graph.output]]
        if self.shape.best:
            numbers = {"width": logits.width, **logits.numbers("x")}
            self._emit("best", ("R", 1, 1), numbers, x=logits.buffer, chosen="chosen")
        held = {found.buffer for _, found in self.results if not isinstance(found, str)} | {logits.buffer}
        dispatches, sizes, place = share_memory(self.dispatches, self.sizes, held)

        def placed(found: View | KeptScores | str) -> View | KeptScores | str:
            return found if isinstance(found, str) else replace(found, buffer=place.get(found.buffer, found.buffer))

        for name in held - place.keys():  # values that are given and never read
            sizes[name] = self.sizes[name]
        results = tuple((external, placed(found)) for external, found in self.results)
        logits = replace(logits, buffer=place.get(logits.buffer, logits.buffer))
        return DispatchPlan(dispatches, sizes, results, tuple(self.tables), logits)

    # -- values --------------------------------------------------------------------------------------------

    def _rows(self, domain: str) -> str:
        return "R" if domain == "outputs" else "T"

    @property
    def _tokens_at_once(self) -> int:
        """Tokens of a workgroup of products."""
        return TOKENS if self.shape.rows >= TOKENS else 1

    def _memory(self, name: str, domain: str, width: int, rows: int = 1) -> View:
        """New memory for rows of this width; `rows` for each row of the domain."""
        stride = -(-width // 4) * 4
        buffer = f"{name} {domain} {len(self.sizes)}"
        whole = (
            -(-self.shape.rows // self._tokens_at_once) * self._tokens_at_once
        )  # products write whole groups of rows
        self.sizes[buffer] = 4 * stride * whole * rows
        return View(buffer, stride, width)

    def _set(self, node: Node, view: View) -> View:
        """Note where a node's value lies, and give it to the caller if it is kept or is the output."""
        domain = self.domains[node.name]
        self.values[node.name, domain] = view
        if node.name in self.keep or node.name == self.graph.output:
            self.results.append((External(node.name, domain, row_width(self.graph, node.name)), view))
        return view

    def _new(self, node: Node) -> View:
        domain, width = self.domains[node.name], row_width(self.graph, node.name)
        return self._set(node, self._memory(node.name, domain, width))

    def _get(self, name: str, domain: str) -> View:
        """The value of a computed node, on the rows of `domain`."""
        found = self.values.get((name, domain))
        if found is not None:
            return found
        if domain != "outputs" or (name, "tokens") not in self.values:
            raise AssayError(f"node {name}: the wgpu engine cannot use it here; use --engine cpu")
        x = self.values[name, "tokens"]
        view = self.values[name, domain] = self._memory(name, domain, x.width)
        numbers = {"width": x.width, **x.numbers("x"), "out_stride": view.stride}
        groups: tuple[Count, Count, Count] = (-(-x.width // 256), "R", 1)
        self._emit("output_rows", groups, numbers, step="step", x=x.buffer, out=view.buffer)
        return view

    def _input(self, node: Node, i: int = 0) -> View:
        return self._get(node.inputs[i], self.domains[node.name])

    def _emit(
        self,
        name: str,
        groups: tuple[Count, Count, Count],
        numbers: Mapping[str, int],
        words: Collection[str] = (),
        expression: str = "",
        **buffers: str,
    ) -> None:
        kernel = Kernel(name, frozenset(words), expression)
        bound = {binding: buffers.get(binding, NOTHING) for binding in kernel.bindings}
        self.dispatches.append(Dispatch(kernel, dict(numbers), bound, groups))

    # -- int8 blocks of activations --------------------------------------------------------------------------

    def _read_as_blocks(self, groups: Collection[object]) -> set[tuple[str, str]]:
        """The values that products read as int8 blocks, each with the domain of its rows."""
        found: set[tuple[str, str]] = set()
        for group in groups:
            linear = group.products[0].linear if isinstance(group, Products) else None
            linear = group.gate if isinstance(group, Gated) else linear
            if linear and self.weights.format(linear.weights[0]) == "q8":
                last = group.glu if isinstance(group, Gated) else linear
                found.add((linear.inputs[0], self.domains[last.name]))
        for name, domain in list(found):  # joined heads are the value before
            node = self.graph.by_name.get(name)
            while node and node.has(Trait.RESHAPES):
                found.add((node.inputs[0], domain))
                node = self.graph.by_name.get(node.inputs[0])
        return found

    def _blocks_beside(self, node: Node, view: View, multiple: int = 32) -> View | None:
        """Memory for the int8 blocks of a value that is about to be computed, if products read it so."""
        domain = self.domains[node.name]
        if (node.name, domain) not in self.wanted or view.width % multiple or view.width % 32:
            return None
        acts = self.acts[view, domain] = self._memory(f"{node.name} int8", domain, block_words(view.width))
        return acts

    def _blocks(self, view: View, domain: str, part: int = 0) -> View:
        """A value as int8 blocks, each part of a row (the whole row, or an expert's) a row of its own."""
        key = (view, domain if not part else f"{domain} {part}")
        if key not in self.acts:
            width = part or view.width
            parts = view.width // width
            acts = self.acts[key] = self._memory(f"{view.buffer} int8", domain, block_words(width), parts)
            numbers = {"width": width, **view.numbers("x"), "acts_stride": acts.stride, "part": width, "parts": parts}
            rows = self._rows(domain) + (f"*{parts}" if parts > 1 else "")
            self._emit("quantise_rows", (-(-width // 256), rows, 1), numbers, x=view.buffer, acts=acts.buffer)
        return self.acts[key]

    # -- products ------------------------------------------------------------------------------------------

    def _products(self, products: tuple[Product, ...]) -> None:
        """Each run of neighbouring tensors of a stack in one dispatch: q, k and v, usually."""
        domain = self.domains[products[0].linear.name]
        x = self._get(products[0].linear.inputs[0], domain)
        run: list[tuple[Product, WeightPart]] = []
        for product in products:
            part = self.weights.part(product.linear.weights[0])
            if run and not self._joins(run[-1], (product, part)):
                self._run_of_products(x, domain, run)
                run = []
            run.append((product, part))
        self._run_of_products(x, domain, run)

    def _joins(self, a: tuple[Product, WeightPart], b: tuple[Product, WeightPart]) -> bool:
        follows = a[1].stack == b[1].stack and a[1].first + a[1].tiles == b[1].first
        return follows and not (a[0].add or b[0].add) and bool(a[0].bias) == bool(b[0].bias)

    def _run_of_products(self, x: View, domain: str, run: list[tuple[Product, WeightPart]]) -> None:
        width = ROWS * sum(part.tiles for _, part in run)
        out = self._memory(run[0][0].last.name, domain, width)
        biases = tuple((part, p.bias.weights[0]) for p, part in run if p.bias)
        residual = self._get(run[0][0].residual, domain) if run[0][0].residual else None
        bias = self.weights.bias_row(biases) if biases else NOTHING
        self._multiply([part for _, part in run], x, domain, out, bias, residual)
        at = 0
        for product, part in run:
            self._set(product.last, out.columns(at, part.rows))
            at += ROWS * part.tiles

    def _multiply(
        self, parts: list[WeightPart], x: View, domain: str, out: View, bias: str = NOTHING,
        residual: View | None = None, idx: View | None = None, experts: int = 0, shared: bool = False,
    ) -> None:  # fmt: skip
        """Multiply neighbouring tensors of a stack, in a dispatch for each slice that they lie in."""
        form, columns = parts[0].form, parts[0].columns
        first, last = parts[0].first, parts[-1].first + parts[-1].tiles
        numbers = {
            "units": units_of(columns), "out_at": out.at, "out_stride": out.stride,
            "has_bias": int(bias != NOTHING), "has_residual": int(residual is not None),
            **(residual or out).numbers("residual"), "experts": experts, "shared_rows": int(shared),
            **(idx or out).numbers("idx"), "up_tiles": 0, "acts_stride": 0, "width": 0, **form.book_words,
        }  # fmt: skip
        if form.floats:
            kernel, source = "matvec_floats", x
            numbers |= {"columns": columns, **x.numbers("x"), "x_parts": 0}
        else:
            kernel, source = "matvec", self._blocks(x, domain, columns if experts and not shared else 0)
            numbers |= {"blocks": columns // 32, "x_stride": source.stride // 4}
        rows = self._rows(domain) + (f"*{experts}" if experts else "")
        for piece in parts[0].slices:
            begin, end = max(first, piece.first), min(last, piece.first + piece.tiles)
            if begin < end:
                here = {"first": begin - piece.first, "column": ROWS * (begin - first), "expert_tiles": piece.tiles}
                tokens = 1 if form.floats or experts else self._tokens_at_once
                each = ROWS if form.floats or tokens > 1 else rows_at_once(end - begin, units_of(columns))
                words = form.words | {"alone", f"rows{each}", f"tokens{tokens}"}
                of_tokens = f"{rows}/{tokens}" if tokens > 1 else rows
                self._emit(
                    kernel, ((end - begin) * ROWS // each, of_tokens, 1), {**numbers, **here}, words, w=piece.buffer,
                    x=source.buffer, bias=bias, residual=residual.buffer if residual else NOTHING,
                    idx=idx.buffer if idx else NOTHING, out=out.buffer,
                )  # fmt: skip

    def _gated(self, group: Gated) -> None:
        gate, up, glu = group.gate, group.up, group.glu
        domain = self.domains[glu.name]
        x = self._get(gate.inputs[0], domain)
        part = self.weights.part(gate.weights[0])
        if self._gated_at_once(group, x, part):
            return
        if group.one_matrix:
            both = self._memory(gate.name, domain, ROWS * part.tiles)
            self._multiply([part], x, domain, both)
            half = part.rows // 2
            views = both.columns(0, half), both.columns(half, half)
        else:
            other = self.weights.part(up.weights[0])
            if other.stack == part.stack and part.first + part.tiles == other.first:
                both = self._memory(gate.name, domain, ROWS * (part.tiles + other.tiles))
                self._multiply([part, other], x, domain, both)
                views = both.columns(0, part.rows), both.columns(ROWS * part.tiles, other.rows)
            else:
                outs = [self._memory(n.name, domain, ROWS * p.tiles) for n, p in ((gate, part), (up, other))]
                self._multiply([part], x, domain, outs[0])
                self._multiply([other], x, domain, outs[1])
                views = outs[0].columns(0, part.rows), outs[1].columns(0, other.rows)
            for node, view in zip((gate, up), views, strict=True):
                if node.name in self.keep:
                    self._set(node, view)
        a, b = (_Operand(view, view.width) for view in views)
        self._elementwise(glu, a, b)

    def _gated_at_once(self, group: Gated, x: View, gate: WeightPart) -> bool:
        """Gate, up, activation and int8 blocks in one dispatch, where a tile of each lies in one slice."""
        domain = self.domains[group.glu.name]
        half = gate.tiles // 2 if group.one_matrix else gate.tiles
        up = gate if group.one_matrix else self.weights.part(group.up.weights[0])
        here = next((s for s in gate.slices if s.first <= gate.first < s.first + s.tiles), None)
        if (
            gate.form.floats or not here or {group.gate.name, group.up.name} & self.keep or up.stack != gate.stack
            or row_width(self.graph, group.glu.name) != ROWS * half or gate.first + 2 * half > here.first + here.tiles
            or not (group.one_matrix or up.first == gate.first + half) or (group.glu.name, domain) not in self.wanted
            or group.glu.all_attrs().get("act", "") not in _ACTS
        ):  # fmt: skip
            return False
        tokens = self._tokens_at_once
        rows = f"{self._rows(domain)}/{tokens}" if tokens > 1 else self._rows(domain)
        source, out = self._blocks(x, domain), self._new(group.glu)
        acts = self._blocks_beside(group.glu, out)
        assert acts
        unused = dict.fromkeys(("column", "has_bias", "has_residual", "residual_at", "residual_stride", "experts",
                                "expert_tiles", "shared_rows", "idx_at", "idx_stride"), 0)  # fmt: skip
        numbers = {
            **unused, "units": units_of(gate.columns), "blocks": gate.columns // 32, "x_stride": source.stride // 4,
            "first": gate.first - here.first, **out.numbers("out"), "up_tiles": half, "acts_stride": acts.stride,
            "width": out.width, **gate.form.book_words,
        }  # fmt: skip
        self._emit(
            "matvec", (half, rows, 1), numbers, gate.form.words | {"gated", f"rows{ROWS}", f"tokens{tokens}"},
            _EXPRESSIONS[group.glu.op].format(act=_ACTS[group.glu.all_attrs()["act"]]), w=here.buffer, x=source.buffer,
            out=out.buffer, acts=acts.buffer,
        )  # fmt: skip
        return True

    # -- row operations ------------------------------------------------------------------------------------

    def _single(self, node: Node) -> None:
        if node.op not in _SINGLES:
            raise AssayError(
                f"node {node.name}: the wgpu engine does not know the operation {node.op}; use --engine cpu"
            )
        _SINGLES[node.op](self, node)

    def _elementwise(
        self, node: Node, a: _Operand, b: _Operand | None = None, *numbers: float, c: _Operand | None = None
    ) -> None:
        out = self._new(node)
        self._each(node, out, a, b or a, c, numbers, None if c else self._blocks_beside(node, out))

    def _each(
        self, node: Node, out: View, a: _Operand, b: _Operand, c: _Operand | None = None,
        numbers: Sequence[float] = (), acts: View | None = None,
    ) -> None:  # fmt: skip
        """One value of `out` for each value of the operands."""
        act = node.all_attrs().get("act", "")
        if act and act not in _ACTS:
            raise AssayError(f"node {node.name}: the wgpu engine does not know the activation {act}; use --engine cpu")
        p, q, r = (*(bits(x) for x in numbers), 0, 0, 0)[:3]
        third = c or a
        self._emit(
            "elementwise", (-(-out.width // 256), self._rows(self.domains[node.name]), 1),
            {"width": out.width, **out.numbers("out"), "acts_stride": acts.stride if acts else 0, "p": p, "q": q,
             "r": r, **a.numbers("a"), **b.numbers("b"), **third.numbers("c")},
            ({"quantised"} if acts else set()) | ({"three"} if c else set()),
            _EXPRESSIONS[node.op].format(act=_ACTS.get(act, "")), a=a.view.buffer, b=b.view.buffer,
            c=third.view.buffer, out=out.buffer, acts=acts.buffer if acts else NOTHING,
        )  # fmt: skip

    def _map(self, node: Node) -> None:
        """A function of one value, with the operation's attributes as numbers."""
        x = self._input(node)
        numbers = [float(v) for v in node.all_attrs().values() if isinstance(v, int | float)]
        self._elementwise(node, _Operand(x, x.width), None, *numbers)

    def _pair(self, node: Node) -> None:
        a, b = self._input(node), self._input(node, 1)
        numbers = [float(v) for v in node.all_attrs().values() if isinstance(v, int | float)]
        width = row_width(self.graph, node.name)
        first, second = _Operand(a, a.width), _Operand(b, b.width)
        if node.op in ("expert_scale", "expert_input"):  # b has a number for each expert
            second = _Operand(b, width // b.width, 1, 0)
        elif b.width == 1:
            second = _Operand(b, width, 0, 0)
        self._elementwise(node, first, second, *numbers)

    def _with_vector(self, node: Node) -> None:
        x, width = self._input(node), row_width(self.graph, node.name)
        name = node.weights[0]
        if node.op == "add_row":
            last = int(self.graph.shapes[node.name][-1])
            buffer = self.weights.constant(self.weights.array(name).reshape(-1, last)[node.attr("row")])
        else:
            buffer = self.weights.vector(name)
        n = int(np.prod(self.graph.weights[name])) if node.op != "add_row" else width
        b = View(buffer, 0, n)
        self._elementwise(node, _Operand(x, x.width), _Operand(b, n, 0, 1 if n > 1 else 0))

    def _glu_split(self, node: Node) -> None:
        x = self._input(node)
        half = x.width // heads_in_row(self.graph, node.inputs[0], 1) // 2
        self._elementwise(node, _Operand(x, half, 2 * half), _Operand(x.columns(half, x.width - half), half, 2 * half))

    def _slice(self, node: Node) -> None:
        x, start = self._input(node), int(node.attr("start"))
        parts = heads_in_row(self.graph, node.inputs[0], node.attr("n_head"))
        width = row_width(self.graph, node.name)
        if parts == 1:
            self._set(node, x.columns(start, width))
        else:
            each = width // parts
            self._elementwise(node, _Operand(x.columns(start, width), each, x.width // parts))

    def _repeat_heads(self, node: Node) -> None:
        x, width = self._input(node), int(self.graph.shapes[node.name][-1])
        times = row_width(self.graph, node.name) // x.width
        self._elementwise(node, _Operand(x, times * width, width, mod=width))

    def _join(self, node: Node) -> None:
        """Values side by side; one alone only loses its axis of heads."""
        if len(node.inputs) == 1:
            self._relabel(node)
            return
        out, at = self._new(node), 0
        for i in range(len(node.inputs)):
            x = self._input(node, i)
            operand = _Operand(x, x.width)
            self._each(node, out.columns(at, x.width), operand, operand)
            at += x.width

    def _per_head(self, node: Node) -> None:
        """A weight of each head times its row, added to another row in `add_gain`."""
        heads, width = int(node.attr("n_head")), row_width(self.graph, node.name)
        w = _Operand(View(self.weights.vector(node.weights[0]), 0, heads), width // heads, 1, 0)
        first = _Operand(self._input(node), width)
        if node.op == "head_gain":
            self._elementwise(node, first, w)
        else:
            self._elementwise(node, first, _Operand(self._input(node, 1), width), c=w)

    def _topk(self, node: Node) -> None:
        self._set(node, self._input(node).columns(0, row_width(self.graph, node.name)))

    def _relabel(self, node: Node) -> None:
        """Heads first or tokens first is an axis order of the graph only. In memory rows lie token by token."""
        self._set(node, self._input(node))

    def _norm(self, node: Node) -> None:
        x, out = self._input(node), self._new(node)
        parts = heads_in_row(self.graph, node.inputs[0], node.attr("n_head"))
        acts = self._blocks_beside(node, out) if parts == 1 else None
        n = x.width // parts
        vectors = [self.weights.vector(name) for name in node.weights]
        own = bool(node.weights) and int(np.prod(self.graph.weights[node.weights[0]])) > n  # each head has its own
        words = {"layer_norm": {"layer", "mean"}, "rms_norm": {"mean"}}.get(node.op) or (
            {"floored"} if node.attr("floor") else {"l2"}
        )
        words = words | ({"weighted"} if vectors else set()) | ({"biased"} if len(vectors) > 1 else set())
        numbers = {
            "n": n, "count": bits(n), "eps": bits(node.attr("eps")), **x.numbers("x"), "out_stride": out.stride,
            "w_stride": n if own else 0, "acts_stride": acts.stride if acts else 0,
        }  # fmt: skip
        w, bias = (*vectors, NOTHING, NOTHING)[:2]
        self._emit(
            "norm", (parts, self._rows(self.domains[node.name]), -(-n // 256)), numbers,
            words | ({"quantised"} if acts else set()),
            x=x.buffer, w=w, bias=bias, out=out.buffer, acts=acts.buffer if acts else NOTHING,
        )  # fmt: skip

    def _embed(self, node: Node) -> None:
        part, out = self.weights.part(node.weights[0]), self._new(node)
        numbers = {
            "width": out.width, "units": units_of(part.columns), "by_position": int(node.inputs == ("inp_pos",)),
            "stride": out.stride, **part.form.book_words,
        }  # fmt: skip
        for piece in part.slices:
            here = {"first": piece.first, "tiles": piece.tiles}
            self._emit(
                "embed", (units_of(part.columns), "T", 1), {**numbers, **here}, part.form.words, step="step",
                w=piece.buffer, out=out.buffer,
            )  # fmt: skip

    def _rope(self, node: Node) -> None:
        if node.inputs[1] != "inp_pos":
            raise AssayError(f"node {node.name}: the wgpu engine turns by inp_pos only (found {node.inputs[1]})")
        table = rope_table(node, self.weights.array(node.weights[0]) if node.weights else None)
        if table not in self.tables:
            self.tables.append(table)
        domain, x = self.domains[node.name], self._input(node)
        turn = {
            "n_rot": table.n_rot, "offset": int(node.attr("offset")), "neox": int(node.attr("mode") == "neox"),
            "table": self.tables.index(table),
        }  # fmt: skip
        readers = self.graph.users.get(node.name, ())
        alone = node.name not in self.keep and len(readers) == 1
        if alone and (self._is_key_cache(readers[0]) or self._is_query(node.name, readers[0])):
            self.values[node.name, domain] = x  # turned when it is written to the cache, or read by attention
            self.turns[node.name] = turn
            return
        out = self._new(node)
        numbers = {
            "width": x.width, "dim": x.width // int(node.attr("n_head")), **turn, "by_output": int(domain == "outputs"),
            **x.numbers("x"), "out_stride": out.stride,
        }  # fmt: skip
        groups: tuple[Count, Count, Count] = (-(-x.width // 256), self._rows(domain), 1)
        self._emit("rope", groups, numbers, step="step", x=x.buffer, out=out.buffer)

    def _is_key_cache(self, name: str) -> bool:
        return self.graph[name].op == "cache" and name in self.domains and self.pools[name].keys

    def _is_query(self, name: str, reader: str) -> bool:
        return self.graph[reader].op == "kq" and self.graph[reader].inputs[0] == name and reader in self.domains

    # -- attention -----------------------------------------------------------------------------------------

    def _cache(self, node: Node) -> None:
        """Rows to be written to a pool before the next attention, keys and values together."""
        self.writes.append((node.inputs[0], self.pools[node.name]))
        if node.name in self.keep:
            buffer = f"pool {self.pools[node.name].index}"
            self.results.append((External(node.name, "keys", row_width(self.graph, node.name)), buffer))

    def _pool(self, name: str) -> CachePool:
        """The pool of keys or values. Rows that the graph does not cache are written to it first."""
        pool = self.pools[name]
        if pool.passing:
            self.writes.append((name, pool))
        return pool

    def _write_pools(self) -> None:
        """Write all rows that wait, each key with the value that follows it where their shapes are the same."""
        waiting, self.writes = self.writes, []
        while waiting:
            name, pool = waiting.pop(0)
            pair = next((w for w in waiting if pool.keys and w[1] == replace(pool, index=w[1].index, keys=False)), None)
            if pair:
                waiting.remove(pair)
            key = (name, pool) if pool.keys else None
            self._write(key, pair or (None if key else (name, pool)))

    def _write(self, key: tuple[str, CachePool] | None, value: tuple[str, CachePool] | None) -> None:
        pool = key[1] if key else value[1] if value else None
        assert pool
        kind = pool.type(self.shape.kv_type)
        words = cache_words(pool.dim, kind)
        x, v = (self._get(part[0], "tokens") if part else View(NOTHING, 0, 0) for part in (key, value))
        turn = self.turns.get(key[0]) if key else None
        numbers = {
            "heads": pool.heads, "dim": pool.dim, "words": words, **x.numbers("x"), **v.numbers("v"),
            "only_values": int(key is None), **(turn or _NO_TURN),
        }  # fmt: skip
        jobs = pool.heads * (pool.dim // 32 if kind == "q8_0" else words)
        variant = {kind, "turned" if turn else "still"} | ({"floats"} if kind != "q8_0" else set())
        self._emit(
            "cache_write", (-(-jobs // 64), "T", 2 if key and value else 1), numbers, variant, step="step", x=x.buffer,
            v=v.buffer, keys=f"pool {key[1].index}" if key else SPARE,
            values=f"pool {value[1].index}" if value else SPARE,
        )  # fmt: skip

    def _attention(self, group: Attention) -> None:
        kq, softmax, kqv = group.kq, group.softmax, group.kqv
        mask = attention_mask(self.graph, softmax, group.capped, "the wgpu engine masks by inp_pos and inp_kpos only")
        domain = self.domains[kqv.name]
        k, v = self._pool(group.keys), self._pool(group.values)
        self._write_pools()
        if mask.slopes or group.keys == group.values or max(k.dim, v.dim) > MAX_HEAD:
            raise AssayError(
                f"node {kqv.name}: the wgpu engine has no attention with slopes, with keys that are values, or with "
                f"heads wider than {MAX_HEAD} (found {max(k.dim, v.dim)}); use --engine cpu"
            )
        q, out, turn = self._get(kq.inputs[0], domain), self._new(kqv), self.turns.get(kq.inputs[0])
        acts = self._blocks_beside(kqv, out, v.dim) if not v.dim % 32 else None
        heads, rows, by_output = int(self.graph.shapes[kq.name][0]), self._rows(domain), int(domain == "outputs")
        most = -(-self.shape.keys // KEY_BLOCK)
        kind = k.type(self.shape.kv_type)
        traced = {i: n for i, n in enumerate((kq, group.capped, softmax)) if n and n.name in self.keep}
        if traced:
            acts = None
        scores = self._memory(f"{kq.name} scores", domain, heads * self.shape.keys * 3).buffer if traced else NOTHING
        finished = most == 1 and not traced and not mask.sinks  # one block, which attention divides by its sum itself
        blocks = NOTHING
        if not finished:
            blocks = self._memory(f"{kqv.name} blocks", domain, heads * most * (v.dim + 2)).buffer
        result = {"out_stride": out.stride, "acts_stride": acts.stride if acts else 0, "width": out.width}
        numbers = {
            "heads": heads, "kv_heads": k.heads, "dim": k.dim, "v_dim": v.dim, "k_words": cache_words(k.dim, kind),
            "v_words": cache_words(v.dim, kind), "scale": bits(mask.scale), "cap": bits(mask.cap),
            "window": mask.window, "causal": int(mask.causal), "chunk": mask.chunk, "by_output": by_output,
            **q.numbers("q"), "most_blocks": most, "most_keys": self.shape.keys, **(turn or _NO_TURN), **result,
        }  # fmt: skip
        words = {kind, "traced" if traced else "untraced", "turned" if turn else "still"}
        words |= ({"capped"} if mask.cap else set()) | (set() if kind == "f16" else {"not_f16"})
        quantised = {"quantised"} if acts else set()
        words |= {"finished"} | quantised if finished else {"parts"}
        self._emit(
            "attention", ("B", heads, rows), numbers, words, step="step", q=q.buffer,
            keys=f"pool {k.index}", values=f"pool {v.index}", positions="positions",
            out=out.buffer if finished else blocks, scores=scores, acts=acts.buffer if acts else NOTHING,
        )  # fmt: skip
        if finished:
            return
        ends = self._memory(f"{kqv.name} ends", domain, heads * 2).buffer if traced else NOTHING
        words = {"sinks" if mask.sinks else "plain"} | quantised
        numbers = {"heads": heads, "dim": v.dim, "by_output": by_output, "most_blocks": most, **result}
        self._emit(
            "attention_fold", (heads, rows, 1), numbers, words | ({"traced"} if traced else set()), step="step",
            blocks=blocks, sinks=self.weights.vector(mask.sinks) if mask.sinks else NOTHING, out=out.buffer,
            acts=acts.buffer if acts else NOTHING, ends=ends,
        )  # fmt: skip
        if traced:
            self._emit(
                "attention_weights", (-(-self.shape.keys // 256), heads, rows),
                {"heads": heads, "most_keys": self.shape.keys}, ends=ends, scores=scores,
            )  # fmt: skip
        for which, node in traced.items():
            external = External(node.name, "scores", row_width(self.graph, node.name))
            self.results.append((external, KeptScores(scores, heads, self.shape.keys, which)))

    # -- layers that remember --------------------------------------------------------------------------------

    def _state(self, node: Node) -> dict[str, int]:
        """Where the state of a node lies in a state slot."""
        places, size = slot_offsets(self.graph)
        return {"state_at": places[node.name], "state_size": size}

    def _convolution(self, node: Node) -> None:
        x, out = self._get(node.inputs[0], "tokens"), self._new(node)
        taps = int(self.graph.weights[node.weights[0]][-1])
        if taps > MAX_TAPS:
            raise AssayError(
                f"node {node.name}: the wgpu engine convolves at most {MAX_TAPS} taps (found {taps}); use --engine cpu"
            )
        numbers = {"channels": x.width, "taps": taps, **x.numbers("x"), "out_stride": out.stride, **self._state(node)}
        self._emit(
            "causal_conv", (-(-x.width // 64), "P", 1), numbers, step="step", x=x.buffer,
            w=self.weights.vector(node.weights[0]), states="states", out=out.buffer,
        )  # fmt: skip

    def _scan(self, node: Node) -> None:
        inputs, out = [self._get(name, "tokens") for name in node.inputs], self._new(node)
        names = ("x", "dt", "B", "C") if node.op == "ssm_scan" else ("q", "k", "v", "g", "beta")
        heads, channels = int(node.attr("n_head")), int(node.attr("state")[-1])
        views = dict(zip(names, inputs, strict=True))
        numbers = {
            "heads": heads, "width": out.width // heads, "channels": channels, "out_stride": out.stride,
            "chains": min(64, 1 << (channels - 1).bit_length()), **self._state(node),
            **{key: value for name, view in views.items() for key, value in view.numbers(name).items()},
        }  # fmt: skip
        buffers = {name: view.buffer for name, view in views.items()}
        if node.op == "ssm_scan":
            numbers["group_heads"] = heads // int(node.attr("n_group"))
            numbers["a_each"] = int(np.prod(self.graph.weights[node.weights[0]])) // heads
            buffers["w"] = self.weights.vector(node.weights[0])
        else:
            numbers |= {"key_heads": int(node.attr("n_head_k")), "g_each": views["g"].width // heads}
            numbers["scale"] = bits(node.attr("scale"))
        groups: tuple[Count, Count, Count] = (-(-out.width // 64), "P", 1)
        self._emit(node.op, groups, numbers, step="step", states="states", out=out.buffer, **buffers)

    # -- experts -------------------------------------------------------------------------------------------

    def _row(self, node: Node) -> None:
        """A kernel of one workgroup a row."""
        x, out = self._input(node), self._new(node)
        rows = self._rows(self.domains[node.name])
        kernel = {"softmax": "row_softmax"}.get(node.op, node.op)
        groups: tuple[Count, Count, Count] = (-(-x.width // 64), rows, 1) if node.op == "argsort" else (rows, 1, 1)
        numbers = {"width": x.width, **x.numbers("x"), "out_stride": out.stride}
        self._emit(kernel, groups, numbers, x=x.buffer, out=out.buffer)

    def _gather(self, node: Node) -> None:
        x, idx, out = self._input(node), self._input(node, 1), self._new(node)
        numbers = {"width": out.width, **x.numbers("x"), **idx.numbers("idx"), "out_stride": out.stride}
        groups: tuple[Count, Count, Count] = (-(-out.width // 64), self._rows(self.domains[node.name]), 1)
        self._emit("gather", groups, numbers, x=x.buffer, idx=idx.buffer, out=out.buffer)

    def _expert_linear(self, node: Node) -> None:
        x, idx, domain = self._input(node), self._input(node, 1), self.domains[node.name]
        part, experts = self.weights.part(node.weights[0]), idx.width
        out = self._memory(node.name, domain, experts * ROWS * part.tiles)
        row = replace(out, stride=ROWS * part.tiles)  # a row for each expert of a token
        if part.rows % ROWS:
            raise AssayError(
                f"node {node.name}: the wgpu engine multiplies experts of whole tiles (found {part.rows} rows, "
                f"expected a multiple of {ROWS}); use --engine cpu"
            )
        shared = len(self.graph.shapes[node.inputs[0]]) == 2
        self._multiply([part], x, domain, row, idx=idx, experts=experts, shared=shared)
        self._set(node, replace(out, stride=experts * part.rows))

    def _expert_rows(self, node: Node) -> None:
        x, idx, out = self._input(node), self._input(node, 1), self._new(node)
        each = out.width // idx.width
        shape = self.graph.weights[node.weights[0]]
        numbers = {
            "width": out.width, "each": each, "w_each": each if len(shape) == 2 else 1, **x.numbers("x"),
            **idx.numbers("idx"), "out_stride": out.stride,
        }  # fmt: skip
        self._emit(
            "expert_rows", (-(-out.width // 256), self._rows(self.domains[node.name]), 1), numbers,
            expression="add(A, B)" if node.op == "expert_bias" else "mul(A, B)", x=x.buffer, idx=idx.buffer,
            w=self.weights.vector(node.weights[0]), out=out.buffer,
        )  # fmt: skip

    def _expert_sum(self, node: Node) -> None:
        x, out = self._input(node), self._new(node)
        numbers = {"width": out.width, "experts": x.width // out.width, **x.numbers("x"), "out_stride": out.stride}
        groups: tuple[Count, Count, Count] = (-(-out.width // 256), self._rows(self.domains[node.name]), 1)
        self._emit("expert_sum", groups, numbers, x=x.buffer, out=out.buffer)


# A row for each operation. Linears and attention are compiled in groups, so they have no row.
_SINGLES: dict[str, Callable[[_Compiler, Node], None]] = {
    "embed": _Compiler._embed,
    **dict.fromkeys(("rms_norm", "layer_norm", "l2_norm"), _Compiler._norm),
    **dict.fromkeys(("bias", "add_row", "mul_weight"), _Compiler._with_vector),
    **dict.fromkeys(("scale", "softcap", "sigmoid", "clamp", "clamp_min", "add_scalar", "act", "softplus", "exp"),
                    _Compiler._map),
    **dict.fromkeys(("add", "mul", "div", "glu", "glu_oai", "expert_scale", "expert_input"), _Compiler._pair),
    "glu_split": _Compiler._glu_split,
    "slice": _Compiler._slice,
    "repeat_heads": _Compiler._repeat_heads,
    "join": _Compiler._join,
    **dict.fromkeys(("head_gain", "add_gain"), _Compiler._per_head),
    "causal_conv": _Compiler._convolution,
    **dict.fromkeys(("ssm_scan", "delta_rule"), _Compiler._scan),
    "topk": _Compiler._topk,
    **dict.fromkeys(("merge_heads", "split_heads"), _Compiler._relabel),
    "rope": _Compiler._rope,
    "cache": _Compiler._cache,
    **dict.fromkeys(("softmax", "argsort", "row_sum"), _Compiler._row),
    "gather": _Compiler._gather,
    "expert_linear": _Compiler._expert_linear,
    **dict.fromkeys(("expert_bias", "expert_gain"), _Compiler._expert_rows),
    "expert_sum": _Compiler._expert_sum,
}  # fmt: skip
