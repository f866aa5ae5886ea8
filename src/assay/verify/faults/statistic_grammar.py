"""Generators of the grammar for the statistic of a norm: what its sum of squares is divided by, and what it is of.

divisor      n - 1, n + 1, the padded width, 1: a sum in place of a mean
values       all tokens of the call, the token before
form         the mean of sizes, no root; a variance without its mean

`group_grammar` has which features are normed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from assay.graph import Node
from assay.verify.faults.description import STATISTIC, Description, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, plant, role, standard
from assay.verify.faults.sum_grammar import normed_values

PADDING = (32, 64, 128, 256, 1024)  # multiples to which a row may be padded

# For the number of values that a norm takes: the number that divides the sum of squares.
_DIVISORS: dict[str, Callable[[int], int]] = {
    "n - 1": lambda n: n - 1,
    "n + 1": lambda n: n + 1,
    "1: a sum, not a mean": lambda n: 1,
    "the next power of two": lambda n: 1 << (n - 1).bit_length(),
    **{f"n rounded up to {k}": lambda n, k=k: -(-n // k) * k for k in PADDING},  # type: ignore[misc]
    "2 n": lambda n: 2 * n,
    "n / 2": lambda n: n // 2,
}

# Of parts [rows, n], eps and the first row of each row's call: what x (or x less its mean) is divided by, squared.
Spread = Callable[[Array, float, Array], Array]


def _calls(parts: Array, starts: Array, take: Callable[[Array], Array]) -> Array:
    """`take` of the squares of each call's rows, for all rows of the call."""
    found = np.empty((len(parts), 1), parts.dtype)
    each = len(parts) // len(starts)
    whose = np.repeat(starts, each)
    for start in np.unique(starts):
        found[whose == start] = take(parts[whose == start])
    return found


def _mean(x: Array) -> Array:
    return np.asarray(np.mean(x * x, axis=-1, keepdims=True))


def _before(x: Array, starts: Array) -> Array:
    each = len(x) // len(starts)
    ms = _mean(x)
    return np.concatenate([ms[:each], ms[:-each]]) if len(x) > each else ms


_SPREADS: dict[str, Spread] = {
    "the mean of sizes, not of squares": lambda x, eps, at: np.mean(np.abs(x), axis=-1, keepdims=True) ** 2 + eps,
    "the mean square without a root": lambda x, eps, at: (_mean(x) + eps) ** 2,
    "the mean square over all rows of the call": lambda x, eps, at: _calls(x, at, lambda r: np.mean(r * r)) + eps,
    "the mean square of the call's first row": lambda x, eps, at: _calls(x, at, lambda r: np.mean(r[0] ** 2)) + eps,
    "the mean square of the call's last row": lambda x, eps, at: _calls(x, at, lambda r: np.mean(r[-1] ** 2)) + eps,
    "the mean square of the token before": lambda x, eps, at: _before(x, at) + eps,
}


def statistics(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Another statistic: in all norms of the operation, or in those of one role."""
    found = [node for node in nodes if node.op in ("rms_norm", "layer_norm")]
    for op in dict.fromkeys(node.op for node in found):
        every = {role(n): normed_values(c, n) for n in c.model.graph if n.op == op}
        here = dict.fromkeys(role(node) for node in found if node.op == op)
        for roles in ((tuple(every),) if len(every) > 1 else ()) + tuple((name,) for name in here):
            whose = f"every {op}" if len(roles) > 1 else roles[0]
            yield from _of(op, whose, roles, [every[name] for name in roles])


def _of(op: str, whose: str, roles: Sequence[str], sizes: Sequence[int]) -> Iterator[Description]:
    what = "variance" if op == "layer_norm" else "sum of squares"
    seen = {tuple(sizes)}
    for words, divisor in _DIVISORS.items():
        counts = tuple(divisor(n) if n > 1 else n for n in sizes)
        if counts in seen or 0 in counts:
            continue
        seen.add(counts)
        yield STATISTIC, placed(f"the {what} of {whose} is divided by {words}", _divided(divisor), (op,), *roles)
    for words, spread in _SPREADS.items():
        yield STATISTIC, placed(f"{whose} divides by {words}", _spread(spread), (op,), *roles)
    if op == "layer_norm":
        words = f"the variance of {whose} is the mean square: the mean is subtracted from the value alone"
        yield STATISTIC, placed(words, _uncentred, (op,), *roles)
    yield STATISTIC, placed(f"{whose} multiplies by its weight before it normalises", _weight_first, (op,), *roles)


def _renormed(node: Node, n: int, factor: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """The node's result times a factor of each row of `n` values; its bias is not multiplied."""
    own, centres = standard(node), node.op == "layer_norm"

    def run(x: Array, *w: Array) -> Array:
        parts = x.reshape(-1, n)
        whole = parts
        parts = parts - parts.mean(-1, keepdims=True) if centres else parts
        bare = own(x, *w[:1]) if w else own(x)
        shift = own(x, *w) - bare if len(w) > 1 else 0.0
        return np.asarray((bare.reshape(-1, n) * factor(parts, whole)).reshape(x.shape) + shift)

    return run


def _divided(divisor: Callable[[int], int]) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        n, eps = normed_values(c, node), node.attr("eps")
        if n < 2 or divisor(n) in (0, n):
            return None

        def factor(x: Array, whole: Array) -> Array:
            squares = np.sum(x * x, axis=-1, keepdims=True)
            return np.asarray(np.sqrt((squares / n + eps) / (squares / divisor(n) + eps)))

        return Change(node, _renormed(node, n, factor))

    return edit


def _spread(spread: Spread) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        n, eps = normed_values(c, node), node.attr("eps")
        if not n:
            return None

        def factor(x: Array, whole: Array) -> Array:
            tokens = len(x) // max(node.attr("n_head") or 1, 1)
            return np.asarray(np.sqrt((_mean(x) + eps) / spread(x, eps, c.starts(tokens))))

        return Change(node, _renormed(node, n, factor))

    return edit


def _uncentred(c: Context, node: Node, p: float) -> Change | None:
    n, eps = normed_values(c, node), node.attr("eps")
    if not n:
        return None

    def factor(x: Array, whole: Array) -> Array:
        return np.asarray(np.sqrt((_mean(x) + eps) / (_mean(whole) + eps)))

    return Change(node, _renormed(node, n, factor))


def _weight_first(c: Context, node: Node, p: float) -> Change | None:
    n, eps = normed_values(c, node), node.attr("eps")
    if not node.weights or not n:
        return None

    def run(x: Array, w: Array, *b: Array) -> Array:
        wide = np.tile(np.asarray(w).reshape(-1), x[0].size // np.asarray(w).size).astype(x.dtype)
        parts = (x.reshape(len(x), -1) * wide).reshape(-1, n)
        if node.op == "layer_norm":
            parts = parts - parts.mean(-1, keepdims=True)
        y = (parts / np.sqrt(_mean(parts) + eps)).reshape(x.shape)
        return np.asarray(y + np.asarray(b[0]).reshape(-1) if b else y)

    return Change(node, run)


# The commonest is in the catalogue itself: the noise of a coarse arithmetic may cover it, and is searched so.
for _op, _what in (("rms_norm", "sum of squares"), ("layer_norm", "variance")):
    plant("norm-statistic", f"the {_what} of every {_op} is divided by n - 1", op=_op)(_divided(_DIVISORS["n - 1"]))

GENERATORS = (statistics,)
