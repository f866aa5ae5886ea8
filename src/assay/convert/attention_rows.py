"""Rows of later architectures with attention alone: routed experts, compressed keys and values, encoders."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np

from assay.convert.architecture_row import (
    CORRECTION,
    GATING,
    GEMMA_LAYER,
    STACKED,
    Architecture,
    Keys,
    TensorChange,
    head_dim,
    llama3_factors,
    llama_keys,
    real,
    rope,
    rows_of,
    sliding_theta,
)
from assay.convert.changes import FLAT, half_of, kv_b, padded_rows
from assay.convert.folder import Folder, floats
from assay.errors import AssayError


def routed(folder: Folder) -> Keys:
    """The keys of experts that most of these models have."""
    gating = folder.config.get("scoring_func", folder.config.get("score_function"))
    return {
        "vocab_size": folder.need("vocab_size"),
        "expert_feed_forward_length": folder.setting("moe_intermediate_size"),
        "leading_dense_block_count": folder.setting("first_k_dense_replace"),
        "expert_shared_count": folder.setting("n_shared_experts", "num_shared_experts"),
        "expert_weights_scale": real(folder.setting("routed_scaling_factor")),
        "expert_weights_norm": folder.setting("norm_topk_prob", kind=bool),
        "expert_gating_func": GATING[gating] if gating is not None else None,
    }


def experts_change(folder: Folder, source: str, name: str, layer: int) -> TensorChange | None:
    """Gate and up that are one matrix; a selection bias with an axis of 1."""
    if source.endswith("gate_up_proj"):
        return half_of(0 if "_gate" in name else 1)
    return FLAT if name == "exp_probs_b.bias" else None


def without_tied(folder: Folder, key: str) -> str | None:
    return None if key == "lm_head.weight" and folder.config.get("tie_word_embeddings") else key


def first(folder: Folder, name: str) -> int:
    """A number, or a list with the same number for every layer."""
    found = folder.config.get(name)
    if isinstance(found, list) and found and all(v == found[0] for v in found):
        found = found[0]
    if isinstance(found, bool) or not isinstance(found, int):
        raise AssayError(f"{folder.path}/config.json: {name} is {found!r:.60} (expected one number for all layers)")
    return found


# --- MiniMax-M2, ERNIE 4.5, Hunyuan, Ling 2, dots.llm1


def _minimax(folder: Folder) -> Keys:
    return {
        **routed(folder),
        "expert_feed_forward_length": folder.need("intermediate_size"),
        "rope.dimension_count": folder.need("rotary_dim"),
        "expert_gating_func": GATING[folder.config.get("scoring_func", "sigmoid")],
        "expert_weights_norm": None,
    }


MINIMAX_WHOLE = {
    "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
    "block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.e_score_correction_bias": "exp_probs_b.bias",
    **CORRECTION,
    **STACKED,
}


def _ernie(folder: Folder) -> Keys:
    return {
        "vocab_size": folder.need("vocab_size"),
        "expert_count": folder.need("moe_num_experts"),
        "expert_used_count": folder.need("moe_k"),
        "interleave_moe_layer_step": folder.need("moe_layer_interval"),
        "leading_dense_block_count": folder.need("moe_layer_start_index"),
        "expert_feed_forward_length": folder.need("moe_intermediate_size"),
        "expert_shared_count": folder.setting("moe_num_shared_experts") or None,
        "expert_shared_feed_forward_length": rows_of(folder, ".mlp.shared_experts.up_proj.weight"),
    }


def _ernie_named(folder: Folder, key: str) -> str | None:
    """Draft layers have another form than the model's and are left out."""
    key = key.replace("ernie.", "model.", 1)
    return None if key.startswith("model.mtp_") else without_tied(folder, key)


