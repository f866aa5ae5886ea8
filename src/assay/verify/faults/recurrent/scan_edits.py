"""Edits of stage `scan`: Mamba-1 and Mamba-2, alone and in hybrids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from assay.engines.reference.functions import linear, rms_norm, sigmoid, silu
from assay.graph import Node
from assay.verify.faults.families.edits import at, passed_through, skipped
from assay.verify.faults.fault import Array, Change, Context, plant, role, sibling, standard
from assay.verify.faults.recurrent.delta_rule_edits import exchanged
from assay.verify.faults.recurrent.token_loops import Pair, heads

# One token of every head. S [H, P, N]; decay [H, 1 or N]; x [H, P]; dt [H]; B, C [H, N].
Token = Callable[[Array, Array, Array, Array, Array, Array], Pair]


def _read(S: Array, C: Array) -> Array:
    return np.asarray(np.einsum("hpn,hn->hp", S, C))


def _written(S: Array, x: Array, dt: Array, B: Array) -> Array:
    return np.asarray(S + (dt[:, None] * x)[:, :, None] * B[:, None, :])


def _loop(
    node: Node, token: Token, groups: Callable[[Array, int], Array], x: Array, dt: Array, B: Array, C: Array, A: Array,
    S: Array,
) -> Pair:  # fmt: skip
    """The scan with another rule for a token, or another group for a head."""
    n_head, n_group = node.attr("n_head"), node.attr("n_group")
    x, dt = heads(x, n_head), dt.reshape(len(x), n_head)
    B, C = (groups(heads(z, n_group), n_head) for z in (B, C))
    A = np.asarray(A).reshape(n_head, -1)
    state = S.reshape(n_head, x.shape[2], B.shape[2])
    y = np.empty_like(x)
    for t in range(len(x)):
        y[t], state = token(state, np.exp(dt[t][:, None] * A), x[t], dt[t], B[t], C[t])
    return y, state.reshape(S.shape)


def _in_runs(z: Array, n_head: int) -> Array:
    return np.repeat(z, n_head // z.shape[1], axis=1)


def _right(S: Array, decay: Array, x: Array, dt: Array, B: Array, C: Array) -> Pair:
    S = _written(decay[:, None, :] * S, x, dt, B)
    return _read(S, C), S


def _rule(fault: str, label: str, token: Token = _right, groups: Callable[[Array, int], Array] = _in_runs, **where: Any,
          ) -> None:  # fmt: skip
    at(fault, label, lambda c, n: Change(n, lambda *o: _loop(n, token, groups, *o)), op="ssm_scan", **where)


def _late(read_first: bool) -> Token:
    def token(S: Array, decay: Array, x: Array, dt: Array, B: Array, C: Array) -> Pair:
        S = _written(S, x, dt, B)
        y = _read(S, C)
        S = decay[:, None, :] * S
        return (y if read_first else _read(S, C)), S

    return token


def _early(decayed: bool) -> Token:
    def token(S: Array, decay: Array, x: Array, dt: Array, B: Array, C: Array) -> Pair:
        before, S = S, decay[:, None, :] * S
        return _read(S if decayed else before, C), _written(S, x, dt, B)

    return token


def _plain_x(S: Array, decay: Array, x: Array, dt: Array, B: Array, C: Array) -> Pair:
    return _right(S, decay, x, np.ones_like(dt), B, C)


def _grouped(c: Context, node: Node) -> bool:
    return bool(node.attr("n_group") > 1)


def _runs(c: Context, node: Node) -> bool:
    return bool(1 < node.attr("n_group") < node.attr("n_head"))


_rule("ssm-dt-x-absent", "x not multiplied by dt", _plain_x)
_rule("ssm-decay-late", "decay after the write", _late(read_first=False))
_rule("ssm-decay-late", "decay after write and read", _late(read_first=True))
_rule("ssm-read-early", "read before the write", _early(True))
_rule("ssm-read-early", "read before decay and write", _early(False))
_rule("ssm-group-ignored", "every head uses group 0", groups=lambda z, h: np.repeat(z[:, :1], h, axis=1), when=_grouped)
_rule(
    "ssm-group-tile", "head h uses group h mod G", groups=lambda z, h: np.tile(z, (1, h // z.shape[1], 1)), when=_runs,
)  # fmt: skip


def _of_a(fault: str, label: str, formula: Callable[[Array], Array]) -> None:
    def edit(c: Context, node: Node) -> Change:
        own = standard(node)
        return Change(node, lambda x, dt, B, C, A, S: own(x, dt, B, C, formula(np.asarray(A)), S))

    at(fault, label, edit, op="ssm_scan")


_of_a("ssm-a-log", "-exp(ssm_a)", lambda A: -np.exp(A))
_of_a("ssm-decay-sign", "exp(-dt A)", lambda A: -A)

# -- dt, B and C ----------------------------------------------------------------------------------------------------

skipped("ssm-dt-bias-absent", "no dt bias", "dt", op="bias")
skipped("ssm-softplus-absent", "no softplus", "dt_softplus", op="softplus")
at("ssm-softplus-exp", "exp for softplus", lambda c, n: Change(n, np.exp), op="softplus", roles="dt_softplus")
skipped("ssm-dbc-norm-absent", "dt, B and C not normed", "dt_normed", "B_normed", "C_normed", op="rms_norm")
exchanged("ssm-bc-swapped", "B and C exchanged", "B", "C")
exchanged("ssm-zx-swapped", "x and z exchanged", "x_ssm", "z")


def _blocks(label: str, fault: str, order: Callable[[int, int], tuple[slice, ...]]) -> None:
    """Mamba-2's product x | B | C before the convolution, in another order: `order(P, G N)` of the blocks."""

    @plant(fault, label, op="slice", roles="xBC")
    def edit(c: Context, node: Node, p: float) -> Change | None:
        inner, own = sibling(c, node, "z"), standard(node)
        if inner is None:
            return None
        width = inner.attr("stop") - inner.attr("start")
        gn = (node.attr("stop") - node.attr("start") - width) // 2
        parts = order(width, gn)
        return Change(node, lambda x: np.concatenate([own(x)[:, part] for part in parts], axis=1))


