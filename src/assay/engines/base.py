"""What every engine offers: run a graph on a batch of sequences over a paged cache, keep any node.

The runtime owns *which* page belongs to whom; the engine owns the memory behind the pages. Position p of a
sequence lives in slot `pages[p // PAGE] * PAGE + p % PAGE` of every layer's K and V pool, so two sequences
that share a prefix simply name the same pages.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.models import Model

PAGE = 32  # positions per page, the same in every engine

Array = NDArray[Any]


@dataclass(frozen=True)
class Chunk:
    """One sequence's part of a step: `tokens` go to cache slots start, start+1, …

    `pages` must cover start + len(tokens) slots. `outputs` says which rows of logits are wanted.
    `positions` are the RoPE positions when they differ from the slots (probes shift them); keys keep the
    positions they were written with.
    """

    tokens: NDArray[np.int32]
    start: int
    pages: NDArray[np.int32]
    outputs: str = "last"  # "last" | "all" | "none"
    positions: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class Output:
    """What a step gives for one chunk: logits [rows, n_vocab] and the kept nodes by name."""

    logits: Array
    nodes: dict[str, Array] = field(default_factory=dict)


class Engine(Protocol):
    """An engine is bound to one model. `n_pages` is the size of its cache."""

    name: str
    model: Model
    n_pages: int

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = ()) -> list[Output]:
        """Run one step; results in the order of the batch. Logits are float32 or wider."""
        ...

    def close(self) -> None: ...


class PagedEngine(Engine, Protocol):
    """An engine whose pages are real ones, for many sequences; a witness follows one and has none."""

    def copy_page(self, source: int, to: int) -> None:
        """Make page `to` hold what page `source` holds."""
        ...


def check_batch(engine: Engine, batch: Sequence[Chunk], keep: Collection[str] = ()) -> None:
    """Every engine's first line: refuse what would read or write outside the cache or the vocabulary."""
    n_vocab, graph = engine.model.hparams.n_vocab, engine.model.graph
    for i, chunk in enumerate(batch):
        where = f"chunk {i} of the batch"
        tokens, end = chunk.tokens, chunk.start + len(chunk.tokens)
        if tokens.ndim != 1 or not len(tokens) or tokens.dtype.kind not in "iu":
            raise AssayError(
                f"{where}: tokens must be a non-empty row of integers (found {tokens.dtype}{tokens.shape})"
            )
        if int(tokens.min()) < 0 or int(tokens.max()) >= n_vocab:
            bad = int(tokens[(tokens < 0) | (tokens >= n_vocab)][0])
            raise AssayError(f"{where}: token id outside the vocabulary (found {bad}, expected 0 to {n_vocab - 1})")
        if chunk.start < 0 or len(chunk.pages) * PAGE < end:
            raise AssayError(f"{where}: {len(chunk.pages)} pages of {PAGE} do not hold positions up to {end}")
        if int(chunk.pages.min()) < 0 or int(chunk.pages.max()) >= engine.n_pages:
            raise AssayError(f"{where}: page outside the cache (expected 0 to {engine.n_pages - 1})")
        if chunk.positions is not None and chunk.positions.shape != tokens.shape:
            raise AssayError(f"{where}: positions and tokens differ in number")
        if chunk.outputs not in ("last", "all", "none"):
            raise AssayError(f"{where}: outputs must be last, all or none (found {chunk.outputs!r})")
    for name in keep:
        if name not in graph:
            raise AssayError(f"node {name}: not in the graph of this model; `assay inspect --graph` lists them")
