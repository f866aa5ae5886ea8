"""Printed lines whose words name no node, or only vaguely: the values tell which node they are.

A list of values is its own name. For every list (or line of statistics) that words leave open, the node and row of the
definition's run that are nearest are sought; they must be within what a coarse engine may do, and alone. A print
statement does the same in every layer: lines with the same words and other whole numbers are the same node of other
layers, also where a fault makes their values match nothing.

Words that name a node are overruled in one case: their values are not that node's in the first layer printed, and are,
digit by digit, another's that no other line claims and that is computed from it. A fault may leave a node with the
values of what it was computed from (a norm, a rotation, a sum that was skipped) or of a neighbour (weights of q and v,
of gate and up exchanged), never with those of what is made of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Graph, Trait, join, split
from assay.models import Model
from assay.verify.dumps.observation import STATISTICS, Observation, to_hf, token_axis

Array = NDArray[Any]
_COARSE = 0.03  # of a row's rms: what an engine of few bits may be off
_CHANCE = 1e-3  # matches by chance that are put up with, over all candidates
_RIVAL = 3.0  # times as far the next node must be
_TRIES, _TEMPLATES = 8, 128  # lines of one template that are compared, and templates
_ROWS = 32  # at either end of a sequence
_LAYERS = 3  # whose values are computed
_DIGITS = re.compile(r"(?<![\d#])\d{1,6}(?!\d)")
_USUAL = ("Vcur", "kqv_out", "attn_out", "ffn_out", "l_out", "ffn_inp", "attn_norm", "ffn_norm", "Qcur", "Kcur")


@dataclass(frozen=True)
class Unit:
    """What one line says of one node."""

    observations: tuple[Observation, ...]
    number: int  # which of the line's
    said: Observation | None = None  # the first, with all whole numbers of its words

    @property
    def first(self) -> Observation:
        return self.said or self.observations[0]

    @property
    def weight(self) -> float:
        """How many values it is worth."""
        return sum(0.5 if o.kind in STATISTICS else len(o.data) for o in self.observations)


@dataclass(frozen=True)
class _Found:
    node: str
    row: int | None


def by_values(
    open_: Sequence[Observation], model: Model, n: int, truth: Callable[[Collection[str]], dict[str, Array]]
) -> tuple[list[Observation], list[str]]:
    """The observations with the nodes that their values are, as far as these are told; and what was told so."""
    groups = _grouped(_units(open_))
    n_layer = model.hparams.n_layer
    layers = sorted({k for units in groups.values() for u in units for k in _layers_of(u) if 0 <= k < n_layer})
    wanted = sorted({0, *layers[:_LAYERS]})[:_LAYERS]
    candidates = [name for name in _nodes(model.graph) if split(name)[1] in (None, *wanted)]
    if not groups or not candidates:
        return list(open_), []
    library = _Library(model, n, truth(candidates))
    renamed: dict[int, Observation] = {}
    notes: list[str] = []
    for (template, _), units in list(groups.items())[:_TEMPLATES]:
        tried = sorted(
            units, key=lambda u: (u.first.layer or 0) if u.first.layer is not None else min(u.first.integers, default=0)
        )
        found = {id(u): f for u in tried[:_TRIES] if (f := library.nearest(u)) is not None}
        named = _spread(units, found, n_layer, n)
        for unit, place in named:
            for obs in unit.observations:
                rows = obs.rows if obs.rows is not None or place.row is None else (place.row, place.row + 1)
                renamed[id(obs)] = replace(
                    obs, name=place.node, foreign=obs.foreign if obs.name else place.node, others=(), rows=rows,
                    vague=False, unnumbered=False, perhaps=None,
                )  # fmt: skip
        changed = [(u, p) for u, p in named if u.first.name != p.node]
        if changed:
            shown = template if len(template) < 60 else template[:57] + "…"
            nodes = list(dict.fromkeys(p.node for _, p in changed))
            tail = f" … {nodes[-1]}" if len(nodes) > 1 else ""
            notes.append(f"lines like {shown!r}: read as {nodes[0]}{tail}, by their values")
    return [renamed.get(id(o), o) for o in open_], notes


def overruled(
    named: Sequence[Observation], model: Model, n: int, truth: Callable[[Collection[str]], dict[str, Array]]
) -> tuple[list[Observation], list[str]]:
    """The observations with another node where values speak against the words, and what was told so."""
    names: dict[str, list[Observation]] = {}
    for obs in named:
        if obs.template and split(obs.name)[1] is not None:
            names.setdefault(obs.name, []).append(obs)
    units = [u for many in names.values() for u in _units(many)]
    phrases: dict[tuple[str, str, int], dict[int, Unit]] = {}  # the words, their role, which of a layer's: by layer
    for unit in units:
        role, layer = split(unit.first.name)
        nth = 0
        while int(layer or 0) in phrases.setdefault((unit.first.template, role, nth), {}):
            nth += 1
        phrases[unit.first.template, role, nth][int(layer or 0)] = unit
    graph, claimed = model.graph, {u.first.name for u in units}
    first = min((min(of) for of in phrases.values() if of), default=0)
    asked = [of[first] for of in phrases.values() if first in of]
    values = truth({u.first.name for u in asked}) if asked else {}
    library = _Library(model, n, values)
    doubted = [u for u in asked if not library.is_node(u)]
    if not doubted:
        return list(named), []
    library = _Library(model, n, truth([name for name in _nodes(graph) if split(name)[1] == first]))
    renamed: dict[int, Observation] = {}
    notes: list[str] = []
    for (template, role, _), of in phrases.items():
        asked_of = of.get(first)
        if asked_of is None or asked_of not in doubted:
            continue
        found = library.nearest(asked_of)
        if found is None or found.node in claimed or asked_of.first.name not in graph.ancestors([found.node]):
            continue
        other = split(found.node)[0]
        for layer, each in of.items():
            for obs in each.observations:
                renamed[id(obs)] = replace(obs, name=join(other, layer))
        notes.append(f"lines like {template!r}: read as {found.node}, whose values they are, not {role}")
    return [renamed.get(id(o), o) for o in named], notes


def _units(observations: Iterable[Observation]) -> list[Unit]:
    """Lists with the statistics beside them; statistics alone; the single values of a line."""
    lines: dict[tuple[str, str], list[Observation]] = {}
    for obs in observations:
        lines.setdefault((obs.where, obs.template), []).append(obs)
    units: list[Unit] = []
    for many in lines.values():
        parts: list[list[Observation]] = [[]]
        for obs in many:
            own = any(o.kind not in STATISTICS for o in parts[-1])
            ends = obs.kind == "last" and parts[-1] and parts[-1][-1].kind == "first" and parts[-1][-1].rows == obs.rows
            single = obs.kind == "at" and parts[-1] and parts[-1][-1].kind == "at"
            if own and obs.kind not in STATISTICS and not ends and not single:
                parts.append([])
            parts[-1].append(obs)
        units += [Unit(tuple(p), i) for i, p in enumerate(parts)]
    return [u for u in units if u.weight >= (2 if all(o.kind in STATISTICS for o in u.observations) else 3)]


def can_tell(observations: Iterable[Observation]) -> bool:
    """Whether there are enough values on any line for them to tell a node."""
    return bool(_units(observations))


def _grouped(units: Iterable[Unit]) -> dict[tuple[str, int], list[Unit]]:
    """The units of each template. Those that stand alone are grouped by their words without any digit."""
    fine: dict[tuple[str, int], list[Unit]] = {}
    for unit in units:
        fine.setdefault((unit.first.template, unit.number), []).append(unit)
    groups: dict[tuple[str, int], list[Unit]] = {}
    for (template, number), many in fine.items():
        if len(many) == 1 and (digits := _DIGITS.findall(template)):
            first = replace(many[0].first, integers=(*many[0].first.integers, *(int(d) for d in digits)))
            many = [replace(many[0], said=first)]
            template = _DIGITS.sub("#", template)
        groups.setdefault((template, number), []).extend(many)
    return groups


def _layers_of(unit: Unit) -> Iterable[int]:
    return unit.first.integers if unit.first.layer is None else (unit.first.layer,)


def _nodes(graph: Graph) -> list[str]:
    """Nodes that people print by the row. The ends are left out: they need every layer, and have clear names."""
    found = [node.name for node in graph if not node.has(Trait.INDICES | Trait.STATE)]
    return [
        name
        for name in found
        if name not in ("result_norm", "result_output")
        and token_axis(graph, name) == 0
        and "T" in graph.shapes[name]
        and "S" not in graph.shapes[name]
    ]


class _Library:
    """The definition's rows: nodes in the order in which a tie is decided, each as (name, rows, features)."""

    def __init__(self, model: Model, n: int, values: dict[str, Array]) -> None:
        self._rows = list(range(n)) if n <= 2 * _ROWS else [*range(_ROWS), *range(n - _ROWS, n)]
        width = model.hparams.n_embd_head
        self._entries: list[tuple[str, Array, Array]] = []  # name, features of the rows, their rms
        order = {role: i for i, role in enumerate(_USUAL)}
        for name in sorted(values, key=lambda name: order.get(split(name)[0], len(order))):
            part = np.asarray(values[name])[self._rows].reshape(len(self._rows), -1).astype(np.float64)
            self._entries.append((name, part, np.sqrt(np.mean(part**2, axis=1)) + 1e-30))
            if name.startswith(("Qcur", "Kcur")) and part.shape[1] % width == 0:
                turned = to_hf(part, width)
                self._entries.append((name, turned, self._entries[-1][2]))
        self._statistics: dict[tuple[int, str], Array] = {}
        self._size = len(self._entries) * len(self._rows)

    def nearest(self, unit: Unit) -> _Found | None:
        """The node and row whose values these are, if there is one."""
        limit = min(_COARSE, (_CHANCE / self._size) ** (1 / unit.weight))
        scored: list[tuple[float, str, int]] = []
        for name, part, rms in self._entries:
            layer = split(name)[1]
            if unit.first.layer is not None and layer is not None and layer != unit.first.layer:
                continue
            error = self._error(unit, part, rms)
            if error is not None:
                at = int(np.argmin(error))
                scored.append((float(error[at]), name, self._rows[at]))
        if not scored:
            return None
        best = min(scored, key=lambda s: s[0])
        if not best[0] <= limit:
            return None
        rivals = [s for s in scored if s[1] != best[1] and s[0] < _RIVAL * max(best[0], 1e-6)]
        same = [s for s in scored if s[0] <= best[0] * (1 + 1e-9) + 1e-12]
        if rivals and len(same) < 1 + len({s[1] for s in rivals}):
            return None
        return _Found(same[0][1], same[0][2])

    def is_node(self, unit: Unit) -> bool:
        """Whether the values may be those of the node that the words name, in some row."""
        found = (self._error(unit, part, rms) for name, part, rms in self._entries if name == unit.first.name)
        errors = [e for e in found if e is not None]
        return not errors or min(float(e.min()) for e in errors) <= _COARSE

    def _error(self, unit: Unit, part: Array, rms: Array) -> Array | None:
        worst = np.zeros(len(part))
        for obs in unit.observations:
            target = obs.target()
            if not np.isfinite(target).all():
                return None
            if obs.kind in STATISTICS:
                key = (id(part), obs.kind)
                if key not in self._statistics:
                    self._statistics[key] = np.array([[STATISTICS[obs.kind](row)] for row in part])
                expected = self._statistics[key]
                wide = {"norm": np.abs(expected[:, 0]) + 1e-30, "sum": rms * part.shape[1] ** 0.5}
                scale = wide.get(obs.kind, rms)
            else:
                index = self._index(obs, part.shape[1])
                if index is None:
                    return None
                expected, scale = part[:, index], rms
                target = target[: len(index)]
            worst = np.maximum(worst, np.max(np.abs(expected - target), axis=1) / scale)
        if unit.first.rows is not None:
            wanted = unit.first.rows[0] % (self._rows[-1] + 1)
            worst = np.where(np.array(self._rows) == wanted, worst, np.inf)
        return worst

    def _index(self, obs: Observation, width: int) -> list[int] | None:
        if obs.kind in ("at", "top"):
            found = [i for i, _ in obs.data]
        else:
            found = list(range(len(obs.data))) if obs.kind == "first" else list(range(width - len(obs.data), width))
        return found[:256] if found and min(found) >= 0 and max(found) < width else None


