"""Rows of Mamba, Mamba-2 and the hybrids that have them: Granite 4, Nemotron-H, Falcon-H1, Jamba.

`ssm_a` is -exp(A_log) in a file. Convolutions lose their middle axis.
"""

from __future__ import annotations

import re

import numpy as np

from assay.convert.architecture_row import (
    Architecture,
    Keys,
    TensorChange,
    head_dim,
    layer_kinds,
    real,
    refuse,
)
from assay.convert.changes import (
    FLAT,
    NEGATIVE_EXP,
    SQUEEZED,
    half_of,
    halves,
    paired,
    rows_scaled,
    scaled,
)
from assay.convert.folder import Folder
from assay.errors import AssayError

UNLIMITED = 1 << 20  # context of a model whose state does not grow
STACKED_BELOW = {
    "feed_forward.experts.gate_up_proj": "ffn_gate_exps.weight ffn_up_exps.weight",
    "feed_forward.experts.down_proj": "ffn_down_exps.weight",
}


def ssm_keys(folder: Folder, kernel: str, inner: int, state: str, heads: int, groups: str | None) -> Keys:
    return {
        "ssm.conv_kernel": folder.need(kernel),
        "ssm.inner_size": inner,
        "ssm.state_size": folder.need(state),
        "ssm.time_step_rank": heads,
        "ssm.group_count": folder.need(groups) if groups else None,
    }


# --- Mamba-2 and its hybrids

MIXER = {
    "in_proj": "ssm_in", "conv1d": "ssm_conv1d", "out_proj": "ssm_out", "norm": "ssm_norm", "x_proj": "ssm_x",
    "dt_proj": "ssm_dt", "dt_layernorm": "ssm_dt_norm", "b_layernorm": "ssm_b_norm", "c_layernorm": "ssm_c_norm",
}  # fmt: skip
MIXER_WHOLE = {"A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt.bias"}


def _below(prefix: str, names: dict[str, str]) -> dict[str, str]:
    return {f"{prefix}.{key}": name for key, name in names.items()}


def _backbone(folder: Folder, key: str) -> str | None:
    """`backbone.layers.N` is `model.layers.N`."""
    key = key.removeprefix("model.") if key.startswith(("model.backbone.", "model.lm_head.")) else key
    key = f"model.{key.removeprefix('backbone.')}" if key.startswith("backbone.") else key
    return None if key == "lm_head.weight" and folder.config.get("tie_word_embeddings") else key


MAMBA_TOP = {
    "model.embeddings": "token_embd", "model.embedding": "token_embd", "model.norm_f": "output_norm",
    "model.final_layernorm": "output_norm",
}  # fmt: skip


