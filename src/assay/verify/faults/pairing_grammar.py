"""Generators of the grammar for pairs: an expert gets another one's weight, because lists of both are in two orders.

by rank           the order of the scores, which the definition has
by another key    the ids, the reverse, the order that a partial sort or a loop over the smallest slot leaves
another choice    the experts are the first ones, the worst, the next best, another token's
as it was dumped  the order in which the dump has a token's experts

Experts that are listed in another order with their own weights are no mistake (`moe-choice-order`).

The values of a row decide which of them the orders exchange, so one rule exchanges the weights of some tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from assay.graph import Node
from assay.verify.faults.description import INDEX, LISTED, Description, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, role, sibling, standard

_SORTED_AT_TWO = (
    "as argpartition of the negative scores at k - 1 leaves them"  # place k - 1 is right, so two are sorted
)
_WEIGHING = ("expert_scale", "expert_input")
_CHOICE, _WEIGHTS = "ffn_moe_topk", "ffn_moe_weights"
_REVERSE, _DUMPED = "in reverse order of their scores", "in the order of the dump"
Ids = NDArray[np.int64]
# Of the ids of a token's experts by rank [T, k], and the scores of all experts [T, n]: the ids in another order.
Order = Callable[[Ids, Array], Ids]


def _partial(sign: int, kth: int) -> Order:
    """The experts as NumPy's partial sort leaves them: the k best of falling or of rising scores."""

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
    _REVERSE: lambda ids, scores: ids[:, ::-1],
    "as argpartition of the negative scores leaves them": _partial(-1, 0),
    _SORTED_AT_TWO: _partial(-1, -1),
    "as argpartition of the scores leaves them": _partial(1, 0),
    "as a loop that replaces the smallest of k slots leaves them": _smallest_slot,
}


def pairs(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The weights of a token's experts in another order than the experts."""
    chosen = [name for name in c.chosen if name.startswith(_CHOICE)]
    orders: dict[str, Order | None] = {**_ORDERS, **({_DUMPED: None} if chosen else {})}
    if max((node.attr("k") for node in c.model.graph if role(node) == _CHOICE), default=0) < 3:
        del orders[_SORTED_AT_TWO]
    for node in (n for n in nodes if n.op in _WEIGHING):
        for words, order in orders.items():
            at = (node.op,), role(node)
            yield INDEX, placed(f"the experts are {_words(words)}, their weights by score", _paired(order, False), *at)
            if words != _REVERSE:  # its own inverse
                label = f"the experts are sorted by score, their weights {words}"
                yield INDEX, placed(label, _paired(order, True), *at)
    if not chosen or not {_CHOICE, _WEIGHTS} & {role(node) for node in nodes}:
        return
    for words, order in orders.items():
        both = ("topk", "gather"), _CHOICE, _WEIGHTS
        yield INDEX, placed(f"the experts are {_words(words)}, their weights by score", _listed(order, True), *both)
        benign = f"the experts are {_words(words)}, each with its own weight"
        yield LISTED, placed(benign, _listed(order, False), *both)


def _listed(order: Order | None, by_rank: bool) -> Edit:
    """The choice itself in that order. The weights are by rank or in its order, which dumped weights tell."""

    def edit(c: Context, node: Node, p: float) -> Change | None:
        best = sibling(c, node, _CHOICE)
        sort = c.model.graph.by_name.get(best.inputs[0]) if best is not None else None
        if best is None or sort is None or int(c.model.graph.shapes[best.name][-1]) < 2:
            return None
        seen, own, n = c.chosen.get(best.name), standard(node), len(node.inputs)

        def run(*operands: Array) -> Array:
            by = operands[n]
            if node.name == best.name:
                ids = own(*operands[:n])
                return _as_seen(ids, seen) if order is None else order(ids, by)
            ids = operands[1]
            if not by_rank:
                return own(operands[0], ids)
            ranks = np.argsort(-np.take_along_axis(by, ids, axis=-1), axis=-1, kind="stable")
            return own(operands[0], np.take_along_axis(ids, ranks, axis=-1))

        return Change(replace(node, inputs=(*node.inputs, sort.inputs[0])), run)

    return edit


def _words(words: str) -> str:
    return "sorted by index" if words == "by index" else words


# Of the ids in the order of their scores [T, n], and k: the experts that a wrong choice takes.
_CHOICES: dict[str, Callable[[Ids, int], Ids]] = {
    "the first ones by index: nothing is sorted": lambda ids, k: np.broadcast_to(np.arange(k), (len(ids), k)),
    "the last ones by index": lambda ids, k: np.broadcast_to(np.arange(ids.shape[1] - k, ids.shape[1]), (len(ids), k)),
    "those of the smallest scores": lambda ids, k: ids[:, : -k - 1 : -1],
    "those after the best: ranks from 1 on": lambda ids, k: ids[:, 1 : k + 1],
    "the best one for all": lambda ids, k: np.repeat(ids[:, :1], k, axis=1),
    "those of the token before": lambda ids, k: np.concatenate([ids[:1, :k], ids[:-1, :k]]),
    "those of the first token": lambda ids, k: np.repeat(ids[:1, :k], len(ids), axis=0),
    "those of the last token": lambda ids, k: np.repeat(ids[-1:, :k], len(ids), axis=0),
}


def choices(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Other experts are chosen; their weights are those of the chosen ones."""
    for node in (n for n in nodes if n.op == "topk" and role(n) == _CHOICE):
        for words, choice in _CHOICES.items():
            label = f"the chosen experts are {words}"
            yield INDEX, placed(label, _choosing(choice), (node.op,), role(node))


def _choosing(choice: Callable[[Ids, int], Ids]) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        k, n = int(node.attr("k")), int(c.model.graph.shapes[node.inputs[0]][-1])
        return Change(node, lambda ids: np.ascontiguousarray(choice(ids, k))) if k < n else None

    return edit


def _paired(order: Order | None, weights: bool) -> Edit:
    """The experts, or with `weights` their weights, in that order, the others by rank; without an order, the dump's."""

    def edit(c: Context, node: Node, p: float) -> Change | None:
        best = sibling(c, node, _CHOICE)
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


GENERATORS = (pairs, choices)
