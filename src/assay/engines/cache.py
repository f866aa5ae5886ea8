"""What a page of the cache holds: a pool for each `cache` node, and the positions of its keys."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from assay.engines.base import PAGE
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
            pools[node.name] = CachePool(len(pools), keys, int(heads), int(dim))
    passing: dict[CachePool, CachePool] = {}
    cached = len(pools)
    for node in graph:
        if node.op in ("kq", "kqv") and graph.shapes[node.inputs[1]][0] == "T":
            width = math.prod(int(d) for d in graph.shapes[node.inputs[1]][1:])
            heads = node.attr("n_head_kv") or int(graph.shapes[node.inputs[1]][1])
            shape = CachePool(0, node.op == "kq", heads, width // heads, True)
            pools[node.inputs[1]] = passing.setdefault(shape, replace(shape, index=cached + len(passing)))
    return pools


def page_bytes(graph: Graph, kv_type: str) -> int:
    """Bytes of one page: keys and values of `PAGE` positions in every layer, and the positions; no engine's padding."""
    bits = sum(p.heads * p.dim * _BITS.get(p.type(kv_type), 64.0) for p in set(cache_pools(graph).values()))
    return int(PAGE * (bits / 8 + 4))


def natural_kv_type(engine: str, precision: str | None) -> str:
    """The type of the cache where none is asked for."""
    return "f64" if engine == "reference" else "f32" if precision == "exact" else "f16"
