"""A mean square that is infinite in half precision makes a norm's row 0: every value is finite, the cause is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.gguf import open_file
from assay.gguf.writer import Tensor
from assay.models import Model, load
from assay.verify.diagnosis.diagnose_dump import diagnose
from tests import planting, tiny
from tests.second_engine import Engine

LARGE = 400.0  # times the usual size: a square is 160,000


class HalfSquares(Engine):
    """The second engine with the squares of a norm in half precision."""

    def norm(self, x: Any, name: str) -> Any:
        with np.errstate(over="ignore"):
            ms = np.mean((x * x).astype(np.float16).astype(np.float32), -1, keepdims=True)
        return x / np.sqrt(ms + self.eps) * self.weight(name)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The first token has large values, as in trained models."""

    def tensor(name: str, shape: tuple[int, ...], type_name: str, rng: np.random.Generator) -> Tensor:
        made = tiny._tensor(name, shape, type_name, rng)
        if name == "token_embd.weight":
            made.data[planting.TOKENS[0]] *= LARGE
        return made

    return load(open_file(tiny.make(tmp_path_factory.mktemp("overflow") / "large.gguf", tensor=tensor)))


@pytest.mark.parametrize("style", ["full", "layers", "last"])
def test_a_norm_that_overflows_without_a_nan_is_named(model: Model, tmp_path: Path, style: str) -> None:
    engine = HalfSquares(model.file.path)
    engine.run(list(planting.TOKENS), planting.STEPS)
    case = planting.Case("overflow", (), tuple(engine.parts))
    assert case.finite
    found = diagnose(model, planting.dump(case, style, model, tmp_path), weights=planting.weights_of(model.file))
    assert [c.fault for c in found.causes] == ["f16-act-overflow"], found
    assert "each square" in found.causes[0].how and "the row becomes 0" in found.causes[0].how


def test_without_a_large_row_it_is_no_overflow(tmp_path: Path) -> None:
    plain = load(open_file(tiny.make(tmp_path / "plain.gguf")))
    engine = HalfSquares(plain.file.path)
    engine.run(list(planting.TOKENS), planting.STEPS)
    case = planting.Case("halves", (), tuple(engine.parts))
    found = diagnose(plain, planting.dump(case, "full", plain, tmp_path))
    assert "f16-act-overflow" not in {f for c in found.causes for f in (c.fault, *c.equivalent)}, found
