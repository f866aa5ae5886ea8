"""Edits of stage `delta rule`: the gated delta rule of Qwen3-Next, Qwen3.5 and Kimi-Linear (KDA)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from assay.engines.reference.functions import linear, sigmoid, silu
from assay.graph import Node
from assay.verify.faults.families.edits import at, passed_through, skipped
from assay.verify.faults.fault import Array, Change, Context, plant, role, sibling, standard
from assay.verify.faults.recurrent.token_loops import Pair, heads

# One token of every head. S [H, value, key]; q, k [H, key]; v [H, value]; decay [H, 1 or key]; beta [H, 1].
Token = Callable[[Array, Array, Array, Array, Array, Array], Pair]
LENGTHS = ("q_conv_predelta", "k_conv_predelta", "q_conv_normed", "k_conv_normed")  # the L2 norms of queries and keys
KEY_LENGTHS = ("k_conv_predelta", "k_conv_normed")
DECAYS = ("gate", "kda_g1")
NORMS = ("attn_output_normed", "kda_normed")
GATED = ("final_output", "kda_gated")


def read(S: Array, x: Array) -> Array:
    """Σ_i S_ji x_i of every head."""
    return np.asarray(np.einsum("hji,hi->hj", S, x))


def write(S: Array, d: Array, k: Array) -> Array:
    return np.asarray(S + d[:, :, None] * k[:, None, :])


def _loop(node: Node, token: Token, q: Array, k: Array, v: Array, g: Array, beta: Array, S: Array) -> Pair:
    """The recurrence with another rule for a token."""
    n_head, n_head_k = node.attr("n_head"), node.attr("n_head_k")
    q, k = (np.tile(heads(x, n_head_k), (1, n_head // n_head_k, 1)) for x in (q, k))
    v, decay, beta = heads(v, n_head), np.exp(heads(g, n_head)), beta.reshape(len(v), n_head, 1)
    y = np.empty_like(v)
    for t in range(len(v)):
        y[t], S = token(S, q[t] * node.attr("scale"), k[t], v[t], decay[t], beta[t])
    return y, S


def _rule(fault: str, label: str, token: Token, **where: Any) -> None:
    at(
        fault, label, lambda c, n: Change(n, lambda q, k, v, g, b, S: _loop(n, token, q, k, v, g, b, S)),
        op="delta_rule", **where,
    )  # fmt: skip


def _decayed(S: Array, decay: Array) -> Array:
    return S * decay[:, None, :]


def _beta_on_value(S: Array, q: Array, k: Array, v: Array, decay: Array, beta: Array) -> Pair:
    S = _decayed(S, decay)
    S = write(S, beta * v - read(S, k), k)
    return read(S, q), S


def _beta_on_found(S: Array, q: Array, k: Array, v: Array, decay: Array, beta: Array) -> Pair:
    S = _decayed(S, decay)
    S = write(S, v - beta * read(S, k), k)
    return read(S, q), S


def _late(read_first: bool, found_first: bool) -> Token:
    """The decay after the write; the output is read before it or after it, what is taken away likewise."""

    def token(S: Array, q: Array, k: Array, v: Array, decay: Array, beta: Array) -> Pair:
        found = read(S if found_first else _decayed(S, decay), k)
        S = write(S, beta * (v - found), k)
        y = read(S, q)
        S = _decayed(S, decay)
        return (y if read_first else read(S, q)), S

    return token


def _stale(S: Array, q: Array, k: Array, v: Array, decay: Array, beta: Array) -> Pair:
    found = read(S, k)
    S = write(_decayed(S, decay), beta * (v - found), k)
    return read(S, q), S


def _no_delta(S: Array, q: Array, k: Array, v: Array, decay: Array, beta: Array) -> Pair:
    S = write(_decayed(S, decay), beta * v, k)
    return read(S, q), S


def _early(decayed: bool) -> Token:
    def token(S: Array, q: Array, k: Array, v: Array, decay: Array, beta: Array) -> Pair:
        before, S = S, _decayed(S, decay)
        y = read(S if decayed else before, q)
        return y, write(S, beta * (v - read(S, k)), k)

    return token


def _transposed(found_too: bool) -> Token:
    def token(S: Array, q: Array, k: Array, v: Array, decay: Array, beta: Array) -> Pair:
        S = _decayed(S, decay)
        found = read(S.swapaxes(1, 2) if found_too else S, k)
        S = write(S, beta * (v - found), k)
        return read(S.swapaxes(1, 2), q), S

    return token


def _square(c: Context, node: Node) -> bool:
    shape = node.attr("state")
    return bool(shape[1] == shape[2])


_rule("gdn-beta-key-only", "beta on v alone", _beta_on_value)
_rule("gdn-beta-key-only", "beta on what is taken away alone", _beta_on_found)
_rule("gdn-decay-late", "decay after the write", _late(read_first=False, found_first=True))
_rule("gdn-decay-late", "decay after write and read", _late(read_first=True, found_first=True))
_rule("gdn-decay-late", "the written part decays too", _late(read_first=False, found_first=False))
_rule("gdn-delta-stale", "what is taken away is read before the decay", _stale)
_rule("gdn-no-delta", "nothing taken away", _no_delta)
_rule("gdn-read-early", "read before the write", _early(True))
_rule("gdn-read-early", "read before decay and write", _early(False))
_rule("gdn-state-transposed", "the output read along the value axis", _transposed(False), when=_square)
_rule("gdn-state-transposed", "output and key read along the value axis", _transposed(True), when=_square)


def _operands(fault: str, label: str, change: Callable[[Node, list[Array]], list[Array]], **where: Any) -> None:
    """The right recurrence on changed operands [q, k, v, g, beta]."""

    def edit(c: Context, node: Node) -> Change:
        own = standard(node)
        return Change(node, lambda *operands: own(*change(node, list(operands[:5])), operands[5]))

    at(fault, label, edit, op="delta_rule", **where)


def _with_decay(formula: Callable[[Node, Array], Array]) -> Callable[[Node, list[Array]], list[Array]]:
    return lambda n, x: [*x[:3], formula(n, x[3]), x[4]]


def by_channel(c: Context, node: Node) -> bool:
    """Does the decay differ by key channel (KDA)?"""
    shape = c.model.graph.shapes[node.inputs[3]]
    return bool(np.prod([int(d) for d in shape[1:]]) > node.attr("n_head"))


def _mean_decay(node: Node, g: Array) -> Array:
    by_head = heads(g, node.attr("n_head"))
    return np.broadcast_to(by_head.mean(-1, keepdims=True), by_head.shape)


def _first_decay(node: Node, g: Array) -> Array:
    by_head = heads(g, node.attr("n_head"))
    return np.broadcast_to(by_head[..., :1], by_head.shape)


def _value_axis(S: Array, q: Array, k: Array, v: Array, decay: Array, beta: Array) -> Pair:
    S = S * decay[:, :, None]
    S = write(S, beta * (v - read(S, k)), k)
    return read(S, q), S


_operands("gdn-decay-sign", "exp(-g)", _with_decay(lambda n, g: -g))
_operands("gdn-decay-absent", "no decay", _with_decay(lambda n, g: np.zeros_like(g)))
_operands("gdn-k-scaled", "k times 1 / sqrt(d) in the recurrence", lambda n, x: [x[0], x[1] * n.attr("scale"), *x[2:]])
_operands("kda-scalar-decay", "the mean of a head's decays", _with_decay(_mean_decay), when=by_channel)
_operands("kda-scalar-decay", "the first of a head's decays", _with_decay(_first_decay), when=by_channel)
_rule(
    "kda-decay-axis", "decay along the value axis", _value_axis,
    when=lambda c, n: by_channel(c, n) and _square(c, n),
)  # fmt: skip
at("gdn-q-unscaled", "q not scaled", lambda c, n: Change(n.with_attrs(scale=1.0)), op="delta_rule")

# -- which key head a value head uses -------------------------------------------------------------------------------


def _shared_keys(c: Context, node: Node) -> bool:
    return bool(1 < node.attr("n_head_k") < node.attr("n_head"))


@plant("gdn-head-map", "value head h uses key head h div (D/G), not h mod G", op="delta_rule", when=_shared_keys)
def runs_for_tiles(c: Context, node: Node, p: float) -> Change | None:
    n_head, n_head_k = node.attr("n_head"), node.attr("n_head_k")
    wide = standard(node.with_attrs(n_head_k=n_head))

    def repeated(x: Array) -> Array:
        return np.repeat(heads(x, n_head_k), n_head // n_head_k, axis=1)

    return Change(node, lambda q, k, *rest: wide(repeated(q), repeated(k), *rest))


@plant("gdn-head-map", "value head h uses key head h mod G, not h div (D/G)", op="repeat_heads", roles=LENGTHS)
def tiles_for_runs(c: Context, node: Node, p: float) -> Change | None:
    groups, n_head = int(c.model.graph.shapes[node.inputs[0]][1]), node.attr("n_head")
    if groups in (1, n_head):
        return None
    return Change(node, lambda x: np.tile(x, (1, n_head // groups, 1)))


# -- lengths of queries and keys ------------------------------------------------------------------------------------


def _length(fault: str, label: str, formula: Callable[[Array, float], Array], roles: tuple[str, ...]) -> None:
    def edit(c: Context, node: Node) -> Change:
        n_head, eps = node.attr("n_head"), node.attr("eps")
        return Change(node, lambda x: formula(heads(x, n_head), eps))

    at(fault, label, edit, op="l2_norm", roles=roles)


def _unit(x: Array, eps: float) -> Array:
    return np.asarray(x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + eps))


_length("gdn-l2-absent", "q and k as they are", lambda x, eps: x, LENGTHS)
_length("gdn-l2-q-only", "k as it is", lambda x, eps: x, KEY_LENGTHS)
_length(
    "gdn-l2-mean", "x / sqrt(mean(x^2) + eps)",
    lambda x, eps: x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps), LENGTHS,
)  # fmt: skip
_length(
    "gdn-k-scaled", "k divided by sqrt(d) with its norm", lambda x, eps: _unit(x, eps) / np.sqrt(x.shape[-1]),
    KEY_LENGTHS,
)  # fmt: skip

# -- beta and decay -------------------------------------------------------------------------------------------------

skipped("gdn-beta-raw", "no sigmoid on beta", "beta_sigmoid", op="sigmoid")
at(
    "gdn-beta-double", "2 sigmoid(beta)", lambda c, n: Change(n, lambda x: 2 * sigmoid(x)),
    op="sigmoid", roles="beta_sigmoid",
)  # fmt: skip
_ALPHA_AND_BETA = {"alpha": ("ssm_alpha", "ssm_beta"), "beta": ("ssm_beta", "ssm_alpha")}


@plant("gdn-ba-swapped", "the weights of alpha and beta exchanged", op="linear", roles=_ALPHA_AND_BETA)
def exchanged_weights(c: Context, node: Node, p: float) -> Change | None:
    return Change(replace(node, weights=(node.weights[0].replace(*_ALPHA_AND_BETA[role(node)]),)))


_USES = {"alpha_biased": "beta", "beta_sigmoid": "alpha"}


@plant("gdn-ba-swapped", "alpha and beta exchanged where they are used", op=("bias", "sigmoid"), roles=_USES)
def exchanged_in_use(c: Context, node: Node, p: float) -> Change | None:
    other = sibling(c, node, _USES[role(node)])
    return None if other is None else Change(replace(node, inputs=(other.name,)))


def _other_part(c: Context, node: Node, pairs: dict[str, str]) -> Change | None:
    """The slice of the part that `pairs` names for this one, if both are as wide."""
    other = sibling(c, node, pairs[role(node)])
    if other is None or other.op != "slice" or other.inputs != node.inputs:
        return None
    start, stop = other.attr("start"), other.attr("stop")
    same = stop - start == node.attr("stop") - node.attr("start") and start != node.attr("start")
    return Change(node.with_attrs(start=start, stop=stop)) if same else None


def exchanged(fault: str, label: str, first: str, second: str) -> None:
    """Two parts of a product read in each other's place."""
    pairs = {first: second, second: first}
    at(fault, label, lambda c, n: _other_part(c, n, pairs), op="slice", roles=tuple(pairs))


