"""gemma, gemma2, gemma3 and gemma-embedding: a scaled embedding, GeGLU, norms before and after each part.

    x = x + rms_norm(Wo · attention(rope(norm(Wq n)), …))       n = rms_norm(x)
    x = x + rms_norm(Wdown (gelu(Wgate m) * Wup m))             m = rms_norm(x)

Local layers see a window; from gemma3 on they also have a RoPE base of their own and no scaling. The weights of
the norms include the model's `+ 1`.
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.hparams import HParams


def gemma(b: Builder) -> Graph:
    _scale_query(b, b.read(mode="neox"))
    return b.head(_blocks(b))


def gemma2(b: Builder) -> Graph:
    hp = b.read(mode="neox")
    cap = b.meta.number("attn_logit_softcapping", 50.0)
    b.hp = hp.each(lambda i, row: replace(row, cap=cap))
    _scale_query(b, b.hp, deep=46)
    b.local(2, window=b.meta.count("attention.sliding_window", 4096, least=0))
    return b.head(_blocks(b), cap=b.meta.number("final_logit_softcapping", 30.0))


def gemma3(b: Builder) -> Graph:
    _scale_query(b, b.read(mode="neox"), deep=62)
    window = b.meta.count("attention.sliding_window", 0, least=0)
    if window:
        _local(b, window)
    return b.head(_blocks(b), cap=b.meta.number("final_logit_softcapping", 0.0))


def gemma_embedding(b: Builder) -> Graph:
    """gemma3 without the causal mask; the window reaches to both sides."""
    hp = b.read(mode="neox")
    b.hp = hp.each(lambda i, row: replace(row, causal=False))
    _scale_query(b, b.hp)
    _local(b, b.meta.count("attention.sliding_window"))
    return b.encoded(b.norm("result_norm", _blocks(b), "output_norm"))


def _scale_query(b: Builder, hp: HParams, deep: int = 0) -> None:
    """Scale the query by its head width, or by n_embd / n_head in the model with `deep` layers."""
    width = hp.n_embd // hp.n_head if hp.n_layer == deep else hp.n_embd_head
    b.hp = hp.each(lambda i, row: replace(row, scale=width**-0.5, scale_query=True))


def _local(b: Builder, window: int) -> None:
    """Five of six layers see a window, with a RoPE base of 10000 and no scaling."""
    base = b.meta.positive("rope.freq_base_swa", 10000.0)
    plain = replace(b.hp.rope.unscaled(base), magnitude=b.meta.positive("rope.scaling.attn_factor", 1.0))
    b.local(6, window=window, rope=plain)


def _blocks(b: Builder) -> str:
    x = b.embedding(b.hp.n_embd**0.5)
    for _ in b.blocks():
        attn = b.attention(b.norm("attn_norm", x))
        if b.has("post_attention_norm"):
            attn = b.norm("attn_post_norm", attn, "post_attention_norm")
        x = b.add("sa_out", attn, x)
        ffn = b.ffn(b.norm("ffn_norm", x), "geglu")
        if b.has("post_ffw_norm"):
            ffn = b.norm("ffn_post_norm", ffn, "post_ffw_norm")
        x = b.add("l_out", ffn, x)
    return x
