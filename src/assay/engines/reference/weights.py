"""Decoded weights for the reference engine: exact block decode, kept while they fit in a budget.

A tensor is an array, or a `Table` that decodes the requested rows each time. Both are indexed alike, so a function
need not know which it gets. `variants` replaces the values of a tensor: a fault in a decoder or in a layout. Touch this
when the reference engine needs too much memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from assay.gguf import GGUFFile, codecs

Array = NDArray[Any]
DEFAULT_BUDGET = 4 << 30  # bytes of decoded weights kept


class Table:
    """A tensor of the file, decoded row by row on demand."""

    def __init__(self, file: GGUFFile, name: str, dtype: DTypeLike) -> None:
        info = file.tensors[name]
        self._file = file
        self.shape, self._type, self._raw, self._dtype = info.shape, info.type, file.raw(name), dtype

    @np.errstate(all="ignore")  # a cast of a signalling NaN
    def __getitem__(self, rows: Any) -> Array:
        found = codecs.decode(self._type, self._raw[rows]).astype(self._dtype, copy=False)
        self._file.check()
        return found

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """The whole tensor, for an operation that takes a small matrix whole, such as the gains of a norm per head."""
        return np.asarray(self[:], dtype)


class Weights:
    """The tensors of a file as numbers of one float type."""

    def __init__(
        self,
        file: GGUFFile,
        dtype: DTypeLike = np.float64,
        budget: int = DEFAULT_BUDGET,
        variants: Mapping[str, Callable[[], Array]] | None = None,
    ) -> None:
        self.file, self.dtype = file, np.dtype(dtype)
        self._variants = dict(variants or {})
        self._kept: dict[str, Array] = {}
        self._room = budget
        total = sum(math.prod(t.shape) for t in file.tensors.values())
        # Decoded values are exact in float32. So a model that is too large in float64 is stored in half the memory.
        self._store = self.dtype if total * self.dtype.itemsize <= budget else np.dtype(np.float32)

    def __getitem__(self, name: str) -> Array | Table:
        """The whole tensor, or a table where it does not fit."""
        kept = self._kept.get(name)
        return self._decoded(name) if kept is None else kept

    @np.errstate(all="ignore")  # a cast of a signalling NaN
    def _decoded(self, name: str) -> Array | Table:
        if name in self._variants:
            kept = self._variants[name]().astype(self.dtype, copy=False)
            self._kept[name] = kept
            return kept
        cost = int(np.prod(self.file.tensors[name].shape)) * self._store.itemsize
        if cost > self._room and len(self.file.tensors[name].shape) > 1:
            return Table(self.file, name, self.dtype)
        kept = self.file.decode(name).astype(self._store, copy=False)
        self._kept[name] = kept
        self._room -= cost
        return kept

    def rows(self, name: str) -> Array | Table:
        """A tensor of which an operation reads a few rows: never decoded as a whole for it."""
        if name in self._kept or name in self._variants:
            return self[name]
        return Table(self.file, name, self.dtype)