exchanged("gdn-ba-swapped", "alpha and beta of each key head exchanged", "beta_heads", "alpha_heads")


def flat_parts(fault: str, label: str, *roles: str) -> None:
    """Parts that lie head by head, read as blocks over all heads one after the other."""

    def edit(c: Context, node: Node) -> Change | None:
        groups, start, stop = node.attr("n_head"), node.attr("start"), node.attr("stop")
        if groups < 2:
            return None
        return Change(node, lambda x: x[:, groups * start : groups * stop].reshape(len(x), groups, -1))

    at(fault, label, edit, op="slice", roles=roles)


flat_parts("gdn-ba-halves", "all betas, then all alphas", "beta_heads", "alpha_heads")
flat_parts("gdn-fused-flat", "all q, all k, all v, all z", "q_heads", "k_heads", "v_heads", "z_heads")
skipped("gdn-dt-bias-absent", "no dt bias", "alpha_biased", "kda_g1_biased", op="bias")
_SOFTPLUS = ("a_softplus", "kda_g1_softplus")
skipped("gdn-softplus-absent", "no softplus", *_SOFTPLUS, op="softplus")
at("gdn-softplus-exp", "exp for softplus", lambda c, n: Change(n, np.exp), op="softplus", roles=_SOFTPLUS)