def _hunyuan(folder: Folder) -> Keys:
    width, found = first(folder, "moe_intermediate_size"), rope(folder)
    keys: Keys = {
        "vocab_size": folder.need("vocab_size"),
        "feed_forward_length": width,
        "expert_feed_forward_length": width,
        "expert_used_count": first(folder, "moe_topk"),
        "expert_shared_count": first(folder, "num_shared_expert"),
        "expert_shared_feed_forward_length": rows_of(folder, ".mlp.shared_mlp.up_proj.weight"),
    }
    alpha = found.get("alpha")
    if found.get("rope_type") == "dynamic" and alpha:  # the base is raised, so that the frequencies fit a longer text
        width = head_dim(folder)
        base = float(found.get("rope_theta", 10000.0)) * float(alpha) ** (width / (width - 2))
        keys |= {"rope.freq_base": base, "rope.scaling.type": "none"}
    return keys


HUNYUAN_LAYER = {
    "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm", "mlp.gate.wg": "ffn_gate_inp",
    "mlp.shared_mlp.gate_proj": "ffn_gate_shexp", "mlp.shared_mlp.up_proj": "ffn_up_shexp",
    "mlp.shared_mlp.down_proj": "ffn_down_shexp",
}  # fmt: skip


def _bailing(folder: Folder) -> Keys:
    width = head_dim(folder)
    share = float(rope(folder).get("partial_rotary_factor", folder.setting("partial_rotary_factor", default=0.5)))
    return {
        **routed(folder),
        "rope.dimension_count": int(width * share),
        "expert_gating_func": GATING[folder.config.get("score_function", "sigmoid")],
        "expert_shared_feed_forward_length": folder.setting("moe_shared_expert_intermediate_size"),
        "attention.key_length": width,
        "attention.value_length": width,
    }


def _bailing_named(folder: Folder, key: str) -> str | None:
    """Draft layers are left out: nothing reads them yet."""
    n, parts = folder.need("num_hidden_layers"), key.split(".")
    if key.startswith("model.layers.") and parts[2].isdecimal() and int(parts[2]) >= n:
        return None
    return without_tied(folder, key)


BAILING_LAYER = {
    "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
    "attention.query_layernorm": "attn_q_norm", "attention.key_layernorm": "attn_k_norm",
}  # fmt: skip


def _dots1(folder: Folder) -> Keys:
    return {**routed(folder), "expert_gating_func": GATING[folder.config.get("scoring_func", "sigmoid")]}


# --- Apertus


def _apertus(folder: Folder) -> Keys:
    """The parameters of the activation are tensors of the folder; in the file they are keys without a prefix."""
    defaults = {"beta": 0.5, "eps": -1e-6}
    keys: Keys = {}
    for name in ("alpha_p", "alpha_n", "beta", "eps"):
        found = []
        for i in range(folder.need("num_hidden_layers")):
            source = folder.tensors.get(f"model.layers.{i}.mlp.act_fn.{name}")
            if source is None and name not in defaults:
                raise AssayError(f"{folder.path}: layer {i} has no mlp.act_fn.{name}")
            found.append(float(np.ravel(floats(source))[0]) if source is not None else defaults[name])
        keys[f".xielu.{name}"] = found
    return {**llama_keys(folder), **keys}


APERTUS_LAYER = {"attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm"}
APERTUS_WHOLE = {f"mlp.act_fn.{name}": "" for name in ("alpha_p", "alpha_n", "beta", "eps")}


# --- Mistral 4

MLA_LAYER = {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_k_b attn_v_b",
}  # fmt: skip


def _mistral4(folder: Folder) -> Keys:
    found = rope(folder)
    rank, turned = folder.need("kv_lora_rank"), folder.need("qk_rope_head_dim")
    heat = found.get("llama_4_scaling_beta")
    trained = found.get("original_max_position_embeddings")
    mscale = found.get("mscale_all_dim")
    return {
        **routed(folder),
        "attention.head_count_kv": 1,
        "leading_dense_block_count": folder.setting("first_k_dense_replace", default=0),
        "attention.q_lora_rank": folder.setting("q_lora_rank"),
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + turned,
        "attention.value_length": rank,
        "attention.key_length_mla": folder.need("qk_nope_head_dim") + turned,
        "attention.value_length_mla": folder.need("v_head_dim"),
        "rope.dimension_count": turned,
        "attention.temperature_scale": real(heat),
        "attention.temperature_length": int(trained) if heat and trained else None,
        "rope.scaling.yarn_log_multiplier": 0.1 * float(mscale) if mscale is not None else None,
    }


