"""Diagnosis from partial evidence: ten printed values, an rms, the best five logits, of a run from the tokens on.

Nothing was dumped whole, so nothing can be judged on its own inputs: every hypothesis is run from the tokens. It is
held against the first wrong observation first, which for most faults lies in layer 0 and costs one layer; the few
that explain it are run to the end and held against everything that was observed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from assay.engines.reference import interpret
from assay.graph import split
from assay.verify.diagnose import (
    Cause,
    Diagnosis,
    Progress,
    _better,
    _Candidate,
    _only_decode,
    hypotheses,
    make_cause,
    splitting,
)
from assay.verify.diff import Diff, NodeVerdict
from assay.verify.search import Fit, Hypothesis, Lab, Unit, search_parameter

_FEW = 8  # more hypotheses than this that fit equally well name nothing


def diagnose_whole(lab: Lab, diff: Diff, first: NodeVerdict, say: Progress) -> Diagnosis:
    """The search on runs of the whole model."""
    lab.theirs = interpret(lab.graph, lab.weights, lab.given, [n.name for n in lab.graph]) | lab.given
    everything = tuple(node.name for node in lab.graph)
    unit = Unit(first.name, everything)
    lab.carried = True
    before = lab.before(unit)
    found = _candidates(lab, unit, before, say)
    layer = split(first.name)[1]
    if not found[0] and layer:
        start = next(i for i, name in enumerate(everything) if split(name)[1] == layer)
        say(f"nothing explains it everywhere; trying from layer {layer} on")
        unit = Unit(first.name, everything[start:])
        found = _candidates(lab, unit, before, say)
    candidates, tried = found
    held = _hold(lab, unit, diff, candidates)
    wrong = tuple(n.name for n in diff.nodes if n.verdict == "wrong")
    result = Diagnosis("unexplained", first.name, wrong, (), "", (first.name,), segment=_segment(diff, lab, first.name))
    if not held:
        return replace(result, next_observation=_bisect(result.segment, first.name))
    best = held[0]
    same = [c for c in held if c.hypothesis.fault != best.hypothesis.fault and _as_good(best, c)]
    faults = {c.hypothesis.fault for c in same}
    if len(faults) > _FEW:
        text = f"{len(faults) + 1} faults fit what was observed; {_bisect(result.segment, first.name)}"
        return replace(result, verdict="inconclusive", next_observation=text)
    cause = make_cause(best, same, first.name, _explained_by(lab, unit, diff, best.hypothesis), before, tried)
    if cause.fault == "pos-global-offset" or cause.confidence * (1 + len(faults)) < 0.5:
        verdict = "healthy" if cause.fault == "pos-global-offset" else "inconclusive"
        return replace(result, verdict=verdict, causes=(cause,), unexplained=())
    nearest: Cause = cause
    advice = ""
    if faults:
        advice = splitting(lab, Unit(first.name, unit.segment), nearest, sorted(faults))
    return replace(result, verdict="fault", causes=(nearest,), unexplained=(), next_observation=advice)


def _candidates(lab: Lab, unit: Unit, before: Fit, say: Progress) -> tuple[list[_Candidate], int]:
    found: list[_Candidate] = []
    scans: list[Hypothesis] = []
    tried = 0
    for h in hypotheses(lab, unit, decode=_only_decode(lab, unit)):
        if h.fault == "path-split" and found:
            break
        tried += 1
        if h.variant.search is None:
            fit = lab.fit(h, unit)
        else:
            h, fit = search_parameter(lab, h, unit, deep=False)
            if np.isfinite(fit.residual) and fit.residual < before.residual:
                scans.append(replace(h, p=0.0))
        if _better(fit, before):
            found.append(_Candidate(h, fit))
    if not found:
        say(f"{tried} mistakes tried; now {len(scans)} families with a parameter")
        for h in scans:
            tried += 1
            h, fit = search_parameter(lab, h, unit)
            if _better(fit, before):
                found.append(_Candidate(h, fit))
    return found, tried


def _hold(lab: Lab, unit: Unit, diff: Diff, candidates: list[_Candidate]) -> list[_Candidate]:
    """Every candidate against everything observed."""
    held = []
    names = [n.name for n in diff.nodes]
    wrong = {n.name for n in diff.nodes if n.verdict == "wrong"}
    for c in candidates:
        values = lab.predict(c.hypothesis, unit, names)
        base = lab.base(unit)
        explained = contradicted = 0
        for name in names:
            value = values.get(name, base.get(name))
            if value is None:
                continue
            fit = lab.compare(name, value, own=base.get(name))
            if name in wrong:
                explained += fit.explained
            else:
                contradicted += not fit.explained
        held.append(replace(c, explained=explained, contradicted=contradicted))
    held.sort(key=lambda c: (*c.rank, c.fit.ratio))
    return held


def _as_good(best: _Candidate, other: _Candidate) -> bool:
    near = other.explained >= best.explained - 0.02 * max(best.explained, 1)
    return near and other.contradicted <= best.contradicted and other.fit.ratio <= max(1.0, 3 * best.fit.ratio)


def _explained_by(lab: Lab, unit: Unit, diff: Diff, h: Hypothesis) -> list[str]:
    names = [n.name for n in diff.nodes if n.verdict == "wrong"]
    values, base = lab.predict(h, unit, names), lab.base(unit)
    return [n for n in names if n in values and lab.compare(n, values[n], own=base.get(n)).explained]


def _segment(diff: Diff, lab: Lab, first: str) -> tuple[str, ...]:
    """From after the last right observation to the first wrong one."""
    order = [node.name for node in lab.graph]
    right = [order.index(n.name) for n in diff.nodes if n.verdict != "wrong" and order.index(n.name) < order.index(first)]
    return tuple(order[max(right, default=-1) + 1 : order.index(first) + 1])


def _bisect(segment: tuple[str, ...], first: str) -> str:
    if len(segment) < 2:
        return f"dump {first} and its inputs whole, for all tokens"
    return f"dump {segment[(len(segment) - 1) // 2]} whole: the fault lies between {segment[0]} and {first}"
