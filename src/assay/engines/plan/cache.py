"""What a page of the cache holds: a pool for each `cache` node, and the positions of its keys."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from assay.engines.contract import PAGE
from assay.graph import Graph

# Bits of a value in each type of cache; q8_0 has a half for every 32.
KV_TYPES = {"f16": 16.0, "f32": 32.0, "bf16": 16.0, "q8_0": 8.5}
_BITS = KV_TYPES | {"f64": 64.0}  # and the reference's, which nobody chooses


@dataclass(frozen=True)
class CachePool:
    """Where a `cache` node's rows lie: its place among the pools and the shape of a position.

    Keys and values that a graph does not cache are put into pages for the pass alone, in float32; such a pool serves
    all nodes of its shape, one after the other.
    """

    index: int
    keys: bool  # read by kq, hence stored transposed
    heads: int
    dim: int
    passing: bool = False
    window: int = 0  # positions that any query sees of it, its own among them; 0: all

    def type(self, kv_type: str) -> str:
        return "f32" if self.passing else kv_type


def cache_pools(graph: Graph) -> dict[str, CachePool]:
    """The pools a graph needs, by the node whose rows they hold; the same for every program of the graph."""
    pools: dict[str, CachePool] = {}
    for node in graph:
        if node.op == "cache":
            readers = [graph[user] for user in graph.users.get(node.name, ())]
            keys = any(r.op == "kq" and r.inputs[1] == node.name for r in readers)
            heads, dim = graph.shapes[node.name][1:]
            pools[node.name] = CachePool(len(pools), keys, int(heads), int(dim), window=_window(graph, node.name))
    passing: dict[CachePool, CachePool] = {}
    cached = len(pools)
    for node in graph:
        if node.op in ("kq", "kqv") and graph.shapes[node.inputs[1]][0] == "T":
            width = math.prod(int(d) for d in graph.shapes[node.inputs[1]][1:])
            heads = node.attr("n_head_kv") or int(graph.shapes[node.inputs[1]][1])
            shape = CachePool(0, node.op == "kq", heads, width // heads, True)
            pools[node.inputs[1]] = passing.setdefault(shape, replace(shape, index=cached + len(passing)))
    return pools


def _window(graph: Graph, name: str) -> int:
    """How far back a query sees of a cache node's rows, itself among them; 0 where one sees all."""
    if graph.whole or graph.pooled:
        return 0  # run at once, so that nothing is ever behind
    reach, below = [], [name]
    while below:  # down to the masks, through whatever lies between
        for user in graph.users.get(below.pop(), ()):
            node = graph[user]
            if node.op == "kqv" and graph.by_name[node.inputs[0]].op == "attn_softmax":
                node = graph[node.inputs[0]]
            if node.op == "attn_softmax":
                reach.append(min((n for n in (node.attr("window"), node.attr("chunk")) if n), default=0))
            elif node.op in ("kq", "softcap", "scale", "slice"):
                below.append(user)
            else:
                return 0
    return 0 if 0 in reach else max(reach, default=0)


def windows(graph: Graph) -> tuple[int, ...]:
    """The windows that bound what layers see of the cache, the shortest first."""
    return tuple(sorted({pool.window for pool in cache_pools(graph).values() if pool.window}))


def page_bytes(graph: Graph, kv_type: str, window: int | None = None) -> int:
    """Bytes of one page: keys and values of `PAGE` positions in every layer (in those with that window; 0: without
    any), and the positions; no engine's padding."""
    pools = [p for p in set(cache_pools(graph).values()) if window in (None, p.window)]
    bits = sum(p.heads * p.dim * _BITS.get(p.type(kv_type), 64.0) for p in pools)
    return int(PAGE * (bits / 8 + (0 if window else 4)))
