"""The noise floor is computed once for a model and its tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.models import Model
from assay.verify.dumps.observation import Dump
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.noise import cache_path, load_levels
from assay.verify.judge.run_inputs import run_inputs
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS


@pytest.fixture(autouse=True)
def empty_cache(own_cache: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that no other test writes to."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))


def test_noise_is_remembered_per_model_and_tokens(model: Model, truth: Dump) -> None:
    judge(model, truth)
    levels = load_levels(cache_path(run_inputs(model, TOKENS, range(6))), model)
    assert levels is not None and set(levels) == {n.name for n in model.graph}
    assert levels["l_out-1"].rms.shape == (len(ARITHMETICS), 6)
    by_name = {a.name: levels["l_out-1"].rms[i].mean() for i, a in enumerate(ARITHMETICS)}
    assert by_name["f32"] < by_name["f16 KV"] < by_name["f16"] < by_name["bf16"]
    assert load_levels(cache_path(run_inputs(model, TOKENS[:-1], range(5))), model) is None


def test_damaged_cache_is_computed_anew(model: Model, truth: Dump) -> None:
    path = cache_path(run_inputs(model, TOKENS, range(6)))
    judge(model, truth)
    path.write_bytes(b"\x93NUMPY damaged")
    assert judge(model, truth).verdict == "same"


def test_kept_noise_is_the_noise_that_is_computed(model: Model, truth: Dump) -> None:
    judge(model, truth)
    kept, computed = judge(model, truth), judge(model, truth, cache=False)
    for a, b in zip(kept.nodes, computed.nodes, strict=True):
        assert np.array_equal(a.evidence.carried, b.evidence.carried) and a.verdict == b.verdict
