"""The witnesses: llama.cpp's recorded values are healthy, a live one too, and a missing one says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.dumps.observation import Dump, Observation
from assay.verify.dumps.trace import take_trace
from assay.verify.judge.text import text
from assay.verify.judge.verdict import judge
from assay.verify.witness import WITNESSES
from assay.verify.witness.opening import known, open_engine
from tests import tiny
from tests.verify.witness import golden


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(golden.make(tmp_path_factory.mktemp("golden") / "golden.gguf")))


def record(kv_type: str) -> Dump:
    data = np.load(golden.RECORD)
    names = [k.split("/")[1] for k in data.files if k.startswith(kv_type)]
    n, k = len(golden.TOKENS), golden.RUNS[kv_type]
    observations = [Observation(name, "values", data[f"{kv_type}/{name}"], foreign=name) for name in names]
    return Dump("llamacpp", tuple(golden.TOKENS), tuple(range(n)), (n - k, *(1,) * k), tuple(observations), "record")


@pytest.mark.parametrize(("kv_type", "excuse"), [("f32", "Q8 activations"), ("f16", "Q8 activations, f16 KV")])
def test_recorded_llamacpp_is_healthy(recorded: Model, kv_type: str, excuse: str) -> None:
    diff = judge(recorded, record(kv_type))
    assert diff.verdict == "noise" and diff.arithmetic.name == excuse, text(diff, recorded)
    assert len(diff.nodes) == sum(n.op != "cache" for n in recorded.graph)
    assert {n.explained_by for n in diff.nodes if n.verdict == "noise"} == {excuse}
    assert {n.name for n in diff.nodes if n.verdict == "same"} >= {"embd", "attn_norm-0", "Vcur-0"}


@pytest.mark.parametrize("name", ["Qcur_proj-1", "kq-0", "ffn_gate-1", "ffn_out-0", "result_norm"])
def test_one_percent_shows_through_quantised_activations(recorded: Model, name: str) -> None:
    """A whole node off by 2 %: more than its step's noise, though less than what noise has been carried there."""
    dump = record("f16")
    dump.by_name[name][0].data[...] *= 1.02
    assert [n.name for n in judge(recorded, dump).at_fault] == [name]


@pytest.mark.parametrize(("module", "name"), [("llama_cpp", "llamacpp"), ("transformers", "transformers")])
def test_missing_witness_says_what_to_install(
    recorded: Model, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(AssayError, match=rf"engine {name}: .* not installed; .*pip install 'assay\[{name}\]'"):
        open_engine(name, recorded)
    assert set(WITNESSES) <= set(known())
    with pytest.raises(AssayError, match="engine nobody: not available here; there are reference"):
        open_engine("nobody", recorded)


@pytest.mark.parametrize("name", WITNESSES)
def test_live_witness_agrees(tmp_path: Path, name: str) -> None:
    model = load(open_file(tiny.make(tmp_path / "m.gguf", type="F32")))
    try:
        engine = open_engine(name, model, kv_type="f32" if name == "llamacpp" else None)
    except AssayError as error:
        pytest.skip(str(error))
    dump = take_trace(engine, golden.TOKENS, decode=2, nodes="^(?!cache_)")
    diff = judge(model, dump)
    assert diff.verdict == "same", text(diff, model)
