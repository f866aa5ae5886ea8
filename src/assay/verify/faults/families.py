"""Planting: what engine authors get wrong in the families beside Llama, in the order of the computation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from assay.engines.functions import (
    ACTIVATIONS,
    alibi_slopes,
    attn_mask,
    gather,
    linear,
    rms_norm,
    sigmoid,
    softcap,
    softmax,
)
from assay.graph import Node, join
from assay.models.hparams import Layer
from assay.verify.faults.base import Array, Change, Context, Search, layer, plant, role, sibling, standard
from assay.verify.faults.rotary import turned


def _at(
    fault: str, label: str, applies: Callable[[Node], bool], edit: Callable[[Context, Node], Change | None]
) -> None:
    """The edit at every node of which `applies` is true."""

    @plant(fault, label)
    def planted(c: Context, node: Node, p: float) -> Change | None:
        return edit(c, node) if applies(node) else None


def _skipped(fault: str, label: str, *roles: str, op: str = "") -> None:
    """A step left out: its first operand passes through."""
    _at(
        fault, label, lambda n: role(n) in roles and (not op or n.op == op),
        lambda c, n: Change(n, lambda x, *rest: x),
    )  # fmt: skip


def _attrs(fault: str, label: str, op: str, attrs: Callable[[Context, Node], dict[str, Any] | None]) -> None:
    """The node with other attributes; None where they do not apply or change nothing."""

    def edit(c: Context, node: Node) -> Change | None:
        new = attrs(c, node)
        if not new or all(node.attr(key) == value for key, value in new.items()):
            return None
        return Change(node.with_attrs(**new))

    _at(fault, label, lambda n: n.op == op, edit)


def row(c: Context, node: Node) -> Layer | None:
    """The hyper-parameters of the node's layer."""
    i = layer(node)
    return None if i is None or i >= len(c.hp.layers) else c.hp.layers[i]


def is_local(one: Layer | None) -> bool:
    return one is not None and bool(one.window or one.chunk)


def another(c: Context, node: Node, wanted: Callable[[Layer], bool], name: str) -> Node | None:
    """The first node of that role in a layer of the wanted kind, other than the node's own."""
    for i, one in enumerate(c.hp.layers):
        found = c.model.graph.by_name.get(join(name, i))
        if i != layer(node) and wanted(one) and found is not None:
            return found
    return None


# -- embedding -----------------------------------------------------------------------------------------------------

_skipped("embd-scale-missing", "the embedding not scaled", "inp_scaled", "embd", op="scale")
_attrs(
    "embd-scale-rounded", "the factor rounded to bfloat16", "scale",
    lambda c, n: {"factor": _bf16(n.attr("factor"))} if role(n) == "inp_scaled" else None,
)  # fmt: skip


def _bf16(x: float) -> float:
    bits = np.float32(x).view(np.uint32)
    return float(np.uint32((int(bits) + 0x7FFF + ((int(bits) >> 16) & 1)) & 0xFFFF0000).view(np.float32))


def _positions(label: str, shift: int) -> None:
    _at(
        "pos-embd-offset", label, lambda n: role(n) == "pos_embd",
        lambda c, n: Change(n, lambda pos, W: np.asarray(W[np.clip(pos + shift, 0, W.shape[0] - 1)])),
    )  # fmt: skip


_positions("learned positions one too far", 1)
_positions("learned positions one too early", -1)
_positions("learned positions two too far", 2)

# -- norms ---------------------------------------------------------------------------------------------------------

_skipped("postnorm-missing", "no norm after attention", "attn_post_norm", "post_attn_norm")
_skipped("postnorm-missing", "no norm after the feed-forward", "ffn_post_norm", "post_mlp_norm")
_skipped(
    "postnorm-missing", "no norm after either", "attn_post_norm", "post_attn_norm", "ffn_post_norm", "post_mlp_norm"
)
_skipped("v-norm-missing", "V as it is projected", "Vcur", op="rms_norm")


def _uncentred(c: Context, node: Node) -> Change:
    attrs = {key: node.attr(key) for key in ("eps", "n_head")}
    return Change(node, lambda x, w, *b: sum(b, rms_norm(x, w, **attrs)))


