"""Rows of architectures with short convolutions and delta rules: LFM2, Qwen3.5, Qwen3-Next, Kimi-Linear.

`ssm_a` is -exp(A_log) in a file. Convolutions lose their middle axis. A draft head (`mtp.*`) is one more layer, the
last of `block_count`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from assay.convert.architecture_row import (
    AFTER,
    GATING,
    STACKED,
    Architecture,
    Array,
    Keys,
    TensorChange,
    head_dim,
    layer_kinds,
    refuse,
    rope,
)
from assay.convert.changes import (
    FLAT,
    NEGATIVE_EXP,
    SQUEEZED,
    halves,
    kv_b,
    tiled,
)
from assay.convert.folder import Folder
from assay.errors import AssayError

# --- LFM2

LFM2_LAYER = {
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj", "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm", "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down", "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down", "feed_forward.gate": "ffn_gate_inp",
}  # fmt: skip
LFM2_WHOLE = {
    "feed_forward.expert_bias": "exp_probs_b.bias",
    "feed_forward.experts.gate_up_proj": "ffn_gate_exps.weight ffn_up_exps.weight",
    "feed_forward.experts.down_proj": "ffn_down_exps.weight",
}


def _lfm2(folder: Folder) -> Keys:
    refuse(folder, "conv_bias")
    kinds = layer_kinds(folder)
    full = folder.config.get("full_attn_idxs")
    if not kinds and isinstance(full, list):
        kinds = ["full_attention" if i in full else "conv" for i in range(folder.need("num_hidden_layers"))]
    heads = folder.need("num_key_value_heads")
    return {
        "attention.head_count_kv": [0 if kind == "conv" else heads for kind in kinds] or heads,
        "attention.layer_norm_rms_epsilon": float(folder.need("norm_eps", "block_norm_eps")),
        "shortconv.l_cache": folder.need("conv_L_cache"),
        "vocab_size": folder.need("vocab_size"),
        "feed_forward_length": _lfm2_width(folder),
    }


def _lfm2_width(folder: Folder) -> int:
    """The width of the feed-forward part: two thirds of the setting, rounded up, unless the setting is final."""
    width = int(folder.need("block_ff_dim", "intermediate_size"))
    if not folder.config.get("block_auto_adjust_ff_dim"):
        return width
    width = int(2 * width / 3)
    factor, multiple = folder.setting("block_ffn_dim_multiplier"), int(folder.need("block_multiple_of"))
    width = width if factor is None else int(factor * width)
    return multiple * -(-width // multiple)


def _lfm2moe(folder: Folder) -> Keys:
    return {
        **_lfm2(folder),
        "feed_forward_length": folder.need("intermediate_size"),
        "expert_feed_forward_length": folder.need("moe_intermediate_size"),
        "leading_dense_block_count": folder.need("num_dense_layers"),
        "expert_gating_func": GATING["sigmoid"],
    }


def _lfm2_change(folder: Folder, source: str, name: str, layer: int) -> TensorChange | None:
    if name == "shortconv.conv.weight":
        return SQUEEZED
    return halves(source, name)


def _lfm2_named(folder: Folder, key: str) -> str | None:
    return key.replace("model.embedding_norm.", "model.norm.", 1)


LFM2 = Architecture(
    "lfm2", LFM2_LAYER, _lfm2, top={"model.norm": "token_embd_norm"}, whole=LFM2_WHOLE, rename=_lfm2_named,
    change=_lfm2_change,
)  # fmt: skip
LFM2MOE = Architecture(
    "lfm2moe", LFM2_LAYER, _lfm2moe, top={"model.norm": "token_embd_norm"}, whole=LFM2_WHOLE, rename=_lfm2_named,
    change=_lfm2_change,
)  # fmt: skip


# --- Qwen3.5, Qwen3-Next

QWEN_LAYER = {
    **AFTER, "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_qkvz": "attn_qkv attn_gate", "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out", "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm", "hnorm": "nextn.hnorm", "shared_head_norm": "nextn.shared_head_norm",
}  # fmt: skip
QWEN_WHOLE = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias", **STACKED}
DRAFT = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head_norm"}


def _qwen_named(folder: Folder, key: str) -> str | None:
    """The draft head's tensors are those of one more layer."""
    key = key.replace("model.mtp.", "mtp.", 1)
    if not key.startswith("mtp."):
        return key
    last = folder.need("num_hidden_layers")
    found = re.fullmatch(r"mtp\.layers\.0\.(.+)", key)
    if found:
        return f"model.layers.{last}.{found[1]}"
    stem, _, suffix = key.removeprefix("mtp.").rpartition(".")
    if stem not in DRAFT:
        raise AssayError(f"{folder.path}: tensor {key!r:.100}: a draft head of several layers is not supported")
    return f"model.layers.{last}.{DRAFT[stem]}.{suffix}"


def _has_draft(folder: Folder) -> bool:
    return any(name.removeprefix("model.").startswith("mtp.") for name in folder.tensors)


