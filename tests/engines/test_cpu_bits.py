"""One arithmetic: every instruction set, thread count and cut of a prompt gives the recorded bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay import _native
from assay.engines.cpu import CpuEngine
from assay.errors import AssayError
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
    if case.tokens <= 40:
        runs += [{"threads": 3, "piece": 1}, {"threads": 2, "keep": ("l_out-0",)}]
    for isa in _native.isas():
        for run in runs if isa != "portable" else runs[:2]:
            assert bits.digest(bits.logits(case, model, isa=isa, **run)) == recorded["logits"], (isa, run)


def test_an_instruction_set_that_is_not_there(tmp_path: Path) -> None:
    model = bits.make(bits.CASES["F32 fast"], tmp_path / "model.gguf")
    with pytest.raises(AssayError, match=r"found sse9, expected .*portable"):
        CpuEngine(model, isa="sse9")
    assert CpuEngine(model, isa="portable").isa == "portable"
