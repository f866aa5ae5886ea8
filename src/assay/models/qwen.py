"""qwen2 (Qwen2, Qwen2.5, R1-Distill), qwen3 and their experts: Llama with RoPE on pairs (i, i + n_rot/2).

Biases on q, k, v (qwen2) or a norm on every head of q and k before the rotation (qwen3) are in the file.
The M-RoPE of the vision models rotates text like plain RoPE, because its three positions are equal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from assay.errors import AssayError
from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.llama import decoder
from assay.models.pictures import rope_axes


def qwen(b: Builder) -> Graph:
    b.read(mode="neox")
    return b.head(decoder(b, b.embedding()))


def qwen_vl(b: Builder, interleaved: bool = False) -> Graph:
    """Qwen with M-RoPE; the first layers may take parts of a picture's rows (deepstack).

    Pairs of no section turn by t, as in the trained model. llama.cpp does not turn them (in Qwen3-VL the pairs 61 and
    62, by less than a millionth of a radian for each position).
    """
    hp = b.read(mode="neox")
    if "rope.dimension_sections" in b.meta:
        b.hp = replace(hp, axes=rope_axes(b.meta, hp.rope.n_rot // 2, interleaved)[0])
    parts = b.meta.count("n_deepstack_layers", 0, least=0)
    if parts > hp.n_layer:
        raise b.meta.error("n_deepstack_layers", parts, f"at most the {hp.n_layer} layers")
    b.hp = replace(b.hp, n_deepstack=parts)
    return b.head(decoder(b, b.embedding()))


def qwen3_vl(b: Builder) -> Graph:
    """Qwen-VL whose sections of M-RoPE are interleaved."""
    return qwen_vl(b, interleaved=True)


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


def apertus(b: Builder) -> Graph:
    """Qwen3's attention; the feed-forward has no gate, and its activation has four numbers a layer."""
    b.read(mode="neox")
    b.rope_factors()
    numbers = {key: _by_layer(b, key) for key in ("alpha_p", "alpha_n", "beta", "eps")}
    x = b.embedding()
    for i in b.blocks():
        x = b.add("ffn_inp", b.attention(b.norm("attn_norm", x)), x)
        up = b.project("ffn_up", b.norm("ffn_norm", x), "ffn_up", partial="ffn_up_proj")
        given: dict[str, Any] = {key: values[i] for key, values in numbers.items()}
        y = b.node("ffn_xielu", "xielu", up, **given)
        x = b.add("l_out", b.project("ffn_down", y, "ffn_down", partial="ffn_down_proj"), x)
    return b.head(x)


def _by_layer(b: Builder, key: str) -> list[float]:
    """A key `xielu.…`, which has no architecture in front: one number, or one for each layer."""
    found = b.meta.values.get(f"xielu.{key}")
    values = [float(v) for v in np.atleast_1d(np.asarray(found, np.float64))] if _numbers(found) else []
    if len(values) == 1:
        values *= b.hp.n_layer
    if len(values) < b.hp.n_layer or not all(abs(v) < 1e6 for v in values):
        raise AssayError(f"{b.meta.where}xielu.{key}: bad value (found {len(values)}, expected {b.hp.n_layer} numbers)")
    return values


def _numbers(value: object) -> bool:
    array = np.asarray(value) if isinstance(value, int | float | np.ndarray | list) else np.empty(0, object)
    return array.ndim < 2 and array.dtype.kind in "fiu"
