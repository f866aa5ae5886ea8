"""The scores of one window: losses, best tokens, and KL divergence from a base. In float64, in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.evaluate.pieces import Scores, TextWindow
from assay.evaluate.predictors import LogitsSource, Rows, ServerLogprobs, Stored

BLOCK = 1 << 20  # logits per block: 8 MiB of float64
LEAST = 1e-12  # a smaller total probability of unlisted tokens is rounding error
CUT = -16.0  # ln p of the base below which llama-perplexity omits a token from the sum

Doubles = NDArray[np.float64]


def score(piece: TextWindow, source: LogitsSource, base: LogitsSource | None = None) -> Scores:
    """Score a window under `source`, and against `base` if given."""
    rows = source.rows(piece)
    against = None if base is None else base.rows(piece)
    own = single(rows, piece.scored)
    theirs = single(against, piece.scored) if against is not None else _NOTHING
    kl = divergence(against, rows) if against is not None else np.empty(0)
    return Scores(piece.index, piece.start, piece.first, *own, base_nll=theirs[0], kl=kl,
                  base_best=theirs[1], base_p_best=theirs[2])  # fmt: skip


_NOTHING = (np.empty(0), np.empty(0, np.int32), np.empty(0))


def single(rows: Rows, tokens: NDArray[np.int32]) -> tuple[Doubles, NDArray[np.int32], Doubles]:
    """-ln p of every token, the best token, and its probability."""
    if isinstance(rows, ServerLogprobs):
        best = [max(row.items(), key=lambda item: item[1]) for row in rows.rows]
        nll = np.array([-row[int(token)] for row, token in zip(rows.rows, tokens, strict=True)])
        return nll, np.array([b[0] for b in best], np.int32), np.exp([b[1] for b in best])
    if isinstance(rows, Stored):
        at = np.arange(len(tokens))
        best_of = rows.logp.argmax(axis=1).astype(np.int32)
        return -rows.logp[at, tokens].astype(np.float64), best_of, np.exp(rows.logp[at, best_of].astype(np.float64))
    nll, best_of, p_best = np.empty(len(rows)), np.empty(len(rows), np.int32), np.empty(len(rows))
    for part in blocks(rows):
        logp = log_softmax(rows[part])
        at = np.arange(len(logp))
        nll[part] = -logp[at, tokens[part]]
        best_of[part] = logp.argmax(axis=1)
        p_best[part] = np.exp(logp[at, best_of[part]])
    return nll, best_of, p_best


def divergence(base: Rows, rows: Rows) -> Doubles:
    """KL(base || rows) of every row.

    If a server returns only some probabilities, all others count as one outcome, so the result is a lower bound.
    Against stored log-probabilities the sum is that of llama-perplexity, which omits unlikely tokens.
    """
    if isinstance(base, ServerLogprobs) or isinstance(rows, ServerLogprobs):
        return np.array([_grouped(p, q) for p, q in zip(_told(base, rows), _told(rows, base), strict=True)])
    known = base.logp if isinstance(base, Stored) else base
    if isinstance(rows, Stored):
        raise AssayError("a file of log-probabilities can only be the base; give it with --kl")
    if known.shape != rows.shape:
        raise AssayError(f"two vocabularies: no divergence between {known.shape[1]} and {rows.shape[1]} tokens")
    kl = np.empty(len(rows))
    for part in blocks(rows):
        q = log_softmax(rows[part])
        p = known[part].astype(np.float64) if isinstance(base, Stored) else log_softmax(known[part])
        if isinstance(base, Stored):
            p[p <= CUT] = -np.inf
        q -= p
        np.exp(p, out=p)
        kl[part] = -np.einsum("ij,ij->i", p, np.where(p > 0, q, 0))
    return kl


def blocks(rows: NDArray[np.float32] | NDArray[np.float64]) -> Iterator[slice]:
    height = max(1, BLOCK // rows.shape[1])
    return (slice(i, i + height) for i in range(0, len(rows), height))


def log_softmax(logits: NDArray[np.floating]) -> Doubles:
    """x - ln sum exp x, in float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x


def _told(rows: Rows, other: Rows) -> Iterator[tuple[Doubles, float]]:
    """For every row: the log-probabilities of the tokens that both have, and of all other tokens together."""
    known = rows.logp if isinstance(rows, Stored) else rows
    n = len(known.rows) if isinstance(known, ServerLogprobs) else len(known)
    for i in range(n):
        listed = [set(r.rows[i]) for r in (rows, other) if isinstance(r, ServerLogprobs)]
        ids = sorted(set.intersection(*listed))
        if isinstance(known, ServerLogprobs):
            logp = np.array([known.rows[i][token] for token in ids])
        else:
            logp = log_softmax(known[i : i + 1])[0, ids]
        yield logp, 1 - float(np.exp(logp).sum())


def _grouped(p: tuple[Doubles, float], q: tuple[Doubles, float]) -> float:
    listed = float(np.sum(np.exp(p[0]) * (p[0] - q[0])))
    rest = p[1] * np.log(p[1] / max(q[1], LEAST)) if p[1] > LEAST else 0.0
    return max(0.0, listed + float(rest))