def _spread(units: Sequence[Unit], found: dict[int, _Found], n_layer: int, n: int) -> list[tuple[Unit, _Found]]:
    """The lines of one template, given what some of them are."""
    known = [(i, u, found[id(u)]) for i, u in enumerate(units) if id(u) in found]
    if not known:
        return []
    roles = {split(f.node)[0] for _, _, f in known}
    if len(roles) > 1 or split(known[0][2].node)[1] is None:
        return [(u, f) for _, u, f in known]
    (role,) = roles
    place = _place(units, [(i, u, int(split(f.node)[1] or 0)) for i, u, f in known], n_layer)
    if place is None:
        return [(u, f) for _, u, f in known]
    row = _row(units, [(i, u, f.row) for i, u, f in known if f.row is not None], n)
    done = {id(u): f for _, u, f in known}
    return [
        (u, done.get(id(u)) or _Found(join(role, layer), row(i)))
        for i, u in enumerate(units)
        if id(u) in done or ((layer := place(i)) is not None and 0 <= layer < n_layer)
    ]


def _place(
    units: Sequence[Unit], known: Sequence[tuple[int, Unit, int]], n_layer: int
) -> Callable[[int], int | None] | None:
    """Which layer a line of the template is of: as it says, by a whole number that runs along, or by its turn."""
    if all(u.first.layer is not None for u in units):
        return lambda i: units[i].first.layer
    length = min(len(u.first.integers) for u in units)
    best: tuple[int, int, int] | None = None
    for p in range(length):
        off = {u.first.integers[p] - layer for _, u, layer in known}
        values = {u.first.integers[p] for u in units}
        if len(off) == 1 and (len(values) > 1 or len(units) == 1):
            shift = off.pop()
            if all(0 <= v - shift < n_layer for v in values) and (best is None or len(values) > best[0]):
                best = (len(values), p, shift)
    if best is not None:
        _, at, by = best
        return lambda i: units[i].first.integers[at] - by
    if len(units) == n_layer and all(i == layer for i, _, layer in known):
        return lambda i: i
    return None


def _row(units: Sequence[Unit], known: Sequence[tuple[int, Unit, int | None]], n: int) -> Callable[[int], int | None]:
    """Which row a line of the template is of: always the same, or by a whole number that runs along."""
    rows = {r for _, _, r in known}
    if len(rows) == 1:
        return lambda i: next(iter(rows))
    length = min(len(u.first.integers) for u in units)
    for p in range(length):
        if all(u.first.integers[p] == r for _, u, r in known):
            return lambda i: units[i].first.integers[p] if units[i].first.integers[p] < n else None
    return lambda i: None
