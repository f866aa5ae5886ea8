"""Bets on tokens alone: their error rate, and audits of servers that show nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.endpoint.audit_findings import AuditOptions, AuditResult
from assay.verify.endpoint.audit_report import text
from assay.verify.endpoint.audit_run import audit_endpoint
from assay.verify.endpoint.claimed_model import ClaimedModel, Setting
from assay.verify.endpoint.client import Client
from assay.verify.endpoint.own_draws import judged_repeats, repeats
from assay.verify.endpoint.served_text import Place, ServedText
from assay.verify.endpoint.token_bets import LISTED, MOST, TokenBets, _choice, payoffs
from tests.synthetic import make_kquant
from tests.verify.endpoint.own_server import Habits, OwnServer

SHORT = ("The cat sat", "In May we", "A red door", "No rain fell", "Two and two", "He wrote it", "Sea salt is")
ALPHA = 0.05


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(make_kquant(tmp_path_factory.mktemp("model") / "synthetic.gguf")))


def _choices(rng: np.random.Generator, n: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Distributions of choices with this noise at random rows, and those that other rows would give there."""
    rows = rng.normal(0, 1, (n, 200))
    made = [_choice(row.max() - row, np.argsort(-row)[:LISTED], scale) for row in rows]
    pairs = zip(rows, rng.permutation(rows), strict=True)
    others = [_choice(o.max() - o, np.argsort(-row)[:LISTED], scale) for row, o in pairs]
    return np.stack(made), np.stack(others)


def test_payoffs_have_an_expectation_of_at_most_one() -> None:
    """For a server with the noise of the bound, with half of it, and with none."""
    rng = np.random.default_rng(1)
    for scale in (0.05, 0.3, 1.0):
        null, bettor = _choices(rng, 50, scale)
        paid = payoffs(bettor, null)
        best = np.eye(null.shape[1])[null.argmax(axis=1)]
        for honest in (null, best, (null + best) / 2):
            assert ((honest * paid).sum(axis=1) <= 1 + 1e-9).all() and paid.max() <= MOST


def test_the_rate_of_false_alarms_holds() -> None:
    """With as much noise as the bound allows, and looking after every token."""
    rng, alarms, runs = np.random.default_rng(2), 0, 80
    for _ in range(runs):
        rows, other = rng.normal(0, 1, (2, 30, 80))
        noisy = rows + rng.gumbel(0, 0.3, rows.shape)
        places = tuple(Place(i, {}, int(token)) for i, token in enumerate(noisy.argmax(axis=1)))
        served, bets = ServedText(tuple(range(30)), 0, places), TokenBets()
        bets.begin(served, rows, rows, [0.3] * len(rows))
        bets.add("other", served, rows + 0.5 * other)
        alarms += max(bets.evidence_path(["other"])) >= -math.log(ALPHA)
    assert alarms <= 2 * ALPHA * runs


def test_a_near_tie_that_comes_again_counts_once() -> None:
    row = np.array([0.0, -0.1, -5.0, -6.0])
    rows = np.stack([row] * 12)
    served = ServedText(tuple(range(12)), 0, tuple(Place(i, {}, 1) for i in range(12)))
    bets = TokenBets()
    bets.begin(served, rows, rows, [0.05] * 12)
    assert len(bets.chosen) == 1 and len(bets.ends) == 3 and bets.misfit() < math.log(10)


def _audited(model: Model, habits: Habits, change: Mapping[str, Any]) -> AuditResult:
    with OwnServer(model, habits) as server:

        def ask(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
            before = str(change.get("before", ""))
            return server.ask(path, {**body, **change, "prompt": before + body["prompt"]})

        options = AuditOptions(prompts=SHORT, threads=1, chat=False, draws=False)
        return audit_endpoint(model, Client("here", server.tokenizer, ask=ask), options, lambda _: None)


def test_an_honest_server_with_another_cache(model: Model) -> None:
    found = _audited(model, Habits((Setting(precision="fast", cache="q8_0"),), top=0), {})
    assert found.verdict != "differs" and found.reading.top == 0 and found.excluded, text(found)


@pytest.mark.parametrize(
    ("change", "words"), [({"before": "<s>"}, "BOS twice"), ({"temperature": 0.8}, "tokens are drawn")]
)
def test_what_differs_is_named_by_tokens_alone(model: Model, change: dict[str, Any], words: str) -> None:
    found = _audited(model, Habits(top=0), change)
    assert found.verdict == "differs" and words in found.findings[0].words, text(found)


def test_equal_draws_of_two_seeds(model: Model) -> None:
    with ClaimedModel(model, threads=1) as claimed:
        ids, rng = [1, 259, 94], np.random.default_rng(3)
        for _ in range(12):
            p = np.exp(claimed.at(ids, [len(ids)])[0].astype(np.float64))
            ids.append(int(rng.choice(len(p), p=p / p.sum())))
        places = tuple(Place(i, {}, ids[i]) for i in range(3, len(ids)))
        served = ServedText(tuple(ids), 3, places)
        assert "same tokens" in judged_repeats([repeats(served, served, claimed)], 1e-3)[0].words
        other = ServedText(tuple(ids), 3, (places[0], *places[2:]))
        assert not judged_repeats([repeats(served, other, claimed)], 1e-3), "one equal token is chance"
