"""gemma3n: four streams of rows, of which each layer computes one and predicts the others from it (AltUp).

P = X + coefs(X₀) X;  y = layer(P₀);  X' = P + (y - P₀) coefs'(y);  X'₁…₃ = X'₁…₃ + per-layer input

A low-rank branch (laurel) stands beside attention. The first ten layers keep only the largest gates. Streams lie side
by side in a row; the nodes that llama.cpp names have an axis of streams.
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.gemma4 import per_layer_input, shared_attention

STREAMS, WIDTH = 4, 256  # fixed: no key says them
SPARSE_LAYERS, SPARSE_STD = 10, 1.6448536  # the gates above the 95th percentile of a normal distribution
OWN_KEYS = 20  # layers from this on read keys and values of the two before it


def gemma3n(b: Builder) -> Graph:
    hp = b.read(mode="neox")
    b.hp = hp.each(lambda i, row: replace(row, scale=1.0))
    window = b.meta.count("attention.sliding_window")
    near = hp.rope.unscaled(b.meta.positive("rope.freq_base_swa", 10000.0))
    local = b.local(5, window=window, rope=near)
    e = hp.n_embd
    x0 = b.embedding(e**0.5)
    rows = per_layer_input(b, x0, WIDTH)
    x = b.node("inp_streams", "join", x0, _rescaled(b, "inp_altup", _spread(b, x0), "altup_proj", x0))
    b.node("inp_stacked", "split_heads", x, n_head=STREAMS)
    for i in b.blocks():
        source = i if i < OWN_KEYS else OWN_KEYS - (2 if local[i] else 1)
        x = _layer(b, x, rows, source)
    first = b.node("stream_0", "slice", x, start=0, stop=e)
    rest = b.node("streams_rest", "slice", x, start=e, stop=STREAMS * e)
    rest = _rescaled(b, "altup_unembd", rest, "altup_unembd_proj", first)
    total = first
    for i in range(STREAMS - 1):
        part = b.node(f"unembd_{i + 1}", "slice", rest, start=i * e, stop=(i + 1) * e)
        total = b.add(f"unembd_sum_{i + 1}", total, part)
    return b.head(b.scaled("unembd_merged", total, 1.0 / STREAMS), cap=30.0)


def _spread(b: Builder, x: str) -> str:
    """The row once for each further stream, side by side."""
    one = b.node("inp_one", "slice", x, start=0, stop=b.hp.n_embd, n_head=1)
    return b.node("inp_repeated", "repeat_heads", one, n_head=STREAMS - 1)


def _rescaled(b: Builder, role: str, x: str, stem: str, like: str) -> str:
    """A matrix for each further stream, and its result scaled to the length of the row `like`."""
    n = STREAMS - 1
    heads = b.node(f"{role}_heads", "split_heads", x, n_head=n)
    y = b.node(f"{role}_proj", "head_linear", heads, weights=(b.weight(stem),))
    y = b.node(f"{role}_rows", "merge_heads", y)
    y = b.node(f"{role}_unit", "l2_norm", y, eps=0.0, n_head=n)
    y = b.node(f"{role}_scaled", "join", y)
    y = b.node(f"{role}_joined", "mul", y, b.node(f"{role}_length", "length", like))
    b.node(role, "split_heads", y, n_head=n)
    return y


def _modalities(b: Builder, role: str, x: str) -> str:
    y = b.norm(f"{role}_normed", x, "altup_router_norm")
    y = b.linear(f"{role}_logits", b.scaled(f"{role}_scaled", y, 1.0 / b.hp.n_embd), "altup_router")
    return b.node(role, "act", y, act="tanh")


def _layer(b: Builder, x: str, rows: str, source: int) -> str:
    e = b.hp.n_embd
    first = b.node("stream_0", "slice", x, start=0, stop=e)
    coefs = b.linear("all_coefs", _modalities(b, "modalities", first), "altup_predict_coef")
    predicted = b.node("predictions_rows", "mix_streams", x, coefs, n_stream=STREAMS)
    b.node("predictions", "split_heads", predicted, n_head=STREAMS)
    active = b.node("prediction_0", "slice", predicted, start=0, stop=e)
    norm = b.norm("attn_norm", active)
    laurel = b.linear("laurel_r", b.linear("laurel_l", norm, "laurel_l"), "laurel_r")
    laurel = b.add("laurel_out", b.norm("laurel_normed", laurel, "laurel_post_norm"), norm)
    y = b.norm("attn_post_norm", shared_attention(b, norm, source), "post_attention_norm")
    y = b.add("attn_laurel_sum", b.add("attn_gated", y, active), laurel)
    y = b.scaled("attn_laurel", y, 2**-0.5)
    ffn = b.norm("ffn_post_norm", _feed_forward(b, b.norm("ffn_norm", y)), "post_ffw_norm")
    y = b.add("attn_ffw_laurel_gated", ffn, y)
    coefs = b.linear("all_coefs_2_proj", _modalities(b, "modalities_2", y), "altup_correct_coef")
    coefs = b.node("all_coefs_2", "add_scalar", coefs, value=1.0)
    change = b.add("innovation", y, b.scaled("prediction_0_negative", active, -1.0))
    new = b.node("corrected_rows", "add_to_streams", predicted, change, coefs, n_stream=STREAMS)
    b.node("corrected", "split_heads", new, n_head=STREAMS)
    y = b.node("first_prediction_raw", "slice", new, start=0, stop=e)
    y = b.node("first_prediction_gain", "mul_weight", y, weights=(b.weight("altup_correct_scale"),))
    y = b.node("first_prediction_gated", "act", b.linear("first_prediction_gate", y, "inp_gate"))
    assert b.layer is not None
    row = b.node("inp_this_layer", "slice", rows, start=b.layer * WIDTH, stop=(b.layer + 1) * WIDTH)
    y = b.linear("first_prediction_proj", b.node("first_prediction_scaled", "mul", y, row), "proj")
    y = b.norm("first_prediction_out", y, "post_norm")
    new = b.node("l_out_rows", "add_to_streams", new, y, n_stream=STREAMS, first=1)
    b.node("l_out", "split_heads", new, n_head=STREAMS)
    return new


def _feed_forward(b: Builder, x: str) -> str:
    up, gate = b.linear("ffn_up", x, "ffn_up"), b.linear("ffn_gate", x, "ffn_gate")
    assert b.layer is not None
    if b.layer < SPARSE_LAYERS:
        gate = b.node("ffn_gate_sparse", "sparse_gate", gate, factor=SPARSE_STD)
    return b.linear("ffn_out", b.node("ffn_geglu", "glu", gate, up, act="gelu_tanh"), "ffn_down")
