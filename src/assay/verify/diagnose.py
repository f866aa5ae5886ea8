"""Naming the bug: which operation is wrong, which known mistake gives these very values, what would be right.

The nodes that are wrong on their own inputs come from `diff`. At each, the faults of the catalogue are tried on the
stranger's own values (`search`); a fault explains a node when what remains is the noise of the engine's arithmetic.
Those that explain it are held against the other wrong nodes, and against the right ones: a fault that would have
shown elsewhere did not happen. What is still wrong afterwards is another fault, and the search goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.weights import Weights
from assay.graph import split
from assay.models import Model
from assay.verify.arithmetic import ARITHMETICS
from assay.verify.diff import Diff, NodeVerdict, judge
from assay.verify.faults import FAULTS, decode_only
from assay.verify.fits import Relation, describe
from assay.verify.noise import NoiseRuns, cache_path, load_levels
from assay.verify.observe import Dump, token_axis
from assay.verify.search import ACCEPT, Fit, Hypothesis, Lab, Unit, search_parameter
from assay.verify.sweep import sweep

Array = NDArray[Any]
Progress = Callable[[str], None]
BENIGN = {
    "pos-global-offset": "all positions are shifted by a constant, which changes no score",
    "hf-order": "queries and keys are in Hugging Face's row order with half-split rotation, which is the same thing",
}
MOST_CAUSES = 5
_REPRESENTATIVES = 10  # wrong nodes on which a hypothesis is held before the whole list
_TIE = 3.0  # residuals within this factor, or both below the noise, cannot be told apart


@dataclass(frozen=True)
class Cause:
    """A fault that reproduces the wrong values."""

    fault: str
    node: str  # the first it explains
    how: str  # the variant in words, with its parameter
    nodes: tuple[str, ...]
    confidence: float  # that this very fault happened, not one of its equivalents
    explains: float  # share of the deviation at its nodes
    equivalent: tuple[str, ...]
    before: float  # deviation over noise, under the definition
    after: float  # and with the fault planted
    fitted: bool = False  # a parameter was solved for

    @property
    def fix(self) -> str:
        return FAULTS[self.fault].right

    def to_json(self) -> dict[str, Any]:
        return {
            "fault": self.fault,
            "node": self.node,
            "how": self.how,
            "nodes": list(self.nodes),
            "confidence": round(self.confidence, 4),
            "explains": round(self.explains, 6),
            "equivalent": list(self.equivalent),
            "fix": self.fix,
            "deviation_before": self.before,
            "deviation_after": self.after,
        }


@dataclass(frozen=True)
class Diagnosis:
    """The answer; true when nothing is wrong."""

    verdict: str  # "healthy" | "fault" | "unexplained" | "inconclusive"
    first_wrong: str | None
    wrong_nodes: tuple[str, ...]
    causes: tuple[Cause, ...]
    next_observation: str
    unexplained: tuple[str, ...] = ()
    relations: tuple[Relation, ...] = ()  # what can be said of the first unexplained (else first wrong) node
    segment: tuple[str, ...] = ()  # where the first wrong node's fault must lie
    notes: tuple[str, ...] = ()
    diff: Diff | None = None

    def __bool__(self) -> bool:
        return self.verdict == "healthy"

    def to_json(self) -> dict[str, Any]:
        first = self.first_wrong
        return {
            "verdict": self.verdict,
            "first_wrong": None if first is None else {"node": first, "layer": split(first)[1]},
            "wrong_nodes": list(self.wrong_nodes),
            "causes": [cause.to_json() for cause in self.causes],
            "next_observation": self.next_observation,
            "unexplained": list(self.unexplained),
            "relations": [r.text for r in self.relations],
            "segment": list(self.segment),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class _Candidate:
    """A hypothesis that explains the first unit, with how it fares elsewhere."""

    hypothesis: Hypothesis
    fit: Fit
    explained: int = 0
    contradicted: int = 0

    @property
    def fitted(self) -> bool:
        h = self.hypothesis
        return h.variant.search is not None and h.p not in h.variant.search.common

    @property
    def rank(self) -> tuple[float, ...]:
        return (-self.explained, self.contradicted, self.fitted, self.hypothesis.variant.search is not None)


def diagnose(
    model: Model,
    dump: Dump,
    *,
    weights: Weights | None = None,
    progress: Progress | None = None,
    cache: bool = True,
) -> Diagnosis:
    """The whole search on a resolved dump."""
    say = progress or (lambda _: None)
    diff = judge(model, dump, cache=cache)
    if diff.first_wrong is None:
        notes = (f"deviations are the noise of {diff.arithmetic.name}",) if diff.verdict == "noise" else ()
        return Diagnosis("healthy", None, (), (), "", notes=(*notes, *diff.notes), diff=diff)
    whole = {name for name in dump.by_name if dump.values(name) is not None}
    levels = load_levels(cache_path(model, dump.tokens, dump.positions, whole), model) if cache else None
    if levels is None:
        runs = NoiseRuns(model, dump.tokens, dump.positions, whole)
        sweep(model, [runs])
        levels = runs.levels
    lab = Lab(model, dump, levels, ARITHMETICS.index(diff.arithmetic), weights)
    wrong = [n for n in diff.nodes if n.own] or [diff.first_wrong]
    say(f"{len(wrong)} nodes are wrong on their own inputs, {wrong[0].name} first")
    from assay.verify.partial import diagnose_whole

    if wrong[0].evidence.whole:
        result = _node_by_node(lab, diff, wrong, say)
    else:
        result = diagnose_whole(lab, diff, wrong[0], say)
    return replace(result, notes=(*result.notes, *diff.notes, *diff.contradictions), diff=diff)


# -- dumps with whole tensors: every wrong node is judged by itself -----------------------------------------------------


def _node_by_node(lab: Lab, diff: Diff, wrong: Sequence[NodeVerdict], say: Progress) -> Diagnosis:
    open_units = {n.name: Unit(n.name, tuple(n.evidence.segment)) for n in wrong if n.evidence.whole}
    causes: list[Cause] = []
    unexplained: list[str] = []
    right = [n for n in diff.nodes if not n.own and n.evidence.whole and n.name not in open_units]
    while open_units and len(causes) < MOST_CAUSES and len(unexplained) < 12:
        first = next(iter(open_units.values()))
        say(f"{first.target}: trying the catalogue")
        found = _explain(lab, first, list(open_units.values()), right)
        if found is None:
            unexplained.append(first.target)
            open_units.pop(first.target)
            continue
        cause, nodes = found
        causes.append(cause)
        for name in nodes:
            open_units.pop(name, None)
    return _conclude(lab, diff, wrong, causes, [*unexplained, *open_units])


def _explain(
    lab: Lab, first: Unit, units: Sequence[Unit], right: Sequence[NodeVerdict]
) -> tuple[Cause, list[str]] | None:
    """The fault that explains this unit and most of the others, with the nodes it explains."""
    before = lab.before(first)
    candidates, tried = candidates_at(lab, first, before)
    if not candidates:
        return None
    others = representatives([u for u in units if u.target != first.target])
    calm = representatives([Unit(n.name, tuple(n.evidence.segment)) for n in right])
    held = []
    for c in candidates:
        fits = [lab.fit(c.hypothesis, u) for u in others if lab.touches(c.hypothesis.variant, u, c.hypothesis.p)]
        shows = [lab.fit(c.hypothesis, u) for u in calm if lab.touches(c.hypothesis.variant, u, c.hypothesis.p)]
        held.append(
            replace(c, explained=sum(f.explained for f in fits), contradicted=sum(not f.explained for f in shows))
        )
    held.sort(key=lambda c: (*c.rank, c.fit.ratio))
    best = held[0]
    h = best.hypothesis
    same = [c for c in held if _tied(best, c)]
    nodes = [first.target]
    nodes += [u.target for u in units if u.target != first.target and _explains(lab, h, u)]
    return make_cause(best, same, first.target, nodes, before, tried), nodes


def _explains(lab: Lab, h: Hypothesis, unit: Unit) -> bool:
    return lab.touches(h.variant, unit, h.p) and lab.fit(h, unit).explained


def representatives(units: Sequence[Unit]) -> list[Unit]:
    """A few units that stand for all: the first and the last of each role."""
    by_role: dict[str, list[Unit]] = {}
    for unit in units:
        by_role.setdefault(split(unit.target)[0], []).append(unit)
    chosen = [many[0] for many in by_role.values()] + [many[-1] for many in by_role.values() if len(many) > 1]
    return sorted(chosen[: 3 * _REPRESENTATIVES], key=lambda u: u.target)


def hypotheses(lab: Lab, unit: Unit, *, decode: bool) -> Iterable[Hypothesis]:
    """Everything in the catalogue that can be planted in the segment, fixed mistakes before families."""
    families = []
    for fault in FAULTS.values():
        for variant in fault.variants:
            if variant.search is not None:
                families.append(Hypothesis(fault.id, variant))
            elif lab.touches(variant, unit):
                yield Hypothesis(fault.id, variant)
    yield from families
    if decode:
        for fault in FAULTS.values():
            for variant in fault.variants:
                if variant.search is None and lab.touches(variant, unit):
                    yield Hypothesis("path-split", replace(decode_only(variant), label=f"{fault.id}: {variant.label}"))


def candidates_at(lab: Lab, unit: Unit, before: Fit) -> tuple[list[_Candidate], int]:
    """The hypotheses that explain the unit, and how many were tried. Families are scanned if nothing simple fits."""
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
            scans.append(replace(h, p=0.0))
        if _better(fit, before):
            found.append(_Candidate(h, fit))
    if not found:
        for h in scans:
            tried += 1
            h, fit = search_parameter(lab, h, unit, deep=_affordable(lab, unit))
            if _better(fit, before):
                found.append(_Candidate(h, fit))
    return found, tried


def _better(fit: Fit, before: Fit) -> bool:
    return fit.explained and fit.residual < 0.25 * before.residual


def _affordable(lab: Lab, unit: Unit) -> bool:
    """Scanning a family decodes weights dozens of times: not for the largest tables."""
    sizes = [int(np.prod(lab.graph.weights[w])) for name in unit.segment for w in lab.graph[name].weights]
    return sum(sizes) < 20_000_000


def _only_decode(lab: Lab, unit: Unit) -> bool:
    """Is the unit's target right in the prompt and wrong in later steps?"""
    whole = lab.dump.values(unit.target)
    if whole is None or len(lab.dump.steps) < 2:
        return False
    axis = token_axis(lab.graph, unit.target)
    own = lab.base(unit)[unit.target]
    error = np.moveaxis(np.abs(whole - own), axis, 0).reshape(len(lab.dump.tokens), -1).max(1)
    prompt = lab.dump.steps[0]
    return bool(error[:prompt].max() < 1e-2 * error[prompt:].max())


