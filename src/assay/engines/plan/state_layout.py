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


@dataclass(frozen=True)
class CachePool:
    """Where the rows of one node lie: its number among the pools, and the shape of a position.

    Keys and values that a graph does not cache are put into pages for one pass, in float32. Such a pool is `passing`
    and serves all nodes of its shape, one after the other.
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


def slots_bytes(graph: Graph, kv_type: str) -> int:
    """Bytes of all state slots: state of a fixed size that each sequence and each snapshot of a prefix has."""
    return STATE_SLOTS * graph.state.bytes_per_sequence(kv_type)


def state_slots(graph: Graph) -> int:
    """How many state slots an engine has for this graph; none where everything is kept by position."""
    return STATE_SLOTS if graph.state.per_sequence else 0
