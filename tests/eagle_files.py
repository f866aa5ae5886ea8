"""Tiny EAGLE-3 heads for the models of `draft_files.py`, and the float64 textbook of their formulas.

A head from `make` is often right. Its attention sees its own position almost alone and passes the token's embedding on,
and its output has the model's own rows. What a model of `draft_files.py` says depends little on its layers, so this is
near. `fc` and the feed-forward part add something else, so that it is sometimes wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.gguf import GGUFFile, open_file
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from tests import draft_files

EPS = 1e-5
LAYERS = (0, 1, 2)


@dataclass(frozen=True)
class Form:
    """How a head differs from the plainest one."""

    kept: int = 280  # rows of `output`; 0: the model's own, and no d2t
    own_table: bool = False  # a `token_embd` of its own
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    rope_freqs: bool = False
    n_head_kv: int = 4
    mixed: float = 0.05  # how much fc and the feed-forward part say
    layers: tuple[int, ...] = LAYERS


def make(path: Path, model: Path, form: Form | None = None, *, seed: int = 1, keys: Mapping[str, Any] | None = None,
         replaced: Mapping[str, NDArray[Any] | None] | None = None) -> Path:  # fmt: skip
    """Write a head for the model. `replaced` has other values of tensors; None leaves a tensor out."""
    form, file = form or Form(), open_file(model)
    arch = file.get_str("general.architecture")
    n = int(file.metadata[f"{arch}.embedding_length"])
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.standard_normal(shape) / np.sqrt(shape[-1])  # noqa: E731
    width, kv = n // 4, form.n_head_kv * n // 4
    eye = np.eye(n)
    scores = 2.5 * np.concatenate([eye, form.mixed * draw(n, n)], axis=1)
    tensors: dict[str, NDArray[Any] | None] = {
        "fc.weight": form.mixed * draw(n, len(form.layers) * n),
        "blk.0.attn_norm.weight": 1 + 0.1 * draw(n),
        "blk.0.attn_norm_2.weight": 1 + 0.1 * draw(n),
        "blk.0.attn_q.weight": scores,
        "blk.0.attn_k.weight": scores[:kv],
        "blk.0.attn_v.weight": np.concatenate([eye, form.mixed * draw(n, n)], axis=1)[:kv],
        "blk.0.attn_output.weight": eye,
        "blk.0.ffn_norm.weight": 1 + 0.1 * draw(n),
        "blk.0.ffn_gate.weight": 1.7 * draw(96, n),
        "blk.0.ffn_up.weight": 1.7 * draw(96, n),
        "blk.0.ffn_down.weight": form.mixed * draw(n, 96),
        "output_norm.weight": 1 + 0.1 * draw(n),
    }
    if form.kept:
        ids = np.sort(rng.permutation(len(draft_files.tiny.TOKENS))[: form.kept]).astype(np.int64)
        output = file.decode("output.weight" if "output.weight" in file.tensors else "token_embd.weight")
        tensors |= {"output.weight": output[ids], "d2t": ids}
    if form.own_table:
        tensors["token_embd.weight"] = file.decode("token_embd.weight")
    if form.norm_before_fc:
        tensors["enc.output_norm.weight"] = 1 + 0.1 * draw(len(form.layers) * n)
    if form.rope_freqs:
        tensors["rope_freqs.weight"] = 1 + rng.random(width // 2)
    tensors |= replaced or {}
    facts = {
        "general.architecture": "eagle3", "eagle3.block_count": 1, "eagle3.context_length": 512,
        "eagle3.embedding_length": n, "eagle3.feed_forward_length": 96, "eagle3.attention.head_count": 4,
        "eagle3.attention.head_count_kv": form.n_head_kv, "eagle3.attention.layer_norm_rms_epsilon": EPS,
        "eagle3.target_layers": np.array(form.layers, np.int32), "eagle3.target_hidden_size": n,
        "eagle3.norm_before_fc": form.norm_before_fc, "eagle3.norm_before_residual": form.norm_before_residual,
        **draft_files.TOKENIZER, **(keys or {}),
    }  # fmt: skip
    write(path, {k: v for k, v in facts.items() if v is not None}, [
        Tensor(name, v.shape, by_name("I64" if v.dtype == np.int64 else "F32"),
               v if v.dtype == np.int64 else v.astype(np.float32))
        for name, v in tensors.items() if v is not None
    ])  # fmt: skip
    return path


class Textbook:
    """The formulas of `models/eagle3.py` in float64, written down a second time: no graph, no cache, no engine."""

    def __init__(self, head: GGUFFile, model: GGUFFile) -> None:
        self._head, self._model = head, model

    def _w(self, name: str) -> NDArray[np.float64]:
        if name in self._head.tensors:
            return self._head.decode(name).astype(np.float64)
        own = name if name in self._model.tensors else "token_embd.weight"
        return self._model.decode(own).astype(np.float64)

    def _norm(self, x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * self._w(name))

    def fused(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """g of every position, from the three rows side by side."""
        x = rows.astype(np.float64)
        if self._head.metadata["eagle3.norm_before_fc"]:
            x = self._norm(x, "enc.output_norm.weight")
        return np.asarray(x @ self._w("fc.weight").T)

    def logits(self, ids: list[int], g: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of every pair: the token ids[p + 1] and row g[p], at position p."""
        n, heads = len(ids) - 1, int(self._head.metadata["eagle3.attention.head_count"])
        kv_heads = int(self._head.metadata["eagle3.attention.head_count_kv"])
        token = self._norm(self._w("token_embd.weight")[ids[1:]], "blk.0.attn_norm.weight")
        hidden = self._norm(g[:n], "blk.0.attn_norm_2.weight")
        x = np.concatenate([token, hidden], axis=1)
        q, k, v = (x @ self._w(f"blk.0.attn_{part}.weight").T for part in "qkv")
        q, k, v = (part.reshape(n, -1, q.shape[1] // heads) for part in (q, k, v))
        q, k = self._turned(q), self._turned(k)
        mixed = np.empty_like(q)
        for h in range(heads):
            own = h // (heads // kv_heads)
            scores = q[:, h] @ k[:, own].T / np.sqrt(q.shape[-1])
            scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            mixed[:, h] = weights / weights.sum(axis=1, keepdims=True) @ v[:, own]
        residual = hidden if self._head.metadata["eagle3.norm_before_residual"] else g[:n]
        y = mixed.reshape(n, -1) @ self._w("blk.0.attn_output.weight").T + residual
        m = self._norm(y, "blk.0.ffn_norm.weight")
        gate, up = m @ self._w("blk.0.ffn_gate.weight").T, m @ self._w("blk.0.ffn_up.weight").T
        z = y + (gate / (1 + np.exp(-gate)) * up) @ self._w("blk.0.ffn_down.weight").T
        return np.asarray(self._norm(z, "output_norm.weight") @ self._w("output.weight").T)

    def _turned(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Neighbours as pairs, turned by their position."""
        half = x.shape[-1] // 2
        slow = self._w("rope_freqs.weight") if "rope_freqs.weight" in self._head.tensors else np.ones(half)
        angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(half) / half) / slow
        turn = np.exp(1j * angle)[:, None, :]
        pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)
