"""Bets on tokens that were chosen at temperature 0, where a server shows no log-probabilities.

A greedy server of a prediction chooses the prediction's best token, unless noise lifts another one above it. The bound
for an honest server is

    P(token) at most proportional to exp(-margin / scale)

where the margin is the distance of the token's log-probability from the best one, and the scale is `SPREAD` times the
honest noise at the place. That is the choice with Gumbel noise of this scale, whose tails are heavier than those of
rounding. A bet on prediction a against prediction b pays P_a/P_b for the token that was chosen. So its expectation
under b is at most 1, and the product over all places is a capital (`wagers`).

Noise at two places with the same two best tokens is alike: a text that goes round in circles would show one near tie
again and again. So a place counts once in a text for each pair of best tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.verify.endpoint.served_text import BLOCK, ServedText
from assay.verify.endpoint.wagers import log_mean

Array = NDArray[Any]
SPREAD = 2.0  # noise of an honest engine over the distance of claim and companion
LISTED = 64  # best tokens of the claim that are outcomes of their own; all others are one outcome
STAKES = (0.1, 0.3, 0.6, 0.9)  # shares of the capital; the mean over them needs no tuning
NOISIER = (4.0, 16.0)  # times the honest scale: a server that is further away than noise, in no known direction
MOST = 50.0  # payoff of one place: no single token decides


@dataclass
class TokenBets:
    """Expectations of every prediction at the places so far, and the tokens that the server chose.

    A prediction's expectation at a place is a distribution over `LISTED` tokens and one outcome for all others.
    """

    expected: dict[str, list[Array]] = field(default_factory=dict)  # "" is the claim; NaN where nothing is predicted
    noisier: dict[str, list[Array]] = field(default_factory=dict)  # [len(NOISIER), outcomes] a place
    chosen: list[int] = field(default_factory=list)  # the outcome
    scales: list[float] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # places that count, up to the end of each block
    _listed: dict[int, list[Array | None]] = field(default_factory=dict)  # of each text: the listed ids, if it counts

    def begin(self, text: ServedText, exact: Array, fast: Array, scales: Sequence[float]) -> None:
        """The claim's expectation of a text: `exact` and `fast` are its log-probabilities in two arithmetics."""
        pairs: set[tuple[int, int]] = set()
        listed: list[Array | None] = []
        for i, (place, own, other, scale) in enumerate(zip(text.places, exact, fast, scales, strict=True)):
            if i and i % BLOCK == 0:
                self.ends.append(len(self.chosen))
            best = np.argsort(-own)[:LISTED]
            pair = (int(min(best[:2])), int(max(best[:2])))
            counts = place.token is not None and pair not in pairs and np.isfinite(own[best[0]])
            pairs.add(pair)
            listed.append(best if counts else None)
            if not counts:
                continue
            margins = np.fmin(own.max() - own, other.max() - other)
            self._put("", margins, best, scale)
            where = np.flatnonzero(best == place.token)
            self.chosen.append(int(where[0]) if len(where) else len(best))
            self.scales.append(scale)
        self.ends.append(len(self.chosen))
        self._listed[id(text)] = listed

    def add(self, name: str, text: ServedText, rows: Array | None, temperature: float = 0.0) -> None:
        """Expectation of an alternative for the text; None if it has none.

        A draw at a temperature is the best token after Gumbel noise of that scale.
        """
        listed = self._listed[id(text)]
        first = len(self.expected.setdefault(name, []))
        self.noisier.setdefault(name, [])
        for i, best in enumerate(listed):
            if best is None:
                continue
            row = None if rows is None else rows[i]
            margins = np.full(len(best), np.nan) if row is None else row.max() - row
            self._put(name, margins, best, max(self.scales[first], temperature))
            first += 1

    def _put(self, name: str, margins: Array, best: Array, scale: float) -> None:
        self.expected.setdefault(name, []).append(_choice(margins, best, scale))
        made = np.stack([_choice(margins, best, scale * more) for more in NOISIER])
        self.noisier.setdefault(name, []).append(made)

    # --- capitals

    def path(self, name: str, over: str = "") -> Array:
        """ln of the capital of a prediction against another, after every place that counts."""
        if not self.chosen:
            return np.zeros(0)
        return _path(np.stack(self.expected[name]), np.stack(self.expected[over]), self.chosen)

    def misfit_path(self, name: str = "") -> Array:
        """ln of the capital against a prediction of bets that its distance is larger than noise."""
        if not self.chosen:
            return np.zeros(0)
        own, more = np.stack(self.expected[name]), np.stack(self.noisier[name])
        paths = [_path(more[:, k], own, self.chosen) for k in range(len(NOISIER))]
        return np.array([log_mean(column) for column in zip(*paths, strict=True)])

    def likelihood(self, name: str) -> float:
        """ln of the probability of the chosen tokens; where a prediction expects nothing, the claim's counts."""
        if not self.chosen:
            return 0.0
        at = (np.arange(len(self.chosen)), np.asarray(self.chosen))
        own, claims = np.stack(self.expected[name])[at], np.stack(self.expected[""])[at]
        return float(np.log(np.maximum(np.where(np.isnan(own), claims, own), 1e-9)).sum())

    def bet(self, name: str, over: str = "") -> float:
        return float(self.path(name, over)[-1]) if self.chosen else 0.0

    def misfit(self, name: str = "") -> float:
        return float(self.misfit_path(name)[-1]) if self.chosen else 0.0

    def evidence_path(self, names: Sequence[str]) -> list[float]:
        """ln of the capital against the claim after every block: half on distance, half on these alternatives."""
        paths = [self.misfit_path(), *(self.path(name) for name in names)]
        joined = [log_mean([far, log_mean(bets)]) if bets else far for far, *bets in zip(*paths, strict=True)]
        return [joined[n - 1] if n else 0.0 for n in self.ends]


def _choice(margins: Array, best: Array, scale: float) -> Array:
    """The distribution of a choice with Gumbel noise of this scale: of each listed token, and of all others."""
    if np.isnan(margins).all():
        return np.full(len(best) + 1, np.nan)
    weights = np.exp(-np.where(np.isfinite(margins), margins, np.inf) / scale)
    listed = weights[best]
    total = float(weights.sum())
    return np.append(listed, max(0.0, total - float(listed.sum()))) / total


def payoffs(bettor: Array, null: Array) -> Array:
    """The payoff of every outcome at every place, with an expectation of at most 1 for every honest choice.

    A server with less noise than the bound chooses the best token more often. So the payoff is divided by its largest
    expectation over all choices that exceed the bound at no other token.
    """
    ratio = np.minimum(bettor / np.maximum(null, 1e-12), MOST)
    best = null.argmax(axis=1)[:, None]
    at_best = np.take_along_axis(ratio, best, 1)
    most = at_best[:, 0] + (null * np.maximum(ratio - at_best, 0.0)).sum(axis=1)
    return np.asarray(ratio / np.maximum(most, 1.0)[:, None])


def _path(bettor: Array, null: Array, chosen: Sequence[int]) -> Array:
    """ln of the capital after every place; it stays where one of the two expects nothing."""
    won = np.take_along_axis(payoffs(bettor, null), np.asarray(chosen)[:, None], 1)[:, 0]
    won = np.where(np.isnan(won), 1.0, won)
    capitals = np.cumsum([np.log1p(stake * (won - 1)) for stake in STAKES], axis=1)
    return np.array([log_mean(column) for column in capitals.T])
