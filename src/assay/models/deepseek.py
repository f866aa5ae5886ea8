"""deepseek2 (DeepSeek V2, V3, R1, Kimi-K2), minicpm3, plm: latent attention, then dense layers, then experts in groups.

The cache has one row for all heads: c = kv_lora_rank compressed values, normed, and r rotated ones.

    whole     K = [Wk c | k_pe], V = Wv c: a file with `attn_kv_b` computes keys and values of every head
    absorbed  Q = [Wk' q_nope | q_pe] is multiplied by the row, and Wv is applied to the result: `attn_k_b`, `attn_v_b`
"""

from __future__ import annotations

import math
from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.draft_head import draft_head
from assay.models.hparams import Temperature, yarn_magnitude

GATES = {1: "softmax", 2: "sigmoid"}


def deepseek2(b: Builder) -> Graph:
    hp = b.read()
    c = 10.0 * b.meta.number("rope.scaling.yarn_log_multiplier", 0.0)
    width = b.meta.count("attention.key_length_mla", hp.n_embd_head)
    rope = hp.rope
    if c and rope.kind == "yarn":  # with this key, YaRN's whole magnitude goes into the scale of the scores
        rope = replace(rope, magnitude=rope.magnitude / yarn_magnitude(rope.factor))
    mu = rope.magnitude * (1.0 + 0.1 * c * math.log(rope.factor))
    if rope.kind != "yarn":  # llama.cpp applies it with every kind of scaling
        mu *= 1.0 + 0.1 * math.log(rope.factor)
    beta = b.meta.number("attention.temperature_scale", 0.0)
    heat = Temperature(beta, b.meta.count("attention.temperature_length")) if beta else None
    b.hp = hp.each(lambda i, row: replace(row, rope=rope, scale=mu * mu * width**-0.5, temperature=heat))
    routing(b, gate=_gate(b))
    x = b.embedding()

    def block(b: Builder, x: str, out: str = "l_out") -> str:
        x = b.add("ffn_inp", b.output(latent_attention(b, b.norm("attn_norm", x), width, rope.n_rot)), x)
        return b.add(out, routed_ffn(b, b.norm("ffn_norm", x), shared="ffn_shexp"), x)

    for _ in b.blocks():
        x = block(b, x)
    graph = b.head(x)
    b.draft = draft_head(b, lambda d, x: block(d, x, out="mtp_post_ffn"))  # V3's last block; V2 has none
    return graph


def minicpm3(b: Builder) -> Graph:
    """Keys and values of every head from the latent row; MiniCPM's scales; long and short RoPE factors."""
    hp = b.read(mode="neox")
    b.rope_factors(long=True)
    residual = 1.4 * hp.n_layer**-0.5
    x = b.embedding(12.0)
    for _ in b.blocks():
        attn = b.output(latent_attention(b, b.norm("attn_norm", x), hp.n_embd_head, hp.rope.n_rot))
        x = b.add("ffn_inp", b.scaled("hidden_scaled", attn, residual), x)
        ffn = b.scaled("hidden_scaled_ffn", b.ffn(b.norm("ffn_norm", x)), residual)
        x = b.add("l_out", ffn, x)
    x = b.norm("result_norm", x, "output_norm")
    return b.head(b.scaled("lmhead_scaling", x, 256 / hp.n_embd), norm="")


def plm(b: Builder) -> Graph:
    """Keys and values of every head from the latent row, whole queries, and down · relu(up)²."""
    hp = b.read()
    x = b.embedding()
    for _ in b.blocks():
        attn = b.output(latent_attention(b, b.norm("attn_norm", x), hp.n_embd_head, hp.rope.n_rot))
        x = b.add("ffn_inp", attn, x)
        x = b.add("l_out", b.ffn(b.norm("ffn_norm", x), "sqr(relu)"), x)
    return b.head(x)


def _gate(b: Builder) -> str:
    """The gate of a file that names none: softmax, except in GLM-4.7-Flash."""
    flash = b.hp.n_layer in (47, 48) and b.hp.n_vocab == 154880
    return "sigmoid" if flash else "softmax"


