"""The definition of every operation: one textbook function each, in the float type it is given.

Shapes: T tokens of this step, S keys, H query heads, G key/value heads, D head width, E features.
They are never optimised: every other engine and every foreign dump is compared with them. Touch this to add the
function of a new operation; another package calls `register`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import recurrent_functions, vision_functions

Array = NDArray[Any]
_BLOCK = 1 << 17  # weights converted or decoded at a time: 1 MiB of float64 stays in the CPU cache
_ROWS = 1 << 20  # the same for a matrix so large that BLAS uses several threads


def _split(x: Array, n_head: int) -> Array:
    """[T, H, D] of a value whose heads lie side by side. A value that has an axis of heads is returned as it is."""
    return x.reshape(x.shape[0], n_head, -1) if n_head and x.ndim == 2 else x


def _by_head(w: Array, parts: Array) -> Array:
    """Weights [D] for all heads as they are; weights [H·D] of all heads side by side as [H, D]."""
    return np.asarray(w) if w.shape[-1] == parts.shape[-1] else np.asarray(w).reshape(parts.shape[1:])


def _mean(x: Array) -> Array:
    """The mean over the last axis, which is kept with one value; the bits of `np.mean`."""
    return np.asarray(np.add.reduce(x, axis=-1, keepdims=True) / x.shape[-1])


def embed(tokens: Array, W: Any) -> Array:
    """y[t] = W[token[t]]; W [V, E] gives [T, E]. A table of learned positions takes positions for tokens."""
    return np.asarray(W[tokens])


def add_row(x: Array, *rest: Array, row: int) -> Array:
    """y = x + W[row], or y[t] = x[t] + W[rows[t]] where rows are given; the last axis of W is the width."""
    *rows, W = rest
    if rows:
        return np.asarray(x + np.asarray(W)[rows[0].reshape(-1).astype(np.int64)])
    return np.asarray(x + (W[row] if len(W.shape) == 2 else np.asarray(W).reshape(-1, x.shape[-1])[row]))


def scale(x: Array, *, factor: float) -> Array:
    """y = factor * x."""
    return np.asarray(x * x.dtype.type(factor))


def add_scalar(x: Array, *, value: float) -> Array:
    """y = x + value."""
    return np.asarray(x + x.dtype.type(value))


def rms_norm(x: Array, w: Array | None = None, *, eps: float, n_head: int) -> Array:
    """y = w * x / sqrt(mean(x²) + eps), w = 1 if not given; the mean over all features, or each of `n_head` heads'."""
    parts = _split(x, n_head)
    y = parts / np.sqrt(_mean(parts * parts) + x.dtype.type(eps))
    return np.asarray((y if w is None else y * _by_head(w, parts)).reshape(x.shape))


def layer_norm(x: Array, w: Array, b: Array | None = None, *, eps: float, n_head: int) -> Array:
    """y = w * (x - μ) / sqrt(σ² + eps) + b; μ and σ² = mean((x - μ)²) over all features, or over each head's."""
    parts = _split(x, n_head)
    centred = parts - _mean(parts)
    y = centred / np.sqrt(_mean(centred * centred) + x.dtype.type(eps)) * _by_head(w, parts)
    return np.asarray((y if b is None else y + _by_head(b, parts)).reshape(x.shape))


