"""Vectors that transformers computes for the encoders of `others.py`, recorded in tests/data/embeddings.npz.

    python tests/models/embeddings.py        records them anew (needs transformers and torch)

The weights of the tiny file are put into transformers' own model class, and its last hidden states pooled as the file
says. bert's GELU is set to the tanh form, which the files' engines use; transformers' default is erf.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from assay.gguf import open_file
from tests.models import others

RECORD = Path(__file__).parents[1] / "data" / "embeddings.npz"
CASES = ("bert", "bert, first", "nomic-bert", "gemma-embedding", "gemma-embedding, odd window", "qwen3, pooling last")
TEXTS = [others.IDS[:n].tolist() for n in (1, 6, 40)]

_BERT = {
    "attn_q": "attention.self.query", "attn_k": "attention.self.key", "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense", "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense", "ffn_down": "output.dense", "layer_output_norm": "output.LayerNorm",
}  # fmt: skip
_NOMIC = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_output_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "layer_output_norm": "post_mlp_layernorm",
}  # fmt: skip
_DECODER = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
}  # fmt: skip
_QWEN = {**_DECODER, "ffn_norm": "post_attention_layernorm"}
_GEMMA = {
    **_DECODER, "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_TOP = {"token_embd": "embed_tokens", "output_norm": "norm"}
_BERT_TOP = {
    "token_embd": "embeddings.word_embeddings", "token_embd_norm": "embeddings.LayerNorm",
    "token_types": "embeddings.token_type_embeddings", "position_embd": "embeddings.position_embeddings",
}  # fmt: skip


def _model(name: str, path: Path) -> Any:
    """transformers' model with the weights of the file."""
    import torch
    import transformers as tf

    case, file = others.CASES[name], open_file(path)
    z, keys, arch = case.row.sizes, case.row.keys, case.row.name
    common = {
        "vocab_size": z.n_vocab, "hidden_size": z.n_embd, "intermediate_size": z.n_ff, "num_hidden_layers": z.n_layer,
        "num_attention_heads": z.n_head, "num_key_value_heads": z.n_head_kv, "head_dim": z.n_embd_head,
        "max_position_embeddings": z.n_ctx, "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5,
        "attn_implementation": "eager",
    }  # fmt: skip
    top, names, layer = _TOP, _QWEN, "layers.{}."
    if arch == "bert":
        config = tf.BertConfig(**common, hidden_act="gelu_new", type_vocab_size=2)
        model, top, names, layer = tf.BertModel(config, add_pooling_layer=False), _BERT_TOP, _BERT, "encoder.layer.{}."
    elif arch == "nomic-bert":
        rope = {"rope_type": "default", "rope_theta": keys["rope.freq_base"]}
        config = tf.NomicBertConfig(**common, hidden_act="silu", type_vocab_size=2, rope_parameters=rope)
        model, top, names = tf.NomicBertModel(config, add_pooling_layer=False), _BERT_TOP, _NOMIC
    elif arch == "gemma-embedding":
        local = [(i + 1) % 6 != 0 for i in range(z.n_layer)]
        rope = {
            "full_attention": {"rope_type": "default", "rope_theta": keys["rope.freq_base"]},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        }
        config = tf.Gemma3TextConfig(
            **common, query_pre_attn_scalar=z.n_embd_head, sliding_window=keys["attention.sliding_window"],
            layer_types=["sliding_attention" if i else "full_attention" for i in local], rope_parameters=rope,
            use_bidirectional_attention=True,
        )  # fmt: skip
        model, names = tf.Gemma3TextModel(config), _GEMMA
    else:
        rope = {"rope_type": "default", "rope_theta": 10000.0}
        model = tf.Qwen3Model(tf.Qwen3Config(**common, rope_parameters=rope))
    state: dict[str, Any] = {}
    for tensor in file.tensors:
        value = file.decode(tensor)
        stem, _, suffix = tensor.rpartition(".")
        parts = {stem.split(".")[-1]: value}
        if "attn_qkv" in parts:
            parts = dict(zip(("attn_q", "attn_k", "attn_v"), np.split(value, 3), strict=True))
        for part, values in parts.items():
            where = layer.format(stem.split(".")[1]) + names[part] if stem.startswith("blk.") else top[part]
            shift = 1.0 if arch == "gemma-embedding" and "norm" in part else 0.0  # the file has Gemma's 1 in it
            state[f"{where}.{suffix}"] = torch.from_numpy(np.asarray(values, np.float32) - np.float32(shift))
    missing = [k for k in model.load_state_dict(state, strict=False).missing_keys if "position_ids" not in k]
    assert not missing, missing
    return model.eval()


def vectors(name: str, path: Path) -> np.ndarray:
    """One unit vector a text, by transformers."""
    import torch

    model = _model(name, path)
    kind = others.CASES[name].row.keys["pooling_type"]
    found = []
    for ids in TEXTS:
        with torch.no_grad():
            rows = model(torch.tensor([ids])).last_hidden_state[0].double().numpy()
        vector = {1: rows.mean(axis=0), 2: rows[0], 3: rows[-1]}[kind]
        found.append(vector / np.linalg.norm(vector))
    return np.array(found, np.float32)


def main() -> None:
    import assay

    recorded = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        for name in CASES:
            others.make(name, path)
            recorded[name] = vectors(name, path)
            with assay.load(path, precision="exact") as model:
                print(f"{np.abs(model.embed(TEXTS) - recorded[name]).max():.1e}  {name}")
    np.savez_compressed(RECORD, **recorded)


if __name__ == "__main__":
    main()
