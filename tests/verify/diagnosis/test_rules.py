"""Rounding rules beside small faults: which rule is the engine's, what may be said, and what stays open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis import answer
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.diagnosis.fault_trials import Hypothesis
from assay.verify.diagnosis.hypothesis_score import HypothesisScore
from assay.verify.diagnosis.result import Diagnosis
from assay.verify.dumps.load import load_dump
from assay.verify.faults import FAULTS
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.rounding import roundings
from tests import planting, tiny
from tests.synthetic import make_kquant

STEPS = (22, 1, 1)
Q8 = next(r for r in roundings(ARITHMETICS[-1]) if r.q8)
TOKENS = tuple(int(t) for t in np.random.default_rng(3).integers(3, 300, sum(STEPS)))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    build = tmp_path_factory.mktemp("rules")
    paths = {
        "window": tiny.make(build / "window.gguf", window=6, type="Q8_0"),
        "wide": tiny.make(build / "wide.gguf", window=6, type="Q8_0", n_embd=128),
        "synthetic": make_kquant(build / "synthetic.gguf"),
    }
    return {name: load(open_file(path)) for name, path in paths.items()}


def found(model: Model, path: Path, style: str, *bugs: str, **options: object) -> Diagnosis:
    case = planting.second(model.file.path, *bugs, tokens=TOKENS, steps=STEPS, **options)
    dump = planting.dump(case, style, model, path, TOKENS, STEPS)
    return diagnose(model, dump, weights=planting.weights_of(model.file))


@pytest.mark.parametrize(("bug", "style"), [("eps-place", "full"), ("eps-value", "full"), ("eps-place", "layers")])
def test_what_float32_may_do_is_asked_what_it_says(
    models: dict[str, Model], tmp_path: Path, bug: str, style: str
) -> None:
    """Every node is within float32's noise, and yet the fault predicts the deviations."""
    assert found(models["window"], tmp_path, style, bug).causes[0].fault == bug


@pytest.mark.parametrize("bug", ["softmax-half", "kv-rounded-twice/rope"])
def test_a_fault_that_looks_like_another_rule(models: dict[str, Model], tmp_path: Path, bug: str) -> None:
    """Half precision in attention looks like a half-precision cache in all later nodes, but not in earlier ones."""
    named = found(models["window"], tmp_path, "last", bug, arithmetic="q8")
    assert named.causes and named.causes[0].fault == planting.fault_id(bug), named.to_dict()


@pytest.mark.parametrize("kind", ["f16", "kv16", "kvq8"])
def test_a_value_on_an_edge_is_no_fault(models: dict[str, Model], kind: str) -> None:
    """Runs of a right engine (the second one, x86) in which one rounding fell otherwise than in the definition. A fault
    that turns the same one, and moves next to nothing itself, accounts for everything that follows."""
    dump = load_dump(Path(__file__).parents[2] / "data" / "edges" / f"{kind}.jsonl", models["wide"])
    said = diagnose(models["wide"], dump, weights=planting.weights_of(models["wide"].file))
    assert said.verdict in ("healthy", "undecided"), said.to_dict()


@pytest.mark.slow
def test_a_parameter_is_solved_under_the_rule(models: dict[str, Model], tmp_path: Path) -> None:
    named = found(models["synthetic"], tmp_path, "last", "rope-base/odd", arithmetic="q8")
    assert named.causes and named.causes[0].fault == "rope-base", named.to_dict()


def test_a_fault_before_the_first_rounding(models: dict[str, Model], tmp_path: Path) -> None:
    """Called wrong as float32, while a rule explains all but a fault as small as float32's noise."""
    named = found(models["window"], tmp_path, "last", "eps-place", arithmetic="q8")
    assert named.causes and named.causes[0].fault == "eps-place", named.to_dict()


@pytest.mark.parametrize("arithmetic", ["f32", "q8"])
def test_a_file_that_ends_early(tmp_path: Path, arithmetic: str) -> None:
    """Half of the last matrix but one is zero; with Q8 operands the noise of the router's choices would cover it."""
    types = tiny.with_experts("Q8_0")
    model = load(open_file(tiny.make(tmp_path / "experts.gguf", n_expert=4, type=types, n_layer=3)))
    named = found(model, tmp_path, "last", "weight-torn", arithmetic=arithmetic)
    assert planting.grade(named, ["weight-torn"]) in ("right", "tied"), named.to_dict()


def test_the_luck_of_a_rule_is_no_fault() -> None:
    """Under a rounding rule one row may get another expert and lose its deviation; the other rows keep theirs."""
    hypothesis = Hypothesis("eps-value", FAULTS["eps-value"].variants[0], 1e-6)
    lucky = HypothesisScore(hypothesis, 112.0, 0.71, 0.86, 1.03e4, 8.8e3, 6.1e3, 7.0e3, 17, ("result_output",), Q8)
    assert not lucky.is_significant(275)
    assert replace(lucky, after=10.0, left=5.0).is_significant(275)
    quiet = replace(lucky, before=1.5, usual=1.5, after=0.6, left=0.6)
    assert not quiet.is_significant(275) and replace(quiet, after=0.1, left=0.1).is_significant(275)


def test_a_whole_parameter_beside_a_rule(models: dict[str, Model], tmp_path: Path) -> None:
    named = found(models["window"], tmp_path, "layers", "pos-clamped", arithmetic="kv16")
    assert named.causes and named.causes[0].fault == "pos-clamped", named.to_dict()


def test_undecided_is_no_alarm_and_no_health() -> None:
    open_question = Diagnosis("undecided", None, (), (), "dump l_out-0 whole, for all tokens")
    assert open_question
    said = answer.text(open_question)
    assert said.startswith("undecided:") and "healthy" not in said and "dump l_out-0 whole" in said


def test_a_kernel_that_shows_no_inside_leaves_nothing_open(models: dict[str, Model], tmp_path: Path) -> None:
    """Flash attention has no scores to dump, so the dump is complete without them."""
    assert found(models["wide"], tmp_path, "full", arithmetic="flash+kv16").verdict == "healthy"


def test_values_too_large_to_be_squared_tell_nothing_of_a_rule(models: dict[str, Model], tmp_path: Path) -> None:
    assert found(models["synthetic"], tmp_path, "layers", "f16-as-bf16").causes[0].fault == "f16-as-bf16"
