"""A Llama engine in a hundred lines of NumPy. It runs; what it says is nonsense."""

import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


class Engine:
    def __init__(self, path):
        reader = GGUFReader(path)
        self.weights = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}

        def key(name):
            return reader.fields[f"llama.{name}"].contents()

        self.n_layer = key("block_count")
        self.n_head = key("attention.head_count")
        self.n_kv = key("attention.head_count_kv")
        self.d_head = key("embedding_length") // self.n_head
        self.base = key("rope.freq_base")
        self.seen = {}

    def keep(self, name, value):
        """Remember a value for the dump, and pass it on."""
        self.seen[name] = value
        return value

    def norm(self, x, weight):
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        return x / scale * self.weights[weight]

    def rope(self, x):
        """Turn each pair of a head by its position. x: tokens, heads, d_head."""
        half = self.d_head // 2
        angles = np.arange(len(x))[:, None] * self.base ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    def attention(self, x, i):
        n = len(x)
        q, k, v = (x @ self.weights[f"blk.{i}.attn_{c}.weight"].T for c in "qkv")
        q = self.keep(f"Qcur-{i}", self.rope(q.reshape(n, self.n_head, self.d_head)))
        k = self.keep(f"Kcur-{i}", self.rope(k.reshape(n, self.n_kv, self.d_head)))
        v = self.keep(f"Vcur-{i}", v.reshape(n, self.n_kv, self.d_head))
        heads = []
        for h in range(self.n_head):
            shared = h % self.n_kv
            scores = q[:, h] @ k[:, shared].T / np.sqrt(self.d_head)
            scores[np.triu_indices(n, 1)] = -np.inf
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            heads.append(weights / weights.sum(axis=-1, keepdims=True) @ v[:, shared])
        out = self.keep(f"kqv_out-{i}", np.concatenate(heads, axis=-1))
        return out @ self.weights[f"blk.{i}.attn_output.weight"].T

    def feed_forward(self, x, i):
        gate, up = (x @ self.weights[f"blk.{i}.ffn_{c}.weight"].T for c in ("gate", "up"))
        hidden = self.keep(f"ffn_swiglu-{i}", gate / (1 + np.exp(-gate)) * up)
        return hidden @ self.weights[f"blk.{i}.ffn_down.weight"].T

    def logits(self, ids):
        self.keep("tokens", np.array(ids))
        x = self.keep("embd", self.weights["token_embd.weight"][ids])
        for i in range(self.n_layer):
            x = x + self.attention(self.keep(f"attn_norm-{i}", self.norm(x, f"blk.{i}.attn_norm.weight")), i)
            self.keep(f"ffn_inp-{i}", x)
            x = x + self.feed_forward(self.keep(f"ffn_norm-{i}", self.norm(x, f"blk.{i}.ffn_norm.weight")), i)
            self.keep(f"l_out-{i}", x)
        x = self.keep("result_norm", self.norm(x, "output_norm.weight"))
        head = self.weights.get("output.weight", self.weights["token_embd.weight"])
        return self.keep("result_output", x @ head.T)


if __name__ == "__main__":
    path, ids = sys.argv[1], [int(word) for word in sys.argv[2].split(",")]
    engine = Engine(path)
    if len(sys.argv) > 3:
        engine.logits(ids)
        np.savez(sys.argv[3], **engine.seen)
    else:
        for _ in range(6):
            ids.append(int(engine.logits(ids)[-1].argmax()))
        print(",".join(map(str, ids)))
