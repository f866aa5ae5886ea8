"""Edits of rotation, latent attention and scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from assay.engines.reference.functions import (
    alibi_slopes,
    attn_mask,
    softcap,
    softmax,
)
from assay.graph import Node, Trait, join
from assay.models.hparams import Layer
from assay.verify.faults.families.edits import another, at, attributes, is_local, row, skipped
from assay.verify.faults.fault import Array, Change, Context, layer, plant, role, sibling, standard
from assay.verify.faults.rotary import is_rotation, turned

# -- rotation ------------------------------------------------------------------------------------------------------


@plant(
    "rope-longrope-set", "the factors of the other length", op="rope", weighted=True,
    when=lambda c, node: "rope_factors_" in node.weights[0],
)  # fmt: skip
def other_factors(c: Context, node: Node, p: float) -> Change | None:
    a, b = ("long", "short") if "long" in node.weights[0] else ("short", "long")
    return Change(replace(node, weights=(node.weights[0].replace(a, b),)))


attributes("rope-longrope-set", "attn_factor forgotten", "rope", lambda c, n: {"attn_factor": 1.0})
attributes(
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
        if found is None or found.all_attrs().get("n_rot") != node.attr("n_rot"):
            return None
        return {key: found.attr(key) for key in keys}

    return attrs


_SCALING = ("freq_scale", "ext_factor", "attn_factor", "beta_fast", "beta_slow", "n_ctx_orig")
attributes("rope-per-layer-base", "the full layers' base everywhere", "rope", _rope_of(False, "base"))
attributes("rope-per-layer-base", "the local layers' base everywhere", "rope", _rope_of(True, "base"))
attributes("rope-per-layer-base", "local layers scaled as the full ones", "rope", _rope_of(False, *_SCALING))
attributes(
    "rope-per-layer-base", "base and scaling of the full layers everywhere", "rope", _rope_of(False, "base", *_SCALING)
)


def _also_turned(c: Context, node: Node) -> Change | None:
    """Queries and keys of a layer without rotation turned as those of another layer are."""
    one = row(c, node)
    key = another(c, node, lambda r: r.rope is not None, "Kcur")
    if one is None or one.rope is not None or key is None or not is_rotation(key):
        return None
    if not any(r.rope for r in c.hp.layers):
        return None
    own, heads = standard(node), (one.n_head, one.n_head_kv)

    def run(q: Array, k: Array, pos: Array, kpos: Array, *f: Array) -> Array:
        return own(turned(key, q, pos, f, n_head=heads[0]), turned(key, k, kpos, f, n_head=heads[1]))

    return Change(replace(node, inputs=(*node.inputs, "inp_pos", "inp_kpos"), weights=key.weights), run)


at("rope-nope-layer", "the layers without rotation turned as well", _also_turned, op="kq")


@plant("rope-nope-layer", "layers without rotation counted from 0", op=("rope", "kq"))
def from_zero(c: Context, node: Node, p: float) -> Change | None:
    nope = [i for i, one in enumerate(c.hp.layers) if one.rope is None]
    if not nope or len(nope) == len(c.hp.layers):
        return None
    if node.has(Trait.ATTENDS):
        return _also_turned(c, node)
    if role(node) not in ("Qcur", "Kcur") or ((layer(node) or 0) + 3) % 4 != 3:
        return None
    return Change(node, lambda x, pos, *f: x.reshape(len(x), node.attr("n_head"), -1))


# -- latent attention ----------------------------------------------------------------------------------------------


@plant("mla-rope-first", "the first values of each head turned", op=("rope", "slice"))
def first_values(c: Context, node: Node, p: float) -> Change | None:
    if node.has(Trait.POSITIONAL):
        return Change(node.with_attrs(offset=0)) if node.attr("offset") else None
    nope, turns = sibling(c, node, "q_nope"), sibling(c, node, "q_pe_proj")
    if nope is None or turns is None or role(node) not in ("q_nope", "q_pe_proj"):
        return None
    r = turns.attr("stop") - turns.attr("start")
    whole = turns.attr("stop")
    return Change(node.with_attrs(start=r, stop=whole) if role(node) == "q_nope" else node.with_attrs(start=0, stop=r))


@plant("mla-norm-width", "one rms over the latent and the rotated part", op="rms_norm", roles="kv_cmpr")
def latent_norm(c: Context, node: Node, p: float) -> Change | None:
    both = sibling(c, node, "kv_cmpr_pe")
    if both is None:
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


attributes("mla-scale", "YaRN's magnitude squared left out", "attn_softmax", _head_width("q"))
attributes("mla-scale", "1 / sqrt(kv_lora_rank + n_rot)", "attn_softmax", _head_width("Qcur"))

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

    attributes("scale-wrong-dim", label, "scale", attrs("factor"))
    attributes("scale-wrong-dim", f"{label} on the scores", "attn_softmax", attrs("scale"))


_scaled_by("the query times 1 / sqrt(n_embd / n_head)", lambda c, r: c.hp.n_embd / r.n_head)
_scaled_by("the query times 1 / sqrt(head width)", lambda c, r: r.n_embd_head)
skipped("scale-missing", "the query not scaled", "Qcur_scaled")
skipped("attn-softcap", "the scores not capped", "kq_scaled_2")
skipped("head-softcap", "the logits not capped", "result_output", op="softcap")


def _cap_first(c: Context, node: Node) -> Change | None:
    one, cap = row(c, node), node.attr("cap")
    if one is None or not one.scale_query:
        return None
    return Change(node, lambda x: softcap(x / one.scale, cap=cap) * one.scale)


at("attn-softcap", "capped before the query's scale", _cap_first, roles="kq_scaled_2")


def _inverted(c: Context, node: Node) -> dict[str, Any] | None:
    windows = [r.window for r in c.hp.layers]
    one = row(c, node)
    return {"window": 0 if one.window else max(windows)} if one and any(windows) and not all(windows) else None


attributes("swa-layers-inverted", "the window on the other layers", "attn_softmax", _inverted)
attributes(
    "swa-layers-inverted", "the window on every layer", "attn_softmax",
    lambda c, n: {"window": max(r.window for r in c.hp.layers)},
)  # fmt: skip
attributes(
    "swa-chunk", "a sliding window for chunks", "attn_softmax",
    lambda c, n: {"window": n.attr("chunk"), "chunk": 0} if n.attr("chunk") else None,
)  # fmt: skip
attributes("swa-chunk", "no chunks", "attn_softmax", lambda c, n: {"chunk": 0})
attributes(
    "causal-in-encoder",
    "a causal mask",
    "attn_softmax",
    lambda c, n: {"causal": True} if not n.attr("causal") else None,
)

at("sink-missing", "no sink", lambda c, n: Change(replace(n, weights=())), op="attn_softmax", weighted=True)
at(
    "sink-missing", "the sink scaled as the scores are",
    lambda c, n: Change(n, lambda x, pos, kpos, s: standard(n)(x, pos, kpos, s * n.attr("scale"))),
    op="attn_softmax", weighted=True,
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

    at("alibi-slopes", label, edit, op="attn_softmax")


_alibi("no bias by distance", lambda h, b: np.zeros(h))
_alibi("slopes 2^(-b j / n_head) for any number of heads", lambda h, b: 2.0 ** (-b * np.arange(1, h + 1) / h))
_alibi("slopes counted from 0", lambda h, b: 2.0 ** (-b * np.arange(h) / h))
skipped("attn-temp", "no temperature", "Qcur_attn_temp_scaled")
attributes(
    "attn-temp", "the temperature counts in whole contexts", "pos_scale", lambda c, n: {"unit": c.hp.n_ctx_train}
)


_CACHES = {"kq": "cache_k", "kqv": "cache_v"}


@plant("kv-shared-layer", "keys and values of the layer before the right one", op=_CACHES)
def wrong_source(c: Context, node: Node, p: float) -> Change | None:
    source = c.model.graph.by_name.get(node.inputs[1])
    if source is None or not source.has(Trait.CACHES) or layer(source) in (None, layer(node)):
        return None
    name, shapes = _CACHES[node.op], c.model.graph.shapes
    for i in range((layer(node) or 0) - 1, -1, -1):
        other = join(name, i)
        if other != source.name and other in c.model.graph and shapes[other] == shapes[source.name]:
            return Change(replace(node, inputs=(node.inputs[0], other)))
    return None
