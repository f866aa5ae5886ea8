"""The operations of vision towers: rows regrouped by index, tables of positions resized, RoPE in two dimensions.

Rows of the operation table like those of `ops.py`, which adds them. A tower's number of rows changes where patches
become tokens. `T` then stands for the rows of that part of the graph: an operation with `Trait.REGROUPS` gives rows for
other tokens than it reads. Such an operation only moves rows, or sums a few of them. `engines/plan/segments.py`
computes it on the host, with the same bits for every engine, and the engine runs the parts of the graph between such
operations.

Which rows, angles and weights depends on the size of the picture. They are values that the caller gives.
Touch this when a tower needs a further operation.
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.graph.op_row import REQUIRED, Attrs, Op, Shape, ShapeError, Trait, expect, flat_width, split_heads


def _take(a: Attrs, ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    width = flat_width(ins[0])
    if w:
        expect("the further row differs from the others in width", w[0][-1], width)
    if a["n"] < 1:
        raise ShapeError(f"n must be at least 1 (found {a['n']})")
    return ("T", a["n"] * width)


def _mean(_a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    return ("T", flat_width(ins[0]))


def _mix(_a: Attrs, _ins: Sequence[Shape], w: Sequence[Shape]) -> Shape:
    if len(w[0]) != 2:
        raise ShapeError(f"the table has the wrong number of axes (found {list(w[0])}, expected 2 axes)")
    return ("T", w[0][1])


def _rope(a: Attrs, ins: Sequence[Shape], _w: Sequence[Shape]) -> Shape:
    shape = split_heads((ins[0][0], flat_width(ins[0])), a["n_head"])
    n_rot = int(ins[1][-1])
    if n_rot % 2 or n_rot < 2 or a["offset"] < 0 or a["offset"] + n_rot > int(shape[2]):
        raise ShapeError(f"the table must be even and at most the head width {shape[2]} (found {n_rot})")
    return shape


ROWS: tuple[Op, ...] = (
    Op("take_rows", "y[t] = the n rows x[idx[t,0]], x[idx[t,1]], … one after the other, or with `apart` channel by "
       "channel; indices past the last row of x are rows of the weight", ("x", "idx"), ("more?",),
       {"n": 1, "apart": False}, _take,
       Trait.MOVES | Trait.MIXES_TOKENS | Trait.REGROUPS | Trait.EXACT, linear_in=("x",)),
    Op("mean_rows", "y[t] = (x[idx[t,0]] + x[idx[t,1]] + …) / n, n indices for each t", ("x", "idx"), (), {}, _mean,
       Trait.SUMS | Trait.MIXES_TOKENS | Trait.REGROUPS, linear_in=("x",)),
    Op("mix_rows", "y[t] = c[t,0] W[idx[t,0]] + c[t,1] W[idx[t,1]] + …: a table of positions, resized to the picture",
       ("idx", "c"), ("W",), {}, _mix,
       Trait.TABLE | Trait.SUMS | Trait.POSITIONAL | Trait.REGROUPS, linear_in=("W",)),
    Op("rope_given", "each pair (a, b) of a head turned by the angle θ_i that table[t] gives, its n cosines and then "
       "its n sines: (a cos θ - b sin θ, a sin θ + b cos θ)", ("x", "table"), (),
       {"n_head": REQUIRED, "mode": "norm", "offset": 0}, _rope,
       Trait.POSITIONAL, linear_in=("x",)),
)  # fmt: skip