def linear(x: Array, W: Any) -> Array:
    """y[t,o] = Σ_i W[o,i] x[t,i]; W [O, I], x [T, I] gives [T, O]."""
    if len(W.shape) == 1:  # a matrix of one row
        W = np.asarray(W)[None]
    flat = x.reshape(x.shape[0], -1)
    if isinstance(W, np.ndarray) and W.dtype == x.dtype:
        return np.asarray(flat @ W.T)
    out = np.empty((x.shape[0], W.shape[0]), x.dtype)
    step = max((_BLOCK if math.prod(W.shape) <= 1 << 22 else _ROWS) // W.shape[1], 64)
    for start in range(0, W.shape[0], step):
        block = W[start : start + step].astype(x.dtype, copy=False)
        np.matmul(flat, block.T, out=out[:, start : start + step])
    return out


def slice_(x: Array, *, start: int, stop: int, n_head: int) -> Array:
    """y[...,:] = x[..., start:stop]; with `n_head`, of each head: [T, H·D] gives [T, H, stop-start]."""
    return _split(x, n_head)[..., start:stop]


def concat(a: Array, b: Array, *, n_head: int) -> Array:
    """y[t,h,:] = a[t,h,:] then b[t,h,:]; an operand with one head gives it to all. Gives [T, H, Da+Db]."""
    heads = [_split(x, n_head) for x in (a, b)]
    wide = [np.broadcast_to(x, (x.shape[0], n_head, x.shape[2])) for x in heads]
    return np.concatenate(wide, axis=2)


def bias(x: Array, b: Array) -> Array:
    """y = x + b."""
    return x + b


def add(a: Array, b: Array) -> Array:
    """y = a + b."""
    return a + b.reshape(a.shape)


def add_adapter(a: Array, x: Array, *rest: Array, factor: float, scale: float) -> Array:
    """y[t] = a[t] + s[t] · factor · B (A x[t]) where s[t] ≠ 0, else a[t], whose bits are kept. s may be left out: then
    it is `scale` for every token."""
    *given, A, B = rest
    added = (x.reshape(len(x), -1) @ np.asarray(A).T @ np.asarray(B).T).reshape(a.shape)
    s = given[0] if given else np.full(len(x), scale, a.dtype)
    each = s.reshape(-1, *[1] * (a.ndim - 1))
    return np.where(each != 0, a + each * factor * added, a)


def mul(a: Array, b: Array) -> Array:
    """y = a · b; b [T, 1] multiplies whole rows."""
    return a * (b.reshape(a.shape) if b.size == a.size else b)


def mul_weight(x: Array, w: Array) -> Array:
    """y = x · w; w [E] or [1]."""
    return x * w


def clamp(x: Array, *, lo: float, hi: float) -> Array:
    """y = min(max(x, lo), hi)."""
    return np.clip(x, x.dtype.type(lo), x.dtype.type(hi))


@lru_cache(maxsize=256)
def rope_frequencies(base: float, n_rot: int) -> tuple[float, ...]:
    """base^(-2i/n_rot) for i < n_rot/2, correctly rounded: C libraries and NumPy's vectors differ in the last bit."""
    with localcontext() as context:
        context.prec = 60
        step, found = Decimal(base) ** (Decimal(-2) / n_rot), [Decimal(1)]
        for _ in range(n_rot // 2 - 1):
            found.append(found[-1] * step)
        return tuple(map(float, found))


def _power(x: float, y: float) -> float:
    """x^y, correctly rounded."""
    with localcontext() as context:
        context.prec = 40
        return float(Decimal(x) ** Decimal(y))


def _ln(x: float) -> float:
    """The natural logarithm, correctly rounded."""
    with localcontext() as context:
        context.prec = 40
        return float(Decimal(x).ln())


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
    still: tuple[int, ...] = (),
    axes: tuple[int, ...] = (),
) -> tuple[Array, float]:
    """Angles [T, n_rot/2] and the magnitude that multiplies the rotated values.

    θ_i = pos · base^(-2i/n_rot) / factor_i. Linear scaling multiplies θ by `freq_scale`. YaRN mixes the scaled and
    the unscaled angle by a ramp. The ramp lies between the dimensions that turn `beta_fast` and `beta_slow` times over
    the original context. YaRN also multiplies the magnitude by 1 + 0.1 ln(1/freq_scale). Pairs in `still` have angle 0.
    With `axes`, positions are [T, n], and pair i turns by number axes[i].
    """
    i = np.arange(n_rot // 2, dtype=np.float64)
    at = positions.astype(np.float64)
    theta = (at[:, list(axes)] if axes else at[:, None]) * np.array(rope_frequencies(base, n_rot))
    theta[:, list(still)] = 0.0
    if factors is not None:
        theta = theta / factors.astype(np.float64)
    if not ext_factor:
        return theta * freq_scale, attn_factor

    def turning(beta: float) -> float:
        return n_rot * _ln(n_ctx_orig / (beta * 2 * math.pi)) / (2 * _ln(base))

    low = max(0.0, math.floor(turning(beta_fast)))
    high = min(n_rot - 1.0, math.ceil(turning(beta_slow)))
    ramp = 1.0 - np.clip((i - low) / max(0.001, high - low), 0.0, 1.0)
    mix = ramp * ext_factor
    return theta * (freq_scale * (1 - mix) + mix), attn_factor * (1 + 0.1 * _ln(1 / freq_scale))


def rope(
    x: Array,
    positions: Array,
    factors: Array | None = None,
    *,
    n_head: int,
    mode: str,
    offset: int = 0,
    **kw: Any,
) -> Array:
    """Each pair (a, b) of a head's n_rot values from `offset` on becomes (a cos θ - b sin θ, a sin θ + b cos θ).

    Pairs are (2i, 2i+1) in mode `norm`, (i, i + n_rot/2) in mode `neox`. x [T, H·D] gives [T, H, D].
    """
    theta, magnitude = rope_angles(positions, factors, **kw)
    return turned_pairs(x.reshape(x.shape[0], n_head, -1), np.cos(theta) * magnitude, np.sin(theta) * magnitude,
                        mode, offset)  # fmt: skip


def turned_pairs(heads: Array, cos: Array, sin: Array, mode: str, offset: int = 0) -> Array:
    """Heads [T, H, D] with their pairs from `offset` on turned by angles of these cosines and sines [T, n_rot/2]."""
    n_rot = 2 * cos.shape[-1]
    cos, sin = cos.astype(heads.dtype)[:, None, :], sin.astype(heads.dtype)[:, None, :]
    out = heads.copy()
    if mode == "norm":
        first, second = slice(offset, offset + n_rot, 2), slice(offset + 1, offset + n_rot, 2)
    else:
        middle = offset + n_rot // 2
        first, second = slice(offset, middle), slice(middle, offset + n_rot)
    a, b = heads[..., first], heads[..., second]
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out


def pos_scale(x: Array, positions: Array, *, beta: float, unit: int, offset: int) -> Array:
    """y[t] = x[t] · (1 + beta · ln(⌊(pos[t] + offset) / unit⌋ + 1))."""
    factor = 1 + beta * np.log((positions.astype(np.int64) + offset) // unit + 1.0)
    return np.asarray(x * factor.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1)))


def kq(q: Array, k: Array, *, n_head: int = 0, n_head_kv: int = 0) -> Array:
    """y[h,t,s] = Σ_d Q[t,h,d] K[s,g(h),d], g(h) = h // (H/G); before scale and mask. Gives [H, T, S]."""
    q, k = _split(q, n_head), _split(k, n_head_kv)
    keys = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    return np.asarray(np.matmul(q.transpose(1, 0, 2), keys.transpose(1, 2, 0)))


def alibi_slopes(n_head: int, max_bias: float) -> Array:
    """2^(-b·j/n), j = 1…n, for the largest power of two n up to H; then 2^(-b/2·(2j+1)/n), j = 0… ; rounded once."""
    n = 1 << (n_head.bit_length() - 1)
    first = [_power(2, -max_bias * j / n) for j in range(1, n + 1)]
    return np.array(first + [_power(2, -max_bias / 2 * (2 * j + 1) / n) for j in range(n_head - n)])


def attn_mask(
    positions: Array,
    key_positions: Array,
    window: int = 0,
    *,
    causal: bool = True,
    chunk: int = 0,
    last: Array | None = None,
) -> NDArray[np.bool_]:
    """The mask [T, S]: True where a query may not see a key.

    With `causal`, keys after the query are hidden. A window hides keys at a distance of `window` or more; without
    `causal`, keys more than half a window away on either side. Chunks hide the keys of earlier chunks of positions.
    `last` [T, 1] replaces the causal rule: keys after slot last[t] are hidden.
    """
    distance = positions[:, None] - key_positions[None, :]
    masked = distance < 0 if causal else np.zeros(distance.shape, bool)
    if last is not None:
        masked = np.arange(len(key_positions))[None, :] > last.reshape(-1, 1)
    if window:
        masked |= distance >= window if causal else np.abs(distance) > window // 2
    if chunk:
        masked |= key_positions[None, :] < positions[:, None] // chunk * chunk
    return np.asarray(masked)


def attn_softmax(
    x: Array,
    positions: Array,
    key_positions: Array,
    *others: Array,
    scale: float,
    window: int = 0,
    causal: bool = True,
    chunk: int = 0,
    max_bias: float = 0.0,
) -> Array:
    """Softmax over the visible s of scale·x[h,t,s] - slope_h·|pos[t] - kpos[s]|.

    `others`: the last slots that queries see [T, 1], if they are given, then the sinks [H], if there are any.
    A sink is one more score for each head, not scaled. It adds to the denominator and has no column in the result.
    """
    last = others[0] if others and others[0].ndim == 2 else None
    sinks = others[-1] if others and others[-1].ndim == 1 else None
    scores = x * x.dtype.type(scale)
    if max_bias:
        distance = np.abs(positions[:, None] - key_positions[None, :])
        scores = scores - (alibi_slopes(x.shape[0], max_bias)[:, None, None] * distance).astype(x.dtype)
    masked = attn_mask(positions, key_positions, window, causal=causal, chunk=chunk, last=last)
    scores = np.where(masked, x.dtype.type(-np.inf), scores)
    if sinks is None:
        return softmax(scores)
    column = np.broadcast_to(sinks.astype(x.dtype)[:, None, None], (*x.shape[:2], 1))
    return softmax(np.concatenate([scores, column], axis=-1))[..., :-1]


def softmax(x: Array) -> Array:
    """y = exp(x - max x) / Σ exp(x - max x) over the last axis."""
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return np.asarray(e / np.sum(e, axis=-1, keepdims=True))


def kqv(p: Array, v: Array, *, n_head_kv: int = 0) -> Array:
    """y[h,t,d] = Σ_s P[h,t,s] V[s,g(h),d]. Gives [H, T, D]."""
    v = _split(v, n_head_kv)
    values = np.repeat(v, p.shape[0] // v.shape[1], axis=1)
    return np.asarray(np.matmul(p, values.transpose(1, 0, 2)))


def merge_heads(x: Array) -> Array:
    """y[t, h·D + d] = x[h,t,d]."""
    return x.transpose(1, 0, 2).reshape(x.shape[1], -1)


def split_heads(x: Array, *, n_head: int) -> Array:
    """y[h,t,d] = x[t, h·D + d]."""
    return _split(x, n_head).transpose(1, 0, 2)


def head_linear(x: Array, W: Any) -> Array:
    """y[h,t,o] = Σ_i W[h,o,i] x[h,t,i]; W [H, O, I], x [H, T, I] gives [H, T, O]."""
    return np.stack([rows @ W[h].astype(x.dtype, copy=False).T for h, rows in enumerate(x)])


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), written so that exp never overflows."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, e) / (1 + e))


def silu(x: Array) -> Array:
    """x / (1 + exp(-x)), written so that exp never overflows."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, x, x * e) / (1 + e))


def gelu_tanh(x: Array) -> Array:
    """x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))."""
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def gelu_erf(x: Array) -> Array:
    """x/2 · (1 + erf(x/√2))."""
    return np.asarray(0.5 * x * (1 + np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))))


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.maximum(x, 0)


def relu_sqr(x: Array) -> Array:
    """max(x, 0)²."""
    return np.asarray(np.maximum(x, 0) ** 2)


def tanh(x: Array) -> Array:
    """The hyperbolic tangent."""
    return np.asarray(np.tanh(x))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu_erf": gelu_erf,
    "relu": relu,
    "relu_sqr": relu_sqr,
    "tanh": tanh,
}


def glu(gate: Array, up: Array, *, act: str) -> Array:
    """y = act(gate) · up."""
    return ACTIVATIONS[act](gate) * up.reshape(gate.shape)


def act(x: Array, *, act: str) -> Array:
    """y = act(x)."""
    return ACTIVATIONS[act](x)


def glu_split(x: Array, *, act: str) -> Array:
    """y = act(x[..., :F]) · x[..., F:]; the gate comes first."""
    half = x.shape[-1] // 2
    return ACTIVATIONS[act](x[..., :half]) * x[..., half:]


def glu_oai(gate: Array, up: Array, *, alpha: float, limit: float) -> Array:
    """y = g σ(alpha g) (v + 1); g = min(gate, limit), not clamped below, v = up clamped to ±limit."""
    g, v = np.minimum(gate, limit), np.clip(up, -limit, limit).reshape(gate.shape)
    return np.asarray(g * sigmoid(alpha * g) * (v + 1))


def softcap(x: Array, *, cap: float) -> Array:
    """y = cap · tanh(x / cap)."""
    return cap * np.tanh(x / cap)


def group_mask(x: Array, *, groups: int, used: int) -> Array:
    """x where its group is among the `used` with the largest sum of their two best values, else -inf.

    Ties go to the lower group. x [T, n_expert], groups side by side.
    """
    parts = x.reshape(x.shape[0], groups, -1)
    score = np.sum(np.sort(parts, axis=-1)[..., -2:], axis=-1)
    best = np.argsort(-score, axis=-1, kind="stable")[:, :used]
    kept = np.zeros(score.shape, bool)
    np.put_along_axis(kept, best, True, axis=-1)
    return np.where(kept[..., None], parts, x.dtype.type(-np.inf)).reshape(x.shape)


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


def expert_input(x: Array, w: Array) -> Array:
    """y[t,j,i] = x[t,i] w[t,j]: the experts' weights on their input."""
    return x[:, None, :] * w[..., None]


