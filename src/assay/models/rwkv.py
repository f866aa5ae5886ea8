"""rwkv6, rwkv7 (RWKV World): every layer mixes each token with the one before it, then with a matrix of all before.

x = x + Wo (norm_by_heads(wkv(r, w, k, v)) * g)     r, w, k, v, g from lerp(n, the row before n)
x = x + Wv relu(Wk lerp(m, the row before m))²
"""

from __future__ import annotations

import math
from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.recurrent import show_state

HEAD_EPS = 64e-5  # of the norm by heads; no key says it


def rwkv7(b: Builder) -> Graph:
    x, heads = _start(b)
    first = ""
    for _ in b.blocks():
        norm = b.norm("attn_norm", x)
        before = _before(b, "attn_shift", norm)
        mixed, value = _time_mix7(b, norm, before, heads, first)
        first = first or value
        x = b.add("ffn_inp", mixed, x)
        norm = b.norm("ffn_norm", x, "attn_norm_2")
        last = _before(b, "ffn_shift", norm)
        show_state(b, "r", (2, b.hp.n_embd), before, last)
        key = b.linear("channel_mix_k", _mix(b, "channel_mix_xk", norm, last, "channel_mix_lerp_k"), "channel_mix_key")
        key = b.node("channel_mix_relu_sqr", "act", key, act="relu_sqr")
        x = b.add("l_out", b.linear("channel_mix_out", key, "channel_mix_value"), x)
    return b.head(x)


def rwkv6(b: Builder) -> Graph:
    """The results of every n-th layer are halved (`rescale_every_n_layers`)."""
    x, heads = _start(b)
    every = b.meta.count("rescale_every_n_layers", 0, least=0)
    for i in b.blocks():
        norm = b.norm("attn_norm", x)
        before = _before(b, "attn_shift", norm)
        x = b.add("ffn_inp", _time_mix6(b, norm, before, heads), x)
        norm = b.norm("ffn_norm", x, "attn_norm_2")
        last = _before(b, "ffn_shift", norm)
        show_state(b, "r", (2, b.hp.n_embd), before, last)
        key = b.linear("channel_mix_k", _mix(b, "channel_mix_xk", norm, last, "channel_mix_lerp_k"), "channel_mix_key")
        key = b.node("channel_mix_relu_sqr", "act", key, act="relu_sqr")
        gate = _mix(b, "channel_mix_xr", norm, last, "channel_mix_lerp_r")
        gate = b.node("channel_mix_r_sigmoid", "sigmoid", b.linear("channel_mix_r", gate, "channel_mix_receptance"))
        y = b.node("channel_mix_gated", "mul", b.linear("channel_mix_out", key, "channel_mix_value"), gate)
        halved = every and (i + 1) % every == 0
        x = b.add("l_out_unscaled" if halved else "l_out", y, x)
        x = b.scaled("l_out", x, 0.5) if halved else x
    return b.head(x)


def _start(b: Builder) -> tuple[str, int]:
    """The normed embedding, and the number of heads."""
    hp = b.read(norm="layer", least_heads=0)
    width = b.meta.count("wkv.head_size")
    if hp.n_embd % width:
        raise b.meta.error("wkv.head_size", width, f"a divisor of embedding_length {hp.n_embd}")
    if (shifts := b.meta.count("token_shift_count", 2)) != 2:
        raise b.meta.error("token_shift_count", shifts, "2")
    b.hp = hp.each(lambda i, row: replace(row, recurrent=True, rope=None))
    return b.norm("inp_norm-0", b.embedding(), "token_embd_norm"), hp.n_embd // width


def _before(b: Builder, role: str, x: str) -> str:
    """The row before each row."""
    return b.node(role, "shift", x, state=(1, b.hp.n_embd))


def _mix(b: Builder, role: str, x: str, before: str, stem: str, row: int = 0) -> str:
    return b.node(role, "lerp_row", x, before, weights=(b.weight(stem),), row=row)


def _low_rank(b: Builder, role: str, x: str, letter: str, act: str) -> str:
    """W2 · act(W1 · x), with `act` empty for none, plus the bias if the file has one."""
    y = b.linear(f"{role}_low", x, f"time_mix_{letter}1")
    if act == "tanh":
        y = b.node(f"{role}_low_tanh", "act", y, act="tanh")
    elif act:
        y = b.node(f"{role}_low_{act}", act, y)
    biased = b.has(f"time_mix_{letter}0")
    y = b.linear(f"{role}_proj" if biased else role, y, f"time_mix_{letter}2")
    if not biased:
        return y
    return b.node(f"{role}_biased", "bias", y, weights=(b.weight(f"time_mix_{letter}0"),))


