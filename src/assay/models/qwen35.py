"""qwen35, qwen35moe (Qwen3.5, Qwen3.6), qwen3next: three layers with the gated delta rule, then one with attention.

x = x + Wout (rms_norm(delta_rule(q, k, v)) * silu(z))      q, k, v from silu(conv(W n)), q and k of length 1
x = x + Wo (attention * sigmoid(gate))                      Wq gives, head by head, the query and the gate
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.draft_head import draft_head
from assay.models.pictures import rope_axes
from assay.models.recurrent import StateSizes, convolve_silu, delta_rule


def qwen35(b: Builder) -> Graph:
    """Value head h uses key head h mod G. M-RoPE turns text like plain RoPE, but for pairs without a section."""
    hp = b.read(mode="neox")
    axes, still = rope_axes(b.meta, hp.rope.n_rot // 2, interleaved=True)
    rope = replace(hp.rope, still=still)
    b.hp = replace(hp.each(lambda i, row: replace(row, rope=rope)), axes=axes)
    return _build(b, old=False)


def qwen3next(b: Builder) -> Graph:
    """Value head h uses key head h div (D/G); alpha and beta come from one matrix, key head by key head."""
    b.read(mode="neox")
    return _build(b, old=True)


def _build(b: Builder, old: bool) -> Graph:
    z = StateSizes.read(b)
    if z.width != z.state:
        raise b.meta.error("ssm.inner_size", z.inner, f"ssm.state_size times ssm.time_step_rank, {z.state * z.heads}")
    recurs = _recurrent_layers(b)
    b.hp = b.hp.each(lambda i, row: replace(row, recurrent=recurs[i]))
    x = b.embedding()
    for _ in b.blocks():
        norm = b.norm("attn_norm", x)
        x = _block(b, x, _linear(b, norm, z, old) if b.here.recurrent else attention(b, norm))
    graph = b.head(x)
    b.draft = draft_head(b, lambda d, x: _block(d, x, attention(d, d.norm("attn_norm", x)), out="mtp_post_ffn"))
    return graph


def _recurrent_layers(b: Builder) -> list[bool]:
    if "attention.recurrent_layers" in b.meta:
        return b.meta.pattern(b.hp.n_layer, None, "attention.recurrent_layers")
    every = b.meta.count("full_attention_interval", 4)
    return [(i + 1) % every != 0 for i in range(b.hp.n_layer)]


def _block(b: Builder, x: str, mixed: str, out: str = "l_out") -> str:
    """The rest of a layer after its mixer."""
    x = b.add("attn_residual", mixed, x)
    norm = b.norm("attn_post_norm", x, "post_attention_norm")
    return b.add(out, _experts(b, norm) if b.here.experts else b.ffn(norm), x)


def _experts(b: Builder, x: str) -> str:
    routed = b.experts(x)
    shared = b.ffn(x, out="ffn_shexp", tail="_shexp")
    gate = b.linear("shared_expert_gate", x, "ffn_gate_inp_shexp")
    gate = b.node("shared_expert_gate_sigmoid", "sigmoid", gate)
    return b.add("ffn_out", routed, b.node("ffn_shexp_gated", "mul", shared, gate))


def attention(b: Builder, x: str) -> str:
    """Attention whose result is multiplied by a gate: each head of `attn_q` has its query, then its gate."""
    row, width = b.here, b.here.n_embd_head
    both, k, v = b.qkv(x, gated=True)
    q = b.node("Qcur_proj", "slice", both, start=0, stop=width, n_head=row.n_head)
    q = b.rope("Qcur", b.head_norm("Qcur_normed", q, "attn_q_norm", row.n_head), row.n_head)
    k = b.rope("Kcur", b.head_norm("Kcur_normed", k, "attn_k_norm", row.n_head_kv), row.n_head_kv)
    y = b.node("attn_pregate", "merge_heads", b.attend(q, *b.cached(k, v)))
    gate = b.node("gate_raw", "slice", both, start=width, stop=2 * width, n_head=row.n_head)
    gate = b.node("gate_sigmoid", "sigmoid", gate)
    return b.linear("attn_out", b.node("attn_gated", "mul", y, gate), "attn_output")


def _linear(b: Builder, x: str, z: StateSizes, old: bool) -> str:
    """The gated delta rule with its convolution, norm and gate."""
    keys, heads, width = z.groups * z.state, z.heads, z.state
    mixed, gate = _mixed_in_one(b, x, z) if b.has("ssm_in") else (b.linear("linear_attn_qkv_mixed", x, "attn_qkv"), "")
    mixed = convolve_silu(b, mixed, 2 * keys + z.inner, z.taps)
    beta, alpha = _beta_alpha(b, x, z) if old else (b.linear("beta", x, "ssm_beta"), b.linear("alpha", x, "ssm_alpha"))
    alpha = b.node("alpha_biased", "bias", alpha, weights=(b.weight("ssm_dt", "bias"),))
    decay = b.node("gate", "mul_weight", b.node("a_softplus", "softplus", alpha), weights=(b.bare("ssm_a"),))
    beta = b.node("beta_sigmoid", "sigmoid", beta)
    q = _unit(b, "q", b.node("q_conv", "slice", mixed, start=0, stop=keys), z, old)
    k = _unit(b, "k", b.node("k_conv", "slice", mixed, start=keys, stop=2 * keys), z, old)
    v = b.node("v_conv", "slice", mixed, start=2 * keys, stop=2 * keys + z.inner)
    y = delta_rule(b, q, k, v, decay, beta, heads, heads if old else z.groups, width)
    y = b.node("attn_output_normed", "rms_norm", y, weights=(b.weight("ssm_norm"),), eps=b.hp.eps, n_head=heads)
    gate = b.node("z_silu", "act", gate or b.linear("z", x, "attn_gate"), act="silu")
    return b.linear("linear_attn_out", b.node("final_output", "mul", y, gate), "ssm_out")


def _unit(b: Builder, role: str, x: str, z: StateSizes, old: bool) -> str:
    """Queries or keys of length 1; with `old`, each key head repeated for the value heads that use it."""
    if not old:
        return b.node(f"{role}_conv_predelta", "l2_norm", x, eps=b.hp.eps, n_head=z.groups)
    x = b.node(f"{role}_conv_normed", "l2_norm", x, eps=b.hp.eps, n_head=z.groups)
    return b.node(f"{role}_conv_predelta", "repeat_heads", x, n_head=z.heads)


def _beta_alpha(b: Builder, x: str, z: StateSizes) -> tuple[str, str]:
    """One matrix whose rows are, for each key head, the betas and then the alphas of its value heads."""
    each = z.heads // z.groups
    both = b.linear("linear_attn_mixed_ba", x, "ssm_ba")
    parts = (
        b.node(f"{role}_heads", "slice", both, start=at, stop=at + each, n_head=z.groups)
        for role, at in (("beta", 0), ("alpha", each))
    )
    beta, alpha = (b.node(role, "join", part) for role, part in zip(("beta", "alpha"), parts, strict=True))
    return beta, alpha


def _mixed_in_one(b: Builder, x: str, z: StateSizes) -> tuple[str, str]:
    """Older files: one matrix whose rows are, for each key head, its query, key, values and gates."""
    both = b.linear("linear_attn_mixed_qkvz", x, "ssm_in")
    n, each, at = z.state, z.state * z.heads // z.groups, 0
    parts = []
    for role, width in (("q", n), ("k", n), ("v", each), ("z", each)):
        parts.append(b.node(f"{role}_heads", "slice", both, start=at, stop=at + width, n_head=z.groups))
        at += width
    return b.node("linear_attn_qkv_mixed", "join", *parts[:3]), b.node("z", "join", parts[3])