def expert_linear(x: Array, idx: Array, W: Any) -> Array:
    """y[t,j,o] = Σ_i W[idx[t,j],o,i] x[t,(j,)i]; W [n_expert, O, I] gives [T, k, O]."""
    tokens, k = idx.shape
    out = np.empty((tokens, k, W.shape[1]), x.dtype)
    for expert in np.unique(idx):
        block = W[int(expert)].astype(x.dtype, copy=False)
        for t, j in zip(*np.nonzero(idx == expert), strict=True):
            out[t, j] = block @ (x[t, j] if x.ndim == 3 else x[t])
    return out


def expert_bias(x: Array, idx: Array, B: Any) -> Array:
    """y[t,j,o] = x[t,j,o] + B[idx[t,j],o]."""
    return np.asarray(x + B[idx])


def expert_gain(x: Array, idx: Array, s: Array) -> Array:
    """y[t,j,o] = x[t,j,o] s[idx[t,j]]."""
    return np.asarray(x * np.asarray(s)[idx][..., None])


def expert_scale(x: Array, w: Array) -> Array:
    """y[t,j,o] = x[t,j,o] w[t,j]."""
    return x * w[..., None]


def expert_sum(x: Array) -> Array:
    """y[t,o] = Σ_j x[t,j,o]."""
    return np.asarray(np.sum(x, axis=1))


