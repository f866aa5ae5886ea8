"""The sampler: logits and history in, one token out.

`sample` depends on its arguments only; `draws.py` computes its random numbers from seed and position. The stages, their
order and meaning are llama.cpp's: logit bias, penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC,
temperature, a draw. Each stage takes and returns `Candidates`. Probabilities are the softmax over the remaining
candidates, so a filter sees what an earlier one renormalised. Arithmetic is float64.

Only two filters may remove the most probable token. Typical sampling keeps tokens whose surprise is near the entropy,
and XTC drops the likely ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.engines.contract import MAX_TOP_VALUES, TopK
from assay.errors import AssayError
from assay.runtime.params import GREEDY, Breakers, SamplerParams

__all__ = [
    "GREEDY",
    "Candidates",
    "Choice",
    "Ranked",
    "SamplerParams",
    "argmax_of_top",
    "dry_breakers",
    "sample",
    "sample_from_top",
    "scores",
    "top_k_needed",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LOG_FLT_MAX = 88.7228391  # DRY's exponent is clamped where a float32 would overflow, as in llama.cpp


class Ranked(NamedTuple):
    """A token with its log-probability in the model's own distribution."""

    id: int
    logprob: float


class Choice(NamedTuple):
    """The token drawn. `logprob` and `top` are set on request, and refer to the model's own distribution."""

    id: int
    logprob: float | None = None
    top: tuple[Ranked, ...] = ()


@dataclass(frozen=True)
class Candidates:
    """The remaining tokens, `ids` and `logits` in parallel. `sorted`: by descending logit, then by id."""

    ids: Ints
    logits: Floats
    sorted: bool = False

    def probabilities(self) -> Floats:
        weights: Floats = np.exp(self.logits - self.logits.max())
        weights /= weights.sum()
        return weights

    def descending(self) -> Candidates:
        return self if self.sorted else self.largest(len(self.ids))

    def largest(self, k: int) -> Candidates:
        """The k largest, sorted; among equal logits the lower id comes first."""
        ids, logits = self.ids, self.logits
        if not self.sorted:
            if k < len(ids):
                keep = np.flatnonzero(logits >= _bound(logits, k))  # at least k
                ids, logits = ids[keep], logits[keep]
            order = np.argsort(-logits, kind="stable")  # unsorted candidates are in ascending order of id
            ids, logits = ids[order], logits[order]
        return Candidates(ids[:k], logits[:k], sorted=True)

    def where(self, keep: NDArray[np.bool_]) -> Candidates:
        return Candidates(self.ids[keep], self.logits[keep], self.sorted)


def _bound(x: Floats, k: int, block: int = 64) -> float:
    """A lower bound that at least k values reach, and few more than k.

    It is the k-th largest value. If there are many more values than k, it is the k-th largest of the maxima of blocks:
    k different values reach that, too, and finding it reads the row once instead of partitioning it.
    """
    if k * block * 4 <= len(x):
        x = np.maximum.reduceat(x, np.arange(0, len(x), block))
    return float(np.partition(x, len(x) - k)[len(x) - k])


# Logits near the largest number overflow in a difference or a product. The result is an infinity, which every stage can
# take, so NumPy must not print a warning about it.
_QUIET: dict[str, Any] = {"over": "ignore", "invalid": "ignore", "divide": "ignore"}


class Random(Protocol):
    """A source of random numbers in [0, 1)."""

    def random(self) -> float: ...


@np.errstate(**_QUIET)
def sample(
    logits: ArrayLike,
    history: Sequence[int],
    params: SamplerParams,
    rng: Random,
    *,
    logprobs: int | None = None,
) -> Choice:
    """Choose the next token. `history` is the prompt and the answer so far; `logprobs` = n also returns the n best."""
    if logprobs is None and _is_argmax(params) and _is_plain(params):
        row = np.asarray(logits)  # the most frequent case of a server: no copy, one pass over the row
        if row.ndim == 1 and len(row) and np.isfinite(row[best := int(row.argmax())]):
            return Choice(best)
    raw = check_logits(logits)
    biased = bias(raw, params)
    if biased is not raw and not np.isfinite(biased).any():
        raise AssayError("logit_bias: forbids every token; allow at least one")
    values = dry(penalties(biased, history, params), history, params)
    if values is not raw and not math.isfinite(values.max()):
        raise AssayError("sampler: biases and penalties leave no finite logit; use smaller ones")
    token = _greedy(values) if _is_argmax(params) else _draw(values, params, rng)
    return Choice(token) if logprobs is None else scores(raw, token, logprobs)


