"""Finds prints that later values refute: the words name a node, the values are not its values, and yet a node that is
computed from it is right.

A fault at a node changes what is computed from it. So, where the later node is right digit by digit, the engine had the
right value, and the line shows something else: a value with a similar name, another row, a remark. Such a line is read
as the one node whose values it has, or left out with a note. Without a later node that is right, the line stays: its
values may be a fault's.

    off        the shown values differ from the node's by more than APART of their size
    far off    by more than _OFF of it: only such a line is left out
    right      they agree within RIGHT of their size, or within the printed digits
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.graph import Graph, Trait, join, split
from assay.models import Model
from assay.verify.dumps.observation import STATISTICS, Observation, measure, patch, rows_of, token_axis

Array = NDArray[Any]


class Definition(Protocol):
    """The definition's values for these tokens."""

    def __call__(self, names: Collection[str]) -> dict[str, Array]:
        """The values of these nodes."""

    def after(self, name: str, value: Array, later: str) -> Array:
        """The value of a later node, if a node had this value."""


_OFF = 0.3  # of the shown values' size: far beyond the noise of any engine
APART = 0.02  # of the shown values' size: enough for a line that has the values of another node digit by digit
RIGHT = 1e-3  # of the shown values' size: a fault of size _OFF in an addend would show more in the sum
_SHOWS = 5 * RIGHT  # a change that a right print would not have
_TRIED = 2  # prints of one statement, and later prints of each, for which the change is computed
_ENOUGH = 3.0  # shown values of later prints that are right; a statistic counts one
SMALL = 20_000_000  # weights of a model whose layers are all compared; those of a larger one take seconds to compute
LAYERS = 3  # layers of a larger model that are compared: a print statement does the same in every layer


def leave_refuted(
    observations: Sequence[Observation], model: Model, truth: Definition, n: int, singly: bool = False
) -> tuple[list[Observation], list[str]]:
    """The observations without those that later values refute, or with the node whose values they have, and notes.

    A print statement that is right in some layer or row is kept whole: `repeated_prints.py` chooses among its prints.
    Behind that choice each line of words is refuted `singly`. A node's own name stays.
    """
    compared = _compared(observations, model)
    if len(compared) < 2:
        return list(observations), []
    values = truth({o.name for o in compared})
    errors = {id(o): error_of(o, values[o.name], model) for o in compared}
    lines: dict[tuple[str, str], list[Observation]] = {}
    for obs in compared:
        lines.setdefault((obs.where, obs.name), []).append(obs)
    off = [o for many in lines.values() for o in _off(many, errors, APART)]
    far = {id(o) for many in lines.values() for o in _off(many, errors, _OFF)}
    doubted = {id(o) for o in off}
    sure = [o for o in compared if errors[id(o)] <= RIGHT and id(o) not in doubted] if off else []
    right = [o for o in sure if not model.graph[o.name].has(Trait.INDICES)]
    sources = {name: model.graph.ancestors([name]) for name in {o.name for o in right}}
    later = [(o, sources[o.name]) for o in right]
    witnesses = {id(o): found for o in off if (found := witnesses_of(o, later, n))}
    refuted = [o for o in off if id(o) in witnesses]
    sound = {_phrase(o) for o in compared if errors[id(o)] <= RIGHT and id(o) not in doubted and not singly}
    notes: list[str] = []
    changed: dict[int, Observation | None] = {}
    statements: dict[tuple[str, str], list[Observation]] = {}
    for obs in refuted:
        if _phrase(obs) not in sound and (obs.template or not singly):
            statements.setdefault(_phrase(obs)[:2], []).append(obs)
    for (template, role), many in statements.items():
        if not any(would_show(o, witnesses[id(o)], model, truth) for o in many[:_TRIED]):
            continue
        phrases = {_phrase(o) for o in many}
        other = _role(many, model, truth, {o.name for o in right})
        if not other:
            many = [o for o in many if id(o) in far]
            phrases = {_phrase(o) for o in many}
        if not many:
            continue
        told = many if singly else [o for o in observations if o.kind != "values" and _phrase(o) in phrases]
        for obs in told:
            name = join(other, split(obs.name)[1]) if other else ""
            changed[id(obs)] = replace(obs, name=name) if name in model.graph else None
        what = f"read as {other}, whose values these are" if other else "not used"
        said = f"lines like {template!r}" if template else many[0].name
        kinds = ", ".join(dict.fromkeys(kind for _, _, kind in map(_phrase, many)))
        notes.append(f"{said}: {kinds} {what}; they are not {role}'s, and what is computed from it is right")
    if singly:
        changed |= dict.fromkeys(_second_prints(compared, errors))
    kept = (changed.get(id(o), o) for o in observations)
    return [o for o in kept if o is not None], notes