def _of_decay(fault: str, label: str, formula: Callable[[Callable[..., Array], Array, Array], Array]) -> None:
    """The log decay by another formula of (its own operation, softplus, ssm_a)."""

    def edit(c: Context, node: Node) -> Change:
        own = standard(node)
        return Change(node, lambda x, a: formula(own, x, a))

    at(fault, label, edit, op=("mul_weight", "head_gain"), roles=DECAYS)


_of_decay("gdn-a-log", "-exp(ssm_a)", lambda own, x, a: own(x, -np.exp(np.asarray(a))))
_of_decay("gdn-decay-sign", "-ssm_a", lambda own, x, a: own(x, -np.asarray(a)))
_of_decay("gdn-decay-absent", "the log decay is zero", lambda own, x, a: 0 * own(x, a))

# -- the fused product ----------------------------------------------------------------------------------------------

exchanged("gdn-qk-swapped", "q and k exchanged after the convolution", "q_conv", "k_conv")
exchanged("gdn-qk-swapped", "q and k of each key head exchanged", "q_heads", "k_heads")


@plant("gdn-qk-swapped", "q and k exchanged before the convolution", op="linear", roles="linear_attn_qkv_mixed")
def before_convolution(c: Context, node: Node, p: float) -> Change | None:
    k = sibling(c, node, "k_conv")
    if k is None:
        return None
    n = k.attr("start")

    def run(x: Array, W: Array) -> Array:
        y = linear(x, W)
        return np.concatenate([y[:, n : 2 * n], y[:, :n], y[:, 2 * n :]], axis=1)

    return Change(node, run)


