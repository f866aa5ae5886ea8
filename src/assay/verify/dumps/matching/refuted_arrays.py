"""Finds whole arrays that later arrays refute: their name suggests a node, their values are others, and yet a node that
is computed from it is right.

This is `confirmed_later.py` for arrays under foreign names in place of printed lines. `scores` may be before or behind
the scale, `q` may hold another layout, `gate` may be another gate. An array under llama.cpp's own name stays: then the
dump of that node is wrong, and the judge says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Trait, split
from assay.models import Model
from assay.verify.dumps.matching.confirmed_later import (
    APART,
    LAYERS,
    RIGHT,
    SMALL,
    Definition,
    witnesses_of,
    would_show,
)
from assay.verify.dumps.observation import Observation, measure, token_axis

Array = NDArray[Any]
_TRIED = 2  # arrays of one role for which the change of later ones is computed
_SAME_FACTOR = 1e-3  # relative: an array is a multiple of the node


def leave_refuted_arrays(
    observations: Sequence[Observation], model: Model, truth: Definition, n: int
) -> tuple[list[Observation], list[str]]:
    """The observations without arrays that later arrays refute, and notes on these. A role is left out whole."""
    graph = model.graph
    arrays = [o for o in observations if o.kind == "values" and not graph[o.name].has(Trait.SHOWS_STATE)]
    if sum(math.prod(shape) for shape in graph.weights.values()) > SMALL:
        layers = sorted({at for o in arrays if (at := split(o.name)[1]) is not None})[:LAYERS]
        arrays = [o for o in arrays if split(o.name)[1] in layers or o.name == "embd"]
    guessed = {o.name for o in arrays if o.foreign and o.foreign not in graph}
    if not guessed:
        return list(observations), []
    values = truth({o.name for o in arrays})
    errors = {id(o): _error(o, values[o.name], model) for o in arrays}
    right = [o for o in arrays if errors[id(o)] <= RIGHT and not graph[o.name].has(Trait.INDICES)]
    later = [(o, graph.ancestors([o.name])) for o in right]
    sound = {split(o.name)[0] for o in right}
    off: dict[str, list[Observation]] = {}
    for obs in arrays:
        if obs.name in guessed and APART < errors[id(obs)] < math.inf and split(obs.name)[0] not in sound:
            off.setdefault(split(obs.name)[0], []).append(obs)
    notes: list[str] = []
    left: set[str] = set()
    for role, many in off.items():
        witnesses = [witnesses_of(o, later, n) for o in many]
        if not all(witnesses):
            continue
        shown = zip(many[:_TRIED], witnesses, strict=False)
        if not all(would_show(o, w, model, truth) for o, w in shown):
            continue
        left.add(role)
        order = [node.name for node in graph]
        first, witness = many[0], min(witnesses[0], key=lambda o: order.index(o.name))
        factor = _factor(first, values[first.name], model)
        what = f"{factor:g} times {first.name}" if factor else f"not {first.name}"
        notes.append(
            f"{first.foreign}: {what}, while {witness.name}, which is computed from it, is right; so it is another "
            "value of the engine, and not used"
        )
    return [o for o in observations if o.kind != "values" or split(o.name)[0] not in left], notes


def _error(obs: Observation, value: Array, model: Model) -> float:
    """The largest difference of the size of the node; infinite where the shapes differ."""
    expected = measure(obs, value, token_axis(model.graph, obs.name), model.hparams.n_embd_head)
    found = obs.array()
    if found.shape != expected.shape or np.isnan(found).any():
        return math.inf
    known = np.isfinite(found) & np.isfinite(expected)
    if not known.any():
        return math.inf
    size = np.sqrt(np.mean(np.square(expected[known], dtype=np.float64)))
    return float(np.max(np.abs(found[known].astype(np.float64) - expected[known])) / (size + 1e-30))


def _factor(obs: Observation, value: Array, model: Model) -> float:
    """The number by which the node was multiplied; 0 if it was not."""
    expected = measure(obs, value, token_axis(model.graph, obs.name), model.hparams.n_embd_head).astype(np.float64)
    found = obs.array().astype(np.float64)
    known = np.isfinite(found) & np.isfinite(expected)
    found, expected = found[known], expected[known]
    factor = float(np.sum(found * expected) / (np.sum(expected * expected) + 1e-30))
    rest = float(np.max(np.abs(found - factor * expected)))
    return factor if rest <= _SAME_FACTOR * float(np.max(np.abs(found)) + 1e-30) else 0.0
