"""The operations: one row each, with formula, operands, attributes and shape rule.

This table is the vocabulary of every graph. An engine implements the rows; a fault rewrites a node to
another row or other attributes; `docs/names.md` and the validity check are made from it.

Dimensions are integers or one of two symbols: `T`, the tokens of this step, and `S`, the keys that a
query may see (cached ones first, then this step's).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Dim = int | str
Shape = tuple[Dim, ...]
Attrs = Mapping[str, Any]
ShapeRule = Callable[[Attrs, Sequence[Shape], Sequence[Shape]], Shape]


class ShapeError(ValueError):
    """The operands of a node do not fit together; the message names the two dimensions."""


@dataclass(frozen=True)
class Op:
    """One operation: `formula` is the definition that the reference engine computes."""

    name: str
    formula: str
    inputs: tuple[str, ...]  # operand names; a trailing `?` marks an optional one
    weights: tuple[str, ...]
    attrs: Mapping[str, Any]  # name -> default; `REQUIRED` where the builder must give it
    shape: ShapeRule


REQUIRED: Any = type("Required", (), {"__repr__": lambda _: "required"})()


def _expect(what: str, found: Dim, wanted: Dim) -> None:
    if found != wanted:
        raise ShapeError(f"{what} (found {found}, expected {wanted})")


def _flat(shape: Shape) -> Dim:
    """Features per token: everything after the first axis multiplied."""
    total = 1
    for dim in shape[1:]:
        if isinstance(dim, str):
            raise ShapeError(f"features of a token cannot include the axis {dim}")
        total *= dim
    return total


def _axes(weight: Shape, wanted: int) -> None:
    if len(weight) != wanted:
        raise ShapeError(f"the tensor has the wrong number of axes (found {list(weight)}, expected {wanted} axes)")


def _same(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    return ins[0]


def _embed(_a: Attrs, _ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    _axes(w[0], 2)
    return ("T", w[0][1])


def _norm(a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    width = _flat(ins[0])
    if a["n_head"]:
        assert isinstance(width, int)
        width //= a["n_head"]
    if w:
        _axes(w[0], 1)
        _expect("norm weight length differs from the normalised width", w[0][0], width)
    return ins[0]


def _linear(_a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    _axes(w[0], 2)
    _expect("input width differs from the weight's columns", _flat(ins[0]), w[0][1])
    return (ins[0][0], w[0][0])


def _slice(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    if not 0 <= a["start"] < a["stop"] <= int(ins[0][1]):
        raise ShapeError(f"columns {a['start']}..{a['stop']} lie outside the width {ins[0][1]}")
    return (ins[0][0], a["stop"] - a["start"])


def _bias(_a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    _axes(w[0], 1)
    _expect("bias length differs from the input width", w[0][0], ins[0][-1])
    return ins[0]


def _pair(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    if ins[0] != ins[1]:
        raise ShapeError(f"operands differ in shape (found {ins[0]} and {ins[1]})")
    return ins[0]


def _heads(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    width = _flat(ins[0])
    assert isinstance(width, int)
    if width % a["n_head"]:
        raise ShapeError(f"width {width} does not divide into {a['n_head']} heads")
    return (ins[0][0], a["n_head"], width // a["n_head"])


def _rope(a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    shape = _heads(a, ins, w)
    if a["n_rot"] % 2 or not 0 < a["n_rot"] <= int(shape[2]):
        raise ShapeError(f"n_rot must be even and at most the head width {shape[2]} (found {a['n_rot']})")
    if w:
        _axes(w[0], 1)
        _expect("rope factors must be half of n_rot", w[0][0], a["n_rot"] // 2)
    return shape


def _cache(a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    return ("S", *_heads(a, ins, w)[1:])


def _kq(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    q, k = ins
    _expect("query and key heads differ in width", q[2], k[2])
    if int(q[1]) % int(k[1]):
        raise ShapeError(f"{q[1]} query heads cannot be shared over {k[1]} key heads")
    return (q[1], q[0], k[0])


def _kqv(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    p, v = ins
    if int(p[0]) % int(v[1]):
        raise ShapeError(f"{p[0]} query heads cannot be shared over {v[1]} value heads")
    return (p[0], p[1], v[2])


def _merge(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    heads, tokens, width = ins[0]
    return (tokens, int(heads) * int(width))


def _topk(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    if not 0 < a["k"] <= int(ins[0][1]):
        raise ShapeError(f"k must be between 1 and the {ins[0][1]} experts (found {a['k']})")
    return (ins[0][0], a["k"])


def _gather(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    return ins[1]


def _sum(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    return (ins[0][0], 1)


def _expert_linear(_a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    _axes(w[0], 3)
    _expect("input width differs from the expert weights' columns", ins[0][-1], w[0][2])
    return (*ins[1], w[0][1])


def _expert_sum(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    return (ins[0][0], ins[0][2])


_ROPE_ATTRS = {
    "n_head": REQUIRED,
    "n_rot": REQUIRED,
    "mode": "norm",  # "norm": pairs (2i, 2i+1); "neox": pairs (i, i + n_rot/2)
    "base": 10000.0,
    "freq_scale": 1.0,  # linear scaling: 1 / factor
    "ext_factor": 0.0,  # YaRN: share of extrapolation, 0 switches YaRN off
    "attn_factor": 1.0,  # multiplies the rotated values
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "n_ctx_orig": 0,
}

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        Op("embed", "y[t] = W[token[t]]", ("tokens",), ("W",), {}, _embed),
        Op("scale", "y = factor * x", ("x",), (), {"factor": REQUIRED}, _same),
        Op(
            "rms_norm",
            "y = w * x / sqrt(mean(x^2) + eps), the mean over a token's features, or over each head's",
            ("x",),
            ("w",),
            {"eps": REQUIRED, "n_head": 0},
            _norm,
        ),
        Op("linear", "y[t,o] = sum_i W[o,i] * x[t,i]", ("x",), ("W",), {}, _linear),
        Op("slice", "y[t,:] = x[t, start:stop]", ("x",), (), {"start": REQUIRED, "stop": REQUIRED}, _slice),
        Op("bias", "y = x + b", ("x",), ("b",), {}, _bias),
        Op("add", "y = a + b", ("a", "b"), (), {}, _pair),
        Op(
            "rope",
            "each pair (a, b) of a head turned by theta_i = pos * base^(-2i/n_rot) / factor_i: "
            "(a cos - b sin, a sin + b cos)",
            ("x", "positions"),
            ("factors?",),
            _ROPE_ATTRS,
            _rope,
        ),
        Op(
            "cache",
            "rows of the earlier steps of this sequence, then this step's",
            ("x",),
            (),
            {"n_head": REQUIRED},
            _cache,
        ),
        Op("kq", "y[h,t,s] = sum_d Q[t,h,d] * K[s, h // (n_head / n_head_kv), d]", ("q", "k"), (), {}, _kq),
        Op(
            "attn_softmax",
            "y[h,t,:] = softmax over s of scale * x[h,t,s], with s masked where kpos[s] > pos[t] "
            "or, with a window, kpos[s] <= pos[t] - window",
            ("x", "positions", "key_positions"),
            (),
            {"scale": REQUIRED, "window": 0},
            _same,
        ),
        Op("kqv", "y[h,t,d] = sum_s P[h,t,s] * V[s, h // (n_head / n_head_kv), d]", ("p", "v"), (), {}, _kqv),
        Op("merge_heads", "y[t, h*D + d] = x[h,t,d]", ("x",), (), {}, _merge),
        Op(
            "glu",
            "y = act(gate) * up; silu(g) = g / (1 + exp(-g))",
            ("gate", "up"),
            (),
            {"act": "silu"},
            _pair,
        ),
        Op("softcap", "y = cap * tanh(x / cap)", ("x",), (), {"cap": REQUIRED}, _same),
        Op("softmax", "y[t,:] = softmax(x[t,:])", ("x",), (), {}, _same),
        Op(
            "argsort",
            "expert ids of each token, largest value first, ties to the lower id",
            ("x",),
            (),
            {},
            _same,
        ),
        Op("topk", "y[t,:] = x[t,:k]", ("x",), (), {"k": REQUIRED}, _topk),
        Op("gather", "y[t,j] = x[t, idx[t,j]]", ("x", "idx"), (), {}, _gather),
        Op("row_sum", "y[t] = sum_j x[t,j]", ("x",), (), {}, _sum),
        Op("clamp_min", "y = max(x, lo)", ("x",), (), {"lo": REQUIRED}, _same),
        Op("div", "y[t,j] = a[t,j] / b[t]", ("a", "b"), (), {}, _same),
        Op(
            "expert_linear",
            "y[t,j,o] = sum_i W[idx[t,j],o,i] * x[t,(j,)i]",
            ("x", "idx"),
            ("W",),
            {},
            _expert_linear,
        ),
        Op("expert_scale", "y[t,j,o] = x[t,j,o] * w[t,j]", ("x", "w"), (), {}, _same),
        Op("expert_sum", "y[t,o] = sum_j x[t,j,o]", ("x",), (), {}, _expert_sum),
    )
}
