"""Tiny whole models: a GGUF file with random seeded weights, a vocabulary and a chat template, in milliseconds.

    make(path)                                       64 wide, 2 layers, 4 heads over 2, tied, F32
    make(path, type="Q8_0", n_expert=4, window=8)    and so on; `metadata` overrides any key

The vocabulary is SentencePiece's kind: <unk> <s> </s>, the 256 bytes, then a few words and the turn markers of
the template. Every text can be encoded; what the model says is nonsense, but always the same nonsense.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from assay.models.catalogue import ARCHITECTURES, Sizes, tensor_shapes
from tests.encoded import encoded

TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
_WORDS = ["▁", *string.ascii_lowercase, "▁the", "▁a", "er", "in", "on", "▁hello", "▁world", "é", "日"]
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *_WORDS, "<|turn|>", "<|end|>"]
TOKENS += [f"▁word{i}" for i in range(-len(TOKENS) % 32)]  # 320: whole blocks in every 32-wide type
BIASES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_KINDS = {"<unk>": 2, "<s>": 3, "</s>": 3, "<|turn|>": 3, "<|end|>": 3}


def with_experts(type: str) -> Callable[[str], str]:
    """Every matrix in a type but the router, which quantisers leave as it is."""
    return lambda name: "F32" if "ffn_gate_inp" in name else type


def ranking() -> dict[str, object]:
    """Metadata of a vocabulary with `yes` and `no` as one token each: a model that can be asked to rank documents."""
    tokens, spare = list(TOKENS), TOKENS.index("▁word0")
    tokens[spare : spare + 5] = ["▁y", "▁ye", "▁yes", "▁n", "▁no"]
    scores = np.array([float(len(token)) for token in tokens], np.float32)
    return {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores}


def make(
    path: Path,
    *,
    type: str | Callable[[str], str] = "F32",  # one for all matrices, or by tensor name
    seed: int = 1,
    n_layer: int = 2,
    n_embd: int = 64,
    n_ff: int = 96,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ctx: int = 256,
    n_expert: int = 0,
    n_expert_used: int = 0,
    window: int = 0,
    tied: bool = True,
    bias: bool = False,
    rope_freqs: bool = False,
    rope_scaling: Mapping[str, object] | None = None,  # keys below rope.scaling
    template: str | None = TEMPLATE,
    metadata: Mapping[str, object | None] | None = None,  # None leaves a key out
    tensor: Callable[[str, tuple[int, ...], str, np.random.Generator], Tensor] | None = None,  # values of its own
) -> Path:
    """Write the model to `path` and give it back."""
    width = n_embd // n_head
    sizes = Sizes(
        n_layer=n_layer,
        n_embd=n_embd,
        n_ff=n_ff,
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_embd_head=width,
        n_embd_head_v=width,
        n_vocab=len(TOKENS),
        n_expert=n_expert,
        n_expert_used=n_expert_used or min(n_expert, 2),
        n_ff_exp=n_ff,
    )
    arch = "gemma3" if window else "llama"  # llama.cpp's llama has no window
    biases = " ".join(f"{stem}+only" for stem in BIASES) if bias else ""
    blocks = f"PRE {'POST' if window else ''} QKV {biases} {'EXPERTS' if n_expert else 'GLU'}"
    top = "token_embd output_norm" if tied else "token_embd output_norm output"
    shapes = dict(tensor_shapes(replace(ARCHITECTURES[arch], blocks=blocks, sizes=sizes, top=top)))
    if rope_freqs:
        shapes["rope_freqs.weight"] = (width // 2,)
    rng = np.random.default_rng(seed)
    choose = type if callable(type) else lambda _: type
    fill = tensor or _tensor
    tensors = [fill(name, shape, choose(name), rng) for name, shape in shapes.items()]
    keys: dict[str, Any] = {
        "general.architecture": arch,
        "general.name": "tiny",
        f"{arch}.block_count": n_layer,
        f"{arch}.embedding_length": n_embd,
        f"{arch}.feed_forward_length": n_ff,
        f"{arch}.attention.head_count": n_head,
        f"{arch}.attention.head_count_kv": n_head_kv,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.context_length": n_ctx,
        f"{arch}.rope.dimension_count": width,
        f"{arch}.vocab_size": len(TOKENS),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": np.array([float(len(t)) for t in TOKENS], np.float32),
        "tokenizer.ggml.token_type": np.array(
            [_KINDS.get(t, 6 if t.startswith("<0x") else 1) for t in TOKENS], np.int32
        ),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.eot_token_id": TOKENS.index("<|end|>"),
    }
    if template is not None:
        keys["tokenizer.chat_template"] = template
    if n_expert:
        keys |= {f"{arch}.expert_count": n_expert, f"{arch}.expert_used_count": sizes.n_expert_used}
    if window:
        keys |= {
            f"{arch}.attention.sliding_window": window,
            f"{arch}.attention.sliding_window_pattern": [True] * n_layer,
        }
    keys |= {f"{arch}.rope.scaling.{key}": value for key, value in (rope_scaling or {}).items()}
    keys |= metadata or {}
    write(path, {key: value for key, value in keys.items() if value is not None}, tensors)
    return path


def _tensor(name: str, shape: tuple[int, ...], type_name: str, rng: np.random.Generator) -> Tensor:
    """Random numbers of a trained model's magnitude; vectors stay F32, as in real files."""
    x = rng.standard_normal(shape).astype(np.float32)
    if name == "rope_freqs.weight":
        x = np.geomspace(1, 8, shape[0]).astype(np.float32)
    elif "norm" in name:
        x = 1 + 0.2 * x
    elif name.endswith("bias"):
        x = 0.3 * x
    elif "embd" not in name:
        x = x * np.float32(1.7 / np.sqrt(shape[-1]))
    kind = by_name(type_name if len(shape) > 1 else "F32")
    return Tensor(name, shape, kind, x if kind.name == "F32" else encoded(kind, x))
