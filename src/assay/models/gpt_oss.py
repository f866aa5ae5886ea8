"""gpt-oss: experts with biases and a clamped gate, attention sinks, a window on every other layer, YaRN on all."""

from __future__ import annotations

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.llama import decoder


def gpt_oss(b: Builder) -> Graph:
    b.read(mode="neox")
    b.local(2, window=b.meta.count("attention.sliding_window"))
    b.routing(gate="none", normalise=False, softmax_chosen=True, act="swiglu_oai")
    return b.head(decoder(b, b.embedding(), ffn_norm=("attn_post_norm", "post_attention_norm")))
