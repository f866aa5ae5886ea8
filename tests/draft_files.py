"""Tiny files with a draft head that is often right: what the model says depends little on its layers.

The layers add little to the embedding, so that the next token follows from the last one, mostly. The head passes the
embedding on in the same way and ends in the same matrix. Its block and its `mtp_hidden` add something else, so that it
is sometimes wrong. Random heads are never right, and test nothing but rejection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from assay.models.catalogue import ARCHITECTURES, VARIANTS, Arch, metadata, tensor_shapes
from tests import tiny

STATES = "qwen35 with a draft head"
TOKENIZER = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": tiny.TOKENS,
    "tokenizer.ggml.scores": np.array([float(len(t)) for t in tiny.TOKENS], np.float32),
    "tokenizer.ggml.token_type": np.array(
        [tiny._KINDS.get(t, 6 if t.startswith("<0x") else 1) for t in tiny.TOKENS], np.int32
    ),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.chat_template": tiny.TEMPLATE,
}


def _with_head(row: Arch) -> Arch:
    """The row with one more layer, a draft head with experts."""
    sizes = replace(row.sizes, n_layer=row.sizes.n_layer + 1)
    return replace(row, blocks=f"{row.blocks} draft:NEXTN", keys={**row.keys, "nextn_predict_layers": 1}, sizes=sizes)


# Four layers, local and full in turn, of which the last two see the keys and values of the first two.
_GEMMA4 = replace(
    ARCHITECTURES["gemma4"],
    blocks="PRE POST attn_q attn_q_norm attn_output own:attn_k own:attn_v own:attn_k_norm GLU layer_output_scale",
    keys={
        **ARCHITECTURES["gemma4"].keys, "embedding_length_per_layer_input": 0, "attention.shared_kv_layers": 2,
        "attention.sliding_window_pattern": [True, False, True, False],
    },
    sizes=replace(ARCHITECTURES["gemma4"].sizes, n_layer=4),
)  # fmt: skip
ROWS = {
    "gemma4": _GEMMA4,
    STATES: VARIANTS[STATES],
    "glm4moe": _with_head(ARCHITECTURES["glm4moe"]),
    "deepseek2": _with_head(ARCHITECTURES["deepseek2"]),
    "deepseek2 with whole keys and values": _with_head(VARIANTS["deepseek2 with whole keys and values"]),
}


def make(path: Path, name: str = STATES, *, mixed: float = 0.05, seed: int = 1, without: str = "?") -> Path:
    """Write a file of this row. `mixed` is how much the layers and the head's other input say.

    `without` names tensors to leave out, by a part of their name.
    """
    row = ROWS[name]
    sizes = replace(row.sizes, n_vocab=len(tiny.TOKENS), n_ctx=512)
    top = "token_embd output_norm output" + (" rope_freqs" if name == "gemma4" else "")
    row = replace(row, sizes=sizes, top=top)
    rng = np.random.default_rng(seed)
    tensors = [
        Tensor(n, s, by_name("F32"), _values(n, s, mixed, rng).astype(np.float32))
        for n, s in tensor_shapes(row).items()
        if without not in n
    ]
    facts: Mapping[str, Any] = {**metadata(row), **TOKENIZER}
    write(path, facts, tensors)
    return path


def _values(name: str, shape: tuple[int, ...], mixed: float, rng: np.random.Generator) -> np.ndarray:
    x = rng.standard_normal(shape)
    if name.endswith("nextn.eh_proj.weight"):
        return np.concatenate([np.eye(shape[0]), mixed * x[:, shape[0] :] / np.sqrt(shape[0])], axis=1)
    if "norm" in name or name.endswith("layer_output_scale.weight"):
        return np.ones(shape)
    if name.startswith("rope_freqs"):
        return np.geomspace(1, 6, shape[0])
    if name.endswith("ssm_a"):  # a decay: negative
        return -np.exp(x)
    if name.endswith(("bias", "ssm_d")):
        return 0.3 * x
    if name.startswith(("token_embd", "output")):
        return x
    small = mixed if "output" in name or "down" in name or "ssm_out" in name else 1.7
    return small * x / np.sqrt(shape[-1])
