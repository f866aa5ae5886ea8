"""Diagnosis from partial evidence: ten printed values, an rms, the best five logits.

No tensor was dumped whole, so no node can be judged on its own inputs. Every hypothesis is run from the tokens. It is
compared with the first wrong observation first, which for most faults lies in layer 0 and costs one layer. The few
hypotheses that explain it are run to the end and compared with everything that was observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from assay.graph import Trait, split
from assay.verify.diagnosis.advice import observation_that_tells, relations_of_prints
from assay.verify.diagnosis.by_nodes import BENIGN
from assay.verify.diagnosis.candidates import (
    SCANNED,
    SINGLE,
    Candidate,
    Found,
    Share,
    better,
    candidates_at,
    composed_at,
    described,
    in_calls,
    make_cause,
    other_readings,
    same_name,
)
from assay.verify.diagnosis.fault_trials import EvidenceUnit, FaultTrials, Hypothesis, ObservationFit
from assay.verify.diagnosis.phases import Phase
from assay.verify.diagnosis.result import Diagnosis
from assay.verify.faults import FAULTS, Stage, Variant
from assay.verify.faults.description import COMPOSED, LAYERS
from assay.verify.faults.edit_grammar import OF_ONE_LAYER, UNTRIED, other_tokens
from assay.verify.faults.tensor_grammar import in_layers
from assay.verify.judge.compare_nodes import Diff, NodeVerdict
from assay.verify.thresholds import A_GUESS, FEW, TIE

Progress = Callable[[str], None]
NEARLY_ALL = 0.9  # of the wrong nodes
OTHERS = (
    "this explains {n} of {of} nodes that differ; another mistake may lie after it. Mend this one, run the engine "
    "again and diagnose its new values"
)
MOST_ALONE = 8  # hypotheses that are tried in one layer alone


def by_runs(
    trials: FaultTrials, diff: Diff, first: NodeVerdict, say: Progress, share: Share | None = None
) -> Diagnosis:
    """The search on runs of the whole model."""
    trials = trials.from_tokens()
    segment = _segment(diff, trials, first.name)
    unit, found, before = _found(trials, first.name, segment, say, share)
    trials = found.trials
    wrong = tuple(n.name for n in diff.nodes if n.verdict == "wrong")
    held = _compared_with_all(trials, unit, diff, found.candidates)
    for place, within in _places(trials, unit, segment)[found.composed :]:
        if not _doubtful(held, len(wrong)):
            break
        edits = composed_at(trials, place, before, within)
        found = replace(found, tried=found.tried + edits.tried)
        more = _compared_with_all(trials, place, diff, edits.candidates)
        if place == unit or (more and (not held or more[0].rank < held[0].rank)):
            unit, held = place, _in_order([*more, *(held if place == unit else ())])
    if held and FAULTS[held[0].hypothesis.fault].stage is Stage.CACHE:  # a lost row may look the same
        rows = composed_at(trials, unit, before, _caches(trials, unit, first.name))
        found = replace(found, tried=found.tried + rows.tried)
        held = _in_order([*held, *_compared_with_all(trials, unit, diff, rows.candidates)])
    held = _in_some_calls(trials, unit, diff, held)
    held = _in_one_layer(trials, unit, diff, held, first.name)
    result = Diagnosis("unexplained", first.name, wrong, (), "", (first.name,), segment=segment)
    if not held:
        relations = tuple(relations_of_prints(trials, unit))
        advice = _bisect(result.segment, first.name)
        return replace(result, next_observation=advice, relations=relations, notes=(UNTRIED,))
    best = held[0]
    same = [c for c in held if not same_name(best, c) and _as_good(best, c)]
    faults = {c.hypothesis.fault for c in same} - {best.hypothesis.fault}
    if len(faults) > FEW:
        text = f"{len(faults) + 1} faults fit what was observed; {_bisect(result.segment, first.name)}"
        return replace(result, verdict="inconclusive", next_observation=text)
    nodes, most = _explained_by(trials, unit, diff, best.hypothesis), _most_certain(best.explained, len(wrong))
    apart = [c for c in same if c.hypothesis.fault in COMPOSED and not _same_values(trials, unit, best, c)]
    label = _row_may_be_mislabelled(trials, first.name, best.hypothesis)
    most = min(most, A_GUESS) if label else most
    cause = make_cause(best, same, first.name, nodes, before, found.tried, most, apart)
    cause = replace(cause, how=cause.how + _scope(trials, unit, diff, best) + label)
    if cause.fault in BENIGN and best.explained >= len(wrong):
        return Diagnosis("healthy", None, (), (), "", notes=(BENIGN[cause.fault],))
    notes = (OTHERS.format(n=best.explained, of=len(wrong)),) if best.explained < NEARLY_ALL * len(wrong) else ()
    if cause.confidence * (1 + len(faults) + max(len(other_readings(best, same)), len(apart))) < 0.5:
        relations = tuple(relations_of_prints(trials, unit))
        return replace(
            result, verdict="inconclusive", causes=(cause,), unexplained=(), relations=relations, notes=notes
        )
    advice = observation_that_tells(trials, unit, cause, sorted(faults)) if faults else ""
    return replace(result, verdict="fault", causes=(cause,), unexplained=(), next_observation=advice, notes=notes)


def _found(
    trials: FaultTrials, target: str, segment: tuple[str, ...], say: Progress, share: Share | None
) -> tuple[EvidenceUnit, Found, ObservationFit]:
    """The hypotheses that explain the first wrong node, planted from its layer on.

    A mistake that is planted in right layers as well would have shown there, so all layers are tried second. In layer
    0 a mistake may lie before the last right node, in rows that were not observed.
    """
    everything = tuple(node.name for node in trials.graph)
    whole, layer = EvidenceUnit(target, everything), split(segment[0])[1]
    unit = whole if layer == 0 else EvidenceUnit(target, everything[everything.index(segment[0]) :])
    before = trials.before(unit)
    if segment[0] != everything[0] and split(target)[1] == 0:  # rows that were not observed may be of another token
        fed = [Candidate(h, trials.fit(h, whole)) for h in (Hypothesis(*d) for d in other_tokens(trials.context))]
        if explained := [c for c in fed if better(c.fit, before)]:
            return whole, Found(explained, len(fed), trials), before
    found = candidates_at(trials, unit, before, share=share if unit is whole else None, within=segment)
    if not found.candidates and layer:
        say(f"nothing explains it from layer {layer} on; trying all layers")
        unit, found = whole, candidates_at(trials, whole, before, share=share, within=None)
    return unit, found, before


def _compared_with_all(
    trials: FaultTrials, unit: EvidenceUnit, diff: Diff, candidates: list[Candidate]
) -> list[Candidate]:
    """Every candidate against everything observed."""
    held = []
    names = [n.name for n in diff.nodes]
    wrong = {n.name for n in diff.nodes if n.verdict == "wrong"}
    whole = EvidenceUnit(unit.target, tuple(node.name for node in trials.graph))
    for c in trials.budget.each(candidates, "comparing with everything observed", "mistakes", share=1.0):
        place = (
            whole if c.hypothesis.fault == LAYERS else unit
        )  # the layer's nodes before the unit read its tensors too
        values = trials.predict(c.hypothesis, place, [n for n in names if n in place.segment]) or {}
        base = trials.base(place)
        explained = contradicted = 0
        lost = 0.0
        for name in names:
            value = values.get(name, base.get(name))
            if value is None:
                continue
            fit = trials.after(place, name, value)
            if name in wrong:
                explained += fit.explained
            elif not fit.explained and c.hypothesis.fault not in SINGLE:
                contradicted += 1
                lost += described(fit, trials.before(place, name))
        held.append(replace(c, explained=explained, contradicted=contradicted, lost=lost))
    return _in_order(held)


def _in_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda c: (*c.rank, c.fit.ratio))


def _places(
    trials: FaultTrials, unit: EvidenceUnit, segment: tuple[str, ...]
) -> list[tuple[EvidenceUnit, tuple[str, ...]]]:
    """Where the grammar looks for a mistake: in the segment, in the rest of its layer, in the layer before.

    Of a right node only a few values were observed. The mistake may lie in its other rows or heads, and attention mixes
    rows.
    """
    found, at = [(unit, segment)], split(segment[0])[1]
    order = [node.name for node in trials.graph]
    earlier = tuple(name for name in order[: order.index(unit.target)] if split(name)[1] == at)
    if at is not None and (rest := tuple(name for name in earlier if name not in segment)):
        begin = 0 if at == 0 else order.index(earlier[0])
        found.append((EvidenceUnit(unit.target, tuple(order[begin:])), rest))
    if at:
        before = tuple(name for name in order if split(name)[1] == at - 1)
        found.append((EvidenceUnit(unit.target, tuple(order)), before))
    return found


def _caches(trials: FaultTrials, unit: EvidenceUnit, target: str) -> list[str]:
    """The nodes of the unit that keep rows for later calls, in the layer of the target."""
    at = split(target)[1]
    return [name for name in unit.segment if trials.graph[name].has(Trait.CACHES) and split(name)[1] == at]


def _same_values(trials: FaultTrials, unit: EvidenceUnit, a: Candidate, b: Candidate) -> bool:
    """Do both predict the same for the values that were not observed as well? Then they are one computation."""
    names = {unit.target, *(n for c in (a, b) for n in trials.changed(c.hypothesis, unit, unit.target))}
    names &= set(unit.segment[: unit.segment.index(unit.target) + 1])
    found = [trials.predict(c.hypothesis, unit, names) for c in (a, b)]
    return all(
        x is not None and y is not None and x[n].shape == y[n].shape and np.allclose(x[n], y[n], rtol=1e-9, atol=0)
        for x, y in (found,)
        for n in names
    )


def _doubtful(held: list[Candidate], wrong: int) -> bool:
    """Does the best candidate fail at other nodes? It may look like the real mistake at the first wrong one alone."""
    return not held or held[0].contradicted > 0 or held[0].explained < NEARLY_ALL * wrong


def _in_one_layer(
    trials: FaultTrials, unit: EvidenceUnit, diff: Diff, held: list[Candidate], first: str
) -> list[Candidate]:
    """The same mistakes in the layer of the first wrong node alone as well, where that explains nearly all nodes.

    A mistake of all layers explains few of them if it is not the only one, and so it does in one layer.
    """
    at, wrong = split(first)[1], sum(n.verdict == "wrong" for n in diff.nodes)
    if at is None or not held or held[0].explained == wrong:
        return held
    alone = [
        replace(c, hypothesis=replace(c.hypothesis, variant=_alone(c.hypothesis.variant, at)))
        for c in held[:MOST_ALONE]
        if c.hypothesis.fault not in OF_ONE_LAYER
    ]
    fitting = [c for c in _compared_with_all(trials, unit, diff, alone) if c.explained >= NEARLY_ALL * wrong]
    return _in_order([*fitting, *held])


def _in_some_calls(trials: FaultTrials, unit: EvidenceUnit, diff: Diff, held: list[Candidate]) -> list[Candidate]:
    """The same mistakes in the decode steps alone as well, where rows of the prompt were not observed and that explains
    more."""
    wrong = sum(n.verdict == "wrong" for n in diff.nodes)
    if not held or held[0].explained == wrong or len(trials.dump.steps) < 2:
        return held
    some = [replace(c, hypothesis=in_calls(c.hypothesis, Phase.DECODE)) for c in held[:MOST_ALONE]]
    able = [c for c in some if trials.touches(c.hypothesis.variant, unit, c.hypothesis.p)]
    fitting = [c for c in _compared_with_all(trials, unit, diff, able) if c.explained >= NEARLY_ALL * wrong]
    return _in_order([*fitting, *held])


def _alone(variant: Variant, at: int) -> Variant:
    return replace(in_layers(variant, at, at), label=f"{variant.label}, in layer {at} alone")


def _scope(trials: FaultTrials, unit: EvidenceUnit, diff: Diff, best: Candidate) -> str:
    """Words for a mistake that right nodes before the first wrong one do not show."""
    before = tuple(node.name for node in trials.graph)
    before = before[: before.index(unit.segment[0])]
    last = next((n.name for n in reversed(diff.nodes) if n.name in before), None)
    if last is None:
        return ""
    early = EvidenceUnit(last, before)
    h = best.hypothesis
    if not trials.touches(h.variant, early, h.p) or last not in trials.changed(h, early):
        return ""
    values = trials.predict(h, early)
    shown = values is not None and not trials.after(early, last, values[last]).explained
    return f", from layer {split(unit.segment[0])[1]} on" if shown and split(unit.segment[0])[1] else ""


def _row_may_be_mislabelled(trials: FaultTrials, name: str, h: Hypothesis) -> str:
    """Words for the other explanation of a single printed row that has another token's values: the row of the log was
    read wrongly."""
    rows = {obs.rows for obs in trials.dump.by_name[name]}
    one = all(at is not None and at[1] - at[0] == 1 for at in rows) and len(rows) == 1
    moved = h.variant.label.startswith("row t of ")
    return "; or as well: the printed row is another token's" if trials.dump.log and one and moved else ""


def _most_certain(explained: int, wrong: int) -> float:
    """The highest confidence in a fault that explains some of the wrong nodes.

    A hypothesis is run from the tokens to the end, so the fault that happened alone explains every node after it. One
    that explains only the first of them is one of several faults, or another fault that looks the same at first.
    """
    return max(A_GUESS, explained / max(wrong, 1))


def _as_good(best: Candidate, other: Candidate) -> bool:
    if other.hypothesis.fault in SCANNED and best.short:
        return False
    near = other.explained >= best.explained - 0.02 * max(best.explained, 1)
    same = other.contradicted <= best.contradicted and other.fit.exact == best.fit.exact
    return near and same and other.fit.ratio <= max(1.0, TIE * best.fit.ratio)


def _explained_by(trials: FaultTrials, unit: EvidenceUnit, diff: Diff, h: Hypothesis) -> list[str]:
    names = [n.name for n in diff.nodes if n.verdict == "wrong"]
    values = trials.predict(h, unit, [n for n in names if n in unit.segment]) or {}
    needed = [n for n in names if n in values and not trials.before(unit, n).explained]
    return [n for n in needed if trials.after(unit, n, values[n]).explained] or names[:1]


def _segment(diff: Diff, trials: FaultTrials, first: str) -> tuple[str, ...]:
    """From after the last right observation to the first wrong one, and what these nodes read in their layers that was
    not observed: a cache is written before the scores, and its rows show after them."""
    order = [node.name for node in trials.graph]
    right = {n.name for n in diff.nodes if n.verdict != "wrong"} & set(order[: order.index(first)])
    segment = order[max(map(order.index, right), default=-1) + 1 : order.index(first) + 1]
    layers, inside = {split(name)[1] for name in segment}, set(segment)
    for name in reversed(order):
        if name in inside:
            read = (i for i in trials.graph[name].inputs if i in trials.graph and i not in right)
            inside.update(i for i in read if split(i)[1] in layers)
    return tuple(name for name in order if name in inside)


def _bisect(segment: tuple[str, ...], first: str) -> str:
    if len(segment) < 2:
        return f"dump {first} and its inputs whole, for all tokens"
    return f"dump {segment[(len(segment) - 1) // 2]} whole: the fault lies between {segment[0]} and {first}"
