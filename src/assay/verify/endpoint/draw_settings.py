"""Ways to draw a token that were not asked for, each as a distribution made from the one that a server states.

A family is one setting with its usual values: a temperature, top-k, top-p, min-p, a penalty on tokens of the context.
A penalty divides or lowers raw logits, which no server shows. The best logits of a place are about alike. So a penalty
is taken to lower the log-probability of every token that came before by the same number of nats.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = Callable[[Array, Array, Sequence[int]], Array]  # ids, log-probabilities and earlier ids -> weights
DOUBT = 0.02  # share of the stated distribution in every other one, so that one token does not end a bet
REPEATED, DRY_BASE = 2, 1.75  # length of a repeated sequence that DRY penalises, and the growth of the penalty
RECENT = 64  # tokens that llama.cpp's penalty looks back; others look at all
NEARLY_BEST = 0.1  # temperature that stands for the best token after a penalty whose size is known roughly


@dataclass(frozen=True)
class DrawnToken:
    """A token that a server chose, its log-probabilities at this place, and the ids before it."""

    token: int
    scores: Mapping[int, float]
    before: tuple[int, ...]
    top: int  # how many of the likeliest tokens the server lists; the drawn one may be listed beside them
    repeats: int | None = None  # the token that the same request with another seed drew here

    @cached_property
    def listed(self) -> tuple[Array, Array, Array]:
        """The listed ids, the likeliest first, their log-probabilities and probabilities."""
        order = sorted(self.scores, key=self.scores.__getitem__, reverse=True)[: self.top]
        logp = np.array([self.scores[i] for i in order])
        return np.array(order), logp, np.exp(logp)

    @cached_property
    def unlisted(self) -> float:
        """The probability of all tokens that are not listed."""
        return max(0.0, 1 - float(self.listed[2].sum()))


@dataclass(frozen=True)
class DrawSetting:
    """A way to draw that was not asked for."""

    family: str
    name: str
    shape: Shape
    spreads: bool = False  # gives unlikely tokens more than was asked: no filter of a server's own looks like it
    mass: float = 1.0  # of the likeliest tokens, which it leaves: unlisted ones get what the listed ones do not reach
    handicap: float = 0.0  # nats: two settings at once explain more than one, so they have to explain it better


def _tempered(logp: Array, t: float) -> Array:
    return np.asarray(np.exp((logp - logp.max()) / t))


def _top_p_of(weights: Array, logp: Array, p: float) -> Array:
    mass = np.cumsum(np.exp(logp))
    return np.where(mass - np.exp(logp) < p, weights, 0.0)


def temperature(t: float) -> DrawSetting:
    return DrawSetting("temperature", f"temperature {t:g}", lambda ids, logp, before: _tempered(logp, t), spreads=t > 1)


def _top_k(k: int) -> DrawSetting:
    family = "top-k" if k > 1 else "top-k 1"  # always the best token, as at a temperature of 0
    return DrawSetting(
        family, f"top-k {k}", lambda ids, logp, before: np.where(np.arange(len(ids)) < k, np.exp(logp), 0.0)
    )


def _top_p(p: float) -> DrawSetting:
    return DrawSetting("top-p", f"top-p {p:g}", lambda ids, logp, before: _top_p_of(np.exp(logp), logp, p), mass=p)


def _min_p(p: float) -> DrawSetting:
    return DrawSetting(
        "min-p", f"min-p {p:g}",
        lambda ids, logp, before: np.where(logp >= logp[0] + math.log(p), np.exp(logp), 0),
    )  # fmt: skip


def _cut(p: float) -> DrawSetting:
    """No token that is less likely than p, whatever the best one has: mirostat's cut moves about such a value."""
    words = f"a cut of all tokens below a probability of {p:g}, as mirostat's"
    return DrawSetting(
        "cut", words, lambda ids, logp, before: np.where((logp >= math.log(p)) | (logp >= logp[0]), np.exp(logp), 0)
    )


