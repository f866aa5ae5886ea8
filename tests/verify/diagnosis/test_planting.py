"""Planted dumps that stay in memory are those that the reader makes of the files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.models import Model
from assay.verify.dumps.load import load_dump
from tests import planting


@pytest.mark.parametrize("style", ["full", "layers", "logits"])
@pytest.mark.parametrize("steps", [planting.STEPS, (8,)])
def test_a_dump_in_memory_is_the_dump_of_its_file(
    model: Model, tmp_path: Path, style: str, steps: tuple[int, ...]
) -> None:
    case = planting.second(model.file.path, "rope-type", steps=steps)
    kept = planting.dump(case, style, model, tmp_path, steps=steps)
    read = load_dump(planting.STYLES[style](case, tmp_path, planting.TOKENS, steps), model)
    assert replace(kept, observations=(), source="") == replace(read, observations=(), source="")
    assert len(kept.observations) == len(read.observations) > 0
    for a, b in zip(kept.observations, read.observations, strict=True):
        assert replace(a, data=None, where="") == replace(b, data=None, where="")
        assert np.array_equal(a.array(), b.array()) and a.array().dtype == b.array().dtype