def _qwen_sizes(folder: Folder) -> tuple[int, int, int, int]:
    """Key heads, value heads for each of them, and the widths of both."""
    heads = int(folder.need("linear_num_key_heads"))
    values = int(folder.need("linear_num_value_heads"))
    if heads < 1 or values < 1 or values % heads:
        raise AssayError(f"{folder.path}/config.json: {values} value heads for {heads} key heads")
    return heads, values // heads, int(folder.need("linear_key_head_dim")), int(folder.need("linear_value_head_dim"))


def _qwen(folder: Folder) -> Keys:
    heads, each, key_width, value_width = _qwen_sizes(folder)
    n, drafts = folder.need("num_hidden_layers"), int(_has_draft(folder))
    every = folder.setting("full_attention_interval", default=4)
    recurrent = [kind != "attention" for kind in layer_kinds(folder)]
    regular = recurrent == [(i + 1) % every != 0 for i in range(len(recurrent))]
    share = float(rope(folder).get("partial_rotary_factor", folder.setting("partial_rotary_factor", default=0.25)))
    return {
        "block_count": n + drafts,
        "vocab_size": folder.need("vocab_size"),
        "nextn_predict_layers": drafts or None,
        "ssm.conv_kernel": folder.need("linear_conv_kernel_dim"),
        "ssm.state_size": key_width,
        "ssm.group_count": heads,
        "ssm.time_step_rank": heads * each,
        "ssm.inner_size": heads * each * value_width,
        "full_attention_interval": every if regular else None,
        "attention.recurrent_layers": None if regular else recurrent + [False] * drafts,
        "rope.dimension_count": int(head_dim(folder) * share),
        "expert_feed_forward_length": folder.setting("moe_intermediate_size"),
        "expert_shared_feed_forward_length": folder.setting("shared_expert_intermediate_size"),
        "attention.key_length": head_dim(folder),
        "attention.value_length": head_dim(folder),
    }


def _qwen35(folder: Folder) -> Keys:
    sections = rope(folder).get("mrope_section", [11, 11, 10])
    return {**_qwen(folder), "rope.dimension_sections": [int(n) for n in (*sections, 0, 0, 0, 0)[:4]]}


def _qwen_change(folder: Folder, source: str, name: str, layer: int) -> TensorChange | None:
    """Changes without a new order: Qwen3-Next keeps the order of value heads."""
    heads, each, key_width, value_width = _qwen_sizes(folder)
    if name == "ssm_a":
        return NEGATIVE_EXP
    if name == "ssm_conv1d.weight":
        return SQUEEZED
    if source == "linear_attn.in_proj_qkvz.weight":  # key head by key head: q, k, its values, their gates
        return _by_key_head(
            heads, (key_width, key_width, each * value_width, each * value_width), name == "attn_gate.weight"
        )
    return halves(source, name)


def _by_key_head(heads: int, widths: tuple[int, int, int, int], gate: bool) -> TensorChange:
    ends = np.cumsum(widths)

    def values(x: Array) -> Array:
        parts = np.split(x.reshape(heads, int(ends[-1]), -1), ends[:-1].tolist(), axis=1)
        return np.concatenate([part.reshape(-1, x.shape[-1]) for part in (parts[3:] if gate else parts[:3])])

    rows = heads * (widths[3] if gate else int(ends[2]))
    return TensorChange(values, lambda s: (rows, s[-1]))


def _qwen35_change(folder: Folder, source: str, name: str, layer: int) -> TensorChange | None:
    """Value heads are reordered: head h uses key head h mod groups, in the folder h div (heads / groups)."""
    if not source.startswith("linear_attn."):
        return halves(source, name)
    heads, each, key_width, value_width = _qwen_sizes(folder)
    keys = 2 * heads * key_width

    def after_keys(x: Array) -> Array:
        return np.concatenate([x[:keys], tiled(x[keys:], heads, each, value_width)])

    def by_head(x: Array) -> Array:
        return tiled(x, heads, each, 1)

    return {
        "attn_qkv.weight": TensorChange(after_keys),
        "ssm_conv1d.weight": TensorChange(lambda x: after_keys(SQUEEZED.values(x)), SQUEEZED.shape),
        "attn_gate.weight": TensorChange(lambda x: tiled(x, heads, each, value_width)),
        "ssm_beta.weight": TensorChange(by_head),
        "ssm_alpha.weight": TensorChange(by_head),
        "ssm_dt.bias": TensorChange(by_head),
        "ssm_a": TensorChange(lambda x: by_head(-np.exp(x))),
        "ssm_out.weight": TensorChange(lambda x: tiled(x, heads, each, value_width, axis=1)),
    }.get(name)


def _qwen_row(name: str, keys: Any, change: Any) -> Architecture:
    return Architecture(
        name, QWEN_LAYER, keys, shifted_norms=True, unshifted="linear_attn.", whole=QWEN_WHOLE, rename=_qwen_named,
        change=change,
    )  # fmt: skip


