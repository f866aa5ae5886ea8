"""llama.cpp as a witness: every stage leaves the same candidates with the same logits. Needs llama-cpp-python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from assay.runtime import sampler
from assay.runtime.sampler import Candidates, SamplerParams

llama = pytest.importorskip("llama_cpp")

OFF = SamplerParams(temp=1.0, top_k=0, top_p=1.0, min_p=0.0)
ROWS = [np.random.default_rng(seed).normal(0, 3, 200).astype(np.float32) for seed in range(20)]


# Some versions of llama.cpp take one more size in the constructors of the stages with a memory: `sized`.


def witness(make: Callable[[], Any], logits: np.ndarray, history: list[int] | None = None) -> dict[int, float]:
    """Ids and logits that llama.cpp's stage leaves, those it set to -inf left out."""
    data = (llama.llama_token_data * len(logits))()
    for i, value in enumerate(logits):
        data[i].id, data[i].logit, data[i].p = i, float(value), 0.0
    array = llama.llama_token_data_array(data=data, size=len(logits), selected=-1, sorted=False)
    stage = make()
    for token in history or []:
        llama.llama_sampler_accept(stage, token)
    llama.llama_sampler_apply(stage, ctypes.byref(array))
    llama.llama_sampler_free(stage)
    left = {array.data[i].id: array.data[i].logit for i in range(array.size)}
    return {token: value for token, value in left.items() if value > -np.inf}


def ours(stage: sampler.Filter, logits: np.ndarray, params: SamplerParams) -> dict[int, float]:
    c = stage(Candidates(np.arange(len(logits)), logits.astype(np.float64)), params, np.random.default_rng(0))
    return dict(zip(c.ids.tolist(), c.logits.tolist(), strict=True))


FILTERS: list[tuple[sampler.Filter, SamplerParams, Callable[[], Any]]] = [
    (sampler.top_k, replace(OFF, top_k=7), lambda: llama.llama_sampler_init_top_k(7)),
    (sampler.top_p, replace(OFF, top_p=0.6), lambda: llama.llama_sampler_init_top_p(0.6, 0)),
    (sampler.top_p, replace(OFF, top_p=0.99), lambda: llama.llama_sampler_init_top_p(0.99, 0)),
    (sampler.min_p, replace(OFF, min_p=0.05), lambda: llama.llama_sampler_init_min_p(0.05, 0)),
    (sampler.typical, replace(OFF, typical=0.5), lambda: llama.llama_sampler_init_typical(0.5, 0)),
    (sampler.top_n_sigma, replace(OFF, top_n_sigma=1.5), lambda: llama.llama_sampler_init_top_n_sigma(1.5)),
    (
        sampler.xtc,
        replace(OFF, xtc_probability=1.0, xtc_threshold=0.02),
        lambda: llama.llama_sampler_init_xtc(1.0, 0.02, 0, 1),
    ),
]


@pytest.mark.parametrize(("stage", "params", "make"), FILTERS, ids=[f[0].__name__ for f in FILTERS])
def test_filters_agree(stage: sampler.Filter, params: SamplerParams, make: Callable[[], Any]) -> None:
    for row in ROWS:
        assert ours(stage, row, params) == witness(make, row)


def test_penalties_agree() -> None:
    params = replace(OFF, repeat_last_n=20, repeat_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.1)

    def make() -> Any:
        init = llama.llama_sampler_init_penalties
        sized = (200,) if len(init.argtypes) == 5 else ()
        return init(*sized, 20, 1.3, 0.2, 0.1)

    for seed, row in enumerate(ROWS):
        history = np.random.default_rng(seed).integers(0, 30, 50).tolist()
        got = sampler.penalties(row.astype(np.float64), history, params)
        expected = witness(make, row, history)
        assert got == pytest.approx([expected[i] for i in range(len(row))], abs=1e-5)


@pytest.mark.parametrize("allowed", [1, 2, 4])
def test_dry_agrees(allowed: int) -> None:
    params = replace(OFF, dry_multiplier=0.8, dry_base=1.75, dry_allowed_length=allowed, dry_penalty_last_n=60)

    def make() -> Any:
        init = llama.llama_sampler_init_dry
        sized = () if len(init.argtypes) == 7 else (4096,)
        return init(None, *sized, 0.8, 1.75, allowed, 60, None, 0)

    penalised = 0
    for seed, row in enumerate(ROWS):
        history = np.random.default_rng(seed).integers(0, 3, 90).tolist()
        got = sampler.dry(row.astype(np.float64), history, params)
        expected = witness(make, row, history)
        assert got == pytest.approx([expected[i] for i in range(len(row))], rel=1e-6, abs=1e-5)
        penalised += int((got < row).any())
    assert penalised  # the histories do repeat themselves
