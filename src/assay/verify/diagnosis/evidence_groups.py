"""The observations in groups of values, from which a likelihood is computed, and the computations that predict them.

A group is a token's row of a node, or the printed values of one. `groups_of` cuts the deviation of a node into groups.

An `EvidencePlace` is one recomputation (`unit.segment`, a run of graph nodes) and the observed nodes among its results
(`targets`). With whole tensors in the dump, a place starts at the nearest dumped tensors and has one target. With
printed values only, the place is the whole run from the tokens, and all observed nodes are targets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.verify.diagnosis.fault_trials import EvidenceUnit, FaultTrials, Hypothesis
from assay.verify.dumps.observation import STATISTICS, token_axis
from assay.verify.judge.arithmetic import UNIT
from assay.verify.judge.compare_nodes import Diff
from assay.verify.judge.evidence import deviation
from assay.verify.judge.noise import by_rows, rms_of_rows
from assay.verify.judge.rounding import EXACT, Rounding
from assay.verify.thresholds import FIRST_OBSERVED, FLOOR_UNITS, LONG_RUN, MOST_OF_A_ROW

Array = NDArray[Any]


@dataclass(frozen=True)
class Groups:
    """For each group of values of one node: the errors, how many of them count, and the squared noise floor."""

    errors: tuple[Array, ...]
    counts: Array
    floors: Array


@dataclass(frozen=True)
class EvidencePlace:
    """Observed nodes that one computation reaches.

    In a `brief` place a mistake is scored only at the first few nodes that it changes, and at the first few of those
    that are `off`.
    """

    unit: EvidenceUnit
    targets: tuple[str, ...]
    brief: bool = False
    off: frozenset[str] = frozenset()

    def targets_of(self, trials: FaultTrials, h: Hypothesis) -> list[tuple[str, ...]]:
        """The nodes at which a mistake is scored. In a brief place: where it shows first, then where values are off."""
        if not self.brief:
            return [self.targets]
        changed = trials.changed(h, self.unit)
        names = [name for name in self.targets if name in changed]
        first = names[:FIRST_OBSERVED]
        off = [name for name in names if name in self.off][:FIRST_OBSERVED]
        return [part for part in (tuple(first), tuple(name for name in off if name not in first)) if part]

    def early(self) -> EvidencePlace:
        """The first layers of a brief place: enough to tell how an engine rounds."""
        segment = self.unit.segment[:LONG_RUN]
        targets = tuple(name for name in self.targets if name in segment)
        if not self.brief or not targets:
            return self
        return EvidencePlace(EvidenceUnit(targets[-1], segment[: segment.index(targets[-1]) + 1]), targets)

    def first_off(self) -> EvidencePlace | None:
        """A brief place up to the first node that is off: a short computation, if that node is an early one."""
        first = next((i for i, name in enumerate(self.targets) if name in self.off), None)
        if not self.brief or first is None:
            return None
        target, segment = self.targets[first], self.unit.segment
        unit = EvidenceUnit(target, segment[: segment.index(target) + 1])
        return replace(self, unit=unit, targets=self.targets[: first + 1])

    def near(self, trials: FaultTrials, h: Hypothesis) -> EvidenceUnit | None:
        """The shortest computation in which the mistake shows; None where it does not, or is a run of many layers."""
        parts = self.targets_of(trials, h)
        if not parts:
            return None
        last = parts[-1][-1]
        unit = EvidenceUnit(last, self.unit.segment[: self.unit.segment.index(last) + 1])
        return None if trials.run_of(trials.changed(h, unit)) else unit


def run_of(trials: FaultTrials, diff: Diff) -> EvidencePlace:
    """The place of a dump without whole tensors: every observation is reached from the tokens."""
    order = {node.name: i for i, node in enumerate(trials.graph)}
    names = sorted((n.name for n in diff.nodes), key=order.__getitem__)
    return EvidencePlace(EvidenceUnit(names[-1], tuple(list(order)[: order[names[-1]] + 1])), tuple(names))


def off_at(trials: FaultTrials, place: EvidencePlace, name: str) -> float:
    """The squared deviation of the definition at a node, over the noise floor; the largest of its groups."""
    groups = groups_of(trials, name, trials.base(place.unit)[name])
    return np.inf if groups is None else off_in(groups)


def off_in(groups: Groups, more: Array | float = 0.0) -> float:
    """The same of given groups, with `more` added to the noise floor."""
    return max(float(mean_square(e) / v) for e, v in zip(groups.errors, groups.floors + more, strict=True))


def mean_square(x: Array) -> float:
    """The mean of the squares of a row; the bits of `np.mean(x * x)`, in a third of the time for short rows."""
    return float(np.add.reduce(x * x, axis=None)) / x.size


def gains(plain: Groups, other: Groups) -> list[float]:
    """The nats by which each group is likelier with the other errors than with the plain; 0 where both are equal."""
    return [
        0.5 * n * float(np.log((mean_square(e) + v) / (mean_square(rest) + v))) if (e - rest).any() else 0.0
        for e, rest, n, v in zip(plain.errors, other.errors, plain.counts, plain.floors, strict=True)
    ]


def groups_of(trials: FaultTrials, name: str, value: Array, edges: Rounding = EXACT) -> Groups | None:
    """The observations of a node less a value, row by row; None where the value is not finite or of another shape.

    With `edges`, deviations within one step of the type that this rule stores count as zero. Otherwise a hypothesis
    could gain by a value that was merely rounded the other way.
    """
    axis = token_axis(trials.graph, name)
    if value.dtype.kind != "f" or value.shape[axis] < len(trials.dump.tokens):
        return None
    level = trials.evidence[name].noise_carried if trials.terms.carried else trials.evidence[name].noise_local
    hide = trials.hidden_at(name)
    errors: list[Array] = []
    counts: list[float] = []
    floors: list[float] = []
    for obs in trials.dump.by_name[name]:
        error, expected = deviation(obs, value, axis, trials.model.hparams.n_embd_head, hide)
        if not np.isfinite(error).all():
            return None
        start, stop = obs.rows or (0, level.rms.shape[1])
        noise = level.rms[0, start:stop]
        if obs.kind == "values":
            rows = by_rows(expected, axis)
            for row, x, one, size in zip(by_rows(error, axis), rows, noise, rms_of_rows(rows).tolist(), strict=True):
                errors.append(_beyond_an_edge(row, x, edges))
                counts.append(min(row.size, MOST_OF_A_ROW))
                floors.append((FLOOR_UNITS * (one + UNIT["f32"] * size)) ** 2 + 1e-60)
            continue
        printed = np.asarray(obs.printed or 0.0, np.float64)
        if obs.kind not in STATISTICS:
            error = _beyond_an_edge(error, expected, edges)
        size = float(np.sqrt(np.mean(np.square(by_rows(value, axis)[start:stop]))))
        spread = float(noise.max()) + UNIT["f32"] * size
        if obs.kind in STATISTICS:
            spread *= 4.0 if obs.kind in ("min", "max", "absmax", "norm") else 1.0
        errors.append(np.sign(error) * np.maximum(np.abs(error) - printed, 0))
        counts.append(error.size)
        floors.append((FLOOR_UNITS * spread) ** 2 + float(np.mean(printed**2)) / 3 + 1e-60)
    return Groups(tuple(errors), np.array(counts), np.array(floors))


def _beyond_an_edge(error: Array, value: Array, rule: Rounding) -> Array:
    """The error beyond one rounding step of the stored type: a value at an edge may be rounded the other way."""
    if not rule.storage:
        return error
    return np.asarray(np.sign(error) * np.maximum(np.abs(error) - 2 * UNIT[rule.storage] * np.abs(value), 0))
