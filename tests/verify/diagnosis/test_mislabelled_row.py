"""A single printed row with another token's values may be a mistake of the log: both are said, and neither is sure."""

from __future__ import annotations

from pathlib import Path

from assay.models import Model
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.resolve import resolve
from tests.verify.conftest import TOKENS


def test_the_last_logits_below_the_first_position(model: Model, truth: Dump) -> None:
    logits = next(o for o in truth.observations if o.name == "result_output").array()[-1]
    best = ", ".join(f"{i}:{logits[i]:.4f}" for i in (-logits).argsort()[:8])
    log = read_log(Path("x.log"), text=f"tokens: {TOKENS}\npos 0 top logits: {best}\n")
    found = diagnose(model, resolve(log, model))
    assert found.causes and found.causes[0].confidence <= 0.5
    assert "or as well: the printed row is another token's" in found.causes[0].how
