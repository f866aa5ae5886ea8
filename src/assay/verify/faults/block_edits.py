"""Edits of stages `norm` to `output head`, without attention: norms, projections, feed-forward, residuals, head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from assay.engines.reference.functions import ACTIVATIONS, linear, silu
from assay.graph import Node, join
from assay.verify.faults.fault import Array, Change, Context, Search, is_output, layer, plant, role, sibling, standard

_EPS = Search(1e-12, 1e-2, (1e-6, 1e-5, 1e-8, 1e-12, 1e-4, 1e-3, 0.0), points=31)


def over_features(c: Context, node: Node) -> bool:
    """Does the norm take all features of a token together, and not each head by itself?"""
    return not node.attr("n_head")


def _norm(fault: str, label: str, formula: Callable[[Array, Array, float], Array], roles: tuple[str, ...] = ()) -> None:
    """A norm with another formula of (x, weight, eps)."""

    @plant(fault, label, op="rms_norm", roles=roles, weighted=True, when=over_features)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        eps = node.attr("eps")
        return Change(node, lambda x, w: formula(x, w, eps))


def rms(x: Array, eps: float) -> Array:
    return np.asarray(np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps))


def _other_eps(node: Node, eps: float) -> Change | None:
    return Change(node.with_attrs(eps=eps)) if eps != node.attr("eps") else None


@plant("eps-value", "eps = {p}", _EPS, op=("rms_norm", "layer_norm"), when=over_features)
def eps_value(c: Context, node: Node, p: float) -> Change | None:
    return _other_eps(node, p)


@plant("eps-floor-half", "eps = 1e-4", op="rms_norm", when=over_features)
def eps_floor(c: Context, node: Node, p: float) -> Change | None:
    return _other_eps(node, max(node.attr("eps"), 1e-4))


@plant("eps-floor-half", "eps as a half", op="rms_norm", when=over_features)
def eps_half(c: Context, node: Node, p: float) -> Change | None:
    return _other_eps(node, float(np.float16(node.attr("eps"))))


def _default_eps(value: float) -> None:
    @plant("gguf-default-hparam", f"eps = {value:g}", op="rms_norm", when=over_features)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        return _other_eps(node, value)


_default_eps(1e-5)
_default_eps(1e-6)


def _layernorm(x: Array, w: Array, eps: float) -> Array:
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return np.asarray(centred / rms(centred, eps) * w)


_norm("eps-place", "x / (sqrt(ms) + eps)", lambda x, w, eps: x / (rms(x, 0.0) + eps) * w)
_norm("norm-layernorm", "the mean subtracted", _layernorm)
_norm("norm-no-weight", "the weight left out", lambda x, w, eps: x / rms(x, eps))
_norm("norm-weight-twice", "the weight squared", lambda x, w, eps: x / rms(x, eps) * w * w)
_norm("norm-plus1-double", "times 1 + w", lambda x, w, eps: x / rms(x, eps) * (1 + w))
_norm("norm-final-offset", "the last norm times 1 + w", lambda x, w, eps: x / rms(x, eps) * (1 + w), ("result_norm",))
_norm("norm-final-offset", "the last norm times w - 1", lambda x, w, eps: x / rms(x, eps) * (w - 1), ("result_norm",))

# -- QKV ---------------------------------------------------------------------------------------------------------


@plant("qkv-bias-missing", "no bias", op="bias", when=lambda c, node: role(node)[1:4] == "cur")
def no_bias(c: Context, node: Node, p: float) -> Change | None:
    return Change(node, lambda x, b: x)


_K_AND_V = {"Kcur_proj": ("attn_k", "attn_v"), "Vcur": ("attn_v", "attn_k")}


@plant("kv-swapped", "K's and V's weights exchanged", op="linear", roles=_K_AND_V)
def kv_swapped(c: Context, node: Node, p: float) -> Change | None:
    if c.hp.n_embd_head != c.hp.n_embd_head_v:
        return None
    return Change(replace(node, weights=(node.weights[0].replace(*_K_AND_V[role(node)]),)))


@plant("v-stale-stride", "V is zero", roles="Vcur")
def v_zero(c: Context, node: Node, p: float) -> Change | None:
    own = standard(node)
    return Change(node, lambda *operands: np.zeros_like(own(*operands)))


@plant(
    "q-tail-stale", "only the first {p} of each head stored", Search(1, 512, (), False, True, 0), op="rope",
    roles="Qcur",
)  # fmt: skip
def q_tail(c: Context, node: Node, p: float) -> Change | None:
    return _tail(c, node, int(p))


@plant("q-tail-stale", "three quarters of each head left at zero", op="rope", roles="Qcur")
def q_three_quarters(c: Context, node: Node, p: float) -> Change | None:
    return _tail(c, node, c.hp.n_embd_head // 4)


def _tail(c: Context, node: Node, kept: int) -> Change:
    own = standard(node)

    def run(*operands: Array) -> Array:
        value = own(*operands).copy()
        value[..., kept:] = 0
        return value

    return Change(node, run)


@plant("head-dim-derived", "head width n_embd / n_head", op="linear", roles="Qcur_proj")
def derived_width(c: Context, node: Node, p: float) -> Change | None:
    width = c.hp.n_embd // c.hp.n_head
    if width >= c.hp.n_embd_head:
        return None
    order = (np.arange(c.hp.n_head * c.hp.n_embd_head) % (c.hp.n_head * width)).astype(np.int64)
    own = standard(node)
    return Change(node, lambda *operands: own(*operands)[:, order])


# -- ffn -----------------------------------------------------------------------------------------------------------


_GATE_AND_UP = {"ffn_gate": ("ffn_gate", "ffn_up"), "ffn_up": ("ffn_up", "ffn_gate")}


@plant("ffn-gate-up-weights", "gate's and up's weights exchanged", op="linear", roles=_GATE_AND_UP)
def gate_up_weights(c: Context, node: Node, p: float) -> Change | None:
    return Change(replace(node, weights=(node.weights[0].replace(*_GATE_AND_UP[role(node)]),)))


def _glu(fault: str, label: str, formula: Callable[[Array, Array], Array]) -> None:
    @plant(fault, label, op="glu")
    def edit(c: Context, node: Node, p: float) -> Change | None:
        return Change(node, formula)


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + e), e / (1 + e)))


def _swish_beta(g: Array, beta: float) -> Array:
    return g * sigmoid(beta * g)


_glu("ffn-silu-on-up", "silu(up) * gate", lambda g, u: silu(u) * g)
_glu("ffn-act-family", "tanh-GELU for SiLU", lambda g, u: ACTIVATIONS["gelu_tanh"](g) * u)
_glu("ffn-act-family", "ReLU for SiLU", lambda g, u: np.maximum(g, 0) * u)
_glu("ffn-act-family", "x sigmoid(1.702 x) for SiLU", lambda g, u: _swish_beta(g, 1.702) * u)
_glu("ffn-gelu-variant", "erf-GELU for SiLU", lambda g, u: ACTIVATIONS["gelu_erf"](g) * u)
_glu("ffn-sigmoid", "sigmoid(gate) * up", lambda g, u: sigmoid(g) * u)
_glu("ffn-alias", "silu(up) * up", lambda g, u: silu(u) * u)
_glu("ffn-alias", "silu(gate) * gate", lambda g, u: silu(g) * g)
_glu("ffn-alias", "silu(gate) alone", lambda g, u: silu(g))
_glu("ffn-alias", "gate * up", lambda g, u: g * u)
_glu("ffn-silu-on-up", "silu(gate * up)", lambda g, u: silu(g * u))
_glu("ffn-silu-on-up", "silu(gate) + up", lambda g, u: silu(g) + u)


_COLUMNS = Search(1, 2048, (32, 64, 128, 256, 16, 8, 512, 1), True, True, 40)


@plant("ffn-dim", "the last {p} columns dropped", _COLUMNS, op="linear", roles=("ffn_out", "ffn_down"))
def ffn_tail(c: Context, node: Node, p: float) -> Change | None:
    kept = c.hp.n_ff - int(p)
    return Change(node, lambda x, W: linear(x[:, :kept], W[:, :kept])) if kept > 0 else None


def _moe(fault: str, label: str, name: str, change: Callable[[Node, int | None], Change]) -> None:
    @plant(fault, label, roles=name)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        return change(node, layer(node))


def _softmax_rows(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


_moe("moe-no-renorm", "weights not made to sum to 1", "ffn_moe_weights_norm", lambda n, i: Change(n, lambda w, s: w))
_moe(
    "moe-topk-norm",
    "softmax once more over the chosen",
    "ffn_moe_weights_norm",
    lambda n, i: Change(n, lambda w, s: _softmax_rows(w)),
)
_moe("moe-raw-logits", "logits as weights", "ffn_moe_weights_norm", lambda n, i: Change(
    Node(n.name, "gather", (join("ffn_moe_logits", i), join("ffn_moe_topk", i)))))  # fmt: skip

# -- residual --------------------------------------------------------------------------------------------------------


STREAM = ("ffn_inp", "l_out", "sa_out")  # roles of the residual additions: operand 0 is the change, 1 is the stream


def _residual(fault: str, label: str, where: str, change: Callable[[Context, Node], Change | None]) -> None:
    @plant(fault, label, op="add", roles=where or STREAM)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        return change(c, node)


def _norm_of(node: Node) -> str:
    return join("attn_norm" if role(node) in ("ffn_inp", "sa_out") else "ffn_norm", layer(node))


def _from_norm(c: Context, node: Node) -> Change:
    return Change(replace(node, inputs=(node.inputs[0], _norm_of(node))))


def _from_bare_norm(c: Context, node: Node) -> Change:
    eps = c.hp.eps
    return Change(node, lambda a, x: a + x / rms(x, eps))


def _from_layer_input(c: Context, node: Node) -> Change | None:
    norm = sibling(c, node, "attn_norm")
    return None if norm is None else Change(replace(node, inputs=(*node.inputs[:-1], norm.inputs[0])))


_residual("res-from-norm", "the stream replaced by its norm", "ffn_inp", _from_norm)
_residual("res-from-norm", "the stream replaced by its norm, twice a layer", "", _from_norm)
_residual("res-from-norm", "the stream replaced by its norm without weight", "ffn_inp", _from_bare_norm)
_residual("norm-inplace-residual", "attn_norm written over the stream", "ffn_inp", _from_norm)
_residual("norm-inplace-residual", "both norms written over the stream", "", _from_norm)
_residual("res-missing", "attn_out alone", "ffn_inp", lambda c, n: Change(n, lambda a, x: a))
_residual("res-missing", "ffn_out alone", "l_out", lambda c, n: Change(n, lambda a, x: a))
_residual("res-missing", "attn_out not added", "ffn_inp", lambda c, n: Change(n, lambda a, x: x))
_residual("res-missing", "ffn_out not added", "l_out", lambda c, n: Change(n, lambda a, x: x))
_residual("res-missing", "the layer's input added after the feed-forward", "l_out", _from_layer_input)


_MULTIPLIER = Search(0.05, 20, (0.22, 0.5, 2.0), points=25, neutral=1.0)


@plant("res-multiplier", "the change times {p}", _MULTIPLIER, op="add", roles=STREAM)
def residual_factor(c: Context, node: Node, p: float) -> Change | None:
    return Change(node, lambda a, x: p * a + x)


@plant("res-parallel", "ffn_norm of the layer's input", roles="ffn_norm")
def parallel(c: Context, node: Node, p: float) -> Change | None:
    return _from_layer_input(c, node)


# -- head --------------------------------------------------------------------------------------------------------------


@plant("head-no-final-norm", "no last norm", roles="result_norm")
def no_final_norm(c: Context, node: Node, p: float) -> Change | None:
    return Change(node, lambda x, *w: x)


def _other_row(
    label: str,
    pick: Callable[[Context, Array, int], Array],
    where: tuple[str, ...] = ("output",),
    search: Search | None = None,
) -> None:
    """Rows of the logits that belong to other rows: `pick` gives the source of every row. With `norm` in `where`, the
    hidden state before the last norm is taken from the wrong row."""

    @plant("head-wrong-row", label, search)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        place = "output" if is_output(c, node) else "norm" if role(node) == "result_norm" else ""
        if place not in where:
            return None
        own = standard(node)
        return Change(node, lambda x, *more: own(x[pick(c, np.arange(len(x)), int(p))], *more))


def _last_shows(row: Callable[[int, int], int]) -> Callable[[Context, Array, int], Array]:
    """The prompt's last row shows row(number of rows, parameter)."""

    def pick(c: Context, rows: Array, p: int) -> Array:
        n = min((c.steps or (len(rows),))[0], len(rows))
        return np.where(rows == n - 1, np.clip(row(n, p), 0, n - 1), rows)

    return pick


