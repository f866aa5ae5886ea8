"""Lists of one statistic: a norm for every layer, or for every token, as one list that does not name the statistic.

`[21.1, 34.7, 38.2]` may be three values of a node or the norms of three layers' outputs. The definition's values
decide: a list is read as a statistic of a node, if its first numbers agree with that statistic alone, layer by layer or
token by token. Behind a fault they agree no more, so that only the beginning counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import join, split
from assay.models import Model
from assay.verify.dumps.matching.confirmed_later import Definition
from assay.verify.dumps.matching.statement_nodes import bits_of, has_rows
from assay.verify.dumps.naming.statistic_names import statistic
from assay.verify.dumps.observation import STATISTICS, Observation, token_axis
from assay.verify.thresholds import LARGE_MODEL

Array = NDArray[Any]
_KINDS = ("norm", "rms", "mean", "std", "absmax", "sum", "absmean", "max", "min")
_NEAR = 0.03  # of a number's size: an engine with few bits is nearer
_FINEST = 1e-6
_ENOUGH = 24.0  # bits: a thousand readings are compared, and chance gives each of them a bit or two
_CLEAR = 8.0  # bits by which the best reading is ahead of every other
_MOST = 256  # lists that are compared
_PER_LAYER = re.compile(r"\bper ?layers?\b|\bby layers?\b")


@dataclass(frozen=True)
class _Reading:
    """A statistic of these nodes in these rows, one number of the list each."""

    kind: str
    places: tuple[tuple[str, tuple[int, int]], ...]
    numbers: Array


def read_statistic_lists(
    named: Sequence[Observation], unread: Sequence[Observation], model: Model, n: int, truth: Definition
) -> tuple[list[Observation], list[Observation], list[str]]:
    """Both kinds of observations with such lists as statistics, and notes on them."""
    n_layer = model.hparams.n_layer
    lists = [o for o in (*named, *unread) if o.kind == "first" and len(o.data) in (n, n_layer, n_layer + 1)]
    ends = {(-1, 0): n - 1, (n - 1, n): n - 1, (0, 1): 0}  # the row that a title names: `||.|| of the last token`
    lists = [o for o in lists if len(o.data) > 1 and (o.rows is None or o.rows in ends) and o.head is None][:_MOST]
    size = sum(math.prod(shape) for shape in model.graph.weights.values())
    if not lists or size > LARGE_MODEL:
        return list(named), list(unread), []
    nodes = [node.name for node in model.graph if has_rows(model.graph, node.name)]
    values = {
        name: value for name, value in truth(nodes).items() if not token_axis(model.graph, name) and len(value) == n
    }
    made: dict[int, list[Observation]] = {}
    chosen: list[_Reading] = []
    notes = []
    by_layer = _of_layers(values, model, n)
    for obs in lists:
        per_layer = len(obs.data) != n and bool(_PER_LAYER.search(obs.template))
        if not per_layer and _is_row(obs, values, model, n):
            continue
        at = obs.layer if obs.layer is not None else split(obs.name)[1] if obs.name else None
        readings = [r for r in by_layer if len(r.numbers) == len(obs.data)] if at is None or obs.unnumbered else []
        if obs.rows is not None:
            readings = [r for r in readings if r.places[0][1][0] == ends[obs.rows]]
        elif len(obs.data) == n:
            readings = [*readings, *_of_tokens([x for x in nodes if split(x)[1] == at], values, model, n)]
        best = _best(obs, readings) or (_said(obs, readings) if per_layer else None)
        if best is None and per_layer:
            made[id(obs)] = []
            notes.append(
                f"{obs.template!r}: a number for each layer, of which statistic the line does not say; not used"
            )
        if best is None:
            continue
        chosen.append(best)
        made[id(obs)] = [
            replace(
                obs, name=name, kind=best.kind, data=float(value), rows=rows, printed=(half,), others=(), vague=False,
                unnumbered=False, possible_row=None, alternatives=(), foreign=obs.foreign or name, layer=split(name)[1],
            )
            for (name, rows), value, half in zip(best.places, obs.target(), _halves(obs), strict=True)
        ]  # fmt: skip
        first, last = best.places[0], best.places[-1]
        of = f"layers, of row {first[1][0]}" if first[1] == last[1] and first[0] != last[0] else "rows"
        how = "by its values" if not per_layer else "by its words or values"
        notes.append(f"{obs.template!r}: read as the {best.kind} of {split(last[0])[0]} in its {of}, {how}")
    by_token = {best.kind for best in chosen if best.places[0][0] == best.places[-1][0]}
    for obs in lists if len(by_token) == 1 else ():  # one loop prints them all; behind a fault the values match nothing
        if id(obs) not in made and len(obs.data) == n and obs.name in values and not _is_row(obs, values, model, n):
            (kind,) = by_token
            made[id(obs)] = [
                replace(
                    obs, kind=kind, data=value, rows=(t, t + 1), printed=(half,), possible_row=None, alternatives=()
                )
                for t, (value, half) in enumerate(zip(obs.data, _halves(obs), strict=True))
            ]
    if not made:
        return list(named), list(unread), []
    found = [x for o in named for x in made.get(id(o), [o])]
    found += [x for o in unread for x in made.get(id(o), [])]
    return found, [o for o in unread if id(o) not in made], notes


def _halves(obs: Observation) -> tuple[float, ...]:
    return obs.printed if len(obs.printed) == len(obs.data) else (0.0,) * len(obs.data)


def _is_row(obs: Observation, values: dict[str, Array], model: Model, n: int) -> bool:
    """Whether the list is the beginning of a row of a node that its words may mean, or of any node where they say
    none."""
    names = [name for name in (obs.name, *obs.others) if name in values] or list(values)
    width = model.hparams.n_embd_head
    return any(
        bits_of(replace(obs, rows=(row, row + 1)), values[name], token_axis(model.graph, name), width) >= _ENOUGH / 2
        for name in names
        for row in range(n)
    )


def _of_layers(values: dict[str, Array], model: Model, n: int) -> list[_Reading]:
    """The statistics of a role's nodes of all layers, in one row; with the embedding before them, if it leads there."""
    roles: dict[str, list[str]] = {}
    for name in values:
        role, layer = split(name)
        if layer is not None:
            roles.setdefault(role, []).append(name)
    found = []
    before = [name for name in values if split(name)[1] is None and not name.startswith("result_")]
    for role, names in roles.items():
        complete = names == [join(role, i) for i in range(model.hparams.n_layer)]
        several = [names, *([start, *names] for start in before if role == "l_out")] if complete else []
        for many in several:
            for row in dict.fromkeys((n - 1, 0)):
                part = [np.asarray(values[name], np.float64)[row].reshape(-1) for name in many]
                places = tuple((name, (row, row + 1)) for name in many)
                for kind in _KINDS:
                    found.append(_Reading(kind, places, np.array([STATISTICS[kind](x) for x in part])))
    return found


