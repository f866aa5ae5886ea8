"""llama.cpp as a witness of models with a state: node by node, states included. Needs llama-cpp-python."""

from __future__ import annotations

import numpy as np
import pytest

from assay.engines.contract import Chunk
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import load
from assay.verify.dumps.tracing import take_trace
from assay.verify.judge.verdict import judge
from tests import recurrent_planting as planting

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
from assay.verify.witness.llamacpp import LlamaCppEngine

FOLDER = planting.folder()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="no golden recurrent models; set ASSAY_SHARED")
PAGES = np.arange(1, dtype=np.int32)
# Values that llama.cpp does not name, and that are told by their weight or their source.
NAMELESS = {
    "mamba2": ("conv_output_raw-0", "conv_output_biased-0", "conv_output_silu-0", "dt-0", "y_ssm-0", "y_normed-0"),
    "lfm2": ("conv_output_raw-0", "shortconv_out-0"),
    "qwen35": ("alpha_biased-0", "z_silu-0", "attn_output-0", "attn_out-3"),
    "jamba": ("mamba_out-0", "y_ssm-0", "attn_out-2"),
    "kimi-linear": ("q_conv_silu-0", "kda_g1-0", "g2_sigmoid-0"),
}


@pytest.mark.parametrize("name", planting.MODELS)
def test_every_value_of_two_calls_is_the_golden_one(name):
    path = FOLDER / f"{name}.gguf"
    model, ids, golden = load(open_file(path)), planting.tokens_of(path), planting.golden(path)
    keep = [n.name for n in model.graph if n.op != "cache"]
    engine = LlamaCppEngine(model, kv_type="f32", threads=1)
    try:
        start = 0
        for call, n in enumerate((24, 1)):
            nodes = engine.forward([Chunk(np.asarray(ids[start : start + n], np.int32), start, PAGES, "none")], keep)[0]
            found = nodes.nodes
            start += n
            for node, value in found.items():
                right = golden.get(f"{node}@{call}" if call else node)
                if right is not None and right.size == value.size:
                    size = float(np.abs(right[np.isfinite(right)]).max())
                    assert np.allclose(value.reshape(right.shape), right, rtol=1e-4, atol=1e-5 * size), (call, node)
            assert not [node for node in NAMELESS.get(name, ()) if node not in found]
            windows = 0 if name == "kimi-linear" else 1  # there the three windows are views of one tensor
            assert sum(node.startswith(("cache_s_l", "cache_r_l")[: 1 + windows]) for node in found) >= 1
    finally:
        engine.close()


@pytest.mark.parametrize("name", ["lfm2", "qwen35", "mamba2", "rwkv7"])
def test_a_trace_is_judged_healthy_with_its_states(tmp_path, name):
    path = FOLDER / f"{name}.gguf"
    model = load(open_file(path))
    engine = LlamaCppEngine(model, kv_type="f32", threads=1)
    try:
        dump = take_trace(engine, planting.tokens_of(path), decode=2)
    finally:
        engine.close()
    diff = judge(model, dump, cache=False)
    assert diff.verdict == "same", diff.summary
    assert any(n.name.startswith("cache_r_l") for n in diff.nodes)


def test_a_state_cannot_be_cut():
    path = FOLDER / "lfm2.gguf"
    engine = LlamaCppEngine(load(open_file(path)), kv_type="f32", threads=1)
    ids = np.asarray(planting.tokens_of(path)[:4], np.int32)
    try:
        engine.forward([Chunk(ids, 0, PAGES, "none")])
        with pytest.raises(AssayError, match="cannot be cut or shifted"):
            engine.forward([Chunk(ids[:1], 2, PAGES, "none")])
    finally:
        engine.close()
