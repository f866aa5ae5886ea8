"""gemma4v: tables for columns and rows, RoPE in two halves of a head, norms around each part, clamped products."""

from __future__ import annotations

import math

from assay.graph import Graph
from assay.models.vision.vit import TowerBuilder


def gemma4v(b: TowerBuilder) -> Graph:
    """Pixels become 2v − 1. The scale of attention is 1. llama.cpp's file names no activation: quick GELU."""
    b.rms, half = True, b.keys.head_dim // 2
    b.rope = ((b.input("inp_rope_x", half), "neox", 0), (b.input("inp_rope_y", half), "neox", half))
    x = b.node("inp_raw_doubled", "scale", b.pixels(), factor=2.0)
    x = b.node("inp_raw_scaled", "add_scalar", x, value=-1.0)
    x = b.vit(b.add_positions("pos_embd", b.patches(x)), scale=1.0)
    x = b.node("pooled", "scale", b.pool("pooled_mean", x), factor=math.sqrt(b.keys.n_embd))
    if b.has("v.std_bias") and b.has("v.std_scale"):
        x = b.node("std_centred", "bias", x, weights=("v.std_bias.negated",))
        x = b.gain("std_scaled", x, "v.std_scale")
    x = b.node("pre_projection_normed", "rms_norm", x, eps=b.keys.eps)
    return b.graph(b.linear("result_embd", x, "mm.input_projection"))
