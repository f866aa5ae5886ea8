"""Perplexity of a text: how surprised a model is by every next token, window by window."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from assay.engines.base import PAGE, Chunk, Engine, pages_for
from assay.errors import AssayError


@dataclass(frozen=True)
class Evaluation:
    """`nll` is the mean of -ln p(next token), `error` its standard error."""

    n_tokens: int
    nll: float
    error: float
    seconds: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll)


def evaluate(
    engine: Engine,
    tokens: Sequence[int],
    window: int,
    bos: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Every window of `window` tokens starts afresh (with `bos`, where given); every token after the first counts."""
    if window < 2 or window > engine.n_pages * PAGE:
        raise AssayError(f"window of {window} tokens: must be between 2 and the context of {engine.n_pages * PAGE}")
    first = [] if bos is None else [bos]
    step = window - len(first)
    pages = np.arange(pages_for(window), dtype=np.int32)
    losses: list[np.ndarray] = []
    started = time.perf_counter()
    for start in range(0, len(tokens), step):
        part = np.array([*first, *tokens[start : start + step]], np.int32)
        if len(part) < 2:
            break
        chunk = Chunk(part, 0, pages[: pages_for(len(part))], "all")
        logits = engine.forward([chunk])[0].logits[:-1].astype(np.float64)
        top = logits.max(axis=-1)
        total = top + np.log(np.sum(np.exp(logits - top[:, None]), axis=-1))
        losses.append(total - logits[np.arange(len(part) - 1), part[1:]])
        if progress:
            progress(min(start + step, len(tokens)), len(tokens))
    if not losses:
        raise AssayError("text: fewer than two tokens, nothing to predict; give a longer one")
    every = np.concatenate(losses)
    error = float(every.std(ddof=1) / math.sqrt(len(every))) if len(every) > 1 else 0.0
    return Evaluation(len(every), float(every.mean()), error, time.perf_counter() - started)
