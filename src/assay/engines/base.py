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
