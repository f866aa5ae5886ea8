"""The operations: one row each, with formula, operands, attributes and shape rule.

This table is the vocabulary of every graph. An engine implements the rows. A fault rewrites a node to another row or
to other attributes. `docs/reference/names.md` and the validity check are generated from the table.

A row also states what the operation *is* (`Trait`). Engines and `verify` ask for a trait instead of listing
operation names, so that a new row is handled everywhere without an edit elsewhere. Touch this file to add an operation
of assay itself; another package calls `register`.

Dimensions are integers or one of two symbols: `T`, the tokens of this step, and `S`, the keys that a
query may see (cached ones first, then the keys of this step).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from assay.graph import recurrent_ops, vision_ops
from assay.graph.op_row import REQUIRED, Attrs, Op, Shape, ShapeError, Trait, expect, flat_width, split_heads

__all__ = ["OPS", "REQUIRED", "Op", "Shape", "ShapeError", "Trait", "register"]


def _axes(weight: Shape, wanted: int) -> None:
    if len(weight) != wanted:
        raise ShapeError(f"the tensor has the wrong number of axes (found {list(weight)}, expected {wanted} axes)")


def _same(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    return ins[0]


def _embed(_a: Attrs, _ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    _axes(w[0], 2)
    return ("T", w[0][1])


def _norm(a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    heads = split_heads(ins[0], a["n_head"])[1:] if a["n_head"] else ins[0][1:]
    for weight in w:
        own = heads if len(weight) == 2 else heads[-1:]  # weights [H, D]: each head has its own
        if tuple(weight) != own and (len(heads) != 2 or tuple(weight) != (int(heads[0]) * int(heads[1]),)):
            raise ShapeError(f"norm weight does not fit the normalised width (found {weight}, expected {own})")
    return ins[0]


def _linear(_a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    if len(w[0]) > 1:
        _axes(w[0], 2)
    rows, columns = (1, w[0][0]) if len(w[0]) == 1 else w[0]  # a vector is a matrix of one row
    expect("input width differs from the weight's columns", flat_width(ins[0]), columns)
    return (ins[0][0], rows)


def _slice(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    shape = split_heads(ins[0], a["n_head"]) if a["n_head"] else ins[0]
    if not 0 <= a["start"] < a["stop"] <= int(shape[-1]):
        raise ShapeError(f"columns {a['start']}..{a['stop']} lie outside the width {shape[-1]}")
    return (*shape[:-1], a["stop"] - a["start"])


def _concat(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    first, second = (split_heads(x, a["n_head"]) for x in ins)
    for shape in (first, second):
        if shape[1] not in (1, a["n_head"]):
            raise ShapeError(f"operand must have 1 head or {a['n_head']} (found {shape[1]})")
    return (first[0], a["n_head"], int(first[2]) + int(second[2]))


def _bias(_a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    _axes(w[0], 1)
    expect("bias length differs from the input width", w[0][0], ins[0][-1])
    return ins[0]


def _gain(_a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    if w[0][0] != 1:
        expect("weight length differs from the input width", w[0][0], ins[0][-1])
    return ins[0]


def _row(a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    expect("row length differs from the input width", w[0][-1], ins[0][-1])
    if len(ins) > 1:
        expect("one row for each token", flat_width(ins[1]), 1)
    rows = prod(int(dim) for dim in w[0][:-1])
    if not 0 <= a["row"] < rows:
        raise ShapeError(f"row {a['row']} lies outside the table of {rows}")
    return ins[0]


def _same_features(a: Shape, b: Shape) -> bool:
    """Whether two values have the same shape, or as many features for each token: heads apart or side by side."""
    return a == b or (a[0] == b[0] == "T" and flat_width(a) == flat_width(b))


def _pair(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    if not _same_features(*ins):
        raise ShapeError(f"operands differ in shape (found {ins[0]} and {ins[1]})")
    return ins[0]


def _adapter(_a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    a, b = w
    if len(ins) > 2:
        expect("one scale for each token", flat_width(ins[2]), 1)
    expect("the columns of A differ from the features of x", a[1], flat_width(ins[1]))
    expect("the rows of B differ from the features of a", b[0], flat_width(ins[0]))
    expect("A and B differ in rank", a[0], b[1])
    return ins[0]


def _mul(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    if ins[1] != (ins[0][0], 1) and not _same_features(*ins):
        raise ShapeError(f"operands differ in shape (found {ins[0]} and {ins[1]})")
    return ins[0]


def _halves(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    width = int(ins[0][-1])
    if width % 2:
        raise ShapeError(f"width {width} has no two halves")
    return (*ins[0][:-1], width // 2)


def _heads(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    width = flat_width(ins[0])
    assert isinstance(width, int)
    return split_heads((ins[0][0], width), a["n_head"])


def _rope(a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    shape = _heads(a, ins, w)
    if a["n_rot"] % 2 or a["n_rot"] < 2 or a["offset"] < 0 or a["offset"] + a["n_rot"] > int(shape[2]):
        raise ShapeError(f"n_rot must be even and at most the head width {shape[2]} (found {a['n_rot']})")
    if w:
        _axes(w[0], 1)
        expect("rope factors must be half of n_rot", w[0][0], a["n_rot"] // 2)
    if a["axes"]:
        expect("one axis for each pair", len(a["axes"]), a["n_rot"] // 2)
        if len(ins[1]) != 2 or not 0 <= min(a["axes"]) <= max(a["axes"]) < int(ins[1][1]):
            raise ShapeError(f"axes are not those of the positions (found {a['axes']}, positions {list(ins[1])})")
    return shape


def _cache(a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    return ("S", *_heads(a, ins, w)[1:])


def _kq(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    q, k = split_heads(ins[0], a["n_head"]), split_heads(ins[1], a["n_head_kv"])
    expect("query and key heads differ in width", q[2], k[2])
    if int(q[1]) % int(k[1]):
        raise ShapeError(f"{q[1]} query heads cannot be shared over {k[1]} key heads")
    return (q[1], q[0], k[0])


def _scores(a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    expect("queries and positions differ in number", ins[0][1], ins[1][0])
    expect("keys and their positions differ in number", ins[0][2], ins[2][0])
    if len(ins) > 3 and (ins[3] != (ins[1][0], 1) or not a["causal"]):
        raise ShapeError(f"last slots: one for each query, with a causal mask (found {list(ins[3])})")
    if w:
        expect("one sink a head", w[0][0], ins[0][0])
    return ins[0]


def _kqv(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    p, v = ins[0], split_heads(ins[1], a["n_head_kv"])
    if int(p[0]) % int(v[1]):
        raise ShapeError(f"{p[0]} query heads cannot be shared over {v[1]} value heads")
    return (p[0], p[1], v[2])


def _merge(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    heads, tokens, width = ins[0]
    return (tokens, int(heads) * int(width))


def _unmerge(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    tokens, heads, width = split_heads(ins[0], a["n_head"])
    return (heads, tokens, width)


def _head_linear(_a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    heads, tokens, width = ins[0]
    expect("heads differ from the weight's", heads, w[0][0])
    expect("input width differs from the weight's columns", width, w[0][2])
    return (heads, tokens, w[0][1])


def _topk(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    if not 0 < a["k"] <= int(ins[0][1]):
        raise ShapeError(f"k must be between 1 and the {ins[0][1]} experts (found {a['k']})")
    return (ins[0][0], a["k"])


def _groups(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    width = int(ins[0][1])
    if a["groups"] < 1 or width % a["groups"] or width < 2 * a["groups"]:
        raise ShapeError(f"{width} experts do not make {a['groups']} groups of two or more")
    if not 0 < a["used"] <= a["groups"]:
        raise ShapeError(f"used must be between 1 and the {a['groups']} groups (found {a['used']})")
    return ins[0]


def _gather(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    return ins[1]


def _sum(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    return (ins[0][0], 1)


def _expert_linear(_a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    _axes(w[0], 3)
    expect("input width differs from the expert weights' columns", ins[0][-1], w[0][2])
    return (*ins[1], w[0][1])


def _expert_vector(_a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    if len(w[0]) == 2:
        expect("bias length differs from the input width", w[0][1], ins[0][-1])
    return ins[0]


def _expert_input(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    return (*ins[1], ins[0][1])


def _expert_sum(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    return (ins[0][0], ins[0][2])


def _length(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    flat_width(ins[0])
    return (ins[0][0], 1)


def _mix_streams(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    split_heads(ins[0], a["n_stream"])
    expect("one coefficient for each pair of streams", flat_width(ins[1]), a["n_stream"] ** 2)
    return ins[0]


def _add_to_streams(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    expect("the row differs from a stream's width", flat_width(ins[1]), split_heads(ins[0], a["n_stream"])[2])
    if len(ins) > 2:
        expect("one coefficient for each stream", flat_width(ins[2]), a["n_stream"])
    return ins[0]


def _pool(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    return (1, ins[0][1])


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
    "offset": 0,  # the first value of a head that turns
    "still": (),  # pairs that do not turn
    "axes": (),  # M-RoPE: positions [T, n] have several numbers, and pair i turns by number axes[i]; (): one number
}

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        Op("embed", "y[t] = W[token[t]]; a table of learned positions takes positions for tokens", ("tokens",), ("W",),
           {}, _embed,
           Trait.TABLE | Trait.MATRIX, linear_in=("W",)),
        Op("add_row", "y = x + W[row]; y[t] = x[t] + W[rows[t]] where rows are given", ("x", "rows?"), ("W",),
           {"row": 0}, _row,
           Trait.SUMS | Trait.ELEMENTWISE),
        Op("scale", "y = factor * x", ("x",), (), {"factor": REQUIRED}, _same,
           Trait.ELEMENTWISE, linear_in=("x",)),
        Op("add_scalar", "y = x + value", ("x",), (), {"value": REQUIRED}, _same,
           Trait.SUMS | Trait.ELEMENTWISE),
        Op("rms_norm", "y = w * x / sqrt(mean(x^2) + eps), the mean over a token's features, or over each head's; "
           "without w, w = 1", ("x",), ("w?",), {"eps": REQUIRED, "n_head": 0}, _norm,
           Trait.NORM, linear_in=("w",)),
        Op("layer_norm", "y = w * (x - mean(x)) / sqrt(var(x) + eps) + b, over a token's features, or over each "
           "head's; w [D], or [H, D] or [H*D] where each head has its own", ("x",), ("w", "b?"),
           {"eps": REQUIRED, "n_head": 0}, _norm,
           Trait.NORM | Trait.SUMS),
        Op("linear", "y[t,o] = sum_i W[o,i] * x[t,i]", ("x",), ("W",), {}, _linear,
           Trait.PRODUCT | Trait.MATRIX | Trait.SUMS, linear_in=("x", "W")),
        Op("slice", "y[...,:] = x[..., start:stop]; with n_head, of each head", ("x",), (),
           {"start": REQUIRED, "stop": REQUIRED, "n_head": 0}, _slice,
           Trait.MOVES | Trait.EXACT, linear_in=("x",)),
        Op("concat", "y[t,h,:] = a[t,h,:] then b[t,h,:]; an operand with one head gives it to all n_head",
           ("a", "b"), (), {"n_head": REQUIRED}, _concat,
           Trait.MOVES | Trait.EXACT),
        Op("bias", "y = x + b", ("x",), ("b",), {}, _bias,
           Trait.SUMS | Trait.ELEMENTWISE),
        Op("add", "y = a + b", ("a", "b"), (), {}, _pair,
           Trait.SUMS | Trait.ELEMENTWISE),
        Op("add_adapter", "y[t,o] = a[t,o] + s[t] * factor * sum_k B[o,k] * sum_i A[k,i] * x[t,i] where s[t] is not 0, "
           "else a[t,o]; s[t] = scale where it is not given", ("a", "x", "s?"), ("A", "B"),
           {"factor": 1.0, "scale": 1.0}, _adapter,
           Trait.SUMS),
        Op("mul", "y = a * b; b [T, 1] multiplies whole rows", ("a", "b"), (), {}, _mul,
           Trait.ELEMENTWISE, linear_in=("a", "b")),
        Op("mul_weight", "y = x * w, w [E] or [1]", ("x",), ("w",), {}, _gain,
           Trait.ELEMENTWISE, linear_in=("x", "w")),
        Op("clamp", "y = min(max(x, lo), hi)", ("x",), (), {"lo": REQUIRED, "hi": REQUIRED}, _same,
           Trait.ELEMENTWISE | Trait.EXACT),
        Op("rope", "each pair (a, b) of a head turned by theta_i = pos * base^(-2i/n_rot) / factor_i: "
           "(a cos - b sin, a sin + b cos)", ("x", "positions"), ("factors?",), _ROPE_ATTRS, _rope,
           Trait.POSITIONAL, linear_in=("x",)),
        Op("pos_scale", "y[t] = x[t] * (1 + beta * ln(floor((pos[t] + offset) / unit) + 1))", ("x", "positions"), (),
           {"beta": REQUIRED, "unit": REQUIRED, "offset": 0}, _same,
           Trait.POSITIONAL | Trait.TRANSCENDENTAL, linear_in=("x",)),
        Op("cache", "rows of the earlier steps of this sequence, then this step's", ("x",), (),
           {"n_head": REQUIRED}, _cache,
           Trait.MOVES | Trait.STATE | Trait.CACHES | Trait.MIXES_TOKENS, linear_in=("x",), keeps="rows"),
        Op("kq", "y[h,t,s] = sum_d Q[t,h,d] * K[s, h // (n_head / n_head_kv), d]; n_head and n_head_kv cut operands "
           "that have no axis of heads", ("q", "k"), (), {"n_head": 0, "n_head_kv": 0}, _kq,
           Trait.KEYS | Trait.SCORES | Trait.SUMS | Trait.MIXES_TOKENS | Trait.MASKABLE, linear_in=("q", "k")),
        Op("attn_softmax", "y[h,t,:] = softmax over s of scale * x[h,t,s] - slope_h * |pos[t] - kpos[s]|, with s "
           "masked where kpos[s] > pos[t] (unless causal is false; with last, where s > last[t]), with a window where "
           "kpos[s] <= pos[t] - window "
           "(without causal: |pos[t] - kpos[s]| > window // 2), with a chunk where kpos[s] lies in an earlier chunk; a "
           "sink adds exp(sink[h]) to the denominator; slopes by max_bias (ALiBi), 0 for none",
           ("x", "positions", "key_positions", "last?"), ("sinks?",),
           {"scale": REQUIRED, "window": 0, "causal": True, "chunk": 0, "max_bias": 0.0}, _scores,
           Trait.MASKS | Trait.SCORES | Trait.SOFTMAX | Trait.POSITIONAL | Trait.MIXES_TOKENS | Trait.TRANSCENDENTAL),
        Op("kqv", "y[h,t,d] = sum_s P[h,t,s] * V[s, h // (n_head / n_head_kv), d]; n_head_kv cuts values that have no "
           "axis of heads", ("p", "v"), (), {"n_head_kv": 0}, _kqv,
           Trait.VALUES | Trait.SCORES | Trait.SUMS | Trait.MIXES_TOKENS, linear_in=("p", "v")),
        Op("merge_heads", "y[t, h*D + d] = x[h,t,d]", ("x",), (), {}, _merge,
           Trait.MOVES | Trait.RESHAPES | Trait.EXACT, linear_in=("x",)),
        Op("split_heads", "y[h,t,d] = x[t, h*D + d]", ("x",), (), {"n_head": REQUIRED}, _unmerge,
           Trait.MOVES | Trait.RESHAPES | Trait.EXACT, linear_in=("x",)),
        Op("head_linear", "y[h,t,o] = sum_i W[h,o,i] * x[h,t,i]", ("x",), ("W",), {}, _head_linear,
           Trait.PRODUCT | Trait.MATRIX | Trait.SUMS, linear_in=("x", "W")),
        Op("act", "y = act(x); gelu_tanh(x) = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))", ("x",), (),
           {"act": "gelu_tanh"}, _same,
           Trait.ACTIVATION | Trait.ELEMENTWISE | Trait.TRANSCENDENTAL),
        Op("glu", "y = act(gate) * up; silu(g) = g / (1 + exp(-g))", ("gate", "up"), (), {"act": "silu"}, _pair,
           Trait.ACTIVATION | Trait.ELEMENTWISE | Trait.TRANSCENDENTAL, linear_in=("up",)),
        Op("glu_split", "y = act(x[..., :F]) * x[..., F:], the gate first", ("x",), (), {"act": "silu"}, _halves,
           Trait.ACTIVATION | Trait.TRANSCENDENTAL),
        Op("glu_oai", "y = g / (1 + exp(-alpha * g)) * (v + 1), g = min(gate, limit), v = up within -limit..limit",
           ("gate", "up"), (), {"alpha": 1.702, "limit": 7.0}, _pair,
           Trait.ACTIVATION | Trait.ELEMENTWISE | Trait.TRANSCENDENTAL),
        Op("sigmoid", "y = 1 / (1 + exp(-x))", ("x",), (), {}, _same,
           Trait.ACTIVATION | Trait.ELEMENTWISE | Trait.TRANSCENDENTAL),
        Op("softcap", "y = cap * tanh(x / cap)", ("x",), (), {"cap": REQUIRED}, _same,
           Trait.ELEMENTWISE | Trait.TRANSCENDENTAL),
        Op("softmax", "y[t,:] = softmax(x[t,:])", ("x",), (), {}, _same,
           Trait.SOFTMAX | Trait.TRANSCENDENTAL),
        Op("group_mask", "x where its group is one of the `used` groups with the largest sum of their two best values, "
           "ties to the lower group; else -inf", ("x",), (), {"groups": REQUIRED, "used": REQUIRED}, _groups,
           Trait.SELECTS | Trait.EXACT | Trait.MASKABLE),
        Op("argsort", "expert ids of each token, largest value first, ties to the lower id", ("x",), (), {}, _same,
           Trait.INDICES | Trait.SELECTS | Trait.EXACT),
        Op("topk", "y[t,:] = x[t,:k]", ("x",), (), {"k": REQUIRED}, _topk,
           Trait.INDICES | Trait.MOVES | Trait.EXACT),
        Op("gather", "y[t,j] = x[t, idx[t,j]]", ("x", "idx"), (), {}, _gather,
           Trait.MOVES | Trait.EXACT, linear_in=("x",)),
        Op("row_sum", "y[t] = sum_j x[t,j]", ("x",), (), {}, _sum,
           Trait.SUMS, linear_in=("x",)),
        Op("clamp_min", "y = max(x, lo)", ("x",), (), {"lo": REQUIRED}, _same,
           Trait.ELEMENTWISE | Trait.EXACT),
        Op("div", "y[t,j] = a[t,j] / b[t]", ("a", "b"), (), {}, _same,
           Trait.ELEMENTWISE, linear_in=("a",)),
        Op("expert_input", "y[t,j,i] = x[t,i] * w[t,j]", ("x", "w"), (), {}, _expert_input,
           Trait.ELEMENTWISE, linear_in=("x", "w")),
        Op("expert_linear", "y[t,j,o] = sum_i W[idx[t,j],o,i] * x[t,(j,)i]", ("x", "idx"), ("W",), {}, _expert_linear,
           Trait.PRODUCT | Trait.MATRIX | Trait.EXPERTS | Trait.TABLE | Trait.SUMS, linear_in=("x", "W")),
        Op("expert_bias", "y[t,j,o] = x[t,j,o] + B[idx[t,j],o]", ("x", "idx"), ("B",), {}, _expert_vector,
           Trait.EXPERTS | Trait.TABLE | Trait.SUMS | Trait.ELEMENTWISE),
        Op("expert_gain", "y[t,j,o] = x[t,j,o] * s[idx[t,j]]", ("x", "idx"), ("s",), {}, _expert_vector,
           Trait.EXPERTS | Trait.TABLE | Trait.ELEMENTWISE, linear_in=("x", "s")),
        Op("expert_scale", "y[t,j,o] = x[t,j,o] * w[t,j]", ("x", "w"), (), {}, _same,
           Trait.ELEMENTWISE, linear_in=("x", "w")),
        Op("expert_sum", "y[t,o] = sum_j x[t,j,o]", ("x",), (), {}, _expert_sum,
           Trait.SUMS, linear_in=("x",)),
        Op("pool", "one row of all tokens: their mean, the first or the last", ("x",), (), {"kind": REQUIRED}, _pool,
           Trait.POOLS | Trait.SUMS | Trait.MIXES_TOKENS, linear_in=("x",)),
        Op("length", "y[t] = sqrt(sum(x[t]^2))", ("x",), (), {}, _length,
           Trait.NONE),
        Op("sparse_gate", "y = max(x - mean(x) - factor * std(x), 0), mean and std (by n - 1) over a token's features",
           ("x",), (), {"factor": REQUIRED}, _same,
           Trait.ACTIVATION | Trait.SUMS),
        Op("mix_streams", "y[t,i,:] = x[t,i,:] + sum_j c[t, i*n + j] * x[t,j,:], the n = n_stream streams side by side",
           ("x", "c"), (), {"n_stream": REQUIRED}, _mix_streams,
           Trait.SUMS, linear_in=("x",)),
        Op("add_to_streams", "y[t,i,:] = x[t,i,:] + d[t,:] * c[t,i] for i >= first, else x[t,i,:], the n_stream "
           "streams side by side; without c, the factor is 1", ("x", "d", "c?"), (),
           {"n_stream": REQUIRED, "first": 0}, _add_to_streams,
           Trait.SUMS),
        *recurrent_ops.ROWS,
        *vision_ops.ROWS,
    )
}  # fmt: skip


def register(op: Op) -> Op:
    """Add a row of another package to the table. A name that is taken is refused: it would change existing graphs."""
    if op.name in OPS:
        raise ValueError(f"operation {op.name}: the name is taken; choose another")
    if bool(op.traits & Trait.STATE) != bool(op.keeps):
        raise ValueError(f"operation {op.name}: Trait.STATE and `keeps` go together (found keeps={op.keeps!r})")
    OPS[op.name] = op
    return op
