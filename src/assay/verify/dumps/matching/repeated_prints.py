"""One print of a node where a log has several with other values: the values say which is the node's.

A graph callback prints a view and the result under one name. An engine that runs a layer twice prints every node of it
twice. The print that is nearest to the definition is kept, so that the first wrong node is the first one of which no
print is right; a note tells of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import split
from assay.models import Model
from assay.verify.dumps.observation import Observation, measure, token_axis

Array = NDArray[Any]
Key = tuple[str, Any, str]  # node, rows, order of the elements
_CLOSEST = 1e-7  # of the values' size: nearer prints count as equal


def one_print_of_each(
    observations: Sequence[Observation],
    model: Model,
    truth: Callable[[Collection[str]], dict[str, Array]],
    n: int = 0,
) -> tuple[list[Observation], list[str]]:
    """The observations without second prints, and notes on the names that had one."""
    prints: dict[Key, dict[str, list[Observation]]] = {}
    for obs in observations:
        if obs.kind != "values":
            prints.setdefault((obs.name, obs.rows, obs.order), {}).setdefault(obs.where, []).append(obs)
    several = {key: by_line for key, by_line in prints.items() if _contradict(list(by_line.values()))}
    if not several:
        return list(observations), []
    values = truth({name for name, _, _ in several})
    width = model.hparams.n_embd_head
    left: set[int] = set()
    notes = []
    for group in _together(list(several), model.hparams.n_layer):
        lines = [list(several[key]) for key in group]  # in the order of the log
        most = min(map(len, lines))
        far = [0.0] * most
        for key, of in zip(group, lines, strict=True):
            kinds, axis = _shared_kinds(list(several[key].values())), token_axis(model.graph, key[0])
            for i in range(most):
                far[i] += _distance(several[key][of[i]], kinds, values[key[0]], axis, width)
        nearest = far.index(min(far))
        for key, of in zip(group, lines, strict=True):
            kinds = _shared_kinds(list(several[key].values()))
            left |= {id(o) for line in of if line != of[nearest] for o in several[key][line] if o.kind in kinds}
            which = (
                f"print {nearest + 1} of {len(of)} is read, the nearest to the definition; if the others are decode "
                "steps, print a heading such as 'decode step 1, token 253' above each"
            )
            notes.append(f"{key[0]}: printed {len(of)} times with other values; {which}")
    return [o for o in observations if id(o) not in left], notes


def _together(keys: Sequence[Key], n_layer: int) -> list[list[Key]]:
    """The names whose prints are chosen together: those of a layer that was printed twice, else those of one role."""
    layers = {split(name)[1] for name, _, _ in keys}
    found: dict[Any, list[Key]] = {}
    for key in keys:
        role, layer = split(key[0])
        found.setdefault(layer if len(layers) < min(n_layer, 2) else role, []).append(key)
    return list(found.values())


def _shared_kinds(prints: Sequence[Sequence[Observation]]) -> set[str]:
    """The kinds of observation that more than one line gives."""
    kinds = [{o.kind for o in many} for many in prints]
    return {kind for one in kinds for kind in one if sum(kind in other for other in kinds) > 1}


def _contradict(prints: Sequence[Sequence[Observation]]) -> bool:
    """Do two lines give the same kind of observation with other numbers?"""
    kinds = _shared_kinds(prints)
    return any(
        a.kind == b.kind and a.kind in kinds and _differ(a, b)
        for i, one in enumerate(prints)
        for other in prints[i + 1 :]
        for a in one
        for b in other
    )


def _differ(a: Observation, b: Observation) -> bool:
    x, y = (dict(o.data) if o.kind in ("at", "top") else dict(enumerate(o.target())) for o in (a, b))
    common = x.keys() & y.keys()
    slack = max((*a.printed, *b.printed, 0.0))
    return any(abs(x[k] - y[k]) > 2 * slack + 1e-6 * abs(x[k]) for k in common)


def _distance(many: Sequence[Observation], kinds: Collection[str], value: Array, axis: int, width: int) -> float:
    """The sum of the logarithms of the relative distances to the definition."""
    total = 0.0
    for obs in many:
        if obs.kind not in kinds:
            continue
        expected = measure(obs, value, axis, width)
        if len(expected) != len(obs.target()):
            return math.inf
        scale = float(np.sqrt(np.mean(np.square(expected, dtype=np.float64)))) + 1e-30
        error = float(np.mean(np.abs(obs.target() - expected))) / scale
        total += math.log(max(error, _CLOSEST)) if math.isfinite(error) else 1e3
    return total