def _tied(best: _Candidate, other: _Candidate) -> bool:
    if other.hypothesis.fault == best.hypothesis.fault:
        return False
    if (other.explained, other.contradicted) != (best.explained, best.contradicted):
        return False
    return other.fit.ratio <= max(1.0, _TIE * best.fit.ratio)


def make_cause(
    best: _Candidate, same: Sequence[_Candidate], node: str, nodes: Sequence[str], before: Fit, tried: int
) -> Cause:
    h = best.hypothesis
    equivalent = tuple(dict.fromkeys(c.hypothesis.fault for c in same))
    if h.fault == "path-split":
        equivalent = tuple(dict.fromkeys((h.variant.label.split(":")[0], *equivalent)))
    certainty = confidence(before, best.fit, tried, best.fitted)
    return Cause(
        fault=h.fault,
        node=node,
        how=str(h),
        nodes=tuple(nodes),
        confidence=certainty / (1 + len(set(equivalent) - {h.fault})),
        explains=max(0.0, 1 - best.fit.residual / max(before.residual, 1e-300)),
        equivalent=equivalent,
        before=before.ratio,
        after=best.fit.ratio,
        fitted=best.fitted,
    )


def confidence(before: Fit, after: Fit, tried: int, fitted: bool) -> float:
    """How sure, as in a code: bits by which the fault shortens the description, less what naming it costs.

    Each number that was observed is described more shortly by log2(deviation before / after); choosing among the
    hypotheses tried costs log2 of their number, a solved parameter ten bits more.
    """
    gain = np.log2(max(before.ratio, 1.0) / max(after.ratio, 0.5))
    bits = float(min(after.count, 64) * max(gain, 0.0) / 2 - np.log2(max(tried, 1)) - 10 * fitted)
    return float(min(0.99, 1 / (1 + 2.0 ** -np.clip(bits, -40, 40))))


# -- the answer ------------------------------------------------------------------------------------------------------------


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
            if ours.shape != value[name].shape or not np.allclose(ours, value[name], rtol=1e-3, atol=1e-6 * np.abs(ours).max()):
                return f"dump {name}: it tells {cause.fault} from {fault}"
    probe = FAULTS[others[0]].probe
    return f"{cause.fault} and {others[0]} give the same values here; to tell them apart: {probe}"


def accepted(fit: Fit) -> bool:
    return fit.ratio <= ACCEPT
