"""A small Llama engine in NumPy, in place of yours: reads a GGUF file, runs the tokens, saves what it computed."""

from __future__ import annotations

import argparse

import numpy as np
from gguf import GGUFReader, dequantize


def norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight


def rotate(x: np.ndarray, base: float) -> np.ndarray:
    """RoPE over neighbouring pairs; x is [tokens, heads, dim]."""
    n, _, width = x.shape
    angle = np.arange(n)[:, None] * base ** (-np.arange(0, width, 2) / width)
    cos, sin = (f(angle).astype(np.float32)[:, None, :] for f in (np.cos, np.sin))
    even, odd = x[..., ::2], x[..., 1::2]
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def run(path: str, tokens: list[int]) -> dict[str, np.ndarray]:
    reader = GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items() if name.startswith("llama.")}
    weights = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    heads = keys["llama.attention.head_count"]
    kv_heads = keys.get("llama.attention.head_count_kv", heads)
    eps = keys["llama.attention.layer_norm_rms_epsilon"]
    base = keys.get("llama.rope.freq_base", 10000.0)
    n = len(tokens)
    out = {"tokens": np.array(tokens), "embd": weights["token_embd.weight"][tokens]}
    x = out["embd"]
    for layer in range(keys["llama.block_count"]):
        w = {name.split(".", 2)[2]: value for name, value in weights.items() if name.startswith(f"blk.{layer}.")}
        h = norm(x, w["attn_norm.weight"], eps)
        q, k, v = (h @ w[f"attn_{part}.weight"].T for part in "qkv")
        q, k = rotate(q.reshape(n, heads, -1), base), rotate(k.reshape(n, kv_heads, -1), base)
        k, v = (np.repeat(y.reshape(n, kv_heads, -1), heads // kv_heads, axis=1) for y in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) / np.float32(np.sqrt(q.shape[-1]))
        scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        attention = np.einsum("hts,shd->thd", scores, v).reshape(n, -1) @ w["attn_output.weight"].T
        x = x + attention
        h = norm(x, w["ffn_norm.weight"], eps)
        gate, up = h @ w["ffn_gate.weight"].T, h @ w["ffn_up.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w["ffn_down.weight"].T
        out |= {f"attn_out-{layer}": attention, f"l_out-{layer}": x}
    out["result_norm"] = norm(x, weights["output_norm.weight"], eps)
    out["result_output"] = out["result_norm"] @ weights.get("output.weight", weights["token_embd.weight"]).T
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option in ("--model", "--tokens", "--dump"):
        parser.add_argument(option, required=True)
    args = parser.parse_args()
    np.savez(args.dump, **run(args.model, [int(t) for t in args.tokens.split(",")]))
