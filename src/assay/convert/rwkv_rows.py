"""Rows of RWKV-7 (the layout of flash-linear-attention) and RWKV-6 (its own)."""

from __future__ import annotations

import re

from assay.convert.architecture_row import (
    Architecture,
    Keys,
    TensorChange,
)
from assay.convert.changes import (
    FLAT,
    TRANSPOSED,
    scaled,
)
from assay.convert.folder import Folder

UNLIMITED = 1 << 20  # context of a model whose state does not grow

RWKV7_LAYER = {
    "attn_norm": "attn_norm", "ffn_norm": "attn_norm_2", "attn.r_proj": "time_mix_receptance",
    "attn.k_proj": "time_mix_key", "attn.v_proj": "time_mix_value", "attn.o_proj": "time_mix_output",
    "attn.g_norm": "time_mix_ln", "ffn.key": "channel_mix_key", "ffn.value": "channel_mix_value",
}  # fmt: skip
RWKV7_WHOLE = {
    "attn.k_k": "time_mix_k_k.weight", "attn.k_a": "time_mix_k_a.weight", "attn.r_k": "time_mix_r_k.weight",
    "ffn.x_k": "channel_mix_lerp_k.weight",
    **{
        f"attn.{letter}_lora.lora.{part}": f"time_mix_{letter}{n}.weight"
        for letter in "wavg" for part, n in (("0.weight", 1), ("2.weight", 2), ("2.bias", 0))
    },
}  # fmt: skip
RWKV_TOP = {"model.embeddings": "token_embd", "model.pre_norm": "token_embd_norm", "model.head": "output"}


def _rwkv7_named(folder: Folder, key: str) -> str | None:
    """The norm of the embedding is stored in the first layer."""
    return key.replace("model.layers.0.pre_norm.", "model.pre_norm.", 1)


def _rwkv7_also(folder: Folder, name: str, layer: int) -> str:
    """llama.cpp wants the value's matrices in the first layer, too, where nothing reads them."""
    return name.replace("time_mix_a", "time_mix_v") if layer == 0 and re.match(r"time_mix_a\d", name) else ""


def _rank(folder: Folder, name: str, power: float, factor: float) -> int:
    given = folder.setting(name)
    return int(given) if given is not None else max(1, round(folder.need("hidden_size") ** power * factor / 32)) * 32


def _rwkv(folder: Folder) -> Keys:
    width = folder.need("hidden_size")
    return {
        "context_length": UNLIMITED,
        "embedding_length": width,
        "block_count": folder.need("num_hidden_layers"),
        "attention.head_count": 0,
        "token_shift_count": 2,
        "vocab_size": folder.need("vocab_size"),
    }


def _rwkv7(folder: Folder) -> Keys:
    return {
        **_rwkv(folder),
        "feed_forward_length": folder.setting("intermediate_size") or 4 * folder.need("hidden_size"),
        "attention.layer_norm_epsilon": float(folder.need("norm_eps", "layer_norm_epsilon")),
        "wkv.head_size": folder.need("head_dim", "head_size"),
        "attention.decay_lora_rank": _rank(folder, "decay_low_rank_dim", 0.5, 1.8),
        "attention.iclr_lora_rank": _rank(folder, "a_low_rank_dim", 0.5, 1.8),
        "attention.value_residual_mix_lora_rank": _rank(folder, "v_low_rank_dim", 0.5, 1.3),
        "attention.gate_lora_rank": _rank(folder, "gate_low_rank_dim", 0.8, 0.6),
    }


def _rwkv7_change(folder: Folder, source: str, name: str, layer: int) -> TensorChange | None:
    return FLAT if name == "time_mix_r_k.weight" else None


RWKV7 = Architecture(
    "rwkv7", RWKV7_LAYER, _rwkv7, common=False, top=RWKV_TOP, whole=RWKV7_WHOLE, rename=_rwkv7_named,
    change=_rwkv7_change, also=_rwkv7_also,
    stacks={f"attn.x_{letter}": ("time_mix_lerp_fused.weight", i) for i, letter in enumerate("rwkvag")},
)  # fmt: skip