def top_k_needed(params: SamplerParams) -> int:
    """How many of the largest logits decide the choice; 0 if the whole row does."""
    if not _is_plain(params):
        return 0
    if _is_argmax(params):
        return 1
    return params.top_k if params.top_n_sigma <= 0 and 0 < params.top_k <= MAX_TOP_VALUES else 0


def argmax_of_top(top: TopK) -> int:
    """The id of the largest logit."""
    if not math.isfinite(largest := top.logits.item(0)):
        if largest == -math.inf:
            raise AssayError("logits: every one is -inf; no token can be drawn")
        raise AssayError(
            f"logits: NaN or infinite, the first at id {top.ids[0]}; the forward pass is broken, no token can be drawn"
        )
    return int(top.ids.item(0))


@np.errstate(**_QUIET)
def sample_from_top(top: TopK, params: SamplerParams, rng: Random) -> int:
    """The choice that `sample` makes from the whole row, made from its largest logits (at least `top_k_needed`)."""
    first = argmax_of_top(top)
    if _is_argmax(params):
        return first
    here = top.logits > -np.inf
    return _choose(Candidates(top.ids[here], top.logits[here].astype(np.float64), sorted=True), params, rng)


@np.errstate(**_QUIET)
def scores(logits: ArrayLike, token: int, n: int) -> Choice:
    """The token with its log-probability, and the n best tokens, in the model's own distribution."""
    raw = check_logits(logits)
    normaliser = raw.max() + math.log(np.exp(raw - raw.max()).sum())
    best = Candidates(np.arange(len(raw)), raw).largest(n) if n else None
    top = (
        tuple(Ranked(int(i), float(v - normaliser)) for i, v in zip(best.ids, best.logits, strict=True)) if best else ()
    )
    return Choice(token, float(raw[token] - normaliser), top)


def check_logits(logits: ArrayLike) -> Floats:
    """The logits as float64. A NaN or +inf means that the forward pass is broken, and is refused."""
    raw = np.asarray(logits, dtype=np.float64)
    if raw.ndim != 1 or not len(raw):
        raise AssayError(f"logits: not one row (found shape {raw.shape}, expected one axis)")
    with np.errstate(**_QUIET):
        total = raw.sum()
    if not np.isfinite(total):
        bad = np.flatnonzero(np.isnan(raw) | (raw == np.inf))
        if len(bad):
            raise AssayError(
                f"logits: {len(bad)} of {len(raw)} are NaN or infinite, the first at id {bad[0]}; "
                "the forward pass is broken, no token can be drawn"
            )
        if not np.isfinite(raw).any():
            raise AssayError("logits: every one is -inf; no token can be drawn")
    return raw


def _is_argmax(params: SamplerParams) -> bool:
    """True for greedy sampling without a stage that may remove the best token: no filter changes the choice then."""
    xtc_on = params.xtc_probability > 0 and params.xtc_threshold <= 0.5
    return params.temp <= 0 and params.typical >= 1 and not xtc_on


def _is_plain(params: SamplerParams) -> bool:
    """True if no stage changes a logit before the choice."""
    off = not (params.frequency_penalty or params.presence_penalty or params.dry_multiplier or params.logit_bias)
    return off and params.repeat_penalty == 1


def _greedy(values: Floats) -> int:
    return int(values.argmax())  # of equal logits the first, which has the lower id


def _draw(values: Floats, params: SamplerParams, rng: Random) -> int:
    allowed = np.arange(len(values)) if values.min() > -np.inf else np.flatnonzero(values > -np.inf)
    return _choose(Candidates(allowed, values if len(allowed) == len(values) else values[allowed]), params, rng)


