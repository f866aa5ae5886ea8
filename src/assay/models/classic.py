"""gpt2, starcoder2, stablelm, falcon, mpt: LayerNorm, biases, and each with its own form of positions.

Blocks in sequence, or attention and feed-forward side by side where one norm serves both.
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.llama import decoder


def gpt2(b: Builder) -> Graph:
    """Learned positions, added to the embedding."""
    hp = b.read(norm="layer")
    b.hp = hp.each(lambda i, row: replace(row, rope=None))
    x = b.embedding()
    x = b.add("inpL", x, b.node("pos_embd", "embed", "inp_pos", weights=("position_embd.weight",)))
    return b.head(decoder(b, x, act="gelu"))


def starcoder2(b: Builder) -> Graph:
    b.read(norm="layer", mode="neox")
    return b.head(decoder(b, b.embedding(), act="gelu"))


def mpt(b: Builder) -> Graph:
    """ALiBi: the score of a key falls with its distance. q, k and v are clamped together."""
    hp = b.read(norm="layer")
    bias, clamp = b.meta.number("attention.max_alibi_bias", 0.0), b.meta.number("attention.clamp_kqv", 0.0)
    b.hp = hp.each(lambda i, row: replace(row, rope=None, max_bias=max(bias, 0.0)))
    x = b.embedding()
    if b.has("position_embd"):
        x = b.add("inpL", x, b.node("pos_embd", "embed", "inp_pos", weights=("position_embd.weight",)))
    for _ in b.blocks():
        x = b.add("ffn_inp", b.attention(b.norm("attn_norm", x), clamp=max(clamp, 0.0)), x)
        x = b.add("l_out", b.ffn(b.norm("ffn_norm", x), "gelu"), x)
    return b.head(x)


def stablelm(b: Builder) -> Graph:
    """A quarter of each head is rotated. The 12B has one norm for both parts, and norms every head of q and k."""
    b.read(norm="layer", mode="neox")
    x = b.embedding()
    for _ in b.blocks():
        norm = b.norm("attn_norm", x)
        x = b.add("ffn_inp", b.attention(norm), x)
        x = b.add("l_out", b.ffn(b.norm("ffn_norm", x) if b.has("ffn_norm") else norm), x)
    return b.head(x)


def falcon(b: Builder) -> Graph:
    """Side by side; attention has a norm of its own where the file has `attn_norm_2`."""
    b.read(norm="layer", mode="neox")
    x = b.embedding()
    for _ in b.blocks():
        norm = b.norm("attn_norm", x)
        attn = b.attention(b.norm("attn_norm_2", x) if b.has("attn_norm_2") else norm)
        x = b.add("l_out", b.add("ffn_attn", b.ffn(norm, "gelu"), attn), x)
    return b.head(x)
