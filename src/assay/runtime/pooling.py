"""One vector for a text: which node to keep, and how to pool its rows.

An encoder is run in one step, so its graph pools. The rows of a causal model arrive chunk by chunk; they are summed
token by token in float64, so that the vector does not depend on the chunks.
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
class Embedding:
    """Keep `node` and pool its rows by `pooling` to a vector of `width` values. `told`: the pooling the file names."""

    node: str
    pooling: str
    width: int
    told: str | None


def embedding_of(graph: Graph, pooling: str | None = None) -> Embedding:
    """How to embed a text: by `pooling`, else by the pooling of the file, else by the mean."""
    if not graph.embedding:
        raise AssayError("embed: this graph has no node that stands for a text")
    if pooling is not None and pooling not in POOLINGS:
        raise AssayError(f"pooling: must be {', '.join(POOLINGS)} (found {pooling!r:.40})")
    above = graph.ancestors([graph.embedding])
    pools = [node for node in graph if node.name in above and node.has(Trait.POOLS)]
    told = str(pools[0].attr("kind")) if pools else None
    width = int(graph.shapes[graph.embedding][-1])
    if told is not None and pooling in (None, told):
        if graph.whole or pools[0].name != graph.embedding:  # the graph itself pools and projects
            return Embedding(graph.embedding, "last", width, told)
        return Embedding(pools[0].inputs[0], told, width, told)
    if told is not None and pools[0].name != graph.embedding:
        raise AssayError(f"pooling: this model projects what it has pooled (found {pooling}, expected {told})")
    return Embedding(pools[0].inputs[0] if pools else graph.embedding, pooling or "mean", width, told)


class Pool:
    """Rows of a text as they come; then its vector."""

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
        """The sum and the count, from which another process can compute the vector."""
        assert self._sum is not None
        return self._sum, self._count

    def restore(self, total: NDArray[np.float64], count: int) -> None:
        self._sum, self._count = total, count

    def clear(self) -> None:
        self._sum, self._count = None, 0

    def vector(self, dimensions: int | None = None) -> NDArray[np.float32]:
        """The vector, or its first `dimensions` values, of length 1."""
        assert self._sum is not None
        found = (self._sum / self._count if self._kind == "mean" else self._sum)[:dimensions]
        unit: NDArray[np.float32] = (found / max(float(np.linalg.norm(found)), 1e-12)).astype(np.float32)
        return unit


def check_dimensions(dimensions: int | None, width: int) -> None:
    """A vector can be cut, not lengthened."""
    if dimensions is not None and not 1 <= dimensions <= width:
        raise AssayError(f"dimensions: must be 1 to {width} with this model (found {dimensions})")