def length(x: Array) -> Array:
    """y[t] = sqrt(Σ x[t]²)."""
    return np.asarray(np.sqrt(np.sum(x * x, axis=-1, keepdims=True)))


def sparse_gate(x: Array, *, factor: float) -> Array:
    """y = max(x - μ - factor·σ, 0), μ and σ = sqrt(Σ(x - μ)² / (n - 1)) over a token's features."""
    mean = np.mean(x, axis=-1, keepdims=True)
    std = np.sqrt(np.sum((x - mean) ** 2, axis=-1, keepdims=True) / (x.shape[-1] - 1))
    return np.asarray(np.maximum(x - (mean + x.dtype.type(factor) * std), 0))


def mix_streams(x: Array, c: Array, *, n_stream: int) -> Array:
    """y[t,i,:] = x[t,i,:] + Σ_j c[t, i·n + j] x[t,j,:]; the n streams lie side by side."""
    parts = x.reshape(len(x), n_stream, -1)
    y = parts + np.einsum("tij,tje->tie", c.reshape(len(x), n_stream, n_stream), parts)
    return np.asarray(y.reshape(x.shape))


def add_to_streams(x: Array, d: Array, c: Array | None = None, *, n_stream: int, first: int) -> Array:
    """y[t,i,:] = x[t,i,:] + d[t,:] c[t,i] for i ≥ first, else x[t,i,:]; without c the factor is 1."""
    y = x.reshape(len(x), n_stream, -1).copy()
    factor = np.ones((len(x), n_stream), x.dtype) if c is None else c
    y[:, first:] += d[:, None, :] * factor[:, first:, None]
    return y.reshape(x.shape)


