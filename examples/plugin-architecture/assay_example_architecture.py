"""An architecture of another package: a Llama whose feed-forward gate is softsign in place of SiLU.

x = x + Wo · attention(rope(Wq n), rope(Wk n), Wv n)        n = rms_norm(x)
x = x + Wdown (softsign(Wgate m) * Wup m)                   m = rms_norm(x)

`build` is the entry point. Its name, `softsign-llama`, is the `general.architecture` of the file and the prefix of the
file's keys. The operation softsign comes from the package in examples/plugin-operation.
"""

from __future__ import annotations

from assay.graph import Graph
from assay.models.blocks import Builder


def feed_forward(b: Builder, x: str) -> str:
    up = b.linear("ffn_up", x, "ffn_up")
    gate = b.node("ffn_softsign", "softsign", b.linear("ffn_gate", x, "ffn_gate"))
    return b.linear("ffn_out", b.node("ffn_gated", "mul", gate, up), "ffn_down")


def build(b: Builder) -> Graph:
    b.read()
    x = b.embedding()
    for _ in b.blocks():
        x = b.add("ffn_inp", b.attention(b.norm("attn_norm", x)), x)
        x = b.add("l_out", feed_forward(b, b.norm("ffn_norm", x)), x)
    return b.head(x)