RWKV6_LAYER = {
    "ln1": "attn_norm", "ln2": "attn_norm_2", "attention.receptance": "time_mix_receptance",
    "attention.key": "time_mix_key", "attention.value": "time_mix_value", "attention.gate": "time_mix_gate",
    "attention.output": "time_mix_output", "attention.ln_x": "time_mix_ln", "feed_forward.key": "channel_mix_key",
    "feed_forward.receptance": "channel_mix_receptance", "feed_forward.value": "channel_mix_value",
}  # fmt: skip
RWKV6_WHOLE = {
    "attention.time_maa_x": "time_mix_lerp_x.weight", "attention.time_maa_w1": "time_mix_w1.weight",
    "attention.time_maa_w2": "time_mix_w2.weight", "attention.time_decay": "time_mix_decay.weight",
    "attention.time_decay_w1": "time_mix_decay_w1.weight", "attention.time_decay_w2": "time_mix_decay_w2.weight",
    "attention.time_faaaa": "time_mix_first.weight", "feed_forward.time_maa_k": "channel_mix_lerp_k.weight",
    "feed_forward.time_maa_r": "channel_mix_lerp_r.weight",
}  # fmt: skip


def _rwkv6_named(folder: Folder, key: str) -> str | None:
    key = re.sub(r"^rwkv\.(blocks\.)?", lambda m: "model.layers." if m[1] else "model.", key)
    key = key.replace("model.layers.0.pre_ln.", "model.pre_norm.", 1).replace("model.ln_out.", "model.norm.", 1)
    return f"model.{key}" if key.startswith("head.") else key


def _rwkv6(folder: Folder) -> Keys:
    width, wide = folder.need("hidden_size"), folder.need("hidden_size") >= 4096
    return {
        **_rwkv(folder),
        "feed_forward_length": folder.setting("intermediate_size") or int(width * 3.5 // 32 * 32),
        "attention.layer_norm_epsilon": float(folder.need("layer_norm_epsilon")),
        "wkv.head_size": folder.need("head_size"),
        "rescale_every_n_layers": folder.setting("rescale_every", default=0),
        "time_mix_extra_dim": _low_rank(folder, "attention.time_maa_w2", 1) or (64 if wide else 32),
        "time_decay_extra_dim": _low_rank(folder, "attention.time_decay_w1", 1) or (128 if wide else 64),
    }


def _low_rank(folder: Folder, name: str, axis: int) -> int:
    """The length of an axis of a tensor of the first layer, or 0."""
    found = folder.tensors.get(f"rwkv.blocks.0.{name}")
    return int(found.entry.shape[axis]) if found and len(found.entry.shape) > axis else 0


def _rwkv6_change(folder: Folder, source: str, name: str, layer: int) -> TensorChange | None:
    if name in ("time_mix_w1.weight", "time_mix_w2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight"):
        return TRANSPOSED
    if name == "time_mix_decay.weight":
        return FLAT
    every = int(folder.setting("rescale_every", default=0))
    if every > 0 and name in ("time_mix_output.weight", "channel_mix_value.weight"):
        return scaled(0.5 ** (layer // every))  # layers halve their results as they go
    return None


RWKV6 = Architecture(
    "rwkv6", RWKV6_LAYER, _rwkv6, common=False, top=RWKV_TOP, whole=RWKV6_WHOLE, rename=_rwkv6_named,
    change=_rwkv6_change,
    stacks={f"attention.time_maa_{letter}": ("time_mix_lerp_fused.weight", i) for i, letter in enumerate("wkvrg")},
)  # fmt: skip

ROWS: dict[str, Architecture] = {
    "Rwkv7ForCausalLM": RWKV7,
    "RWKV7ForCausalLM": RWKV7,
    "Rwkv6ForCausalLM": RWKV6,
}
