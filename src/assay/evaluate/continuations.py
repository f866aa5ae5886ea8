"""Log-probabilities of endings after a context. The context is computed once, and the endings share its pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import PAGE, Chunk, PagedEngine, pages_for
from assay.errors import AssayError
from assay.evaluate.score import single
from assay.text import Tokenizer

Request = tuple[tuple[int, ...], tuple[int, ...]]  # ids of the context, ids of the ending


@dataclass(frozen=True)
class Likelihood:
    logprob: float  # of the whole ending
    greedy: bool  # whether every token of it was the most probable


def pair(tokenizer: Tokenizer, context: str, ending: str, bos: bool | None = None) -> Request:
    """The ids of context and ending. Spaces at the end of the context move to the ending, whose first word they start.

    `bos`: start with BOS; default: as the file says.
    """
    stripped = context.rstrip()
    ending = context[len(stripped) :] + ending

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=False)

    add = tokenizer.add_bos if bos is None else bos
    first = [tokenizer.bos] if add and tokenizer.bos is not None else []
    before = first + ids(stripped)
    whole = first + ids(stripped + ending)
    if not before:  # an empty context is represented by BOS or EOS
        token = tokenizer.bos if tokenizer.bos is not None else tokenizer.eos
        if token is None:
            raise AssayError("an empty context: the model has neither BOS nor EOS to represent it")
        before, whole = [token], [token, *whole]
    return tuple(before), tuple(whole[len(before) :])


def loglikelihoods(engine: PagedEngine, requests: Sequence[Request]) -> list[Likelihood]:
    """Score every ending after its context. The common prefix of all requests is computed once."""
    limit = engine.n_pages * PAGE
    for _, ending in requests:
        if not 0 < len(ending) < limit:
            raise AssayError(f"an ending of {len(ending)} tokens (expected 1 to {limit - 1}, the context less one)")
    cut = [
        (np.array((*c, *e)[-limit:], np.int32), len(e)) for c, e in requests
    ]  # a long context is truncated at its start
    pages = np.arange(engine.n_pages, dtype=np.int32)
    whole = _common([ids[: -n - 1] for ids, n in cut]) // PAGE  # full pages of the common prefix, which are read-only
    if whole:
        engine.forward([Chunk(cut[0][0][: whole * PAGE], 0, pages[:whole], "none")])
    found = []
    for ids, n in cut:
        chunk = Chunk(ids[whole * PAGE : -1], whole * PAGE, pages[: pages_for(len(ids) - 1)], "all")
        nll, best, _ = single(engine.forward([chunk])[0].logits[-n:], ids[-n:])
        found.append(Likelihood(-float(nll.sum()), bool((best == ids[-n:]).all())))
    return found


def _common(rows: Sequence[NDArray[np.int32]]) -> int:
    """The length of the common prefix of all rows."""
    least = min(map(len, rows))
    same = np.all([row[:least] == rows[0][:least] for row in rows], axis=0)
    return int(np.argmin(np.append(same, False)))
