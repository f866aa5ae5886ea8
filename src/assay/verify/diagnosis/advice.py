"""Relations that hold without a named cause, and advice on the next observation: the one dump or probe to make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Trait, split
from assay.verify.diagnosis.fault_trials import EvidenceUnit, FaultTrials, Hypothesis
from assay.verify.diagnosis.relations import Relation, describe, extent, extent_of_rows, relative
from assay.verify.diagnosis.result import Cause
from assay.verify.dumps.observation import token_axis
from assay.verify.faults import FAULTS
from assay.verify.faults.kinds import ANOTHER_RUN
from assay.verify.judge.evidence import deviation
from assay.verify.thresholds import CLOSE

Array = NDArray[Any]
FEWEST_PRINTED = 3  # numbers that one factor may be read from


def relations_at(trials: FaultTrials, unit: EvidenceUnit) -> list[Relation]:
    """Simple relations between the found and the expected values of the target; they need no hypothesis."""
    found = trials.dump.values(unit.target)
    if found is None:
        return []
    node = trials.graph[unit.target]
    own = trials.base(unit)[unit.target]
    scaled = node.has(Trait.NORM) and not node.has(Trait.SUMS) and node.weights  # a norm that only multiplies by w
    weight = np.asarray(trials.weights[node.weights[0]]) if scaled else None
    shape = trials.graph.shapes[unit.target]
    others = {
        name: value
        for name, value in trials.theirs.items()
        if name != unit.target and split(name)[1] == split(unit.target)[1] and trials.graph.shapes.get(name) == shape
    }
    axis = token_axis(trials.graph, unit.target)
    hidden = trials.hidden_at(unit.target)
    if hidden is not None:
        found, own = np.where(hidden, 0, found), np.where(hidden, 0, own)
    simple = describe(found, own, axis, weight, others, trials.context.starts(len(trials.dump.tokens)))
    return simple or [r for r in (extent(found, own, axis),) if r is not None]


def relations_of_prints(trials: FaultTrials, unit: EvidenceUnit) -> list[Relation]:
    """One factor between the printed numbers of the target and what they should be, if they have one."""
    axis, own, hide = (
        token_axis(trials.graph, unit.target),
        trials.base(unit)[unit.target],
        trials.hidden_at(unit.target),
    )
    errors, rights, digits = [], [], []
    rows: dict[int, bool] = {}
    for obs in trials.dump.by_name[unit.target]:
        error, right = deviation(obs, own, axis, trials.model.hparams.n_embd_head, hide)
        errors.append(error.ravel())
        rights.append(right.ravel())
        digits.append(np.broadcast_to(np.asarray(obs.printed or 0.0), error.size))
        if obs.row is not None:
            size = CLOSE * float(np.sqrt(np.mean(np.square(right)))) if right.size else 0.0
            rows[obs.row] = rows.get(obs.row, False) or bool((np.abs(errors[-1]) > size + digits[-1]).any())
    error, right, digit = (np.concatenate(parts) for parts in (errors, rights, digits))
    power = float(right @ right)
    if len(right) < FEWEST_PRINTED or not power or not np.isfinite(error).all():
        return []
    k = float((error + right) @ right) / power
    left = np.abs(error + right - k * right)
    if abs(k - 1) <= CLOSE or (left > CLOSE * np.abs(k * right) + 2 * digit).any():
        where = extent_of_rows(rows, error + right, right) if any(rows.values()) else None
        return [where] if where is not None else []
    return [Relation("ratio", f"every printed number is {k:.6g} times what it should be", relative(left, right))]


def next_observation(
    trials: FaultTrials, unit: EvidenceUnit, causes: Sequence[Cause], unexplained: Sequence[str]
) -> str:
    """The one node to dump, or the one probe to run, that would tell more."""
    if unexplained and len(unit.segment) > 1:
        middle = unit.segment[(len(unit.segment) - 1) // 2]
        return f"dump {middle} whole: the fault lies between {unit.segment[0]} and {unit.target}"
    for cause in causes:
        others = [f for f in cause.equivalent if f != cause.fault and f in FAULTS]
        if others:
            return observation_that_tells(
                trials, EvidenceUnit(cause.node, _segment_of(trials, cause.node, unit)), cause, others
            )
    if unexplained:
        return f"{unit.target} has all its inputs in the dump; compare its code with: {trials.graph[unit.target]}"
    return ""


def _segment_of(trials: FaultTrials, name: str, unit: EvidenceUnit) -> tuple[str, ...]:
    if name == unit.target:
        return unit.segment
    known = trials.theirs.keys() - {name}
    found = trials.graph.ancestors([name], known) - known
    return tuple(node.name for node in trials.graph if node.name in found)


def observation_that_tells(trials: FaultTrials, unit: EvidenceUnit, cause: Cause, others: Sequence[str]) -> str:
    """The node at which the equivalent faults would differ, or the probe of the catalogue."""
    values = []
    for fault in (cause.fault, *others):
        for variant in FAULTS[fault].variants:
            p = variant.search.common[0] if variant.search and variant.search.common else 0.0
            if trials.touches(variant, unit, p):
                h = Hypothesis(fault, variant, p)
                if not trials.fit(h, unit).explained and fault != cause.fault:
                    continue
                made = trials.predict(h, unit, unit.segment)
                if made is not None:
                    values.append((fault, made))
                    break
    for name in unit.segment[:-1]:
        for fault, value in values[1:]:
            ours = values[0][1][name]
            if not _alike(ours, value[name]):
                return f"dump {name}: it tells {cause.fault} from {fault}"
    other = FAULTS[others[0]]
    if other.run in ANOTHER_RUN:
        return f"{cause.fault} and {other.id} give the same values here; a probe that tells them apart: {other.probe}"
    return f"nothing can tell {cause.fault} from {others[0]} here: two names for the same computation"


def _alike(a: Array, b: Array) -> bool:
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-3, atol=1e-6 * float(np.abs(a).max()))
