"""minimax-m2, ernie4_5-moe, hunyuan-moe, bailingmoe, bailingmoe2, deepseek, dots1, hy_v3, mellum,
exaone-moe, afmoe: decoders with experts.

Each function says which: the norm of queries and keys, the layers that have experts, how experts are chosen.
"""

from __future__ import annotations

from dataclasses import replace

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


def dbrx(b: Builder) -> Graph:
    """LayerNorm; q, k and v are clamped together; the second norm is stored as `attn_output_norm`."""
    b.read(norm="layer", mode="neox")
    b.routing(scale=b.meta.number("expert_weights_scale", 0.0))
    clamp = max(b.meta.number("attention.clamp_kqv"), 0.0)
    x = b.embedding()
    for _ in b.blocks():
        x = b.add("ffn_inp", b.attention(b.norm("attn_norm", x), clamp=clamp), x)
        x = b.add("l_out", b.experts(b.norm("attn_out_norm", x, "attn_output_norm")), x)
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


def exaone_moe(b: Builder) -> Graph:
    """Three of four layers see a window, and only these are rotated; sigmoid or softmax experts, as a key says."""
    b.read(mode="neox")
    local = b.local(4, base=False, window=b.meta.count("attention.sliding_window"))
    b.hp = b.hp.each(lambda i, row: row if local[i] else replace(row, rope=None))
    return _decoder(b, "ffn_inp", gate="softmax")


def afmoe(b: Builder) -> Graph:
    """A gate on attention, norms before and after each part; three of four layers see a window and are rotated."""
    hp = b.read(mode="neox")
    window = b.meta.count("attention.sliding_window", 0, least=0)
    if window:
        b.local(4, window=window)
    b.hp = b.hp.each(lambda i, row: replace(row, rope=None) if (i + 1) % 4 == 0 else row)
    routing(b, gate="sigmoid")
    x = b.embedding(hp.n_embd**0.5, scaled="inp_embd_scaled")
    for _ in b.blocks():
        y = b.norm("attn_post_norm", _gated_attention(b, b.norm("attn_norm", x)), "post_attention_norm")
        x = b.add("ffn_inp", y, x)
        y = routed_ffn(b, b.norm("ffn_norm", x), shared="ffn_shexp")
        x = b.add("l_out", b.norm("ffn_post_norm", y, "post_ffw_norm"), x)
    return b.head(x)


def _gated_attention(b: Builder, x: str) -> str:
    """Attention whose heads are multiplied by sigmoid(Wg x) before the output matrix."""
    row = b.here
    q, k, v = b.qkv(x)
    q = b.rope("Qcur", b.head_norm("Qcur_normed", q, "attn_q_norm", row.n_head), row.n_head)
    k = b.rope("Kcur", b.head_norm("Kcur_normed", k, "attn_k_norm", row.n_head_kv), row.n_head_kv)
    y = b.node("attn_pregate", "merge_heads", b.attend(q, *b.cached(k, v)))
    gate = b.node("gate_sigmoid", "sigmoid", b.linear("attn_gate_proj", x, "attn_gate"))
    return b.linear("attn_out", b.node("attn_gated", "mul", y, gate), "attn_output")


def _leading_dense(
    b: Builder, residual: str, *, mode: str = "neox", gate: str = "softmax", normalise: bool | None = None
) -> Graph:
    b.read(mode=mode)
    return _decoder(b, residual, gate=gate, normalise=normalise)


def _decoder(b: Builder, residual: str, *, gate: str, normalise: bool | None = None) -> Graph:
    routing(b, gate=gate, normalise=normalise)
    b.rope_factors()
    x = b.embedding()
    for _ in b.blocks():
        x = b.add(residual, b.attention(b.norm("attn_norm", x)), x)
        x = b.add("l_out", routed_ffn(b, b.norm("ffn_norm", x), shared="ffn_shexp"), x)
    return b.head(x)
