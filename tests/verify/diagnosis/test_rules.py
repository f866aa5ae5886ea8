"""Rules of rounding beside small faults: whose roundings they are, what may be said, and what stays open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis import answer
from assay.verify.diagnosis.diagnose import diagnose
from assay.verify.diagnosis.result import Diagnosis
from tests import planting, tiny
from tests.synthetic import make_kquant

STEPS = (22, 1, 1)
TOKENS = tuple(int(t) for t in np.random.default_rng(3).integers(3, 300, sum(STEPS)))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    build = tmp_path_factory.mktemp("rules")
    paths = {
        "window": tiny.make(build / "window.gguf", window=6, type="Q8_0"),
        "synthetic": make_kquant(build / "synthetic.gguf"),
    }
    return {name: load(open_file(path)) for name, path in paths.items()}


def found(model: Model, path: Path, style: str, *bugs: str, **options: object) -> Diagnosis:
    case = planting.second(model.file.path, *bugs, tokens=TOKENS, steps=STEPS, **options)
    return diagnose(model, planting.dump(case, style, model, path, TOKENS, STEPS))


@pytest.mark.parametrize(("bug", "style"), [("eps-place", "full"), ("eps-value", "full"), ("eps-place", "layers")])
def test_what_float32_may_do_is_asked_what_it_says(
    models: dict[str, Model], tmp_path: Path, bug: str, style: str
) -> None:
    """Every node is within float32's allowance, and yet the fault predicts what is there."""
    assert found(models["window"], tmp_path, style, bug).causes[0].fault == bug


@pytest.mark.parametrize("bug", ["softmax-half", "kv-rounded-twice/rope"])
def test_a_fault_that_looks_like_another_rule(models: dict[str, Model], tmp_path: Path, bug: str) -> None:
    """Halves in attention, and all that follows from them, are nearer to a half cache; before them nothing is."""
    named = found(models["window"], tmp_path, "last", bug, arithmetic="q8")
    assert named.causes and named.causes[0].fault == planting.fault_id(bug), named.to_dict()


@pytest.mark.slow
def test_a_parameter_is_solved_under_the_rule(models: dict[str, Model], tmp_path: Path) -> None:
    named = found(models["synthetic"], tmp_path, "last", "rope-base/odd", arithmetic="q8")
    assert named.causes and named.causes[0].fault == "rope-base", named.to_dict()


def test_a_fault_before_the_first_rounding(models: dict[str, Model], tmp_path: Path) -> None:
    """Called wrong as float32, while a rule explains all but a fault as small as float32's noise."""
    named = found(models["window"], tmp_path, "last", "eps-place", arithmetic="q8")
    assert named.causes and named.causes[0].fault == "eps-place", named.to_dict()


def test_undecided_is_no_alarm_and_no_health() -> None:
    open_question = Diagnosis("undecided", None, (), (), "dump l_out-0 whole, for all tokens")
    assert open_question
    said = answer.text(open_question)
    assert said.startswith("undecided:") and "healthy" not in said and "dump l_out-0 whole" in said
