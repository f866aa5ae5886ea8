"""pixtral: RMS norms, SwiGLU, RoPE over neighbours by row and column, a break row behind each row of tokens."""

from __future__ import annotations

from assay.graph import Graph
from assay.models.vision.vit import TowerBuilder


def pixtral(b: TowerBuilder) -> Graph:
    """With `mm.patch_merger` (Mistral 3.1) m×m patches are joined channel by channel first."""
    b.rms = True
    b.rope = ((b.input("inp_rope", b.keys.head_dim), "norm", 0),)
    x = b.vit(b.patches())
    if b.has("mm.patch_merger.weight"):
        x = b.merge("merged", b.norm("input_normed", x, "mm.input_norm", rms=True), apart=True)
        x = b.linear("patch_merged", x, "mm.patch_merger")
    if not b.has("v.token_embd.img_break"):
        return b.graph(b.mlp(x, "mm.1", "mm.2"))
    x = b.mlp(x, "mm.1", "mm.2", out="projected")
    breaks = ("v.token_embd.img_break",)
    return b.graph(b.node("result_embd", "take_rows", x, b.input("inp_breaks", 1), weights=breaks))
