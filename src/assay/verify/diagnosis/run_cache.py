"""A cache of hypothetical runs that follow from the tokens alone. It lives as long as the weights.

A hypothesis about logits is a run of the model from its tokens, and no number of the dump enters it. So a second dump
of the same text, diagnosed with the same weights, finds the runs of the first.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from numpy.typing import NDArray

from assay.engines.reference.weights import Weights
from assay.graph import Graph

Array = NDArray[Any]
Values = Mapping[str, Array]
ROOM = 64 << 20  # bytes of all values that are kept
LARGEST = 1 << 20  # bytes of one run; a larger one is not kept


class RunCache:
    """Values of runs by the key that determines them. They are read-only, and the oldest are evicted first."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._runs: dict[Hashable, dict[str, Array]] = {}
        self._size = 0

    def recall(self, key: Hashable) -> dict[str, Array] | None:
        found = self._runs.get(key)
        return None if found is None else dict(found)

    def keep(self, key: Hashable, values: Values) -> None:
        size = sum(v.nbytes for v in values.values())
        if size > LARGEST:
            return
        kept = {name: value.copy() for name, value in values.items()}
        for value in kept.values():
            value.flags.writeable = False
        self._runs[key] = kept
        self._size += size
        while self._size > ROOM:
            oldest = self._runs.pop(next(iter(self._runs)))
            self._size -= sum(v.nbytes for v in oldest.values())


_MEMORIES: WeakKeyDictionary[Weights, RunCache] = WeakKeyDictionary()


def run_cache_of(weights: Weights, graph: Graph) -> RunCache:
    """The cache of these weights and this graph."""
    found = _MEMORIES.get(weights)
    if found is None or found.graph is not graph:
        found = _MEMORIES[weights] = RunCache(graph)
    return found