def _choose(candidates: Candidates, params: SamplerParams, rng: Random) -> int:
    for stage in FILTERS:
        candidates = stage(candidates, params, rng)
    if params.temp <= 0:
        return int(candidates.largest(1).ids[0])
    candidates = temperature(candidates.descending(), params)
    cumulative = np.cumsum(candidates.probabilities())
    # One draw per step, u in [0, 1). Scaling by the total keeps rounding from favouring the last candidate.
    place = int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
    last = int(
        np.searchsorted(cumulative, cumulative[-1], side="left")
    )  # the last candidate with a probability above 0
    return int(candidates.ids[min(place, last)])


# Stages on the whole row of logits. A stage that is off returns its input unchanged.


def bias(logits: Floats, params: SamplerParams) -> Floats:
    """y[id] = x[id] + bias."""
    if not params.logit_bias:
        return logits
    out = logits.copy()
    for token, value in params.logit_bias:
        if not 0 <= token < len(out):
            raise AssayError(f"logit_bias: token {token} is not in the vocabulary (expected 0 to {len(out) - 1})")
        out[token] += value
    return out


def penalties(logits: Floats, history: Sequence[int], params: SamplerParams) -> Floats:
    """For a token seen c > 0 times in the last n: y = (x/r if x > 0 else x*r) - c*frequency - presence."""
    r, frequency, presence = params.repeat_penalty, params.frequency_penalty, params.presence_penalty
    if r == 1 and not frequency and not presence:
        return logits
    recent = _last(history, params.repeat_last_n)
    ids, counts = np.unique(recent, return_counts=True)
    known = ids < len(logits)
    ids, counts = ids[known], counts[known]
    x = logits[ids]
    out = logits.copy()
    out[ids] = np.where(x > 0, x / r, x * r) - counts * frequency - presence
    return out


def dry(logits: Floats, history: Sequence[int], params: SamplerParams) -> Floats:
    """DRY: y = x - multiplier * base^(n - allowed) for a token that would continue an n-token repetition.

    n is the longest tail of the history that occurred earlier directly before that token. A tail does not
    reach back past a sequence breaker, and a token that is itself a breaker is not penalised.
    """
    allowed = params.dry_allowed_length
    if params.dry_multiplier == 0 or params.dry_base < 1:
        return logits
    recent = _last(history, params.dry_penalty_last_n)
    if len(recent) <= allowed:
        return logits
    reach = _since_breaker(recent, params.dry_breakers)
    if reach < allowed:
        return logits
    ceiling = int(_LOG_FLT_MAX / math.log(params.dry_base)) if params.dry_base > 1.000001 else len(recent)
    lengths = _tail_repeats(recent, min(reach, allowed + ceiling))
    places = np.flatnonzero(lengths >= allowed)
    places = places[places < len(recent) - 1]
    longest: dict[int, int] = {}
    for token, length in zip(recent[places + 1].tolist(), lengths[places].tolist(), strict=True):
        longest[token] = max(length, longest.get(token, 0))
    out = logits.copy()
    for token, length in longest.items():
        if () not in params.dry_breakers.get(token, ()) and token < len(out):
            out[token] -= params.dry_multiplier * params.dry_base ** (length - allowed)
    return out


def _last(history: Sequence[int], n: int) -> Ints:
    start = 0 if n < 0 else max(len(history) - n, 0)
    return np.asarray(history[start:], dtype=np.int64)


def _tail_repeats(tokens: Ints, limit: int) -> Ints:
    """y[i] = how many tokens that end at i equal the end of all tokens, at most `limit`; 0 for the last i."""
    out = np.zeros(len(tokens), dtype=np.int64)
    places = np.arange(len(tokens) - 1)
    for length in range(limit):
        places = places[places >= length]
        places = places[tokens[places - length] == tokens[len(tokens) - 1 - length]]
        if not len(places):
            break
        out[places] = length + 1
    return out


def _since_breaker(tokens: Ints, breakers: Breakers) -> int:
    """Tokens after the last sequence breaker; of breakers with the same start, the longest counts."""
    ids = tokens.tolist() if breakers else []
    for start in range(len(ids) - 1, -1, -1):
        after = start + 1
        fits = [len(tail) for tail in breakers.get(ids[start], ()) if tuple(ids[after : after + len(tail)]) == tail]
        if fits:
            return len(ids) - after - max(fits)
    return len(tokens)


# Filters: candidates in, fewer candidates out, never none.


