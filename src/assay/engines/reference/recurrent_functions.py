"""The definition of the operations that remember: one textbook function each, token by token, as in `functions.py`.

A function that keeps state takes it after its weights and returns a pair: its value and the new state.
Shapes: T tokens, H heads, G key heads or groups, N key channels or state width, K taps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _heads(x: Array, n_head: int) -> Array:
    """[T, H, D] of a value, whether its heads lie side by side or have an axis."""
    return x.reshape(x.shape[0], n_head, -1)


def causal_conv(x: Array, w: Array, window: Array) -> tuple[Array, Array]:
    """y[t,c] = Σ_k w[c,k] x[t-K+1+k, c]; the window [C, K-1] holds the rows before this step, oldest first."""
    channels, taps = window.shape[0], window.shape[1] + 1
    kernel = np.asarray(w).reshape(channels, taps)
    rows = np.concatenate([window.T, x.reshape(len(x), channels)])
    y = sum(kernel[:, k] * rows[k : k + len(x)] for k in range(taps))
    return np.asarray(y), rows[len(x) :].T.copy()


def shift(x: Array, row: Array) -> tuple[Array, Array]:
    """y[t] = x[t-1]; `row` [1, E] is the last row of the step before."""
    rows = np.concatenate([row.reshape(1, *x.shape[1:]), x])
    return rows[:-1], rows[-1].reshape(row.shape).copy()


def delta_rule(
    q: Array, k: Array, v: Array, g: Array, beta: Array, S: Array, *, n_head: int, n_head_k: int, scale: float
) -> tuple[Array, Array]:
    """The gated delta rule. Each token, for every head, with S [value j, key i]:

        S_ji ← e^{g_i} S_ji;  d_j = β (v_j - Σ_i S_ji k_i);  S_ji ← S_ji + d_j k_i;  y_j = scale · Σ_i S_ji q_i

    Value head h uses key head h mod G. g has one value a head, or one for each key channel.
    """
    tokens = len(v)
    q, k = (np.tile(_heads(x, n_head_k), (1, n_head // n_head_k, 1)) for x in (q, k))
    v, decay, beta = _heads(v, n_head), np.exp(_heads(g, n_head)), beta.reshape(tokens, n_head)
    y = np.empty_like(v)
    for t in range(tokens):
        S = S * decay[t][:, None, :]
        found = np.einsum("hji,hi->hj", S, k[t])
        d = beta[t][:, None] * (v[t] - found)
        S = S + d[:, :, None] * k[t][:, None, :]
        y[t] = scale * np.einsum("hji,hi->hj", S, q[t])
    return y, S


def ssm_scan(
    x: Array, dt: Array, B: Array, C: Array, A: Array, S: Array, *, n_head: int, n_group: int
) -> tuple[Array, Array]:
    """The scan of Mamba. Each token, for every head of width P, with S [p, n] and B, C of group h // (H/G):

        S_pn ← e^{δ_h A_hn} S_pn + δ_h x_p B_n;  y_p = Σ_n S_pn C_n

    A has one value a head (Mamba-2), or one for each n (Mamba-1, where every channel is a head of width 1).
    """
    x, dt = _heads(x, n_head), dt.reshape(len(x), n_head)
    B, C = (np.repeat(_heads(z, n_group), n_head // n_group, axis=1) for z in (B, C))
    A = np.asarray(A).reshape(n_head, -1)
    state = S.reshape(n_head, x.shape[2], B.shape[2])
    y = np.empty_like(x)
    for t in range(len(x)):
        decay = np.exp(dt[t][:, None] * A)
        state = decay[:, None, :] * state + (dt[t][:, None] * x[t])[:, :, None] * B[t][:, None, :]
        y[t] = np.einsum("hpn,hn->hp", state, C[t])
    return y, state.reshape(S.shape)


def wkv6(r: Array, w: Array, k: Array, v: Array, u: Array, S: Array, *, n_head: int) -> tuple[Array, Array]:
    """RWKV-6. Each token, for every head, with S [key i, value j]: y_j = Σ_i r_i (S_ij + u_i k_i v_j), then

    S_ij ← w_i S_ij + k_i v_j
    """
    r, w, k, v = (_heads(x, n_head) for x in (r, w, k, v))
    bonus = np.asarray(u).reshape(n_head, -1)
    y = np.empty_like(v)
    for t in range(len(v)):
        new = k[t][:, :, None] * v[t][:, None, :]
        y[t] = np.einsum("hij,hi->hj", S + bonus[:, :, None] * new, r[t])
        S = w[t][:, :, None] * S + new
    return y, S


def wkv7(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array, *, n_head: int) -> tuple[Array, Array]:
    """RWKV-7. Each token, for every head, with S [value i, key j]: s_i = -Σ_j S_ij κ_j;

    S_ij ← S_ij w_j + v_i k_j + s_i κ_j a_j;  y_i = Σ_j S_ij r_j
    """
    r, w, k, v, kk, a = (_heads(x, n_head) for x in (r, w, k, v, kk, a))
    y = np.empty_like(v)
    for t in range(len(v)):
        s = -np.einsum("hij,hj->hi", S, kk[t])
        S = S * w[t][:, None, :] + v[t][:, :, None] * k[t][:, None, :] + s[:, :, None] * (kk[t] * a[t])[:, None, :]
        y[t] = np.einsum("hij,hj->hi", S, r[t])
    return y, S


def state_before(*states: Array, state: tuple[int, ...]) -> Array:
    """States of the nodes before this step, stacked along the first axis."""
    return np.concatenate(states).reshape(state)


def state_after(*states: Array, state: tuple[int, ...]) -> Array:
    """States of the nodes after this step, stacked along the first axis."""
    return np.concatenate(states).reshape(state)


def l2_norm(x: Array, *, eps: float, n_head: int, floor: bool) -> Array:
    """y = x / sqrt(Σx² + eps) over all features or over each head's; with `floor`, x / max(sqrt(Σx²), eps)."""
    parts = _heads(x, n_head) if n_head else x
    square = np.sum(parts * parts, axis=-1, keepdims=True)
    return np.asarray(parts / (np.maximum(np.sqrt(square), eps) if floor else np.sqrt(square + x.dtype.type(eps))))


