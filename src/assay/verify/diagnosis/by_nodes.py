"""Diagnosis of dumps that hold whole tensors: every node that is wrong on its own inputs is explained separately."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from assay.graph import split
from assay.verify.diagnosis.advice import next_observation, relations_at
from assay.verify.diagnosis.candidates import SINGLE, Candidate, candidates_at, make_cause, representatives, tied
from assay.verify.diagnosis.doubles import Pair, find_pair
from assay.verify.diagnosis.fault_trials import EvidenceUnit, FaultTrials, Hypothesis, ObservationFit
from assay.verify.diagnosis.result import Cause, Diagnosis
from assay.verify.faults.description import LAYERS
from assay.verify.faults.edit_grammar import UNTRIED
from assay.verify.faults.scope_grammar import alone
from assay.verify.judge.compare_nodes import Diff, NodeVerdict
from assay.verify.thresholds import MOST_CAUSES, MOST_UNEXPLAINED

Array = NDArray[Any]
Progress = Callable[[str], None]
REMAINING = (
    "the cause above does not explain every wrong node: mend it, run the engine again and diagnose its new values"
)
BENIGN = {
    "pos-global-offset": "all positions are shifted by a constant, which changes no score",
    "moe-choice-order": "the chosen experts are listed in another order, each with its own weight: the sum is the same",
    "hf-order": "queries and keys are in Hugging Face's row order with half-split rotation, which is the same thing",
}


def by_nodes(
    trials: FaultTrials,
    diff: Diff,
    wrong: Sequence[NodeVerdict],
    say: Progress,
    most_unexplained: int = MOST_UNEXPLAINED,
) -> Diagnosis:
    open_units = {n.name: EvidenceUnit(n.name, tuple(n.evidence.segment)) for n in wrong if n.evidence.whole}
    causes: list[Cause] = []
    unexplained: list[str] = []
    right = [n for n in diff.nodes if not n.own and n.evidence.whole and n.name not in open_units]
    while open_units and len(causes) < MOST_CAUSES and len(unexplained) < most_unexplained:
        first = next(iter(open_units.values()))
        if trials.budget.over(f"{first.target}: trying known mistakes"):
            break
        say(f"{first.target}: trying the catalogue")
        seen = {split(name)[0] for name in unexplained}
        found = _explain(trials, first, list(open_units.values()), right, deep=split(first.target)[0] not in seen)
        if found is None:
            unexplained.append(first.target)
            open_units.pop(first.target)
            continue
        new, nodes, trials = found
        causes += new
        for name in nodes:
            open_units.pop(name, None)
        for name in [n for n in open_units if trials.evidence[n].local[trials.terms.arithmetic] <= 1]:
            open_units.pop(name)  # noise, now that a coarser arithmetic is known
    return _conclude(trials, diff, wrong, causes, [*unexplained, *open_units])


def _explain(
    trials: FaultTrials,
    first: EvidenceUnit,
    units: Sequence[EvidenceUnit],
    right: Sequence[NodeVerdict],
    *,
    deep: bool = True,
) -> tuple[list[Cause], list[str], FaultTrials] | None:
    """The fault that explains this unit and most of the others, the nodes that it explains, and the trials on whose
    terms it does. Two faults, where only both together explain the unit."""
    before = trials.before(first)
    found = candidates_at(trials, first, before, deep=deep)
    if not found.candidates:
        pair = find_pair(trials, first, before) if deep and not trials.terms.subtle else None
        return _two_causes(trials, first, units, before, pair) if pair else None
    trials = found.trials
    others = representatives([u for u in units if u.target != first.target])
    still = [EvidenceUnit(n.name, tuple(n.evidence.segment)) for n in right]
    calm, beside = representatives(still), [u for u in still if split(u.target)[1] == split(first.target)[1]]

    def compared(c: Candidate) -> Candidate:
        fits = [trials.fit(c.hypothesis, u) for u in others if trials.touches(c.hypothesis.variant, u, c.hypothesis.p)]
        quiet = [*calm, *beside] if c.hypothesis.fault == LAYERS else calm
        shows = [trials.fit(c.hypothesis, u) for u in quiet if trials.touches(c.hypothesis.variant, u, c.hypothesis.p)]
        against = 0 if c.hypothesis.fault in SINGLE else sum(not f.explained for f in shows)
        return replace(c, explained=sum(f.explained for f in fits), contradicted=against)

    held = sorted(map(compared, found.candidates), key=lambda c: (*c.rank, c.fit.ratio))
    best = held[0]
    if best.contradicted and best.hypothesis.fault != LAYERS:  # right nodes of other roles do not have it
        variant = alone(best.hypothesis.variant, split(first.target)[0])
        fewer = compared(replace(best, hypothesis=replace(best.hypothesis, variant=variant)))
        if fewer.contradicted < best.contradicted and fewer.explained == best.explained:
            best = fewer
    h = best.hypothesis
    same = [c for c in held if tied(best, c)]
    nodes = [first.target]
    nodes += [u.target for u in units if u.target != first.target and _explains(trials, h, u)]
    return [make_cause(best, same, first.target, nodes, before, found.tried)], nodes, trials


def _two_causes(
    trials: FaultTrials, first: EvidenceUnit, units: Sequence[EvidenceUnit], before: ObservationFit, pair: Pair
) -> tuple[list[Cause], list[str], FaultTrials]:
    """A cause for each of two faults in the same operations."""
    nodes = [first.target, *(u.target for u in units if u.target != first.target and _explains(trials, pair.both, u))]
    causes = [
        make_cause(best, same, first.target, nodes, before, pair.tried)
        for best, same in ((pair.a, pair.for_a), (pair.b, pair.for_b))
    ]
    return causes, nodes, trials


def _explains(trials: FaultTrials, h: Hypothesis, unit: EvidenceUnit) -> bool:
    return trials.touches(h.variant, unit, h.p) and trials.fit(h, unit).explained


def _conclude(
    trials: FaultTrials, diff: Diff, wrong: Sequence[NodeVerdict], causes: list[Cause], unexplained: Sequence[str]
) -> Diagnosis:
    causes, notes = _without_benign(trials, diff, causes)
    first = diff.first_wrong
    assert first is not None
    segment = tuple(wrong[0].evidence.segment)
    if not causes and not unexplained:
        return Diagnosis("healthy", None, (), (), "", notes=tuple(notes))
    about = unexplained[0] if unexplained else wrong[0].name
    unit = EvidenceUnit(about, tuple(next(n for n in wrong if n.name == about).evidence.segment))
    return Diagnosis(
        verdict="fault" if causes else "unexplained",
        first_wrong=wrong[0].name,
        wrong_nodes=tuple(n.name for n in wrong),
        causes=tuple(causes),
        next_observation=next_observation(trials, unit, causes, unexplained),
        unexplained=tuple(unexplained),
        relations=tuple(relations_at(trials, unit)),
        segment=segment,
        notes=(*notes, *([REMAINING] if causes and unexplained else [] if causes else [UNTRIED])),
    )


def _without_benign(trials: FaultTrials, diff: Diff, causes: list[Cause]) -> tuple[list[Cause], list[str]]:
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
        if cause.fault in BENIGN and cause.fault != "pos-global-offset":
            causes.remove(cause)
            notes.append(BENIGN[cause.fault])
        elif cause.fault in BENIGN or "pos-global-offset" in cause.equivalent:
            causes.remove(cause)
            notes.append(BENIGN["pos-global-offset"])
    return causes, notes
