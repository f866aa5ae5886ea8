"""Generators of the grammar for numbers on the way: what is computed in integers, or from another sequence.

positions      divided in integers, by the scale of the rotation or by a power of two; one less from a token on
frequencies    another exponent: a loop over the wrong index, a sequence that includes its end
heads          another group of keys and values for a query head, another head's sink
scale          a root that is rounded, or of another width
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from assay.graph import Node
from assay.verify.faults.attention_edits import reads_heads
from assay.verify.faults.description import FREQUENCIES, INDEX, INTEGERS, Description, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, role, standard
from assay.verify.faults.rotary import turned

DIVISORS = (2, 4, 8, 16, 32, 64)
MOST_POSITIONS = 64  # that are tried one by one


def positions(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Positions that are divided in integers. Of divisors that make all positions 0, none: that is no rotation."""
    ropes = [node for node in nodes if node.op == "rope"]
    total = sum(c.steps)
    factors = {_divisor(node) for node in ropes} - {0}
    for k in sorted(factors):
        for words, how in _ROUNDED.items():
            if len(np.unique(how(np.arange(total), k))) > 1:
                yield INTEGERS, placed(words.format(k=k), _scaled_so(how), ("rope",))
    for k in DIVISORS if ropes else ():
        if k < total:
            yield INTEGERS, placed(f"positions are divided in integers: pos // {k}", _divided(k), ("rope",))


