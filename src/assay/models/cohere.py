"""command-r, cohere2: attention and feed-forward side by side on one LayerNorm, logits multiplied by a scale.

x = x + Wdown (silu(Wgate n) * Wup n) + Wo · attention(n)           n = layer_norm(x)
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder


def command_r(b: Builder) -> Graph:
    """The larger model norms q and k, with weights for every head."""
    b.read(norm="layer")
    return _parallel(b, b.meta.number("logit_scale", 0.0))


def cohere2(b: Builder) -> Graph:
    """Three of four layers see a window, and only these are rotated."""
    b.read(norm="layer")
    local = b.local(4, base=False, window=b.meta.count("attention.sliding_window"))
    b.hp = b.hp.each(lambda i, row: row if local[i] else replace(row, rope=None))
    return _parallel(b, b.meta.number("logit_scale"))


def _parallel(b: Builder, logit_scale: float) -> Graph:
    x = b.embedding()
    for _ in b.blocks():
        norm = b.norm("attn_norm", x)
        attn = b.attention(norm)
        x = b.add("l_out", b.add("ffn_res", b.ffn(norm), x), attn)
    return b.head(x, scale=logit_scale or 1.0)
