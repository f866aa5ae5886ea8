"""llama4: three of four layers attend within chunks and are rotated; the fourth sees all and is not. Some have experts.

An expert's weight multiplies its input; a shared expert is added. Queries of the layers that see all are scaled by
position. Queries and keys are normed after the rotation, without weights.
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.hparams import Temperature

CHUNK = 8192


def llama4(b: Builder) -> Graph:
    hp = b.read()
    b.routing(
        step=b.meta.count("interleave_moe_layer_step"),
        gate="sigmoid", choose="logits", normalise=False, weigh_input=True,
    )  # fmt: skip
    if b.meta.count("attention.sliding_window", CHUNK, least=0):
        b.local(4, chunk=CHUNK)
        heat = Temperature(0.1, CHUNK, 1)
        b.hp = b.hp.each(lambda i, row: replace(row, rope=None, temperature=heat) if (i + 1) % 4 == 0 else row)
    b.rope_factors()
    normed = hp.n_expert != 128
    x = b.embedding()
    for _ in b.blocks():
        x = b.add("ffn_inp", b.output(_attention(b, b.norm("attn_norm", x), normed)), x)
        norm = b.norm("ffn_norm", x)
        if b.here.experts:
            routed = b.experts(norm)
            ffn = b.add("ffn_moe_out_merged", routed, b.ffn(norm, out="ffn_moe_shexp", tail="_shexp"))
        else:
            ffn = b.ffn(norm)
        x = b.add("l_out", ffn, x)
    return b.head(x)


def _attention(b: Builder, x: str, normed: bool) -> str:
    row = b.here
    q, k, v = b.qkv(x)
    q, k = b.rope("Qcur", q, row.n_head), b.rope("Kcur", k, row.n_head_kv)
    if row.rope and normed:
        q = b.node("Qcur_normed", "rms_norm", q, eps=b.hp.eps)
        k = b.node("Kcur_normed", "rms_norm", k, eps=b.hp.eps)
    return b.attend(b.query(q), *b.cached(k, v))
