"""Planting: embedding, norms, and the projections to q, k and v."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from assay.engines.reference.functions import (
    linear,
    rms_norm,
)
from assay.graph import Node
from assay.verify.faults.families.edits import another, at, attributes, row, skipped
from assay.verify.faults.fault import Array, Change, Context, plant, role, sibling, standard

# -- embedding -----------------------------------------------------------------------------------------------------

skipped("embd-scale-missing", "the embedding not scaled", "inp_scaled", "embd", op="scale")
attributes(
    "embd-scale-rounded", "the factor rounded to bfloat16", "scale",
    lambda c, n: {"factor": _bf16(n.attr("factor"))} if role(n) == "inp_scaled" else None,
)  # fmt: skip


def _bf16(x: float) -> float:
    bits = np.float32(x).view(np.uint32)
    return float(np.uint32((int(bits) + 0x7FFF + ((int(bits) >> 16) & 1)) & 0xFFFF0000).view(np.float32))


def _positions(label: str, shift: int) -> None:
    at(
        "pos-embd-offset", label, lambda n: role(n) == "pos_embd",
        lambda c, n: Change(n, lambda pos, W: np.asarray(W[np.clip(pos + shift, 0, W.shape[0] - 1)])),
    )  # fmt: skip


_positions("learned positions one too far", 1)
_positions("learned positions one too early", -1)
_positions("learned positions two too far", 2)

# -- norms ---------------------------------------------------------------------------------------------------------

skipped("postnorm-missing", "no norm after attention", "attn_post_norm", "post_attn_norm")
skipped("postnorm-missing", "no norm after the feed-forward", "ffn_post_norm", "post_mlp_norm")
skipped(
    "postnorm-missing", "no norm after either", "attn_post_norm", "post_attn_norm", "ffn_post_norm", "post_mlp_norm"
)
skipped("v-norm-missing", "V as it is projected", "Vcur", op="rms_norm")


def _uncentred(c: Context, node: Node) -> Change:
    attrs = {key: node.attr(key) for key in ("eps", "n_head")}
    return Change(node, lambda x, w, *b: sum(b, rms_norm(x, w, **attrs)))


at("norm-rms-for-layernorm", "the mean not subtracted", lambda n: n.op == "layer_norm", _uncentred)
at(
    "norm-bias-missing", "no bias in the norm", lambda n: n.op == "layer_norm" and len(n.weights) == 2,
    lambda c, n: Change(replace(n, weights=n.weights[:1])),
)  # fmt: skip
at(
    "norm-plus1-missing", "times w - 1", lambda n: n.op == "rms_norm" and bool(n.weights),
    lambda c, n: Change(n, lambda x, w: standard(n)(x, w - 1)),
)  # fmt: skip
at(
    "norm-plus1-double", "times 1 + w, q and k too", lambda n: n.op == "rms_norm" and bool(n.weights),
    lambda c, n: Change(n, lambda x, w: standard(n)(x, w + 1)),
)  # fmt: skip


@plant("norm-position", "norms before the parts instead of after")
def before(c: Context, node: Node, p: float) -> Change | None:
    """Where the file norms each part's result: the part reads the normed stream and gives its result as it is."""
    if role(node) in ("attn_post_norm", "ffn_post_norm"):
        return Change(node, lambda x, *w: x)
    post = "ffn_post_norm" if role(node) in ("ffn_up", "ffn_gate") else "attn_post_norm"
    norm = sibling(c, node, post)
    if node.op != "linear" or norm is None or sibling(c, node, "attn_norm") is not None:
        return None
    if role(node) not in ("Qcur_proj", "Kcur_proj", "Vcur", "ffn_up", "ffn_gate"):
        return None
    own = standard(norm)
    return Change(replace(node, weights=(*node.weights, *norm.weights)), lambda x, W, *w: linear(own(x, *w), W))


@plant("norm-position", "the sum added after the norm: x + norm(f(x)) for norm(x + f(x))")
def after_norm(c: Context, node: Node, p: float) -> Change | None:
    source = c.model.graph.by_name.get(node.inputs[0]) if node.inputs else None
    if node.op != "layer_norm" or source is None or source.op != "add" or role(source) not in ("attn_res", "ffn_res"):
        return None
    own = standard(node)
    return Change(replace(node, inputs=source.inputs), lambda part, x, *w: own(part, *w) + x)