def _second_prints(compared: Sequence[Observation], errors: dict[int, float]) -> list[int]:
    """Prints that are off beside another one of the same node, rows and kind that is right, on one line."""
    prints: dict[tuple[Any, ...], list[Observation]] = {}
    for obs in compared:
        if obs.template:
            prints.setdefault((obs.where, obs.name, obs.rows, obs.kind), []).append(obs)
    several = [many for many in prints.values() if any(errors[id(o)] <= RIGHT for o in many)]
    return [id(o) for many in several for o in many if errors[id(o)] > RIGHT]


def any_is_right(observations: Sequence[Observation], model: Model, truth: Definition) -> bool:
    """Has a print of the first layers the values of this model?"""
    early = [o for o in _compared(observations, model) if (split(o.name)[1] or 0) < LAYERS]
    values = truth({o.name for o in early})
    return _weight([o for o in early if error_of(o, values[o.name], model) <= RIGHT]) >= _ENOUGH


def _off(line: Sequence[Observation], errors: dict[int, float], limit: float) -> list[Observation]:
    """The observations of a line that are off. Its statistics are, if a list of the line is, or one of them is.

    A mean or a sum may be near zero or of other rows, so that one of these alone says nothing about the others.
    """
    lists = [o for o in line if o.kind in ("first", "last", "at") and len(o.data) > 1]
    telling = lists or [o for o in line if o.kind not in ("mean", "sum")]
    whole = any(errors[id(o)] > limit for o in telling)
    return [o for o in line if errors[id(o)] > limit or (whole and o.kind in STATISTICS)]


def _role(refuted: Sequence[Observation], model: Model, truth: Definition, claimed: Collection[str]) -> str:
    """The role of the one node that has the values of every line; empty without enough of them, or with a rival."""
    found: set[str] = set()
    for line in dict.fromkeys(o.where for o in refuted):
        many = [o for o in refuted if o.where == line]
        if _weight(many) < _ENOUGH:
            return ""
        layer = split(many[0].name)[1]
        near = [node.name for node in model.graph if split(node.name)[1] == layer and _has_rows(model.graph, node.name)]
        values = truth(near)
        fits = [
            name for name in near if all(error_of(replace(o, name=name), values[name], model) <= RIGHT for o in many)
        ]
        if not fits or {*fits} & {*claimed} or any(values[f].size != values[fits[0]].size for f in fits):
            return ""
        found.add(split(fits[0])[0])
    return found.pop() if len(found) == 1 else ""


def _has_rows(graph: Graph, name: str) -> bool:
    shape = graph.shapes[name]
    return "T" in shape and "S" not in shape and not graph[name].has(Trait.INDICES | Trait.CACHES | Trait.SHOWS_STATE)


def _weight(observations: Sequence[Observation]) -> float:
    return sum(1 if o.kind in STATISTICS else o.target().size for o in observations)


def _compared(observations: Sequence[Observation], model: Model) -> list[Observation]:
    """Printed parts of nodes: of a large model, those of the first printed layers."""
    graph = model.graph
    parts = [o for o in observations if o.kind != "values" and not graph[o.name].has(Trait.SHOWS_STATE)]
    if sum(math.prod(shape) for shape in graph.weights.values()) <= SMALL:
        return parts
    layers = sorted({at for o in parts if (at := split(o.name)[1]) is not None})[:LAYERS]
    return [o for o in parts if split(o.name)[1] in layers or o.name == "embd"]


