"""Foreign names of nodes."""

from __future__ import annotations

from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.dumps.naming.foreign_names import RULES, translate
from tests.models import golden


def test_foreign_names_of_one_node(model: Model) -> None:
    expected = {
        ("Qcur-0", "MUL_MAT"): "Qcur_proj-0", ("Qcur-0", "ROPE"): "Qcur-0", ("Vcur-1", "MUL_MAT"): "Vcur-1",
        ("inp_embd", ""): "embd", ("kqv_merged_cont-1", ""): "kqv_out-1", ("ffn_gate_par-0", ""): "ffn_swiglu-0",
        ("model.layers.1.self_attn.q_proj", ""): "Qcur_proj-1", ("model.layers.0.mlp.down_proj", ""): "ffn_out-0",
        ("model.layers.0.post_attention_layernorm", ""): "ffn_norm-0", ("model.norm", ""): "result_norm",
        ("lm_head", ""): "result_output", ("model.layers.1", ""): "l_out-1", ("hidden_states.1", ""): "l_out-0",
        ("hidden_states.2", ""): "result_norm", ("hidden_states.0", ""): "embd",
        ("layers.0.attention.wk", ""): "Kcur_proj-0", ("layers.1.feed_forward.w2", ""): "ffn_out-1",
        ("layer_1_output", ""): "l_out-1", ("blk.0.q_rope", ""): "Qcur-0",
    }  # fmt: skip
    for (name, op), node in expected.items():
        found = translate(name, op, model.graph)
        assert found is not None and found[0] == node, name
    for name, op in (("norm", "RMS_NORM"), ("Qcur-0", "RESHAPE"), ("Kcur-9", "ROPE"), ("something", "")):
        assert translate(name, op, model.graph) is None
    assert len(RULES) > 40


def test_a_matrix_product_is_a_product_whatever_it_is_called() -> None:
    """llama.cpp names `attn_out` of llama4 `ffn_norm`, and the K product of gemma4 `Vcur` where V is made of it."""
    for name, said, node in (
        ("llama4", "ffn_norm-1", "attn_out-1"), ("gemma4-moe", "Vcur-2", "Kcur_proj-2"),
        ("gemma4-moe", "Vcur-0", "Vcur_proj-0"),
    ):  # fmt: skip
        assert translate(said, "MUL_MAT", load(open_file(golden.path(name))).graph) == (node, "gguf")
