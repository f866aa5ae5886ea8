"""Lookahead: guesses change how many tokens a step computes, and not one bit of what comes out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.runtime.generate import Generator, Result
from assay.runtime.lookahead import Costs, Guesses, Lookahead, Odds
from assay.runtime.opening import Opened, Options, open_model
from assay.runtime.params import GREEDY, SamplerParams
from tests import tiny

PROMPT = [300, 301, 302, 303, 304, 305] * 4 + [290, 300, 301]


class Eager(Lookahead):
    """Takes every guess there is: what does not pay is checked, too."""

    def _best(self, base: int, chances: list[float]) -> int:
        return len(chances)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    path = tiny.make(tmp_path_factory.mktemp("ahead") / "tiny.gguf", n_ctx=512)
    return open_model(path, Options(engine="cpu", cache_size=2048, threads=2))


class Counting(Eager):
    right = 0

    def learn(self, sequence: Any, drawn: list[int]) -> None:
        self.right += len(drawn) - 1
        super().learn(sequence, drawn)


def results(opened: Opened, lookahead: Lookahead | None, jobs: list[dict[str, Any]]) -> list[Result]:
    engine = opened.engine()
    generator = Generator(engine, opened.tokenizer, n_ctx=opened.n_ctx, running=4, lookahead=lookahead)
    found = list(generator.together(generator.generate(**job) for job in jobs))
    generator.pages.check()
    engine.close()
    return [work.result for work in found]


def told(result: Result) -> str:
    """All that a client gets, to the last digit."""
    choices = [(c.id, c.logprob, c.top) for c in result.logprobs or []]
    return json.dumps([result.ids, result.text, result.finish_reason, repr(choices)])


def jobs(opened: Opened) -> list[dict[str, Any]]:
    sampled = SamplerParams(temp=0.7, seed=11, top_k=5)
    schema = opened.grammars.schema({"type": "array", "items": {"enum": ["abc", "abd"]}, "minItems": 4})
    rows: list[dict[str, Any]] = [
        {"prompt_ids": PROMPT, "params": GREEDY, "max_tokens": 60},
        {"prompt_ids": PROMPT, "params": sampled, "max_tokens": 60, "logprobs": 3},
        {"prompt_ids": PROMPT, "params": replace(sampled, repeat_penalty=1.3), "max_tokens": 40, "logprobs": 0},
        {"prompt_ids": [1, 300], "params": GREEDY, "max_tokens": 70, "ignore_eos": True, "logprobs": 2},
        {"prompt_ids": PROMPT, "params": sampled, "max_tokens": 50, "constraint": schema},
        {"prompt_ids": PROMPT, "params": GREEDY, "max_tokens": 1},
        {"prompt_ids": PROMPT[:-1], "params": GREEDY, "max_tokens": -1, "ignore_eos": True},
    ]
    text = told(results(opened, None, rows[:1])[0])
    return [*rows, {**rows[0], "stop": (json.loads(text)[1][5:8] or "zz",)}]


def test_every_bit_is_the_same_with_guesses(opened: Opened) -> None:
    work = jobs(opened)
    plain = [told(result) for result in results(opened, None, work)]
    ahead = Counting()
    assert [told(result) for result in results(opened, ahead, work)] == plain
    assert ahead.right > 100, "guesses are right often enough to be tested"
    assert [told(result) for result in results(opened, Lookahead(), work)] == plain
    alone = [told(results(opened, Eager(), [job])[0]) for job in work]
    assert alone == plain


def test_a_draft_model_changes_nothing_but_speed(opened: Opened, tmp_path: Path) -> None:
    """The model itself as its draft is always right; another of its kind seldom."""
    work = jobs(opened)[:5]
    plain = [told(result) for result in results(opened, None, work)]
    other = tiny.make(tmp_path / "other.gguf", n_ctx=512, n_layer=1, seed=5)
    for path in (opened.file.path, other):
        asked = open_model(opened.file.path, replace(opened.options, draft=str(path)))
        lookahead = asked.lookahead()
        assert lookahead and lookahead.drafter
        lookahead._round = 1e-9  # it seems free, so it is asked at every step
        assert [told(result) for result in results(opened, lookahead, work)] == plain
        lookahead.drafter.close()


def test_a_draft_of_another_vocabulary_is_refused(opened: Opened, tmp_path: Path) -> None:
    renamed = [*tiny.TOKENS[:-1], "▁another"]
    other = tiny.make(tmp_path / "other.gguf", metadata={"tokenizer.ggml.tokens": renamed})
    with pytest.raises(AssayError, match=r"--draft .*another vocabulary .*same family"):
        open_model(opened.file.path, replace(opened.options, draft=str(other))).lookahead()


def test_a_full_cache_has_no_room_for_guesses(opened: Opened) -> None:
    """Guesses take no page that a sequence needs, and preempted sequences come back the same."""
    work = [{"prompt_ids": [*PROMPT, 300 + i], "params": GREEDY, "max_tokens": 60} for i in range(4)]
    plain = [told(result) for result in results(opened, None, work)]
    tight = open_model(opened.file.path, replace(opened.options, ctx_size=96, cache_size=160))
    assert [told(result) for result in results(tight, Eager(), work)] == plain


# --- guesses


def test_the_longest_match_is_taken_and_goes_round() -> None:
    guesses = Guesses()
    assert guesses.make([7], 4) == [] and guesses.odds is None
    assert guesses.make([1, 2, 3, 9, 2, 3, 5, 1, 2, 3], 3) == [9, 2, 3]
    assert guesses.make([1, 2, 3, 9, 2, 3, 5, 1, 2, 3, 4, 4, 4], 5) == [4] * 5


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 20))
def test_a_guess_continues_an_earlier_place(ids: list[int], most: int) -> None:
    """Grown token by token or given whole, the guess is the same, and it follows the last two tokens somewhere."""
    whole, grown = Guesses(), Guesses()
    for n in range(1, len(ids)):
        grown.make(ids[:n], 1)
    found = whole.make(ids, most)
    assert found == grown.make(ids, most) and len(found) in (0, most)
    if found:
        pairs = {(*ids[i - 2 : i], ids[i]) for i in range(2, len(ids))}
        assert (*ids[-2:], found[0]) in pairs


def test_odds_follow_what_happens_also_to_guesses_that_are_not_used() -> None:
    odds = Odds(0.9)
    for _ in range(40):
        odds.learn(False)
    assert odds.value < 0.05
    guesses = Guesses()
    guesses.make([1, 2, 3, 1, 2], 2)
    before = guesses.odds.value  # type: ignore[union-attr]
    guesses.learn([4])
    assert guesses.odds.value < before  # type: ignore[union-attr]


# --- what pays


def test_costs_are_those_measured_and_between_them_in_proportion() -> None:
    costs = Costs(0.25)
    assert costs(4) == 0
    costs.note(1, 0.010)
    assert costs(5) == pytest.approx(0.020)
    for _ in range(9):
        costs.note(5, 0.050)
    assert costs(5) == pytest.approx(0.050) and 0.010 < costs(3) < 0.050 and costs(9) > 0.050


def test_guesses_are_used_where_they_pay_and_not_where_they_do_not() -> None:
    cheap, dear = Lookahead(), Lookahead()
    for n in range(1, 9):
        cheap.costs.note(n, 0.010 + 0.001 * n)
        dear.costs.note(n, 0.010 * n)
    good, bad = [0.9**i for i in range(1, 8)], [0.05**i for i in range(1, 8)]
    assert cheap._best(1, good) == 7 and cheap._best(1, bad) == 0
    assert dear._best(1, good) == 0
    assert Lookahead()._best(1, good) == 0, "nothing was measured yet"
