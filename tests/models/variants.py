"""Tiny models of every variant of the llama architecture, and the logits of llama.cpp for them.

    python tests/models/variants.py        records llama.cpp's logits anew (needs llama-cpp-python)

The models are random and seeded, so the recorded logits (tests/data/llama_variants.npz) stand for the files.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from assay.models.catalogue import ARCHITECTURES, Sizes, tensor_shapes
from tests.tiny import BIASES

GOLDEN = Path(__file__).parents[1] / "data" / "llama_variants.npz"
IDS = [1, *np.random.default_rng(5).integers(3, 259, 70).tolist()]
ROWS = (0, 1, 35, 70)  # positions whose logits are recorded
SCALING = "llama.rope.scaling."

_PLAIN, _TIED = "PRE QKV GLU", "token_embd output_norm"
_BIAS = f"PRE QKV {' '.join(f'{stem}+only' for stem in BIASES)} GLU"

# name -> (changed sizes, the tensors of a block and of the file, changed metadata)
VARIANTS: dict[str, tuple[dict[str, Any], tuple[str, str], dict[str, Any]]] = {
    "tied": ({}, (_PLAIN, _TIED), {}),
    "untied": ({}, (_PLAIN, f"{_TIED} output"), {}),
    "bias": ({}, (_BIAS, _TIED), {}),
    "fused": ({}, ("PRE attn_output attn_qkv GLU", _TIED), {}),
    "base": ({}, (_PLAIN, _TIED), {"llama.rope.freq_base": 500000.0}),
    "freqs": ({}, (_PLAIN, _TIED), {}),
    "linear": ({}, (_PLAIN, _TIED), {SCALING + "type": "linear", SCALING + "factor": 4.0}),
    "yarn": (
        {},
        (_PLAIN, _TIED),
        {SCALING + "type": "yarn", SCALING + "factor": 4.0, SCALING + "original_context_length": 512},
    ),
    "yarn_attn": (
        {},
        (_PLAIN, _TIED),
        {
            SCALING + "type": "yarn",
            SCALING + "factor": 8.0,
            SCALING + "original_context_length": 64,
            SCALING + "attn_factor": 1.3,
        },
    ),
    "experts": ({"n_expert": 8, "n_expert_used": 2, "n_ff_exp": 128}, ("PRE QKV EXPERTS", _TIED), {}),
    "wide_heads": ({"n_embd_head": 32, "n_embd_head_v": 32}, (_PLAIN, _TIED), {}),
}


def make(name: str, path: Path) -> None:
    """Write the variant's file."""
    changes, (blocks, top), extra = VARIANTS[name]
    hp = Sizes(n_vocab=259, **changes)
    shapes = dict(tensor_shapes(replace(ARCHITECTURES["llama"], blocks=blocks, top=top, sizes=hp)))
    if name == "freqs":
        shapes["rope_freqs.weight"] = (hp.n_embd_head // 2,)
    rng = np.random.default_rng(1)
    tensors = [
        Tensor(n, s, by_name("F32"), _values(n, rng.standard_normal(s)).astype(np.float32)) for n, s in shapes.items()
    ]
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": hp.n_layer,
        "llama.embedding_length": hp.n_embd,
        "llama.feed_forward_length": hp.n_ff,
        "llama.attention.head_count": hp.n_head,
        "llama.attention.head_count_kv": hp.n_head_kv,
        "llama.attention.key_length": hp.n_embd_head,
        "llama.attention.value_length": hp.n_embd_head_v,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.context_length": 2048,
        "llama.rope.dimension_count": hp.n_embd_head,
        "llama.vocab_size": hp.n_vocab,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))],
        "tokenizer.ggml.scores": np.zeros(hp.n_vocab, np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    if hp.n_expert:
        metadata |= {"llama.expert_count": hp.n_expert, "llama.expert_used_count": hp.n_expert_used}
    write(path, metadata | extra, tensors)


def _values(name: str, x: np.ndarray) -> np.ndarray:
    """Random numbers of a trained model's magnitude."""
    if name == "rope_freqs.weight":
        return np.array([1, 1, 1, 1.5, 3, 8, 8, 8])
    if "norm" in name:
        return 1 + 0.2 * x
    if name.endswith("bias"):
        return 0.3 * x
    return x if "embd" in name else x * 1.7 / np.sqrt(x.shape[-1])


def record() -> None:
    import llama_cpp

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in VARIANTS:
            path = Path(folder) / f"{name}.gguf"
            make(name, path)
            llm = llama_cpp.Llama(str(path), n_ctx=256, logits_all=True, verbose=False, type_k=0, type_v=0)
            llm.eval(IDS)
            found[name] = np.array([llm.scores[row] for row in ROWS], np.float32)
    np.savez_compressed(GOLDEN, **found)
    print(f"wrote {GOLDEN}", file=sys.stderr)


if __name__ == "__main__":
    record()