def top_n_sigma(c: Candidates, params: SamplerParams, rng: Random) -> Candidates:
    """Keep x >= max - n * standard deviation of the logits."""
    if params.top_n_sigma <= 0:
        return c
    least = c.logits.max() - params.top_n_sigma * c.logits.std()
    return c if np.isnan(least) else c.where(c.logits >= least)


def top_k(c: Candidates, params: SamplerParams, rng: Random) -> Candidates:
    """Keep the k largest."""
    return c.largest(params.top_k) if 0 < params.top_k < len(c.ids) else c


def typical(c: Candidates, params: SamplerParams, rng: Random) -> Candidates:
    """Keep the tokens whose surprise -log p is nearest the entropy, until their mass exceeds the limit."""
    if params.typical >= 1:
        return c
    c = c.descending()
    p = c.probabilities()
    surprise = -np.log(np.maximum(p, np.finfo(np.float64).tiny))
    order = np.argsort(np.abs(surprise - (p * surprise).sum()), kind="stable")
    count = int(np.searchsorted(np.cumsum(p[order]), params.typical, side="right")) + 1
    keep = np.zeros(len(p), dtype=np.bool_)
    keep[order[:count]] = True
    return c.where(keep)


def top_p(c: Candidates, params: SamplerParams, rng: Random) -> Candidates:
    """Keep the fewest of the most probable whose mass reaches p; the one that crosses p stays."""
    if params.top_p >= 1:
        return c
    weights = np.exp(c.logits - c.logits.max())
    wanted = params.top_p * weights.sum()
    size = 256  # the answer is nearly always among the first few: sort those before sorting all
    while True:
        head = c.largest(size)
        cumulative = np.cumsum(np.exp(head.logits - head.logits[0]))
        if cumulative[-1] >= wanted or size >= len(c.ids):
            break
        size *= 8
    count = int(np.searchsorted(cumulative, wanted, side="left")) + 1
    return Candidates(head.ids[:count], head.logits[:count], sorted=True)


def min_p(c: Candidates, params: SamplerParams, rng: Random) -> Candidates:
    """Keep p >= min_p * the largest p."""
    if params.min_p <= 0:
        return c
    return c.where(c.logits >= c.logits.max() + math.log(params.min_p))


def xtc(c: Candidates, params: SamplerParams, rng: Random) -> Candidates:
    """By chance, drop every token with p >= threshold except the least probable of them."""
    if params.xtc_probability <= 0 or params.xtc_threshold > 0.5 or len(c.ids) < 2:
        return c
    if rng.random() > params.xtc_probability:
        return c
    c = c.descending()
    first = max(int((c.probabilities() >= params.xtc_threshold).sum()) - 1, 0)
    return Candidates(c.ids[first:], c.logits[first:], sorted=True)


def temperature(c: Candidates, params: SamplerParams) -> Candidates:
    """y = x / temp, after the filters: they judge the model's own probabilities."""
    scaled = c.logits / params.temp
    if not np.isfinite(scaled.max()):  # a very low temperature: only the differences matter
        scaled = (c.logits - c.logits.max()) / params.temp
    return Candidates(c.ids, scaled, c.sorted)


Filter = Callable[[Candidates, SamplerParams, Random], Candidates]
FILTERS: tuple[Filter, ...] = (top_n_sigma, top_k, typical, top_p, min_p, xtc)


def dry_breakers(pieces: Sequence[bytes], encode: Callable[[str], list[int]], strings: Sequence[str]) -> Breakers:
    """Every way to spell each string in tokens: one that holds it, or one whose end begins it, and the rest.

    llama.cpp's limits hold: a string counts to 40 bytes, what follows the first token to 20 tokens.
    """
    found: dict[int, dict[tuple[int, ...], None]] = {}
    for string in strings:
        text = string.encode()[:40]
        rests = {size: tuple(encode(text[size:].decode(errors="replace"))[:20]) for size in range(1, len(text))}
        for token, piece in enumerate(pieces):
            if not text or text[:1] not in piece:
                continue
            if text in piece:
                found.setdefault(token, {})[()] = None
                continue
            for size, rest in rests.items():
                if piece.endswith(text[:size]):
                    found.setdefault(token, {})[rest] = None
    return {token: tuple(tails) for token, tails in found.items()}
