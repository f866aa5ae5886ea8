"""What can be said without a cause, and what to observe next: the one dump or probe that would tell more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import split
from assay.verify.diagnosis.lab import Hypothesis, Lab, Unit
from assay.verify.diagnosis.relations import Relation, describe
from assay.verify.diagnosis.result import Cause
from assay.verify.dumps.observation import token_axis
from assay.verify.faults import FAULTS
from assay.verify.faults.kinds import ANOTHER_RUN

Array = NDArray[Any]


def relations_at(lab: Lab, unit: Unit) -> list[Relation]:
    """What can be said of the target without any hypothesis."""
    found = lab.dump.values(unit.target)
    if found is None:
        return []
    node = lab.graph[unit.target]
    own = lab.base(unit)[unit.target]
    weight = np.asarray(lab.weights[node.weights[0]]) if node.op == "rms_norm" and node.weights else None
    shape = lab.graph.shapes[unit.target]
    others = {
        name: value
        for name, value in lab.theirs.items()
        if name != unit.target and split(name)[1] == split(unit.target)[1] and lab.graph.shapes.get(name) == shape
    }
    axis = token_axis(lab.graph, unit.target)
    if node.op == "kq":
        found, own = np.where(lab.hidden, 0, found), np.where(lab.hidden, 0, own)
    return describe(found, own, axis, weight, others, lab.context.starts(len(lab.dump.tokens)))


def next_observation(lab: Lab, unit: Unit, causes: Sequence[Cause], unexplained: Sequence[str]) -> str:
    """The one thing to dump, or the one probe to run, that would tell more."""
    if unexplained and len(unit.segment) > 1:
        middle = unit.segment[(len(unit.segment) - 1) // 2]
        return f"dump {middle} whole: the fault lies between {unit.segment[0]} and {unit.target}"
    for cause in causes:
        others = [f for f in cause.equivalent if f != cause.fault and f in FAULTS]
        if others:
            return splitting(lab, Unit(cause.node, _segment_of(lab, cause.node, unit)), cause, others)
    if unexplained:
        return f"{unit.target} has all its inputs in the dump; compare its code with: {lab.graph[unit.target]}"
    return ""


def _segment_of(lab: Lab, name: str, unit: Unit) -> tuple[str, ...]:
    if name == unit.target:
        return unit.segment
    known = lab.theirs.keys() - {name}
    found = lab.graph.ancestors([name], known) - known
    return tuple(node.name for node in lab.graph if node.name in found)


def splitting(lab: Lab, unit: Unit, cause: Cause, others: Sequence[str]) -> str:
    """The node at which the equivalent faults would differ, or the probe of the catalogue."""
    values = []
    for fault in (cause.fault, *others):
        for variant in FAULTS[fault].variants:
            p = variant.search.common[0] if variant.search and variant.search.common else 0.0
            if lab.touches(variant, unit, p):
                h = Hypothesis(fault, variant, p)
                if not lab.fit(h, unit).explained and fault != cause.fault:
                    continue
                made = lab.predict(h, unit, unit.segment)
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
