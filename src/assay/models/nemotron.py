"""nemotron_h, nemotron_h_moe (Nemotron Nano 2, Nemotron 3): one sub-layer a layer under one norm.

x = x + mixer(rms_norm(x))        mixer: Mamba-2, attention without rotation, or a feed-forward down · relu(up · n)²
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.draft_head import draft_head
from assay.models.hparams import EPS_KEYS, Layer
from assay.models.recurrent import StateSizes, mamba2


def nemotron_h(b: Builder) -> Graph:
    hp = b.read(norm="rms" if EPS_KEYS["rms"] in b.meta else "layer", least_heads=0)
    b.norm_op = "rms_norm"
    b.meta.positive(EPS_KEYS["layer"])  # required; serves as eps of the RMS norms unless they have their own
    b.hp = hp.each(lambda i, row: replace(row, rope=None, recurrent=not row.n_head_kv and not row.n_ff))
    _routing(b)
    z = StateSizes.read(b)
    x = b.embedding()
    for _ in b.blocks():
        norm, row = b.norm("attn_norm", x), b.here
        mixed = mamba2(b, norm, z) if row.recurrent else b.attention(norm) if not row.n_ff else feed_forward(b, norm)
        x = b.add("nemotron_h_block_out", mixed, x)
    graph = b.head(x)
    b.draft = draft_head(b, _draft_block, _draft_row(b), norm="layer")
    return graph


def _routing(b: Builder) -> None:
    b.routing(
        gate="sigmoid",
        act="relu_sqr",
        normalise=b.meta.flag("expert_weights_norm", False),
        scale=b.meta.number("expert_weights_scale", 0.0),
    )


def feed_forward(b: Builder, x: str) -> str:
    """Routed experts, in a narrower latent space if the file has one, plus the shared one; or one dense part."""
    if not b.here.experts:
        return b.ffn(x, "relu_sqr")
    latent = b.meta.count("moe_latent_size", 0, least=0)
    inner = b.linear("ffn_latent", x, "ffn_latent_down") if latent else x
    routed = b.experts(inner, router=x)
    if latent:
        routed = b.linear("ffn_latent_out", routed, "ffn_latent_up")
    return b.add("ffn_out", routed, b.ffn(x, "relu_sqr", out="ffn_shexp", tail="_shexp"))


def _draft_row(b: Builder) -> Layer:
    """The draft layer's row: attention and experts as in the model, unless the file's arrays go on to this layer."""
    row = next((r for r in b.hp.layers if r.n_head_kv and not r.n_ff), b.hp.layers[-1])
    experts = next((r.experts for r in b.hp.layers if r.experts), None)
    if experts:
        experts = replace(experts, used=_own(b, "expert_used_count", experts.used))
    heads, heads_kv = (
        _own(b, f"attention.{key}", n) for key, n in (("head_count", row.n_head), ("head_count_kv", row.n_head_kv))
    )
    return replace(row, n_head=heads, n_head_kv=heads_kv, experts=experts, recurrent=False)


def _own(b: Builder, key: str, default: int) -> int:
    """The draft layer's value in an array that has one for it; 0 stands for none."""
    n = b.hp.n_layer
    return (b.meta.counts(key, n + 1, least=0)[n] if b.meta.length(key) > n else 0) or default


def _draft_block(d: Builder, x: str) -> str:
    x = d.add("attn_residual", d.attention(d.norm("attn_norm", x)), x)
    return d.add("mtp_post_ffn", feed_forward(d, d.norm("attn_post_norm", x, "post_attention_norm")), x)