def _cool_top_p(t: float, p: float) -> DrawSetting:
    return DrawSetting(
        "temperature", f"temperature {t:g} and top-p {p:g}",
        lambda ids, logp, before: _top_p_of(_tempered(logp, t), logp, p), handicap=math.log(30.0),
    )  # fmt: skip


def lowered(logp: Array, ids: Array, before: Sequence[int], nats: float, window: int | None, *, each: bool) -> Array:
    """Log-probabilities less a penalty for the tokens of the last `window` ids; `each`: for every time they came."""
    counts = seen_counts(before, window)
    cost = np.array([counts.get(int(i), 0) for i in ids], float)
    return np.asarray(logp - nats * (cost if each else np.minimum(cost, 1)))


def seen_counts(before: Sequence[int], window: int | None) -> Counter[int]:
    """How often each token came among the last `window` ids, or among all."""
    return Counter(before if window is None else before[-window:])


def penalty(nats: float, window: int | None, *, each: bool = False, t: float = 1.0) -> DrawSetting:
    family = "frequency penalty" if each else "repetition penalty"
    times = " for every time it came before" if each else " on each token that came before"
    among = "" if window is None else f" among the last {window}"
    return DrawSetting(
        family, f"a penalty of about {nats:g} nats{times}{among}",
        lambda ids, logp, before: _tempered(lowered(logp, ids, before, nats, window, each=each), t),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def repeated_before(before: tuple[int, ...], window: int = RECENT) -> Mapping[int, int]:
    """Tokens that would go on with a sequence of `REPEATED` tokens or more that came before, and its longest length."""
    recent, found = before[-window:], dict[int, int]()
    for j in range(1, len(recent)):
        same = 0
        while same < j and recent[j - 1 - same] == recent[-1 - same]:
            same += 1
        if same >= REPEATED:
            found[recent[j]] = max(found.get(recent[j], 0), same)
    return found


def _dry_penalty(nats: float) -> DrawSetting:
    """llama.cpp's DRY: each further token of a repeated sequence multiplies the penalty."""

    def shape(ids: Array, logp: Array, before: Sequence[int]) -> Array:
        lengths = repeated_before(tuple(before))
        cost = [nats * DRY_BASE ** min(lengths[i] - REPEATED, 20) if i in lengths else 0.0 for i in ids.tolist()]
        return _tempered(logp - np.array(cost), NEARLY_BEST)

    name = f"a penalty of about {nats:g} nats on tokens that go on with a sequence that came before, as DRY's"
    return DrawSetting("penalty on repeated sequences", name, shape)


def _typical(p: float) -> DrawSetting:
    """The best of those tokens whose surprise is nearest to the expected one, up to this mass: locally typical."""

    def shape(ids: Array, logp: Array, before: Sequence[int]) -> Array:
        chance = np.exp(logp)
        unlisted = max(0.0, 1 - float(chance.sum())) * float(logp[-1])
        order = np.argsort(np.abs(logp - float((chance * logp).sum()) - unlisted), kind="stable")
        kept = order[: int(np.searchsorted(np.cumsum(chance[order]), p)) + 1]
        within = np.full(len(logp), -np.inf)
        within[kept] = logp[kept]
        return _tempered(within, NEARLY_BEST)

    return DrawSetting("typical", f"locally typical sampling with {p:g}", shape)


def _xtc(threshold: float) -> DrawSetting:
    """llama.cpp's XTC: at random, all tokens above a threshold but the least likely of them are taken away."""

    def shape(ids: Array, logp: Array, before: Sequence[int]) -> Array:
        weights = np.where(np.arange(len(logp)) == 0, 1.0, 0.0)
        weights[max(0, int((np.exp(logp) >= threshold).sum()) - 1)] += 1.0
        return weights

    return DrawSetting("XTC", f"XTC with a threshold of {threshold:g}", shape)


PENALTIES = tuple(
    (nats, window, each)
    for window in (None, RECENT)
    for each, sizes in ((False, (0.5, 1.0, 2.0, 3.5, 6.0)), (True, (0.25, 0.5, 1.0, 2.0)))
    for nats in sizes
)
FEW_PENALTIES = tuple(
    (nats, w, each) for w in (None, RECENT) for nats, each in ((1.0, False), (3.5, False), (0.5, True))
)
SETTINGS: tuple[DrawSetting, ...] = (
    *(temperature(t) for t in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.2, 1.3, 1.5, 1.7)),
    *(_top_k(k) for k in (1, 2, 3, 5, 10)),
    *(_top_p(p) for p in (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)),
    *(_min_p(p) for p in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)),
    *(_cut(p) for p in (0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5)),
    *(_cool_top_p(t, p) for t in (0.5, 0.6, 0.7, 0.8, 0.9) for p in (0.8, 0.9, 0.95)),
    *(penalty(nats, window, each=each) for nats, window, each in PENALTIES),
)
# Where a temperature of 0 was asked for.
AT_ZERO: tuple[DrawSetting, ...] = (
    *(temperature(t) for t in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.3, 1.7)),
    *(penalty(nats, window, each=each, t=NEARLY_BEST) for nats, window, each in PENALTIES),
    *(_dry_penalty(nats) for nats in (0.5, 0.8, 1.5, 3.0)),
    *(_xtc(p) for p in (0.05, 0.1, 0.15, 0.2)),
    *(_typical(p) for p in (0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)),
)


