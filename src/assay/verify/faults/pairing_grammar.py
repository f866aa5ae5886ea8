"""Generators of the grammar for pairs: an expert gets another one's weight, because lists of both are in two orders.

by rank           the order of the scores, which the definition has
by another key    the ids, the reverse, the order that a partial sort or a loop over the smallest slot leaves
as it was dumped  the order in which the dump has a token's experts

The values of a row decide which of them the orders exchange, so one rule exchanges the weights of some tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from assay.graph import Node
from assay.verify.faults.description import INDEX, Description, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, role, sibling, standard

_WEIGHING = ("expert_scale", "expert_input")
Ids = NDArray[np.int64]
# Of the ids of a token's experts by rank [T, k], and the scores of all experts [T, n]: the ids in another order.
Order = Callable[[Ids, Array], Ids]


def _partial(sign: int, kth: int) -> Order:
    """The experts as NumPy's partial sort around place k + `kth` of the falling scores, or k of the rising, leaves them."""

    def order(ids: Ids, scores: Array) -> Ids:
        k, n = ids.shape[1], scores.shape[-1]
        if k >= n:
            return ids
        found = np.argpartition(sign * scores, k + kth if sign < 0 else n - k, axis=-1)
        return found[:, :k] if sign < 0 else found[:, n - k :]

    return order


def _smallest_slot(ids: Ids, scores: Array) -> Ids:
    """A loop over all experts: each replaces the smallest of k slots, if it is larger."""
    found = np.zeros_like(ids)
    for t, row in enumerate(scores):
        slots, best = list(range(ids.shape[1])), [float(row[j]) for j in range(ids.shape[1])]
        for e in range(ids.shape[1], len(row)):
            at = int(np.argmin(best))
            if row[e] > best[at]:
                slots[at], best[at] = e, float(row[e])
        found[t] = slots
    return found


_ORDERS: dict[str, Order] = {
    "by index": lambda ids, scores: np.sort(ids, axis=-1),
    "in reverse order of their scores": lambda ids, scores: ids[:, ::-1],
    "as argpartition of the negative scores leaves them": _partial(-1, 0),
    "as argpartition of the negative scores at k - 1 leaves them": _partial(-1, -1),
    "as argpartition of the scores leaves them": _partial(1, 0),
    "as a loop that replaces the smallest of k slots leaves them": _smallest_slot,
}


def pairs(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The weights of a token's experts in another order than the experts."""
    for node in (n for n in nodes if n.op in _WEIGHING):
        at = (node.op,), role(node)
        for words, order in _ORDERS.items():
            yield INDEX, placed(f"the experts are {_words(words)}, their weights by score", _paired(order, False), *at)
            if words.startswith("in reverse"):
                continue  # its own inverse
            yield INDEX, placed(f"the experts are sorted by score, their weights {words}", _paired(order, True), *at)
        if any(name.startswith("ffn_moe_topk") for name in c.chosen):
            for weights, words in (
                (False, "the experts are in the order of the dump, their weights by score"),
                (True, "the experts are sorted by score, their weights in the order of the dump's experts"),
            ):
                yield INDEX, placed(words, _paired(None, weights), *at)


def _words(words: str) -> str:
    return "sorted by index" if words == "by index" else words


def _paired(order: Order | None, weights: bool) -> Edit:
    """The experts, or with `weights` their weights, in that order, the others by rank; without an order, the dump's."""

    def edit(c: Context, node: Node, p: float) -> Change | None:
        best = sibling(c, node, "ffn_moe_topk")
        sort = c.model.graph.by_name.get(best.inputs[0]) if best is not None else None
        if best is None or sort is None or int(c.model.graph.shapes[best.name][-1]) < 2:
            return None
        seen = c.chosen.get(best.name)
        if order is None and seen is None:
            return None
        scores = sort.inputs[0]
        own = standard(node)

        def run(x: Array, w: Array, ids: Array, by: Array) -> Array:
            other = _as_seen(ids, seen) if order is None else order(ids, by)
            place = np.argmax(other[:, None, :] == ids[:, :, None], axis=-1)  # of each rank, its place in that order
            place = np.argsort(place, axis=-1) if weights else place
            return own(x, np.take_along_axis(w.reshape(ids.shape), place, axis=-1).reshape(w.shape))

        return Change(replace(node, inputs=(*node.inputs, best.name, scores)), run)

    return edit


def _as_seen(ids: Ids, seen: Ids | None) -> Ids:
    """The dump's order of a token's experts, where it has the same ones."""
    if seen is None or seen.shape != ids.shape:
        return ids
    same = (np.sort(seen, axis=-1) == np.sort(ids, axis=-1)).all(-1, keepdims=True)
    return np.where(same, seen, ids)


GENERATORS = (pairs,)
