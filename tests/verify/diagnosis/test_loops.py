"""Mistakes in loops, planted in the second engine, are described: from a dump; some from ten values and layers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis.diagnose_dump import diagnose
from tests import planting
from tests.grammar_planting import Drawn, Edited
from tests.loop_mistakes import LOOPS, answers

TOKENS, STEPS = (1, 270, 2, 17, 300, 281, 290, 33), (6, 1, 1)  # some ids are above 255


@pytest.fixture(scope="module")
def model(stories260k: Path) -> Model:
    return load(open_file(stories260k))


PRINTED = [("tile", "last"), ("tile", "layers"), ("prefix", "last"), ("prefix", "layers"), ("unmasked", "last")]


def cases() -> list[object]:
    return [
        *((kind, numbers[0], "full") for kind, (numbers, _, _) in LOOPS.items()),
        *(pytest.param(kind, LOOPS[kind][0][0], style, marks=pytest.mark.slow) for kind, style in PRINTED),
    ]


@pytest.mark.parametrize(("kind", "number", "style"), cases())
def test_a_mistake_in_a_loop_is_described(model: Model, tmp_path: Path, kind: str, number: int, style: str) -> None:
    engine = Edited(model.file.path, Drawn(loop=(kind, number)))
    if kind == "whole-root" and int(np.sqrt(engine.hd)) ** 2 == engine.hd:
        pytest.skip("the root of the width is a whole number in this model")
    with np.errstate(all="ignore"):
        engine.run(list(TOKENS), STEPS)
    run = planting.Case(kind, (), tuple(engine.parts))
    found = diagnose(
        model, planting.dump(run, style, model, tmp_path, TOKENS, STEPS), weights=planting.weights_of(model.file)
    )
    right = answers(kind, number)
    assert any(re.search(right[c.fault], c.how) for c in found.causes if c.fault in right), found
    assert found.causes[0].fault in right, found
