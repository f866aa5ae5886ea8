"""granite, granitemoe, granite_swa, minicpm: Llama with scales on the embedding, scores, residuals and logits.

granitehybrid (Granite 4): the same with Mamba-2 in the layers that have no keys.
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.recurrent import StateSizes, mamba2, mark_without_keys


def granite(b: Builder) -> Graph:
    """Not rotated where `rope.scaling.finetuned` is false."""
    return _granite(b, b.meta.flag("rope.scaling.finetuned", True))


def granitemoe(b: Builder) -> Graph:
    return _granite(b, rotated=True)


def _granite(b: Builder, rotated: bool) -> Graph:
    hp = b.read()
    scale = b.meta.number("attention.scale", 0.0) or hp.attn_scale
    b.hp = hp.each(lambda i, row: replace(row, scale=scale, rope=row.rope if rotated else None))
    return _build(b, b.meta.number("embedding_scale", 0.0), b.meta.number("residual_scale", 0.0), None)


def granite_swa(b: Builder) -> Graph:
    """Local layers with a window, sinks, and layers without rotation, each by a pattern of the file."""
    hp = b.read()
    scale = b.meta.number("attention.scale", 0.0) or hp.attn_scale
    turned = [True] * hp.n_layer
    if "attention.rope_pattern" in b.meta:
        turned = b.meta.pattern(hp.n_layer, None, "attention.rope_pattern")
    b.hp = hp.each(lambda i, row: replace(row, scale=scale, rope=row.rope if turned[i] else None))
    local = b.meta.pattern(hp.n_layer, None)
    window = b.meta.count("attention.sliding_window")
    b.hp = b.hp.each(lambda i, row: replace(row, window=window) if local[i] else row)
    return _build(b, b.meta.number("embedding_scale", 0.0), b.meta.number("residual_scale", 0.0), None)


def minicpm(b: Builder) -> Graph:
    hp = b.read()
    residual = b.meta.number("residual_scale", 1.4 / hp.n_layer**0.5)
    return _build(b, b.meta.number("embedding_scale", 12.0), residual, 256.0 / hp.n_embd)


def granitehybrid(b: Builder) -> Graph:
    """Every scale may be absent. Not rotated where `rope.scaling.finetuned` is false (Granite 4)."""
    hp = b.read(least_heads=0)
    scale, rotated = b.meta.number("attention.scale", 0.0) or hp.attn_scale, b.meta.flag("rope.scaling.finetuned", True)
    b.hp = hp.each(lambda i, row: replace(row, scale=scale, rope=row.rope if rotated else None))
    mark_without_keys(b)
    logit = None if "logit_scale" in b.meta else 1.0
    return _build(b, b.meta.number("embedding_scale", 0.0), b.meta.number("residual_scale", 0.0), logit)


def _build(b: Builder, embedding: float, residual: float, logit: float | None) -> Graph:
    logit = b.meta.positive("logit_scale", logit)  # divides
    sizes = StateSizes.read(b) if any(row.recurrent for row in b.hp.layers) else None
    b.rope_factors()

    def scaled(role: str, x: str) -> str:
        return b.scaled(role, x, residual) if residual not in (0.0, 1.0) else x

    x = b.embedding(embedding or 1.0, scaled="embd")
    for _ in b.blocks():
        norm = b.norm("attn_norm", x)
        mixed = mamba2(b, norm, sizes) if sizes and b.here.recurrent else b.attention(norm)
        x = b.add("ffn_inp", scaled("attn_out_scaled", mixed), x)
        norm = b.norm("ffn_norm", x)
        ffn = b.experts(norm) if b.here.experts else b.ffn(norm)
        if b.here.experts and b.has("ffn_up_shexp"):
            ffn = b.add("ffn_out", ffn, b.ffn(norm, out="ffn_shexp", tail="_shexp"))
        x = b.add("l_out", scaled("ffn_out_scaled", ffn), x)
    return b.head(x, scale=1.0 / logit)
