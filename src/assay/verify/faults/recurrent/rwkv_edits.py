"""Edits of stage `rwkv`: token shift, mixing, decay and the recurrences of RWKV-6 and RWKV-7."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from assay.engines.reference.recurrent_functions import wkv6
from assay.graph import Node
from assay.verify.faults.families.edits import at, attributes, passed_through
from assay.verify.faults.fault import Array, Change, Context, plant, role, sibling
from assay.verify.faults.recurrent.token_loops import Pair, call_starts, heads, in_parts

# -- token shift and mixing -----------------------------------------------------------------------------------------

at(
    "rwkv-shift-lost", "the row before a call is zero",
    lambda c, n: Change(n, in_parts(n, lambda t: call_starts(c, t), lambda row, t, x: np.zeros_like(row))),
    op="shift",
)  # fmt: skip


def _mixes_rows(c: Context, node: Node) -> bool:
    """Does it mix a row with the row before it?"""
    source = c.model.graph.by_name.get(node.inputs[1])
    return source is not None and source.op == "shift"


@plant("rwkv-shift-sign", "x - before", op=("lerp_row", "lerp"), when=_mixes_rows)
def other_sign(c: Context, node: Node, p: float) -> Change | None:
    row = node.all_attrs().get("row", 0)

    def run(x: Array, before: Array, m: Array) -> Array:
        mix = m if node.op == "lerp" else np.asarray(m).reshape(-1, x[0].size)[row]
        return np.asarray(x + (x - before) * mix.reshape(x.shape if node.op == "lerp" else x.shape[1:]))

    return Change(node, run)


_ORDER7 = {"x_r": 0, "x_w": 1, "x_k": 2, "x_v": 3, "x_a": 4, "x_g": 5}
_ORDER6 = {"mix_w": 0, "mix_k": 1, "mix_v": 2, "mix_r": 3, "mix_g": 4}


def _rows_read(label: str, op: str, order: dict[str, int]) -> None:
    """The rows of lerp_fused read in another order."""

    def edit(c: Context, node: Node) -> Change | None:
        row = order.get(role(node), node.attr("row"))
        rows = int(np.prod(c.model.graph.weights[node.weights[0]])) // int(c.model.graph.weights[node.weights[0]][-1])
        return Change(node.with_attrs(row=row)) if row != node.attr("row") and row < rows else None

    at("rwkv-mix-order", label, edit, op=op, roles=tuple(order), when=lambda c, n: "fused" in n.weights[0])


_rows_read("lerp_fused read as w, r, k, v, a, g", "lerp_row", {**_ORDER7, "x_r": 1, "x_w": 0})
_rows_read("lerp_fused read as r, k, v, w, a, g", "lerp_row", {"x_r": 0, "x_k": 1, "x_v": 2, "x_w": 3})
_rows_read("lerp_fused read as r, w, k, v, g", "add_row", {"mix_r": 0, "mix_w": 1, "mix_k": 2, "mix_v": 3, "mix_g": 4})
_rows_read("lerp_fused read as w, r, k, v, g", "add_row", {"mix_w": 0, "mix_r": 1, "mix_k": 2, "mix_v": 3, "mix_g": 4})
_rows_read("lerp_fused read as r, k, v, w, g", "add_row", {"mix_r": 0, "mix_k": 1, "mix_v": 2, "mix_w": 3, "mix_g": 4})

_EXCHANGED6 = {"x_w": "mix_r", "x_r": "mix_w"}


@plant("rwkv-mix-order", "w and r exchanged, with what is added to lerp_fused", op="lerp", roles=_EXCHANGED6)
def exchanged_mixes(c: Context, node: Node, p: float) -> Change | None:
    other = sibling(c, node, _EXCHANGED6[role(node)])
    return None if other is None else Change(replace(node, inputs=(*node.inputs[:2], other.name)))


# -- decay, values and keys -----------------------------------------------------------------------------------------

attributes(
    "rwkv-decay-plain", "exp(-sigmoid)", "scale",
    lambda c, n: {"factor": -1.0} if role(n) == "w_log" and sibling(c, n, "w_sigmoid") is not None else None,
)  # fmt: skip
at("rwkv-v-first", "v as it is", passed_through, op="lerp", roles="v")
at(
    "rwkv-l2-absent", "kk not normalised", lambda c, n: Change(n, lambda x: heads(x, n.attr("n_head"))),
    op="l2_norm", roles="kk",
)  # fmt: skip
at("rwkv-ka-absent", "k not changed by a", passed_through, op="lerp_row", roles="k")

# -- recurrences ----------------------------------------------------------------------------------------------------


def _early(decayed: bool) -> Callable[[Node], Callable[..., Pair]]:
    """RWKV-7 with the output read before the write, before the decay or after it."""

    def made(node: Node) -> Callable[..., Pair]:
        n_head = node.attr("n_head")

        def run(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> Pair:
            r, w, k, v, kk, a = (heads(x, n_head) for x in (r, w, k, v, kk, a))
            y = np.empty_like(v)
            for t in range(len(v)):
                s = -np.einsum("hij,hj->hi", S, kk[t])
                old, S = S, S * w[t][:, None, :]
                y[t] = np.einsum("hij,hj->hi", S if decayed else old, r[t])
                S = S + v[t][:, :, None] * k[t][:, None, :] + s[:, :, None] * (kk[t] * a[t])[:, None, :]
            return y, S

        return run

    return made


_READ_FIRST = {"read before decay and write": False, "read before the write": True}


def _reads_first(label: str) -> None:
    made = _early(_READ_FIRST[label])
    at("rwkv-read-early", label, lambda c, n: Change(n, made(n)), op="wkv7")


for _label in _READ_FIRST:
    _reads_first(_label)


@plant("rwkv-read-late", "read after the write, without u", op="wkv6")
def after_the_write(c: Context, node: Node, p: float) -> Change | None:
    n_head = node.attr("n_head")

    def run(r: Array, w: Array, k: Array, v: Array, u: Array, S: Array) -> Pair:
        r, w, k, v = (heads(x, n_head) for x in (r, w, k, v))
        y = np.empty_like(v)
        for t in range(len(v)):
            S = w[t][:, :, None] * S + k[t][:, :, None] * v[t][:, None, :]
            y[t] = np.einsum("hij,hi->hj", S, r[t])
        return y, S

    return Change(node, run)


at(
    "rwkv-u-absent", "no bonus u",
    lambda c, n: Change(
        n, lambda r, w, k, v, u, S: wkv6(r, w, k, v, np.zeros_like(np.asarray(u)), S, n_head=n.attr("n_head"))
    ),
    op="wkv6",
)  # fmt: skip
at("rwkv-u-absent", "u is 1", lambda c, n: Change(
    n, lambda r, w, k, v, u, S: wkv6(r, w, k, v, np.ones_like(np.asarray(u)), S, n_head=n.attr("n_head"))),
   op="wkv6")  # fmt: skip

# -- after the recurrence -------------------------------------------------------------------------------------------

at("rwkv-bonus-absent", "r k r_k v not added", passed_through, op="head_bonus", roles="wkv_bonus")
at("rwkv-gate-absent", "no gate", passed_through, op="mul", roles="wkv_gated")


def _eps(value: float) -> None:
    at(
        "rwkv-gn-eps", f"eps = {value:g}", lambda c, n: Change(n.with_attrs(eps=value)),
        op="layer_norm", roles="wkv_normed",
    )  # fmt: skip


_eps(1e-5)
_eps(64e-6)
at(
    "rwkv-rescale-absent", "results not halved", passed_through, op="scale", roles="l_out",
    when=lambda c, n: sibling(c, n, "l_out_unscaled") is not None,
)  # fmt: skip
