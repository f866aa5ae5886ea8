"""The definition of every operation: one textbook function each, in the float type it is given.

Shapes: T tokens of this step, S keys, H query heads, G key/value heads, D head width, E features.
Nobody optimises these; every other engine and every stranger's dump is held against them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_BLOCK = 8192  # weight rows decoded at a time where the table does not fit in memory


def embed(tokens: Array, W: Any) -> Array:
    """y[t] = W[token[t]]; W [V, E] gives [T, E]."""
    return np.asarray(W[tokens])


def scale(x: Array, *, factor: float) -> Array:
    """y = factor * x."""
    return np.asarray(x * x.dtype.type(factor))


def rms_norm(x: Array, w: Array, *, eps: float, n_head: int) -> Array:
    """y = w * x / sqrt(mean(x²) + eps); the mean over all features, or over each of `n_head` heads."""
    parts = x.reshape(*x.shape[:-1], n_head, -1) if n_head and x.ndim == 2 else x
    mean = np.mean(parts * parts, axis=-1, keepdims=True)
    return np.asarray((parts / np.sqrt(mean + x.dtype.type(eps)) * w).reshape(x.shape))


def linear(x: Array, W: Any) -> Array:
    """y[t,o] = Σ_i W[o,i] x[t,i]; W [O, I], x [T, I] gives [T, O]."""
    flat = x.reshape(x.shape[0], -1)
    out = np.empty((x.shape[0], W.shape[0]), x.dtype)
    for start in range(0, W.shape[0], _BLOCK):
        block = W[start : start + _BLOCK].astype(x.dtype, copy=False)
        out[:, start : start + _BLOCK] = flat @ block.T
    return out


def slice_(x: Array, *, start: int, stop: int) -> Array:
    """y[t,:] = x[t, start:stop]."""
    return x[:, start:stop]


def bias(x: Array, b: Array) -> Array:
    """y = x + b."""
    return x + b


def add(a: Array, b: Array) -> Array:
    """y = a + b."""
    return a + b


def rope_angles(
    positions: Array,
    factors: Array | None,
    *,
    n_rot: int,
    base: float,
    freq_scale: float,
    ext_factor: float,
    attn_factor: float,
    beta_fast: float,
    beta_slow: float,
    n_ctx_orig: int,
) -> tuple[Array, float]:
    """Angles [T, n_rot/2] and the magnitude that multiplies the rotated values.

    θ_i = pos · base^(-2i/n_rot) / factor_i. Linear scaling multiplies θ by `freq_scale`. YaRN mixes the scaled
    and the unscaled angle by a ramp between the dimensions that turn `beta_fast` and `beta_slow` times over the
    original context, and multiplies the magnitude by 1 + 0.1 ln(1/freq_scale).
    """
    i = np.arange(n_rot // 2, dtype=np.float64)
    theta = positions.astype(np.float64)[:, None] * base ** (-2.0 * i / n_rot)
    if factors is not None:
        theta = theta / factors.astype(np.float64)
    if not ext_factor:
        return theta * freq_scale, attn_factor

    def turning(beta: float) -> float:
        return n_rot * math.log(n_ctx_orig / (beta * 2 * math.pi)) / (2 * math.log(base))

    low = max(0.0, math.floor(turning(beta_fast)))
    high = min(n_rot - 1.0, math.ceil(turning(beta_slow)))
    ramp = 1.0 - np.clip((i - low) / max(0.001, high - low), 0.0, 1.0)
    mix = ramp * ext_factor
    return theta * (freq_scale * (1 - mix) + mix), attn_factor * (1 + 0.1 * math.log(1 / freq_scale))


def rope(x: Array, positions: Array, factors: Array | None = None, *, n_head: int, mode: str, **kw: Any) -> Array:
    """Each pair (a, b) of a head's first n_rot values becomes (a cos θ - b sin θ, a sin θ + b cos θ).

    Pairs are (2i, 2i+1) in mode `norm`, (i, i + n_rot/2) in mode `neox`. x [T, H·D] gives [T, H, D].
    """
    n_rot = kw["n_rot"]
    theta, magnitude = rope_angles(positions, factors, **kw)
    cos = (np.cos(theta) * magnitude).astype(x.dtype)[:, None, :]
    sin = (np.sin(theta) * magnitude).astype(x.dtype)[:, None, :]
    heads = x.reshape(x.shape[0], n_head, -1)
    out = heads.copy()
    if mode == "norm":
        first, second = slice(0, n_rot, 2), slice(1, n_rot, 2)
    else:
        first, second = slice(0, n_rot // 2), slice(n_rot // 2, n_rot)
    a, b = heads[..., first], heads[..., second]
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out


def kq(q: Array, k: Array) -> Array:
    """y[h,t,s] = Σ_d Q[t,h,d] K[s,g(h),d], g(h) = h // (H/G); before scale and mask. Gives [H, T, S]."""
    keys = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    return np.asarray(np.matmul(q.transpose(1, 0, 2), keys.transpose(1, 2, 0)))


