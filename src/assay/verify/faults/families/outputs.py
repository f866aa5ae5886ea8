"""Edits of feed-forward, experts, residuals and head."""

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
from assay.graph import Node, Trait, join
from assay.verify.faults.families.edits import at, attributes, passed_through, skipped
from assay.verify.faults.fault import Array, Change, Context, Search, layer, plant, role, sibling, standard

# -- feed-forward --------------------------------------------------------------------------------------------------


def _halves_exchanged(c: Context, node: Node) -> Change:
    act = ACTIVATIONS[node.attr("act")]
    half = int(c.model.graph.shapes[node.name][-1])
    return Change(node, lambda x: act(x[..., half:]) * x[..., :half])


at("gateup-split", "the halves exchanged: up first", _halves_exchanged, op="glu_split")


def _interleaved(c: Context, node: Node) -> Change:
    act = ACTIVATIONS[node.attr("act")]
    return Change(node, lambda x: act(x[..., ::2]) * x[..., 1::2])


at("gateup-split", "gate and up interleaved", _interleaved, op="glu_split")


def _act(fault: str, label: str, name: str) -> None:
    """Another activation, in every operation that has one."""
    attributes(fault, label, "act", lambda c, n: {"act": name})
    attributes(fault, f"{label} in the gate", "glu", lambda c, n: {"act": name} if n.attr("act") != "silu" else None)
    attributes(fault, f"{label} in the split gate", "glu_split", lambda c, n: {"act": name})


_act("ffn-gelu-variant", "erf-GELU for tanh-GELU", "gelu_erf")
_act("ffn-act-family", "SiLU for GELU", "silu")
_act("ffn-act-family", "ReLU for GELU", "relu")


