"""A small Llama with every common block type in it, of a trained model's proportions: small embeddings, so that eps
matters, norm weights away from 1, grouped queries, frequency factors, a head of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from assay.gguf import open_file
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from tests.encoded import encoded
from tests.tiny import TEMPLATE, TOKENS

N_EMBD, N_FF, N_LAYER, N_HEAD, N_KV = 256, 512, 3, 8, 2
TYPES = {
    "attn_q": "Q4_K", "attn_k": "Q5_K", "attn_v": "Q6_K", "attn_output": "Q3_K", "ffn_gate": "Q4_0",
    "ffn_up": "Q4_1", "ffn_down": "Q2_K", "token_embd": "Q6_K", "output": "Q8_0",
}  # fmt: skip


def _kind(token: str) -> int:
    return 6 if token.startswith("<0x") else 2 if token == "<unk>" else 3 if token[0] == "<" else 1


def make_kquant(path: Path, seed: int = 7) -> Path:
    """Write the model; 1.5 MB."""
    rng = np.random.default_rng(seed)
    kv = N_KV * N_EMBD // N_HEAD
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(TOKENS), N_EMBD)}
    for i in range(N_LAYER):
        for stem, shape in (
            ("attn_norm", (N_EMBD,)), ("attn_q", (N_EMBD, N_EMBD)), ("attn_k", (kv, N_EMBD)), ("attn_v", (kv, N_EMBD)),
            ("attn_output", (N_EMBD, N_EMBD)), ("ffn_norm", (N_EMBD,)), ("ffn_gate", (N_FF, N_EMBD)),
            ("ffn_up", (N_FF, N_EMBD)), ("ffn_down", (N_EMBD, N_FF)),
        ):  # fmt: skip
            shapes[f"blk.{i}.{stem}.weight"] = shape
    shapes |= {"output_norm.weight": (N_EMBD,), "output.weight": (len(TOKENS), N_EMBD)}
    shapes["rope_freqs.weight"] = (N_EMBD // N_HEAD // 2,)
    tensors = []
    for name, shape in shapes.items():
        stem = name.split(".")[-2]
        x = rng.standard_normal(shape)
        if stem == "rope_freqs":
            x = np.geomspace(1, 8, shape[0])
        elif "norm" in stem:
            x = 0.6 + 0.3 * rng.random(shape)
        elif stem == "token_embd":
            x = 0.02 * x
        else:
            x = x * 1.2 / np.sqrt(shape[-1])
        kind = by_name(TYPES.get(stem, "F32"))
        tensors.append(Tensor(name, shape, kind, encoded(kind, x.astype(np.float32))))
    metadata = {
        "general.architecture": "llama",
        "general.name": "synthetic",
        "llama.block_count": N_LAYER,
        "llama.embedding_length": N_EMBD,
        "llama.feed_forward_length": N_FF,
        "llama.attention.head_count": N_HEAD,
        "llama.attention.head_count_kv": N_KV,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.context_length": 512,
        "llama.rope.dimension_count": N_EMBD // N_HEAD,
        "llama.rope.freq_base": 50000.0,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": np.array([float(len(t)) for t in TOKENS], np.float32),
        "tokenizer.ggml.token_type": np.array([_kind(t) for t in TOKENS], np.int32),
        "tokenizer.ggml.eot_token_id": TOKENS.index("<|end|>"),
        "tokenizer.chat_template": TEMPLATE,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    write(path, metadata, tensors)
    return path


def with_factors(source: Path, path: Path) -> Path:
    """A Llama's file as Llama 3.1 and later are: with factors for its rotation, none for the fast pairs, 2 to 8 for the
    slow ones."""
    with open_file(source) as file:
        tensors = [Tensor(n, t.shape, t.type, np.asarray(file.raw(n)).tobytes()) for n, t in file.tensors.items()]
        pairs = int(file.metadata["llama.rope.dimension_count"]) // 2
        factors = np.ones(pairs, np.float32)
        factors[pairs // 2 :] = np.linspace(2, 8, pairs - pairs // 2)
        tensors.append(Tensor("rope_freqs.weight", (pairs,), by_name("F32"), factors))
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, dict(file.metadata), tensors)
    return path