_Q_AND_K = {"q_proj": ("attn_q", "attn_k"), "k_proj": ("attn_k", "attn_q")}


@plant(
    "gdn-qk-swapped", "the weights of q and k exchanged", op="linear", roles=_Q_AND_K,
    when=lambda c, node: sibling(c, node, "q_conv_raw") is not None,
)  # fmt: skip
def exchanged_products(c: Context, node: Node, p: float) -> Change | None:
    return Change(replace(node, weights=(node.weights[0].replace(*_Q_AND_K[role(node)]),)))


# -- gate and norm --------------------------------------------------------------------------------------------------


@plant("gdn-z-before-norm", "the gate multiplied in before the norm", op="mul", roles=GATED)
def gate_first(c: Context, node: Node, p: float) -> Change | None:
    norm = c.model.graph.by_name.get(node.inputs[0])
    if norm is None or norm.op != "rms_norm":
        return None
    own = standard(norm)
    inputs = (norm.inputs[0], node.inputs[1])
    return Change(replace(node, inputs=inputs, weights=norm.weights), lambda y, z, w: own(y * z.reshape(y.shape), w))


def _gate_of(c: Context, gated: Node) -> tuple[str, tuple[Node, ...]] | None:
    """The value that the gate is computed from, and the steps from there: they follow the norm in the graph."""
    graph, norm = c.model.graph, gated.inputs[0]
    name, steps = gated.inputs[1], list[Node]()
    while name in graph and graph.order[name] > graph.order[norm]:
        steps.insert(0, graph[name])
        if len(graph[name].inputs) != 1:
            return None
        name = graph[name].inputs[0]
    return name, tuple(steps)


