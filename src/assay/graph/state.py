"""The state that each layer keeps between steps, as a declaration that allocator, schedulers and engines read.

A node whose operation has `Trait.STATE` keeps something: rows of keys, a recurrent matrix, a convolution window. Its
operation names a *kind* (`Op.keeps`), and the kind is a row of `KINDS`. `Graph.state` collects the declaration of a
whole graph. Readers ask it and never look at operation names:

    engines/plan/state_layout.py   which pools a page of the cache has, and how many bytes
    runtime/pages.py               pages, window slots and state slots; where a prefix can be reused
    runtime/scheduler.py           whether drafted tokens are taken back at no cost, or by states kept after each
    engines/plan/batching.py       whether a step may be repeated for a trace

Touch this to add a kind of state: add a row to `KINDS`, and name it in the row of the operation that keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from assay.graph.names import split
from assay.graph.node import Node
from assay.graph.ops import OPS, Shape, Trait

# Bits of one value in each type of cache. q8_0 has a float16 scale for every 32 values.
CACHE_BITS = {"f16": 16.0, "f32": 32.0, "bf16": 16.0, "q8_0": 8.5}
_BITS = CACHE_BITS | {"f64": 64.0}  # the reference engine's type, which is not offered as an option

POSITION, SEQUENCE = "position", "sequence"


@dataclass(frozen=True)
class Kind:
    """A kind of state. Every field answers a question that some reader of the declaration asks."""

    name: str
    words: str  # a description, for documents and messages
    roles: tuple[str, ...]  # names of its nodes: `cache_k` in layer 3 is `cache_k_l3`
    per: str  # POSITION: a row for each position of a sequence; SEQUENCE: one value of fixed size for each sequence
    shape: Callable[[Shape, Node], tuple[int, ...]]  # of one row or value, from the node's shape and attributes
    follows_cache_type: bool  # stored in the type that --kv-type chooses; else always float32
    zeroed: bool  # must be zero when a sequence starts; rows by position are written before they are read
    cuttable: bool  # the last tokens can be taken back at no cost; else only a snapshot at a page end can be resumed
    evicts: bool = False  # a page that lies behind the window of every later token may be evicted


def _row_shape(shape: Shape, _node: Node) -> tuple[int, ...]:
    return tuple(int(dim) for dim in shape[1:])


def _state_attribute(_shape: Shape, node: Node) -> tuple[int, ...]:
    return tuple(int(dim) for dim in node.attr("state"))


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("rows", "keys or values, a row for each position", ("cache_k", "cache_v"), POSITION, _row_shape,
             follows_cache_type=True, zeroed=False, cuttable=True),
        Kind("window", "keys or values of which a query sees the last ones only", ("cache_k", "cache_v"), POSITION,
             _row_shape, follows_cache_type=True, zeroed=False, cuttable=True, evicts=True),
        Kind("latent", "rows that are keys, and of which a part is the values (MLA)", ("cache_k",), POSITION,
             _row_shape, follows_cache_type=True, zeroed=False, cuttable=True),
        Kind("recurrent", "a matrix for each head, which every token changes", ("cache_s",), SEQUENCE, _state_attribute,
             follows_cache_type=False, zeroed=True, cuttable=False),
        Kind("convolution", "the last rows that a convolution read, raw and oldest first", ("cache_r",), SEQUENCE,
             _state_attribute, follows_cache_type=False, zeroed=True, cuttable=False),
    )
}  # fmt: skip


@dataclass(frozen=True)
class KeptState:
    """The state that one node keeps."""

    node: str
    layer: int | None
    kind: Kind
    shape: tuple[int, ...]  # of one position, or of the whole sequence
    window: int = 0  # positions that any query sees, its own among them; 0: all of them
    keys: bool = False  # queries are multiplied with its rows, so an engine may store them transposed

    @property
    def by_position(self) -> bool:
        return self.kind.per == POSITION

    def type(self, kv_type: str) -> str:
        """The type it is stored in where the cache has type `kv_type`."""
        return kv_type if self.kind.follows_cache_type else "f32"

    def bits(self, kv_type: str) -> float:
        """Bits of one position, or of the whole sequence."""
        return math.prod(self.shape) * _BITS.get(self.type(kv_type), 64.0)


@dataclass(frozen=True)
class GraphState:
    """Everything that a graph keeps, in the order of its nodes."""

    kept: tuple[KeptState, ...]

    @cached_property
    def by_node(self) -> dict[str, KeptState]:
        return {kept.node: kept for kept in self.kept}

    @cached_property
    def rows(self) -> tuple[KeptState, ...]:
        """State with a row for each position: it lies in pages."""
        return tuple(kept for kept in self.kept if kept.by_position)

    @cached_property
    def per_sequence(self) -> tuple[KeptState, ...]:
        """State of a fixed size for each sequence: it lies in state slots."""
        return tuple(kept for kept in self.kept if not kept.by_position)

    @cached_property
    def cuttable(self) -> bool:
        """Whether the last tokens of a sequence can be taken back, and a step be repeated, without a snapshot."""
        return all(kept.kind.cuttable for kept in self.kept)

    @cached_property
    def windows(self) -> tuple[int, ...]:
        """The windows behind which pages may be evicted, the shortest first."""
        return tuple(sorted({kept.window for kept in self.rows if kept.kind.evicts}))

    def bytes_per_position(self, kv_type: str, window: int | None = None) -> float:
        """Bytes of one position in all layers; with `window`, in those with that window (0: those without one)."""
        return sum(kept.bits(kv_type) for kept in self.rows if window in (None, kept.window)) / 8

    def bytes_per_sequence(self, kv_type: str) -> int:
        """Bytes of one state slot."""
        return int(sum(kept.bits(kv_type) for kept in self.per_sequence) / 8)


class Nodes(Protocol):
    """The part of a `Graph` that the declaration is made from."""

    @property
    def nodes(self) -> tuple[Node, ...]: ...
    @property
    def by_name(self) -> Mapping[str, Node]: ...
    @property
    def shapes(self) -> Mapping[str, Shape]: ...
    @property
    def users(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def whole(self) -> bool: ...
    @property
    def pooled(self) -> Iterable[str]: ...


def declare(graph: Nodes) -> GraphState:
    """The declaration of a graph. `Graph.state` calls this once."""
    return GraphState(tuple(_kept(graph, node) for node in graph.nodes if node.has(Trait.STATE)))


def _kept(graph: Nodes, node: Node) -> KeptState:
    kind = KINDS[OPS[node.op].keeps]
    readers = [graph.by_name[user] for user in graph.users.get(node.name, ())]
    keys = any(r.has(Trait.KEYS) and r.inputs[1] == node.name for r in readers)
    window = _window(graph, node.name) if kind.per == POSITION else 0
    if kind is KINDS["rows"]:  # the readers of the rows decide which kind of rows they are
        kind = KINDS["window" if window else "latent" if keys and _has_values(graph, readers) else "rows"]
    return KeptState(node.name, split(node.name)[1], kind, kind.shape(graph.shapes[node.name], node), window, keys)


def _has_values(graph: Nodes, readers: Iterable[Node]) -> bool:
    """Whether values are read from the same rows as keys, directly or as a slice of them."""
    return any(r.has(Trait.VALUES) or (r.op == "slice" and _has_values(graph, _users(graph, r.name))) for r in readers)


def _users(graph: Nodes, name: str) -> list[Node]:
    return [graph.by_name[user] for user in graph.users.get(name, ())]


_BETWEEN = ("kq", "softcap", "scale", "slice")  # operations that may lie between cached rows and their mask


def _window(graph: Nodes, name: str) -> int:
    """How many positions back a query sees of a node's rows, itself among them; 0 where some query sees all of them.

    Every path from the rows must end in a mask with a window or a chunk. Any other reader could look at all rows.
    """
    if graph.whole or any(graph.pooled):
        return 0  # a sequence is run in one step, so that no row lies behind it
    reach, below = [], [name]
    while below:
        for node in _users(graph, below.pop()):
            if node.has(Trait.VALUES) and graph.by_name[node.inputs[0]].has(Trait.MASKS):
                node = graph.by_name[node.inputs[0]]
            if node.has(Trait.MASKS):
                reach.append(min((n for n in (node.attr("window"), node.attr("chunk")) if n), default=0))
            elif node.op in _BETWEEN:
                below.append(node.name)
            else:
                return 0
    return 0 if 0 in reach else max(reach, default=0)
