"""Tokens that are not the best ones at temperature 0: draws, penalties and other rules are told apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from assay.verify.endpoint.draw_settings import DrawnToken
from assay.verify.endpoint.greedy_tokens import Again, asked_again, judged_greedy
from assay.verify.endpoint.own_draws import against_stated

RECORDED = Path(__file__).parents[2] / "data" / "llama_server_draws.json"
VOCABULARY, PROMPT, STEPS, TEXTS = 60, 8, 24, 4
Rule = Callable[[np.random.Generator, np.ndarray, list[int]], int]


def drawn(rng: np.random.Generator, logp: np.ndarray, before: list[int]) -> int:
    return int(np.argmax(logp / 0.7 + rng.gumbel(size=len(logp))))


def cool(rng: np.random.Generator, logp: np.ndarray, before: list[int]) -> int:
    return int(np.argmax(logp / 0.3 + rng.gumbel(size=len(logp))))


def penalised(rng: np.random.Generator, logp: np.ndarray, before: list[int]) -> int:
    return int(np.argmax(logp - 2.0 * np.isin(np.arange(len(logp)), before)))


def second_best(rng: np.random.Generator, logp: np.ndarray, before: list[int]) -> int:
    """A rule that is no penalty: the second token where it is near, as a loosely accepted draft may be."""
    order = np.argsort(-logp)
    return int(order[1] if logp[order[0]] - logp[order[1]] < 0.6 else order[0])


def typical(rng: np.random.Generator, logp: np.ndarray, before: list[int]) -> int:
    """llama.cpp's typical-p of 0.5 before the best token is taken."""
    p = np.exp(logp)
    order = np.argsort(np.abs(logp - (p * logp).sum()))
    kept = order[: np.searchsorted(np.cumsum(p[order]), 0.5) + 1]
    return int(kept[logp[kept].argmax()])


def dry(rng: np.random.Generator, logp: np.ndarray, before: list[int]) -> int:
    """llama.cpp's DRY with a multiplier of 3."""
    cost = np.zeros(len(logp))
    for j in range(1, len(before)):
        same = next((n for n in range(j) if before[j - 1 - n] != before[-1 - n]), j)
        cost[before[j]] = max(cost[before[j]], 3 * 1.75 ** (same - 2) if same >= 2 else 0.0)
    return int(np.argmax(logp - cost))


def xtc(rng: np.random.Generator, logp: np.ndarray, before: list[int]) -> int:
    """llama.cpp's XTC with a probability of 0.5 and a threshold of 0.1, at temperature 0."""
    order = np.argsort(-logp)
    above = int((np.exp(logp) >= 0.1).sum())
    return int(order[above - 1] if above > 1 and rng.random() < 0.5 else order[0])


def served(rule: Rule, text: int, seed: int) -> tuple[list[DrawnToken], list[int]]:
    """An answer of a model whose next token depends on the last two, drawn by a rule."""
    rng, ids, steps = np.random.default_rng([seed, text]), [text * 3 + i for i in range(PROMPT)], list[DrawnToken]()
    for _ in range(STEPS):
        z = np.random.default_rng(ids[-2:]).normal(0, 2.0 if rule not in (typical, xtc) else 3.0, VOCABULARY)
        z[ids[-3:]] += 2.0  # it likes to repeat itself
        logp = z - np.logaddexp.reduce(z)
        token = rule(rng, logp, ids)
        listed = {int(i) for i in np.argsort(-logp)[:20]} | {token}
        steps.append(DrawnToken(token, {i: float(logp[i]) for i in listed}, tuple(ids), 20))
        ids.append(token)
    return steps, ids


def asked(rule: Rule) -> tuple[list[DrawnToken], Again]:
    first = [served(rule, text, 1) for text in range(TEXTS)]
    chosen = [step for steps, _ in first for step in steps]
    return chosen, asked_again(chosen, [ids for _, ids in first], lambda i: served(rule, i, 2)[1])


@pytest.mark.parametrize(
    ("rule", "words", "sure"),
    [
        (drawn, "not honoured: ", True),
        (cool, "not honoured: ", True),
        (penalised, "a penalty on tokens", True),
        (second_best, "come again", False),
        (typical, "most like the best of locally typical sampling with 0.5", True),
        (dry, "as DRY", False),
        (xtc, "most like XTC with a threshold of 0.1", True),
    ],
)
def test_the_rule_is_named(rule: Rule, words: str, sure: bool) -> None:
    chosen, again = asked(rule)
    found = judged_greedy(chosen, again)
    assert words in found.words and (found.confidence >= 0.9) == sure, (again, found)
    assert again.drawn == (rule in (drawn, cool, xtc)) and ("XTC" in found.words) == (rule is xtc)


def test_without_a_second_answer_nothing_is_certain() -> None:
    """A server that stopped answering: draws, a penalty and a rule look alike, so no name is a confident one."""
    for rule in (drawn, penalised, second_best):
        chosen, _ = asked(rule)
        assert judged_greedy(chosen, Again()).confidence <= 0.5


def recorded(name: str) -> tuple[list[DrawnToken], float]:
    """What a stock llama-server chose for stories15M with a default of its sampler, and ln of the probability that
    draws repeat it."""
    kept = json.loads(RECORDED.read_text())[name]
    steps = list[DrawnToken]()
    for text in kept["texts"]:
        ids = list(text["prompt"])
        for step in text["steps"]:
            scores = dict(zip(step["ids"], step["logp"], strict=True))
            steps.append(DrawnToken(step["token"], scores, tuple(ids), step["top"], step["repeats"]))
            ids.append(step["token"])
    return steps, kept.get("came_again", 0.0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("typical", "most like the best of locally typical sampling with 0.5"),
        ("DRY", "sequence that came before, as DRY"),
    ],
)
def test_a_default_of_llama_servers_sampler_is_named(name: str, words: str) -> None:
    """--typical 0.5 was open, and --dry-multiplier 0.8 was a penalty on every token that came before."""
    chosen, came_again = recorded(name)
    found = judged_greedy(chosen, Again(chance=came_again))
    assert words in found.words and found.confidence >= 0.8, found


def test_mirostat_is_no_temperature() -> None:
    """--mirostat 2 --mirostat-ent 1 was temperature 0.3 with a confidence of 1.00."""
    capital, likely = against_stated(recorded("mirostat")[0])
    assert capital > 20 and "mirostat" in likely[0].best and likely[0].share > 0.9, likely[:3]
