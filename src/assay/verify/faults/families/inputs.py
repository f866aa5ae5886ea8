"""Edits of embedding, norms, and the projections to q, k and v."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from assay.engines.reference.functions import (
    linear,
    rms_norm,
)
from assay.graph import Node, Trait
from assay.verify.faults.families.edits import another, at, attributes, passed_through, row, skipped
from assay.verify.faults.fault import Array, Change, Context, plant, role, sibling, standard
from assay.verify.faults.rotary import is_rotation

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
        "pos-embd-offset", label,
        lambda c, n: Change(n, lambda pos, W: np.asarray(W[np.clip(pos + shift, 0, W.shape[0] - 1)])), roles="pos_embd",
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

    def run(x: Array, w: Array, *b: Array) -> Array:
        rows = [v.reshape(x.shape[1:]) if v.size == x[0].size else v for v in b]  # each head may have its own bias
        return np.asarray(sum(rows, rms_norm(x, w, **attrs)))

    return Change(node, run)


at("norm-rms-for-layernorm", "the mean not subtracted", _uncentred, op="layer_norm")
at(
    "norm-bias-missing", "no bias in the norm", lambda c, n: Change(replace(n, weights=n.weights[:1])),
    op="layer_norm", when=lambda c, n: len(n.weights) == 2,
)  # fmt: skip
at(
    "norm-plus1-missing", "times w - 1", lambda c, n: Change(n, lambda x, w: standard(n)(x, w - 1)),
    op="rms_norm", weighted=True,
)  # fmt: skip
at(
    "norm-plus1-double", "times 1 + w, q and k too", lambda c, n: Change(n, lambda x, w: standard(n)(x, w + 1)),
    op="rms_norm", weighted=True,
)  # fmt: skip


_POST_NORMS = ("attn_post_norm", "ffn_post_norm")
_READS_THE_STREAM = {  # products that read the residual stream, and the norm that follows their part of the layer
    "Qcur_proj": "attn_post_norm",
    "Kcur_proj": "attn_post_norm",
    "Vcur": "attn_post_norm",
    "ffn_up": "ffn_post_norm",
    "ffn_gate": "ffn_post_norm",
}


@plant("norm-position", "norms before the parts instead of after", roles=(*_POST_NORMS, *_READS_THE_STREAM))
def before(c: Context, node: Node, p: float) -> Change | None:
    """In a model that norms each part's result: the part reads the normed stream, and its result is not normed."""
    if role(node) in _POST_NORMS:
        return passed_through(c, node)
    norm = sibling(c, node, _READS_THE_STREAM[role(node)])
    if not node.has(Trait.PRODUCT) or norm is None or sibling(c, node, "attn_norm") is not None:
        return None
    own = standard(norm)
    return Change(replace(node, weights=(*node.weights, *norm.weights)), lambda x, W, *w: linear(own(x, *w), W))


@plant("norm-position", "the sum added after the norm: x + norm(f(x)) for norm(x + f(x))", op="layer_norm")
def after_norm(c: Context, node: Node, p: float) -> Change | None:
    source = c.model.graph.by_name.get(node.inputs[0])
    if source is None or role(source) not in ("attn_res", "ffn_res"):
        return None
    own = standard(node)
    return Change(replace(node, inputs=source.inputs), lambda part, x, *w: own(part, *w) + x)


# -- q, k, v -------------------------------------------------------------------------------------------------------

NORMED = ("Qcur_normed", "Kcur_normed", "Qcur_norm", "Kcur_norm")  # the last two after the rotation
BIASES = ("bias", "expert_bias")


_FFN_BIASES = ("ffn_up_b", "ffn_gate_b", "ffn_out")
_ROUTER_BIASES = ("ffn_moe_probs", "ffn_moe_logits_biased")


def _in_the_feed_forward(c: Context, node: Node) -> bool:
    """Every bias of experts, and those of a dense feed-forward."""
    return node.has(Trait.TABLE) or role(node) in _FFN_BIASES


skipped("qkv-bias-missing", "no bias on the fused product", "wqkv_b", op=BIASES)
skipped("bias-missing", "no bias after attention", "attn_out", op=BIASES)
at("bias-missing", "no bias in the feed-forward", passed_through, op=BIASES, when=_in_the_feed_forward)
skipped("bias-missing", "no bias on the router", *_ROUTER_BIASES, op=BIASES)
skipped("clamp-missing", "q, k and v not clamped", "wqkv_clamped", op="clamp")
skipped("qknorm-missing", "no norm of q and k", *NORMED)


