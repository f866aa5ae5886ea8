"""gemma3, idefics3, lfm2: SigLIP towers. LayerNorm, a table of learned positions, no class row."""

from __future__ import annotations

from assay.graph import Graph
from assay.models.vision.vit import TowerBuilder


def gemma3(b: TowerBuilder) -> Graph:
    """The mean of m×m patches, RMS norm (its weight has Gemma's + 1 already), projection."""
    x = b.vit(b.add_positions("pos_embed", b.patches()))
    x = b.norm("soft_emb_normed", b.pool("pooled", x), "mm.soft_emb_norm", rms=True)
    return b.graph(b.linear("result_embd", x, "mm.input_projection"))


def idefics3(b: TowerBuilder) -> Graph:
    """m×m patches joined, one matrix."""
    x = b.vit(b.add_positions("pos_embed", b.patches()))
    return b.graph(b.linear("result_embd", b.merge("pixel_shuffle", x), "mm.model.fc"))


def lfm2(b: TowerBuilder) -> Graph:
    """The table is resized to the picture; m×m patches joined, LayerNorm where the file has it, two matrices."""
    x = b.merge("pixel_shuffle", b.vit(b.add_positions("pos_embed", b.patches())))
    if b.has("mm.input_norm.weight"):
        x = b.norm("input_normed", x, "mm.input_norm", eps=1e-5)
    return b.graph(b.mlp(x, "mm.1", "mm.2"))
