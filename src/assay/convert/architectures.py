"""The differences between architectures: tensor names, changes of their values, and metadata keys.

A new architecture is a row of `ARCHITECTURES`, under its name in config.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.convert.folder import Folder

Array = NDArray[np.float32]
Keys = dict[str, Any]  # keys relative to the architecture's name; a leading dot makes them absolute

LAYER: dict[str, str] = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
TOP: dict[str, str] = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
EXPERTS: dict[str, str] = {  # tensors of one expert, below `experts.N.`
    "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps",
}  # fmt: skip
AFTER = {"post_attention_layernorm": "post_attention_norm"}  # if this norm really follows the attention
OLMO2_LAYER = {**AFTER, "post_feedforward_layernorm": "post_ffw_norm"}
GEMMA_LAYER = {**OLMO2_LAYER, "pre_feedforward_layernorm": "ffn_norm"}


@dataclass(frozen=True)
class Architecture:
    """One architecture: its GGUF name and its differences. `keys` extends or replaces the common keys."""

    name: str
    layer: Mapping[str, str] = field(default_factory=dict)  # additional tensor names.
    keys: Callable[[Folder], Keys] = lambda folder: {}
    pairs: bool = False  # RoPE rotates neighbouring rows: reorder the rows of queries and keys.
    shifted_norms: bool = False  # norm weights are stored minus one.
    tied: bool = False  # drop a separate output matrix.
    extra: Callable[[Folder], dict[str, Array]] = lambda folder: {}  # tensors computed from the configuration.
    common: bool = True  # whether the common keys are written.


def head_dim(folder: Folder) -> int:
    given = folder.setting("head_dim")
    return (
        int(given) if given is not None else int(folder.need("hidden_size")) // int(folder.need("num_attention_heads"))
    )


def rope(folder: Folder) -> Mapping[str, Any]:
    """The RoPE settings: newer files have them in one object, older ones at the top level."""
    found = folder.config.get("rope_parameters") or folder.config.get("rope_scaling") or {}
    found = dict(found) if isinstance(found, dict) else {}
    full = found.get("full_attention")
    merged = dict(full) if isinstance(full, dict) else found
    merged.setdefault("rope_theta", folder.config.get("rope_theta"))
    merged.setdefault("rope_type", merged.get("type"))
    merged.setdefault("original_max_position_embeddings", folder.config.get("original_max_position_embeddings"))
    return {key: value for key, value in merged.items() if value is not None}


def _sliding_theta(folder: Folder) -> float | None:
    found = folder.config.get("rope_parameters")
    sliding = found.get("sliding_attention") if isinstance(found, dict) else None
    theta = sliding.get("rope_theta") if isinstance(sliding, dict) else folder.config.get("rope_local_base_freq")
    return float(theta) if isinstance(theta, int | float) else None


def common(folder: Folder) -> Keys:
    """The keys of most architectures, as far as config.json has their values."""
    names: dict[str, tuple[str, ...]] = {
        "block_count": ("num_hidden_layers", "n_layer"),
        "context_length": ("max_position_embeddings", "n_ctx", "n_positions"),
        "embedding_length": ("hidden_size", "n_embd"),
        "feed_forward_length": ("intermediate_size", "n_inner"),
        "attention.head_count": ("num_attention_heads", "n_head"),
        "attention.head_count_kv": ("num_key_value_heads",),
        "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
        "expert_used_count": ("num_experts_per_tok",),
        "attention.key_length": ("head_dim",),
        "attention.value_length": ("head_dim",),
    }
    keys: Keys = {key: folder.setting(*found, kind=int) for key, found in names.items()}
    keys["attention.layer_norm_rms_epsilon"] = _real(folder.setting("rms_norm_eps", "norm_eps"))
    keys["attention.layer_norm_epsilon"] = _real(folder.setting("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"))
    keys["rope.freq_base"] = _real(rope(folder).get("rope_theta"))
    return keys | _scaling(folder)


def _real(value: Any) -> float | None:
    return None if value is None else float(value)


def _scaling(folder: Folder) -> Keys:
    found = rope(folder)
    kind, factor = found.get("rope_type"), found.get("factor")
    if kind == "linear" and factor is not None:
        return {"rope.scaling.type": "linear", "rope.scaling.factor": float(factor)}
    if kind == "yarn" and factor is not None:
        names = {
            "yarn_ext_factor": "extrapolation_factor", "yarn_attn_factor": "attention_factor",
            "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow",
        }  # fmt: skip
        return {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(factor),
            "rope.scaling.original_context_length": int(found["original_max_position_embeddings"]),
            **{f"rope.scaling.{key}": _real(found.get(name)) for key, name in names.items()},
        }
    if kind in ("su", "longrope"):
        return {"rope.scaling.type": "longrope"}
    return {}


# --- rows


def _mixtral(folder: Folder) -> Keys:
    return {"vocab_size": folder.need("vocab_size"), "rope.dimension_count": head_dim(folder)}


def _llama(folder: Folder) -> Keys:
    width = head_dim(folder)
    return {**_mixtral(folder), "attention.key_length": width, "attention.value_length": width}


def _llama3_factors(folder: Folder) -> dict[str, Array]:
    """Llama 3's factor for every frequency: long wavelengths are stretched, short ones are not."""
    found = rope(folder)
    if str(found.get("rope_type", "")).lower() != "llama3":
        return {}
    width, one = head_dim(folder), np.float32(1)
    exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    frequencies = one / np.float32(found.get("rope_theta", 10000.0)) ** exponents
    names = (("factor", 8.0), ("low_freq_factor", 1.0), ("high_freq_factor", 4.0))
    factor, low, high = (float(found.get(name, default)) for name, default in names)
    old = float(found.get("original_max_position_embeddings", 8192))
    # In float32, and a number divided by an array is computed as number times reciprocal, to round as torch does.
    waves = one / frequencies * np.float32(2 * math.pi)
    smooth = (one / waves * np.float32(old) - np.float32(low)) / np.float32(high - low)
    between = one / ((one - smooth) / np.float32(factor) + smooth)
    factors = np.where(waves < old / high, one, np.where(waves > old / low, np.float32(factor), between))
    return {"rope_freqs.weight": factors.astype(np.float32)}


