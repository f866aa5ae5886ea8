"""qwen2 (Qwen2, Qwen2.5, R1-Distill), qwen3 and their experts: Llama with RoPE on pairs (i, i + n_rot/2).

Biases on q, k, v (qwen2) or a norm on every head of q and k before the rotation (qwen3) are in the file.
The M-RoPE of the vision models rotates text like plain RoPE, because its three positions are equal.
"""

from __future__ import annotations

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.llama import decoder


def qwen(b: Builder) -> Graph:
    b.read(mode="neox")
    return b.head(decoder(b, b.embedding()))


def qwen3moe(b: Builder) -> Graph:
    """Softmax over all experts, the best ones chosen, their weights normalised: the default of `Experts`."""
    return qwen(b)


def qwen2moe(b: Builder) -> Graph:
    """Expert weights are not normalised; a shared expert has a gate of its own."""
    b.read(mode="neox")
    b.routing(normalise=False)
    x = b.embedding()
    for _ in b.blocks():
        x = b.add("ffn_inp", b.attention(b.norm("attn_norm", x)), x)
        norm = b.norm("ffn_norm", x)
        routed = b.experts(norm)
        shared = b.ffn(norm, out="ffn_shexp", tail="_shexp")
        gate = b.node("ffn_shexp_gate", "sigmoid", b.linear("ffn_shexp_gate_inp", norm, "ffn_gate_inp_shexp"))
        shared = b.node("ffn_shexp_out", "mul", shared, gate)
        x = b.add("l_out", b.add("ffn_out", routed, shared), x)
    return b.head(x)


def seed_oss(b: Builder) -> Graph:
    """The second norm is stored as `post_attention_norm`."""
    b.read(mode="neox")
    return b.head(decoder(b, b.embedding(), ffn_norm=("attn_post_norm", "post_attention_norm")))
