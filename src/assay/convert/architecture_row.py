"""The form of a row of `ARCHITECTURES`, and the names and keys that most rows share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.convert.folder import Folder
from assay.errors import AssayError

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
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
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
EXPERT_COUNT = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
AFTER = {"post_attention_layernorm": "post_attention_norm"}  # if this norm really follows the attention
OLMO2_LAYER = {**AFTER, "post_feedforward_layernorm": "post_ffw_norm"}
GEMMA_LAYER = {**OLMO2_LAYER, "pre_feedforward_layernorm": "ffn_norm"}
STACKED = {  # experts that are one tensor in the folder: gate and up together, down
    "mlp.experts.gate_up_proj": "ffn_gate_exps.weight ffn_up_exps.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}
CORRECTION = {"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"}
KINDS = {"linear_attention": "mamba", "full_attention": "attention"}  # newer names of layers in some families
GATING = {"softmax": 1, "sigmoid": 2}  # expert_gating_func

Shape = tuple[int, ...]


@dataclass(frozen=True)
class TensorChange:
    """A change of a tensor's values, and of its shape where that changes."""

    values: Callable[[Array], Array]
    shape: Callable[[Shape], Shape] = lambda shape: shape


def as_named(_folder: Folder, name: str) -> str | None:
    return name


@dataclass(frozen=True)
class Architecture:
    """One architecture: its GGUF name and its differences. `keys` extends or replaces the common keys.

    Names below are without their ending `.weight` or `.bias`, which is kept, unless they are called whole. A name below
    a layer is what follows `model.layers.N.` in the folder, `blk.N.` in the file.
    """

    name: str
    layer: Mapping[str, str] = field(default_factory=dict)  # additional names below a layer; several: split by `change`
    keys: Callable[[Folder], Keys] = lambda folder: {}
    pairs: bool = False  # RoPE rotates neighbouring rows: reorder the rows of queries and keys.
    shifted_norms: bool = False  # norm weights are stored minus one.
    unshifted: str = "\0"  # but those below a layer that begin like this
    tied: bool = False  # drop a separate output matrix.
    extra: Callable[[Folder], dict[str, Array]] = lambda folder: {}  # tensors computed from the configuration.
    common: bool = True  # whether the common keys are written.
    top: Mapping[str, str] = field(default_factory=dict)  # additional names outside the layers
    whole: Mapping[str, str] = field(default_factory=dict)  # whole names below a layer, such as `mixer.A_log`: `ssm_a`
    stacks: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # whole names that become parts of one tensor
    rename: Callable[[Folder, str], str | None] = as_named  # to `model.layers.N.…`; None for a tensor that is left out
    change: Callable[[Folder, str, str, int], TensorChange | None] = lambda folder, source, name, layer: None
    also: Callable[[Folder, str, int], str] = lambda folder, name, layer: ""  # further tensors of the same source
    named: Callable[[Folder], str] | None = None  # the GGUF name, where it depends on the configuration
    padded: bool = False  # the embedding has rows beyond the vocabulary
    check: Callable[[Folder], None] = lambda folder: None  # refuse what the file format cannot say

    def gguf_name(self, folder: Folder) -> str:
        return self.named(folder) if self.named else self.name


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


def sliding_theta(folder: Folder) -> float | None:
    found = folder.config.get("rope_parameters")
    sliding = found.get("sliding_attention") if isinstance(found, dict) else None
    theta = sliding.get("rope_theta") if isinstance(sliding, dict) else folder.config.get("rope_local_base_freq")
    return float(theta) if isinstance(theta, int | float) else None


def common(folder: Folder) -> Keys:
    """The keys of most architectures, as far as config.json has their values."""
    names: dict[str, tuple[str, ...]] = {
        "block_count": ("num_hidden_layers", "n_layer"),
        "context_length": ("max_position_embeddings", "n_ctx", "n_positions", "model_max_length"),
        "embedding_length": ("hidden_size", "n_embd"),
        "feed_forward_length": ("intermediate_size", "n_inner"),
        "attention.head_count": ("num_attention_heads", "n_head"),
        "attention.head_count_kv": ("num_key_value_heads",),
        "expert_count": EXPERT_COUNT,
        "expert_used_count": ("num_experts_per_tok",),
        "expert_group_count": ("n_group",),
        "expert_group_used_count": ("topk_group",),
        "attention.key_length": ("head_dim",),
        "attention.value_length": ("head_dim",),
    }
    listed = {key for key, value in folder.config.items() if isinstance(value, list)}  # one a layer: the row's own keys
    keys: Keys = {key: folder.setting(*(n for n in found if n not in listed), kind=int) for key, found in names.items()}
    keys["attention.layer_norm_rms_epsilon"] = real(folder.setting("rms_norm_eps", "norm_eps"))
    keys["attention.layer_norm_epsilon"] = real(folder.setting("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"))
    keys["rope.freq_base"] = real(rope(folder).get("rope_theta"))
    return keys | _scaling(folder)


def real(value: Any) -> float | None:
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
            **{f"rope.scaling.{key}": real(found.get(name)) for key, name in names.items()},
        }
    if kind in ("su", "longrope"):
        return {"rope.scaling.type": "longrope"}
    return {}


def mixtral_keys(folder: Folder) -> Keys:
    return {"vocab_size": folder.need("vocab_size"), "rope.dimension_count": head_dim(folder)}


def llama_keys(folder: Folder) -> Keys:
    width = head_dim(folder)
    return {**mixtral_keys(folder), "attention.key_length": width, "attention.value_length": width}


def llama3_factors(folder: Folder) -> dict[str, Array]:
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


def layer_kinds(folder: Folder, name: str = "layer_types") -> list[str]:
    """The kind of each layer, or nothing if the configuration does not list them."""
    found = folder.config.get(name)
    if found is None:
        return []
    n = folder.setting("num_hidden_layers", default=len(found) if isinstance(found, list) else 0)
    if not isinstance(found, list) or len(found) != n or not all(isinstance(kind, str) for kind in found):
        raise AssayError(f"{folder.path}/config.json: {name} is not a list of {n} names, one a layer")
    return [KINDS.get(str(kind), str(kind)) for kind in found]


def rows_of(folder: Folder, ending: str) -> int | None:
    """The rows of the first tensor with this ending: a width that the configuration does not say plainly."""
    found = next((tensor.entry.shape for name, tensor in folder.tensors.items() if name.endswith(ending)), ())
    return int(found[0]) if found else None


def refuse(folder: Folder, *names: str) -> None:
    """Refuse settings that the file format has no place for, where they are on."""
    for name in names:
        if folder.config.get(name):
            raise AssayError(f"{folder.path}/config.json: {name} is set, which a GGUF file of this model cannot say")