def _experts(folder: Folder) -> Keys:
    return {
        "expert_feed_forward_length": folder.setting("moe_intermediate_size"),
        "expert_shared_feed_forward_length": folder.setting("shared_expert_intermediate_size"),
    }


def _gemma(folder: Folder) -> Keys:
    """The keys of Gemma 1 and 2, which have no RoPE base."""
    shared = common(folder)
    names = ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
             "attention.layer_norm_rms_epsilon", "attention.key_length", "attention.value_length")  # fmt: skip
    heads = folder.setting("num_key_value_heads", "num_attention_heads")
    return {**{name: shared[name] for name in names}, "attention.head_count_kv": heads}


def _gemma1(folder: Folder) -> Keys:
    return {**_gemma(folder), ".tokenizer.ggml.eot_token_id": 107}  # <end_of_turn>, in every Gemma vocabulary


def _gemma2(folder: Folder) -> Keys:
    return {
        **_gemma(folder),
        "attn_logit_softcapping": _real(folder.setting("attn_logit_softcapping")),
        "final_logit_softcapping": _real(folder.setting("final_logit_softcapping")),
        "attention.sliding_window": folder.need("sliding_window"),
    }


def _gemma3(folder: Folder) -> Keys:
    width = folder.setting("head_dim", default=256)
    return {
        "context_length": folder.setting("max_position_embeddings", default=131072),
        "attention.head_count": folder.setting("num_attention_heads", default=8),
        "attention.head_count_kv": folder.setting("num_key_value_heads", default=4),
        "attention.layer_norm_rms_epsilon": float(folder.setting("rms_norm_eps", default=1e-6)),
        "attention.key_length": width,
        "attention.value_length": width,
        "rope.freq_base": float(rope(folder).get("rope_theta", 1e6)),
        "rope.freq_base_swa": _sliding_theta(folder),
        "final_logit_softcapping": _real(folder.setting("final_logit_softcapping")),
        "attention.sliding_window": folder.setting("sliding_window"),
    }


