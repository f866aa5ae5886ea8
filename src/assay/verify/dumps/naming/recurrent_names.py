"""Names of recurrent and hybrid models in transformers, vLLM and MLX: modules, and what caches call a state.

Where such a project gates inside its norm, the module's result is the gated value. A window of transformers may be one
column wider than the graph's (`matching/state_layouts.py`). A rule whose nodes the model lacks is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable

from assay.verify.dumps.naming.name_rule import HF, N, NameRule

_AT_LAYER = rf"(?:model\.|backbone\.|language_model\.|transformer\.)*(?:layers|blocks)\.{N}\."


_Rows = tuple[tuple[str, tuple[str, ...]], ...]  # a module below the layer's part, and the nodes that it may be
_DELTA: _Rows = (
    (r"in_proj_qkvz", ("linear_attn_mixed_qkvz-{n}",)), (r"in_proj_ba", ("linear_attn_mixed_ba-{n}",)),
    (r"in_proj_qkv", ("linear_attn_qkv_mixed-{n}",)), (r"in_proj_z", ("z-{n}",)),
    (r"in_proj_b", ("beta-{n}",)), (r"in_proj_a", ("alpha-{n}",)), (r"conv1d", ("conv_output_raw-{n}",)),
    (r"norm", ("final_output-{n}",)), (r"out_proj\.input", ("final_output-{n}",)),
    (r"conv_states?", ("cache_r_l{n}",)), (r"(?:recurrent|ssm)_states?", ("cache_s_l{n}",)),
)  # fmt: skip
_MAMBA: _Rows = (
    (r"in_proj", ("zxBCdt-{n}", "xz-{n}")), (r"conv1d", ("conv_output_biased-{n}", "conv_output_raw-{n}")),
    (r"x_proj", ("x_db-{n}",)), (r"dt_proj", ("dt-{n}",)), (r"dt_layernorm", ("dt_normed-{n}",)),
    (r"b_layernorm", ("B_normed-{n}",)), (r"c_layernorm", ("C_normed-{n}",)),
    (r"norm", ("y_normed-{n}", "y_gated-{n}")), (r"out_proj\.input", ("y_normed-{n}", "y_gated-{n}")),
    (r"out_proj", ("mamba_out-{n}",)), (r"conv_states?", ("cache_r_l{n}",)), (r"ssm_states?", ("cache_s_l{n}",)),
    (r"q_proj", ("Qcur_proj-{n}",)), (r"k_proj", ("Kcur_proj-{n}",)), (r"v_proj", ("Vcur-{n}",)),
    (r"o_proj", ("attn_out-{n}",)), (r"up_proj", ("ffn_up-{n}",)), (r"down_proj", ("ffn_out-{n}",)),
    (r"gate", ("ffn_moe_logits-{n}",)), (r"shared_experts", ("ffn_shexp-{n}",)),
)  # fmt: skip
_SHORT_CONV: _Rows = (
    (r"in_proj", ("bcx-{n}",)), (r"conv", ("conv_output_raw-{n}",)), (r"out_proj\.input", ("shortconv_gated-{n}",)),
    (r"out_proj", ("shortconv_out-{n}",)), (r"conv_(?:state|cache)", ("cache_r_l{n}",)),
)  # fmt: skip


def gated_query() -> NameRule:
    """Queries and gates from one product; before the rule for queries alone, because the graph has these as well."""
    return NameRule("Qwen3-Next, Qwen3.5", HF + rf"layers\.{N}\.self_attn\.q_proj", ("Qcur_full-{n}",))


def recurrent_rules() -> Iterable[NameRule]:
    """Modules of transformers, vLLM and MLX that recurrent and hybrid models have, and what caches call a state."""
    delta, mamba = r"(?:linear_attn|gated_delta_net|gdn)", r"(?:mamba|mixer|ssm|mamba_mixer)(?:\.mamba)?"
    conv = r"(?:conv|short_conv|shortconv)"
    kda = r"(?:self_attn|linear_attn|kda|attn)"

    def rule(family: str, name: str, *nodes: str) -> NameRule:
        return NameRule(family, _AT_LAYER + name, nodes)

    for name, nodes in _DELTA:
        yield rule("Qwen3-Next, Qwen3.5", rf"{delta}\.{name}", *nodes)
    yield rule("Qwen3-Next, Qwen3.5", rf"{delta}(?:\.out_proj)?", "linear_attn_out-{n}", "kda_out-{n}")
    yield rule("Qwen3-Next, Qwen3.5", r"self_attn\.o_proj\.input", "attn_gated-{n}", "kqv_out-{n}")
    yield rule("Qwen3-Next, Qwen3.5", r"post_attention_layernorm\.input", "attn_residual-{n}", "ffn_inp-{n}")
    for name, nodes in _MAMBA:
        yield rule("Mamba, Granite 4, Nemotron-H, Falcon-H1, Jamba", rf"{mamba}\.{name}", *nodes)
    yield rule("Mamba, Granite 4, Nemotron-H, Falcon-H1, Jamba", mamba, "mamba_out-{n}", "attn_out-{n}", "ffn_out-{n}")
    for name, nodes in _SHORT_CONV:
        yield rule("LFM2", rf"{conv}\.{name}", *nodes)
    yield rule("LFM2", conv, "shortconv_out-{n}")
    yield rule("LFM2", r"operator_norm", "attn_norm-{n}")
    yield rule("LFM2", r"self_attn\.q_layernorm", "Qcur_normed-{n}")
    yield rule("LFM2", r"self_attn\.k_layernorm", "Kcur_normed-{n}")
    yield rule("LFM2", r"self_attn\.out_proj", "attn_out-{n}")
    yield NameRule("LFM2", r"(?:model\.)?embedding_norm", ("result_norm",))
    for part in "qkv":
        yield rule("Kimi-Linear", rf"{kda}\.{part}_conv1d", f"{part}_conv_silu-{{n}}")
    for name, node in (
        ("f_b_proj", "kda_g1_proj"), ("b_proj", "kda_beta"), ("g_b_proj", "g2"), ("o_norm", "kda_gated"),
        ("o_proj", "kda_out"),
    ):  # fmt: skip
        yield rule("Kimi-Linear", rf"{kda}\.{name}", f"{node}-{{n}}", *(("mla_out-{n}",) if name == "o_proj" else ()))
    yield rule("Kimi-Linear", kda, "kda_out-{n}", "mla_out-{n}")
    for name, node in (
        (r"(?:pre_ff_layernorm|ffn_norm|norm2)", "ffn_norm"), (r"(?:ln1|attn_norm|norm)", "attn_norm"),
        (r"(?:att|attn)", "time_mix_out"), (r"(?:att|attn)\.(?:receptance|r_proj)", "r"),
        (r"(?:att|attn)\.(?:key|k_proj)", "k_proj"), (r"(?:att|attn)\.(?:value|v_proj)", "v_proj"),
        (r"ln2", "ffn_norm"), (r"ln0|pre_norm", "inp_norm"),
    ):  # fmt: skip
        yield rule("RWKV, and norms", f"(?:{name})", f"{node}-{{n}}")
    yield rule("RWKV, and norms", r"ffn", "channel_mix_gated-{n}", "channel_mix_out-{n}", "ffn_out-{n}")
    yield rule("experts", r"(?:mlp|feed_forward|block_sparse_moe)\.(?:gate|router(?:\.layer)?)", "ffn_moe_logits-{n}")
    yield rule("experts", r"(?:mlp|feed_forward)\.shared_expert_gate", "shared_expert_gate-{n}")
    yield rule("experts", r"(?:mlp|feed_forward|block_sparse_moe)\.shared_experts?", "ffn_shexp-{n}")
    yield rule("experts", r"(?:shared_mlp)", "ffn_shexp-{n}", "ffn_out-{n}")
    yield rule("experts", r"(?:mlp|feed_forward|block_sparse_moe)", "ffn_out-{n}", "ffn_moe_out-{n}")
    for tail, node in (("gate_proj|w1", "ffn_gate"), ("up_proj|w3", "ffn_up"), ("down_proj|w2", "ffn_out")):
        yield rule("experts", rf"feed_forward\.(?:{tail})", f"{node}-{{n}}")
    nothing = r"(?:model\.|backbone\.|rwkv\.)"
    yield NameRule("RWKV, and norms", rf"{nothing}(?:norm_f|final_layernorm|ln_out)", ("result_norm",))
    yield NameRule("RWKV, and norms", rf"{nothing}(?:embeddings|embedding|emb)", ("embd",))
    yield NameRule("RWKV, and norms", _AT_LAYER.removesuffix(r"\."), ("l_out-{n}", "nemotron_h_block_out-{n}"))
    # Caches: `conv_states.3`, `ssm_states[3]`, `past_key_values.recurrent_states.3`, MLX's `cache.3.0`.
    caches = r"(?:past_key_values\.|cache_params\.|cache\.|states\.)*"
    at = rf"[.\[_]{N}\]?"
    yield NameRule("caches", rf"{caches}conv_(?:states?|cache){at}", ("cache_r_l{n}",))
    yield NameRule("caches", rf"{caches}(?:ssm|recurrent)_(?:states?|cache){at}", ("cache_s_l{n}",))
    yield NameRule("caches", rf"(?:past_key_values|cache|kv_cache){at}[.\[_]0\]?", ("cache_r_l{n}",))
    yield NameRule("caches", rf"(?:past_key_values|cache|kv_cache){at}[.\[_]1\]?", ("cache_s_l{n}",))
