"""olmo2 (OLMo 2, Olmo 3) and exaone4: norms after each part only. olmoe: norms before, and experts.

    x = x + rms_norm(Wo · attention(rope(norm(Wq x)), …))
    x = x + rms_norm(Wdown (silu(Wgate x) * Wup x))

olmo2 and olmoe norm q and k over their whole width, exaone4 over each head; the length of the weight says which.
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.llama import decoder


def olmo2(b: Builder) -> Graph:
    """Olmo 3: three of four layers see a window and are rotated without scaling."""
    hp = b.read(mode="neox")
    window = b.meta.count("attention.sliding_window", 0, least=0)
    if window:
        b.local(4, window=window, rope=hp.rope.unscaled())
    return _postnorm(b)


def exaone4(b: Builder) -> Graph:
    """In the 32B (64 layers), three of four layers see a window, and only these are rotated."""
    hp = b.read(mode="neox")
    if hp.n_layer == 64:
        local = b.local(4, base=False, window=b.meta.count("attention.sliding_window", 4096, least=0))
        b.hp = b.hp.each(lambda i, row: row if local[i] else replace(row, rope=None))
    b.rope_factors()
    return _postnorm(b)


def olmoe(b: Builder) -> Graph:
    """Softmax over all experts; the weights of the chosen ones are not normalised."""
    b.read(mode="neox")
    b.routing(normalise=False)
    return b.head(decoder(b, b.embedding()))


def _postnorm(b: Builder) -> Graph:
    x = b.embedding()
    for _ in b.blocks():
        x = b.add("ffn_inp", b.norm("attn_post_norm", b.attention(x), "post_attention_norm"), x)
        x = b.add("l_out", b.norm("ffn_post_norm", b.ffn(x), "post_ffw_norm"), x)
    return b.head(x)