def _mla_change(folder: Folder, source: str, name: str, layer: int) -> TensorChange | None:
    if source == "self_attn.kv_b_proj.weight":
        return kv_b(
            folder.need("num_attention_heads"), folder.need("qk_nope_head_dim"), folder.need("v_head_dim"),
            name == "attn_k_b.weight",
        )  # fmt: skip
    return experts_change(folder, source, name, layer)


# --- Gemma 3n


def _gemma3n(folder: Folder) -> Keys:
    kinds = folder.config.get("layer_types")
    if folder.setting("altup_num_inputs", default=4) != 4:
        raise AssayError(f"{folder.path}/config.json: altup_num_inputs is not 4; other numbers are not built")
    widths = folder.config.get("intermediate_size")
    sparsity = folder.config.get("activation_sparsity_pattern")
    return {
        "feed_forward_length": first(folder, "intermediate_size") if isinstance(widths, list) else widths,
        "attention.sliding_window": folder.need("sliding_window"),
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds] if kinds else None,
        "rope.freq_base": float(rope(folder).get("rope_theta", 1e6)),
        "rope.freq_base_swa": sliding_theta(folder),
        "final_logit_softcapping": real(folder.setting("final_logit_softcapping")),
        "attention.key_length": folder.setting("head_dim", default=256),
        "attention.value_length": folder.setting("head_dim", default=256),
        "altup.active_idx": folder.setting("altup_active_idx"),
        "altup.num_inputs": 4,
        "embedding_length_per_layer_input": folder.setting("hidden_size_per_layer_input"),
        "attention.shared_kv_layers": folder.setting("num_kv_shared_layers"),
        "activation_sparsity_scale": [NormalDist().inv_cdf(float(s)) if s else float("-inf") for s in sparsity]
        if isinstance(sparsity, list) and sparsity
        else None,
        "vocab_size": folder.need("vocab_size"),
    }


GEMMA3N_LAYER = {
    **GEMMA_LAYER, "altup.correction_coefs": "altup_correct_coef", "altup.prediction_coefs": "altup_predict_coef",
    "altup.modality_router": "altup_router", "altup.router_norm": "altup_router_norm",
    "laurel.linear_left": "laurel_l", "laurel.linear_right": "laurel_r", "laurel.post_laurel_norm": "laurel_post_norm",
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
}  # fmt: skip
GEMMA3N_TOP = {
    "model.embed_tokens_per_layer": "per_layer_token_embd", "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
}  # fmt: skip
GEMMA3N_STACKS = {
    f"model.{part}.{i}.weight": (f"{name}.weight", i)
    for part, name in (("altup_projections", "altup_proj"), ("altup_unembed_projections", "altup_unembd_proj"))
    for i in range(3)
}


def _gemma3n_change(folder: Folder, source: str, name: str, layer: int) -> TensorChange | None:
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):  # rows of tokens that stand for pictures and sound
        return padded_rows(int(folder.need("vocab_size")))
    return None


# --- ModernBERT

MODERN_BERT_LAYER = {
    "attn_norm": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output", "mlp_norm": "ffn_norm",
    "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down",
}  # fmt: skip
MODERN_BERT_TOP = {
    "model.embeddings.tok_embeddings": "token_embd", "model.embeddings.norm": "token_embd_norm",
    "model.final_norm": "output_norm",
}  # fmt: skip


