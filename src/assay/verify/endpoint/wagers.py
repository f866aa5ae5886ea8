"""Bets against a claim: tests with a stated error rate that may be looked at after every token.

A gambler starts with 1 and stakes part of the capital before each block of evidence. If the claim holds, no stake has a
positive expectation, so the capital reaches 1/alpha with a probability of at most alpha, whenever one looks (Ville's
inequality). Averages of capitals are capitals. docs/explanation/audit.md has the mathematics and its assumptions.

Two kinds of bets:

    nearer     Is the block nearer to an alternative than to the claim? For an honest server noise has to carry the
               block more than half of the way to the alternative, so this has a probability of at most 1/2.
    distance   Is the block further from the claim than honest noise? `FURTHER` bounds how often.

All capitals are natural logarithms here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

STAKES = (0.25, 0.5, 0.75, 0.95)  # shares of the capital; the mean over them needs no tuning
# (ratio of a block's distance to the noise, how often an honest server exceeds it at most)
FURTHER = ((1.5, 0.4), (2.0, 0.2), (3.0, 0.05), (5.0, 0.01), (10.0, 0.002))


def log_mean(values: Iterable[float]) -> float:
    """ln of the mean of exp(values)."""
    found = list(values)
    if not found:
        return 0.0
    top = max(found)
    if not math.isfinite(top):
        return top
    return top + math.log(sum(math.exp(v - top) for v in found) / len(found))


def nearer_capital(wins: int, losses: int) -> float:
    """ln of the capital after even bets: a stake's share is added for a win and taken for a loss."""
    return log_mean(wins * math.log1p(s) + losses * math.log1p(-s) for s in STAKES)


def nearer_path(outcomes: Sequence[bool]) -> list[float]:
    """ln of the capital after every even bet."""
    wins = np.cumsum(np.asarray(outcomes, int))
    return [nearer_capital(int(w), i + 1 - int(w)) for i, w in enumerate(wins)]


def distance_payoff(ratio: float) -> float:
    """The payoff of a unit staked on one block: at most 1 on average under `FURTHER`, the same on each of its rows."""
    return sum(1 / bound for limit, bound in FURTHER if ratio > limit) / len(FURTHER)


def distance_path(ratios: Sequence[float]) -> list[float]:
    """ln of the capital after every block; a ratio that is not finite counts as the largest."""
    capitals = np.zeros(len(STAKES))
    path = []
    for ratio in ratios:
        payoff = distance_payoff(ratio if math.isfinite(ratio) else math.inf)
        capitals += [math.log(1 - stake + stake * payoff) for stake in STAKES]
        path.append(log_mean(capitals))
    return path


def blocks_needed(wins: int, losses: int, goal: float) -> int | None:
    """How many more blocks bring the capital to `goal`, if wins stay as frequent; None if they never do."""
    rate = (wins + 0.5) / (wins + losses + 1)
    growth = max(rate * math.log1p(s) + (1 - rate) * math.log1p(-s) for s in STAKES)
    missing = goal - nearer_capital(wins, losses)
    if missing <= 0:
        return 0
    return math.ceil(missing / growth) if growth > 1e-3 else None