# Of positions and the factor by which they are divided: whole numbers.
_ROUNDED: dict[str, Callable[[Array, int], Array]] = {
    "positions are scaled in integers: pos // {k}": lambda pos, k: pos // k,
    "scaled positions are rounded: round(pos / {k})": lambda pos, k: np.floor(pos / k + 0.5),
    "scaled positions are rounded up: ceil(pos / {k})": lambda pos, k: -(-pos // k),
}


def _divisor(node: Node) -> int:
    """The whole number by which the node divides its positions; 0 if it divides by none."""
    scale = float(node.attr("freq_scale"))
    k = round(1 / scale) if 0 < scale < 1 else 0
    return k if k > 1 and abs(scale * k - 1) < 1e-5 and not node.attr("ext_factor") else 0


def _scaled_so(how: Callable[[Array, int], Array]) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        k = _divisor(node)
        return Change(node, lambda x, pos, *f: turned(node, x, how(pos, k), f, freq_scale=1.0)) if k else None

    return edit


def _divided(k: int) -> Edit:
    return lambda c, node, p: Change(node, lambda x, pos, *f: turned(node, x, pos // k, f))


def repeated(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """A position that is not counted on: it is given twice, and the second row replaces the first in the cache."""
    ops = {node.op for node in nodes}
    total = min(sum(c.steps), MOST_POSITIONS)
    for at in range(1, total) if "rope" in ops else ():
        for step in (-1, 1):
            words = f"from token {at} on rotations have the position {'-' if step < 0 else '+'} 1"
            yield INDEX, placed(words, _moved_from(at, step, replaces=False), ("rope",))
    for at in range(max(1, c.steps[0]), total) if ops & {"rope", "attn_softmax"} and len(c.steps) > 1 else ():
        words = f"token {at} has the position of token {at - 1} and replaces it in the cache; so do the later ones"
        yield INDEX, placed(words, _moved_from(at, -1, replaces=True), ("rope", "attn_softmax"))


def _moved_from(at: int, step: int, *, replaces: bool) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        if node.op == "rope":
            return Change(node, lambda x, pos, *f: turned(node, x, pos + step * (np.arange(len(pos)) >= at), f))
        own = standard(node)
        if not replaces or node.attr("scale") <= 0:
            return None

        def run(x: Array, *rest: Array) -> Array:
            rows, keys = np.arange(x.shape[1])[:, None], np.arange(x.shape[2])[None, :]
            return own(np.where((rows >= at) & (keys == at - 1), -np.inf, x), *rest)

        return Change(node, run)

    return edit


# -- frequencies -------------------------------------------------------------------------------------------------------

# The exponent of the base for pair i of n: right is i / n.
_EXPONENTS: dict[str, Callable[[Array, int], Array]] = {
    "2 (i + 1) / d, not 2i / d": lambda i, n: (i + 1) / n,
    "2i / (d - 2): the sequence includes its end": lambda i, n: i / max(n - 1, 1),
    "2i // d in integers, which is 0": lambda i, n: 0 * i,
    "(d - 2i) / d: the sequence runs backwards": lambda i, n: (n - i) / n,
    "(d - 2 - 2i) / d: the sequence is in reverse order": lambda i, n: (n - 1 - i) / n,
}
_NTK = (2, 4, 8)  # factors by which a context may be stretched


def frequencies(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Another sequence of frequencies, in all rotations."""
    ropes = [node for node in nodes if node.op == "rope"]
    if not ropes or all(node.attr("n_rot") < 4 for node in ropes):
        return
    for words, exponent in _EXPONENTS.items():
        yield FREQUENCIES, placed(f"the base has the exponent -{words}", _exponents(exponent), ("rope",))
    for k in sorted({*_NTK, *(_divisor(node) for node in ropes)} - {0}):
        yield FREQUENCIES, placed(f"the base is multiplied by {k}^(d / (d - 2))", _stretched(k), ("rope",))


def _exponents(exponent: Callable[[Array, int], Array]) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        n, base = int(node.attr("n_rot")) // 2, float(node.attr("base"))
        i = np.arange(n)
        ratio = base ** (exponent(i, n) - i / n)  # factors divide the angles
        return Change(node, lambda x, pos, *f: turned(node, x, pos, (ratio * f[0].astype(np.float64) if f else ratio,)))

    return edit


def _stretched(k: int) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        width = int(node.attr("n_rot"))
        if width <= 2:
            return None
        return Change(node.with_attrs(base=float(node.attr("base")) * k ** (width / (width - 2)), freq_scale=1.0))

    return edit


# -- groups of heads ---------------------------------------------------------------------------------------------------

# The key and value head of query head h, of n, where each of m has `n // m` query heads.
_GROUPS: dict[str, Callable[[NDArray[np.int64], int, int], NDArray[np.int64]]] = {
    "h % (n_head / n_kv)": lambda h, n, m: np.minimum(h % (n // m), m - 1),
    "min(h, n_kv - 1)": lambda h, n, m: np.minimum(h, m - 1),
    "(h + 1) // (n_head / n_kv)": lambda h, n, m: np.minimum((h + 1) // (n // m), m - 1),
    "h // (n_head / n_kv + 1)": lambda h, n, m: h // (n // m + 1),
    "the groups in reverse order": lambda h, n, m: m - 1 - h // (n // m),
    "the first for all": lambda h, n, m: 0 * h,
    "the last for all": lambda h, n, m: 0 * h + m - 1,
}
_PAIRED = {"keys and values": ("kq", "kqv"), "keys": ("kq",), "values": ("kqv",)}


def groups(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Another group for a query head: for keys, values, or both."""
    ops = {node.op for node in nodes}
    some = {words: group for words, group in _GROUPS.items() if _order(c, group) is not None}
    for what, readers in _PAIRED.items():
        for words, group in some.items() if ops & set(readers) else ():
            yield INDEX, placed(f"query head h uses the {what} of head {words}", _grouped(group), readers)


Group = Callable[[NDArray[np.int64], int, int], NDArray[np.int64]]


def _order(c: Context, group: Group) -> NDArray[np.int64] | None:
    """The key head of every query head; None for the right groups, and for neighbours, which have a description."""
    n, m = int(c.hp.n_head), int(c.hp.n_head_kv)
    if not 1 < m < n or n % m:
        return None
    order, right = group(np.arange(n), n, m), np.arange(n) // (n // m)
    return None if any(np.array_equal(order, (right + step) % m) for step in (-1, 0, 1)) else order


def _grouped(group: Group) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        order, own = _order(c, group), standard(node)
        if order is None or not reads_heads(c, node):
            return None
        return Change(node, lambda a, kv: own(a, kv[:, order]))

    return edit


# The head whose sink query head h of n has, if each of m key heads has n // m query heads.
_SINKS: dict[str, Callable[[NDArray[np.int64], int, int], NDArray[np.int64]]] = {
    "its key head": lambda h, n, m: h // (n // m),
    "head h % n_kv": lambda h, n, m: h % m,
    "head h + 1": lambda h, n, m: (h + 1) % n,
    "head h - 1": lambda h, n, m: (h - 1) % n,
    "head 0": lambda h, n, m: 0 * h,
    "the head as counted from the last": lambda h, n, m: n - 1 - h,
}


def sinks(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Another head's sink."""
    for words, head in _SINKS.items() if any(n.op == "attn_softmax" and n.weights for n in nodes) else ():
        yield INDEX, placed(f"a query head takes the sink of {words}", _sunk(head), ("attn_softmax",))


def _sunk(head: Callable[[NDArray[np.int64], int, int], NDArray[np.int64]]) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        n, m, own = int(c.hp.n_head), max(int(c.hp.n_head_kv), 1), standard(node)
        if not node.weights or n % m:
            return None
        order = head(np.arange(n), n, m)
        return Change(node, lambda *operands: own(*operands[:-1], np.asarray(operands[-1])[order]))

    return edit


# -- the scale of scores -----------------------------------------------------------------------------------------------

# The scale of scores for a head's width d.
_SCALES: dict[str, Callable[[int], float]] = {
    "1 / d": lambda d: 1 / d,
    "d^(-1/4)": lambda d: d**-0.25,
    "1 / int(sqrt(d))": lambda d: 1 / int(math.sqrt(d)),
    "1 / round(sqrt(d))": lambda d: 1 / round(math.sqrt(d)),
    "1 / ceil(sqrt(d))": lambda d: 1 / math.ceil(math.sqrt(d)),
    "1 / sqrt(d / 2)": lambda d: math.sqrt(2 / d),
    "1 / sqrt(2 d)": lambda d: 1 / math.sqrt(2 * d),
    "ln(2) / sqrt(d): powers of 2 in place of e": lambda d: math.log(2) / math.sqrt(d),
    "sqrt(d)": lambda d: math.sqrt(d),
}


def scales(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Another scale, where the right one is 1 / sqrt(d): each other number once."""
    found: set[float] = set()
    for node in nodes:
        width = int(c.at(node).hp.n_embd_head)
        if node.op != "attn_softmax" or abs(c.at(node).hp.attn_scale * math.sqrt(width) - 1) > 1e-6:
            continue
        for words, scale in _SCALES.items():
            factor = scale(width) * math.sqrt(width)
            if abs(factor - 1) > 1e-9 and round(factor, 9) not in found:
                found.add(round(factor, 9))
                yield INTEGERS, placed(f"scores are scaled by {words}", _times(factor), (node.op,), role(node))


def _times(factor: float) -> Edit:
    return lambda c, node, p: Change(node.with_attrs(scale=node.attr("scale") * factor))


GENERATORS = (positions, repeated, groups, sinks, scales, frequencies)
