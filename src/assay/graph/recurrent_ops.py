"""The operations of layers that remember: convolution windows, delta rule, scans, token shift, and what they need.

Rows of the operation table like those of `ops.py`, which adds them. A row with `keeps` computes one step of a sequence
from the state that the step before left. The state is a value of the graph, too: `state_before` and `state_after` show
it under the names of llama.cpp's cache (`cache_r_l3`, `cache_s_l3`), so that a trace tells at which step it parts.

Touch this to add a recurrence. Its arithmetic in float32 is defined in docs/reference/arithmetic.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from assay.graph.op_row import REQUIRED, Attrs, Dim, Op, Shape, ShapeError, Trait, expect, flat_width, split_heads


def _kept(a: Attrs, wanted: tuple[int, ...]) -> None:
    """Check that the declared state has the shape that the operands imply."""
    found = tuple(a["state"])
    if found != wanted:
        raise ShapeError(f"the state does not fit the operands (found {list(found)}, expected {list(wanted)})")


def _size(shape: Shape) -> int:
    return math.prod(int(dim) for dim in shape)


def _conv(a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    channels, taps = int(flat_width(ins[0])), int(w[0][-1])
    expect("the kernel's rows differ from the channels", _size(w[0]) // max(taps, 1), channels)
    if taps < 2:
        raise ShapeError(f"a convolution needs two taps or more (found {taps})")
    _kept(a, (channels, taps - 1))
    return (ins[0][0], channels)


def _shift(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    _kept(a, (1, int(flat_width(ins[0]))))
    return ins[0]


def _delta(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    q, k, v, g, beta = ins
    tokens, heads, width = split_heads(v, a["n_head"])
    keys = split_heads(k, a["n_head_k"])
    if split_heads(q, a["n_head_k"]) != keys:
        raise ShapeError(f"queries and keys differ in shape (found {q} and {k})")
    if int(heads) % int(keys[1]):
        raise ShapeError(f"{heads} value heads cannot be shared over {keys[1]} key heads")
    if flat_width(g) not in (heads, int(heads) * int(keys[2])):
        raise ShapeError(f"one decay for each head or each key channel (found {g}, expected {heads} heads)")
    expect("one beta for each head", flat_width(beta), heads)
    _kept(a, (int(heads), int(width), int(keys[2])))
    return (tokens, heads, width)


def _scan(a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    x, dt, b, c = ins
    tokens, heads, width = split_heads(x, a["n_head"])
    expect("one time step for each head", flat_width(dt), heads)
    n = split_heads(b, a["n_group"])[2]
    expect("B and C differ in width", flat_width(c), flat_width(b))
    if int(heads) % a["n_group"]:
        raise ShapeError(f"{heads} heads cannot be shared over {a['n_group']} groups")
    if _size(w[0]) not in (heads, int(heads) * int(n)):
        raise ShapeError(f"one decay for each head or each element of a head's state (found {list(w[0])})")
    if _size(tuple(a["state"])) != int(heads) * int(width) * int(n):
        _kept(a, (int(heads), int(width), int(n)))
    return (tokens, heads, width)


def _wkv(a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    tokens, heads, width = split_heads(ins[0], a["n_head"])
    for other in ins[1:]:
        expect("operands differ in width", flat_width(other), int(heads) * int(width))
    for weight in w:
        expect("the weight differs from the operands' width", _size(weight), int(heads) * int(width))
    _kept(a, (int(heads), int(width), int(width)))
    return (tokens, heads, width)


def _peek(a: Attrs, _ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    return tuple(int(dim) for dim in a["state"])


def _same(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    return ins[0]


def _cut(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    return split_heads(ins[0], a["n_head"]) if a["n_head"] else ins[0]


def _repeat(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    tokens, heads, width = ins[0]
    if a["n_head"] % int(heads):
        raise ShapeError(f"{heads} heads cannot be repeated to {a['n_head']}")
    return (tokens, a["n_head"], width)


def _join(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    widths = [int(flat_width(shape)) for shape in ins]
    return (ins[0][0], sum(widths))


def _head_gain(a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    shape = split_heads(ins[0], a["n_head"])
    expect("one weight for each head", _size(w[0]), shape[1])
    return shape


def _add_gain(a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    width: Dim = flat_width(ins[0])
    expect("operands differ in width", flat_width(ins[1]), width)
    expect("one weight for each head", _size(w[0]), split_heads((ins[0][0], width), a["n_head"])[1])
    return (ins[0][0], width)


def _lerp(a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    width = flat_width(ins[0])
    for other in ins[1:]:
        expect("operands differ in width", flat_width(other), width)
    for weight in w:
        expect("the weight's rows differ from the operands' width", int(weight[-1]), width)
        if not 0 <= a["row"] < _size(weight) // int(weight[-1]):
            raise ShapeError(f"row {a['row']} lies outside the weight {list(weight)}")
    return ins[0]


def _bonus(a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    width = flat_width(ins[0])
    for other in ins[1:]:
        expect("operands differ in width", flat_width(other), width)
    expect("the weight differs from the operands' width", _size(w[0]), width)
    split_heads((ins[0][0], width), a["n_head"])
    return ins[0]


_RECURRENCE = Trait.STATE | Trait.MIXES_TOKENS | Trait.SUMS
_SIMPLE = Trait.ACTIVATION | Trait.ELEMENTWISE | Trait.TRANSCENDENTAL

ROWS = (
    Op("causal_conv", "y[t,c] = sum_k w[c,k] * x[t-K+1+k, c]; the state is the window, the last K-1 rows of x before "
       "this step, oldest first, as [C, K-1]; zeros before the sequence", ("x",), ("w",),
       {"state": REQUIRED}, _conv,
       _RECURRENCE, keeps="convolution"),
    Op("shift", "y[t] = x[t-1]; the state is the row before this step, zeros before the sequence", ("x",), (),
       {"state": REQUIRED}, _shift,
       Trait.STATE | Trait.MIXES_TOKENS | Trait.MOVES, keeps="convolution"),
    Op("delta_rule", "for each token and head h, with state S [value j, key i] and key head h mod n_head_k: "
       "S_ji = exp(g_i) S_ji; d_j = beta (v_j - sum_i S_ji k_i); S_ji = S_ji + d_j k_i; "
       "y_j = scale * sum_i S_ji q_i; g has one value a head, or one for each key channel",
       ("q", "k", "v", "g", "beta"), (),
       {"n_head": REQUIRED, "n_head_k": REQUIRED, "scale": 1.0, "state": REQUIRED}, _delta,
       _RECURRENCE | Trait.TRANSCENDENTAL, keeps="recurrent"),
    Op("ssm_scan", "for each token and head h, with state S [width p, n] and group h // (n_head / n_group): "
       "S_pn = exp(dt_h A_hn) S_pn + dt_h x_p B_n; y_p = sum_n S_pn C_n; A has one value a head, or one for each n",
       ("x", "dt", "B", "C"), ("A",), {"n_head": REQUIRED, "n_group": 1, "state": REQUIRED}, _scan,
       _RECURRENCE | Trait.TRANSCENDENTAL, keeps="recurrent"),
    Op("wkv6", "for each token and head, with state S [key i, value j]: y_j = sum_i r_i (S_ij + u_i k_i v_j), then "
       "S_ij = w_i S_ij + k_i v_j", ("r", "w", "k", "v"), ("u",), {"n_head": REQUIRED, "state": REQUIRED}, _wkv,
       _RECURRENCE, keeps="recurrent"),
    Op("wkv7", "for each token and head, with state S [value i, key j]: s_i = -sum_j S_ij kk_j; "
       "S_ij = S_ij w_j + v_i k_j + s_i kk_j a_j; y_i = sum_j S_ij r_j", ("r", "w", "k", "v", "kk", "a"), (),
       {"n_head": REQUIRED, "state": REQUIRED}, _wkv,
       _RECURRENCE, keeps="recurrent"),
    Op("state_before", "the state that the nodes x keep for the sequence, before this step; several are stacked",
       ("x", "x2?", "x3?"), (), {"state": REQUIRED}, _peek,
       Trait.SHOWS_STATE | Trait.EXACT),
    Op("state_after", "the state that the nodes x keep for the sequence, after this step; several are stacked",
       ("x", "x2?", "x3?"), (), {"state": REQUIRED}, _peek,
       Trait.SHOWS_STATE),
    Op("l2_norm", "y = x / sqrt(sum(x^2) + eps), over a token's features, or over each head's; with floor "
       "x / max(sqrt(sum(x^2)), eps)", ("x",), (), {"eps": REQUIRED, "n_head": 0, "floor": False}, _cut,
       Trait.NORM),
    Op("softplus", "y = ln(1 + exp(x)), x itself above 20", ("x",), (), {}, _same,
       _SIMPLE),
    Op("exp", "y = exp(x)", ("x",), (), {}, _same,
       _SIMPLE),
    Op("xielu", "y = softplus(alpha_p) x^2 + beta x for x > 0, else "
       "(expm1(min(x, eps)) - x) (beta + softplus(alpha_n)) + beta x", ("x",), (),
       {"alpha_p": REQUIRED, "alpha_n": REQUIRED, "beta": 0.5, "eps": -1e-6}, _same,
       _SIMPLE),
    Op("repeat_heads", "y[t,h,:] = x[t, h // (n_head / heads of x), :]", ("x",), (), {"n_head": REQUIRED}, _repeat,
       Trait.MOVES | Trait.EXACT, linear_in=("x",)),
    Op("join", "y[t,:] = all features of a, then of b, then of c; a alone loses its axis of heads", ("a", "b?", "c?"),
       (), {}, _join,
       Trait.MOVES | Trait.EXACT),
    Op("head_gain", "y[t,h,:] = x[t,h,:] * w[h]", ("x",), ("w",), {"n_head": REQUIRED}, _head_gain,
       Trait.NONE, linear_in=("x", "w")),
    Op("add_gain", "y[t,h,:] = a[t,h,:] + w[h] * x[t,h,:], heads side by side", ("a", "x"), ("w",),
       {"n_head": REQUIRED}, _add_gain,
       Trait.SUMS),
    Op("lerp", "y = a + (b - a) * m", ("a", "b", "m"), (), {}, _lerp,
       Trait.SUMS | Trait.ELEMENTWISE),
    Op("lerp_row", "y = a + (b - a) * W[row]", ("a", "b"), ("W",), {"row": 0}, _lerp,
       Trait.SUMS | Trait.ELEMENTWISE),
    Op("head_bonus", "y[t,h,:] = x[t,h,:] + (sum_j r[t,h,j] k[t,h,j] u[h,j]) * v[t,h,:]", ("x", "r", "k", "v"), ("u",),
       {"n_head": REQUIRED}, _bonus,
       Trait.SUMS),
)  # fmt: skip
