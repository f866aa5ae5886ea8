"""Where a graph's state lies in an engine's memory: the pools of a page, bytes of a page and of a state slot.

`Graph.state` declares what is kept (`graph/state.py`). This module turns the declaration into pools, which the cpu and
the cuda engine place in their pages. It also estimates memory before an engine exists. Touch it when the memory that
engines give to state changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from assay.engines.contract import PAGE
from assay.graph import Graph, Trait
from assay.graph.state import CACHE_BITS

KV_TYPES = CACHE_BITS  # the types of cache that an option can name
STATE_SLOTS = 128  # room for the state of 64 running sequences, and for as many snapshots of prefixes
STATE_BYTES = 1 << 30  # fewer slots where 128 would take more memory than this; a slot of a 9B hybrid takes 50 MB
LEAST_SLOTS = 8
PLACES = 2  # copies of each slot: a step writes to the spare one (`state_places.py`); float64 in the reference engine


@dataclass(frozen=True)
class CachePool:
    """Where the rows of one node lie: its number among the pools, and the shape of a position.

    Keys and values that a graph does not cache are put into pages for one pass, in float32 unless an engine rounds
    them. Such a pool is `passing` and serves all nodes of its shape, one after the other.
    """

    index: int
    keys: bool  # multiplied with queries, hence stored transposed
    heads: int
    dim: int
    passing: bool = False
    window: int = 0  # positions that any query sees of it, its own among them; 0: all

    def type(self, kv_type: str) -> str:
        """The type of its values where the cache has type `kv_type`."""
        return "f32" if self.passing else kv_type


def cache_pools(graph: Graph) -> dict[str, CachePool]:
    """The pools of a graph, by the node whose rows they hold; the same for every program of the graph."""
    pools: dict[str, CachePool] = {}
    for kept in graph.state.rows:
        *outer, dim = kept.shape
        pools[kept.node] = CachePool(len(pools), kept.keys, math.prod(outer), dim, window=kept.window)
    passing: dict[CachePool, CachePool] = {}
    cached = len(pools)
    for node in graph:
        if node.has(Trait.KEYS | Trait.VALUES) and graph.shapes[node.inputs[1]][0] == "T":
            width = math.prod(int(d) for d in graph.shapes[node.inputs[1]][1:])
            heads = node.attr("n_head_kv") or int(graph.shapes[node.inputs[1]][1])
            shape = CachePool(0, node.has(Trait.KEYS), heads, width // heads, True)
            pools[node.inputs[1]] = passing.setdefault(shape, replace(shape, index=cached + len(passing)))
    return pools


def page_bytes(graph: Graph, kv_type: str, window: int | None = None) -> int:
    """Bytes of one page without an engine's padding: rows of `PAGE` positions in every layer, and the positions.

    With `window`, only the layers with that window count (0: those without one, and the positions).
    """
    passing = {pool for pool in cache_pools(graph).values() if pool.passing and window in (None, 0)}
    rows = graph.state.bytes_per_position(kv_type, window) + 4 * sum(pool.heads * pool.dim for pool in passing)
    return int(PAGE * (rows + (0 if window else 4)))


@dataclass(frozen=True)
class StateMemory:
    """The memory of state of a fixed size: a slot for each running sequence, and one for each snapshot of a prefix."""

    slots: int
    bytes_per_slot: int  # the state of one sequence, always in float32

    @property
    def bytes(self) -> int:
        """Bytes of all slots, which an engine holds twice."""
        return PLACES * self.slots * self.bytes_per_slot


def state_memory(graph: Graph, slots: int | None = None) -> StateMemory:
    """Memory of the states of a graph, for the number of slots asked for, by default those of an engine."""
    return StateMemory(state_slots(graph, slots), graph.state.bytes_per_sequence("f32"))


def slot_offsets(graph: Graph) -> tuple[dict[str, int], int]:
    """Where each node's state begins within a state slot, counted in float32 values, and the values of a whole slot.

    States lie one after the other in the order of the graph, row-major, each at a multiple of 16 values (64 bytes).
    """
    found, at = {}, 0
    for kept in graph.state.per_sequence:
        found[kept.node] = at
        at += -(-math.prod(kept.shape) // 16) * 16
    return found, at


def state_slots(graph: Graph, asked: int | None = None) -> int:
    """How many state slots an engine has for this graph; none where everything is kept by position.

    As many as `asked`, else as `STATE_BYTES` can hold. Sequences take slots first; snapshots have what is left.
    """
    each = graph.state.bytes_per_sequence("f32")
    if not graph.state.per_sequence:
        return 0
    return asked or max(LEAST_SLOTS, min(STATE_SLOTS, STATE_BYTES // max(each, 1)))
