"""bert, nomic-bert, jina-bert-v3, nomic-bert-moe, modern-bert: encoders. Every token sees every other.

Norms come after each sum (in modern-bert before each part), and the rows are pooled.

x = layer_norm(x + Wo · attention(x))
x = layer_norm(x + W2 gelu(W1 x))
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

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


def jina_bert3(b: Builder) -> Graph:
    """RoPE for the positions, no gate in the feed-forward. nomic-bert-moe: experts in layers i with i mod n = 1."""
    b.read(norm="layer", mode="neox")
    b.routing(normalise=False, act="gelu")
    every = b.meta.count("moe_every_n_layers", 0, least=0)
    b.hp = b.hp.each(
        lambda i, row: replace(row, causal=False, experts=row.experts if every and i % every == 1 else None)
    )
    return _encoder(b, "gelu")


def modern_bert(b: Builder) -> Graph:
    """Norms before each part and without bias; local layers have a window on both sides and their own RoPE base."""
    hp = b.read(norm="layer", mode="neox")
    value = b.meta.values.get(f"{b.meta.arch}.attention.sliding_window_pattern")
    if value is None or isinstance(value, int | np.integer):
        every = b.meta.count("attention.sliding_window_pattern", 3)
        local = [i % every != 0 for i in range(hp.n_layer)]
    else:
        local = b.meta.pattern(hp.n_layer, None)
    near = hp.rope.unscaled(b.meta.positive("rope.freq_base_swa", 10000.0))
    window = b.meta.count("attention.sliding_window", 0, least=0)
    local = [kind and window > 0 for kind in local]
    b.hp = hp.each(
        lambda i, row: replace(row, causal=False, window=window * local[i], rope=near if local[i] else row.rope)
    )
    act = b.meta.choice("hidden_activation", "gelu", ("gelu", "silu"))
    x = b.node("inp_embd", "embed", "inp_tokens", weights=("token_embd.weight",))
    x = b.norm("inp_norm-0", x, "token_embd_norm")
    for _ in b.blocks():
        norm = b.norm("attn_norm", x) if b.has("attn_norm") else x
        x = b.add("ffn_inp", b.attention(norm), x)
        ffn = b.ffn(b.norm("ffn_norm", x), "swiglu" if act == "silu" else "geglu", out="ffn_down")
        x = b.add("l_out", ffn, x)
    return b.encoded(b.norm("final_norm_out", x, "output_norm"))


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
        x = b.add("ffn_res", b.experts(x) if b.here.experts else b.ffn(x, act), x)
        if i < b.hp.n_layer - 1:
            x = b.norm("l_out", x, "layer_output_norm")
    x = b.norm("result_embd", x, f"blk.{b.hp.n_layer - 1}.layer_output_norm")
    return b.encoded(x)