def _row_before(c: Context, rows: Array, p: int) -> Array:
    return np.asarray(np.maximum(rows - 1, 0))


def _row_before_in_prompt(c: Context, rows: Array, p: int) -> Array:
    return np.where(c.decoding(len(rows)), rows, np.maximum(rows - 1, 0))


def _row_after(c: Context, rows: Array, p: int) -> Array:
    prompt = (c.steps or (len(rows),))[0]
    return np.where(rows < prompt, np.minimum(rows + 1, min(prompt, len(rows)) - 1), rows)


def _step_before(c: Context, rows: Array, p: int) -> Array:
    return np.where(c.decoding(len(rows)), rows - 1, rows)


_LATER = Search(1, 63, (), False, True, 63, nominal=True, rows=True)
for _where, _of in ((("output",), "logits are those"), (("norm",), "hidden state is that")):
    _other_row(f"the prompt's last {_of} of row 0", _last_shows(lambda n, p: 0), _where)
    _other_row(f"the prompt's last {_of} of row n - 2", _last_shows(lambda n, p: n - 2), _where)
    _other_row(f"the prompt's last {_of} of row {{p}}", _last_shows(lambda n, p: p), _where, _LATER)
    _other_row(f"every row's {_of} of the row before", _row_before, _where)
    _other_row(f"in the prompt every row's {_of} of the row before", _row_before_in_prompt, _where)
    _other_row(f"in the prompt every row's {_of} of the row after", _row_after, _where)
    _other_row(f"in decode the {_of} of the step before", _step_before, _where)


