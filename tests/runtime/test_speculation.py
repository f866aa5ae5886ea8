"""Speculation: drafts change how many tokens a step computes, and no bit of the result."""

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
from assay.runtime.ngram_draft import AcceptanceRate, NgramDraft
from assay.runtime.opening import Opened, OpenOptions, open_model
from assay.runtime.params import GREEDY, SamplerParams
from assay.runtime.speculation import Speculator, StepCosts
from tests import tiny

PROMPT = [300, 301, 302, 303, 304, 305] * 4 + [290, 300, 301]


class Eager(Speculator):
    """Verifies every drafted token, also where that is slower."""

    def _best_size(self, base: int, chances: list[float]) -> int:
        return len(chances)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    path = tiny.make(tmp_path_factory.mktemp("ahead") / "tiny.gguf", n_ctx=512)
    return open_model(path, OpenOptions(engine="cpu", cache_size=2048, threads=2))


class Counting(Eager):
    accepted = 0

    def learn(self, sequence: Any, drawn: list[int]) -> None:
        self.accepted += len(drawn) - 1
        super().learn(sequence, drawn)


def results(opened: Opened, speculator: Speculator | None, jobs: list[dict[str, Any]]) -> list[Result]:
    engine = opened.engine()
    generator = Generator(engine, opened.tokenizer, n_ctx=opened.n_ctx, running=4, speculator=speculator)
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


def test_every_bit_is_the_same_with_drafts(opened: Opened) -> None:
    work = jobs(opened)
    plain = [told(result) for result in results(opened, None, work)]
    counting = Counting()
    assert [told(result) for result in results(opened, counting, work)] == plain
    assert counting.accepted > 100, "too few drafts are accepted to test them"
    assert [told(result) for result in results(opened, Speculator(), work)] == plain
    alone = [told(results(opened, Eager(), [job])[0]) for job in work]
    assert alone == plain


def test_a_draft_model_changes_nothing_but_speed(opened: Opened, tmp_path: Path) -> None:
    """The model itself as its draft is always right; another of its kind seldom."""
    work = jobs(opened)[:5]
    plain = [told(result) for result in results(opened, None, work)]
    other = tiny.make(tmp_path / "other.gguf", n_ctx=512, n_layer=1, seed=5)
    for path in (opened.file.path, other):
        asked = open_model(opened.file.path, replace(opened.options, draft=str(path)))
        speculator = asked.speculator(asked.engine())
        assert speculator and speculator.drafter
        speculator._draft_seconds = 1e-9  # it seems free, so every step asks it
        assert [told(result) for result in results(opened, speculator, work)] == plain
        speculator.drafter.close()


def test_a_draft_of_another_vocabulary_is_refused(opened: Opened, tmp_path: Path) -> None:
    renamed = [*tiny.TOKENS[:-1], "▁another"]
    other = tiny.make(tmp_path / "other.gguf", metadata={"tokenizer.ggml.tokens": renamed})
    with pytest.raises(AssayError, match=r"--draft .*another vocabulary .*same family"):
        open_model(opened.file.path, replace(opened.options, draft=str(other))).speculator(opened.engine())


def test_a_full_cache_has_no_room_for_drafts(opened: Opened) -> None:
    """Drafts take no page that a sequence needs, and preempted sequences come back the same."""
    work = [{"prompt_ids": [*PROMPT, 300 + i], "params": GREEDY, "max_tokens": 60} for i in range(4)]
    plain = [told(result) for result in results(opened, None, work)]
    tight = open_model(opened.file.path, replace(opened.options, ctx_size=96, cache_size=160))
    assert [told(result) for result in results(tight, Eager(), work)] == plain


# --- n-gram drafts


def test_the_longest_match_is_taken_and_goes_round() -> None:
    ngrams = NgramDraft()
    assert ngrams.propose([7], 4) == [] and ngrams.rate is None
    assert ngrams.propose([1, 2, 3, 9, 2, 3, 5, 1, 2, 3], 3) == [9, 2, 3]
    assert ngrams.propose([1, 2, 3, 9, 2, 3, 5, 1, 2, 3, 4, 4, 4], 5) == [4] * 5


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 20))
def test_a_draft_continues_an_earlier_place(ids: list[int], most: int) -> None:
    """Grown token by token or given whole, the draft is the same, and it follows the last two tokens somewhere."""
    whole, grown = NgramDraft(), NgramDraft()
    for n in range(1, len(ids)):
        grown.propose(ids[:n], 1)
    found = whole.propose(ids, most)
    assert found == grown.propose(ids, most) and len(found) in (0, most)
    if found:
        pairs = {(*ids[i - 2 : i], ids[i]) for i in range(2, len(ids))}
        assert (*ids[-2:], found[0]) in pairs


def test_acceptance_rates_also_learn_from_drafts_that_were_not_verified() -> None:
    rate = AcceptanceRate(0.9)
    for _ in range(40):
        rate.update(False)
    assert rate.value < 0.05
    ngrams = NgramDraft()
    ngrams.propose([1, 2, 3, 1, 2], 2)
    before = ngrams.rate.value  # type: ignore[union-attr]
    ngrams.learn([4])
    assert ngrams.rate.value < before  # type: ignore[union-attr]


# --- what pays


def test_costs_are_those_measured_and_between_them_in_proportion() -> None:
    costs = StepCosts(0.25)
    assert costs(4) == 0
    costs.record(1, 0.010)
    assert costs(5) == pytest.approx(0.020)
    for _ in range(9):
        costs.record(5, 0.050)
    assert costs(5) == pytest.approx(0.050) and 0.010 < costs(3) < 0.050 and costs(9) > 0.050


def test_drafts_are_verified_only_where_they_pay() -> None:
    cheap, dear = Speculator(), Speculator()
    for n in range(1, 9):
        cheap.costs.record(n, 0.010 + 0.001 * n)
        dear.costs.record(n, 0.010 * n)
    good, bad = [0.9**i for i in range(1, 8)], [0.05**i for i in range(1, 8)]
    assert cheap._best_size(1, good) == 7 and cheap._best_size(1, bad) == 0
    assert dear._best_size(1, good) == 0
    assert Speculator()._best_size(1, good) == 0, "nothing was measured yet"
