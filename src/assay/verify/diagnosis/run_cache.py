"""A cache of hypothetical runs that follow from the tokens alone. It lives as long as the weights.

A hypothesis about logits is a run of the model from its tokens, and no number of the dump enters it. So a second dump
of the same text, diagnosed with the same weights, finds the runs of the first. The mistakes that are composed for a
text are kept as well, because the key of a run names the object that was planted. So are small weights in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference.weights import Table, Weights
from assay.graph import Graph

Array = NDArray[Any]
Values = Mapping[str, Array]
ROOM = 128 << 20  # bytes of all values that are kept
LARGEST = 1 << 20  # bytes of one run; a larger one is not kept
LISTS = 4  # lists of composed mistakes


class RunCache:
    """Values of runs by the key that determines them. They are read-only, and the oldest are evicted first."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._runs: dict[Hashable, dict[str, Array]] = {}
        self._size = 0
        self._lists: dict[Hashable, list[Any]] = {}

    def listed(self, key: Hashable, make: Callable[[], list[Any]]) -> list[Any]:
        """A list that follows from its key, made once: its elements are the same objects for every dump."""
        if key not in self._lists:
            if len(self._lists) == LISTS:
                self._lists.pop(next(iter(self._lists)))
            self._lists[key] = make()
        return self._lists[key]

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


class Narrow(Weights):
    """Other weights in float32, converted once."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights.file, np.float32, budget=0)
        self._wide = ref(weights)  # whose cache has this object
        self._narrow: dict[str, Array | Table] = {}

    def __getitem__(self, name: str) -> Array | Table:
        if name not in self._narrow:
            wide = self._wide()
            assert wide is not None, "the weights are in use as long as these"
            value = wide[name]
            self._narrow[name] = value.astype(np.float32) if isinstance(value, np.ndarray) else value
        return self._narrow[name]


_NARROW: WeakKeyDictionary[Weights, Narrow] = WeakKeyDictionary()


def narrowed(weights: Weights) -> Narrow:
    """The weights in float32: one object for all who ask, if it is small."""
    found = _NARROW.get(weights) or Narrow(weights)
    if 4 * sum(math.prod(t.shape) for t in weights.file.tensors.values()) <= ROOM:
        _NARROW[weights] = found
    return found


_MEMORIES: WeakKeyDictionary[Weights, RunCache] = WeakKeyDictionary()


def run_cache_of(weights: Weights, graph: Graph) -> RunCache:
    """The cache of these weights and this graph."""
    found = _MEMORIES.get(weights)
    if found is None or found.graph is not graph:
        found = _MEMORIES[weights] = RunCache(graph)
    return found
