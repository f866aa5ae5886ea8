"""Noise formulas of single operations: the sum of squared terms, from which rounding noise is estimated (`noise.py`).

For most operations that sum is the operation on squared operands, and `noise.py` computes it so. A difference of
operands, or a state that decays, needs a formula, which is here. Touch this module when a new operation subtracts
operands or keeps a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from assay.engines.contract import Array
from assay.engines.reference.recurrent_functions import delta_rule, ssm_scan, wkv6, wkv7
from assay.engines.reference.vision_functions import mean_rows, mix_rows
from assay.graph import Node


def _lerp(node: Node, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
    """a + (b - a) m: the terms a, b m and a m."""
    a, b = inputs[:2]
    m = inputs[2] if len(inputs) > 2 else np.asarray(weights[0]).reshape(-1, a[0].size)[node.attr("row")]
    return np.asarray(a * a + (a * a + b * b) * np.square(m).reshape(-1, *a.shape[1:]))


def _add_gain(node: Node, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
    a, x = (v.reshape(len(v), node.attr("n_head"), -1) for v in inputs)
    squares = a * a + np.square(np.asarray(weights[0]).reshape(-1, 1) * x)
    return np.asarray(squares.reshape(len(a), -1))


def _head_bonus(node: Node, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
    x, r, k, v = (z.reshape(len(z), node.attr("n_head"), -1) for z in inputs)
    total = np.sum(np.square(r * k * np.asarray(weights[0]).reshape(node.attr("n_head"), -1)), -1, keepdims=True)
    return np.asarray((x * x + total * v * v).reshape(inputs[0].shape))


def _sparse_gate(node: Node, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
    """x - mean - factor * std: three terms."""
    x = inputs[0]
    cut = np.square(x.mean(-1, keepdims=True)) + np.square(node.attr("factor") * x.std(-1, ddof=1, keepdims=True))
    return np.asarray(x * x + cut)


def _wkv6(node: Node, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
    r, w, k, v = (x * x for x in inputs)
    u, state = np.square(np.asarray(weights[0])), np.zeros(node.attr("state"))
    return wkv6(r, w, k, v, u, state, n_head=node.attr("n_head"))[0]


def _add_scalar(node: Node, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
    return np.asarray(inputs[0] ** 2 + node.attr("value") ** 2)


def _mean_rows(node: Node, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
    x, idx = inputs
    return np.asarray(mean_rows(x * x, idx) / idx.shape[1])


def _mix_rows(node: Node, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
    idx, shares = inputs
    return mix_rows(idx, shares * shares, np.square(weights[0]))


class _History:
    """The squares of a state's elements, and of the rounding errors that it has gathered and not yet forgotten."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.gathered = np.zeros(shape)

    def step(self, state: Array, decay: Array) -> Array:
        """The squared terms of a sum over the state's elements, after the state was decayed and written."""
        self.gathered = decay * decay * self.gathered + state * state
        return self.gathered


def _delta_histories(node: Node, inputs: Sequence[Array], weights: Sequence[Array]) -> Iterator[Array]:
    n_head, shape = node.attr("n_head"), node.attr("state")
    q, k, v, g, beta = inputs
    history, state = _History(shape), np.zeros(shape)
    decay = np.exp(g.reshape(len(v), n_head, 1, -1))
    attrs = {"n_head": n_head, "n_head_k": node.attr("n_head_k"), "scale": node.attr("scale")}
    for t in range(len(v)):
        _, state = delta_rule(q[t : t + 1], k[t : t + 1], v[t : t + 1], g[t : t + 1], beta[t : t + 1], state, **attrs)
        yield history.step(state, decay[t])


