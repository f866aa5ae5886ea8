"""A small fault is named by its predictions. A healthy engine is not called faulty, however coarse its dump."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from assay.models import Model
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.diagnosis.result import Diagnosis
from assay.verify.dumps.load import load_dump
from tests import planting
from tests.verify.diagnosis.conftest import Diagnosed


def printed(
    case: planting.Case,
    path: Path,
    fmt: str,
    first: int,
    rms: bool,
    row: int,
    tokens: Sequence[int] = planting.TOKENS,
) -> Path:
    """One line a layer: some values of one row and its rms, in a printf format."""
    lines = [json.dumps({"assay_dump": 1, "engine": "x", "tokens": list(tokens)})]
    for name, value in case.parts[0].items():
        if name.split("-")[0] in ("embd", "l_out", "result_norm", "result_output"):
            x = value[row].astype(np.float64)
            values = ", ".join(fmt % v for v in x[:first])
            size = f', "rms": {fmt % np.sqrt(np.mean(x * x))}' if rms else ""
            lines.append(
                f'{{"name": "{name}", "row": {row % len(value)}, "shape": {list(value.shape)}, '
                f'"first": [{values}]{size}}}'
            )
    path.write_text("\n".join(lines) + "\n")
    return path


def found(model: Model, path: Path, style: str, *bugs: str, arithmetic: str = "f32") -> Diagnosis:
    case = planting.second(model.file.path, *bugs, arithmetic=arithmetic)
    return diagnose(model, planting.dump(case, style, model, path / style), weights=planting.weights_of(model.file))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "arithmetic"),
    [("rope-freq-factors", "kv16"), ("rope-freq-factors", "q8"), ("rope-base", "kv16"), ("eps-place", "q8")],
)
def test_a_fault_below_the_noise_of_a_coarse_arithmetic_is_named(
    model: Model, tmp_path: Path, bug: str, arithmetic: str
) -> None:
    result = found(model, tmp_path, "layers", bug, arithmetic=arithmetic)
    assert planting.grade(result, [bug]) in ("right", "tied"), result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "style"),
    [("attn-softcap", "last"), ("head-softcap", "last"), ("scale-wrong-dim/odd", "layers")],
)
def test_a_fault_is_heard_where_it_shows_first(model: Model, tmp_path: Path, bug: str, style: str) -> None:
    assert planting.grade(found(model, tmp_path, style, bug), [planting.fault_id(bug)]) in ("right", "tied")


@pytest.mark.slow
@pytest.mark.parametrize("arithmetic", ["f32", "f16", "q8", "kv16"])
def test_healthy_engines_are_healthy(healthy: Diagnosed, arithmetic: str) -> None:
    for style in ("full", "last", "layers"):
        assert not healthy(arithmetic, style)["alarm"], style


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fmt", "first", "rms", "row"),
    [
        ("%.3g", 3, False, 0), ("%.4g", 5, True, -1), ("%.5g", 10, True, 4), ("%.6g", 10, True, -1),
        ("%.7g", 5, False, 0), ("%.9g", 10, True, -1), ("%.4f", 5, True, 4), ("%.2f", 3, True, -1),
        ("%.0f", 10, False, 0),
    ],
)  # fmt: skip
def test_digits_are_no_evidence(model: Model, tmp_path: Path, fmt: str, first: int, rms: bool, row: int) -> None:
    case = planting.second(model.file.path, steps=(8,))
    dump = load_dump(printed(case, tmp_path / "x.jsonl", fmt, first, rms, row), model)
    assert diagnose(model, dump, weights=planting.weights_of(model.file)).verdict == "healthy"
