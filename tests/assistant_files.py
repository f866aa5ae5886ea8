"""Tiny assistants for the Gemma 4 of `draft_files.py`, the float64 textbook of their formulas, and llama.cpp's logits.

    python tests/assistant_files.py        records llama.cpp's logits anew (needs llama-cpp-python)

An assistant from `make` is often right: it passes the token's embedding on to the model's own matrix, turned into a
space of 80 numbers. Its layers and h add something else, so that it is sometimes wrong.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.gguf import GGUFFile, open_file
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from tests import draft_files

GOLDEN = Path(__file__).parent / "data" / "assistant.npz"
EPS, BASE, BASE_LOCAL, WINDOW = 1e-5, 1e6, 10000.0, 8
HEADS, KV_HEADS, WIDTH, WIDTH_LOCAL = 4, 2, 16, 8
N_EMBD, N_FF = 80, 96
LOCAL = (True, True, False)
IDS = np.random.default_rng(4).integers(3, 300, 30)
Array = NDArray[np.float64]


def make(path: Path, model: Path, *, mixed: float = 0.05, seed: int = 1, keys: Mapping[str, Any] | None = None,
         replaced: Mapping[str, NDArray[Any] | None] | None = None) -> Path:  # fmt: skip
    """Write an assistant for the model. `mixed` is how much h and the layers say; `replaced` has other tensors, and
    None leaves one out."""
    file = open_file(model)
    arch = file.get_str("general.architecture")
    n = int(file.metadata[f"{arch}.embedding_length"])
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.standard_normal(shape) / np.sqrt(shape[-1])  # noqa: E731
    turned = np.linalg.qr(rng.standard_normal((N_EMBD, n)))[0]
    output = file.decode("output.weight" if "output.weight" in file.tensors else "token_embd.weight")
    tensors: dict[str, NDArray[Any] | None] = {
        "token_embd.weight": output @ turned.T,
        "output_norm.weight": 1 + 0.1 * draw(N_EMBD),
        "rope_freqs.weight": np.geomspace(1, 3, WIDTH // 2),
        "nextn.pre_projection.weight": np.concatenate([turned, mixed * draw(N_EMBD, n)], axis=1),
        "nextn.post_projection.weight": turned.T + mixed * draw(n, N_EMBD),
    }
    for i, local in enumerate(LOCAL):
        width = HEADS * (WIDTH_LOCAL if local else WIDTH)
        own: dict[str, NDArray[Any]] = {
            "attn_norm": 1 + 0.1 * draw(N_EMBD), "attn_q": 1.7 * draw(width, N_EMBD),
            "attn_q_norm": 1 + 0.1 * draw(width // HEADS), "attn_output": mixed * draw(N_EMBD, width),
            "post_attention_norm": mixed * (1 + draw(N_EMBD)), "ffn_norm": 1 + 0.1 * draw(N_EMBD),
            "ffn_gate": 1.7 * draw(N_FF, N_EMBD), "ffn_up": 1.7 * draw(N_FF, N_EMBD),
            "ffn_down": draw(N_EMBD, N_FF), "post_ffw_norm": mixed * (1 + draw(N_EMBD)),
            "layer_output_scale": np.array([0.9 + 0.1 * i]),
        }  # fmt: skip
        tensors |= {f"blk.{i}.{name}.weight": value for name, value in own.items()}
    tensors |= replaced or {}
    common = {
        "block_count": len(LOCAL), "nextn_predict_layers": len(LOCAL), "context_length": 512,
        "embedding_length": N_EMBD, "embedding_length_out": n, "feed_forward_length": N_FF,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.key_length": WIDTH,
        "attention.value_length": WIDTH, "attention.key_length_swa": WIDTH_LOCAL,
        "attention.value_length_swa": WIDTH_LOCAL, "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": list(LOCAL), "attention.shared_kv_layers": len(LOCAL),
        "attention.layer_norm_rms_epsilon": EPS, "rope.freq_base": BASE, "rope.freq_base_swa": BASE_LOCAL,
        "rope.dimension_count": WIDTH, "rope.dimension_count_swa": WIDTH_LOCAL,
    }  # fmt: skip
    facts = {"general.architecture": "gemma4-assistant", **draft_files.TOKENIZER}
    facts |= {f"gemma4-assistant.{key}": value for key, value in common.items()} | dict(keys or {})
    write(path, {k: v for k, v in facts.items() if v is not None}, [
        Tensor(name, v.shape, by_name("F32"), v.astype(np.float32)) for name, v in tensors.items() if v is not None
    ])  # fmt: skip
    return path


class Textbook:
    """The formulas of `models/gemma4_assistant.py` in float64, written down a second time: no graph, cache or engine.

    `keys` and `values` have all rows of the model's last local layer (True) and last full one (False), [n, heads, d].
    """

    def __init__(self, head: GGUFFile, model: GGUFFile) -> None:
        self._head, self._model = head, model

    def _w(self, name: str) -> Array:
        return self._head.decode(f"{name}.weight").astype(np.float64)

    def _norm(self, x: Array, name: str) -> Array:
        return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * self._w(name))

    def guess(
        self, token: int, place: int, h: Array, keys: Mapping[bool, Array], values: Mapping[bool, Array]
    ) -> tuple[Array, Array]:
        """Logits and the next h, for the token at `place` and h; rows from `place` on are not seen."""
        table = self._model.decode("token_embd.weight").astype(np.float64)
        x = self._w("nextn.pre_projection") @ np.concatenate([np.sqrt(table.shape[1]) * table[token], h])
        for i, local in enumerate(LOCAL):
            x = self._layer(f"blk.{i}", x, place, keys[local], values[local], local=local)
        z = self._norm(x, "output_norm")
        return self._w("token_embd") @ z, self._w("nextn.post_projection") @ z

    def _layer(self, at: str, x: Array, place: int, k: Array, v: Array, *, local: bool) -> Array:
        first = max(0, place - WINDOW + 1) if local else 0
        width, base = (WIDTH_LOCAL, BASE_LOCAL) if local else (WIDTH, BASE)
        slow = np.ones(width // 2) if local else self._w("rope_freqs")
        q = (self._w(f"{at}.attn_q") @ self._norm(x, f"{at}.attn_norm")).reshape(HEADS, width)
        q = self._norm(q, f"{at}.attn_q_norm")
        a, b = np.split(q, 2, axis=1)
        angle = place * base ** (-2 * np.arange(width // 2) / width) / slow
        q = np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=1)
        mixed = np.empty((HEADS, width))
        for n in range(HEADS):
            own = n // (HEADS // KV_HEADS)
            scores = np.exp((s := k[first:place, own] @ q[n]) - s.max())
            mixed[n] = scores / scores.sum() @ v[first:place, own]
        y = x + self._norm(self._w(f"{at}.attn_output") @ mixed.ravel(), f"{at}.post_attention_norm")
        m = self._norm(y, f"{at}.ffn_norm")
        gate, up = self._w(f"{at}.ffn_gate") @ m, self._w(f"{at}.ffn_up") @ m
        gelu = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        y = y + self._norm(self._w(f"{at}.ffn_down") @ (gelu * up), f"{at}.post_ffw_norm")
        return np.asarray(y * self._w(f"{at}.layer_output_scale"))


def files(folder: Path) -> tuple[Path, Path]:
    """The model and its assistant, whose layers and h say much."""
    model = draft_files.make(folder / "gemma4.gguf", "gemma4", mixed=1.0)
    return model, make(folder / "assistant.gguf", model, mixed=1.0)


def witness(model: Path, head: Path) -> dict[str, NDArray[np.float32]]:
    """llama.cpp's logits of three guesses behind `IDS`: the last token is not in the model's cache. Then its h.

    The functions that give h to the head are exported under C++ names (llama-ext.h).
    """
    import ctypes

    import llama_cpp as L

    library = L.llama_cpp._lib
    show = library["_Z26llama_set_embeddings_nextnP13llama_contextbb"]
    row = library["_Z30llama_get_embeddings_nextn_ithP13llama_contexti"]
    show.argtypes, show.restype = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool], None
    row.argtypes, row.restype = [ctypes.c_void_p, ctypes.c_int32], ctypes.POINTER(ctypes.c_float)

    def opened(path: Path, other: Any = None) -> tuple[Any, Any]:
        parameters = L.llama_model_default_params()
        parameters.n_gpu_layers, parameters.use_extra_bufts = 0, False
        loaded = L.llama_model_load_from_file(str(path).encode(), parameters)
        assert loaded, f"{path}: llama.cpp refuses it"
        c = L.llama_context_default_params()
        c.n_ctx, c.n_batch, c.n_ubatch, c.n_threads = 128, 64, 64, 1
        c.type_k = c.type_v = c.flash_attn_type = 0
        c.swa_full = True
        if other is not None:
            c.ctx_other = other
        context = L.llama_init_from_model(loaded, c)
        assert context
        return loaded, context

    trunk, context = opened(model)
    _, guesses = opened(head, context)
    show(context, True, False)
    show(guesses, True, True)
    n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(trunk))
    width = L.llama_model_n_embd(trunk)

    def run(ctx: Any, tokens: Any, start: int, h: Any = None) -> None:
        batch = L.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        given = None
        if h is not None:
            given = np.ascontiguousarray(h, np.float32)
            batch.embd = given.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), start + i, 1, 1
            batch.seq_id[i][0] = 0
        assert L.llama_decode(ctx, batch) == 0

    run(context, IDS[:-1], 0)
    place, token = len(IDS) - 1, int(IDS[-1])
    h = np.ctypeslib.as_array(row(context, place - 1), (width,)).copy()
    found = {"h": h}
    logits = []
    for _ in range(3):
        run(guesses, [token], place, h)
        logits.append(np.ctypeslib.as_array(L.llama_get_logits_ith(guesses, 0), (n_vocab,)).copy())
        h = np.ctypeslib.as_array(row(guesses, 0), (width,)).copy()
        token = int(logits[-1].argmax())
    return {**found, "logits": np.array(logits), "last_h": h}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        recorded = witness(*files(Path(folder)))
    np.savez_compressed(GOLDEN, **recorded)
    print(f"wrote {GOLDEN}, {GOLDEN.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