_CAP = Search(5, 100, (30.0, 50.0), points=9)
_LOGIT_FACTOR = Search(1e-2, 1e2, (0.0625, 8.0, 0.125, 16.0), points=25, neutral=1.0)


@plant("head-softcap", "logits squeezed by {p} tanh(x / {p})", _CAP, when=is_output)
def head_softcap(c: Context, node: Node, p: float) -> Change | None:
    own = standard(node)
    return Change(node, lambda *operands: p * np.tanh(own(*operands) / p))


@plant("head-logit-scale", "logits times {p}", _LOGIT_FACTOR, when=is_output)
def logit_scale(c: Context, node: Node, p: float) -> Change | None:
    own = standard(node)
    return Change(node, lambda *operands: own(*operands) * p)


def _overflow(fault: str, label: str, **where: Any) -> None:
    @plant(fault, label, **where)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)

        def run(*operands: Array) -> Array:
            value = own(*operands)
            return np.where(np.abs(value) > 65504, np.copysign(np.inf, value), value)

        return Change(node, run)


def _is_activation(c: Context, node: Node) -> bool:
    return node.op == "glu" or role(node) in ("ffn_out", "ffn_down")


_overflow("f16-act-overflow", "beyond 65504 infinite", when=_is_activation)
_overflow("f16-kq-overflow", "beyond 65504 infinite", op="kq")