def _mamba2_change(folder: Folder, source: str, name: str, layer: int) -> TensorChange | None:
    """Scalars of a head are a column; the norm has a row for each group."""
    if name == "ssm_conv1d.weight":
        return SQUEEZED
    if name == "ssm_a":
        return TensorChange(lambda x: -np.exp(x.reshape(-1, 1)), lambda s: (FLAT.shape(s)[0], 1))
    if name == "ssm_d":
        return TensorChange(lambda x: x.reshape(-1, 1), lambda s: (FLAT.shape(s)[0], 1))
    if name == "ssm_norm.weight":
        groups = int(folder.need("n_groups", "mamba_n_groups"))
        return TensorChange(lambda x: x.reshape(groups, -1), lambda s: (groups, FLAT.shape(s)[0] // groups))
    return halves(source, name)


def _mamba2(folder: Folder) -> Keys:
    refuse(folder, "use_bias")
    width = folder.need("hidden_size")
    inner = int(folder.setting("expand", default=2)) * width
    heads = folder.setting("num_heads") or inner // folder.need("head_dim")
    return {
        **ssm_keys(folder, "conv_kernel", inner, "state_size", heads, "n_groups"),
        **_no_attention(folder),
    }


def _no_attention(folder: Folder) -> Keys:
    return {
        "context_length": UNLIMITED,
        "embedding_length": folder.need("hidden_size"),
        "block_count": folder.need("num_hidden_layers", "n_layer"),
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": float(folder.setting("layer_norm_epsilon", "rms_norm_eps", default=1e-5)),
        "vocab_size": folder.need("vocab_size"),
    }


MAMBA2 = Architecture(
    "mamba2", {"norm": "attn_norm", **_below("mixer", MIXER)}, _mamba2, common=False, top=MAMBA_TOP,
    whole=_below("mixer", MIXER_WHOLE), rename=_backbone, change=_mamba2_change, padded=True,
)  # fmt: skip


def _mamba(folder: Folder) -> Keys:
    refuse(folder, "use_bias")
    width = folder.need("hidden_size")
    inner = int(folder.setting("intermediate_size", default=2 * width))
    if inner != 2 * width:
        raise AssayError(f"{folder.path}/config.json: intermediate_size is {inner} (expected {2 * width})")
    rank = folder.setting("time_step_rank") or -(-width // 16)
    falcon = folder.config.get("model_type") == "falcon_mamba"
    return {
        **ssm_keys(folder, "conv_kernel", inner, "state_size", rank, None),
        **_no_attention(folder),
        "ssm.dt_b_c_rms": falcon,
    }


def _mamba_change(folder: Folder, source: str, name: str, layer: int) -> TensorChange | None:
    if name == "ssm_conv1d.weight":
        return SQUEEZED
    return NEGATIVE_EXP if name == "ssm_a" else halves(source, name)


MAMBA = Architecture(
    "mamba", MAMBA2.layer, _mamba, common=False, top=MAMBA_TOP, whole=MAMBA2.whole, rename=_backbone,
    change=_mamba_change, padded=True,
)  # fmt: skip


# --- Granite 4

GRANITE_LAYER = {
    **_below("mamba", MIXER), "block_sparse_moe.router.layer": "ffn_gate_inp",
    "block_sparse_moe.input_linear": "ffn_gate_exps ffn_up_exps", "block_sparse_moe.output_linear": "ffn_down_exps",
    "shared_mlp.input_linear": "ffn_gate_shexp ffn_up_shexp", "shared_mlp.output_linear": "ffn_down_shexp",
}  # fmt: skip
GRANITE_SCALES = {
    "attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
}  # fmt: skip


def _granite_named(folder: Folder, key: str) -> str | None:
    """Without experts, the shared part is the feed-forward part."""
    if not folder.config.get("num_local_experts"):
        key = key.replace(".shared_mlp.input_linear.", ".dense_input.").replace(
            ".shared_mlp.output_linear.", ".mlp.down_proj."
        )
    return None if key == "lm_head.weight" and folder.config.get("tie_word_embeddings") else key


def _granite_kinds(folder: Folder) -> list[str]:
    return layer_kinds(folder) or layer_kinds(folder, "layers_block_type")


def _granite_name(folder: Folder) -> str:
    """A model of this family without recurrent layers is a plain Granite."""
    if "mamba" in _granite_kinds(folder):
        return "granitehybrid"
    return "granitemoe" if folder.config.get("num_local_experts") else "granite"


def _granite(folder: Folder) -> Keys:
    refuse(folder, "mamba_proj_bias", "attention_bias")
    kinds, experts = _granite_kinds(folder), folder.config.get("num_local_experts")
    scales = {key: real(folder.setting(name)) for key, name in GRANITE_SCALES.items()}
    shared = folder.setting("shared_intermediate_size")
    keys: Keys = {
        **scales,
        "vocab_size": folder.need("vocab_size"),
        "feed_forward_length": folder.need("intermediate_size")
        if experts
        else (shared or folder.need("intermediate_size")),
        "expert_shared_feed_forward_length": shared if experts else None,
        "expert_count": experts or None,
        "expert_used_count": folder.setting("num_experts_per_tok") if experts else None,
        "rope.dimension_count": head_dim(folder),
    }
    if "mamba" not in kinds:
        return keys
    turned = folder.config.get("position_embedding_type") == "rope"
    width, heads = folder.need("hidden_size"), folder.need("num_key_value_heads")
    inner = int(folder.setting("mamba_expand", default=2)) * width
    return {
        **keys,
        **ssm_keys(folder, "mamba_d_conv", inner, "mamba_d_state", folder.need("mamba_n_heads"), "mamba_n_groups"),
        "attention.head_count_kv": [heads if kind == "attention" else 0 for kind in kinds],
        "rope.scaling.finetuned": turned,
        **({} if turned else {"context_length": UNLIMITED}),
    }


def _granite_change(folder: Folder, source: str, name: str, layer: int) -> TensorChange | None:
    if source == "dense_input.weight":
        return half_of(0 if name == "ffn_gate.weight" else 1)
    if source in ("self_attn.q_proj.weight", "self_attn.k_proj.weight"):
        n = folder.need("num_attention_heads" if ".q_" in source else "num_key_value_heads")
        return TensorChange(lambda x: paired(x, n))
    return _mamba2_change(folder, source, name, layer)


GRANITE = Architecture(
    "granitehybrid", {**GRANITE_LAYER, "dense_input": "ffn_gate ffn_up"}, _granite, whole=_below("mamba", MIXER_WHOLE),
    rename=_granite_named, change=_granite_change, named=_granite_name, padded=True,
)  # fmt: skip


# --- Nemotron-H

NEMOTRON_LAYER = {
    "norm": "attn_norm", **_below("mixer", MIXER), "mixer.q_proj": "attn_q", "mixer.k_proj": "attn_k",
    "mixer.v_proj": "attn_v", "mixer.o_proj": "attn_output", "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down",
    "mixer.gate": "ffn_gate_inp", "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp", "mixer.fc1_latent_proj": "ffn_latent_down",
    "mixer.fc2_latent_proj": "ffn_latent_up", "eh_proj": "nextn.eh_proj", "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm", "post_attention_norm": "post_attention_norm", "shared_head_norm": "nextn.shared_head_norm",
}  # fmt: skip
NEMOTRON_WHOLE = {
    **_below("mixer", MIXER_WHOLE),
    "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mixer.experts.up_proj": "ffn_up_exps.weight",
    "mixer.experts.down_proj": "ffn_down_exps.weight",
}
BLOCK_KINDS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _nemotron_kinds(folder: Folder) -> list[str]:
    pattern = folder.config.get("hybrid_override_pattern")
    if not isinstance(pattern, str):
        return layer_kinds(folder, "layers_block_type")
    n = folder.setting("num_hidden_layers", default=len(pattern))
    if len(pattern) != n or not set(pattern) <= set(BLOCK_KINDS):
        raise AssayError(f"{folder.path}/config.json: hybrid_override_pattern is not {n} of {' '.join(BLOCK_KINDS)}")
    return [BLOCK_KINDS[letter] for letter in pattern]


def _nemotron_named(folder: Folder, key: str) -> str | None:
    """The draft head has two layers in the folder: attention with what comes before it, and experts with the norms."""
    found = re.fullmatch(r"mtp\.layers\.([01])\.(.+)", key)
    if not found:
        return _backbone(folder, key)
    rest = found[2]
    if found[1] == "1":
        rest = rest.replace("final_layernorm.", "shared_head_norm.", 1)
        rest = f"post_attention_{rest}" if rest.startswith("norm.") else rest
    return f"model.layers.{len(_nemotron_kinds(folder))}.{rest}"


def _nemotron(folder: Folder) -> Keys:
    refuse(folder, "use_bias", "mamba_proj_bias", "attention_bias", "mlp_bias")
    kinds = _nemotron_kinds(folder)
    drafts = int(any(name.startswith("mtp.") for name in folder.tensors))
    kinds = kinds + ["draft"] * drafts
    moe = "moe" in kinds
    heads, width = folder.need("num_key_value_heads"), folder.need("head_dim", "attention_head_dim")
    n_ff = folder.need("moe_intermediate_size" if moe else "intermediate_size")
    eps = float(folder.need("layer_norm_epsilon", "norm_eps", "rms_norm_eps"))
    inner = int(folder.need("mamba_num_heads")) * int(folder.need("mamba_head_dim"))
    keys: Keys = {
        "block_count": len(kinds),
        "nextn_predict_layers": drafts or None,
        **ssm_keys(folder, "conv_kernel", inner, "ssm_state_size", folder.need("mamba_num_heads"), "n_groups"),
        "attention.head_count_kv": [heads if kind in ("attention", "draft") else 0 for kind in kinds],
        "feed_forward_length": [n_ff if kind in ("mlp", "moe", "draft") else 0 for kind in kinds],
        "attention.key_length": width,
        "attention.value_length": width,
        "attention.layer_norm_epsilon": eps,
        "attention.layer_norm_rms_epsilon": float(folder.setting("rms_norm_eps", default=eps)),
        "vocab_size": folder.need("vocab_size"),
        "expert_count": None,
        "expert_used_count": None,
        "expert_group_count": None,
        "expert_group_used_count": None,
    }
    if not moe:
        return keys
    return {
        **keys,
        "expert_count": folder.need("n_routed_experts"),
        "expert_used_count": folder.need("num_experts_per_tok"),
        "expert_feed_forward_length": n_ff,
        "expert_shared_feed_forward_length": folder.need("moe_shared_expert_intermediate_size"),
        "expert_shared_count": folder.need("n_shared_experts"),
        "expert_weights_norm": bool(folder.setting("norm_topk_prob", default=True, kind=bool)),
        "expert_weights_scale": float(folder.need("routed_scaling_factor")),
        "expert_group_count": folder.setting("n_group"),
        "moe_latent_size": folder.setting("moe_latent_size"),
    }


NEMOTRON = Architecture(
    "nemotron_h", NEMOTRON_LAYER, _nemotron, top=MAMBA_TOP, whole=NEMOTRON_WHOLE, rename=_nemotron_named,
    change=_mamba2_change, padded=True,
    named=lambda folder: "nemotron_h_moe" if "moe" in _nemotron_kinds(folder) else "nemotron_h",
)  # fmt: skip


# --- Falcon-H1

FALCON_LAYER = {
    **_below("mamba", MIXER), "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
}  # fmt: skip
FALCON_WHOLE = {**_below("mamba", MIXER_WHOLE), "pre_ff_layernorm.weight": "ffn_norm"}


def _falcon_h1(folder: Folder) -> Keys:
    refuse(folder, "mamba_proj_bias", "attention_bias", "mlp_bias", "projectors_bias")
    if folder.config.get("mamba_rms_norm") and folder.config.get("mamba_norm_before_gate"):
        refuse(folder, "mamba_norm_before_gate")
    inner = int(folder.setting("mamba_d_ssm") or folder.need("mamba_expand") * folder.need("hidden_size"))
    heads = inner // int(folder.need("mamba_d_head"))
    return {
        **ssm_keys(folder, "mamba_d_conv", inner, "mamba_d_state", heads, "mamba_n_groups"),
        "attention.key_length": head_dim(folder),
        "attention.value_length": head_dim(folder),
        "vocab_size": folder.need("vocab_size"),
    }


def _falcon_named(folder: Folder, key: str) -> str | None:
    return None if key == "lm_head.weight" and folder.config.get("tie_word_embeddings") else key


def _falcon_also(folder: Folder, name: str, layer: int) -> str:
    """Embedding and head have different multipliers, so a tied matrix is written twice."""
    return "output.weight" if name == "token_embd.weight" and "lm_head.weight" not in _kept(folder) else ""


def _kept(folder: Folder) -> set[str]:
    return {key for key in folder.tensors if _falcon_named(folder, key)}


def _falcon_change(folder: Folder, source: str, name: str, layer: int) -> TensorChange | None:
    """Every multiplier of the configuration is folded into a weight."""

    def one(key: str) -> float:
        return float(folder.setting(key, default=1.0))

    def several(key: str, n: int) -> list[float]:
        found = folder.config.get(key)
        return [float(v) for v in found] if isinstance(found, list) and len(found) == n else [1.0] * n

    gate, down = several("mlp_multipliers", 2)
    inside = one("attention_in_multiplier")
    factors = {
        "token_embd.weight": one("embedding_multiplier"), "output.weight": one("lm_head_multiplier"),
        "attn_q.weight": inside, "attn_v.weight": inside, "attn_k.weight": inside * one("key_multiplier"),
        "attn_output.weight": one("attention_out_multiplier"), "ffn_gate.weight": gate, "ffn_down.weight": down,
        "ssm_out.weight": one("ssm_out_multiplier"),
    }  # fmt: skip
    if name in factors:
        return scaled(factors[name]) if factors[name] != 1 else None
    if name == "ssm_in.weight":
        keys = _falcon_h1(folder)
        states = keys["ssm.group_count"] * keys["ssm.state_size"]
        sizes = (keys["ssm.inner_size"], keys["ssm.inner_size"], states, states, keys["ssm.time_step_rank"])
        whole = one("ssm_in_multiplier")
        parts = several("ssm_multipliers", 5)
        return rows_scaled([(n, whole * part) for n, part in zip(sizes, parts, strict=True)])
    return _mamba2_change(folder, source, name, layer)


FALCON_H1 = Architecture(
    "falcon-h1", FALCON_LAYER, _falcon_h1, top=MAMBA_TOP, whole=FALCON_WHOLE, rename=_falcon_named,
    change=_falcon_change, also=_falcon_also,
)  # fmt: skip


# --- Jamba

JAMBA_LAYER = {
    **_below("mamba", MIXER), "pre_ff_layernorm": "ffn_norm", "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down", "feed_forward.router": "ffn_gate_inp",
}  # fmt: skip


def _jamba(folder: Folder) -> Keys:
    refuse(folder, "mamba_proj_bias")
    offset, period = folder.need("attn_layer_offset"), folder.need("attn_layer_period")
    heads, width = folder.need("num_key_value_heads"), folder.need("hidden_size")
    inner = int(folder.setting("mamba_expand", default=2)) * width
    rank = folder.setting("mamba_dt_rank") or -(-width // 16)
    n = folder.need("num_hidden_layers")
    return {
        **ssm_keys(folder, "mamba_d_conv", inner, "mamba_d_state", rank, None),
        "attention.head_count_kv": [heads if i >= offset and (i - offset) % period == 0 else 0 for i in range(n)],
        "attention.layer_norm_rms_epsilon": float(folder.setting("rms_norm_eps", "layer_norm_epsilon", default=1e-6)),
        "vocab_size": folder.need("vocab_size"),
        "rope.freq_base": None,
        "attention.layer_norm_epsilon": None,
    }


JAMBA = Architecture(
    "jamba", JAMBA_LAYER, _jamba, top=MAMBA_TOP, rename=_falcon_named, change=_mamba_change,
    whole={**_below("mamba", MIXER_WHOLE), **STACKED_BELOW},
)  # fmt: skip

ROWS: dict[str, Architecture] = {
    "Mamba2ForCausalLM": MAMBA2,
    "MambaForCausalLM": MAMBA,
    "FalconMambaForCausalLM": MAMBA,
    "GraniteMoeHybridForCausalLM": GRANITE,
    "NemotronHForCausalLM": NEMOTRON,
    "FalconH1ForCausalLM": FALCON_H1,
    "JambaForCausalLM": JAMBA,
}
