"""The error rates of bets, over thousands of simulated honest runs."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from assay.verify.endpoint.draw_settings import SETTINGS, DrawnToken, payoff
from assay.verify.endpoint.own_draws import ONE_SEED, against_stated
from assay.verify.endpoint.wagers import (
    FURTHER,
    blocks_needed,
    distance_path,
    distance_payoff,
    nearer_capital,
    nearer_path,
)

RUNS, BLOCKS, ALPHA = 4000, 120, 0.01


def test_even_bets_keep_their_rate() -> None:
    """At the limit of the assumption, a probability of 1/2, and looking after every block."""
    rng = np.random.default_rng(1)
    alarms = sum(max(nearer_path((rng.random(BLOCKS) < 0.5).tolist())) >= -math.log(ALPHA) for _ in range(RUNS // 4))
    assert alarms <= 1.6 * ALPHA * RUNS / 4


def test_distance_bets_keep_their_rate() -> None:
    """At the limit of the assumption: every bound is reached exactly."""
    rng = np.random.default_rng(2)
    limits = [0.0, *(limit for limit, _ in FURTHER), math.inf]
    bounds = [1.0, *(bound for _, bound in FURTHER), 0.0]
    shares = [a - b for a, b in pairwise(bounds)]
    mean = sum(s * distance_payoff(limit + 1e-9) for s, limit in zip(shares, limits, strict=False))
    assert mean == pytest.approx(1.0)
    values = np.array(limits[:-1]) + 1e-9
    alarms = sum(
        max(distance_path(rng.choice(values, BLOCKS, p=shares).tolist())) >= -math.log(ALPHA) for _ in range(RUNS // 4)
    )
    assert alarms <= 1.6 * ALPHA * RUNS / 4


def test_capital_grows_where_the_claim_is_wrong() -> None:
    assert nearer_capital(18, 0) > math.log(1e4) and nearer_capital(0, 18) < -3
    assert nearer_path([True] * 3) == [nearer_capital(i, 0) for i in (1, 2, 3)]
    assert blocks_needed(10, 0, math.log(1000)) <= 3 and blocks_needed(5, 5, math.log(1000)) is None
    assert distance_path([math.nan])[-1] > 0  # values that are not numbers are far


def _drawn(rng: np.random.Generator, logits: np.ndarray, shown: int, temperature: float = 1.0) -> DrawnToken:
    p = np.exp(logits - np.logaddexp.reduce(logits))
    q = p ** (1 / temperature)
    token = int(rng.choice(len(p), p=q / q.sum()))
    listed = {int(i) for i in np.argsort(-p)[:shown]} | {token}
    return DrawnToken(token, {i: float(np.log(p[i])) for i in listed}, (1, 2, 3), shown)


def test_payoffs_of_draws_have_a_mean_of_one() -> None:
    """Exactly, over all tokens: whatever part of the distribution is listed."""
    logits = np.random.default_rng(3).normal(0, 2, 40)
    p = np.exp(logits - np.logaddexp.reduce(logits))
    order = np.argsort(-p)[:10]
    for setting in SETTINGS:
        mean = 0.0
        for token in range(len(p)):
            listed = {int(i) for i in order} | {token}
            drawn = DrawnToken(token, {i: float(np.log(p[i])) for i in listed}, (int(order[0]), 5), 10)
            mean += p[token] * payoff(setting, drawn)
        assert mean == pytest.approx(1.0, abs=1e-6), setting.name


def test_draws_at_another_temperature_are_noticed() -> None:
    rng = np.random.default_rng(4)
    rows = [rng.normal(0, 2.5, 200) for _ in range(400)]
    honest, _ = against_stated([_drawn(rng, row, 20) for row in rows])
    assert honest < math.log(1000)
    capital, ranked = against_stated([_drawn(rng, row, 20, 0.5) for row in rows])
    assert capital > math.log(1000) and ranked[0].best == "temperature 0.5"


def test_top_p_shows_in_tokens_that_are_not_listed() -> None:
    """The listed tokens hold less than the mass that is kept: unlisted ones come too seldom."""
    rng, draws = np.random.default_rng(6), []
    for _ in range(400):
        p = np.sort(rng.dirichlet(np.full(200, 2.0)))[::-1]
        kept = np.where(np.cumsum(p) - p < 0.5, p, 0.0)
        token = int(rng.choice(len(p), p=kept / kept.sum()))
        listed = {*range(20), token}
        draws.append(DrawnToken(token, {i: float(np.log(p[i])) for i in listed}, (), 20))
    capital, ranked = against_stated(draws)
    assert capital > math.log(1000) and ranked[0].family == "top-p"


def _twice(rng: np.random.Generator, rows: list[np.ndarray], temperature: float, *, same: bool) -> list[DrawnToken]:
    """Answers of two seeds, or of one that stands for both."""
    first = [_drawn(rng, row, 20, temperature) for row in rows]
    second = first if same else [_drawn(rng, row, 20, temperature) for row in rows]
    return [*first, *(replace(b, repeats=a.token) for a, b in zip(first, second, strict=True))]


def test_one_seed_for_all_is_told_from_a_low_temperature() -> None:
    """Few tokens that happen to be likely ones look like a low temperature too; then nothing is certain."""
    rng, wrong = np.random.default_rng(5), 0
    for _ in range(60):
        rows = [rng.normal(0, 2.5, 200) for _ in range(8)]
        _, ranked = against_stated(_twice(rng, rows, 1.0, same=True))
        wrong += ranked[0].family != ONE_SEED.family and ranked[0].share >= 0.9
        _, ranked = against_stated(_twice(rng, rows, 0.3, same=False))
        wrong += ranked[0].family == ONE_SEED.family and ranked[0].share >= 0.9
    assert wrong == 0
    rows = [rng.normal(0, 2.5, 200) for _ in range(48)]
    capital, ranked = against_stated(_twice(rng, rows, 1.0, same=True))
    assert capital > math.log(1000) and ranked[0].family == ONE_SEED.family and ranked[0].share > 0.99
    honest, _ = against_stated(_twice(rng, rows, 1.0, same=False))
    assert honest < math.log(1000)
    _, ranked = against_stated(_twice(rng, rows, 0.3, same=False))
    assert ranked[0].family == "temperature"