_blocks(
    "B and C exchanged before the convolution", "ssm-bc-swapped",
    lambda p, gn: (slice(0, p), slice(p + gn, p + 2 * gn), slice(p, p + gn)),
)  # fmt: skip


@plant("ssm-zx-swapped", "x and z exchanged before the convolution", op="slice", roles=("xBC", "z"))
def gate_for_input(c: Context, node: Node, p: float) -> Change | None:
    gate, mixed = sibling(c, node, "z"), sibling(c, node, "xBC")
    if gate is None or mixed is None:
        return None
    width = gate.attr("stop") - gate.attr("start")
    if node.name == gate.name:
        return Change(node.with_attrs(start=mixed.attr("start"), stop=mixed.attr("start") + width))
    own = standard(node)
    return Change(node, lambda x: np.concatenate([x[:, :width], own(x)[:, width:]], axis=1))


# -- skip, gate and norm --------------------------------------------------------------------------------------------

_SKIP = "mamba2_y_add_d"
at("ssm-d-absent", "no D x", lambda c, n: Change(n, lambda y, x, d: y.reshape(len(y), -1)), op="add_gain", roles=_SKIP)
at("ssm-z-absent", "no gate", lambda c, n: Change(n, lambda z, y: y.reshape(z.shape)), op="glu", roles="y_gated")
at(
    "ssm-z-sigmoid", "sigmoid(z)", lambda c, n: Change(n, lambda z, y: sigmoid(z) * y.reshape(z.shape)),
    op="glu", roles="y_gated",
)  # fmt: skip
at("ssm-norm-absent", "no norm", passed_through, op="rms_norm", roles="y_normed")


@plant("ssm-z-after-norm", "norm first, gate after", op="rms_norm", roles="y_normed")
def gate_last(c: Context, node: Node, p: float) -> Change | None:
    gated = c.model.graph.by_name.get(node.inputs[0])
    if gated is None or gated.op != "glu":
        return None
    own = standard(node)
    return Change(replace(node, inputs=gated.inputs), lambda z, y, w: own(y, w) * silu(z).reshape(y.shape))


@plant("ssm-norm-wide", "one rms over the whole width", op="rms_norm", roles="y_normed")
def wide_norm(c: Context, node: Node, p: float) -> Change | None:
    eps = node.attr("eps")
    if node.attr("n_head") < 2:
        return None
    return Change(node, lambda y, w: rms_norm(y, np.asarray(w).reshape(-1), eps=eps, n_head=0))


# -- beside attention -----------------------------------------------------------------------------------------------


def _serial(label: str, source: Callable[[Callable[..., Array], Array, Array, tuple[Array, ...]], Array]) -> None:
    """Falcon-H1's scan reads something else than the layer's norm: `source(norm, stream, attention, weights)`."""

    @plant("falcon-serial", label, op="linear", roles="zxBCdt")
    def edit(c: Context, node: Node, p: float) -> Change | None:
        norm, attn = sibling(c, node, "attn_norm"), sibling(c, node, "attn_out")
        if norm is None or attn is None or sibling(c, node, "layer_out") is None:
            return None
        own = standard(norm)
        return Change(
            replace(node, inputs=(norm.inputs[0], attn.name), weights=(*node.weights, *norm.weights)),
            lambda x, a, W, *w: linear(source(own, x, a, w), W),
        )


_serial("the scan reads the norm of the stream with attention", lambda norm, x, a, w: norm(x + a, *w))
_serial("the scan reads attention's result", lambda norm, x, a, w: a)
_serial("the scan reads the norm of attention's result", lambda norm, x, a, w: norm(a, *w))


@plant("falcon-serial", "the scan reads attention's result, which is not added", op=("linear", "add"))
def attention_inside(c: Context, node: Node, p: float) -> Change | None:
    attn = sibling(c, node, "attn_out")
    if attn is None or sibling(c, node, "layer_out") is None or role(node) not in ("zxBCdt", "layer_out"):
        return None
    if node.op == "linear":
        return Change(replace(node, inputs=(attn.name,)))
    return Change(node, lambda attended, mixed: mixed)
