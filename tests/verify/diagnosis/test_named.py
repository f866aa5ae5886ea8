"""Every fault of the table is planted, in the reference and in a second engine, and must be named.

The fast tier plants a sample; the slow one plants everything. `make score` prints the whole table by dump style.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.engines.reference.weights import Weights
from assay.models import Model
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.faults import FAULTS
from tests import planting
from tests.verify.diagnosis.conftest import Diagnosed

SAMPLE = (
    "q4_k-scale-high", "q6_k-order", "w-transposed", "k-perm-nhead", "eps-value/odd", "norm-plus1-double", "rope-type",
    "rope-base", "pos-reset-decode", "scale-missing", "mask-missing-prefill", "softmax-unfilled", "gqa-modulo",
    "kv-pre-rope", "ffn-silu-on-up", "res-from-norm", "head-wrong-row", "kv-seqpos-units/heads", "kv-pre-rope/stored",
    "head-wrong-row/hidden",
)  # fmt: skip


@pytest.mark.parametrize("arithmetic", ["f32", "f16", "q8", "kv16", "w16", "w16+kv16"])
def test_healthy_engines_are_healthy(healthy: Diagnosed, arithmetic: str) -> None:
    found = healthy(arithmetic, "full")
    assert found["verdict"] == "healthy", found


@pytest.mark.slow
@pytest.mark.parametrize("arithmetic", ["f32", "f16", "q8", "kv16", "w16", "w16+kv16"])
def test_healthy_engines_are_healthy_on_little_evidence(healthy: Diagnosed, arithmetic: str) -> None:
    for style in ("last", "layers", "logits"):
        found = healthy(arithmetic, style)
        assert not found["alarm"] and not found["causes"], (style, found)


@pytest.mark.parametrize("options", [{"hf": True}, {"bugs": ("pos-global-offset",)}])
def test_conventions_are_no_faults(model: Model, weights: Weights, tmp_path: Path, options: dict[str, object]) -> None:
    bugs = options.pop("bugs", ())
    case = planting.second(model.file.path, *bugs, **options)  # type: ignore[misc]
    for style in planting.STYLES:
        found = diagnose(model, planting.dump(case, style, model, tmp_path / style), weights=weights)
        assert found.verdict == "healthy", (style, found.to_dict())


def _named(model: Model, weights: Weights, case: planting.Case, style: str, path: Path) -> str:
    return planting.grade(diagnose(model, planting.dump(case, style, model, path), weights=weights), case.faults)


@pytest.fixture(scope="module")
def grades() -> dict[str, str]:
    """Grades of the second engine's bugs from full dumps, so that the sample is diagnosed once."""
    return {}


def _graded(model: Model, weights: Weights, bug: str, path: Path, grades: dict[str, str]) -> str:
    """The grade of a bug of the second engine from a full dump, or `not finite`: such a run cannot be diagnosed."""
    if bug not in grades:
        case = planting.second(model.file.path, bug)
        grades[bug] = _named(model, weights, case, "full", path) if case.finite else "not finite"
    return grades[bug]


@pytest.mark.parametrize("bug", SAMPLE)
def test_second_engine_sample(model: Model, weights: Weights, tmp_path: Path, grades: dict[str, str], bug: str) -> None:
    assert _graded(model, weights, bug, tmp_path, grades) in ("right", "tied")


@pytest.mark.slow
def test_second_engine_all(model: Model, weights: Weights, tmp_path: Path, grades: dict[str, str]) -> None:
    for bug in (*planting.BUGS, *planting.LIMITED):
        _graded(model, weights, bug, tmp_path / bug.replace("/", "_"), grades)
    finite = {bug: g for bug, g in grades.items() if g != "not finite"}
    failed = [bug for bug, g in finite.items() if g not in ("right", "tied")]
    assert len(failed) <= 0.02 * len(finite), failed


@pytest.mark.slow
def test_reference_all(model: Model, weights: Weights, tmp_path: Path) -> None:
    """Every variant of every fault, planted in the reference, is named or is equivalent to the named one."""
    grades = {}
    for fault in FAULTS.values():
        for i, variant in enumerate(fault.variants):
            case = planting.reference(model, weights, fault.id, i)
            if case is None or not case.finite or fault.id == "pos-global-offset":
                continue
            path = tmp_path / f"{fault.id}-{i}"
            grades[f"{fault.id}: {variant.label}"] = _named(model, weights, case, "full", path)
    failed = {name: g for name, g in grades.items() if g not in ("right", "tied")}
    assert len(grades) > 150
    assert len(failed) <= 0.02 * len(grades), failed


@pytest.mark.slow
@pytest.mark.parametrize("style", ["last", "layers", "logits"])
def test_partial_evidence(model: Model, weights: Weights, tmp_path: Path, style: str) -> None:
    grades = {}
    for bug in SAMPLE:
        if style == "last" and bug.startswith("head-wrong-row"):  # the row at fault is not the one that was dumped
            continue
        grades[bug] = _named(
            model, weights, planting.second(model.file.path, bug), style, tmp_path / bug.replace("/", "_")
        )
    failed = [bug for bug, g in grades.items() if g not in ("right", "tied")]
    assert len(failed) <= 1, failed


@pytest.mark.slow
def test_pairs(model: Model, weights: Weights, tmp_path: Path) -> None:
    grades = {}
    for pair in planting.PAIRS:
        case = planting.second(model.file.path, *pair)
        grades[pair] = _named(model, weights, case, "full", tmp_path / "+".join(pair).replace("/", "_"))
    failed = [pair for pair, g in grades.items() if g not in ("right", "tied")]
    assert len(failed) <= 0.15 * len(grades), failed


DESCRIBED = {"x-norm-abs": "norm-statistic"}  # the mean of sizes, not of squares


@pytest.mark.parametrize("bug", planting.UNKNOWN)
def test_faults_outside_the_table(model: Model, weights: Weights, tmp_path: Path, bug: str) -> None:
    """Localised, and never a confident wrong name: the grammar describes some of them rightly."""
    case = planting.second(model.file.path, bug)
    found = diagnose(model, planting.dump(case, "full", model, tmp_path), weights=weights)
    assert found.first_wrong is not None
    assert found.first_wrong.split("-")[0] == planting.UNKNOWN[bug]
    right = DESCRIBED.get(bug)
    assert not [c for c in found.causes if c.confidence > 0.5 and c.fault != right], found.to_dict()
