"""gpt2, starcoder, bloom, jais, gptneox, phi2, falcon, mpt and others: LayerNorm, biases, each with its own positions.

Blocks in sequence, or attention and feed-forward side by side, with one norm for both or one each.
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.llama import ALIBI, decoder


def gpt2(b: Builder) -> Graph:
    """Learned positions, added to the embedding."""
    hp = b.read(norm="layer")
    b.hp = hp.each(lambda i, row: replace(row, rope=None))
    x = b.embedding()
    x = b.add("inpL", x, b.node("pos_embd", "embed", "inp_pos", weights=("position_embd.weight",)))
    return b.head(decoder(b, x, act="gelu"))


def starcoder2(b: Builder, act: str = "gelu") -> Graph:
    """CodeShell too: the whole head is rotated."""
    b.read(norm="layer", mode="neox")
    return b.head(decoder(b, b.embedding(), act=act))


def nemotron(b: Builder) -> Graph:
    """Jais 2 too. A feed-forward without a gate: down · relu(up)². The 1 of Nemotron's norms is in their weights."""
    return starcoder2(b, "sqr(relu)")


def orion(b: Builder) -> Graph:
    """Llama with LayerNorm."""
    return starcoder2(b, "swiglu")


def bloom(b: Builder) -> Graph:
    """ALiBi, and a norm on the embedding."""
    hp = b.read(norm="layer")
    b.hp = hp.each(lambda i, row: replace(row, rope=None, max_bias=ALIBI))
    return b.head(decoder(b, b.norm("inp_norm", b.embedding(), "token_embd_norm"), act="gelu"))


def jais(b: Builder) -> Graph:
    """ALiBi and a gate; the scores are divided by the width of a head, not by its root."""
    hp = b.read(norm="layer")
    bias = max(b.meta.number("attention.max_alibi_bias", 0.0), 0.0)
    b.hp = hp.each(lambda i, row: replace(row, rope=None, max_bias=bias, scale=1 / row.n_embd_head))
    return b.head(decoder(b, b.embedding()))


def gptneox(b: Builder) -> Graph:
    """Attention and feed-forward side by side, each with its norm of the same row, or in turn; a key says which."""
    b.read(norm="layer", mode="neox")
    x = b.embedding()
    if not b.meta.flag("use_parallel_residual", True):
        return b.head(decoder(b, x, act="gelu"))
    for _ in b.blocks():
        attn = b.attention(b.norm("attn_norm", x))
        x = b.add("l_out", b.add("ffn_inp", b.ffn(b.norm("ffn_norm", x), "gelu"), x), attn)
    return b.head(x)


def phi2(b: Builder) -> Graph:
    """Side by side under one norm; a part of each head is rotated, and the query is scaled."""
    hp = b.read(norm="layer", mode="neox")
    b.hp = hp.each(lambda i, row: replace(row, scale_query=True))
    x = b.embedding()
    for _ in b.blocks():
        norm = b.norm("attn_norm", x)
        attn = b.attention(norm)
        x = b.add("l_out", b.add("ffn_attn", attn, b.ffn(norm, "gelu")), x)
    return b.head(x)


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
