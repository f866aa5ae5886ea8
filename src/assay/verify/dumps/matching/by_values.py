"""Decides by values which node a printed line is of, where its words name none, name it vaguely, or are wrong.

A list of values identifies its node. For every list, or line of statistics, that words leave open, `by_values` seeks
the nearest node and row of the definition's run. The match must be within what a coarse engine may do, and without a
rival. A print statement does the same in every layer. So lines with the same words and other whole numbers are the same
node of other layers, even where a fault makes their values match nothing.

`overrule_words` reads a line that names node A as node B, if all of this holds in the first layer printed:

    the values are not A's
    they match B digit by digit
    no other line names B
    B is computed from A

The last condition separates wrong words from a fault. A fault may leave A with the values of A's input: a norm, a
rotation or a sum was skipped. A fault may also exchange neighbours: the weights of q and v, of gate and up. But a fault
never gives A the values of a later node that is computed from A. So the print was placed after B, and the words are
wrong.

`choose_alternatives` decides between several readings of one line (`Observation.alternatives`).
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
_COARSE = 0.03  # of a row's rms: the error of an engine with few bits.
_CHANCE = 1e-3  # accepted probability of a match by chance, over all candidates.
_RIVAL = 3.0  # the second-best node must be this much further away.
_TRIES, _TEMPLATES = 8, 128  # lines compared of one template, and number of templates.
_ROWS = 32  # compared at either end of a sequence.
_LAYERS = 3  # number of layers whose values are computed.
_DIGITS = re.compile(r"(?<![\d#])\d{1,6}(?!\d)")
_USUAL = ("Vcur", "kqv_out", "attn_out", "ffn_out", "l_out", "ffn_inp", "attn_norm", "ffn_norm", "Qcur", "Kcur")


@dataclass(frozen=True)
class LineEvidence:
    """The observations that one line makes of one node."""

    observations: tuple[Observation, ...]
    number: int  # its place among those of the line
    said: Observation | None = None  # the first observation, with all whole numbers of its words

    @property
    def first(self) -> Observation:
        return self.said or self.observations[0]

    @property
    def weight(self) -> float:
        """Its number of values; a statistic counts half."""
        return sum(0.5 if o.kind in STATISTICS else len(o.data) for o in self.observations)


@dataclass(frozen=True)
class _Place:
    node: str
    row: int | None


def by_values(
    open_: Sequence[Observation], model: Model, n: int, truth: Callable[[Collection[str]], dict[str, Array]]
) -> tuple[list[Observation], list[str]]:
    """The observations, renamed where their values identify a node, and notes on these."""
    groups = _grouped(_units(open_))
    n_layer = model.hparams.n_layer
    layers = sorted({k for units in groups.values() for u in units for k in _layers_of(u) if 0 <= k < n_layer})
    wanted = sorted({0, *layers[:_LAYERS]})[:_LAYERS]
    candidates = [name for name in _nodes(model.graph) if split(name)[1] in (None, *wanted)]
    if not groups or not candidates:
        return list(open_), []
    library = _DefinitionRows(model, n, truth(candidates))
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
                    vague=False, unnumbered=False, possible_row=None,
                )  # fmt: skip
        changed = [(u, p) for u, p in named if u.first.name != p.node]
        if changed:
            shown = template if len(template) < 60 else template[:57] + "…"
            nodes = list(dict.fromkeys(p.node for _, p in changed))
            tail = f" … {nodes[-1]}" if len(nodes) > 1 else ""
            notes.append(f"lines like {shown!r}: read as {nodes[0]}{tail}, by their values")
    return [renamed.get(id(o), o) for o in open_], notes


def overrule_words(
    named: Sequence[Observation], model: Model, n: int, truth: Callable[[Collection[str]], dict[str, Array]]
) -> tuple[list[Observation], list[str]]:
    """The observations, renamed where their values contradict the words, and notes on these."""
    names: dict[str, list[Observation]] = {}
    for obs in named:
        if obs.template and split(obs.name)[1] is not None:
            names.setdefault(obs.name, []).append(obs)
    units = [u for many in names.values() for u in _units(many)]
    phrases: dict[
        tuple[str, str, int], dict[int, LineEvidence]
    ] = {}  # (words, role, which one in the layer) -> by layer
    for unit in units:
        role, layer = split(unit.first.name)
        nth = 0
        while int(layer or 0) in phrases.setdefault((unit.first.template, role, nth), {}):
            nth += 1
        phrases[unit.first.template, role, nth][int(layer or 0)] = unit
    graph, claimed, printable = model.graph, {u.first.name for u in units}, {*_nodes(model.graph)}
    first = min((min(of) for of in phrases.values() if of), default=0)
    asked = [of[first] for of in phrases.values() if first in of]
    values = truth({u.first.name for u in asked} & printable) if asked else {}
    library = _DefinitionRows(model, n, values)
    doubted = [u for u in asked if u.first.name not in printable or not library.is_node(u)]
    if not doubted:
        return list(named), []
    library = _DefinitionRows(model, n, truth([name for name in _nodes(graph) if split(name)[1] == first]))
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


def choose_alternatives(
    named: Sequence[Observation], model: Model, n: int, truth: Callable[[Collection[str]], dict[str, Array]]
) -> tuple[list[Observation], list[str]]:
    """For lines with two readings, the one that more lines of the same words confirm; and what was decided.

    The first reading stays unless the second one is a node's own values on more lines, at least on two.
    """
    lines: dict[str, list[Observation]] = {}
    for obs in named:
        lines.setdefault(obs.where, []).append(obs)
    phrases: dict[str, list[list[Observation]]] = {}
    for line in lines.values():
        if any(o.alternatives for o in line):
            phrases.setdefault(line[0].template, []).append(line)
    printable = {name for name in _nodes(model.graph) if (split(name)[1] or 0) < _LAYERS}
    wanted = {name for many in phrases.values() for line in many for o in line for name in _both(o)} & printable
    if not wanted:
        return list(named), []
    library = _DefinitionRows(model, n, truth(wanted))
    replaced: dict[str, list[Observation]] = {}
    notes: list[str] = []
    for template, many in phrases.items():
        second = [[a for o in line for a in o.alternatives] for line in many]
        confirmed = [sum(map(library.confirms, readings)) for readings in (many, second)]
        if confirmed[1] > max(confirmed[0], 1):
            replaced |= {line[0].where: other for line, other in zip(many, second, strict=True)}
            notes.append(f"lines like {template!r}: read as {second[0][0].name}, row by row; the values confirm it")
    found: list[Observation] = []
    for obs in named:
        if obs.where not in replaced:
            found.append(obs)
        elif obs is lines[obs.where][0]:
            found += replaced[obs.where]
    return found, notes


def _both(obs: Observation) -> Iterable[str]:
    """The nodes of an observation and of its second reading."""
    for one in (obs, *obs.alternatives):
        yield from (one.name, *one.others)


def _units(observations: Iterable[Observation]) -> list[LineEvidence]:
    """Group the observations of each line: a list with its statistics, statistics alone, single values."""
    lines: dict[tuple[str, str], list[Observation]] = {}
    for obs in observations:
        lines.setdefault((obs.where, obs.template), []).append(obs)
    units: list[LineEvidence] = []
    for many in lines.values():
        parts: list[list[Observation]] = [[]]
        for obs in many:
            own = any(o.kind not in STATISTICS for o in parts[-1])
            ends = obs.kind == "last" and parts[-1] and parts[-1][-1].kind == "first" and parts[-1][-1].rows == obs.rows
            single = obs.kind == "at" and parts[-1] and parts[-1][-1].kind == "at"
            if own and obs.kind not in STATISTICS and not ends and not single:
                parts.append([])
            parts[-1].append(obs)
        units += [LineEvidence(tuple(p), i) for i, p in enumerate(parts)]
    return [u for u in units if u.weight >= (2 if all(o.kind in STATISTICS for o in u.observations) else 3)]


def can_identify(observations: Iterable[Observation]) -> bool:
    """Whether any line has enough values to identify a node."""
    return bool(_units(observations))


def _grouped(units: Iterable[LineEvidence]) -> dict[tuple[str, int], list[LineEvidence]]:
    """The evidence of each template. Lines with a unique template are grouped by their words without digits."""
    fine: dict[tuple[str, int], list[LineEvidence]] = {}
    for unit in units:
        fine.setdefault((unit.first.template, unit.number), []).append(unit)
    groups: dict[tuple[str, int], list[LineEvidence]] = {}
    for (template, number), many in fine.items():
        if len(many) == 1 and (digits := _DIGITS.findall(template)):
            first = replace(many[0].first, integers=(*many[0].first.integers, *(int(d) for d in digits)))
            many = [replace(many[0], said=first)]
            template = _DIGITS.sub("#", template)
        groups.setdefault((template, number), []).extend(many)
    return groups


def _layers_of(unit: LineEvidence) -> Iterable[int]:
    return unit.first.integers if unit.first.layer is None else (unit.first.layer,)


def _nodes(graph: Graph) -> list[str]:
    """Nodes that people print by the row. The final norm and logits are left out: they need every layer."""
    found = [node.name for node in graph if not node.has(Trait.INDICES | Trait.CACHES | Trait.SHOWS_STATE)]
    return [
        name
        for name in found
        if name not in ("result_norm", "result_output")
        and token_axis(graph, name) == 0
        and "T" in graph.shapes[name]
        and "S" not in graph.shapes[name]
    ]


class _DefinitionRows:
    """The definition's rows of each node. The order of nodes decides ties."""

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

    def nearest(self, unit: LineEvidence) -> _Place | None:
        """The node and row with these values; None without a clear match."""
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
        return _Place(same[0][1], same[0][2])

    def confirms(self, line: Sequence[Observation]) -> bool:
        """Whether the values of a line are those of a node that it names, beyond chance."""
        for unit in _units(line):
            limit = min(_COARSE, (_CHANCE / self._size) ** (1 / unit.weight))
            names = {name for o in unit.observations for name in (o.name, *o.others)}
            errors = [self._error(unit, part, rms) for name, part, rms in self._entries if name in names]
            if any(e is not None and float(e.min()) <= limit for e in errors):
                return True
        return False

    def is_node(self, unit: LineEvidence) -> bool:
        """Whether the values match the node that the words name, in some row."""
        found = (self._error(unit, part, rms) for name, part, rms in self._entries if name == unit.first.name)
        errors = [e for e in found if e is not None]
        return not errors or min(float(e.min()) for e in errors) <= _COARSE

    def _error(self, unit: LineEvidence, part: Array, rms: Array) -> Array | None:
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