def softplus(x: Array) -> Array:
    """y = ln(1 + eˣ), x itself above 20."""
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def exp(x: Array) -> Array:
    """y = eˣ."""
    return np.asarray(np.exp(x))


def xielu(x: Array, *, alpha_p: float, alpha_n: float, beta: float, eps: float) -> Array:
    """y = a x² + β x for x > 0, else (expm1(min(x, eps)) - x) b + β x.

    a = softplus(alpha_p), b = β + softplus(alpha_n).
    """
    a, b = xielu_factors(alpha_p, alpha_n, beta)
    below = (np.expm1(np.minimum(x, eps)) - x) * b + beta * x
    return np.asarray(np.where(x > 0, a * x * x + beta * x, below), x.dtype)


def xielu_factors(alpha_p: float, alpha_n: float, beta: float) -> tuple[float, float]:
    """The factors a and b of `xielu`."""
    return float(np.logaddexp(0, alpha_p)), beta + float(np.logaddexp(0, alpha_n))


def repeat_heads(x: Array, *, n_head: int) -> Array:
    """y[t,h,:] = x[t, h // (H/G), :]; x [T, G, D] gives [T, H, D]."""
    return np.repeat(x, n_head // x.shape[1], axis=1)


def join(*parts: Array) -> Array:
    """y[t,:] = all features of each operand, one after the other."""
    return np.concatenate([x.reshape(len(x), -1) for x in parts], axis=1)


def head_gain(x: Array, w: Array, *, n_head: int) -> Array:
    """y[t,h,:] = x[t,h,:] w[h]."""
    return np.asarray(_heads(x, n_head) * np.asarray(w).reshape(n_head, 1))


def add_gain(a: Array, x: Array, w: Array, *, n_head: int) -> Array:
    """y[t,h,:] = a[t,h,:] + w[h] x[t,h,:]; gives [T, H·D]."""
    y = _heads(a, n_head) + np.asarray(w).reshape(n_head, 1) * _heads(x, n_head)
    return np.asarray(y.reshape(len(a), -1))


def lerp(a: Array, b: Array, m: Array) -> Array:
    """y = a + (b - a) m."""
    return np.asarray(a + (b - a) * m.reshape(a.shape))


def lerp_row(a: Array, b: Array, W: Array, *, row: int) -> Array:
    """y = a + (b - a) W[row]; the last axis of W is the width."""
    return np.asarray(a + (b - a) * np.asarray(W).reshape(-1, a[0].size)[row].reshape(a.shape[1:]))


def head_bonus(x: Array, r: Array, k: Array, v: Array, u: Array, *, n_head: int) -> Array:
    """y[t,h,:] = x[t,h,:] + (Σ_j r_j k_j u_j) v[t,h,:]."""
    r, k, v = (_heads(z, n_head) for z in (r, k, v))
    total = np.sum(r * k * np.asarray(u).reshape(n_head, -1), axis=-1, keepdims=True)
    return np.asarray(x + (total * v).reshape(x.shape))


FUNCTIONS: tuple[Callable[..., Any], ...] = (
    causal_conv, shift, delta_rule, ssm_scan, wkv6, wkv7, state_before, state_after, l2_norm, softplus, exp, xielu,
    repeat_heads, join, head_gain, add_gain, lerp, lerp_row, head_bonus,
)  # fmt: skip
