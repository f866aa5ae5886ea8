"""lfm2, lfm2moe (LFM2, LFM2.5): short convolutions between two gates, and attention in some layers.

B | C | x = W n;  y = Wout (C * conv(B * x))        n = rms_norm(x); the window keeps rows of B * x
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.deepseek import GATES
from assay.models.recurrent import convolve, mark_without_keys, show_state


def lfm2(b: Builder) -> Graph:
    """The norm before the logits is stored as `token_embd_norm`."""
    hp = b.read(mode="neox", least_heads=0)
    if not b.meta.flag("attention.causal", True):
        raise b.meta.error("attention.causal", False, "true: convolutions that look ahead are not built")
    window = b.meta.count("attention.sliding_window", 0, least=0)
    b.hp = hp.each(lambda i, row: replace(row, window=window))
    mark_without_keys(b)
    if hp.n_expert:
        _routing(b)
    x = b.embedding()
    for _ in b.blocks():
        norm = b.norm("attn_norm", x)
        x = b.add("ffn_inp", _convolution(b, norm) if b.here.recurrent else b.attention(norm), x)
        norm = b.norm("ffn_norm", x)
        x = b.add("l_out", b.experts(norm) if b.here.experts else b.ffn(norm), x)
    return b.head(x, norm="token_embd_norm")


def _routing(b: Builder) -> None:
    kind = b.meta.count("expert_gating_func")
    if kind not in GATES:
        raise b.meta.error("expert_gating_func", kind, "1 softmax or 2 sigmoid")
    b.routing(first=b.meta.count("leading_dense_block_count", 0, least=0), gate=GATES[kind])


def _convolution(b: Builder, x: str) -> str:
    width, taps = b.hp.n_embd, b.meta.count("shortconv.l_cache", least=2)
    both = b.linear("bcx", x, "shortconv.in_proj")
    first, gate, inner = (
        b.node(role, "slice", both, start=i * width, stop=(i + 1) * width)
        for i, role in enumerate(("shortconv_b", "shortconv_c", "shortconv_x"))
    )
    y = convolve(b, "conv_output_raw", b.node("bx", "mul", first, inner), "shortconv.conv", width, taps)
    show_state(b, "r", (width, taps - 1), y)
    return b.linear("shortconv_out", b.node("shortconv_gated", "mul", gate, y), "shortconv.out_proj")
