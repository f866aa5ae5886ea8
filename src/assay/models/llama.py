"""llama: Llama 1/2/3, TinyLlama, SmolLM2, Mistral, Mixtral; and architectures that differ from it in one point.

x = x + Wo · attention(rope(Wq n), rope(Wk n), Wv n)        n = rms_norm(x)
x = x + Wdown (silu(Wgate m) * Wup m)                       m = rms_norm(x)
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.hparams import Temperature, yarn_magnitude

ALIBI = 8.0  # the largest slope's exponent, where the architecture fixes it


def decoder(b: Builder, x: str, *, ffn_norm: tuple[str, str] = ("ffn_norm", "ffn_norm"), act: str = "swiglu") -> str:
    """The blocks: each part reads a norm of the residual stream and is added to it. `ffn_norm`: second norm, tensor."""
    for _ in b.blocks():
        x = b.add("ffn_inp", b.attention(b.norm("attn_norm", x)), x)
        norm = b.norm(ffn_norm[0], x, ffn_norm[1])
        x = b.add("l_out", b.experts(norm) if b.here.experts else b.ffn(norm, act), x)
    return x


def llama(b: Builder, mode: str = "norm") -> Graph:
    b.read(mode=mode)
    b.rope_factors()
    return b.head(decoder(b, b.embedding()))


def arcee(b: Builder) -> Graph:
    """A feed-forward without a gate: down · relu(up)²."""
    b.read()
    b.rope_factors()
    return b.head(decoder(b, b.embedding(), act="sqr(relu)"))


def exaone(b: Builder) -> Graph:
    """Llama with RoPE on pairs (i, i + n_rot/2)."""
    return llama(b, "neox")


def llama_embed(b: Builder) -> Graph:
    """Llama without a causal mask: an encoder."""
    return _encoder(b, "norm", "result_norm")


def eurobert(b: Builder) -> Graph:
    """The same with RoPE on pairs (i, i + n_rot/2)."""
    return _encoder(b, "neox", "result_embd")


def _encoder(b: Builder, mode: str, result: str) -> Graph:
    hp = b.read(mode=mode)
    b.hp = hp.each(lambda i, row: replace(row, causal=False))
    b.rope_factors()
    return b.encoded(b.norm(result, decoder(b, b.embedding()), "output_norm"))


def bitnet(b: Builder) -> Graph:
    """A norm before the last matrix of each part."""
    b.read(mode="neox")
    x = b.embedding()
    for _ in b.blocks():
        row = b.here
        q, k, v = b.qkv(b.norm("attn_norm", x))
        q, k = b.rope("Qcur", q, row.n_head), b.rope("Kcur", k, row.n_head_kv)
        kqv = b.node("kqv_out", "merge_heads", b.attend(q, *b.cached(k, v)))
        attn = b.project("attn_out", b.norm("attn_sub_norm", kqv), "attn_output", partial="attn_out_proj")
        x = b.add("ffn_inp", attn, x)
        m = b.norm("ffn_norm", x)
        y = b.node(
            "ffn_swiglu", "glu", b.linear("ffn_gate", m, "ffn_gate"), b.linear("ffn_up", m, "ffn_up"), act="silu"
        )
        x = b.add("l_out", b.linear("ffn_out", b.norm("ffn_sub_norm", y), "ffn_down"), x)
    return b.head(x)


def baichuan(b: Builder) -> Graph:
    """Llama; the 13B (40 layers) has ALiBi in place of rotation."""
    hp = b.read()
    if hp.n_layer == 40:
        b.hp = hp.each(lambda i, row: replace(row, rope=None, max_bias=ALIBI))
    return b.head(decoder(b, b.embedding()))


def refact(b: Builder) -> Graph:
    """Llama with ALiBi in place of rotation."""
    hp = b.read()
    b.hp = hp.each(lambda i, row: replace(row, rope=None, max_bias=ALIBI))
    return b.head(decoder(b, b.embedding()))


def maincoder(b: Builder) -> Graph:
    """q/k norm after the rotation."""
    b.read()
    return b.head(norm_last(b, b.embedding()))


def mistral3(b: Builder) -> Graph:
    """YaRN with its own magnitude m(1) / m(c) and bounds; queries are scaled by position."""
    hp = b.read()
    c = max(0.0, b.meta.number("rope.scaling.yarn_log_multiplier", 0.0))
    beta = b.meta.number("attention.temperature_scale", 0.0)
    rope = replace(
        hp.rope,
        beta_fast=b.meta.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=b.meta.positive("rope.scaling.yarn_beta_slow", 1.0),
    )
    if c and rope.kind == "yarn":
        rope = replace(rope, magnitude=rope.magnitude / yarn_magnitude(rope.factor, c))
    temperature = Temperature(beta, rope.n_ctx_orig) if beta else None
    b.hp = hp.each(lambda i, row: replace(row, rope=rope, temperature=temperature))
    b.rope_factors()
    return b.head(decoder(b, b.embedding()))


def smollm3(b: Builder) -> Graph:
    """Every fourth layer is not rotated."""
    hp = b.read()
    b.hp = hp.each(lambda i, row: replace(row, rope=None) if (i + 1) % 4 == 0 else row)
    return b.head(decoder(b, b.embedding()))


def hunyuan(b: Builder) -> Graph:
    """q/k norm after the rotation; the base grows with `rope.scaling.alpha`."""
    hp = b.read(mode="neox")
    alpha, width = b.meta.number("rope.scaling.alpha", 0.0), hp.n_embd_head
    if alpha > 0 and width > 2:
        base = hp.rope.base * alpha ** (width / (width - 2))
        b.hp = hp.each(lambda i, row: replace(row, rope=replace(hp.rope, base=base)))
    b.rope_factors()
    return b.head(norm_last(b, b.embedding()))


def norm_last(b: Builder, x: str) -> str:
    """Blocks whose queries and keys are normed after the rotation."""
    for _ in b.blocks():
        x = b.add("ffn_inp", b.attention(b.norm("attn_norm", x), norm_last=True), x)
        x = b.add("l_out", b.ffn(b.norm("ffn_norm", x)), x)
    return x
