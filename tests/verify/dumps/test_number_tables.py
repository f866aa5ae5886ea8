"""Wide tables of numbers: logits in any orientation, with and without heads and index columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.engines.reference import ReferenceEngine
from assay.models import Model
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.tracing import take_trace
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS


def _written(logits: np.ndarray, mark: str, head: str, index: str) -> str:
    """The logits as text: `index` is before the numbers of each row."""
    rows = [mark.join((*index.format(i=i, t=TOKENS[i % len(TOKENS)]).split(), *(f"{x:.6f}" for x in row)))
            for i, row in enumerate(logits)]  # fmt: skip
    return "\n".join(filter(None, (head, *rows))) + "\n"


@pytest.mark.parametrize("way", ["positions", "ids", "ids from 1", "bare", "bare columns", "semicolons"])
def test_logits_of_every_position(model: Model, tmp_path: Path, way: str) -> None:
    dump = take_trace(ReferenceEngine(model), TOKENS, nodes="result_output")
    logits = np.asarray(dump.values("result_output"))
    n, vocabulary = logits.shape
    ids = "# tokens: " + " ".join(map(str, TOKENS))
    text = {
        "positions": _written(logits, ",", "pos,token," + ",".join(f"logit_{i}" for i in range(vocabulary)), "{i} {t}"),
        "ids": ids + "\n" + _written(logits.T, ",", "token_id," + ",".join(f"pos{i}" for i in range(n)), "{i}"),
        "ids from 1": ids + "\n" + _written(logits.T, "\t", "", "{i}"),
        "bare": ids + "\n" + _written(logits, ",", "", ""),
        "bare columns": ids + "\n" + _written(logits.T, " ", "", ""),
        "semicolons": ids + "\n" + _written(logits, ";", ";".join(f"v{i}" for i in range(vocabulary)), ""),
    }[way]  # fmt: skip
    (tmp_path / "out.csv").write_text(text)
    found = load_dump(tmp_path / "out.csv", model)
    assert found.tokens == tuple(TOKENS)
    assert [(o.name, o.rows) for o in found.observations] == [("result_output", (i, i + 1)) for i in range(n)]
    assert np.allclose([o.data for o in found.observations], logits, atol=1e-6)
    assert judge(model, found).first_wrong is None