@plant(
    "qknorm-missing", "q and k normed in the layers without rotation as well", op=("pos_scale", "cache"),
    when=lambda c, node: not node.has(Trait.CACHES) or role(node) == "cache_k",
)  # fmt: skip
def normed_everywhere(c: Context, node: Node, p: float) -> Change | None:
    one = row(c, node)
    source = another(c, node, lambda r: r.rope is not None, "Qcur_normed")
    if one is None or one.rope is not None or source is None or source.weights or not source.has(Trait.NORM):
        return None
    eps = source.attr("eps")
    if node.has(Trait.CACHES):
        return Change(node, lambda x: rms_norm(x.reshape(len(x), one.n_head_kv, -1), eps=eps, n_head=0))
    own = standard(node)
    return Change(node, lambda x, pos: own(rms_norm(x, eps=eps, n_head=one.n_head), pos))


def _whole_width(c: Context, node: Node) -> Change | None:
    """One rms over all heads, where each has its own; or one for each head, where there is one for all."""
    one = row(c, node)
    if one is None:
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


at(
    "qknorm-across-heads", "one rms over all heads, or the reverse", _whole_width,
    op="rms_norm", roles=NORMED, weighted=True,
)  # fmt: skip


def _norm_and_turn(c: Context, node: Node) -> Change | None:
    """The second node of norm and rotation computes both in the other order, from the input of the first."""
    source = c.model.graph.by_name.get(node.inputs[0])
    turns = node.has(Trait.POSITIONAL)
    if source is None or not (source.has(Trait.NORM) if turns else is_rotation(source)):
        return None
    first, second, n = standard(node), standard(source), len(source.weights)
    n_head = (node if turns else source).attr("n_head")

    def run(x: Array, pos: Array, *w: Array) -> Array:
        mine, theirs = w[n:], w[:n]
        if turns:
            y = first(x, pos, *mine).reshape(len(x), -1)
            return np.asarray(second(y, *theirs).reshape(len(x), n_head, -1))
        return np.asarray(second(first(x, *mine), pos, *theirs).reshape(len(x), n_head, -1))

    inputs = (source.inputs[0], "inp_pos")
    return Change(replace(node, inputs=inputs, weights=(*source.weights, *node.weights)), run)


at(
    "qknorm-order", "norm and rotation exchanged", _norm_and_turn,
    op=("rope", "rms_norm", "layer_norm"), roles=(*NORMED, "Qcur", "Kcur"),
)  # fmt: skip

_PLACES = {"Qcur_normed": "Qcur", "Kcur_normed": "Kcur", "Qcur": "Qcur_normed", "Kcur": "Kcur_normed"}


@plant("qknorm-order", "norm and rotation exchanged, each under its own name", op=("rms_norm", "rope", "kq", "cache"))
def own_names(c: Context, node: Node, p: float) -> Change | None:
    """`Qcur_normed` holds norm(rope(q)), `Qcur` holds rope(q), and scores read `Qcur_normed`; the keys likewise."""
    query, key = sibling(c, node, "Qcur_normed"), sibling(c, node, "Kcur_normed")
    if query is None or key is None or not query.has(Trait.NORM) or not key.has(Trait.NORM):
        return None
    turns = {"Qcur": sibling(c, node, "Qcur"), "Kcur": sibling(c, node, "Kcur")}
    if any(turn is None or not is_rotation(turn) or turn.weights for turn in turns.values()):
        return None
    if node.op == "kq":
        return _scored(node, turns["Qcur"], query)
    if node.op == "cache":
        turned = turns["Kcur"]
        found = turned is not None and node.inputs == (turned.name,)
        return Change(replace(node, inputs=(key.name,))) if found else None
    if role(node) not in _PLACES:
        return None
    other = sibling(c, node, _PLACES[role(node)])
    norm, turn = (node, other) if node.has(Trait.NORM) else (other, node)
    if norm is None or turn is None:
        return None
    source, turned_by, normed_by = norm.inputs[0], standard(turn), standard(norm)
    if node.has(Trait.NORM):
        return Change(
            replace(node, inputs=(source, "inp_pos")),
            lambda x, pos, *w: normed_by(turned_by(x, pos), *w).reshape(x.shape),
        )
    return Change(replace(node, inputs=(source, "inp_pos"), weights=()), turned_by)


def _scored(node: Node, turn: Node | None, query: Node) -> Change | None:
    """Scores that read the norm in the place of the rotation."""
    if turn is None or node.inputs[0] != turn.name:
        return None
    n_head, own = turn.attr("n_head"), standard(node)
    return Change(
        replace(node, inputs=(query.name, *node.inputs[1:])), lambda q, k: own(q.reshape(len(q), n_head, -1), k)
    )
