"""The `llama` architecture: Llama 1/2/3, TinyLlama, SmolLM2, Mistral, and Mixtral's experts.

    x = x + Wo · attention(rope(Wq n), rope(Wk n), Wv n)        n = rms_norm(x)
    x = x + Wdown (silu(Wgate m) * Wup m)                       m = rms_norm(x)

Tensors that a file may or may not have (biases, a separate head, `rope_freqs`, experts, a fused `attn_qkv`)
are looked up by name; what is there is used.
"""

from __future__ import annotations

from assay.graph import Graph
from assay.models.blocks import Builder, Shapes
from assay.models.hparams import HParams


def build(shapes: Shapes, hp: HParams) -> Graph:
    b = Builder(shapes, hp, rope_mode="norm")
    x = b.embedding()
    for layer in range(hp.n_layer):
        b.layer = layer
        norm = b.rms_norm("attn_norm", x)
        attn = b.project("attn_out", b.attention(norm), "attn_output", partial="attn_out_proj")
        x = b.node("ffn_inp", "add", attn, x)
        norm = b.rms_norm("ffn_norm", x)
        ffn = b.experts(norm) if hp.n_expert else b.ffn(norm)
        x = b.node("l_out", "add", ffn, x)
    b.layer = None
    b.head(b.rms_norm("result_norm", x, weight="output_norm"))
    return b.graph()
