"""Diagnosis from partial evidence: ten printed values, an rms, the best five logits.

No tensor was dumped whole, so no node can be judged on its own inputs. Every hypothesis is run from the tokens. It is
compared with the first wrong observation first, which for most faults lies in layer 0 and costs one layer. The few
hypotheses that explain it are run to the end and compared with everything that was observed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from assay.graph import split
from assay.system.stages import each
from assay.verify.diagnosis.advice import observation_that_tells
from assay.verify.diagnosis.by_nodes import BENIGN
from assay.verify.diagnosis.candidates import SINGLE, Candidate, Share, candidates_at, described, make_cause
from assay.verify.diagnosis.fault_trials import EvidenceUnit, FaultTrials, Hypothesis
from assay.verify.diagnosis.result import Diagnosis
from assay.verify.judge.compare_nodes import Diff, NodeVerdict
from assay.verify.thresholds import FEW, TIE

Progress = Callable[[str], None]


def by_runs(
    trials: FaultTrials, diff: Diff, first: NodeVerdict, say: Progress, share: Share | None = None
) -> Diagnosis:
    """The search on runs of the whole model."""
    trials = trials.from_tokens()
    everything = tuple(node.name for node in trials.graph)
    unit = EvidenceUnit(first.name, everything)
    before = trials.before(unit)
    found = candidates_at(trials, unit, before, share=share)
    layer = split(first.name)[1]
    if not found.candidates and layer:
        start = next(i for i, name in enumerate(everything) if split(name)[1] == layer)
        say(f"nothing explains it everywhere; trying from layer {layer} on")
        unit = EvidenceUnit(first.name, everything[start:])
        found = candidates_at(trials, unit, before, share=share)
    trials = found.trials
    held = _compared_with_all(trials, unit, diff, found.candidates)
    wrong = tuple(n.name for n in diff.nodes if n.verdict == "wrong")
    result = Diagnosis(
        "unexplained", first.name, wrong, (), "", (first.name,), segment=_segment(diff, trials, first.name)
    )
    if not held:
        return replace(result, next_observation=_bisect(result.segment, first.name))
    best = held[0]
    same = [c for c in held if c.hypothesis.fault != best.hypothesis.fault and _as_good(best, c)]
    faults = {c.hypothesis.fault for c in same}
    if len(faults) > FEW:
        text = f"{len(faults) + 1} faults fit what was observed; {_bisect(result.segment, first.name)}"
        return replace(result, verdict="inconclusive", next_observation=text)
    cause = make_cause(best, same, first.name, _explained_by(trials, unit, diff, best.hypothesis), before, found.tried)
    if cause.fault in BENIGN:
        return Diagnosis("healthy", None, (), (), "", notes=(BENIGN[cause.fault],))
    if cause.confidence * (1 + len(faults)) < 0.5:
        return replace(result, verdict="inconclusive", causes=(cause,), unexplained=())
    advice = observation_that_tells(trials, unit, cause, sorted(faults)) if faults else ""
    return replace(result, verdict="fault", causes=(cause,), unexplained=(), next_observation=advice)


def _compared_with_all(
    trials: FaultTrials, unit: EvidenceUnit, diff: Diff, candidates: list[Candidate]
) -> list[Candidate]:
    """Every candidate against everything observed."""
    held = []
    names = [n.name for n in diff.nodes]
    wrong = {n.name for n in diff.nodes if n.verdict == "wrong"}
    for c in each(candidates, "comparing with everything observed", "mistakes"):
        values = trials.predict(c.hypothesis, unit, [n for n in names if n in unit.segment]) or {}
        base = trials.base(unit)
        explained = contradicted = 0
        lost = 0.0
        for name in names:
            value = values.get(name, base.get(name))
            if value is None:
                continue
            fit = trials.after(unit, name, value)
            if name in wrong:
                explained += fit.explained
            elif not fit.explained and c.hypothesis.fault not in SINGLE:
                contradicted += 1
                lost += described(fit, trials.before(unit, name))
        held.append(replace(c, explained=explained, contradicted=contradicted, lost=lost))
    held.sort(key=lambda c: (*c.rank, c.fit.ratio))
    return held


def _as_good(best: Candidate, other: Candidate) -> bool:
    near = other.explained >= best.explained - 0.02 * max(best.explained, 1)
    same = other.contradicted <= best.contradicted and other.fit.exact == best.fit.exact
    return near and same and other.fit.ratio <= max(1.0, TIE * best.fit.ratio)


def _explained_by(trials: FaultTrials, unit: EvidenceUnit, diff: Diff, h: Hypothesis) -> list[str]:
    names = [n.name for n in diff.nodes if n.verdict == "wrong"]
    values = trials.predict(h, unit, [n for n in names if n in unit.segment]) or {}
    needed = [n for n in names if n in values and not trials.before(unit, n).explained]
    return [n for n in needed if trials.after(unit, n, values[n]).explained] or names[:1]


def _segment(diff: Diff, trials: FaultTrials, first: str) -> tuple[str, ...]:
    """From after the last right observation to the first wrong one."""
    order = [node.name for node in trials.graph]
    right = [
        order.index(n.name) for n in diff.nodes if n.verdict != "wrong" and order.index(n.name) < order.index(first)
    ]
    return tuple(order[max(right, default=-1) + 1 : order.index(first) + 1])


def _bisect(segment: tuple[str, ...], first: str) -> str:
    if len(segment) < 2:
        return f"dump {first} and its inputs whole, for all tokens"
    return f"dump {segment[(len(segment) - 1) // 2]} whole: the fault lies between {segment[0]} and {first}"
