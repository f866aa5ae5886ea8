"""Traces: what is written is what was computed, whole or as a summary, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.models import Model
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.tracing import take_trace, write_summary, write_trace
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS


@pytest.mark.parametrize("decode", [0, 2])
def test_trace_file_round_trip(model: Model, tmp_path: Path, decode: int) -> None:
    pytest.importorskip("safetensors")
    from safetensors.numpy import load_file

    path = tmp_path / "t.safetensors"
    write_trace(path, ReferenceEngine(model), TOKENS, decode=decode)
    dump, kept = load_dump(path, model), take_trace(ReferenceEngine(model), TOKENS, decode=decode)
    assert dump.steps == kept.steps == ((6,) if not decode else (4, 1, 1)) and dump.engine == "reference"
    plain = load_file(path)
    for name in kept.by_name:
        assert np.array_equal(dump.values(name), kept.values(name)), name
        assert np.array_equal(plain[name], kept.values(name)) and plain[name].dtype == np.float64
    assert not list(tmp_path.glob("*.part"))


def test_a_failed_trace_leaves_no_file(model: Model, tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="outside the vocabulary"):
        write_trace(tmp_path / "t.safetensors", ReferenceEngine(model), [1, 10**6])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("decode", [0, 3])
def test_summary_is_a_dump(model: Model, tmp_path: Path, decode: int) -> None:
    path = tmp_path / "s.jsonl"
    with open(path, "w") as out:
        write_summary(out, ReferenceEngine(model, np.float32), TOKENS, decode=decode)
    dump = load_dump(path, model)
    assert dump.steps == ((6,) if not decode else (3, 1, 1, 1))
    assert {o.kind for o in dump.observations} == {"first", "rms", "mean", "min", "max", "sum", "top"}
    assert judge(model, dump).verdict == "same"