def error_of(obs: Observation, value: Array, model: Model) -> float:
    """The largest difference beyond the printed digits, of the size of the shown values."""
    if not np.isfinite(obs.target()).all():
        return RIGHT * 2  # neither: the reader of values that are not finite has its own words
    expected = measure(obs, value, token_axis(model.graph, obs.name), model.hparams.n_embd_head)
    target = obs.target()
    if len(expected) != len(target):
        return math.inf
    printed = np.asarray(obs.printed or (0.0,) * len(target), np.float64)
    beyond = np.maximum(np.abs(target - expected) - (printed if len(printed) == len(target) else 0), 0)
    size = np.sqrt(np.mean(np.square(expected, dtype=np.float64)))
    if obs.kind in ("mean", "sum"):
        size = max(size, STATISTICS["rms"](value) * (value.size**0.5 if obs.kind == "sum" else 1.0) / 10)
    return float(np.max(beyond) / (size + 1e-30))


def witnesses_of(obs: Observation, right: Sequence[tuple[Observation, Collection[str]]], n: int) -> list[Observation]:
    """Later prints that are right and computed from this node, in these rows or in rows that attend to them; none where
    they show too few values."""
    start, stop = obs.rows or (0, n)
    layer = split(obs.name)[1]
    found = []
    for later, sources in right:
        begin, end = later.rows or (0, n)
        at = split(later.name)[1]
        same_rows = begin <= start and stop <= end
        behind = end >= stop and (layer is None or at is None or at > layer)
        if obs.name in sources and obs.name != later.name and (same_rows or behind):
            found.append(later)
    return found if _weight(found) >= _ENOUGH else []


def would_show(obs: Observation, witnesses: Sequence[Observation], model: Model, truth: Definition) -> bool:
    """Whether one of the first later prints would differ, if the node had the values shown."""
    graph = model.graph
    value = np.array(truth([obs.name])[obs.name], np.float32)
    if obs.kind == "values":
        return _differs(obs, patch([obs], value, token_axis(graph, obs.name)), witnesses, model, truth)
    part = rows_of(value, token_axis(graph, obs.name), obs.rows)
    flat = part.reshape(-1).copy()
    places = range(len(obs.data)) if obs.kind in ("first", "last") else [i for i, _ in obs.data] if _lists(obs) else []
    if places and obs.order != "hf" and max(places) < flat.size:
        flat[np.array(places) - (len(places) if obs.kind == "last" else 0)] = obs.target()
    else:
        flat = np.roll(flat, 1) * (1 + _OFF)  # a statistic says only that the values are others
    part[...] = flat.reshape(part.shape)
    return _differs(obs, value, witnesses, model, truth)


def _differs(obs: Observation, value: Array, witnesses: Sequence[Observation], model: Model, truth: Definition) -> bool:
    """Whether one of the first later prints differs from the definition, if the node has this value."""
    graph, width = model.graph, model.hparams.n_embd_head
    order = {node.name: i for i, node in enumerate(graph)}
    lists_first = sorted(witnesses, key=lambda o: (o.kind in STATISTICS, order[o.name]))
    for later in lists_first[:_TRIED]:
        found = truth.after(obs.name, value, later.name)
        axis = token_axis(graph, later.name)
        right, now = (measure(later, v, axis, width) for v in (truth([later.name])[later.name], found))
        size = float(np.sqrt(np.mean(np.square(right, dtype=np.float64)))) + 1e-30
        if float(np.max(np.abs(now - right))) > _SHOWS * size + max(later.printed, default=0.0):
            return True
    return False


def _lists(obs: Observation) -> bool:
    return obs.kind in ("first", "last", "at", "top")


def _phrase(obs: Observation) -> tuple[str, str, str]:
    """The print statement: its words, the role that they name, and the kind of values."""
    return obs.template, split(obs.name)[0], obs.kind if obs.kind in STATISTICS else "values"
