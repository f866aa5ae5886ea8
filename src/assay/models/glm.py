"""glm4: norms before and after each part, pairs (2i, 2i+1). glm4moe (GLM-4.5 … 4.7): experts, pairs (i, i + n/2).

Both rotate only a part of each head. GLM-4.5's last block is a draft head: a block like the others, with experts.
"""

from __future__ import annotations

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.deepseek import routed_ffn, routing
from assay.models.draft_head import draft_head


def glm4(b: Builder) -> Graph:
    """A file with vision (`rope.dimension_sections`) has its weights permuted for M-RoPE: the other pairs."""
    b.read(mode="neox" if "rope.dimension_sections" in b.meta else "norm")
    x = b.embedding()
    for _ in b.blocks():
        attn = b.attention(b.norm("attn_norm", x))
        x = b.add("ffn_inp", b.norm("post_attn_norm", attn, "post_attention_norm"), x)
        ffn = b.ffn(b.norm("ffn_norm", x))
        x = b.add("l_out", b.norm("post_mlp_norm", ffn, "post_ffw_norm"), x)
    return b.head(x)


def glm4moe(b: Builder) -> Graph:
    b.read(mode="neox")
    routing(b, gate="sigmoid")
    x = b.embedding()
    for _ in b.blocks():
        x = _glm4moe_block(b, x)
    graph = b.head(x)
    b.draft = draft_head(b, lambda d, x: _glm4moe_block(d, x, out="mtp_post_ffn"))
    return graph


def _glm4moe_block(b: Builder, x: str, out: str = "l_out") -> str:
    x = b.add("ffn_inp", b.attention(b.norm("attn_norm", x)), x)
    norm = b.norm("post_attn_norm", x, "post_attention_norm")
    return b.add(out, routed_ffn(b, norm, shared="ffn_shexp_out"), x)