def _phi3(folder: Folder) -> Keys:
    shared, found = common(folder), rope(folder)
    share = float(found.get("partial_rotary_factor", folder.setting("partial_rotary_factor", default=1.0)))
    names = ("context_length", "embedding_length", "feed_forward_length", "block_count", "attention.head_count",
             "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "rope.freq_base")  # fmt: skip
    trained = found.get("original_max_position_embeddings", shared["context_length"])
    keys: Keys = {name: shared[name] for name in names}
    keys["rope.scaling.original_context_length"] = int(trained)
    keys["rope.dimension_count"] = int(share * folder.need("hidden_size")) // folder.need("num_attention_heads")
    keys["attention.sliding_window"] = folder.setting("sliding_window", default=0)
    if found.get("long_factor"):
        scale = shared["context_length"] / int(trained)
        kind = found.get("rope_type")
        grown = math.sqrt(1 + math.log(scale) / math.log(int(trained))) if kind != "yarn" else 0.1 * math.log(scale) + 1
        keys["rope.scaling.attn_factor"] = grown if scale > 1 else 1.0
    return keys


def _phi3_factors(folder: Folder) -> dict[str, Array]:
    found = rope(folder)
    if not found.get("long_factor"):
        return {}
    return {f"rope_factors_{kind}.weight": np.array(found[f"{kind}_factor"], np.float32) for kind in ("long", "short")}


def _granite(folder: Folder) -> Keys:
    names = {"attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
             "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling"}  # fmt: skip
    return {**_mixtral(folder), **{key: _real(folder.setting(name)) for key, name in names.items()}}


def _olmoe(folder: Folder) -> Keys:
    return {"attention.layer_norm_rms_epsilon": 1e-5}


def _stablelm(folder: Folder) -> Keys:
    shared = common(folder)
    share = float(rope(folder).get("partial_rotary_factor", folder.setting("partial_rotary_factor", default=0.25)))
    names = ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
             "attention.head_count_kv")  # fmt: skip
    return {
        **{name: shared[name] for name in names},
        "rope.dimension_count": int(share * (folder.need("hidden_size") // folder.need("num_attention_heads"))),
        "use_parallel_residual": bool(folder.setting("use_parallel_residual", default=False, kind=bool)),
        "attention.layer_norm_epsilon": float(folder.need("layer_norm_eps", "norm_eps")),
    }


def _cohere(folder: Folder) -> Keys:
    return {
        "context_length": folder.need("model_max_length", "max_position_embeddings"),
        "logit_scale": float(folder.need("logit_scale")),
        "rope.scaling.type": "none",
    }


LLAMA = Architecture("llama", keys=_llama, pairs=True, extra=_llama3_factors)
MIXTRAL = Architecture("llama", keys=_mixtral, pairs=True)
GEMMA3 = Architecture("gemma3", GEMMA_LAYER, _gemma3, shifted_norms=True)

ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "MixtralForCausalLM": MIXTRAL,
    "Qwen2ForCausalLM": Architecture("qwen2"),
    "Qwen2MoeForCausalLM": Architecture("qwen2moe", keys=_experts),
    "Qwen3ForCausalLM": Architecture("qwen3"),
    "Qwen3MoeForCausalLM": Architecture("qwen3moe", keys=_experts),
    "GemmaForCausalLM": Architecture("gemma", keys=_gemma1, shifted_norms=True, tied=True, common=False),
    "Gemma2ForCausalLM": Architecture("gemma2", GEMMA_LAYER, _gemma2, shifted_norms=True, tied=True, common=False),
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": GEMMA3,
    "SmolLM3ForCausalLM": Architecture("smollm3", keys=_mixtral, pairs=True, extra=_llama3_factors),
    "GraniteForCausalLM": Architecture("granite", keys=_granite, pairs=True, extra=_llama3_factors),
    "SeedOssForCausalLM": Architecture("seed_oss", AFTER),
    "Olmo2ForCausalLM": Architecture("olmo2", OLMO2_LAYER),
    "OlmoeForCausalLM": Architecture("olmoe", keys=_olmoe),
    "Starcoder2ForCausalLM": Architecture("starcoder2"),
    "StableLmForCausalLM": Architecture("stablelm", keys=_stablelm, common=False),
    "CohereForCausalLM": Architecture("command-r", keys=_cohere),
    "Phi3ForCausalLM": Architecture("phi3", keys=_phi3, extra=_phi3_factors, common=False),
}