def routing(b: Builder, gate: str, normalise: bool | None = None) -> None:
    """Dense layers first, then experts by the file's keys; `gate` is the default, `normalise` replaces its key."""
    kind = b.meta.count("expert_gating_func", 0, least=0)
    if kind not in (0, *GATES):
        raise b.meta.error("expert_gating_func", kind, "1 softmax or 2 sigmoid")
    b.routing(
        first=b.meta.count("leading_dense_block_count", 0, least=0),
        gate=GATES.get(kind, gate),
        normalise=b.meta.flag("expert_weights_norm", False) if normalise is None else normalise,
        scale=b.meta.number("expert_weights_scale", 0.0),
    )


def routed_ffn(b: Builder, x: str, shared: str) -> str:
    """A dense layer's feed-forward, or the routed experts plus the shared one, called `shared`."""
    if not b.here.experts:
        return b.ffn(x)
    routed = b.experts(x)
    return b.add("ffn_out", routed, b.ffn(x, out=shared, tail="_shexp")) if b.has("ffn_up_shexp") else routed


def latent_attention(b: Builder, x: str, width: int, r: int) -> str:
    """`kqv` [H, T, Dv]; `width` is the width of a query head before absorption, of which the last r values turn."""
    row, n_head = b.here, b.here.n_head
    nope, lora = width - r, b.meta.count("attention.kv_lora_rank")
    if nope < 1:
        raise b.meta.error("rope.dimension_count", r, f"less than the head width {width}")
    if b.has("attn_q_a"):
        x_q = b.norm("q_a_normed", b.linear("q_a", x, "attn_q_a"), "attn_q_a_norm")
        q = b.linear("q", x_q, "attn_q_b")
    else:
        q = b.linear("q", x, "attn_q")
    both = b.linear("kv_cmpr_pe", x, "attn_kv_a_mqa")
    k_pe = b.node("k_pe_proj", "slice", both, start=lora, stop=lora + r, n_head=1)
    k_pe = b.rope("k_pe", k_pe, 1)
    row_c = b.norm("kv_cmpr", b.node("kv_cmpr_proj", "slice", both, start=0, stop=lora), "attn_kv_a_norm")
    if b.has("attn_kv_b") and not b.has("attn_k_b"):
        kv = b.linear("kv", row_c, "attn_kv_b")
        value = row.n_embd_head_v
        k_nope = b.node("k_nope", "slice", kv, start=0, stop=nope, n_head=n_head)
        v = b.node("Vcur", "slice", kv, start=nope, stop=nope + value, n_head=n_head)
        q = b.query(b.rope("Qcur", q, n_head, offset=nope))
        k = b.node("Kcur", "concat", k_nope, k_pe, n_head=n_head)
        k = b.node("cache_k", "cache", k, n_head=n_head)
        return b.attend(q, k, b.node("cache_v", "cache", v, n_head=n_head))
    q_nope = b.node("q_nope", "slice", q, start=0, stop=nope, n_head=n_head)
    q_pe = b.rope("q_pe", b.node("q_pe_proj", "slice", q, start=nope, stop=width, n_head=n_head), n_head)
    q_nope = b.node("q_nope_perm", "split_heads", q_nope, n_head=n_head)
    q_nope = b.node("q_nope_absorbed", "head_linear", q_nope, weights=(b.weight("attn_k_b"),))
    q_nope = b.node("q_nope_absorbed_perm", "merge_heads", q_nope)
    q = b.query(b.node("Qcur", "concat", q_nope, q_pe, n_head=n_head))
    k = b.node("Kcur", "concat", row_c, k_pe, n_head=1)
    k = b.node("cache_k", "cache", k, n_head=1)
    v = b.node("cache_v", "slice", k, start=0, stop=lora)
    return b.node("kqv_mla", "head_linear", b.attend(q, k, v), weights=(b.weight("attn_v_b"),))
