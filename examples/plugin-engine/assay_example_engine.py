"""The smallest engine: it remembers the tokens of each slot, and computes every sequence from its start again.

`SkeletonEngine` is the entry point; its name, `skeleton`, is the value of `--engine`. Replace `interpret` by your own
kernels, one operation after the other, and keep the tests of the contract green.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from assay.engines.contract import (
    PAGE,
    Arithmetic,
    Array,
    Chunk,
    Emit,
    Output,
    PagedEngine,
    check_batch,
    hand_over,
    pages_for,
)
from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.errors import AssayError
from assay.models import Model


class SkeletonEngine(PagedEngine):
    """Every rule of `assay.engines.contract`, and no capability."""

    name = "skeleton"
    arithmetic = Arithmetic("skeleton", "f64", "none")
    dtype = np.dtype(np.float64)

    def __init__(self, model: Model, n_pages: int | None = None) -> None:
        self.model, self.graph = model, model.graph
        self.n_pages = pages_for(model.hparams.n_ctx_train) if n_pages is None else n_pages
        self._weights: Weights | None = Weights(model.file, np.float64)
        self._slots = np.zeros((2, self.n_pages * PAGE), np.int64)  # the token and the position of each slot

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Emit | None = None) -> list[Output]:
        check_batch(self, batch, keep)  # a bad chunk raises before anything changes
        return hand_over([self._chunk(chunk, keep) for chunk in batch], emit)

    def _chunk(self, chunk: Chunk, keep: Collection[str]) -> Output:
        if self._weights is None:
            raise AssayError("engine skeleton: it has been closed")
        at = np.arange(chunk.end)
        slots = chunk.pages.astype(np.int64)[at // PAGE] * PAGE + at % PAGE
        self._slots[:, slots[chunk.start :]] = chunk.tokens, chunk.all_positions()
        tokens, positions = self._slots[:, slots]
        env = {"inp_tokens": tokens, "inp_pos": positions, "inp_kpos": positions}
        found = interpret(self.graph, self._weights, env, {*keep, self.graph.output})
        rows = {name: self._last_rows(name, value, chunk.n_tokens) for name, value in found.items()}
        logits = rows[self.graph.output]
        nodes = {node.name: rows[node.name] for node in self.graph if node.name in keep}
        return Output(logits[len(logits) - chunk.n_outputs :], nodes)

    def _last_rows(self, name: str, value: Array, n: int) -> Array:
        """The rows of this chunk's tokens: the graph's shapes say which axes run over tokens."""
        return value[tuple(slice(-n, None) if dim == "T" else slice(None) for dim in self.graph.shapes[name])]

    def close(self) -> None:
        self._weights = None
