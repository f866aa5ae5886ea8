"""Lists that begin with statistics of their row: `attn_norm 6.35 0.69 -0.41 2.46`, a norm and the first values.

A label in signs, a column without a head or a word of another language hides that the first number is no value. The
definition decides: the numbers from the second (third, fourth) on are the beginning of a row, and those before it are
statistics of that row or of all rows. One print function writes all lines of a log. So the lists of a statement behind
a fault are split as those of the same length before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import split
from assay.models import Model
from assay.verify.dumps.matching.confirmed_later import Definition
from assay.verify.dumps.matching.statement_nodes import has_rows
from assay.verify.dumps.observation import STATISTICS, Observation, token_axis
from assay.verify.thresholds import LARGE_MODEL

Array = NDArray[Any]
Led = tuple[tuple[str, bool], ...]  # the statistics before the values; whether each is of all rows
_RIGHT = 1e-3  # of the row's rms, beyond the printed digits
_MOST_LED = 3
_COMPARED = 3  # values behind the statistics that must be right
_LAYERS = 2  # printed layers whose nodes are compared
_TRIED = 3  # lists of each statement
_STATEMENTS = 64
_AGREE = 2  # statements of one layout, before others are read so


def split_led_lists(
    named: Sequence[Observation], unread: Sequence[Observation], model: Model, n: int, truth: Definition
) -> tuple[list[Observation], list[Observation], list[str]]:
    """Both kinds of observations with the leading statistics of such lists apart, and notes on them."""
    whole = list(named), list(unread), list[str]()
    lists = [o for o in (*named, *unread) if _may_be_led(o)]
    if len(lists) < _AGREE or sum(math.prod(shape) for shape in model.graph.weights.values()) > LARGE_MODEL:
        return whole
    statements: dict[str, list[Observation]] = {}
    for obs in lists:
        statements.setdefault(obs.template, []).append(obs)
    rows = _Rows(model, n, truth, lists)
    led: dict[str, Led | None] = {}  # None: nothing is right, whatever the reading
    for template, many in list(statements.items())[:_STATEMENTS]:
        led[template] = rows.layout(many[:_TRIED])
    found: dict[int, list[Led]] = {}  # by the number of values
    for template, kinds in led.items():
        if kinds is not None:
            found.setdefault(len(statements[template][0].data), []).append(kinds)
    agreed = {n: many[0] for n, many in found.items() if len(many) >= _AGREE and len({*many}) == 1 and many[0]}
    parted: dict[int, list[Observation]] = {}
    for template, many in statements.items():
        own = led.get(template)
        for obs in many:
            kinds = agreed.get(len(obs.data), ()) if own is None else own if agreed else ()
            if kinds:
                parted[id(obs)] = _parts(obs, kinds)
    if not parted:
        return whole
    notes = []
    for count, kinds in agreed.items():
        which = "the first is" if len(kinds) == 1 else f"the first {len(kinds)} are"
        told = ", ".join(f"the {kind} of {'all rows' if whole else 'the row'}" for kind, whole in kinds)
        notes.append(f"lists of {count} numbers: {which} {told}, by their values")
    return (
        [x for o in named for x in parted.get(id(o), [o])],
        [x for o in unread for x in parted.get(id(o), [o])],
        notes,
    )


def _may_be_led(obs: Observation) -> bool:
    plain = obs.kind == "first" and obs.head is None and obs.order != "hf" and not obs.alternatives
    return plain and bool(obs.template) and len(obs.data) > _COMPARED


def _parts(obs: Observation, kinds: Led) -> list[Observation]:
    printed = obs.printed if len(obs.printed) == len(obs.data) else (0.0,) * len(obs.data)
    at = len(kinds)
    rows = zip(kinds, obs.data[:at], printed[:at], strict=True)
    statistics = [
        replace(obs, kind=kind, data=float(value), printed=(half,), rows=None if whole else obs.rows)
        for (kind, whole), value, half in rows
    ]
    values = obs.data[at:]
    places = max(len(repr(float(x)).partition(".")[2]) for x in values)  # those of a statistic may be more
    halves = tuple(max(half, 0.5 * 10.0**-places) if half else half for half in printed[at:])
    return [*statistics, replace(obs, data=values, printed=halves)]


class _Rows:
    """The beginnings and the statistics of the definition's rows, of the first printed layers."""

    def __init__(self, model: Model, n: int, truth: Definition, lists: Sequence[Observation]) -> None:
        self._model, self._n, self._truth = model, n, truth
        at = {split(o.name)[1] if o.name else o.layer for o in lists}
        self._layers = sorted({0, *(i for i in at if i is not None)})[: _LAYERS + 1]
        self._values: dict[str, Array] = {}
        self._begin: Array = np.zeros((0, _COMPARED))
        self._of: list[tuple[str, int]] = []

    def layout(self, lists: Sequence[Observation]) -> Led | None:
        """The statistics that the lists begin with; none where they are rows; None if nothing is right."""
        if not self._of:
            self._fill()
        votes: list[Led] = []
        for obs in lists:
            target, half = _numbers(obs)
            if self._rows_at(target, half, 0):
                return ()
            for s in range(1, min(_MOST_LED, len(target) - _COMPARED) + 1):
                kinds = next(
                    (k for row in self._rows_at(target, half, s) if (k := self._kinds(target, half, s, row))), ()
                )
                if kinds:
                    votes.append(kinds)
                    break
        return max(set(votes), key=votes.count) if votes else None

    def _fill(self) -> None:
        graph = self._model.graph
        names = [
            node.name
            for node in graph
            if has_rows(graph, node.name)
            and not token_axis(graph, node.name)
            and split(node.name)[1] in (None, *self._layers)
            and not node.name.startswith("result_")
        ]
        begins = []
        for name, value in self._truth(names).items():
            if len(value) != self._n or value[0].size < _COMPARED:
                continue
            flat = np.asarray(value, np.float64).reshape(self._n, -1)
            self._values[name] = flat
            self._of += [(name, row) for row in range(self._n)]
            begins.append(flat[:, :_COMPARED])
        self._begin = np.concatenate(begins) if begins else self._begin

    def _rows_at(self, target: Array, half: Array, s: int) -> list[tuple[str, int]]:
        """The rows that begin with the numbers from the s-th on."""
        part, slack = target[s : s + _COMPARED], half[s : s + _COMPARED]
        if not np.isfinite(part).all() or not np.any(np.abs(part) > 10 * slack):
            return []
        scale = np.sqrt(np.mean(self._begin**2, axis=1, keepdims=True))
        near = np.all(np.abs(self._begin - part) <= slack + _RIGHT * scale, axis=1)
        return [self._of[i] for i in np.flatnonzero(near)]

    def _kinds(self, target: Array, half: Array, s: int, place: tuple[str, int]) -> Led:
        """The statistic of each of the first s numbers; none if one of them is no statistic."""
        name, row = place
        value = self._values[name]
        found = []
        for number, slack in zip(target[:s], half[:s], strict=True):
            kind = next(
                (
                    (kind, part is value)
                    for part in (value[row], value)
                    for kind in STATISTICS
                    if abs(STATISTICS[kind](part) - number) <= slack + _RIGHT * _size(kind, number, part)
                ),
                None,
            )
            if kind is None:
                return ()
            found.append(kind)
        return tuple(found)


def _size(kind: str, number: float, part: Array) -> float:
    """Of which _RIGHT is the allowed error. The terms of a sum cancel, their errors do not."""
    return float(STATISTICS[f"abs{kind}"](part)) if kind in ("sum", "mean") else abs(number)


def _numbers(obs: Observation) -> tuple[Array, Array]:
    target = obs.target().astype(np.float64)
    return target, np.asarray(obs.printed if len(obs.printed) == len(target) else np.zeros(len(target)), np.float64)
