"""What a page of the cache holds: a pool for each `cache` node, and the positions of its keys."""

from __future__ import annotations

from dataclasses import dataclass

from assay.engines.base import PAGE
from assay.graph import Graph

# Bits of a value in each type of cache; q8_0 has a half for every 32.
KV_TYPES = {"f16": 16.0, "f32": 32.0, "bf16": 16.0, "q8_0": 8.5}
_BITS = KV_TYPES | {"f64": 64.0}  # and the reference's, which nobody chooses


@dataclass(frozen=True)
class CachePool:
    """One `cache` node: its place among the pools and the shape of a position."""

    index: int
    keys: bool  # read by kq, hence stored transposed
    heads: int
    dim: int


def cache_pools(graph: Graph) -> dict[str, CachePool]:
    """The pools a graph needs; the same for every program of the graph."""
    pools: dict[str, CachePool] = {}
    for node in graph:
        if node.op == "cache":
            readers = [graph[user] for user in graph.users.get(node.name, ())]
            keys = any(r.op == "kq" and r.inputs[1] == node.name for r in readers)
            heads, dim = graph.shapes[node.name][1:]
            pools[node.name] = CachePool(len(pools), keys, int(heads), int(dim))
    return pools


def page_bytes(graph: Graph, kv_type: str) -> int:
    """Bytes of one page: keys and values of `PAGE` positions in every layer, and the positions; no engine's padding."""
    values = sum(pool.heads * pool.dim for pool in cache_pools(graph).values())
    return int(PAGE * (values * _BITS.get(kv_type, 64.0) / 8 + 4))


def natural_kv_type(engine: str, precision: str | None) -> str:
    """The type of the cache where none is asked for."""
    return "f64" if engine == "reference" else "f32" if precision == "exact" else "f16"
