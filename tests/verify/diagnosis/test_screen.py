"""Hypotheses about a large layer are first tried on the first rows, in float32: the verdict stays the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis import screen
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.dumps.observation import Dump
from tests import planting, tiny
from tests.grammar_planting import Drawn, Edited


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(tiny.make(tmp_path_factory.mktemp("screen") / "tiny.gguf")))


def _drawn(model: Model, drawn: Drawn) -> planting.Case:
    engine = Edited(model.file.path, drawn)
    with np.errstate(all="ignore"):
        engine.run(list(planting.TOKENS), planting.STEPS)
    return planting.Case("drawn", (), tuple(engine.parts))


CASES = {
    "rope-type": lambda model: planting.second(model.file.path, "rope-type"),
    "mask-missing-prefill": lambda model: planting.second(model.file.path, "mask-missing-prefill"),
    "index-off": lambda model: _drawn(model, Drawn(rows=("keys", 5, True))),
    "operand-other": lambda model: _drawn(model, Drawn(reads={"blk.1.ffn_up.weight": "ffn_inp-1"})),
}


@pytest.mark.parametrize("fault", CASES)
def test_the_first_rows_decide_as_all_rows_do(model: Model, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dump: Dump = planting.dump(CASES[fault](model), "layers", model, Path())
    monkeypatch.setattr(screen, "LARGE_LAYER", 1)
    found = diagnose(model, dump, weights=planting.weights_of(model.file))
    assert fault in {f for c in found.causes for f in (c.fault, *c.equivalent)} and not found.unexplained, found
