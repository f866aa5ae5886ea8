"""Witnesses: llama.cpp's recorded and live values are healthy, and a missing package is named in the error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines.contract import Chunk, Engine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.library.verdicts import check
from assay.models import Model, load
from assay.verify.dumps.observation import Dump, Observation
from assay.verify.dumps.tracing import take_trace
from assay.verify.judge.text import text
from assay.verify.judge.verdict import judge
from assay.verify.witness import WITNESSES
from assay.verify.witness.engines_by_name import known, open_engine, open_talker, talkers
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
    """A whole node off by 2 %: more than the noise of its step, but less than the carried noise there."""
    dump = record("f16")
    dump.by_name[name][0].data[...] *= 1.02
    assert [n.name for n in judge(recorded, dump).at_fault] == [name]


MODULES = {  # what is imported first, and the package that has it
    "llamacpp": ("llama_cpp", "llama-cpp-python"), "transformers": ("transformers", "transformers"),
    "tinygrad": ("tinygrad", "tinygrad"), "mlx": ("mlx.core", "mlx-lm"), "openvino": ("openvino", "openvino-genai"),
    "mistralrs": ("mistralrs", "mistralrs"), "xllamacpp": ("xllamacpp", "xllamacpp"),
}  # fmt: skip


@pytest.mark.parametrize("name", WITNESSES)
def test_missing_witness_says_what_to_install(recorded: Model, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module, package = MODULES[name]
    monkeypatch.setitem(sys.modules, module, None)
    opening = open_talker if WITNESSES[name].talks else open_engine
    with pytest.raises(AssayError, match=rf"engine {name}: .* not installed; .*pip install .*{package}[!>]="):
        opening(name, recorded)


def test_names(recorded: Model) -> None:
    assert {*known(), *talkers()} >= set(WITNESSES)
    with pytest.raises(AssayError, match="engine nobody: not available here; there are reference"):
        open_engine("nobody", recorded)
    with pytest.raises(AssayError, match=r"engine mistralrs: gives text .* no values; `assay check"):
        open_engine("mistralrs", recorded)


def opened(name: str, model: Model, **options: Any) -> Engine:
    try:
        return open_engine(name, model, **options)
    except AssayError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", [n for n, witness in WITNESSES.items() if not witness.talks])
def test_live_witness_agrees(tmp_path: Path, name: str) -> None:
    """Float32 where the witness has it; some witnesses need the rotary base that the file leaves out."""
    model = load(open_file(tiny.make(tmp_path / "m.gguf", type="F32", metadata={"llama.rope.freq_base": 1e4})))
    options = {"llamacpp": {"kv_type": "f32"}, "openvino": {"precision": "f32"}}.get(name, {})
    dump = take_trace(opened(name, model, **options), golden.TOKENS, decode=2, nodes="^(?!cache_)")
    diff = judge(model, dump)
    assert diff.verdict == "same", text(diff, model)


@pytest.mark.parametrize("name", ["llamacpp", "mlx"])
def test_factors_of_the_rotation_are_used(tmp_path: Path, name: str) -> None:
    model = load(open_file(tiny.make(tmp_path / "m.gguf", type="F32", rope_freqs=True)))
    dump = take_trace(opened(name, model), golden.TOKENS, nodes="^(?!cache_)")
    assert judge(model, dump), text(judge(model, dump), model)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformers", "tinygrad"])
def test_check_names_what_is_wrong_with_it(tmp_path: Path, name: str) -> None:
    """Neither reads `rope_freqs.weight` from a GGUF file."""
    path = tiny.make(tmp_path / "m.gguf", type="F32", rope_freqs=True, metadata={"llama.rope.freq_base": 1e4})
    opened(name, load(open_file(path))).close()
    found = check(str(path), name, lengths=(10,))
    assert not found and "rope-freq-factors" in str(found), found


def test_a_follower_follows_one_sequence(tmp_path: Path) -> None:
    model = load(open_file(tiny.make(tmp_path / "m.gguf", type="F32")))
    engine = opened("transformers", model)
    pages = np.zeros(1, np.int32)
    engine.forward([Chunk(np.array([1, 2], np.int32), 0, pages)])
    with pytest.raises(AssayError, match="found a start of 5, expected 0 or 2"):
        engine.forward([Chunk(np.array([3], np.int32), 5, pages)])


@pytest.mark.slow
@pytest.mark.parametrize("name", talkers())
def test_live_talker_answers(tmp_path: Path, name: str) -> None:
    path = tiny.make(tmp_path / "m.gguf", type="F32")
    try:
        talker = open_talker(name, load(open_file(path)))
    except AssayError as error:
        pytest.skip(str(error))
    answer = talker.ask("/v1/completions", {"prompt": "a", "max_tokens": 1, "temperature": 0, "logprobs": 5})
    talker.close()
    assert answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
