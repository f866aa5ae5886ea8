"""Names and layouts of recurrent models in transformers, vLLM, MLX and llama.cpp."""

from __future__ import annotations

import json

import numpy as np
import pytest

from assay.gguf import open_file
from assay.models import load
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.naming.foreign_names import translate
from assay.verify.judge.verdict import judge
from tests import recurrent_planting as planting

FOLDER = planting.folder()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="no golden recurrent models; set ASSAY_SHARED")

NAMES = {
    "qwen35": {
        "model.layers.0.linear_attn": "linear_attn_out-0",
        "model.layers.0.linear_attn.in_proj_qkv": "linear_attn_qkv_mixed-0",
        "model.layers.0.linear_attn.in_proj_b": "beta-0",
        "model.layers.0.linear_attn.norm": "final_output-0",
        "model.layers.3.self_attn.q_proj": "Qcur_full-3",
        "model.layers.3.self_attn.o_proj.input": "attn_gated-3",
        "model.layers.0.post_attention_layernorm.input": "attn_residual-0",
        "past_key_values.conv_states.0": "cache_r_l0",
        "recurrent_states[1]": "cache_s_l1",
        "cache.0.1": "cache_s_l0",
        "attn_output-0": "attn_output-0",
        "attn_output-3": "attn_out-3",
        "gate-0": "gate-0",
        "gate-3": "gate_raw-3",
    },
    "qwen3next-old": {
        "model.layers.0.linear_attn.in_proj_qkvz": "linear_attn_mixed_qkvz-0",
        "model.layers.0.linear_attn.in_proj_ba": "linear_attn_mixed_ba-0",
        "model.layers.0.mlp.gate": "ffn_moe_logits-0",
        "model.layers.0.mlp.shared_expert": "ffn_shexp-0",
    },
    "mamba2": {
        "backbone.layers.0.mixer": "mamba_out-0",
        "backbone.layers.0.mixer.in_proj": "zxBCdt-0",
        "backbone.layers.0.mixer.conv1d": "conv_output_biased-0",
        "backbone.norm_f": "result_norm",
        "backbone.layers.1": "l_out-1",
    },
    "jamba": {
        "model.layers.0.mamba.in_proj": "xz-0",
        "model.layers.0.mamba.dt_proj": "dt-0",
        "model.layers.1.feed_forward": "ffn_moe_out-1",
        "model.final_layernorm": "result_norm",
    },
    "lfm2": {
        "model.layers.0.conv": "shortconv_out-0",
        "model.layers.0.short_conv.in_proj": "bcx-0",
        "model.layers.0.operator_norm": "attn_norm-0",
        "model.embedding_norm": "result_norm",
        "model.layers.{}.ffn_out-0": "ffn_norm-0",
        "model.layers.{}.conv.conv-0": "conv_output_raw-0",
    },
    "nemotron_h": {
        "backbone.layers.1.mixer": "ffn_out-1",
        "backbone.layers.2.mixer": "attn_out-2",
        "backbone.layers.0": "nemotron_h_block_out-0",
    },
    "kimi-linear": {
        "model.layers.0.self_attn": "kda_out-0",
        "model.layers.2.self_attn": "mla_out-2",
        "model.layers.0.self_attn.q_conv1d": "q_conv_silu-0",
        "model.layers.0.self_attn.b_proj": "kda_beta-0",
    },
    "rwkv6": {"blocks.0.att": "time_mix_out-0", "blocks.0.ffn": "channel_mix_gated-0", "blocks.0.ln0": "inp_norm-0"},
}


@pytest.mark.parametrize("model", NAMES)
def test_names_of_other_projects(model):
    graph = load(open_file(FOLDER / f"{model}.gguf")).graph
    found = {name: translate(name, "", graph) for name in NAMES[model]}
    assert {name: node and node[0] for name, node in found.items()} == NAMES[model]


def test_llama_cpps_name_of_jambas_mixer_is_told_by_its_operation():
    graph = load(open_file(FOLDER / "jamba.gguf")).graph
    assert translate("ffn_inp-0", "RESHAPE", graph) == ("mamba_out-0", "gguf")
    assert translate("ffn_inp-2", "MUL_MAT", graph) == ("attn_out-2", "gguf")
    assert translate("ffn_inp-2", "", graph) == ("ffn_inp-2", "gguf")


def test_a_dump_of_transformers_with_its_own_head_order_and_convolution(tmp_path):
    """Value heads of a key head side by side, the convolution channels first with its padding, a wider window."""
    path = FOLDER / "qwen35.gguf"
    model, ids = load(open_file(path)), planting.tokens_of(path)[:24]
    part = planting.planted(path, tokens=ids, steps=(24,)).parts[0]
    heads = [0, 2, 1, 3]
    columns = np.arange(32).reshape(4, 8)[heads].reshape(-1)
    mixed = np.concatenate([np.arange(32), 32 + columns])
    conv = part["conv_output_raw-0"][:, mixed].T
    dumped = {
        "model.layers.0.input_layernorm": part["attn_norm-0"],
        "model.layers.0.linear_attn.in_proj_qkv": part["linear_attn_qkv_mixed-0"][:, mixed][None],
        "model.layers.0.linear_attn.in_proj_z": part["z-0"][:, columns],
        "model.layers.0.linear_attn.in_proj_b": part["beta-0"][:, heads],
        "model.layers.0.linear_attn.conv1d": np.concatenate([conv, np.ones((64, 3))], 1)[None],
        "model.layers.0.linear_attn": part["linear_attn_out-0"][None],
        "model.layers.0.linear_attn.conv_state": np.concatenate([np.ones((64, 1)), part["cache_r_l0"][mixed]], 1)[None],
        "model.layers.0.linear_attn.recurrent_state": part["cache_s_l0"][heads].swapaxes(1, 2)[None],
        "lm_head": part["result_output"],
    }
    lines = [json.dumps({"assay_dump": 1, "engine": "transformers", "tokens": list(ids)})]
    lines += [json.dumps({"name": k, "shape": list(v.shape), "values": v.tolist()}) for k, v in dumped.items()]
    (tmp_path / "dump.jsonl").write_text("\n".join(lines) + "\n")
    dump = load_dump(tmp_path / "dump.jsonl", model)
    diff = judge(model, dump, cache=False)
    assert not dump.unmatched and len(diff.nodes) == len(dumped)
    assert [n.name for n in diff.nodes if n.verdict == "wrong"] == []
    assert any("value heads in Hugging Face's order" in note for note in dump.notes)