def _delta_rule(node: Node, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
    n_head, scale = node.attr("n_head"), node.attr("scale")
    q, tokens = inputs[0], len(inputs[2])
    keys = np.tile(q.reshape(tokens, node.attr("n_head_k"), -1), (1, n_head // node.attr("n_head_k"), 1))
    found = [
        scale**2 * np.einsum("hji,hi->hj", gathered, keys[t] ** 2)
        for t, gathered in enumerate(_delta_histories(node, inputs, weights))
    ]
    return np.stack(found)


def _scan_histories(node: Node, inputs: Sequence[Array], weights: Sequence[Array]) -> Iterator[Array]:
    n_head, n_group = node.attr("n_head"), node.attr("n_group")
    x, dt, b, c = inputs
    width, n = x[0].size // n_head, b[0].size // n_group
    history, state = _History((n_head, width, n)), np.zeros((n_head, width, n))
    decay = np.exp(dt.reshape(len(x), n_head, 1, 1) * np.asarray(weights[0]).reshape(n_head, 1, -1))
    for t in range(len(x)):
        rows = (x[t : t + 1], dt[t : t + 1], b[t : t + 1], c[t : t + 1])
        _, state = ssm_scan(*rows, np.asarray(weights[0]), state, n_head=n_head, n_group=n_group)
        yield history.step(state, decay[t])


def _ssm_scan(node: Node, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
    n_head, n_group, c = node.attr("n_head"), node.attr("n_group"), inputs[3]
    out = np.repeat(c.reshape(len(c), n_group, -1), n_head // n_group, axis=1)
    histories = enumerate(_scan_histories(node, inputs, weights))
    return np.stack([np.einsum("hpn,hn->hp", gathered, out[t] ** 2) for t, gathered in histories])


def _wkv6_histories(node: Node, inputs: Sequence[Array], weights: Sequence[Array]) -> Iterator[Array]:
    n_head, shape = node.attr("n_head"), node.attr("state")
    history, state = _History(shape), np.zeros(shape)
    w = inputs[1].reshape(len(inputs[1]), n_head, -1)
    for t in range(len(w)):
        r, decay, k, v = (z[t : t + 1] for z in inputs)
        _, state = wkv6(r, decay, k, v, np.asarray(weights[0]), state, n_head=n_head)
        yield history.step(state, w[t][:, :, None])


def _wkv7_histories(node: Node, inputs: Sequence[Array], weights: Sequence[Array]) -> Iterator[Array]:
    n_head, shape = node.attr("n_head"), node.attr("state")
    history, state = _History(shape), np.zeros(shape)
    w = inputs[1].reshape(len(inputs[1]), n_head, -1)
    for t in range(len(w)):
        one, two, three, four, five, six = (z[t : t + 1] for z in inputs)
        _, state = wkv7(one, two, three, four, five, six, state, n_head=n_head)
        yield history.step(state, w[t][:, None, :])


def _wkv7(node: Node, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
    r = inputs[0].reshape(len(inputs[0]), node.attr("n_head"), -1)
    histories = enumerate(_wkv7_histories(node, inputs, weights))
    return np.stack([np.einsum("hij,hj->hi", gathered, r[t] ** 2) for t, gathered in histories])


_HISTORIES: dict[str, Callable[[Node, Sequence[Array], Sequence[Array]], Iterator[Array]]] = {
    "delta_rule": _delta_histories,
    "ssm_scan": _scan_histories,
    "wkv6": _wkv6_histories,
    "wkv7": _wkv7_histories,
}


def state_squares(node: Node, inputs: Sequence[Array], weights: Sequence[Array], at: Sequence[int]) -> Array | None:
    """The squares of a state's gathered roundings after the tokens `at`; None for windows, which are copies."""
    if node.op not in _HISTORIES:
        return None
    wanted = set(map(int, at))
    found = [
        gathered.reshape(node.attr("state"))
        for t, gathered in enumerate(_HISTORIES[node.op](node, inputs, weights))
        if t in wanted
    ]
    return np.stack(found)


def _adapter(node: Node, inputs: Sequence[Array], weights: Sequence[Array]) -> Array:
    """a, and the terms of both products of s factor B (A x). The terms of A x reach every value through B."""
    a, x, *given = inputs
    (A, B), rows = weights, x.reshape(len(x), -1)
    scale = given[0].reshape(-1, 1) if given else node.attr("scale")
    terms = ((rows @ A.T) ** 2 + rows**2 @ (A**2).T) @ (B**2).T
    return np.asarray(a**2 + ((scale * node.attr("factor")) ** 2 * terms).reshape(a.shape))


OWN_TERMS: dict[str, Callable[[Node, Sequence[Array], Sequence[Array]], Array]] = {
    "add_adapter": _adapter,
    "lerp": _lerp,
    "lerp_row": _lerp,
    "add_gain": _add_gain,
    "head_bonus": _head_bonus,
    "sparse_gate": _sparse_gate,
    "add_scalar": _add_scalar,
    "mean_rows": _mean_rows,
    "mix_rows": _mix_rows,
    "wkv6": _wkv6,
    "wkv7": _wkv7,
    "delta_rule": _delta_rule,
    "ssm_scan": _ssm_scan,
}