def chances(setting: DrawSetting, drawn: DrawnToken) -> tuple[float, float]:
    """The probability of a drawn token as the server states it, and as the setting gives it.

    All tokens that the server did not list count as one, shaped as the least of those listed.
    """
    (ids, logp, stated), rest = drawn.listed, drawn.unlisted
    weights = setting.shape(ids, logp, drawn.before)
    left = min(rest, max(0.0, setting.mass - float(stated.sum()))) if setting.mass < 1 else rest
    unlisted = left * float(weights[-1]) / max(float(stated[-1]), 1e-30)
    total = float(weights.sum()) + unlisted
    at = np.flatnonzero(ids == drawn.token)
    p, q = (float(stated[at[0]]), float(weights[at[0]])) if len(at) else (rest, unlisted)
    return p, q / max(total, 1e-30)


def payoff(setting: DrawSetting, drawn: DrawnToken) -> float:
    """q/p of a draw."""
    p, q = chances(setting, drawn)
    return DOUBT + (1 - DOUBT) * q / max(p, 1e-12)


def capitals(draws: Sequence[DrawnToken], settings: Sequence[DrawSetting] = SETTINGS) -> dict[str, float]:
    """ln of the capital of every setting after all draws."""
    return {s.name: sum(math.log(max(payoff(s, d), 1e-12)) for d in draws) for s in settings}


@dataclass(frozen=True)
class LikelyFamily:
    """A family of settings, its best setting, and its posterior probability."""

    family: str
    best: str
    share: float


def likely_families(
    found: Mapping[str, float], settings: Sequence[DrawSetting], *, stated: bool = True
) -> list[LikelyFamily]:
    """Families by posterior probability, the likeliest first.

    All families are equally likely at first, and so are the settings of one. `stated`: the tokens may also be drawn as
    the server says.
    """
    by = dict[str, list[tuple[float, str]]]()
    for s in settings:
        by.setdefault(s.family, []).append((found[s.name] - s.handicap, s.name))
    marginal = {family: _log_mean([value for value, _ in rows]) for family, rows in by.items()}
    total = [*marginal.values(), *([0.0] if stated else [])]
    top = max(total)
    whole = sum(math.exp(v - top) for v in total)
    rows = [LikelyFamily(f, max(by[f])[1], math.exp(v - top) / whole) for f, v in marginal.items()]
    return sorted(rows, key=lambda row: -row.share)


def _log_mean(values: Sequence[float]) -> float:
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values) / len(values))
