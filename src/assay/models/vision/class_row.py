"""internvl, mlp (LLaVA 1.5): towers with a class row, which llama.cpp puts behind the patches.

The trained models have it in front, so that the table of positions is off by one row here. A file means what llama.cpp
computes from it, and this is what it computes.
"""

from __future__ import annotations

from assay.graph import Graph
from assay.models.vision.vit import TowerBuilder

_RMS = (3200, 45)  # width and layers of InternViT-6B, which has RMS norms; no key tells


def internvl(b: TowerBuilder) -> Graph:
    """The class row is dropped at the end; m×m patches joined, LayerNorm, two matrices."""
    b.rms = (b.keys.n_embd, b.keys.n_layer) == _RMS
    x = b.vit(b.add_positions("pos_embed", b.add_class(b.patches())))
    x = b.norm("mlp_normed", b.merge("pixel_shuffle", x), "mm.model.mlp.0", rms=False, eps=1e-5)
    return b.graph(b.mlp(x, "mm.model.mlp.1", "mm.model.mlp.3"))


def mlp(b: TowerBuilder) -> Graph:
    """The last layer is not run. The first row is dropped and the class row kept, as in llama.cpp (its issue 25814)."""
    x = b.vit(b.add_positions("pos_embed", b.add_class(b.patches())), n_layer=b.keys.n_layer - 1)
    x = b.node("patches", "take_rows", x, b.input("inp_blocks", 1))
    return b.graph(b.mlp(x, "mm.0", "mm.2"))