def _spread(
    units: Sequence[LineEvidence], found: dict[int, _Place], n_layer: int, n: int
) -> list[tuple[LineEvidence, _Place]]:
    """Extend the matches of some lines to all lines of the same template."""
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
        (u, done.get(id(u)) or _Place(join(role, layer), row(i)))
        for i, u in enumerate(units)
        if id(u) in done or ((layer := place(i)) is not None and 0 <= layer < n_layer)
    ]


def _place(
    units: Sequence[LineEvidence], known: Sequence[tuple[int, LineEvidence, int]], n_layer: int
) -> Callable[[int], int | None] | None:
    """The layer of a line: the one it names, a whole number that counts along, or its place among the lines."""
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


def _row(
    units: Sequence[LineEvidence], known: Sequence[tuple[int, LineEvidence, int | None]], n: int
) -> Callable[[int], int | None]:
    """The row of a line: the same for all, or a whole number that counts along."""
    rows = {r for _, _, r in known}
    if len(rows) == 1:
        return lambda i: next(iter(rows))
    length = min(len(u.first.integers) for u in units)
    for p in range(length):
        if all(u.first.integers[p] == r for _, u, r in known):
            return lambda i: units[i].first.integers[p] if units[i].first.integers[p] < n else None
    return lambda i: None