QWEN35 = _qwen_row("qwen35", _qwen35, _qwen35_change)
QWEN35MOE = _qwen_row("qwen35moe", _qwen35, _qwen35_change)


# --- Kimi-Linear

KIMI_LAYER = {
    "self_attn.q_conv1d": "ssm_conv1d_q", "self_attn.k_conv1d": "ssm_conv1d_k", "self_attn.v_conv1d": "ssm_conv1d_v",
    "self_attn.f_a_proj": "ssm_f_a", "self_attn.f_b_proj": "ssm_f_b", "self_attn.b_proj": "ssm_beta",
    "self_attn.g_a_proj": "ssm_g_a", "self_attn.g_b_proj": "ssm_g_b", "self_attn.o_norm": "ssm_norm",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_k_b attn_v_b", "block_sparse_moe.shared_experts.gate_proj": "ffn_gate_shexp",
    "block_sparse_moe.shared_experts.up_proj": "ffn_up_shexp",
    "block_sparse_moe.shared_experts.down_proj": "ffn_down_shexp",
    "block_sparse_moe.gate_proj": "ffn_gate",  # of dense layers, as newer folders call them
    "block_sparse_moe.up_proj": "ffn_up",
    "block_sparse_moe.down_proj": "ffn_down",
}  # fmt: skip
KIMI_WHOLE = {
    "self_attn.A_log": "ssm_a",
    "self_attn.dt_bias": "ssm_dt.bias",
    "block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b.bias",
}


def _kimi(folder: Folder) -> Keys:
    linear = folder.config.get("linear_attn_config") or _kimi_settings(folder)
    if folder.setting("q_lora_rank") is not None:
        raise AssayError(f"{folder.path}/config.json: q_lora_rank is set; compressed queries are not supported here")
    rank, turned = folder.need("kv_lora_rank"), folder.need("qk_rope_head_dim")
    n = folder.need("num_hidden_layers")
    return {
        "attention.head_count_kv": [int(i + 1 in linear["full_attn_layers"]) for i in range(n)],
        "ssm.conv_kernel": int(linear["short_conv_kernel_size"]),
        "kda.head_dim": int(linear["head_dim"]),
        "attention.kv_lora_rank": rank,
        "rope.dimension_count": turned,
        "attention.key_length": rank + turned,
        "attention.value_length": rank,
        "attention.key_length_mla": folder.need("qk_nope_head_dim") + turned,
        "attention.value_length_mla": folder.need("v_head_dim"),
        "expert_used_count": folder.need("num_experts_per_token", "num_experts_per_tok"),
        "expert_feed_forward_length": folder.need("moe_intermediate_size"),
        "expert_shared_count": folder.need("num_shared_experts"),
        "leading_dense_block_count": folder.need("first_k_dense_replace"),
        "expert_weights_scale": float(folder.need("routed_scaling_factor")),
        "expert_gating_func": GATING[folder.config.get("moe_router_activation_func", "sigmoid")],
        "vocab_size": folder.need("vocab_size"),
    }


def _kimi_settings(folder: Folder) -> dict[str, Any]:
    """Newer configurations have the settings of linear attention at the top."""
    kinds = layer_kinds(folder)
    return {
        "full_attn_layers": [i + 1 for i, kind in enumerate(kinds) if kind == "attention"],
        "short_conv_kernel_size": folder.need("linear_conv_kernel_dim"),
        "head_dim": folder.need("linear_head_dim"),
    }


def _kimi_change(folder: Folder, source: str, name: str, layer: int) -> TensorChange | None:
    if name.startswith("ssm_conv1d_"):
        return TensorChange(lambda x: x.reshape(1, x.shape[0], 1, x.shape[-1]), lambda s: (1, s[0], 1, s[-1]))
    if name == "ssm_a":
        return TensorChange(lambda x: -np.exp(x.reshape(1, 1, -1, 1)), lambda s: (1, 1, FLAT.shape(s)[0], 1))
    if source == "self_attn.kv_b_proj.weight":
        return kv_b(
            folder.need("num_attention_heads"), folder.need("qk_nope_head_dim"), folder.need("v_head_dim"),
            name == "attn_k_b.weight",
        )  # fmt: skip
    return FLAT if name == "ssm_dt.bias" else halves(source, name)


KIMI = Architecture("kimi-linear", KIMI_LAYER, _kimi, whole=KIMI_WHOLE, change=_kimi_change)

ROWS: dict[str, Architecture] = {
    "Lfm2ForCausalLM": LFM2,
    "LFM2ForCausalLM": LFM2,
    "Lfm2MoeForCausalLM": LFM2MOE,
    "Qwen3_5ForCausalLM": QWEN35,
    "Qwen3_5ForConditionalGeneration": QWEN35,
    "Qwen3_5MoeForCausalLM": QWEN35MOE,
    "Qwen3_5MoeForConditionalGeneration": QWEN35MOE,
    "Qwen3NextForCausalLM": _qwen_row("qwen3next", _qwen, _qwen_change),
    "KimiLinearForCausalLM": KIMI,
}
