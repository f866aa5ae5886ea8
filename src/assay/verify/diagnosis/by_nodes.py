"""Diagnosis of dumps that hold whole tensors: every node that is wrong on its own inputs is explained by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import split
from assay.verify.diagnosis.candidates import SINGLE, Cause, Diagnosis, candidates_at, make_cause, representatives, tied
from assay.verify.diagnosis.lab import Hypothesis, Lab, Unit
from assay.verify.diagnosis.relations import Relation, describe
from assay.verify.dumps.observation import token_axis
from assay.verify.faults import FAULTS
from assay.verify.judge.verdict import Diff, NodeVerdict

Array = NDArray[Any]
Progress = Callable[[str], None]
BENIGN = {
    "pos-global-offset": "all positions are shifted by a constant, which changes no score",
    "hf-order": "queries and keys are in Hugging Face's row order with half-split rotation, which is the same thing",
}
MOST_CAUSES = 5


def by_nodes(
    lab: Lab, diff: Diff, wrong: Sequence[NodeVerdict], say: Progress, most_unexplained: int = 12
) -> Diagnosis:
    open_units = {n.name: Unit(n.name, tuple(n.evidence.segment)) for n in wrong if n.evidence.whole}
    causes: list[Cause] = []
    unexplained: list[str] = []
    right = [n for n in diff.nodes if not n.own and n.evidence.whole and n.name not in open_units]
    while open_units and len(causes) < MOST_CAUSES and len(unexplained) < most_unexplained:
        first = next(iter(open_units.values()))
        say(f"{first.target}: trying the catalogue")
        seen = {split(name)[0] for name in unexplained}
        found = _explain(lab, first, list(open_units.values()), right, deep=split(first.target)[0] not in seen)
        if found is None:
            unexplained.append(first.target)
            open_units.pop(first.target)
            continue
        cause, nodes = found
        causes.append(cause)
        for name in nodes:
            open_units.pop(name, None)
        for name in [n for n in open_units if lab.evidence[n].local[lab.arithmetic] <= 1]:
            open_units.pop(name)  # noise, now that a coarser arithmetic is known
    return _conclude(lab, diff, wrong, causes, [*unexplained, *open_units])


def _explain(
    lab: Lab, first: Unit, units: Sequence[Unit], right: Sequence[NodeVerdict], *, deep: bool = True
) -> tuple[Cause, list[str]] | None:
    """The fault that explains this unit and most of the others, with the nodes it explains."""
    before = lab.before(first)
    candidates, tried = candidates_at(lab, first, before, deep=deep)
    if not candidates:
        return None
    others = representatives([u for u in units if u.target != first.target])
    calm = representatives([Unit(n.name, tuple(n.evidence.segment)) for n in right])
    held = []
    for c in candidates:
        fits = [lab.fit(c.hypothesis, u) for u in others if lab.touches(c.hypothesis.variant, u, c.hypothesis.p)]
        shows = [lab.fit(c.hypothesis, u) for u in calm if lab.touches(c.hypothesis.variant, u, c.hypothesis.p)]
        against = 0 if c.hypothesis.fault in SINGLE else sum(not f.explained for f in shows)
        held.append(replace(c, explained=sum(f.explained for f in fits), contradicted=against))
    held.sort(key=lambda c: (*c.rank, c.fit.ratio))
    best = held[0]
    h = best.hypothesis
    same = [c for c in held if tied(best, c)]
    nodes = [first.target]
    nodes += [u.target for u in units if u.target != first.target and _explains(lab, h, u)]
    return make_cause(best, same, first.target, nodes, before, tried), nodes


def _explains(lab: Lab, h: Hypothesis, unit: Unit) -> bool:
    return lab.touches(h.variant, unit, h.p) and lab.fit(h, unit).explained


def _conclude(
    lab: Lab, diff: Diff, wrong: Sequence[NodeVerdict], causes: list[Cause], unexplained: Sequence[str]
) -> Diagnosis:
    causes, notes = _without_benign(lab, diff, causes)
    first = diff.first_wrong
    assert first is not None
    segment = tuple(wrong[0].evidence.segment)
    if not causes and not unexplained:
        return Diagnosis("healthy", None, (), (), "", notes=tuple(notes))
    about = unexplained[0] if unexplained else wrong[0].name
    unit = Unit(about, tuple(next(n for n in wrong if n.name == about).evidence.segment))
    return Diagnosis(
        verdict="fault" if causes else "unexplained",
        first_wrong=wrong[0].name,
        wrong_nodes=tuple(n.name for n in wrong),
        causes=tuple(causes),
        next_observation=next_observation(lab, unit, causes, unexplained),
        unexplained=tuple(unexplained),
        relations=tuple(relations_at(lab, unit)),
        segment=segment,
        notes=tuple(notes),
    )


def _without_benign(lab: Lab, diff: Diff, causes: list[Cause]) -> tuple[list[Cause], list[str]]:
    """Differences of convention are no faults, provided the scores that follow from them are right."""
    right = {n.name for n in diff.nodes if n.verdict != "wrong"}
    scores_right = all(n.name in right for n in diff.nodes if split(n.name)[0] in ("kq", "kq_soft_max", "l_out"))
    if not scores_right:
        return causes, []
    notes: list[str] = []
    names = {c.fault for c in causes}
    if {"qk-hf-in-interleaved", "rope-type"} <= names:
        causes = [c for c in causes if c.fault not in ("qk-hf-in-interleaved", "rope-type")]
        notes.append(BENIGN["hf-order"])
    for cause in list(causes):
        if cause.fault in BENIGN or "pos-global-offset" in cause.equivalent:
            causes.remove(cause)
            notes.append(BENIGN["pos-global-offset"])
    return causes, notes


def relations_at(lab: Lab, unit: Unit) -> list[Relation]:
    """What can be said of the target without any hypothesis."""
    found = lab.dump.values(unit.target)
    if found is None:
        return []
    node = lab.graph[unit.target]
    own = lab.base(unit)[unit.target]
    weight = np.asarray(lab.weights[node.weights[0]]) if node.op == "rms_norm" else None
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
    found: list[str] = []
    for node in reversed(lab.graph.nodes):
        if node.name == name or any(node.name in lab.graph[f].inputs for f in found):
            if node.name in lab.theirs and node.name != name:
                continue
            found.append(node.name)
    return tuple(reversed(found))


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
                try:
                    values.append((fault, lab.predict(h, unit, unit.segment)))
                except (ValueError, KeyError, IndexError):
                    continue
                break
    for name in unit.segment[:-1]:
        for fault, value in values[1:]:
            ours = values[0][1][name]
            if not _alike(ours, value[name]):
                return f"dump {name}: it tells {cause.fault} from {fault}"
    probe = FAULTS[others[0]].probe
    if ">" in probe or "batch" in probe or "twice" in probe:
        return f"{cause.fault} and {others[0]} give the same values here; a probe that tells them apart: {probe}"
    return f"nothing can tell {cause.fault} from {others[0]} here: two names for the same computation"


def _alike(a: Array, b: Array) -> bool:
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-3, atol=1e-6 * float(np.abs(a).max()))
