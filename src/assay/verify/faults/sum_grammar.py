"""Generators of the grammar for sums: which of its terms a sum leaves out.

a norm          the sum of squares has some of the features, and is divided by the number of all
scores          the product of query and key has some of a head's values
probabilities   the sum that they are divided by has some of the keys; so has the sum of values
experts         one of the chosen experts is not added

The parts that are left out are those of `buffer_grammar`: the rest of a division by lanes, one worker's share; and a
first or last term, which a loop from 1 or to n - 1 leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from assay.graph import Node, Trait
from assay.verify.faults.buffer_grammar import Hole, distinct, holed, rest, share
from assay.verify.faults.description import SHORT, Description, features, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, role, sibling, standard

LANES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)  # terms that a vector, a block or a workgroup adds at once
ODD = (3, 5, 6, 7)  # workers among which terms are divided
SHARES = (2, 4, 8, 3)  # workers of which one is not added
KEY_LANES = (2, 4, 8, 16, 32)  # keys that a loop takes at once


def _last(n: int) -> tuple[int, int]:
    return n - 1, n


def _first(n: int) -> tuple[int, int]:
    return 0, 1


_PARTS: dict[str, Hole] = {
    "the last of {}": _last,
    "the first of {}": _first,
    **{f"the last n % {k} of {{}}": partial(rest, k) for k in LANES},
    **{f"part {k + 1} of {n} of {{}}": partial(share, n, k) for n in SHARES for k in range(n)},
    **{f"the last n % {k} of {{}}": partial(rest, k) for k in ODD},
}


def norms(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The sum of squares of a norm: in all norms, or in those of one role."""
    found = [node for node in nodes if node.has(Trait.NORM)]
    sizes = {role(node): normed_values(c, node) for node in found}
    every = {role(n): normed_values(c, n) for n in c.model.graph if n.has(Trait.NORM)} if found else {}
    for roles in (dict.fromkeys(every), *({name: None} for name in sizes)):
        whose = "every norm" if len(roles) > 1 else next(iter(roles), "")
        for words, hole in distinct({name: every[name] for name in roles}, _PARTS):
            if any(holed(hole, n) for n in sizes.values()):
                left = words.format("its n values")
                label = f"the sum of squares of {whose} leaves out {left}"
                yield SHORT, placed(label, _squares(hole), (), *roles, when=lambda c, n: n.has(Trait.NORM))


def normed_values(c: Context, node: Node) -> int:
    """The number of values that are normed together; 0 where rows are not those of tokens."""
    return features(c, node.name) // (node.attr("n_head") or 1)


def _squares(hole: Hole) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        n = normed_values(c, node)
        if not n or not holed(hole, n):
            return None
        own, eps, (first, end) = standard(node), node.attr("eps"), hole(n)
        centres = node.op == "layer_norm"

        def run(x: Array, *w: Array) -> Array:
            parts = x.reshape(-1, n)
            parts = parts - parts.mean(-1, keepdims=True) if centres else parts
            squares = parts * parts
            right = squares.sum(-1, keepdims=True)
            short = right - squares[:, first:end].sum(-1, keepdims=True)
            factor = np.sqrt((right / n + eps) / (short / n + eps))
            bare = own(x, *w[:1]) if w else own(x)
            shift = own(x, *w) - bare if len(w) > 1 else 0.0
            return np.asarray((bare.reshape(-1, n) * factor).reshape(x.shape) + shift)

        return Change(node, run)

    return edit


def scores(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The product of a query and a key."""
    for node in nodes:
        if not node.has(Trait.KEYS) or node.attr("n_head"):
            continue
        width = int(c.model.graph.shapes[node.inputs[0]][-1])
        for words, hole in distinct({"": width}, _PARTS):
            label = f"the product of query and key leaves out {words.format('the n values of a head')}"
            yield SHORT, placed(label, _of_heads(hole), (node.op,), role(node))


def _of_heads(hole: Hole) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)

        def run(q: Array, k: Array) -> Array:
            first, end = hole(q.shape[-1])
            q = q.copy()
            q[..., first:end] = 0
            return own(q, k)

        return Change(node, run)

    return edit


def _of_keys(c: Context) -> dict[str, Hole]:
    """Of n keys that a query sees, those that a loop leaves out."""
    lanes = {f"the last n % {k} of n keys": partial(rest, k) for k in KEY_LANES if k < sum(c.steps)}
    return {"the last key": _last, "the first key": _first, **lanes}


def keys(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The sums over keys: of the values, and of the exponentials that probabilities are divided by."""
    sums = {
        "kqv": ("the sum of values leaves out {}", _values),
        "attn_softmax": ("the sum of the softmax leaves out {}", _exponentials),
    }
    for node in nodes:
        if node.op not in sums or sibling(c, node, "kq_soft_max") is None:
            continue
        words, edit = sums[node.op]
        for what, hole in _of_keys(c).items():
            yield SHORT, placed(words.format(what), edit(hole), (node.op,), role(node))


def _seen(hole: Hole, n: int, total: int) -> Array:
    """Which keys the sum of each of n queries has: query t sees the keys up to its own."""
    found = np.ones((n, total), bool)
    for t in range(n):
        first, end = hole(t + 1)
        if end - first < t + 1:  # a query whose keys would all be left out is computed otherwise
            found[t, first:end] = False
    return found


def _values(hole: Hole) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)
        return Change(node, lambda p, v: own(np.where(_seen(hole, p.shape[1], p.shape[2]), p, 0.0), v))

    return edit


def _exponentials(hole: Hole) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)

        def run(*operands: Array) -> Array:
            y = own(*operands)
            return np.asarray(y / np.sum(np.where(_seen(hole, *y.shape[1:]), y, 0.0), axis=-1, keepdims=True))

        return None if node.weights else Change(node, run)

    return edit


_RANKS: dict[str, Hole] = {
    "the last of the chosen experts is not added": _last,
    "the first of the chosen experts is not added": _first,
    "the second of the chosen experts is not added": lambda n: (min(1, n), min(2, n)),
    "the third of the chosen experts is not added": lambda n: (min(2, n), min(3, n)),
    "only the first of the chosen experts is added": lambda n: (1, n),
    "only the last of the chosen experts is added: its result overwrites the others'": lambda n: (0, n - 1),
    "the last two of the chosen experts are not added": lambda n: (n - 2, n),
}


def experts(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """One of a token's experts, by its rank: not added, or not among those whose weights sum to 1."""
    for node in nodes:
        n = int(c.model.graph.shapes[node.inputs[0]][1]) if node.op == "expert_sum" else 0
        for words, hole in distinct({role(node): n}, _RANKS) if n > 1 else ():
            yield SHORT, placed(words, _unadded(hole), (node.op,), role(node))
        if node.op == "gather" and role(node) == "ffn_moe_weights":
            label = "one expert too few: the last of the chosen has no weight"
            yield SHORT, placed(label, _too_few, (node.op,), role(node))


def _unadded(hole: Hole) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)

        def run(x: Array) -> Array:
            first, end = hole(x.shape[1])
            return own(np.delete(x, slice(first, end), axis=1))

        return Change(node, run)

    return edit


def _too_few(c: Context, node: Node, p: float) -> Change | None:
    own = standard(node)
    none = -np.inf if sibling(c, node, "ffn_moe_weights_softmax") is not None else 0.0

    def run(*operands: Array) -> Array:
        w = own(*operands).copy()
        w[:, -1] = none
        return w

    return Change(node, run) if int(c.model.graph.shapes[node.name][-1]) > 1 else None


GENERATORS = (norms, scores, keys, experts)
