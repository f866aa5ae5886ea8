"""The differences between architectures: tensor names, changes of their values, and metadata keys.

A new architecture is a row of `ARCHITECTURES`, under its name in config.json. Rows with a recurrent state are in
`recurrent_rows`, `mamba_rows` and `rwkv_rows`, later ones with attention alone in `attention_rows`.
"""

from __future__ import annotations

import math

import numpy as np

from assay.convert import attention_rows, mamba_rows, recurrent_rows, rwkv_rows
from assay.convert.architecture_row import (
    AFTER,
    GEMMA_LAYER,
    OLMO2_LAYER,
    Architecture,
    Array,
    Keys,
    common,
    llama3_factors,
    llama_keys,
    mixtral_keys,
    real,
    rope,
    sliding_theta,
)
from assay.convert.folder import Folder


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
        "attn_logit_softcapping": real(folder.setting("attn_logit_softcapping")),
        "final_logit_softcapping": real(folder.setting("final_logit_softcapping")),
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
        "rope.freq_base_swa": sliding_theta(folder),
        "final_logit_softcapping": real(folder.setting("final_logit_softcapping")),
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
    return {**mixtral_keys(folder), **{key: real(folder.setting(name)) for key, name in names.items()}}


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


LLAMA = Architecture("llama", keys=llama_keys, pairs=True, extra=llama3_factors)
MIXTRAL = Architecture("llama", keys=mixtral_keys, pairs=True)
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
    "SmolLM3ForCausalLM": Architecture("smollm3", keys=mixtral_keys, pairs=True, extra=llama3_factors),
    "GraniteForCausalLM": Architecture("granite", keys=_granite, pairs=True, extra=llama3_factors),
    "SeedOssForCausalLM": Architecture("seed_oss", AFTER),
    "Olmo2ForCausalLM": Architecture("olmo2", OLMO2_LAYER),
    "OlmoeForCausalLM": Architecture("olmoe", keys=_olmoe),
    "Starcoder2ForCausalLM": Architecture("starcoder2"),
    "StableLmForCausalLM": Architecture("stablelm", keys=_stablelm, common=False),
    "CohereForCausalLM": Architecture("command-r", keys=_cohere),
    "Phi3ForCausalLM": Architecture("phi3", keys=_phi3, extra=_phi3_factors, common=False),
    **recurrent_rows.ROWS,
    **mamba_rows.ROWS,
    **rwkv_rows.ROWS,
    **attention_rows.ROWS,
}
