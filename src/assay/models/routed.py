"""minimax-m2, ernie4_5-moe, hunyuan-moe, bailingmoe2, dots1: decoders with experts, each near to Llama.

Each function says which: the norm of queries and keys, the layers that have experts, how experts are chosen.
"""

from __future__ import annotations

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.deepseek import GATES, routed_ffn, routing
from assay.models.llama import decoder


def minimax_m2(b: Builder) -> Graph:
    """Norms of queries and keys over the whole width, a part of each head rotated; experts are chosen with a bias."""
    b.read(mode="neox")
    kind = b.meta.count("expert_gating_func")
    if kind not in GATES:
        raise b.meta.error("expert_gating_func", kind, "1 softmax or 2 sigmoid")
    b.routing(gate=GATES[kind])
    return b.head(decoder(b, b.embedding()))


def ernie_moe(b: Builder) -> Graph:
    """Experts in every n-th layer after the leading dense ones, and a shared expert without a gate."""
    b.read()
    first = b.meta.count("leading_dense_block_count", 0, least=0)
    b.routing(first=first, step=b.meta.count("interleave_moe_layer_step", 1))
    x = b.embedding()
    for _ in b.blocks():
        x = b.add("ffn_inp", b.attention(b.norm("attn_norm", x)), x)
        x = b.add("l_out", routed_ffn(b, b.norm("ffn_norm", x), shared="ffn_shexp"), x)
    return b.head(x)


def hunyuan_moe(b: Builder) -> Graph:
    """Norms of queries and keys after the rotation; a shared expert beside the routed ones."""
    b.read(mode="neox")
    x = b.embedding()
    for _ in b.blocks():
        x = b.add("ffn_inp", b.attention(b.norm("attn_norm", x), norm_last=True, normed="norm"), x)
        x = b.add("l_out", routed_ffn(b, b.norm("ffn_norm", x), shared="ffn_mlp"), x)
    return b.head(x)


def bailing_moe2(b: Builder) -> Graph:
    """Leading dense layers, then experts in groups, chosen as the keys say. The sum after attention is `sa_out`."""
    return _leading_dense(b, "sa_out")


def dots1(b: Builder) -> Graph:
    return _leading_dense(b, "ffn_inp")


def _leading_dense(b: Builder, residual: str) -> Graph:
    b.read(mode="neox")
    routing(b, gate="softmax")
    x = b.embedding()
    for _ in b.blocks():
        x = b.add(residual, b.attention(b.norm("attn_norm", x)), x)
        x = b.add("l_out", routed_ffn(b, b.norm("ffn_norm", x), shared="ffn_shexp"), x)
    return b.head(x)