# -- an overflow that leaves finite values --------------------------------------------------------------------------


def _half(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(x.dtype)


def _added_up(squares: Array) -> Array:
    """The sum, rounded to half precision after every term."""
    total = np.zeros_like(squares[..., :1])
    for i in range(squares.shape[-1]):
        total = _half(total + _half(squares[..., i : i + 1]))
    return total


# The mean square of a row with one of its steps in half precision: infinite from 65520 on.
_MEAN_SQUARES: dict[str, Callable[[Array], Array]] = {
    "each square": lambda sq: _half(sq).mean(-1, keepdims=True),
    "the sum of squares": lambda sq: _half(sq.sum(-1, keepdims=True)) / sq.shape[-1],
    "the sum of squares, rounded after each term,": lambda sq: _added_up(sq) / sq.shape[-1],
    "the mean square": lambda sq: _half(sq.mean(-1, keepdims=True)),
}


def _absorbed(what: str, mean_square: Callable[[Array], Array]) -> None:
    """The mean square of a large row is infinite, and the row divided by its root is 0. Without such a row nothing
    changes: smaller errors of half precision are `norm-half`."""

    @plant(
        "f16-act-overflow", f"{what} of a norm exceeds 65504 in half precision: the row becomes 0",
        op=("rms_norm", "layer_norm"), weighted=True, when=over_features,
    )  # fmt: skip
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own, eps = standard(node), node.attr("eps")

        def run(x: Array, w: Array, *bias: Array) -> Array:
            centred = x - x.mean(-1, keepdims=True) if node.op == "layer_norm" else x
            ms = mean_square(centred * centred)
            if np.isfinite(ms).all():
                return own(x, w, *bias)
            y = centred / np.sqrt(ms + eps) * w
            return np.asarray(y + bias[0] if bias else y)

        return Change(node, run)


for _what, _mean_square in _MEAN_SQUARES.items():
    _absorbed(_what, _mean_square)
