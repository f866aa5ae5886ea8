"""An importance matrix from a text: the sums of squares of what every weight matrix is multiplied with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from assay.engines.base import Chunk, Engine, pages_for
from assay.evaluate.pieces import Piece
from assay.gguf.importance import Entry, Importance

PRODUCTS = ("linear", "expert_linear", "head_linear")


def collect(
    engine: Engine,
    pieces: Sequence[Piece],
    *,
    output: bool = False,
    dataset: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Importance:
    """Run the pieces whole; every token counts. `output`: also the output matrix, which llama.cpp leaves out."""
    graph = engine.graph
    users = [
        (node, node.weights[0])
        for node in graph
        if node.op in PRODUCTS and (node.weights[0].startswith("blk.") or (output and node.name == graph.output))
    ]
    keep = {name for node, _ in users for name in node.inputs if name in graph}
    sums: dict[str, NDArray[np.float64]] = {}
    counts: dict[str, NDArray[np.float64]] = {}
    for done, piece in enumerate(pieces):
        pages = np.arange(pages_for(len(piece.tokens)), dtype=np.int32)
        nodes = engine.forward([Chunk(piece.tokens, 0, pages, "last")], keep)[0].nodes
        squares: dict[str, NDArray[np.float64]] = {}
        for node, name in users:
            x = node.inputs[0]
            if node.op == "expert_linear":
                found, n = _by_expert(nodes[x], nodes[node.inputs[1]], graph.weights[name][0])
            else:
                if x not in squares:
                    squares[x] = _squares(nodes[x])
                found, n = squares[x], np.array([nodes[x].size / nodes[x].shape[-1]])
            sums[name] = sums.get(name, 0) + found
            counts[name] = counts.get(name, 0) + n
        progress(done + 1, len(pieces))
    entries = {name: Entry(sums[name].astype(np.float32), counts[name].astype(np.float32)) for name in sums}
    size = len(pieces[0].tokens) if pieces else 0
    return Importance(entries, len(pieces), size, (dataset,) if dataset else ())


def _squares(x: NDArray[np.floating]) -> NDArray[np.float64]:
    flat = x.reshape(-1, x.shape[-1])
    found: NDArray[np.float64] = np.einsum("ij,ij->j", flat, flat, dtype=np.float64)
    return found[None]


def _by_expert(
    x: NDArray[np.floating], chosen: NDArray[np.integer], n_expert: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows go to the experts that were chosen for them: x is `[T, n]`, or `[T, k, n]` with a row for each choice."""
    rows = np.broadcast_to(x[:, None], (*chosen.shape, x.shape[-1])) if x.ndim == 2 else x
    sums, counts = np.zeros((n_expert, x.shape[-1])), np.zeros(n_expert)
    np.add.at(sums, chosen.reshape(-1), np.square(rows.reshape(-1, x.shape[-1]).astype(np.float64)))
    np.add.at(counts, chosen.reshape(-1), 1)
    return sums, counts
