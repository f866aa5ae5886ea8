"""Text embeddings: the node that stands for a text, and how its rows become one vector.

An encoder computes a text in one chunk, so its graph pools the rows itself. A causal model's rows arrive chunk by
chunk. They are added token by token in float64, so the vector does not depend on how the text was cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.graph import Graph, Trait

POOLINGS = ("mean", "first", "last")


@dataclass(frozen=True)
class EmbeddingRecipe:
    """How to embed a text: keep `node` and pool its rows by `pooling`. The vector has `width` values."""

    node: str
    pooling: str
    width: int
    declared: str | None  # the pooling that the file declares


def embedding_of(graph: Graph, pooling: str | None = None) -> EmbeddingRecipe:
    """How to embed a text: with `pooling`, else as the file declares, else by the mean of its rows."""
    if not graph.embedding:
        raise AssayError("embed: this graph has no node that stands for a text; use a whole model")
    if pooling is not None and pooling not in POOLINGS:
        raise AssayError(f"pooling: must be {', '.join(POOLINGS)} (found {pooling!r:.40})")
    above = graph.ancestors([graph.embedding])
    pools = [node for node in graph if node.name in above and node.has(Trait.POOLS)]
    declared = str(pools[0].attr("kind")) if pools else None
    width = int(graph.shapes[graph.embedding][-1])
    if declared is not None and pooling in (None, declared):
        if graph.whole or pools[0].name != graph.embedding:  # the graph pools, and may compute further nodes after it
            return EmbeddingRecipe(graph.embedding, "last", width, declared)
        return EmbeddingRecipe(pools[0].inputs[0], declared, width, declared)
    if declared is not None and pools[0].name != graph.embedding:
        raise AssayError(f"pooling: this model projects its pooled row (found {pooling}, expected {declared})")
    return EmbeddingRecipe(pools[0].inputs[0] if pools else graph.embedding, pooling or "mean", width, declared)


class RowPooler:
    """Accumulates the rows of a text, chunk by chunk, into its vector."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._sum: NDArray[np.float64] | None = None
        self._count = 0

    def push(self, rows: NDArray[Any]) -> None:
        self._count += len(rows)
        if self._kind == "first" and self._sum is not None:
            return
        if self._kind == "mean":
            before = [] if self._sum is None else [self._sum[None]]
            self._sum = np.add.reduce(np.concatenate([*before, rows]), axis=0, dtype=np.float64)  # row after row
        else:
            self._sum = rows[0 if self._kind == "first" else -1].astype(np.float64)

    @property
    def state(self) -> tuple[NDArray[np.float64], int]:
        """The accumulated sum and count, for another process to `restore`."""
        assert self._sum is not None
        return self._sum, self._count

    def restore(self, total: NDArray[np.float64], count: int) -> None:
        self._sum, self._count = total, count

    def clear(self) -> None:
        self._sum, self._count = None, 0

    @property
    def row(self) -> NDArray[np.float64]:
        """The pooled row, as it is."""
        assert self._sum is not None
        return self._sum / self._count if self._kind == "mean" else self._sum

    def vector(self, dimensions: int | None = None) -> NDArray[np.float32]:
        """The vector, or its first `dimensions` values, scaled to length 1."""
        found = self.row[:dimensions]
        unit: NDArray[np.float32] = (found / max(float(np.linalg.norm(found)), 1e-12)).astype(np.float32)
        return unit


def check_dimensions(dimensions: int | None, width: int) -> None:
    """Refuse a number of dimensions that the vector does not have."""
    if dimensions is not None and not 1 <= dimensions <= width:
        raise AssayError(f"dimensions: must be 1 to {width} with this model (found {dimensions})")
