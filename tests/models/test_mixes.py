"""The types of every architecture's tensors under the mixes are those that llama.cpp's own quantiser chose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.gguf.mixes import MIXES
from assay.gguf.requantize import plan
from tests.models import mixes

RECORD = json.loads(mixes.RECORD.read_text())


@pytest.mark.parametrize("title", mixes.ROWS)
def test_types_are_llamacpps(title: str, tmp_path: Path) -> None:
    with mixes.make(mixes.ROWS[title], tmp_path / "model.gguf") as file:
        for name in mixes.NAMES:
            types = {step.name: step.after.name for step in plan(file, MIXES[name])}
            assert mixes.summary(file, name, types) == RECORD[title][name], name