# -- q, k, v -------------------------------------------------------------------------------------------------------

NORMED = ("Qcur_normed", "Kcur_normed")


def _is_bias(*roles: str) -> Callable[[Node], bool]:
    return lambda n: n.op in ("bias", "expert_bias") and (not roles or role(n) in roles)


at("qkv-bias-missing", "no bias on the fused product", _is_bias("wqkv_b"), lambda c, n: Change(n, lambda x, b: x))
at("bias-missing", "no bias after attention", _is_bias("attn_out"), lambda c, n: Change(n, lambda x, b: x))
at(
    "bias-missing", "no bias in the feed-forward",
    lambda n: _is_bias("ffn_up_b", "ffn_gate_b", "ffn_out")(n) or n.op == "expert_bias",
    lambda c, n: Change(n, lambda x, *rest: x),
)  # fmt: skip
at(
    "bias-missing", "no bias on the router", lambda n: _is_bias("ffn_moe_probs", "ffn_moe_logits_biased")(n),
    lambda c, n: Change(n, lambda x, b: x),
)  # fmt: skip
skipped("clamp-missing", "q, k and v not clamped", "wqkv_clamped", op="clamp")
skipped("qknorm-missing", "no norm of q and k", *NORMED)


@plant("qknorm-missing", "q and k normed in the layers without rotation as well")
def normed_everywhere(c: Context, node: Node, p: float) -> Change | None:
    one = row(c, node)
    source = another(c, node, lambda r: r.rope is not None, "Qcur_normed")
    if one is None or one.rope is not None or source is None or source.weights or source.op != "rms_norm":
        return None
    eps, own = source.attr("eps"), standard(node) if node.op != "cache" else None
    if node.op == "pos_scale" and own is not None:
        return Change(node, lambda x, pos: own(rms_norm(x, eps=eps, n_head=one.n_head), pos))
    if role(node) != "cache_k" or node.op != "cache":
        return None
    return Change(node, lambda x: rms_norm(x.reshape(len(x), one.n_head_kv, -1), eps=eps, n_head=0))


def _whole_width(c: Context, node: Node) -> Change | None:
    """One rms over all heads, where each has its own; or one for each head, where there is one for all."""
    one = row(c, node)
    if one is None or node.op != "rms_norm" or not node.weights:
        return None
    n_head = one.n_head if role(node).startswith("Q") else one.n_head_kv
    eps, heads = node.attr("eps"), node.attr("n_head")
    if n_head == 1:
        return None

    def run(x: Array, w: Array) -> Array:
        flat = x.reshape(len(x), n_head, -1)
        axes: Any = (1, 2) if heads else 2
        y = flat / np.sqrt(np.mean(flat * flat, axis=axes, keepdims=True) + eps)
        return np.asarray((y * (w if w.size == flat.shape[2] else w.reshape(n_head, -1))).reshape(x.shape))

    return Change(node, run)


at("qknorm-across-heads", "one rms over all heads, or the reverse", lambda n: role(n) in NORMED, _whole_width)


def _norm_and_turn(c: Context, node: Node) -> Change | None:
    """The second of norm and rotation computes both, in the other order, from what the first was given."""
    source = c.model.graph.by_name.get(node.inputs[0]) if node.inputs else None
    pair = {"rope", "rms_norm", "layer_norm"}
    if source is None or node.op not in pair or source.op not in pair or node.op == source.op:
        return None
    if "rope" not in (node.op, source.op):
        return None
    first, second, n = standard(node), standard(source), len(source.weights)
    n_head = node.attr("n_head") if node.op == "rope" else source.attr("n_head")

    def run(x: Array, pos: Array, *w: Array) -> Array:
        mine, theirs = w[n:], w[:n]
        if node.op == "rope":
            y = first(x, pos, *mine).reshape(len(x), -1)
            return np.asarray(second(y, *theirs).reshape(len(x), n_head, -1))
        return np.asarray(second(first(x, *mine), pos, *theirs).reshape(len(x), n_head, -1))

    inputs = (source.inputs[0], "inp_pos")
    return Change(replace(node, inputs=inputs, weights=(*source.weights, *node.weights)), run)


at("qknorm-order", "norm and rotation exchanged", lambda n: role(n) in (*NORMED, "Qcur", "Kcur"), _norm_and_turn)
