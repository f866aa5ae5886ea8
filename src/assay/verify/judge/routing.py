"""Another choice of experts by rounding: a legitimate difference where the router's scores lie within the noise.

`margin` is the distance between the last chosen expert and the first that is not chosen. An arithmetic whose noise on
the scores is that large may choose the other expert, and then everything after it differs for that token. That is no
fault. A choice that the noise does not explain is one. Groups of experts may change places in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Graph, Node, Trait, split
from assay.verify.dumps.observation import Observation
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.thresholds import RUN

Array = NDArray[Any]
_UNITS = np.array([a.unit for a in ARITHMETICS])
_TINY = 1e-30


def ranks(node: Node) -> bool:
    """Does it order experts by their scores (`argsort`)?"""
    return node.has(Trait.INDICES) and node.has(Trait.SELECTS)


def keeps_first(node: Node) -> bool:
    """Does it keep the first of ranked experts (`topk`)?"""
    return node.has(Trait.INDICES) and not node.has(Trait.SELECTS)


def experts_used(graph: Graph, node: Node) -> int:
    """Of the experts that a node ranks, the number that its readers use."""
    readers = [n for n in graph if node.name in n.inputs and keeps_first(n)]
    return max((int(graph.shapes[n.name][-1]) for n in readers), default=int(graph.shapes[node.name][-1]))


def masks_groups(node: Node) -> bool:
    """Does it mask the scores of whole groups of experts (`group_mask`)?"""
    return node.has(Trait.SELECTS) and not node.has(Trait.INDICES)


def ranking(graph: Graph, node: Node) -> Node:
    """The node that ranked the experts of a choice: the node itself, or the one whose first ranks it keeps."""
    return node if ranks(node) else graph[node.inputs[0]]


def with_printed(observations: Sequence[Observation], ranked: Array, experts: int) -> Array:
    """A choice of experts with the ranks that were printed of it. They are exact, so later nodes follow from them."""
    found = ranked.copy()
    for obs in observations:
        if obs.kind == "first" and obs.row is not None and obs.row < len(found):
            chosen = np.asarray(obs.data[: found.shape[-1]])
            if ((chosen >= 0) & (chosen < experts) & (chosen % 1 == 0)).all():
                found[obs.row, : len(chosen)] = chosen
    return found


def allowed(scores: Array, rms: Array) -> Array:
    """By how much two scores of a token may change places, [arithmetic, token]; `rms` is the noise of the scores."""
    size = np.abs(np.where(np.isfinite(scores), scores, 0)).max(axis=-1)
    return np.asarray(RUN * np.sqrt(2) * rms + 2 * _UNITS[:, None] * size + _TINY)


def disorder(scores: Array, chosen: Array) -> Array:
    """By how much each token's choice is wrong: the largest lead of a later or unchosen expert over an earlier one."""
    chosen = np.asarray(chosen, np.int64)
    if chosen.min(initial=0) < 0 or chosen.max(initial=0) >= scores.shape[-1]:
        return np.full(len(scores), np.inf)
    taken = np.take_along_axis(scores, chosen, axis=-1)
    rest = scores.copy()
    np.put_along_axis(rest, chosen, -np.inf, axis=-1)
    followed = np.concatenate([taken, rest.max(-1, keepdims=True)], axis=-1)
    best_later = np.flip(np.maximum.accumulate(np.flip(followed, -1), axis=-1), -1)[:, 1:]
    ahead = np.where(best_later == taken, 0, best_later - taken).max(-1)
    repeated = (np.diff(np.sort(chosen, axis=-1), axis=-1) == 0).any(-1)
    return np.where(repeated, np.inf, np.maximum(ahead, 0))


def other_choice(scores: Array, chosen: Array) -> tuple[Array, Array]:
    """The margin of each token's choice, and the choice with its last expert replaced by the first unchosen one."""
    order = np.argsort(-scores, axis=-1, kind="stable")
    k = chosen.shape[-1]
    if k >= scores.shape[-1]:
        return np.full(len(scores), np.inf), chosen
    ranked = np.take_along_axis(scores, order, axis=-1)
    margin = np.where(np.isfinite(ranked[:, k]), ranked[:, k - 1] - ranked[:, k], np.inf)
    other = np.asarray(order[:, :k]).copy()
    other[:, k - 1] = order[:, k]
    return margin, other


def other_groups(scores: Array, node: Node) -> tuple[Array, Array]:
    """The margin between each token's last unmasked group and its first masked one, and the scores with these two
    groups exchanged. `node` is a `group_mask`."""
    groups, used = int(node.attr("groups")), int(node.attr("used"))
    parts = scores.reshape(len(scores), groups, -1)
    sums = np.sort(parts, axis=-1)[..., -2:].sum(axis=-1)
    order = np.argsort(-sums, axis=-1, kind="stable")
    if used >= groups:
        return np.full(len(scores), np.inf), scores
    ranked = np.take_along_axis(sums, order, axis=-1)
    kept = np.zeros(sums.shape, bool)
    np.put_along_axis(kept, np.delete(order[:, : used + 1], used - 1, axis=1), True, axis=-1)
    other = np.where(kept[..., None], parts, -np.inf).reshape(scores.shape)
    return ranked[:, used - 1] - ranked[:, used], other


def allowed_groups(scores: Array, rms: Array) -> Array:
    """By how much two groups may change places, [arithmetic, token]: each is a sum of two scores."""
    return allowed(scores, rms) * 2**0.5


@dataclass(frozen=True)
class Route:
    """A token of a layer that got, or may have got, the expert `found` in place of the definition's `expected`."""

    node: str
    token: int
    expected: int
    found: int
    margin: float
    seen: bool  # the choice was dumped or follows from the dump; otherwise it is only possible
    ratios: tuple[float, ...]  # margin over what each arithmetic's noise allows

    def text(self, arithmetic: int) -> str:
        layer, name = split(self.node)[1], ARITHMETICS[arithmetic].name
        if self.seen:
            what = f"token {self.token}: expert {self.found} instead of {self.expected} in layer {layer}"
            return f"{what}, margin {self.margin:.2g} of the router, within {name} noise"
        return (
            f"token {self.token}: experts {self.expected} and {self.found} are {self.margin:.2g} apart in the router "
            f"of layer {layer}, within {name} noise: either is right"
        )


def routes(node: str, scores: Array, right: Array, found: Array, rms: Array, seen: bool) -> list[Route]:
    """The tokens whose set of experts differs from the definition's, or may differ where the choice was not seen."""
    limit, out = allowed(scores, rms), []
    margins, other = other_choice(scores, right)
    for t in range(len(scores)):
        theirs = found[t] if seen else other[t]
        missing, added = set(right[t].tolist()) - set(theirs.tolist()), set(theirs.tolist()) - set(right[t].tolist())
        if not missing or not added:
            continue
        a, b = max(missing, key=lambda e: scores[t, e]), max(added, key=lambda e: scores[t, e])
        margin = float(scores[t, a] - scores[t, b]) if seen else float(margins[t])
        if np.isfinite(margin):
            out.append(Route(node, t, int(a), int(b), margin, seen, tuple(float(margin / x) for x in limit[:, t])))
    return out