@plant("gdn-z-before-norm", "the norm is taken of the gated value", op=("mul", "rms_norm"), roles=(*GATED, *NORMS))
def gated_norm(c: Context, node: Node, p: float) -> Change | None:
    """As `gate_first`, in an engine that shows the norm of the gated value under the norm's own name."""
    if node.op == "mul":
        return passed_through(c, node)
    gated = next((n for name in GATED if (n := sibling(c, node, name))), None)
    found = None if gated is None else _gate_of(c, gated)
    if found is None:
        return None
    source, steps = found
    own, n_own = standard(node), len(node.weights)

    def run(y: Array, x: Array, *weights: Array) -> Array:
        at_step = n_own
        for step in steps:
            x = standard(step)(x, *weights[at_step : at_step + len(step.weights)])
            at_step += len(step.weights)
        return own(y * x.reshape(y.shape), *weights[:n_own])

    weights = (*node.weights, *(w for step in steps for w in step.weights))
    return Change(replace(node, inputs=(*node.inputs, source), weights=weights), run)


at("gdn-z-sigmoid", "sigmoid(z)", lambda c, n: Change(n, sigmoid), op="act", roles="z_silu")
at("gdn-z-absent", "no gate", passed_through, op="mul", roles=GATED)
at("kda-gate-silu", "silu for sigmoid", lambda c, n: Change(n, silu), op="sigmoid", roles="g2_sigmoid")
at("gdn-norm-absent", "no norm", passed_through, op="rms_norm", roles=NORMS)


def _wide_norm(c: Context, node: Node) -> Change | None:
    eps = node.attr("eps")
    if node.attr("n_head") < 2:
        return None
    return Change(node, lambda y, w: y / np.sqrt(np.mean(y * y, axis=(1, 2), keepdims=True) + eps) * w)


at("gdn-norm-wide", "one rms over all heads", _wide_norm, op="rms_norm", roles=NORMS)
at(
    "gdn-norm-plus-one", "times 1 + w", lambda c, n: Change(n, lambda y, w: standard(n)(y, 1 + np.asarray(w))),
    op="rms_norm", roles=NORMS,
)  # fmt: skip


# -- one kernel for three convolutions ------------------------------------------------------------------------------


@plant("kda-one-kernel", "q's kernel for k and v", op="causal_conv", roles=("k_conv_raw", "v_conv_raw"))
def one_kernel(c: Context, node: Node, p: float) -> Change | None:
    name = node.weights[0].replace("conv1d_k", "conv1d_q").replace("conv1d_v", "conv1d_q")
    return Change(replace(node, weights=(name,)))
