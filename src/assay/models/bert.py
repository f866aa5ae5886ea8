"""bert, nomic-bert: encoders. Every token sees every other, norms come after each sum, the rows are pooled.

x = layer_norm(x + Wo · attention(x))
x = layer_norm(x + W2 gelu(W1 x))
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder


def bert(b: Builder) -> Graph:
    """Learned positions."""
    hp = b.read(norm="layer", mode="neox")
    b.hp = hp.each(lambda i, row: replace(row, rope=None, causal=False))
    return _encoder(b, "gelu")


def nomic_bert(b: Builder) -> Graph:
    """RoPE for the positions, a gate in the feed-forward."""
    hp = b.read(norm="layer", mode="neox")
    b.hp = hp.each(lambda i, row: replace(row, causal=False))
    return _encoder(b, "swiglu")


def _encoder(b: Builder, act: str) -> Graph:
    learned = b.hp.layers[0].rope is None
    x = b.embedding()
    if b.has("token_types"):
        x = b.node("embd_typed" if learned else "inp_embd", "add_row", x, weights=("token_types.weight",))
    if learned:
        x = b.add("inp_embd", b.node("pos_embd", "embed", "inp_pos", weights=("position_embd.weight",)), x)
    x = b.norm("inp_norm-0", x, "token_embd_norm")
    for i in b.blocks():
        attn = b.attention(x)
        x = b.norm("ffn_inp", b.add("attn_res", attn, x), "attn_output_norm")
        x = b.add("ffn_res", b.ffn(x, act), x)
        if i < b.hp.n_layer - 1:
            x = b.norm("l_out", x, "layer_output_norm")
    x = b.norm("result_embd", x, f"blk.{b.hp.n_layer - 1}.layer_output_norm")
    return b.encoded(x)
