"""The output of the wgpu engine's compiler: dispatches, memory of values, and where values lie.

Values are rows of floats in buffers. Slices of rows and joined heads are views without a dispatch. A value that
products read as int8 blocks is quantised by the kernel that computes it, where that kernel can. Touch this module when
all kinds of operations need something further.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from assay.engines.plan.batching import External
from assay.engines.plan.state_layout import CachePool
from assay.engines.plan.values import RopeTable, row_width
from assay.engines.wgpu.dispatches import NOTHING, Count, Dispatch, KeptScores, View
from assay.engines.wgpu.shaders import Kernel
from assay.engines.wgpu.weight_tiles import TileFormat
from assay.errors import AssayError
from assay.graph import Graph, Node

TOKENS = 8  # of a workgroup of products, where a step may have as many
NO_TURN = {"n_rot": 0, "offset": 0, "neox": 0, "table": 0}  # numbers of kernels that do not turn their rows


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
    """The sizes that a program's memory is made for: rows of a step, keys of a sequence, and the cache's type.

    With `best`, the program ends with the largest logit of each output row in the buffer `chosen`. With `fixed`, the
    numbers of products are constants of their code: a GPU begins to load weights without waiting for them, and each
    shape of a matrix is compiled on its own.
    """

    rows: int
    keys: int
    kv_type: str
    best: bool = False
    fixed: bool = False


def bits(x: float) -> int:
    """The bits of a number rounded to float32."""
    return int(struct.unpack("<I", struct.pack("<f", np.float32(x)))[0])


def cache_words(dim: int, kv_type: str) -> int:
    """Words of one head of one slot."""
    return {"f32": dim, "f16": (dim + 1) // 2, "bf16": (dim + 1) // 2, "q8_0": dim // 32 * 9}[kv_type]


def block_words(width: int) -> int:
    """Words of a row as int8 blocks: the codes, then three lists with a float for each block (`quantise.wgsl`)."""
    return width // 4 + 3 * (-(-(width // 32) // 4) * 4)


@dataclass
class ProgramBuilder:
    """A program while it is compiled."""

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
    domains: Mapping[str, str] = field(default_factory=dict)  # "tokens" or "outputs": the rows of each node
    pools: Mapping[str, CachePool] = field(default_factory=dict)
    values: dict[tuple[str, str], View] = field(default_factory=dict)  # by name and domain
    acts: dict[tuple[View, str], View] = field(default_factory=dict)  # int8 blocks of a value, by its rows' domain
    wanted: Collection[tuple[str, str]] = ()  # values that products read as int8 blocks

    def rows_of(self, domain: str) -> str:
        return "R" if domain == "outputs" else "T"

    @property
    def tokens_at_once(self) -> int:
        """Tokens of a workgroup of products."""
        return TOKENS if self.shape.rows >= TOKENS else 1

    def memory(self, name: str, domain: str, width: int, rows: int = 1) -> View:
        """New memory for rows of this width; `rows` for each row of the domain."""
        stride = -(-width // 4) * 4
        buffer = f"{name} {domain} {len(self.sizes)}"
        group = self.tokens_at_once  # products write whole groups of rows
        self.sizes[buffer] = 4 * stride * (-(-self.shape.rows // group) * group) * rows
        return View(buffer, stride, width)

    def set(self, node: Node, view: View) -> View:
        """Note where a node's value lies, and give it to the caller if it is kept or is the output."""
        domain = self.domains[node.name]
        self.values[node.name, domain] = view
        if node.name in self.keep or node.name == self.graph.output:
            self.results.append((External(node.name, domain, row_width(self.graph, node.name)), view))
        return view

    def new(self, node: Node) -> View:
        domain, width = self.domains[node.name], row_width(self.graph, node.name)
        return self.set(node, self.memory(node.name, domain, width))

    def get(self, name: str, domain: str) -> View:
        """The value of a computed node, on the rows of `domain`."""
        found = self.values.get((name, domain))
        if found is not None:
            return found
        if domain != "outputs" or (name, "tokens") not in self.values:
            raise AssayError(f"node {name}: the wgpu engine cannot use it here; use --engine cpu")
        x = self.values[name, "tokens"]
        view = self.values[name, domain] = self.memory(name, domain, x.width)
        numbers = {"width": x.width, **x.numbers("x"), "out_stride": view.stride}
        groups: tuple[Count, Count, Count] = (-(-x.width // 256), "R", 1)
        self.emit("output_rows", groups, numbers, step="step", x=x.buffer, out=view.buffer)
        return view

    def input(self, node: Node, i: int = 0) -> View:
        return self.get(node.inputs[i], self.domains[node.name])

    def emit(
        self,
        name: str,
        groups: tuple[Count, Count, Count],
        numbers: Mapping[str, int],
        words: Collection[str] = (),
        expression: str = "",
        **buffers: str,
    ) -> None:
        fixed = tuple(sorted(numbers.items())) if self.shape.fixed and name == "matvec" else ()
        kernel = Kernel(name, frozenset(words), expression, fixed)
        bound = {binding: buffers.get(binding, NOTHING) for binding in kernel.bindings}
        self.dispatches.append(Dispatch(kernel, dict(numbers), bound, groups))

    def blocks_beside(self, node: Node, view: View, multiple: int = 32) -> View | None:
        """Memory for the int8 blocks of a value that is about to be computed, if products read it so."""
        domain = self.domains[node.name]
        if (node.name, domain) not in self.wanted or view.width % multiple or view.width % 32:
            return None
        acts = self.acts[view, domain] = self.memory(f"{node.name} int8", domain, block_words(view.width))
        return acts

    def blocks(self, view: View, domain: str, part: int = 0) -> View:
        """A value as int8 blocks, each part of a row (the whole row, or an expert's) a row of its own."""
        key = (view, domain if not part else f"{domain} {part}")
        if key not in self.acts:
            width = part or view.width
            parts = view.width // width
            acts = self.acts[key] = self.memory(f"{view.buffer} int8", domain, block_words(width), parts)
            numbers = {"width": width, **view.numbers("x"), "acts_stride": acts.stride, "part": width, "parts": parts}
            rows = self.rows_of(domain) + (f"*{parts}" if parts > 1 else "")
            self.emit("quantise_rows", (-(-width // 256), rows, 1), numbers, x=view.buffer, acts=acts.buffer)
        return self.acts[key]
