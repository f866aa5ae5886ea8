"""Rounding rules: the values of an engine that follows one are predicted far below the noise of its arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.models import load
from assay.verify.dumps.observation import inputs_of
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.rounding import EXACT, hooks, roundings, weights_of
from tests import planting, tiny

TOKENS = (1, 270, 280, 17, 300, 281, 290, 33)


@pytest.mark.parametrize(
    ("arithmetic", "rule"),
    [
        ("kv16", "a half cache"),
        ("q8", "Q8 activations with half scales"),
        ("f16", "half precision"),
        ("w16", "weights in half precision"),
        ("w16+kv16", "weights in half precision and a half cache"),
        ("kvq8", "a cache of eight bits with half scales"),
        ("q8+kvq8", "Q8 activations and a cache of eight bits with half scales"),
    ],
)
def test_the_right_rule_leaves_least(tmp_path: Path, arithmetic: str, rule: str) -> None:
    model = load(open_file(tiny.make(tmp_path / "tiny.gguf", type="Q8_0", n_embd=128)))
    case = planting.second(model.file.path, tokens=TOKENS, steps=(8,), arithmetic=arithmetic)
    found, given, weights = case.parts[0]["l_out-0"], inputs_of(TOKENS, range(8)), Weights(model.file)
    left = {}
    for r in roundings(ARITHMETICS[-1]):
        rounded = weights_of(r, weights, model.graph)
        value = interpret(model.graph, rounded, given, ["l_out-0"], hooks=hooks(r, model.file))["l_out-0"]
        left[r.name] = float(np.median(np.sqrt(np.mean(np.square(found - value), axis=1))))
    assert min(left, key=left.__getitem__) == rule
    assert left[rule] < 0.05 * left[EXACT.name]


def test_no_rule_is_coarser_than_what_was_inferred() -> None:
    assert roundings(ARITHMETICS[0]) == [EXACT]
    assert {r.name for r in roundings(ARITHMETICS[2])} == {EXACT.name, "a half cache"}
    for a in ARITHMETICS:
        assert not (a.q8 or a.f16_weights) or any(r.half_cache and r.q8 == a.q8 for r in roundings(a)), a.name
