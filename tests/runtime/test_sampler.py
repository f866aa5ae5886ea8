"""Each stage of the sampler against cases worked out by hand, then the laws that hold for all inputs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.runtime import sampler
from assay.runtime.draws import Draws
from assay.runtime.sampler import GREEDY, Candidates, SamplerParams, dry_breakers, sample

OFF = SamplerParams(temp=1.0, top_k=0, top_p=1.0, min_p=0.0)
RNG = np.random.default_rng(0)


def logits_of(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities))


def kept(stage: sampler.Filter, logits: np.ndarray, params: SamplerParams) -> list[int]:
    out = stage(Candidates(np.arange(len(logits)), np.asarray(logits, float)), params, np.random.default_rng(1))
    return sorted(out.ids.tolist())


def drawn(logits: np.ndarray, params: SamplerParams, n: int = 4000) -> dict[int, float]:
    counts = Counter(sample(logits, [], params, Draws(7, i)).id for i in range(n))
    return {token: count / n for token, count in counts.items()}


# --- the whole chain


def test_temperature_zero_is_argmax_and_ties_go_to_the_lower_id() -> None:
    assert sample([1.0, 3.0, 3.0, 2.0], [], GREEDY, RNG).id == 1
    assert sample([-5.0, -1.0, -2.0], [], GREEDY, RNG).id == 1
    both = replace(GREEDY, typical=0.9999, top_k=2)  # the filtered path breaks ties alike
    assert sample([1.0, 3.0, 3.0, 2.0], [], both, RNG).id == 1


def test_draws_follow_the_distribution() -> None:
    got = drawn(logits_of(0.5, 0.3, 0.2), OFF)
    assert got == pytest.approx({0: 0.5, 1: 0.3, 2: 0.2}, abs=0.03)


def test_temperature_is_applied_to_the_logits() -> None:
    # temp 0.5 squares the probabilities: 0.64/0.68 and 0.04/0.68
    assert drawn(logits_of(0.8, 0.2), replace(OFF, temp=0.5))[0] == pytest.approx(0.941, abs=0.02)


def test_temperature_comes_after_the_filters() -> None:
    # min-p judges p = (0.9, 0.1): 0.1 < 0.2 * 0.9. Had temp 10 come first, both would have passed.
    assert set(drawn(logits_of(0.9, 0.1), replace(OFF, temp=10.0, min_p=0.2), 300)) == {0}


def test_top_p_sees_what_top_k_renormalised() -> None:
    # After top-k 2 the mass is (4/7, 3/7): 0.57 reaches 0.5 alone. Of the whole, 0.4 would not.
    assert set(drawn(logits_of(0.4, 0.3, 0.2, 0.1), replace(OFF, top_k=2, top_p=0.5), 300)) == {0}


def test_one_draw_per_step() -> None:
    """The first number of the position, and no other, decides."""
    pair = [sample(np.zeros(1000), [], OFF, Draws(3, i)).id for i in range(2)]
    assert pair == [math.floor(Draws(3, i).random() * 1000) for i in range(2)]
    assert pair[0] != pair[1]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_logits_are_an_error_and_never_token_zero(bad: float) -> None:
    for params in (GREEDY, OFF, SamplerParams()):
        with pytest.raises(AssayError, match=r"1 of 3 .* id 1"):
            sample([0.0, bad, 0.0], [], params, RNG)
    with pytest.raises(AssayError, match="every one is -inf"):
        sample([-math.inf] * 3, [], OFF, RNG)


def test_forbidden_tokens_are_never_drawn() -> None:
    assert set(drawn(np.array([-math.inf, 0.0, -math.inf, 0.0]), OFF, 300)) == {1, 3}


def test_logprobs_are_of_the_model_not_of_the_chain() -> None:
    choice = sample(logits_of(0.5, 0.3, 0.2), [0], replace(OFF, top_k=1, repeat_penalty=9.0), RNG, logprobs=2)
    assert choice.logprob == pytest.approx(math.log((0.5, 0.3, 0.2)[choice.id]))
    assert [r.id for r in choice.top] == [0, 1]
    assert choice.top[1].logprob == pytest.approx(math.log(0.3))
    assert sample([0.0, 1.0], [], OFF, RNG).logprob is None


# --- logit bias and penalties


def test_logit_bias() -> None:
    assert sample([0.0, 1.0], [], replace(GREEDY, logit_bias=((0, 1.5),)), RNG).id == 0
    assert sample([0.0, 1.0], [], replace(GREEDY, logit_bias=((1, -math.inf),)), RNG).id == 0
    with pytest.raises(AssayError, match="token 2 is not in the vocabulary .expected 0 to 1"):
        sample([0.0, 1.0], [], replace(GREEDY, logit_bias=((2, 1.0),)), RNG)
    with pytest.raises(AssayError, match="forbids every token"):
        sample([0.0], [], replace(GREEDY, logit_bias=((0, -math.inf),)), RNG)


def test_repetition_penalty_divides_above_zero_and_multiplies_below() -> None:
    """Dividing a negative logit would reward the repetition."""
    got = sampler.penalties(np.array([2.0, -2.0, 0.0, 3.0]), [0, 1, 2], replace(OFF, repeat_penalty=2.0))
    assert got.tolist() == [1.0, -4.0, 0.0, 3.0]


def test_frequency_counts_and_presence_does_not() -> None:
    params = replace(OFF, frequency_penalty=0.5, presence_penalty=0.25)
    assert sampler.penalties(np.zeros(3), [0, 0, 0, 1], params).tolist() == [-1.75, -0.75, 0.0]


def test_penalties_look_back_repeat_last_n() -> None:
    for last_n, expected in ((2, [0.0, -1.0, -1.0]), (-1, [-1.0, -1.0, -1.0]), (0, [0.0, 0.0, 0.0])):
        params = replace(OFF, presence_penalty=1.0, repeat_last_n=last_n)
        assert sampler.penalties(np.zeros(3), [0, 1, 2], params).tolist() == expected


def test_penalties_leave_the_callers_logits_alone() -> None:
    logits = np.array([2.0, 1.0])
    sample(logits, [0], replace(GREEDY, repeat_penalty=2.0, dry_multiplier=1.0, logit_bias=((0, 1.0),)), RNG)
    assert logits.tolist() == [2.0, 1.0]


# --- DRY. Tokens: a=1 b=2 c=3 y=4


def test_dry_penalises_the_continuation_of_the_longest_repetition() -> None:
    history = [1, 2, 3, 3, 2, 3, 4, 1, 2, 3]  # a b c c b c y a b c
    params = replace(OFF, dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=2)
    # `a b c` came before c: 2^(3-2); `b c` before y: 2^(2-2); `c` before b is too short.
    assert sampler.dry(np.zeros(5), history, params).tolist() == [0.0, 0.0, 0.0, -2.0, -1.0]


def test_dry_does_not_reach_past_a_breaker_and_spares_breakers() -> None:
    history = [1, 2, 3, 9, 1, 2, 3]
    params = replace(OFF, dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=2)
    assert sampler.dry(np.zeros(10), history, params)[9] == -2.0
    # With 2 as a breaker only `3` repeats: too short.
    assert not sampler.dry(np.zeros(10), history, replace(params, dry_breakers={2: ((),)})).any()
    # 9 continues the repetition, yet is a breaker itself.
    assert not sampler.dry(np.zeros(10), history, replace(params, dry_breakers={9: ((),)})).any()
    # A breaker of two tokens counts only where both stand.
    assert sampler.dry(np.zeros(10), history, replace(params, dry_breakers={1: ((3,),)}))[9] == -2.0
    assert not sampler.dry(np.zeros(10), history, replace(params, dry_breakers={1: ((2,),)})).any()


def test_dry_is_clamped_where_a_float32_would_overflow() -> None:
    params = replace(OFF, dry_multiplier=1.0, dry_base=10.0, dry_allowed_length=1)
    got = sampler.dry(np.zeros(2), [1] * 200, params)
    assert got[1] == pytest.approx(-(10.0**38))


def test_dry_looks_back_as_far_as_told() -> None:
    params = replace(OFF, dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=2)
    history = [1, 2, 3, 9, 1, 2]
    assert sampler.dry(np.zeros(10), history, params)[3] == -1.0
    assert not sampler.dry(np.zeros(10), history, replace(params, dry_penalty_last_n=4)).any()
    assert not sampler.dry(np.zeros(10), history, replace(params, dry_penalty_last_n=0)).any()


def test_dry_breakers_find_every_spelling() -> None:
    pieces = [b"x", b"\n", b"a\n", b"\nb", b"ab", b"a", b"b"]
    encode = {"b": [6], "": []}.__getitem__
    assert dry_breakers(pieces, encode, ["\n"]) == {1: ((),), 2: ((),), 3: ((),)}
    assert dry_breakers(pieces, encode, ["ab"]) == {4: ((),), 5: ((6,),)}
    assert dry_breakers(pieces, encode, [""]) == {}


# --- filters


def test_top_k_keeps_the_largest_wherever_they_stand() -> None:
    assert kept(sampler.top_k, np.array([1.0, 5.0, 3.0, 4.0]), replace(OFF, top_k=2)) == [1, 3]
    assert kept(sampler.top_k, np.array([2.0, 2.0, 2.0]), replace(OFF, top_k=2)) == [0, 1]
    assert kept(sampler.top_k, np.zeros(3), OFF) == [0, 1, 2]


@pytest.mark.parametrize("n", [1, 60, 1000, 30_000])
@pytest.mark.parametrize("decimals", [0, 3])
def test_the_largest_by_sorting_all(n: int, decimals: int) -> None:
    """With few decimals there are many ties; with many values the search is by blocks."""
    row = np.round(np.random.default_rng(n).normal(0, 2, n), decimals)
    for k in (1, 2, 40, 400):
        got = Candidates(np.arange(n), row).largest(k)
        assert got.ids.tolist() == np.lexsort((np.arange(n), -row))[:k].tolist()
        assert got.logits.tolist() == row[got.ids].tolist()


def test_top_p_includes_the_token_that_crosses_and_sorts_first() -> None:
    unsorted = logits_of(0.1, 0.5, 0.15, 0.25)
    assert kept(sampler.top_p, unsorted, replace(OFF, top_p=0.7)) == [1, 3]  # 0.5 < 0.7 <= 0.75
    assert kept(sampler.top_p, unsorted, replace(OFF, top_p=0.76)) == [1, 2, 3]
    assert kept(sampler.top_p, unsorted, replace(OFF, top_p=0.0)) == [1]
    assert kept(sampler.top_p, unsorted, OFF) == [0, 1, 2, 3]


def test_top_p_needs_no_full_sort_and_gives_the_same() -> None:
    """More than the 256 that are sorted first: the answer must not depend on that."""
    flat = np.linspace(0.0, 0.1, 5000)
    p = np.exp(flat) / np.exp(flat).sum()
    expected = int(np.searchsorted(np.cumsum(np.sort(p)[::-1]), 0.9)) + 1
    assert len(kept(sampler.top_p, flat, replace(OFF, top_p=0.9))) == expected


def test_min_p_is_relative_to_the_best() -> None:
    logits = logits_of(0.6, 0.25, 0.1, 0.05)
    assert kept(sampler.min_p, logits, replace(OFF, min_p=0.2)) == [0, 1]  # 0.12 divides 0.25 from 0.1
    assert kept(sampler.min_p, logits, OFF) == [0, 1, 2, 3]


def test_typical_keeps_what_is_near_the_entropy() -> None:
    # H = 1.0297; |-ln p - H| = 0.336, 0.174, 0.580, so 0.3 comes first, then 0.5.
    logits = logits_of(0.5, 0.3, 0.2)
    assert kept(sampler.typical, logits, replace(OFF, typical=0.2)) == [1]
    assert kept(sampler.typical, logits, replace(OFF, typical=0.4)) == [0, 1]
    assert kept(sampler.typical, logits, replace(OFF, typical=0.9)) == [0, 1, 2]


def test_top_n_sigma() -> None:
    logits = np.array([0.0, 0.0, 0.0, 4.0])  # standard deviation sqrt(3)
    assert kept(sampler.top_n_sigma, logits, replace(OFF, top_n_sigma=1.0)) == [3]
    assert kept(sampler.top_n_sigma, logits, replace(OFF, top_n_sigma=3.0)) == [0, 1, 2, 3]


def test_xtc_drops_the_likely_but_the_last_of_them() -> None:
    logits = logits_of(0.4, 0.3, 0.2, 0.1)
    always = replace(OFF, xtc_probability=1.0)
    assert kept(sampler.xtc, logits, replace(always, xtc_threshold=0.15)) == [2, 3]
    assert kept(sampler.xtc, logits, replace(always, xtc_threshold=0.35)) == [0, 1, 2, 3]
    assert kept(sampler.xtc, logits, replace(always, xtc_threshold=0.51)) == [0, 1, 2, 3]
    assert kept(sampler.xtc, logits, OFF) == [0, 1, 2, 3]


# --- parameters


@pytest.mark.parametrize(
    "wrong",
    [
        {"temp": math.nan},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"typical": 2.0},
        {"repeat_penalty": 0.0},
        {"repeat_last_n": -2},
        {"xtc_probability": 2.0},
        {"seed": -1},
        {"logit_bias": ((0, math.inf),)},
        {"logit_bias": ((0, math.nan),)},
    ],
    ids=str,
)
def test_parameters_out_of_range_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(AssayError, match=next(iter(wrong))):
        SamplerParams(**wrong)  # type: ignore[arg-type]


# --- laws

finite = st.floats(-50, 50, width=32)
rows = st.lists(finite, min_size=1, max_size=400).map(np.array)
unit = st.floats(0, 1)
params_ = st.builds(
    SamplerParams,
    temp=st.sampled_from([0.0, 0.01, 0.7, 1.0, 5.0]),
    top_k=st.integers(-1, 60),
    top_p=unit,
    min_p=unit,
    top_n_sigma=st.floats(-1, 4),
    seed=st.integers(0, 2**32),
    repeat_penalty=st.floats(0.5, 2),
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
    dry_multiplier=st.floats(0, 2),
)


@given(rows, params_)
def test_no_filter_removes_the_best_token(row: np.ndarray, params: SamplerParams) -> None:
    for stage in (sampler.top_n_sigma, sampler.top_k, sampler.top_p, sampler.min_p):
        assert int(row.argmax()) in kept(stage, row, params)


@given(rows, params_, unit, unit, unit)
@settings(max_examples=200)
def test_a_seed_repeats_and_a_token_always_comes(
    row: np.ndarray, params: SamplerParams, typical: float, probability: float, threshold: float
) -> None:
    params = replace(params, typical=typical, xtc_probability=probability, xtc_threshold=threshold)
    history = list(range(min(len(row), 9))) * 2
    runs = []
    for _ in range(2):
        runs.append([sample(row, history, params, Draws(params.seed or 0, i)).id for i in range(3)])
    assert runs[0] == runs[1]
    assert all(0 <= token < len(row) for token in runs[0])


@given(rows, params_)
def test_greedy_ignores_filters_and_seed(row: np.ndarray, params: SamplerParams) -> None:
    quiet = replace(
        params, temp=0.0, repeat_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0, dry_multiplier=0.0
    )
    assert sample(row, [0, 0, 0], quiet, Draws(0, 0)).id == int(row.argmax())


@given(rows, st.integers(0, 30))
def test_logprobs_are_normalised_and_ordered(row: np.ndarray, n: int) -> None:
    choice = sample(row, [], GREEDY, RNG, logprobs=n)
    expected = row - row.max() - math.log(np.exp(row - row.max()).sum())
    assert len(choice.top) == min(n, len(row))
    assert [r.logprob for r in choice.top] == pytest.approx(sorted(expected, reverse=True)[:n])
    assert choice.logprob == pytest.approx(expected.max())
    if n:
        assert choice.top[0].id == choice.id


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 40))
def test_tail_repeats_by_definition(tokens: list[int], limit: int) -> None:
    got = sampler._tail_repeats(np.array(tokens), limit)
    for place in range(len(tokens) - 1):
        longest = max(n for n in range(place + 2) if tokens[place + 1 - n : place + 1] == tokens[len(tokens) - n :][:n])
        assert got[place] == min(longest, limit)
    assert got[-1] == 0
