"""Experts that the cpu engine computes between launches (`--cpu-experts N`), of the first N layers that have some.

A part of the graph goes from the experts' input, the chosen experts and their weights to the weighted sum. The router
and all other nodes stay on the device. Their rows come to the host, and the sum goes back. Both engines compute
docs/reference/arithmetic.md, so the bits are the same wherever a layer's experts are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Chunk, PagedEngine, pages_for
from assay.engines.cpu import CpuEngine
from assay.errors import AssayError
from assay.graph import Graph
from assay.graph.graph import INPUTS
from assay.models import Model

Rows = Mapping[str, NDArray[np.float32]]
_MOST = 1024  # tokens at a time
_PAGES = pages_for(_MOST)


def host_parts(graph: Graph, layers: int) -> dict[str, Graph]:
    """The experts of the first layers that have some, each a graph of its own, by their last node."""
    totals = [node.name for node in graph if node.op == "expert_sum"]
    return {name: _part(graph, name) for name in islice(totals, layers)}


def _part(graph: Graph, total: str) -> Graph:
    """The products of experts that a sum is made of, and every node between."""
    above = graph.ancestors([total], known={n.name for n in graph if n.op == "expert_sum" and n.name != total})
    inside: dict[str, None] = {}
    for node in graph:
        if node.name in above and (node.op == "expert_linear" or not inside.keys().isdisjoint(node.inputs)):
            inside[node.name] = None
    nodes = tuple(graph[name] for name in inside)
    outside = [name for node in nodes for name in node.inputs if name not in inside and name not in INPUTS]
    return replace(graph, nodes=nodes, output=total, given={n: graph.shapes[n] for n in outside}, embedding="")


class HostExperts:
    """Engines for these parts, which share threads and weights."""

    def __init__(self, model: Model, parts: Mapping[str, Graph], precision: str, threads: int | None) -> None:
        self.parts = parts
        self.names = frozenset(node.name for part in parts.values() for node in part)
        self.engines: dict[str, PagedEngine] = {}
        first: PagedEngine | None = None
        for name, part in parts.items():
            made: PagedEngine
            if first is None:
                made = CpuEngine(model, precision=precision, threads=threads, n_pages=_PAGES, graph=part)
            else:
                assert first.beside
                made = first.beside(part, _PAGES)
            first, self.engines[name] = first or made, made

    def compute(self, name: str, rows: Rows, keep: Collection[str]) -> dict[str, NDArray[np.float32]]:
        """The result of the part with this name, and the nodes to keep."""
        engine, n = self.engines[name], len(next(iter(rows.values())))
        found: list[dict[str, NDArray[np.float32]]] = []
        for at in range(0, n, _MOST):
            some = {key: value[at : at + _MOST] for key, value in rows.items()}
            pages = np.arange(pages_for(min(_MOST, n - at)), dtype=np.int32)
            (output,) = engine.forward([Chunk(np.empty(0, np.int32), 0, pages, "all", rows=some)], keep)
            found.append({name: output.logits, **output.nodes})
        return {key: np.concatenate([part[key] for part in found]) for key in found[0]}

    def close(self) -> None:
        for engine in reversed(self.engines.values()):
            engine.close()


def made_for(model: Model, graph: Graph, layers: int, precision: str, threads: int | None) -> HostExperts | None:
    """The experts of the first layers on the cpu engine; None for no layers. Refuses what has no such experts."""
    if not layers:
        return None
    if precision not in CpuEngine.precisions:
        expected = " or ".join(CpuEngine.precisions)
        raise AssayError(f"--cpu-experts: the cpu engine has no precision {precision}; use --precision {expected}")
    if not (parts := host_parts(graph, layers)):
        raise AssayError(f"--cpu-experts: {model.file.path.name} has no experts; leave it out")
    return HostExperts(model, parts, precision, threads)
