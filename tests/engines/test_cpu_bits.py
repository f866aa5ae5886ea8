"""One arithmetic: every instruction set, thread count and cut of a prompt gives the recorded bits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from assay import _native
from assay.engines.cpu import CpuEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.gguf.writer import Tensor
from assay.models import load
from tests import tiny
from tests.engines import bits

RECORDED = json.loads(bits.RECORDED.read_text())


def test_the_record_is_of_this_arithmetic() -> None:
    assert RECORDED["arithmetic"] == _native.ARITHMETIC
    assert RECORDED["cases"].keys() == bits.CASES.keys()


@pytest.mark.parametrize("name", bits.CASES)
def test_recorded_bits(name: str, tmp_path: Path) -> None:
    case, recorded = bits.CASES[name], RECORDED["cases"][name]
    path = tmp_path / "model.gguf"
    model = bits.make(case, path)
    assert bits.digest(path.read_bytes()) == recorded["file"], "the model's file itself is another one"
    runs = [{"threads": 1}, {"threads": 2, "piece": 7}, {"threads": 3, "piece": 32}, {"threads": 2, "pack": False}]
    names = [node.name for node in model.graph]
    kept = "l_out-0" if "l_out-0" in names else names[len(names) // 2]
    if case.tokens <= 40:
        runs += [{"threads": 3, "piece": 1}, {"threads": 2, "keep": (kept,)}]
    if model.graph.whole:
        runs = [{**run, "piece": 0} for run in runs]
    for isa in _native.isas():
        for run in runs if isa != "portable" else runs[:2]:
            assert bits.digest(bits.logits(case, model, isa=isa, **run)) == recorded["logits"], (isa, run)


def test_an_instruction_set_that_is_not_there(tmp_path: Path) -> None:
    model = bits.make(bits.CASES["F32 fast"], tmp_path / "model.gguf")
    last = _native.isas()[-1]  # portable, unless this build has the fastest set alone
    with pytest.raises(AssayError, match=rf"found sse9, expected .*{last}"):
        CpuEngine(model, isa="sse9")
    assert CpuEngine(model, isa=last).isa == last


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = bits.make(bits.CASES["F32 fast"], tmp_path / "model.gguf")
    last = _native.isas()[-1]
    monkeypatch.setenv("ASSAY_ISA", last)
    assert CpuEngine(model).isa == last
    monkeypatch.setenv("ASSAY_ISA", "mmx")
    with pytest.raises(AssayError, match="found mmx"):
        CpuEngine(model)


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38, 1e-40])
@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_strange_activations(value: float, precision: str, tmp_path: Path) -> None:
    """A NaN, infinite, huge or tiny embedding: the same bits on every path, and earlier tokens do not notice."""
    case = bits.Case({"type": "Q4_0"}, {"precision": precision}, tokens=40)

    def fill(name: str, shape: tuple[int, ...], type_name: str, rng: np.random.Generator) -> Tensor:
        if name != "token_embd.weight":
            return bits.tensor(name, shape, type_name, rng)
        table = bits.tensor(name, shape, "F32", rng)
        table.data[bits.IDS[9], 5] = value
        return table

    model = load(open_file(tiny.make(tmp_path / "model.gguf", type="Q4_0", tied=False, tensor=fill)))
    first = next(i for i, token in enumerate(bits.IDS) if token == bits.IDS[9])
    whole = bits.logits(case, model, threads=1)
    assert np.isfinite(whole[:first]).all()
    if not np.isfinite(value):
        assert np.isnan(whole[first:]).all()
    for isa in _native.isas():
        for run in ({"threads": 2, "piece": 1}, {"threads": 3, "piece": 7}, {"threads": 2, "pack": False}):
            found = bits.logits(case, model, isa=isa, **run)
            assert np.array_equal(found, whole, equal_nan=True), (isa, run)