def _by_heads(b: Builder, x: str, heads: int) -> str:
    """The norm of each head's result, with a weight and a bias for each channel."""
    weights = (b.weight("time_mix_ln"), b.weight("time_mix_ln", "bias"))
    return b.node("wkv_normed", "layer_norm", x, weights=weights, eps=HEAD_EPS, n_head=heads)


def _time_mix7(b: Builder, x: str, before: str, heads: int, first: str) -> tuple[str, str]:
    """The result, and this layer's value, which later layers mix in if it is the first layer's."""
    mixed = {
        role: _mix(b, f"x_{role}", x, before, "time_mix_lerp_fused", i)
        for i, role in enumerate("rwkvag" if b.has("time_mix_g1") else "rwkva")
    }
    r = b.linear("r", mixed["r"], "time_mix_receptance")
    k = b.linear("k_proj", mixed["k"], "time_mix_key")
    v = value = b.linear("v_proj", mixed["v"], "time_mix_value")
    w = b.node("w_sigmoid", "sigmoid", _low_rank(b, "w", mixed["w"], "w", "tanh"))
    w = b.node("w", "exp", b.scaled("w_log", w, -math.exp(-0.5)))
    if first:
        gate = b.node("v_sigmoid", "sigmoid", _low_rank(b, "v_mix", mixed["v"], "v", ""))
        v = b.node("v", "lerp", v, first, gate)
    a = b.node("a", "sigmoid", _low_rank(b, "a", mixed["a"], "a", ""))
    kk = b.node("kk_raw", "mul_weight", k, weights=(b.weight("time_mix_k_k"),))
    kk = b.node("kk", "l2_norm", kk, eps=1e-12, n_head=heads, floor=True)
    k = b.node("k", "lerp_row", k, b.node("ka", "mul", k, a), weights=(b.weight("time_mix_k_a"),))
    width = b.hp.n_embd // heads
    y = b.node("wkv_out", "wkv7", r, w, k, v, kk, a, n_head=heads, state=(heads, width, width))
    show_state(b, "s", (heads, width, width), y)
    y = b.node("wkv_bonus", "head_bonus", _by_heads(b, y, heads), r, k, v, weights=(b.weight("time_mix_r_k"),),
               n_head=heads)  # fmt: skip
    if "g" in mixed:
        y = b.node("wkv_gated", "mul", y, _low_rank(b, "g", mixed["g"], "g", "sigmoid"))
    return b.linear("time_mix_out", y, "time_mix_output"), value


def _time_mix6(b: Builder, x: str, before: str, heads: int) -> str:
    width, e = b.hp.n_embd // heads, b.hp.n_embd
    low = b.linear("mix_low", _mix(b, "x_x", x, before, "time_mix_lerp_x"), "time_mix_w1")
    low = b.node("mix_heads", "split_heads", b.node("mix_tanh", "act", low, act="tanh"), n_head=5)
    both = b.node("mix_parts", "merge_heads", b.node("mix", "head_linear", low, weights=(b.weight("time_mix_w2"),)))
    mixed = {}
    for i, role in enumerate("wkvrg"):
        part = b.node(f"mix_{role}_part", "slice", both, start=i * e, stop=(i + 1) * e)
        fused = b.has("time_mix_lerp_fused")
        weight = b.weight("time_mix_lerp_fused" if fused else f"time_mix_lerp_{role}")
        part = b.node(f"mix_{role}", "add_row", part, weights=(weight,), row=i if fused else 0)
        mixed[role] = b.node(f"x_{role}", "lerp", x, before, part)
    k = b.linear("k_proj", mixed["k"], "time_mix_key")
    v = b.linear("v_proj", mixed["v"], "time_mix_value")
    r = b.linear("r", mixed["r"], "time_mix_receptance")
    w = b.node("w_low_tanh", "act", b.linear("w_low", mixed["w"], "time_mix_decay_w1"), act="tanh")
    w = b.linear("w_proj", w, "time_mix_decay_w2")
    w = b.node("w_biased", "bias", w, weights=(b.weight("time_mix_decay"),))
    w = b.node("w", "exp", b.scaled("w_log", b.node("w_exp", "exp", w), -1.0))
    shape = (heads, width, width)
    y = b.node("wkv_out", "wkv6", r, w, k, v, weights=(b.weight("time_mix_first"),), n_head=heads, state=shape)
    show_state(b, "s", shape, y)
    gate = b.node("g", "act", b.linear("g_proj", mixed["g"], "time_mix_gate"), act="silu")
    return b.linear("time_mix_out", b.node("wkv_gated", "mul", _by_heads(b, y, heads), gate), "time_mix_output")