def pool(x: Array, *, kind: str) -> Array:
    """One row of all tokens: their `mean`, the `first` or the `last`. [T, E] gives [1, E]."""
    if kind == "mean":
        return np.asarray(np.mean(x, axis=0, keepdims=True))
    return x[:1] if kind == "first" else x[-1:]


def cache(x: Array, *, n_head: int) -> Array:
    """This step's rows [T, n_head, D]. The engine keeps them and puts the rows of earlier steps before them."""
    return x.reshape(x.shape[0], n_head, -1)


_ALL: tuple[Callable[..., Any], ...] = (
    embed, add_row, scale, add_scalar, rms_norm, layer_norm, linear, slice_, concat, bias, add, mul, mul_weight,
    add_adapter,
    clamp, rope, pos_scale, kq, attn_softmax, softmax, kqv, merge_heads, split_heads, head_linear, act, glu,
    glu_split, glu_oai,
    sigmoid, softcap, group_mask, argsort, topk, gather, row_sum, clamp_min, div, expert_input, expert_linear,
    expert_bias, expert_gain, expert_scale, expert_sum, length, sparse_gate, mix_streams,
    add_to_streams, pool, cache, *recurrent_functions.FUNCTIONS, *vision_functions.FUNCTIONS,
)  # fmt: skip

# Every row of the operation table. An operation that keeps state for each sequence takes its state after the weights,
# and returns a pair: its value and the new state.
FUNCTIONS: dict[str, Callable[..., Array]] = {f.__name__.rstrip("_"): f for f in _ALL}


def register(name: str, function: Callable[..., Any]) -> None:
    """Add the textbook function of an operation that another package has added to the operation table."""
    if name in FUNCTIONS:
        raise ValueError(f"operation {name}: it has a function already; choose another name")
    FUNCTIONS[name] = function
