"""Diagnosis of dumps that hold whole tensors: every node that is wrong on its own inputs is explained by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from assay.graph import split
from assay.verify.diagnosis.advice import next_observation, relations_at
from assay.verify.diagnosis.candidates import SINGLE, candidates_at, make_cause, representatives, tied
from assay.verify.diagnosis.doubles import Pair, double
from assay.verify.diagnosis.lab import Fit, Hypothesis, Lab, Unit
from assay.verify.diagnosis.result import Cause, Diagnosis
from assay.verify.judge.compare_nodes import Diff, NodeVerdict
from assay.verify.thresholds import MOST_CAUSES, MOST_UNEXPLAINED

Array = NDArray[Any]
Progress = Callable[[str], None]
BENIGN = {
    "pos-global-offset": "all positions are shifted by a constant, which changes no score",
    "hf-order": "queries and keys are in Hugging Face's row order with half-split rotation, which is the same thing",
}


def by_nodes(
    lab: Lab, diff: Diff, wrong: Sequence[NodeVerdict], say: Progress, most_unexplained: int = MOST_UNEXPLAINED
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
        new, nodes, lab = found
        causes += new
        for name in nodes:
            open_units.pop(name, None)
        for name in [n for n in open_units if lab.evidence[n].local[lab.terms.arithmetic] <= 1]:
            open_units.pop(name)  # noise, now that a coarser arithmetic is known
    return _conclude(lab, diff, wrong, causes, [*unexplained, *open_units])


def _explain(
    lab: Lab, first: Unit, units: Sequence[Unit], right: Sequence[NodeVerdict], *, deep: bool = True
) -> tuple[list[Cause], list[str], Lab] | None:
    """The fault that explains this unit and most of the others, the nodes it explains, and on which terms; two where
    only both together do."""
    before = lab.before(first)
    found = candidates_at(lab, first, before, deep=deep)
    if not found.candidates:
        pair = double(lab, first, before) if deep and not lab.terms.subtle else None
        return _both(lab, first, units, before, pair) if pair else None
    lab = found.lab
    others = representatives([u for u in units if u.target != first.target])
    calm = representatives([Unit(n.name, tuple(n.evidence.segment)) for n in right])
    held = []
    for c in found.candidates:
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
    return [make_cause(best, same, first.target, nodes, before, found.tried)], nodes, lab


def _both(lab: Lab, first: Unit, units: Sequence[Unit], before: Fit, pair: Pair) -> tuple[list[Cause], list[str], Lab]:
    """A cause for each of two faults in the same operations."""
    nodes = [first.target, *(u.target for u in units if u.target != first.target and _explains(lab, pair.both, u))]
    causes = [
        make_cause(best, same, first.target, nodes, before, pair.tried)
        for best, same in ((pair.a, pair.for_a), (pair.b, pair.for_b))
    ]
    return causes, nodes, lab


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