def _modern_bert(folder: Folder) -> Keys:
    for name in ("attention_bias", "mlp_bias", "norm_bias"):
        if folder.config.get(name):
            raise AssayError(f"{folder.path}/config.json: {name} is set, which a GGUF file of this model cannot say")
    settings: Any = folder.config.get("rope_parameters")
    settings = settings if isinstance(settings, dict) else {}
    bases = [
        settings.get(kind, {}).get("rope_theta", folder.setting(name, default=default))
        for kind, name, default in (
            ("full_attention", "global_rope_theta", 160000.0),
            ("sliding_attention", "local_rope_theta", 10000.0),
        )
    ]
    return {
        "attention.causal": False,
        "attention.head_count_kv": folder.need("num_attention_heads"),
        "attention.layer_norm_epsilon": float(folder.need("norm_eps", "layer_norm_eps")),
        "attention.layer_norm_rms_epsilon": None,
        "attention.sliding_window": folder.need("local_attention", "sliding_window"),
        "attention.sliding_window_pattern": folder.setting("global_attn_every_n_layers"),
        "rope.freq_base": float(bases[0]),
        "rope.freq_base_swa": float(bases[1]),
        "rope.scaling.type": "none",
        "hidden_activation": folder.config.get("hidden_activation", "gelu"),
        "pooling_type": {"cls": 2, "mean": 1}.get(folder.config.get("classifier_pooling", "mean"), 1),
        "vocab_size": folder.need("vocab_size"),
        ".tokenizer.ggml.add_bos_token": True,
        ".tokenizer.ggml.add_eos_token": True,
        ".tokenizer.ggml.add_sep_token": True,
    }


def _modern_bert_named(folder: Folder, key: str) -> str | None:
    """The encoder alone: heads for masked words and classes are left out."""
    key = key.removeprefix("model.")
    return f"model.{key}" if key.startswith(("embeddings.", "layers.", "final_norm.")) else None


def _mistral3_name(folder: Folder) -> str:
    if folder.config.get("model_type") != "mistral4":
        raise AssayError(
            f"{folder.path}/config.json: model_type of the text model is not mistral4; others of this class are unknown"
        )
    return "mistral4"


MODERN_BERT = Architecture(
    "modern-bert", MODERN_BERT_LAYER, _modern_bert, top=MODERN_BERT_TOP, rename=_modern_bert_named
)
MISTRAL4 = Architecture(
    "mistral4", MLA_LAYER, _mistral4, whole={**CORRECTION, **STACKED}, change=_mla_change, rename=without_tied,
    named=_mistral3_name,
)  # fmt: skip
GEMMA3N = Architecture(
    "gemma3n", GEMMA3N_LAYER, _gemma3n, top=GEMMA3N_TOP, stacks=GEMMA3N_STACKS, change=_gemma3n_change, tied=True,
    whole={"altup.correct_output_scale": "altup_correct_scale.weight"},
)  # fmt: skip

ROWS: dict[str, Architecture] = {
    "MiniMaxM2ForCausalLM": Architecture("minimax-m2", keys=_minimax, whole=MINIMAX_WHOLE, change=experts_change),
    "Ernie4_5_MoeForCausalLM": Architecture(
        "ernie4_5-moe", keys=_ernie, rename=_ernie_named, change=experts_change,
        whole={"mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias", **STACKED},
    ),
    "HunYuanMoEV1ForCausalLM": Architecture(
        "hunyuan-moe", HUNYUAN_LAYER, _hunyuan, rename=without_tied, whole=STACKED, change=experts_change
    ),
    "BailingMoeV2ForCausalLM": Architecture(
        "bailingmoe2", BAILING_LAYER, _bailing, top={"model.word_embeddings": "token_embd"}, rename=_bailing_named,
        whole={"mlp.gate.expert_bias": "exp_probs_b.bias", **STACKED}, change=experts_change,
    ),
    "Dots1ForCausalLM": Architecture("dots1", keys=_dots1, whole={**CORRECTION, **STACKED}, change=experts_change),
    "ApertusForCausalLM": Architecture(
        "apertus", APERTUS_LAYER, _apertus, whole=APERTUS_WHOLE, extra=llama3_factors
    ),
    "ArceeForCausalLM": Architecture("arcee", keys=llama_keys, pairs=True, extra=llama3_factors),
    "Mistral4ForCausalLM": MISTRAL4,
    "Mistral3ForConditionalGeneration": MISTRAL4,
    "Gemma3nForCausalLM": GEMMA3N,
    "Gemma3nForConditionalGeneration": GEMMA3N,
    "ModernBertModel": MODERN_BERT,
    "ModernBertForMaskedLM": MODERN_BERT,
    "ModernBertForSequenceClassification": MODERN_BERT,
}  # fmt: skip
