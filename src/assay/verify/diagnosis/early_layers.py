"""The first layers of a dump, for an answer in seconds from a model that takes minutes to judge whole.

Most mistakes are in every layer, so the first layers show them. A wrong node there is searched for on its own; the rest
of the dump is judged only where the first layers are right. Touch this module to change how much is judged first.
"""

from __future__ import annotations

import math
from dataclasses import replace

from assay.graph import split
from assay.models import Model
from assay.verify.dumps.observation import Dump
from assay.verify.thresholds import FIRST_WEIGHTS, LARGE_MODEL


def large(model: Model) -> bool:
    """Does judging the whole model take longer than a user waits for a first answer?"""
    return sum(math.prod(shape) for shape in model.graph.weights.values()) > LARGE_MODEL


def early_part(model: Model, dump: Dump) -> tuple[Model, Dump, int] | None:
    """The model up to its first layers, their observations, and their number; None where all is judged as fast."""
    graph, sizes = model.graph, dict[int, int]()
    for node in graph:
        if (at := split(node.name)[1]) is not None:
            sizes[at] = sizes.get(at, 0) + sum(math.prod(graph.weights[w]) for w in node.weights)
    if graph.state.per_sequence or not large(model):
        return None
    count, total = 0, 0
    for at in sorted(sizes):
        total += sizes[at]
        if count and total > FIRST_WEIGHTS:
            break
        count += 1
    order = {node.name: i for i, node in enumerate(graph)}
    end = max(order[node.name] for node in graph if (at := split(node.name)[1]) is not None and at < count)
    kept = tuple(o for o in dump.observations if order.get(o.name, math.inf) <= end)
    if len(kept) == len(dump.observations) or not any(split(o.name)[1] is not None for o in kept):
        return None
    nodes = graph.nodes[: end + 1]
    cut = replace(model, graph=replace(graph, nodes=nodes, output=nodes[-1].name))
    return cut, replace(dump, observations=kept), count
