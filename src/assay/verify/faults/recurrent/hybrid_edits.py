"""Edits around recurrent layers: gated attention, draft heads, routing, and the newer feed-forwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from assay.engines.reference.functions import sigmoid, silu, softmax
from assay.graph import Node
from assay.verify.faults.families.edits import at, passed_through, row, skipped
from assay.verify.faults.fault import Array, Change, Context, layer, plant, role, sibling, standard
from assay.verify.faults.recurrent.delta_rule_edits import exchanged, flat_parts
from assay.verify.faults.rotary import turned

# -- gated attention ------------------------------------------------------------------------------------------------

_GATED = "attn_gated"
flat_parts("gattn-halves", "all queries, then all gates", "Qcur_proj", "gate_raw")
exchanged("gattn-swapped", "gate before query in each head", "Qcur_proj", "gate_raw")
at("gattn-absent", "no gate", passed_through, op="mul", roles=_GATED)
at("gattn-silu", "silu for sigmoid", lambda c, n: Change(n, silu), op="sigmoid", roles="gate_sigmoid")

# -- draft heads ----------------------------------------------------------------------------------------------------

at(
    "mtp-concat-order", "hidden row first", lambda c, n: Change(replace(n, inputs=n.inputs[::-1])),
    op="join", roles="mtp_concat",
)  # fmt: skip
at(
    "mtp-norm-shared", "the model's last norm", lambda c, n: Change(replace(n, weights=("output_norm.weight",))),
    op=("rms_norm", "layer_norm"), roles="result_norm",
    when=lambda c, n: "shared_head_norm" in n.weights[0] and len(n.weights) == 1,
)  # fmt: skip

# -- rotation in models without it ----------------------------------------------------------------------------------


def _rotation(fault: str, label: str, mode: str) -> None:
    """Queries and keys turned in a model that has no rotation at all; in latent attention their last values."""

    def edit(c: Context, node: Node) -> Change | None:
        one, found = row(c, node), c.model.hparams.rope
        latent = sibling(c, node, "q_pe_proj")
        if one is None or any(r.rope for r in c.hp.layers) or (latent is not None) != (fault == "kda-mla-rope"):
            return None
        width = int(c.model.graph.shapes[latent.name][-1]) if latent is not None else one.n_embd_head
        n_rot = width if latent is not None else min(found.n_rot or width, width)
        turn = Node("turned", "rope", (), (), {**found.attrs(), "n_rot": n_rot, "mode": mode, "n_head": 1})
        own, counts = standard(node), (one.n_head, one.n_head_kv)

        def turned_end(x: Array, pos: Array, n_head: int) -> Array:
            x = x.reshape(len(x), n_head, -1)
            return np.concatenate([x[..., :-width], turned(turn, x[..., -width:], pos, n_head=n_head)], axis=-1)

        def run(q: Array, k: Array, pos: Array, kpos: Array) -> Array:
            return own(turned_end(q, pos, counts[0]), turned_end(k, kpos, counts[1]))

        return Change(replace(node, inputs=(*node.inputs, "inp_pos", "inp_kpos")), run)

    at(fault, label, edit, op="kq")


def _joined_rotation(label: str, mode: str) -> None:
    """Latent attention whose unrotated part is turned before it is joined to the rest of queries and keys."""

    @plant("kda-mla-rope", label, op="concat", roles=("Qcur", "Kcur"))
    def edit(c: Context, node: Node, p: float) -> Change | None:
        if any(r.rope for r in c.hp.layers) or sibling(c, node, "q_pe_proj") is None:
            return None
        width, own = int(c.model.graph.shapes[node.inputs[1]][-1]), standard(node)
        attrs = {**c.model.hparams.rope.attrs(), "n_rot": width, "mode": mode, "n_head": 1}
        turn = Node("turned", "rope", (), (), attrs)

        def run(a: Array, x: Array, pos: Array) -> Array:
            x = x.reshape(len(x), -1, width)
            return own(a, turned(turn, x, pos, n_head=x.shape[1]))

        return Change(replace(node, inputs=(*node.inputs, "inp_pos")), run)


for _mode, _pairs in (("norm", "neighbouring pairs"), ("neox", "halves")):
    _rotation("rope-nope-layer", f"queries and keys turned in a model without rotation, {_pairs}", _mode)
    _rotation("kda-mla-rope", f"the last values of each head turned, {_pairs}", _mode)
    _joined_rotation(f"the last values turned before they are joined, {_pairs}", _mode)

# -- routing --------------------------------------------------------------------------------------------------------


@plant("moe-gate-kind", "softmax for sigmoid, or the reverse", op=("sigmoid", "softmax"), roles="ffn_moe_probs")
def other_gate(c: Context, node: Node, p: float) -> Change | None:
    return Change(node, softmax if node.op == "sigmoid" else sigmoid)


skipped("moe-shared-gate", "the gated shared expert not gated", "ffn_shexp_gated", op="mul")
skipped("moe-shared-gate", "the shared expert's gate without its sigmoid", "shared_expert_gate_sigmoid", op="sigmoid")
at(
    "moe-shared-missing", "no shared expert beside the latent ones", passed_through, op="add", roles="ffn_out",
    when=lambda c, n: "latent" in n.inputs[0],
)  # fmt: skip


@plant("res-multiplier", "no factor on the state layers' change", op="scale", roles="attn_out_scaled")
def plain_state_layers(c: Context, node: Node, p: float) -> Change | None:
    i = layer(node)
    recurrent = i is not None and i < len(c.hp.layers) and c.model.hparams.layers[i].recurrent
    return passed_through(c, node) if recurrent else None


# -- feed-forwards --------------------------------------------------------------------------------------------------


def _squared(c: Context, node: Node) -> bool:
    """Is the node the square of a ReLU, as an operation or as a product?"""
    if node.op == "act":
        return bool(node.attr("act") == "relu_sqr")
    return len(node.inputs) == 2 and node.inputs[0] == node.inputs[1]


@plant("relu2-plain", "ReLU not squared", op=("act", "mul"), when=_squared)
def not_squared(c: Context, node: Node, p: float) -> Change | None:
    if node.op == "act":
        return Change(node.with_attrs(act="relu"))
    return Change(node, lambda a, b: a)


@plant("relu2-plain", "the square without ReLU", op=("act", "mul"), when=_squared)
def square_alone(c: Context, node: Node, p: float) -> Change | None:
    return _of_up(c, node, lambda x: x * x)


@plant("ffn-act-family", "SiLU for squared ReLU", op=("act", "mul"), when=_squared)
def silu_for_square(c: Context, node: Node, p: float) -> Change | None:
    return _of_up(c, node, silu)


def _of_up(c: Context, node: Node, formula: Any) -> Change | None:
    """Another function of the value before the ReLU."""
    if node.op == "act":
        return Change(node, lambda x: formula(x))
    relu = c.model.graph.by_name.get(node.inputs[0])
    if relu is None or relu.op != "act":
        return None
    return Change(replace(node, inputs=relu.inputs), lambda x: formula(x))


@plant("xielu-softplus-absent", "alphas as they stand", op="xielu")
def bare_alphas(c: Context, node: Node, p: float) -> Change | None:
    a, n, beta, eps = (node.attr(key) for key in ("alpha_p", "alpha_n", "beta", "eps"))

    def run(x: Array) -> Array:
        below = (np.expm1(np.minimum(x, eps)) - x) * (beta + n) + beta * x
        return np.asarray(np.where(x > 0, a * x * x + beta * x, below))

    return Change(node, run)


skipped("n3-sparsity-absent", "every gate kept", "ffn_gate_sparse", op="sparse_gate")
at("n3-laurel-absent", "attention alone", passed_through, op="add", roles="attn_laurel_sum")
at("n3-laurel-absent", "the norm without the low-rank part", lambda c, n: Change(n, lambda low, norm: norm),
   op="add", roles="laurel_out")  # fmt: skip
at("n3-laurel-absent", "the low-rank part without the norm", passed_through, op="add", roles="laurel_out")


@plant("n3-laurel-absent", "attention alone, not divided by sqrt(2)", op=("add", "scale"))
def whole_branch(c: Context, node: Node, p: float) -> Change | None:
    return passed_through(c, node) if role(node) in ("attn_laurel_sum", "attn_laurel") else None
