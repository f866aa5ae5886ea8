"""The search: split paths, other feeds, ties, small faults, and what is said where nothing explains the values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from assay.engines.reference.weights import Weights
from assay.models import Model
from assay.verify.diagnosis.answer import text
from assay.verify.diagnosis.diagnose_dump import diagnose
from tests import planting
from tests.second_engine import Engine


def test_decode_kernels_are_told_from_prefill(path: Path, model: Model, weights: Weights, tmp_path: Path) -> None:
    """A norm without its weight in the decode steps only is a split path, with the mistake named beside it."""
    right, wrong = planting.second(path), planting.second(path, "norm-no-weight")
    parts = []
    for i, part in enumerate(right.parts):
        parts.append(dict(part) if i == 0 else {**part, "attn_norm-0": wrong.parts[i]["attn_norm-0"]})
    found = diagnose(model, planting.dump(replace(right, parts=tuple(parts)), "full", model, tmp_path), weights=weights)
    assert found.causes[0].fault == "path-split"
    assert "norm-no-weight" in found.causes[0].equivalent
    assert found.causes[0].node == "attn_norm-0"


@pytest.mark.parametrize(
    ("fault", "tokens", "rows"),
    [
        ("kv-refeed", [*planting.TOKENS[:6], planting.TOKENS[5], *planting.TOKENS[6:]], [*range(6), 7, 8]),
        ("gen-double-first", [*planting.TOKENS[:7], *planting.TOKENS[6:]], [*range(7), 8]),
        ("kv-stale-request", [*planting.TOKENS, *planting.TOKENS], list(range(8, 16))),
        ("bos-double", [1, *planting.TOKENS], list(range(1, 9))),
    ],
)
def test_other_feeds(
    path: Path, model: Model, weights: Weights, tmp_path: Path, fault: str, tokens: list[int], rows: list[int]
) -> None:
    trace = Engine(path).run(tokens, (len(tokens),))
    logits, start, parts = trace["result_output"][rows], 0, []
    for n in planting.STEPS:
        parts.append({"result_output": logits[start : start + n]})
        start += n
    case = planting.Case(fault, (fault,), tuple(parts))
    found = diagnose(model, planting.dump(case, "logits", model, tmp_path), weights=weights)
    assert planting.grade(found, (fault,)) == "right", found.to_dict()


def test_ties_name_what_would_split_them(path: Path, model: Model, weights: Weights, tmp_path: Path) -> None:
    """Gate and up exchanged, or SiLU on the wrong one: the same layer outputs; ffn_up or ffn_gate tells."""
    case = planting.second(path, "ffn-gate-up-weights")
    found = diagnose(model, planting.dump(case, "layers", model, tmp_path), weights=weights)
    assert {"ffn-gate-up-weights", "ffn-silu-on-up"} == {found.causes[0].fault, *found.causes[0].equivalent}
    assert found.causes[0].confidence <= 0.5
    assert "ffn_up-0" in found.next_observation or "ffn_gate-0" in found.next_observation


def test_unexplained_says_what_can_be_said(path: Path, model: Model, weights: Weights, tmp_path: Path) -> None:
    case = planting.second(path, "x-act-shifted")
    found = diagnose(model, planting.dump(case, "full", model, tmp_path), weights=weights)
    assert found.verdict == "unexplained" and not found.causes
    assert "another order" in found.relations[0].text
    assert "ffn_swiglu-0" in text(found, model)


@pytest.mark.slow
def test_unexplained_layers_say_what_to_dump(path: Path, model: Model, weights: Weights, tmp_path: Path) -> None:
    case = planting.second(path, "x-act-shifted")
    found = diagnose(model, planting.dump(case, "layers", model, tmp_path), weights=weights)
    assert found.verdict == "unexplained" and found.next_observation.startswith("dump ")


def test_small_faults_are_not_excused(path: Path, model: Model, weights: Weights, tmp_path: Path) -> None:
    """eps 1e-6 for 1e-5 is within the noise of coarse arithmetic, but explains everything to the last bit."""
    case = planting.second(path, "eps-value")
    found = diagnose(model, planting.dump(case, "layers", model, tmp_path), weights=weights)
    assert found.causes[0].fault == "eps-value" and "1e-06" in found.causes[0].how