def _of_tokens(names: Sequence[str], values: dict[str, Array], model: Model, n: int) -> list[_Reading]:
    """The statistics of every row of one node."""
    found = []
    for name in names:
        if token_axis(model.graph, name) or len(values[name]) != n:
            continue
        part = [np.asarray(row, np.float64).reshape(-1) for row in values[name]]
        places = tuple((name, (i, i + 1)) for i in range(n))
        found += [_Reading(kind, places, np.array([STATISTICS[kind](x) for x in part])) for kind in _KINDS]
    return found


def _best(obs: Observation, readings: Sequence[_Reading]) -> _Reading | None:
    target, halves = obs.target().astype(np.float64), np.array(_halves(obs))
    scored = sorted(((_bits(target, halves, r.numbers), i) for i, r in enumerate(readings)), reverse=True)
    if not scored or scored[0][0] < _ENOUGH:
        return None
    best = readings[scored[0][1]]
    for bits, i in scored[1:]:
        if bits < scored[0][0] - _CLEAR:
            break
        if not np.allclose(readings[i].numbers, best.numbers, rtol=1e-6, atol=0):
            return None
    return best


def _said(obs: Observation, readings: Sequence[_Reading]) -> _Reading | None:
    """The reading that the words name: the statistic, and one of the nodes that they may mean, in the last row or the
    first."""
    kinds = {kind for word in obs.template.split() if (kind := statistic([word]))}
    roles = {split(name)[0] for name in (obs.name, *obs.others) if name}
    mine = [r for r in readings if r.kind in kinds and split(r.places[-1][0])[0] in roles]
    target, halves = obs.target().astype(np.float64), np.array(_halves(obs))
    return max(mine, key=lambda r: _bits(target, halves, r.numbers), default=None)


def _bits(target: Array, halves: Array, numbers: Array) -> float:
    """The bits by which the first numbers agree, up to the first that does not."""
    scale = np.abs(numbers) + 1e-30
    beyond = np.maximum(np.abs(target - numbers) - halves, 0)
    wrong = np.flatnonzero(~(beyond <= _NEAR * scale))
    upto = int(wrong[0]) if wrong.size else len(numbers)
    error = np.maximum(np.maximum(beyond, halves), _FINEST * scale)[:upto]
    return float(np.sum(np.log2(np.maximum(scale[:upto] / error, 1.0))))
