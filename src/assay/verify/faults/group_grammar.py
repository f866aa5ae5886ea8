"""Generators of the grammar for the groups of a norm: which features are normed together, by whose statistic.

together    some heads, all heads of a row, parts of a head or of a row
whose       every head by the statistic of the first, of the last, of the head before
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from assay.graph import Node
from assay.verify.faults.description import STATISTIC, Description, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, role
from assay.verify.faults.sum_grammar import normed_values

PARTS = (2, 4, 8, 16)  # groups of features
_OPS = ("rms_norm", "layer_norm", "l2_norm")


def groups(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Other groups of features: in all norms of the operation, or in those of one role."""
    found = [node for node in nodes if node.op in _OPS and normed_values(c, node)]
    for op in dict.fromkeys(node.op for node in found):
        every = list(dict.fromkeys(role(n) for n in c.model.graph if n.op == op and normed_values(c, n)))
        here = dict.fromkeys(role(node) for node in found if node.op == op)
        for roles in ((tuple(every),) if len(every) > 1 else ()) + tuple((name,) for name in here):
            whose = f"every {op}" if len(roles) > 1 else roles[0]
            some = [node for node in found if node.op == op and role(node) in roles]
            yield from _of(c, op, whose, roles, some)


def _of(c: Context, op: str, whose: str, roles: Sequence[str], nodes: Sequence[Node]) -> Iterator[Description]:
    sizes = {normed_values(c, node) for node in nodes}
    counts = {node.attr("n_head") or 1 for node in nodes}
    own = {n for node in nodes for n in (c.at(node).hp.n_head, c.at(node).hp.n_head_kv)}
    for n in sorted({*PARTS, *own}):
        if n > 1 and any(size > n and size % n == 0 for size in sizes):
            yield STATISTIC, placed(f"{whose} takes {n} groups of features apart", _parts(n), (op,), *roles)
    most = max(counts)
    if most < 2:
        return
    yield STATISTIC, placed(f"{whose} takes the whole row and not its heads", _together(most), (op,), *roles)
    for n in (n for n in range(2, most) if most % n == 0):
        yield STATISTIC, placed(f"{whose} takes {n} heads together", _together(n), (op,), *roles)
    for words, take in _WHOSE.items():
        yield STATISTIC, placed(f"{whose} divides every head by the root of {words}", _whose(take), (op,), *roles)


# Of the roots [T, H, 1] of a row's heads: those that the heads are divided by.
_WHOSE: dict[str, Callable[[Array], Array]] = {
    "the first head": lambda root: root[:, :1],
    "the last head": lambda root: root[:, -1:],
    "the head before": lambda root: np.concatenate([root[:, :1], root[:, :-1]], axis=1),
}


def _root(node: Node, parts: Array) -> Array:
    """The divisor of the values of each part."""
    squares, eps = np.sum(parts * parts, axis=-1, keepdims=True), node.attr("eps")
    if node.op != "l2_norm":
        return np.asarray(np.sqrt(squares / parts.shape[-1] + eps))
    return np.maximum(np.sqrt(squares), eps) if node.attr("floor") else np.asarray(np.sqrt(squares + eps))


def _normed(c: Context, node: Node, size: int, root: Callable[[Array], Array] = lambda root: root) -> Change:
    """The node with groups of `size` values, divided by `root` of their roots."""
    shape = c.model.graph.shapes[node.name][1:]

    def run(x: Array, *w: Array) -> Array:
        parts = x.reshape(len(x), -1, size)
        if node.op == "layer_norm":
            parts = parts - parts.mean(-1, keepdims=True)
        y = (parts / root(_root(node, parts))).reshape(len(x), -1)
        for i, weight in enumerate(w):
            each = np.tile(np.asarray(weight).reshape(-1), y.shape[-1] // np.asarray(weight).size)
            y = y * each if i == 0 else y + each
        return np.asarray(y.reshape(len(x), *shape))

    return Change(node, run)


def _parts(n: int) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        size = normed_values(c, node)
        return _normed(c, node, size // n) if size > n and size % n == 0 else None

    return edit


def _together(n: int) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        size, heads = normed_values(c, node), node.attr("n_head") or 1
        most = min(n, heads)  # of queries and keys in one name the keys may have fewer heads
        return _normed(c, node, most * size) if size and most > 1 and heads % most == 0 else None

    return edit


def _whose(take: Callable[[Array], Array]) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        size = normed_values(c, node)
        return _normed(c, node, size, take) if size and (node.attr("n_head") or 1) > 1 else None

    return edit


GENERATORS = (groups,)
