"""Planting: feed-forward, experts, residuals, head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from assay.engines.reference.functions import (
    ACTIVATIONS,
    gather,
    linear,
    sigmoid,
    softmax,
)
from assay.graph import Node, join
from assay.verify.faults.families.edits import at, attributes, skipped
from assay.verify.faults.fault import Array, Change, Context, Search, layer, plant, role, sibling, standard

# -- feed-forward --------------------------------------------------------------------------------------------------


def _halves_exchanged(c: Context, node: Node) -> Change:
    act = ACTIVATIONS[node.attr("act")]
    half = int(c.model.graph.shapes[node.name][-1])
    return Change(node, lambda x: act(x[..., half:]) * x[..., :half])


at("gateup-split", "the halves exchanged: up first", lambda n: n.op == "glu_split", _halves_exchanged)


def _interleaved(c: Context, node: Node) -> Change:
    act = ACTIVATIONS[node.attr("act")]
    return Change(node, lambda x: act(x[..., ::2]) * x[..., 1::2])


at("gateup-split", "gate and up interleaved", lambda n: n.op == "glu_split", _interleaved)


def _act(fault: str, label: str, name: str) -> None:
    """Another activation, wherever one is."""
    attributes(fault, label, "act", lambda c, n: {"act": name})
    attributes(fault, f"{label} in the gate", "glu", lambda c, n: {"act": name} if n.attr("act") != "silu" else None)
    attributes(fault, f"{label} in the split gate", "glu_split", lambda c, n: {"act": name})


_act("ffn-gelu-variant", "erf-GELU for tanh-GELU", "gelu_erf")
_act("ffn-act-family", "SiLU for GELU", "silu")
_act("ffn-act-family", "ReLU for GELU", "relu")


def _oai(label: str, formula: Callable[[Array, Array, float, float], Array]) -> None:
    at(
        "ffn-oai-swiglu", label, lambda n: n.op == "glu_oai",
        lambda c, n: Change(n, lambda g, u: formula(g, u, n.attr("alpha"), n.attr("limit"))),
    )  # fmt: skip


_oai("up without + 1", lambda g, u, a, m: np.minimum(g, m) * sigmoid(a * np.minimum(g, m)) * np.clip(u, -m, m))
_oai("no clamp", lambda g, u, a, m: g * sigmoid(a * g) * (u + 1))
_oai("alpha 1", lambda g, u, a, m: np.minimum(g, m) * sigmoid(np.minimum(g, m)) * (np.clip(u, -m, m) + 1))
_oai("silu(gate) * up", lambda g, u, a, m: g * sigmoid(g) * u)

# -- experts -------------------------------------------------------------------------------------------------------


def _weights_from(label: str, fault: str, source: str, change: Callable[[Array, Array], Array] = gather) -> None:
    """The weights of the chosen taken from another node."""

    def edit(c: Context, node: Node) -> Change | None:
        scores, best = sibling(c, node, source), sibling(c, node, "ffn_moe_topk")
        if scores is None or best is None or scores.name in node.inputs:
            return None
        return Change(replace(node, inputs=(scores.name, best.name)), change)

    at(fault, label, lambda n: role(n) == "ffn_moe_weights", edit)


def _finite_gather(x: Array, idx: Array) -> Array:
    return gather(np.where(np.isfinite(x), x, 0), idx)


_weights_from("the selection bias in the weights", "moe-router-bias", "ffn_moe_probs_biased")
_weights_from("logits as weights, not normalised", "moe-raw-logits", "ffn_moe_logits", _finite_gather)


@plant("moe-router-bias", "no bias when choosing")
def unbiased_choice(c: Context, node: Node, p: float) -> Change | None:
    return Change(node, lambda x, b: x) if role(node) == "ffn_moe_probs_biased" and node.op == "bias" else None


@plant("moe-topk-norm", "softmax over all experts before the choice")
def softmax_first(c: Context, node: Node, p: float) -> Change | None:
    probs, best = sibling(c, node, "ffn_moe_probs"), sibling(c, node, "ffn_moe_topk")
    if role(node) != "ffn_moe_weights_softmax" or probs is None or best is None:
        return None
    return Change(replace(node, inputs=(probs.name, best.name)), lambda x, idx: gather(softmax(x), idx))


@plant("moe-topk-norm", "weights made to sum to 1 where the model leaves them")
def normalised(c: Context, node: Node, p: float) -> Change | None:
    if role(node) != "ffn_moe_weights" or sibling(c, node, "ffn_moe_weights_norm") is not None:
        return None
    if sibling(c, node, "ffn_moe_weights_softmax") is not None:
        return None
    return Change(node, lambda x, idx: gather(x, idx) / np.sum(gather(x, idx), axis=-1, keepdims=True))


@plant("moe-topk-norm", "weights made to sum to 1 where they are used")
def normalised_in_use(c: Context, node: Node, p: float) -> Change | None:
    if role(node) != "ffn_moe_weighted" or node.op != "expert_scale":
        return None
    if any(sibling(c, node, f"ffn_moe_weights_{how}") is not None for how in ("norm", "softmax")):
        return None
    return Change(node, lambda x, w: x * (w / np.sum(w, axis=-1, keepdims=True))[..., None])


at("moe-groups", "all groups", lambda n: n.op == "group_mask", lambda c, n: Change(n, lambda x: x))


@plant("moe-groups", "groups by their best expert alone")
def best_alone(c: Context, node: Node, p: float) -> Change | None:
    if node.op != "group_mask":
        return None
    groups, used = node.attr("groups"), node.attr("used")

    def run(x: Array) -> Array:
        parts = x.reshape(len(x), groups, -1)
        rank = np.argsort(np.argsort(-parts.max(-1), axis=-1, kind="stable"), axis=-1)
        return np.where((rank < used)[..., None], parts, -np.inf).reshape(x.shape)

    return Change(node, run)


skipped("moe-routed-scale", "the experts' weights not scaled", "ffn_moe_weights_scaled")
skipped("moe-shared-gate", "the shared expert not gated", "ffn_shexp_out", op="mul")
at(
    "moe-shared-gate", "the gate without its sigmoid", lambda n: role(n) == "ffn_shexp_gate" and n.op == "sigmoid",
    lambda c, n: Change(n, lambda x: x),
)  # fmt: skip
at(
    "moe-shared-missing", "no shared expert",
    lambda n: n.op == "add" and role(n) in ("ffn_out", "ffn_moe_out_merged") and "moe" in n.inputs[0],
    lambda c, n: Change(n, lambda a, b: a),
)  # fmt: skip


@plant("moe-weight-place", "the weights on the experts' results, not on their input")
def weights_after(c: Context, node: Node, p: float) -> Change | None:
    weighted = sibling(c, node, "ffn_moe_weighted")
    if weighted is None or weighted.op != "expert_input":
        return None
    if node is weighted:
        return Change(node, lambda x, w: np.repeat(x[:, None, :], w.shape[1], axis=1))
    if node.op != "expert_sum":
        return None
    inputs = (*node.inputs, weighted.inputs[1])
    return Change(replace(node, inputs=inputs), lambda x, w: np.sum(x * w[..., None], axis=1))


@plant("moe-router-input", "the router reads the experts' normed input")
def router_input(c: Context, node: Node, p: float) -> Change | None:
    if role(node) != "ffn_moe_logits" or sibling(c, node, "ffn_moe_inp") is None:
        return None
    return Change(replace(node, inputs=(join("ffn_norm_2", layer(node)),)))


# -- residuals and head --------------------------------------------------------------------------------------------


@plant("res-serial", "the feed-forward after attention instead of beside it")
def serial(c: Context, node: Node, p: float) -> Change | None:
    norm, attn = sibling(c, node, "attn_norm"), sibling(c, node, "attn_out")
    if role(node) not in ("ffn_up", "ffn_gate") or node.op != "linear" or norm is None or attn is None:
        return None
    if node.inputs != (norm.name,):
        return None
    own = standard(norm)
    return Change(
        replace(node, inputs=(norm.inputs[0], attn.name), weights=(*node.weights, *norm.weights)),
        lambda x, a, W, *w: linear(own(x + a, *w), W),
    )


def _factor_of(c: Context, node: Node) -> float | None:
    """The factor on the change, where a residual sum has one."""
    change = c.model.graph.by_name.get(node.inputs[0]) if node.op == "add" else None
    return change.attr("factor") if change is not None and change.op == "scale" else None


@plant("res-multiplier", "the factor on the whole sum")
def on_the_sum(c: Context, node: Node, p: float) -> Change | None:
    factor = _factor_of(c, node) if role(node) in ("ffn_inp", "l_out") else None
    return None if factor is None else Change(node, lambda a, x: a + factor * x)


skipped("res-multiplier", "no factor on the change", "attn_out_scaled", "ffn_out_scaled")


@plant("res-layer-scale", "the scale on the change, not on the stream")
def scale_on_change(c: Context, node: Node, p: float) -> Change | None:
    source = c.model.graph.by_name.get(node.inputs[0]) if node.op == "mul_weight" and role(node) == "l_out" else None
    if source is None or source.op != "add":
        return None
    stream, change = source.inputs if role(source) == "pe_out" else source.inputs[::-1]
    return Change(replace(node, inputs=(stream, change)), lambda x, y, w: x + y * w)


at(
    "res-layer-scale", "no scale", lambda n: n.op == "mul_weight" and role(n) == "l_out",
    lambda c, n: Change(n, lambda x, w: x),
)  # fmt: skip


def _is_head_scale(node: Node) -> bool:
    return node.op == "scale" and role(node) in ("result_output", "result_output_scaled")


attributes(
    "head-logit-scale", "divided for multiplied, or the reverse", "scale",
    lambda c, n: {"factor": 1 / n.attr("factor")} if _is_head_scale(n) else None,
)  # fmt: skip
skipped("head-logit-scale", "the logits not scaled", "result_output", "result_output_scaled", op="scale")


def _pooled(label: str, kind: str) -> None:
    attributes("pool-kind", label, "pool", lambda c, n: {"kind": kind})


_pooled("the mean", "mean")
_pooled("the first row", "first")
_pooled("the last row", "last")


@plant("pool-kind", "{p} rows of padding pooled as well", Search(1, 512, (1, 2, 6, 22), True, True, 30))
def padded(c: Context, node: Node, p: float) -> Change | None:
    if node.op != "pool" or node.attr("kind") != "mean":
        return None
    return Change(node, lambda x: np.asarray(np.sum(x, axis=0, keepdims=True) / (len(x) + int(p))))
