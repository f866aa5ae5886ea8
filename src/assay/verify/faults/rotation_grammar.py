"""Generators of the grammar for rotations: another formula for a pair, and heads that a loop does not reach.

pair     (a cos - b sin, a sin + b cos) with a sign too few, or with cosine and sine exchanged
heads    a loop over the heads of keys rotates as many of the queries; the first heads are left out
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from assay.graph import Node
from assay.verify.faults.description import INDEX, Description, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, role, standard
from assay.verify.faults.rotary import heads

_PAIRS = "rope-type"
# Of (a, b) times the cosine, and (a, b) times the sine: the new pair.
Pair = tuple[Array, Array]
_FORMULAS: dict[str, Callable[[Pair, Pair], Pair]] = {
    "(a cos + b sin, a sin + b cos)": lambda c, s: (c[0] + s[1], s[0] + c[1]),
    "(a cos - b sin, b cos - a sin)": lambda c, s: (c[0] - s[1], c[1] - s[0]),
    "(a sin - b cos, a cos + b sin): cosine and sine exchanged": lambda c, s: (s[0] - c[1], c[0] + s[1]),
    "(a cos, b cos)": lambda c, s: c,
    "(a cos - b sin, b)": lambda c, s: (c[0] - s[1], c[1] * np.nan),
    "(a, a sin + b cos)": lambda c, s: (c[0] * np.nan, s[0] + c[1]),
}


def pairs(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Another formula: in all rotations, or in those of one role."""
    every, here = (
        list(dict.fromkeys(role(node) for node in some if node.op == "rope" and not node.attr("axes")))
        for some in (c.model.graph, nodes)
    )
    for roles in ((tuple(every),) if here and len(every) > 1 else ()) + tuple((name,) for name in here):
        whose = "rotations turn" if len(roles) > 1 else f"{roles[0]} turns"
        for words, formula in _FORMULAS.items():
            yield _PAIRS, placed(f"{whose} (a, b) to {words}", _turned(formula), ("rope",), *roles)


def _turned(formula: Callable[[Pair, Pair], Pair]) -> Edit:
    """A pair's products with cosine and sine follow from its rotations by the angle and by the angle's negative."""

    def edit(c: Context, node: Node, p: float) -> Change | None:
        own, n, first = standard(node), node.attr("n_rot"), node.attr("offset")
        if node.attr("mode") == "norm":
            at, beside = slice(first, first + n, 2), slice(first + 1, first + n, 2)
        else:
            at, beside = slice(first, first + n // 2), slice(first + n // 2, first + n)

        def run(x: Array, positions: Array, *factors: Array) -> Array:
            there, back = own(x, positions, *factors), own(x, -positions, *factors)
            cos, sin = (there + back) / 2, (there - back) / 2  # sin: (-b, a) times the sine
            y, plain = there.copy(), heads(node, x)
            made = formula((cos[..., at], cos[..., beside]), (sin[..., beside], -sin[..., at]))
            for place, value in zip((at, beside), made, strict=True):
                y[..., place] = np.where(np.isnan(value), plain[..., place], value)  # a value that is not written
            return y

        return None if node.attr("axes") else Change(node, run)

    return edit


def some_heads(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The heads from one on that are not rotated: as many are as the keys have, or half of them."""
    for node in nodes:
        if node.op != "rope" or (n := int(node.attr("n_head"))) < 3:
            continue
        for k in dict.fromkeys((int(c.at(node).hp.n_head_kv), n // 2, 1)):
            if 0 < k < n - 1:
                label = f"the heads from {k} on of {role(node)} are not rotated"
                yield INDEX, placed(label, _unrotated(k, None), ("rope",), role(node))
                label = f"the heads before {k} of {role(node)} are not rotated"
                yield INDEX, placed(label, _unrotated(0, k), ("rope",), role(node))


def _unrotated(first: int, end: int | None) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)

        def run(x: Array, *rest: Array) -> Array:
            y, plain = heads(node, own(x, *rest)).copy(), heads(node, x)
            y[:, first:end] = plain[:, first:end]
            return y

        return Change(node, run)

    return edit


GENERATORS = (pairs, some_heads)