def attn_softmax(x: Array, positions: Array, key_positions: Array, *, scale: float, window: int) -> Array:
    """Softmax over s of scale·x[h,t,s]; s is masked where kpos[s] > pos[t], or kpos[s] <= pos[t] - window."""
    scores = np.where(hidden(positions, key_positions, window), -np.inf, x * x.dtype.type(scale))
    return softmax(scores)


def hidden(positions: Array, key_positions: Array, window: int = 0) -> NDArray[np.bool_]:
    """The mask [T, S]: True where kpos[s] > pos[t], or kpos[s] <= pos[t] - window."""
    distance = positions[:, None] - key_positions[None, :]
    return (distance < 0) | (distance >= window) if window else distance < 0


def softmax(x: Array) -> Array:
    """y = exp(x - max x) / Σ exp(x - max x) over the last axis."""
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return np.asarray(e / np.sum(e, axis=-1, keepdims=True))


def kqv(p: Array, v: Array) -> Array:
    """y[h,t,d] = Σ_s P[h,t,s] V[s,g(h),d]. Gives [H, T, D]."""
    values = np.repeat(v, p.shape[0] // v.shape[1], axis=1)
    return np.asarray(np.matmul(p, values.transpose(1, 0, 2)))


def merge_heads(x: Array) -> Array:
    """y[t, h·D + d] = x[h,t,d]."""
    return x.transpose(1, 0, 2).reshape(x.shape[1], -1)


def silu(x: Array) -> Array:
    """x / (1 + exp(-x)), written so that exp never overflows."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, x / (1 + e), x * e / (1 + e)))


def gelu_tanh(x: Array) -> Array:
    """x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))."""
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def gelu_erf(x: Array) -> Array:
    """x/2 · (1 + erf(x/√2))."""
    return np.asarray(0.5 * x * (1 + np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))))


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.maximum(x, 0)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu_erf": gelu_erf,
    "relu": relu,
}


def glu(gate: Array, up: Array, *, act: str) -> Array:
    """y = act(gate) · up."""
    return ACTIVATIONS[act](gate) * up


def softcap(x: Array, *, cap: float) -> Array:
    """y = cap · tanh(x / cap)."""
    return cap * np.tanh(x / cap)


def argsort(x: Array) -> Array:
    """Indices of each row, largest value first, ties to the lower index."""
    return np.argsort(-x, axis=-1, kind="stable")


def topk(x: Array, *, k: int) -> Array:
    """y[t,:] = x[t,:k]."""
    return x[:, :k]


def gather(x: Array, idx: Array) -> Array:
    """y[t,j] = x[t, idx[t,j]]."""
    return np.take_along_axis(x, idx, axis=-1)


def row_sum(x: Array) -> Array:
    """y[t] = Σ_j x[t,j]."""
    return np.asarray(np.sum(x, axis=-1, keepdims=True))


def clamp_min(x: Array, *, lo: float) -> Array:
    """y = max(x, lo)."""
    return np.asarray(np.maximum(x, x.dtype.type(lo)))


def div(a: Array, b: Array) -> Array:
    """y[t,j] = a[t,j] / b[t]."""
    return a / b


def expert_linear(x: Array, idx: Array, W: Any) -> Array:
    """y[t,j,o] = Σ_i W[idx[t,j],o,i] x[t,(j,)i]; W [n_expert, O, I] gives [T, k, O]."""
    tokens, k = idx.shape
    out = np.empty((tokens, k, W.shape[1]), x.dtype)
    for expert in np.unique(idx):
        block = W[int(expert)].astype(x.dtype, copy=False)
        for t, j in zip(*np.nonzero(idx == expert), strict=True):
            out[t, j] = block @ (x[t, j] if x.ndim == 3 else x[t])
    return out


def expert_scale(x: Array, w: Array) -> Array:
    """y[t,j,o] = x[t,j,o] w[t,j]."""
    return x * w[..., None]


def expert_sum(x: Array) -> Array:
    """y[t,o] = Σ_j x[t,j,o]."""
    return np.asarray(np.sum(x, axis=1))


# Every row of the operation table but `cache`, which is memory and not arithmetic.
FUNCTIONS: dict[str, Callable[..., Array]] = {
    f.__name__.rstrip("_"): f
    for f in (
        embed, scale, rms_norm, linear, slice_, bias, add, rope, kq, attn_softmax, softmax, kqv, merge_heads, glu,
        softcap, argsort, topk, gather, row_sum, clamp_min, div, expert_linear, expert_scale, expert_sum,
    )
}  # fmt: skip