_at("norm-rms-for-layernorm", "the mean not subtracted", lambda n: n.op == "layer_norm", _uncentred)
_at(
    "norm-bias-missing", "no bias in the norm", lambda n: n.op == "layer_norm" and len(n.weights) == 2,
    lambda c, n: Change(replace(n, weights=n.weights[:1])),
)  # fmt: skip
_at(
    "norm-plus1-missing", "times w - 1", lambda n: n.op == "rms_norm" and bool(n.weights),
    lambda c, n: Change(n, lambda x, w: standard(n)(x, w - 1)),
)  # fmt: skip
_at(
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


_at("qkv-bias-missing", "no bias on the fused product", _is_bias("wqkv_b"), lambda c, n: Change(n, lambda x, b: x))
_at("bias-missing", "no bias after attention", _is_bias("attn_out"), lambda c, n: Change(n, lambda x, b: x))
_at(
    "bias-missing", "no bias in the feed-forward",
    lambda n: _is_bias("ffn_up_b", "ffn_gate_b", "ffn_out")(n) or n.op == "expert_bias",
    lambda c, n: Change(n, lambda x, *rest: x),
)  # fmt: skip
_at(
    "bias-missing", "no bias on the router", lambda n: _is_bias("ffn_moe_probs", "ffn_moe_logits_biased")(n),
    lambda c, n: Change(n, lambda x, b: x),
)  # fmt: skip
_skipped("clamp-missing", "q, k and v not clamped", "wqkv_clamped", op="clamp")
_skipped("qknorm-missing", "no norm of q and k", *NORMED)


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


_at("qknorm-across-heads", "one rms over all heads, or the reverse", lambda n: role(n) in NORMED, _whole_width)


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


_at("qknorm-order", "norm and rotation exchanged", lambda n: role(n) in (*NORMED, "Qcur", "Kcur"), _norm_and_turn)

# -- rotation ------------------------------------------------------------------------------------------------------


@plant("rope-longrope-set", "the factors of the other length")
def other_factors(c: Context, node: Node, p: float) -> Change | None:
    if node.op != "rope" or not node.weights or "rope_factors_" not in node.weights[0]:
        return None
    a, b = ("long", "short") if "long" in node.weights[0] else ("short", "long")
    return Change(replace(node, weights=(node.weights[0].replace(a, b),)))


_attrs("rope-longrope-set", "attn_factor forgotten", "rope", lambda c, n: {"attn_factor": 1.0})
_attrs(
    "rope-yarn-factor", "YaRN's magnitude left out", "rope",
    lambda c, n: {"attn_factor": n.attr("attn_factor") / (1 - 0.1 * float(np.log(n.attr("freq_scale"))))}
    if n.attr("ext_factor") else None,
)  # fmt: skip


def _rope_of(kind: bool, *keys: str) -> Callable[[Context, Node], dict[str, Any] | None]:
    """Those attributes of the rotation in layers that are local (or not)."""

    def attrs(c: Context, node: Node) -> dict[str, Any] | None:
        one = row(c, node)
        if one is None or is_local(one) == kind:
            return None
        found = another(c, node, lambda r: is_local(r) == kind and r.rope is not None, role(node))
        if found is None or found.op != "rope" or found.attr("n_rot") != node.attr("n_rot"):
            return None
        return {key: found.attr(key) for key in keys}

    return attrs


_SCALING = ("freq_scale", "ext_factor", "attn_factor", "beta_fast", "beta_slow", "n_ctx_orig")
_attrs("rope-per-layer-base", "the full layers' base everywhere", "rope", _rope_of(False, "base"))
_attrs("rope-per-layer-base", "the local layers' base everywhere", "rope", _rope_of(True, "base"))
_attrs("rope-per-layer-base", "local layers scaled as the full ones", "rope", _rope_of(False, *_SCALING))
_attrs(
    "rope-per-layer-base", "base and scaling of the full layers everywhere", "rope", _rope_of(False, "base", *_SCALING)
)


def _also_turned(c: Context, node: Node) -> Change | None:
    """Queries and keys of a layer without rotation turned as those of another layer are."""
    one = row(c, node)
    key = another(c, node, lambda r: r.rope is not None, "Kcur")
    if node.op != "kq" or one is None or one.rope is not None or key is None or key.op != "rope":
        return None
    if not any(r.rope for r in c.hp.layers):
        return None
    own, heads = standard(node), (one.n_head, one.n_head_kv)

    def run(q: Array, k: Array, pos: Array, kpos: Array, *f: Array) -> Array:
        return own(turned(key, q, pos, f, n_head=heads[0]), turned(key, k, kpos, f, n_head=heads[1]))

    return Change(replace(node, inputs=(*node.inputs, "inp_pos", "inp_kpos"), weights=key.weights), run)


_at("rope-nope-layer", "the layers without rotation turned as well", lambda n: n.op == "kq", _also_turned)


@plant("rope-nope-layer", "layers without rotation counted from 0")
def from_zero(c: Context, node: Node, p: float) -> Change | None:
    nope = [i for i, one in enumerate(c.hp.layers) if one.rope is None]
    if not nope or len(nope) == len(c.hp.layers):
        return None
    if node.op == "rope" and role(node) in ("Qcur", "Kcur") and ((layer(node) or 0) + 3) % 4 == 3:
        return Change(node, lambda x, pos, *f: x.reshape(len(x), node.attr("n_head"), -1))
    return _also_turned(c, node) if node.op == "kq" else None


# -- latent attention ----------------------------------------------------------------------------------------------


@plant("mla-rope-first", "the first values of each head turned")
def first_values(c: Context, node: Node, p: float) -> Change | None:
    if node.op == "rope" and node.attr("offset"):
        return Change(node.with_attrs(offset=0))
    nope, turns = sibling(c, node, "q_nope"), sibling(c, node, "q_pe_proj")
    if node.op != "slice" or nope is None or turns is None or role(node) not in ("q_nope", "q_pe_proj"):
        return None
    r = turns.attr("stop") - turns.attr("start")
    whole = turns.attr("stop")
    return Change(node.with_attrs(start=r, stop=whole) if role(node) == "q_nope" else node.with_attrs(start=0, stop=r))


@plant("mla-norm-width", "one rms over the latent and the rotated part")
def latent_norm(c: Context, node: Node, p: float) -> Change | None:
    both = sibling(c, node, "kv_cmpr_pe")
    if role(node) != "kv_cmpr" or node.op != "rms_norm" or both is None:
        return None
    eps = node.attr("eps")

    def run(x: Array, whole: Array, w: Array) -> Array:
        return np.asarray(x / np.sqrt(np.mean(whole * whole, axis=-1, keepdims=True) + eps) * w)

    return Change(replace(node, inputs=(*node.inputs, both.name)), run)


def _head_width(name: str) -> Callable[[Context, Node], dict[str, Any] | None]:
    """The scale 1 / sqrt(width of a head of that node), in latent attention."""

    def attrs(c: Context, node: Node) -> dict[str, Any] | None:
        one, found = row(c, node), sibling(c, node, name)
        if one is None or found is None or sibling(c, node, "kv_cmpr_pe") is None:
            return None
        shape = c.model.graph.shapes[found.name]
        width = int(shape[-1]) // (one.n_head if len(shape) == 2 else 1)
        return {"scale": width**-0.5}

    return attrs


_attrs("mla-scale", "YaRN's magnitude squared left out", "attn_softmax", _head_width("q"))
_attrs("mla-scale", "1 / sqrt(kv_lora_rank + n_rot)", "attn_softmax", _head_width("Qcur"))

# -- scores --------------------------------------------------------------------------------------------------------


def _scaled_by(label: str, width: Callable[[Context, Layer], float]) -> None:
    def attrs(key: str) -> Callable[[Context, Node], dict[str, Any] | None]:
        def found(c: Context, node: Node) -> dict[str, Any] | None:
            one = row(c, node)
            if one is None or one.scale_query != (key == "factor") or (key == "factor" and role(node) != "Qcur_scaled"):
                return None
            scale = width(c, one) ** -0.5
            return None if abs(scale / one.scale - 1) < 1e-9 else {key: scale}

        return found

    _attrs("scale-wrong-dim", label, "scale", attrs("factor"))
    _attrs("scale-wrong-dim", f"{label} on the scores", "attn_softmax", attrs("scale"))


_scaled_by("the query times 1 / sqrt(n_embd / n_head)", lambda c, r: c.hp.n_embd / r.n_head)
_scaled_by("the query times 1 / sqrt(head width)", lambda c, r: r.n_embd_head)
_skipped("scale-missing", "the query not scaled", "Qcur_scaled")
_skipped("attn-softcap", "the scores not capped", "kq_scaled_2")
_skipped("head-softcap", "the logits not capped", "result_output", op="softcap")


def _cap_first(c: Context, node: Node) -> Change | None:
    one, cap = row(c, node), node.attr("cap")
    if one is None or not one.scale_query:
        return None
    return Change(node, lambda x: softcap(x / one.scale, cap=cap) * one.scale)


_at("attn-softcap", "capped before the query's scale", lambda n: role(n) == "kq_scaled_2", _cap_first)


def _inverted(c: Context, node: Node) -> dict[str, Any] | None:
    windows = [r.window for r in c.hp.layers]
    one = row(c, node)
    return {"window": 0 if one.window else max(windows)} if one and any(windows) and not all(windows) else None


_attrs("swa-layers-inverted", "the window on the other layers", "attn_softmax", _inverted)
_attrs(
    "swa-layers-inverted", "the window on every layer", "attn_softmax",
    lambda c, n: {"window": max(r.window for r in c.hp.layers)},
)  # fmt: skip
_attrs(
    "swa-chunk", "a sliding window for chunks", "attn_softmax",
    lambda c, n: {"window": n.attr("chunk"), "chunk": 0} if n.attr("chunk") else None,
)  # fmt: skip
_attrs("swa-chunk", "no chunks", "attn_softmax", lambda c, n: {"chunk": 0})
_attrs(
    "causal-in-encoder",
    "a causal mask",
    "attn_softmax",
    lambda c, n: {"causal": True} if not n.attr("causal") else None,
)

_at(
    "sink-missing", "no sink", lambda n: n.op == "attn_softmax" and bool(n.weights),
    lambda c, n: Change(replace(n, weights=())),
)  # fmt: skip
_at(
    "sink-missing", "the sink scaled as the scores are", lambda n: n.op == "attn_softmax" and bool(n.weights),
    lambda c, n: Change(n, lambda x, pos, kpos, s: standard(n)(x, pos, kpos, s * n.attr("scale"))),
)  # fmt: skip


def _alibi(label: str, slopes: Callable[[int, float], Array]) -> None:
    def edit(c: Context, node: Node) -> Change | None:
        bias = node.attr("max_bias")
        n_head = int(c.model.graph.shapes[node.name][0])
        if not bias or np.allclose(slopes(n_head, bias), alibi_slopes(n_head, bias)):
            return None

        def run(x: Array, pos: Array, kpos: Array) -> Array:
            distance = np.abs(pos[:, None] - kpos[None, :])
            scores = x * node.attr("scale") - slopes(n_head, bias)[:, None, None] * distance
            return softmax(np.where(attn_mask(pos, kpos, node.attr("window")), -np.inf, scores))

        return Change(node, run)

    _at("alibi-slopes", label, lambda n: n.op == "attn_softmax", edit)


_alibi("no bias by distance", lambda h, b: np.zeros(h))
_alibi("slopes 2^(-b j / n_head) for any number of heads", lambda h, b: 2.0 ** (-b * np.arange(1, h + 1) / h))
_alibi("slopes counted from 0", lambda h, b: 2.0 ** (-b * np.arange(h) / h))
_skipped("attn-temp", "no temperature", "Qcur_attn_temp_scaled")
_attrs("attn-temp", "the temperature counts in whole contexts", "pos_scale", lambda c, n: {"unit": c.hp.n_ctx_train})


@plant("kv-shared-layer", "keys and values of the layer before the right one")
def wrong_source(c: Context, node: Node, p: float) -> Change | None:
    name = {"kq": "cache_k", "kqv": "cache_v"}.get(node.op, "")
    source = c.model.graph.by_name.get(node.inputs[1]) if name else None
    if source is None or source.op != "cache" or layer(source) in (None, layer(node)):
        return None
    shapes = c.model.graph.shapes
    for i in range((layer(node) or 0) - 1, -1, -1):
        other = join(name, i)
        if other != source.name and other in c.model.graph and shapes[other] == shapes[source.name]:
            return Change(replace(node, inputs=(node.inputs[0], other)))
    return None


# -- feed-forward --------------------------------------------------------------------------------------------------


def _halves_exchanged(c: Context, node: Node) -> Change:
    act = ACTIVATIONS[node.attr("act")]
    half = int(c.model.graph.shapes[node.name][-1])
    return Change(node, lambda x: act(x[..., half:]) * x[..., :half])


_at("gateup-split", "the halves exchanged: up first", lambda n: n.op == "glu_split", _halves_exchanged)


def _interleaved(c: Context, node: Node) -> Change:
    act = ACTIVATIONS[node.attr("act")]
    return Change(node, lambda x: act(x[..., ::2]) * x[..., 1::2])


_at("gateup-split", "gate and up interleaved", lambda n: n.op == "glu_split", _interleaved)


def _act(fault: str, label: str, name: str) -> None:
    """Another activation, wherever one is."""
    _attrs(fault, label, "act", lambda c, n: {"act": name})
    _attrs(fault, f"{label} in the gate", "glu", lambda c, n: {"act": name} if n.attr("act") != "silu" else None)
    _attrs(fault, f"{label} in the split gate", "glu_split", lambda c, n: {"act": name})


_act("ffn-gelu-variant", "erf-GELU for tanh-GELU", "gelu_erf")
_act("ffn-act-family", "SiLU for GELU", "silu")
_act("ffn-act-family", "ReLU for GELU", "relu")


def _oai(label: str, formula: Callable[[Array, Array, float, float], Array]) -> None:
    _at(
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

    _at(fault, label, lambda n: role(n) == "ffn_moe_weights", edit)


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


_at("moe-groups", "all groups", lambda n: n.op == "group_mask", lambda c, n: Change(n, lambda x: x))


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


_skipped("moe-routed-scale", "the experts' weights not scaled", "ffn_moe_weights_scaled")
_skipped("moe-shared-gate", "the shared expert not gated", "ffn_shexp_out", op="mul")
_at(
    "moe-shared-gate", "the gate without its sigmoid", lambda n: role(n) == "ffn_shexp_gate" and n.op == "sigmoid",
    lambda c, n: Change(n, lambda x: x),
)  # fmt: skip
_at(
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


_skipped("res-multiplier", "no factor on the change", "attn_out_scaled", "ffn_out_scaled")


@plant("res-layer-scale", "the scale on the change, not on the stream")
def scale_on_change(c: Context, node: Node, p: float) -> Change | None:
    source = c.model.graph.by_name.get(node.inputs[0]) if node.op == "mul_weight" and role(node) == "l_out" else None
    if source is None or source.op != "add":
        return None
    stream, change = source.inputs if role(source) == "pe_out" else source.inputs[::-1]
    return Change(replace(node, inputs=(stream, change)), lambda x, y, w: x + y * w)


_at(
    "res-layer-scale", "no scale", lambda n: n.op == "mul_weight" and role(n) == "l_out",
    lambda c, n: Change(n, lambda x, w: x),
)  # fmt: skip


def _is_head_scale(node: Node) -> bool:
    return node.op == "scale" and role(node) in ("result_output", "result_output_scaled")


_attrs(
    "head-logit-scale", "divided for multiplied, or the reverse", "scale",
    lambda c, n: {"factor": 1 / n.attr("factor")} if _is_head_scale(n) else None,
)  # fmt: skip
_skipped("head-logit-scale", "the logits not scaled", "result_output", "result_output_scaled", op="scale")


def _pooled(label: str, kind: str) -> None:
    _attrs("pool-kind", label, "pool", lambda c, n: {"kind": kind})


_pooled("the mean", "mean")
_pooled("the first row", "first")
_pooled("the last row", "last")


@plant("pool-kind", "{p} rows of padding pooled as well", Search(1, 512, (1, 2, 6, 22), True, True, 30))
def padded(c: Context, node: Node, p: float) -> Change | None:
    if node.op != "pool" or node.attr("kind") != "mean":
        return None
    return Change(node, lambda x: np.asarray(np.sum(x, axis=0, keepdims=True) / (len(x) + int(p))))
