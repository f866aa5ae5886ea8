"""Mistakes outside the catalogue, planted in the second engine, which shares no code with assay, are described."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis.diagnose_dump import diagnose
from tests import planting
from tests.grammar_planting import Drawn, Edited


@pytest.fixture(scope="module")
def model(stories260k: Path) -> Model:
    return load(open_file(stories260k))


DRAWN = [  # style, what is planted, words of the answer
    ("last", Drawn(turned={"k": 1}), "Kcur is rotated with position + 1"),
    ("last", Drawn(rows=("values", 4, False)), "values of position 4 are lost: zeros"),
    ("last", Drawn(unturned=("q", 5)), "head 5 of Qcur is not rotated"),
    ("layers", Drawn(unturned=("k", 1)), "head 1 of Kcur is not rotated"),
    ("full", Drawn(looked_up=1), "every token is looked up with its id + 1"),
    (
        "full",
        Drawn(named={"blk.1.attn_v.weight": "blk.0.attn_v.weight"}),  # not all tensors, and in no other layer
        "Vcur takes the matrix of layer 0, in layer 1 alone",
    ),
    ("full", Drawn(only_first="values"), "every cached row of values is that of the first token"),
]


@pytest.mark.parametrize(("style", "drawn", "words"), DRAWN)
def test_a_drawn_mistake_is_described(model: Model, tmp_path: Path, style: str, drawn: Drawn, words: str) -> None:
    engine = Edited(model.file.path, drawn)
    with np.errstate(all="ignore"):
        engine.run(list(planting.TOKENS), planting.STEPS)
    case = planting.Case(words, (), tuple(engine.parts))
    dump = planting.dump(case, style, model, tmp_path)
    found = diagnose(model, dump, weights=planting.weights_of(model.file))
    assert [c.how.split("; or as well")[0] for c in found.causes] == [words], found
