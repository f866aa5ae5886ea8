"""minimax-m2, ernie4_5-moe, hunyuan-moe, bailingmoe, bailingmoe2, deepseek, dots1, hy_v3, mellum: decoders with experts.

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


def deepseek(b: Builder) -> Graph:
    """DeepSeek's first model: softmax over all experts, whose weights are not normalised."""
    return _leading_dense(b, "ffn_inp", mode="norm", normalise=False)


def bailing_moe(b: Builder) -> Graph:
    return _leading_dense(b, "ffn_inp", mode="norm")


def hy_v3(b: Builder) -> Graph:
    """Norms of queries and keys; sigmoid experts, unless a key says otherwise."""
    return _leading_dense(b, "ffn_inp", gate="sigmoid")


def mellum(b: Builder) -> Graph:
    """Qwen3 with experts; three of four layers see a window and are rotated without scaling."""
    hp = b.read(mode="neox")
    window = b.meta.count("attention.sliding_window", 0, least=0)
    if window:
        b.local(4, window=window, rope=hp.rope.unscaled())
    return b.head(decoder(b, b.embedding()))


def _leading_dense(
    b: Builder, residual: str, *, mode: str = "neox", gate: str = "softmax", normalise: bool | None = None
) -> Graph:
    b.read(mode=mode)
    routing(b, gate=gate, normalise=normalise)
    b.rope_factors()
    x = b.embedding()
    for _ in b.blocks():
        x = b.add(residual, b.attention(b.norm("attn_norm", x)), x)
        x = b.add("l_out", routed_ffn(b, b.norm("ffn_norm", x), shared="ffn_shexp"), x)
    return b.head(x)
