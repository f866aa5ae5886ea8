"""Collect an importance matrix on a text: the sums of squared inputs of every weight matrix.

The key and value matrices have a second sum, in which a token is weighted by the attention it receives. An error in the
value of token s reaches token t multiplied by the attention weight a[t,s]; an error in its key changes that weight
proportionally. So the weight of s is the sum of a[t,s]^2 over heads and t, divided by its mean over all tokens. Most
heads attend to the first token (an attention sink): its errors reach every other token, but in the plain sum it is only
one token of a window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Array, Chunk, Engine, pages_for
from assay.evaluate.pieces import TextWindow
from assay.gguf.importance import Importance, ImportanceEntry
from assay.graph import Graph, Node, Trait
from assay.system.stages import each

PRODUCTS = ("linear", "expert_linear", "head_linear")
HELD = 1 << 30  # bytes of attention weights kept per pass


def collect(
    engine: Engine,
    pieces: Sequence[TextWindow],
    *,
    output: bool = False,
    dataset: str = "",
) -> Importance:
    """Run all tokens of the windows. `output` includes the output matrix, which llama.cpp leaves out."""
    graph = engine.graph
    users = [
        (node, node.weights[0])
        for node in graph
        if node.has(Trait.PRODUCT) and (node.weights[0].startswith("blk.") or (output and node.name == graph.output))
    ]
    used = {name for _, name in users}
    seen = {name: softmaxes for name, softmaxes in attended(graph).items() if name in used}
    wanted = sorted({softmax for softmaxes in seen.values() for softmax in softmaxes})
    keep = {name for node, _ in users for name in node.inputs if name in graph}
    sums: dict[str, NDArray[np.float64]] = {}
    weighed: dict[str, NDArray[np.float64]] = {}
    counts: dict[str, NDArray[np.float64]] = {}
    for piece in each(pieces, "collecting importance", "windows"):
        nodes, shares = _run(engine, piece, keep, wanted)
        squares: dict[str, NDArray[np.float64]] = {}
        for node, name in users:
            x = node.inputs[0]
            if node.has(Trait.EXPERTS):
                found, n = _by_expert(nodes[x], nodes[node.inputs[1]], graph.weights[name][0])
            else:
                if x not in squares:
                    squares[x] = _squares(nodes[x])
                found, n = squares[x], np.array([nodes[x].size / nodes[x].shape[-1]])
            if name in seen:
                share = np.mean([shares[softmax] for softmax in seen[name]], axis=0)
                weighed[name] = weighed.get(name, 0) + _squares(nodes[x], share)
            sums[name] = sums.get(name, 0) + found
            counts[name] = counts.get(name, 0) + n
    entries = {
        name: ImportanceEntry(*(part[name].astype(np.float32) for part in (sums, counts, weighed) if name in part))
        for name in sums
    }
    size = len(pieces[0].tokens) if pieces else 0
    return Importance(entries, len(pieces), size, (dataset,) if dataset else ())


def attended(graph: Graph) -> dict[str, list[str]]:
    """The matrices that make only keys or values, each with the attention softmaxes that use them."""
    found: dict[str, list[str]] = {}
    for kqv in (node for node in graph if node.has(Trait.VALUES)):
        softmax = graph[kqv.inputs[0]]
        scores = next(_up(graph, softmax.inputs[0], Trait.KEYS))
        queries = {node.weights[0] for node in _up(graph, scores.inputs[0], Trait.PRODUCT)}
        both = (scores.inputs[1], kqv.inputs[1])
        for name in {node.weights[0] for value in both for node in _up(graph, value, Trait.PRODUCT)} - queries:
            found.setdefault(name, []).append(softmax.name)
    return found


def _up(graph: Graph, name: str, trait: Trait) -> Iterator[Node]:
    """The nearest ancestors of a node that have the trait."""
    if name in graph:
        node = graph[name]
        if node.has(trait):
            yield node
        else:
            for source in node.inputs:
                yield from _up(graph, source, trait)


def _run(
    engine: Engine, piece: TextWindow, keep: set[str], softmaxes: Sequence[str]
) -> tuple[dict[str, Array], dict[str, NDArray[np.float64]]]:
    """The kept nodes, with the weight of every token (1 on average) for each softmax.

    Softmaxes are large, so only some are kept per pass.
    """
    pages = np.arange(pages_for(len(piece.tokens)), dtype=np.int32)
    chunk = Chunk(piece.tokens, 0, pages, "last")
    each = max((4 * int(engine.graph.shapes[name][0]) * len(piece.tokens) ** 2 for name in softmaxes), default=1)
    step = max(1, HELD // each)
    nodes: dict[str, Array] = {}
    shares: dict[str, NDArray[np.float64]] = {}
    for i in range(0, max(1, len(softmaxes)), step):
        part = softmaxes[i : i + step]
        found = engine.forward([chunk], {*part, *(() if nodes else keep)})[0].nodes
        nodes = nodes or {name: found[name] for name in keep}
        for name in part:
            share = np.einsum("hts,hts->s", found[name], found[name], dtype=np.float64)
            shares[name] = share / share.mean()
    return nodes, shares


def _squares(x: NDArray[np.floating], share: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    flat = x.reshape(-1, x.shape[-1])
    weights = np.ones(len(flat)) if share is None else share
    found: NDArray[np.float64] = np.einsum("i,ij,ij->j", weights, flat, flat, dtype=np.float64)
    return found[None]


def _by_expert(
    x: NDArray[np.floating], chosen: NDArray[np.integer], n_expert: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums per expert. x is `[T, n]`, or `[T, k, n]` with one row per chosen expert."""
    rows = np.broadcast_to(x[:, None], (*chosen.shape, x.shape[-1])) if x.ndim == 2 else x
    sums, counts = np.zeros((n_expert, x.shape[-1])), np.zeros(n_expert)
    np.add.at(sums, chosen.reshape(-1), np.square(rows.reshape(-1, x.shape[-1]).astype(np.float64)))
    np.add.at(counts, chosen.reshape(-1), 1)
    return sums, counts
