"""kimi-linear: layers with a delta rule whose decay differs by key channel (KDA), and latent attention, not rotated.

x = x + Wo (rms_norm(delta_rule(q, k, v)) * sigmoid(g))     q, k, v each from silu(conv(W n))
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.deepseek import latent_attention, routed_ffn, routing
from assay.models.recurrent import convolve, delta_rule, mark_without_keys, show_state


def kimi_linear(b: Builder) -> Graph:
    hp = b.read(least_heads=0)
    width = b.meta.count("attention.key_length_mla")
    b.hp = hp.each(lambda i, row: replace(row, rope=None, scale=width**-0.5))
    mark_without_keys(b)
    routing(b, gate="sigmoid", normalise=True)
    x = b.embedding()
    for _ in b.blocks():
        norm = b.norm("attn_norm", x)
        if b.here.recurrent:
            mixed = _delta_attention(b, norm)
        else:
            mixed = b.node("kqv_out", "merge_heads", latent_attention(b, norm, width, hp.rope.n_rot))
            mixed = b.linear("mla_out", mixed, "attn_output")
        x = b.add("ffn_inp", mixed, x)
        x = b.add("l_out", routed_ffn(b, b.norm("ffn_norm", x), shared="ffn_shexp"), x)
    return b.head(x)


def _delta_attention(b: Builder, x: str) -> str:
    heads, width, taps = b.here.n_head, b.meta.count("kda.head_dim"), b.meta.count("ssm.conv_kernel", least=2)
    inner, eps = heads * width, b.hp.eps
    raw, fused = {}, b.has("attn_qkv")
    both = b.linear("wqkv", x, "attn_qkv") if fused else ""
    for i, role in enumerate("qkv"):
        if fused:
            product = b.node(f"{role}_proj", "slice", both, start=i * inner, stop=(i + 1) * inner)
        else:
            product = b.linear(f"{role}_proj", x, f"attn_{role}")
        raw[role] = convolve(b, f"{role}_conv_raw", product, f"ssm_conv1d_{role}", inner, taps)
    show_state(b, "r", (3 * inner, taps - 1), *raw.values())
    q, k, v = (b.node(f"{role}_conv_silu", "act", y, act="silu") for role, y in raw.items())
    q = b.node("q_conv_predelta", "l2_norm", q, eps=eps, n_head=heads)
    k = b.node("k_conv_predelta", "l2_norm", k, eps=eps, n_head=heads)
    decay = b.linear("kda_g1_proj", b.linear("kda_f", x, "ssm_f_a"), "ssm_f_b")
    decay = b.node("kda_g1_biased", "bias", decay, weights=(b.weight("ssm_dt", "bias"),))
    decay = b.node("kda_g1_softplus", "softplus", decay)
    decay = b.node("kda_g1", "head_gain", decay, weights=(b.bare("ssm_a"),), n_head=heads)
    beta = b.node("beta_sigmoid", "sigmoid", b.linear("kda_beta", x, "ssm_beta"))
    y = delta_rule(b, q, k, v, decay, beta, heads, heads, width)
    y = b.node("kda_normed", "rms_norm", y, weights=(b.weight("ssm_norm"),), eps=eps, n_head=heads)
    gate = b.linear("g2", b.linear("kda_g", x, "ssm_g_a"), "ssm_g_b")
    y = b.node("kda_gated", "mul", y, b.node("g2_sigmoid", "sigmoid", gate))
    return b.linear("kda_out", y, "attn_output")