def _oai(label: str, formula: Callable[[Array, Array, float, float], Array]) -> None:
    at(
        "ffn-oai-swiglu", label, lambda c, n: Change(n, lambda g, u: formula(g, u, n.attr("alpha"), n.attr("limit"))),
        op="glu_oai",
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

    at(fault, label, edit, roles="ffn_moe_weights")


def _finite_gather(x: Array, idx: Array) -> Array:
    return gather(np.where(np.isfinite(x), x, 0), idx)


_weights_from("the selection bias in the weights", "moe-router-bias", "ffn_moe_probs_biased")
_weights_from("logits as weights, not normalised", "moe-raw-logits", "ffn_moe_logits", _finite_gather)


skipped("moe-router-bias", "no bias when choosing", "ffn_moe_probs_biased", op="bias")


@plant("moe-topk-norm", "softmax over all experts before the choice", roles="ffn_moe_weights_softmax")
def softmax_first(c: Context, node: Node, p: float) -> Change | None:
    probs, best = sibling(c, node, "ffn_moe_probs"), sibling(c, node, "ffn_moe_topk")
    if probs is None or best is None:
        return None
    return Change(replace(node, inputs=(probs.name, best.name)), lambda x, idx: gather(softmax(x), idx))


def _not_normalised(c: Context, node: Node) -> bool:
    return all(sibling(c, node, f"ffn_moe_weights_{how}") is None for how in ("norm", "softmax"))


@plant(
    "moe-topk-norm", "weights made to sum to 1 where the model leaves them", roles="ffn_moe_weights",
    when=_not_normalised,
)  # fmt: skip
def normalised(c: Context, node: Node, p: float) -> Change | None:
    return Change(node, lambda x, idx: gather(x, idx) / np.sum(gather(x, idx), axis=-1, keepdims=True))


@plant(
    "moe-topk-norm", "weights made to sum to 1 where they are used", op="expert_scale", roles="ffn_moe_weighted",
    when=_not_normalised,
)  # fmt: skip
def normalised_in_use(c: Context, node: Node, p: float) -> Change | None:
    return Change(node, lambda x, w: x * (w / np.sum(w, axis=-1, keepdims=True))[..., None])


at("moe-groups", "all groups", passed_through, op="group_mask")


@plant("moe-groups", "groups by their best expert alone", op="group_mask")
def best_alone(c: Context, node: Node, p: float) -> Change | None:
    groups, used = node.attr("groups"), node.attr("used")

    def run(x: Array) -> Array:
        parts = x.reshape(len(x), groups, -1)
        rank = np.argsort(np.argsort(-parts.max(-1), axis=-1, kind="stable"), axis=-1)
        return np.where((rank < used)[..., None], parts, -np.inf).reshape(x.shape)

    return Change(node, run)


skipped("moe-routed-scale", "the experts' weights not scaled", "ffn_moe_weights_scaled")
skipped("moe-shared-gate", "the shared expert not gated", "ffn_shexp_out", op="mul")
skipped("moe-shared-gate", "the gate without its sigmoid", "ffn_shexp_gate", op="sigmoid")
at(
    "moe-shared-missing", "no shared expert", passed_through,
    op="add", roles=("ffn_out", "ffn_moe_out_merged"), when=lambda c, n: "moe" in n.inputs[0],
)  # fmt: skip


@plant("moe-weight-place", "the weights on the experts' results, not on their input", op=("expert_input", "expert_sum"))
def weights_after(c: Context, node: Node, p: float) -> Change | None:
    weighted = sibling(c, node, "ffn_moe_weighted")
    if weighted is None or weighted.op != "expert_input":
        return None
    if node.name == weighted.name:
        return Change(node, lambda x, w: np.repeat(x[:, None, :], w.shape[1], axis=1))
    inputs = (*node.inputs, weighted.inputs[1])
    return Change(replace(node, inputs=inputs), lambda x, w: np.sum(x * w[..., None], axis=1))


@plant(
    "moe-router-input", "the router reads the experts' normed input", roles="ffn_moe_logits",
    when=lambda c, node: sibling(c, node, "ffn_moe_inp") is not None,
)  # fmt: skip
def router_input(c: Context, node: Node, p: float) -> Change | None:
    return Change(replace(node, inputs=(join("ffn_norm_2", layer(node)),)))


# -- residuals and head --------------------------------------------------------------------------------------------


@plant("res-serial", "the feed-forward after attention instead of beside it", op="linear", roles=("ffn_up", "ffn_gate"))
def serial(c: Context, node: Node, p: float) -> Change | None:
    norm, attn = sibling(c, node, "attn_norm"), sibling(c, node, "attn_out")
    if norm is None or attn is None or node.inputs != (norm.name,):
        return None
    own = standard(norm)
    return Change(
        replace(node, inputs=(norm.inputs[0], attn.name), weights=(*node.weights, *norm.weights)),
        lambda x, a, W, *w: linear(own(x + a, *w), W),
    )


def _factor_of(c: Context, node: Node) -> float | None:
    """The factor on the change, where a residual sum has one."""
    change = c.model.graph.by_name.get(node.inputs[0])
    return change.all_attrs().get("factor") if change is not None else None


@plant("res-multiplier", "the factor on the whole sum", op="add", roles=("ffn_inp", "l_out"))
def on_the_sum(c: Context, node: Node, p: float) -> Change | None:
    factor = _factor_of(c, node)
    return None if factor is None else Change(node, lambda a, x: a + factor * x)


skipped("res-multiplier", "no factor on the change", "attn_out_scaled", "ffn_out_scaled")


@plant("res-layer-scale", "the scale on the change, not on the stream", op="mul_weight", roles="l_out")
def scale_on_change(c: Context, node: Node, p: float) -> Change | None:
    source = c.model.graph.by_name.get(node.inputs[0])
    if source is None or len(source.inputs) != 2 or not source.has(Trait.SUMS):
        return None
    stream, change = source.inputs if role(source) == "pe_out" else source.inputs[::-1]
    return Change(replace(node, inputs=(stream, change)), lambda x, y, w: x + y * w)


skipped("res-layer-scale", "no scale", "l_out", op="mul_weight")
attributes(
    "head-logit-scale", "divided for multiplied, or the reverse", "scale",
    lambda c, n: {"factor": 1 / n.attr("factor")} if role(n) in ("result_output", "result_output_scaled") else None,
)  # fmt: skip
skipped("head-logit-scale", "the logits not scaled", "result_output", "result_output_scaled", op="scale")


def _pooled(label: str, kind: str) -> None:
    attributes("pool-kind", label, "pool", lambda c, n: {"kind": kind})


_pooled("the mean", "mean")
_pooled("the first row", "first")
_pooled("the last row", "last")


@plant("pool-kind", "{p} rows of padding pooled as well", Search(1, 512, (1, 2, 6, 22), True, True, 30), op="pool")
def padded(c: Context, node: Node, p: float) -> Change | None:
    if node.attr("kind") != "mean":
        return None
    return Change(node, lambda x: np.asarray(np.sum(x, axis=0, keepdims=True) / (len(x) + int(p))))
