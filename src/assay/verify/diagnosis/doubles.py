"""Two faults in one operation: neither alone gives its values, both together do.

A port that rotates the wrong pairs often has the wrong base too, and then no single row of the catalogue fits. So where
none does, faults are planted on top of each other: first one that only changes an attribute or a weight of the node,
then any other on the resulting node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from assay.graph import Node
from assay.verify.diagnosis.candidates import SECOND_NAMES, Candidate, affordable, better, confidence, tied
from assay.verify.diagnosis.fault_trials import EvidenceUnit, FaultTrials, Hypothesis, ObservationFit
from assay.verify.diagnosis.parameter import search_parameter
from assay.verify.faults import FAULTS, Change, Context, FaultKind, Variant
from assay.verify.thresholds import FEW_OPERATIONS, TWO_AT_ONCE


@dataclass(frozen=True)
class Pair:
    """Two faults that explain a unit together, and the faults that could replace one of them."""

    a: Candidate
    b: Candidate
    for_a: list[Candidate]
    for_b: list[Candidate]
    tried: int

    @property
    def both(self) -> Hypothesis:
        a, b = self.a.hypothesis, self.b.hypothesis
        return Hypothesis(b.fault, on_top(a.variant, b.variant), b.p)


def find_pair(trials: FaultTrials, unit: EvidenceUnit, before: ObservationFit) -> Pair | None:
    """The pair that explains a unit of few operations best, if its confidence is high enough."""
    if len(unit.segment) > FEW_OPERATIONS:
        return None
    listed = list(_hypotheses(trials, unit))
    tried, found = 0, list[tuple[Candidate, Candidate]]()
    for a in trials.budget.each(listed, f"{unit.target}: trying two mistakes at once", "mistakes"):
        if a.variant.search is not None or not _plain(trials, a.variant, unit):
            continue
        for b in listed:
            if b.fault == a.fault:
                continue
            both = Hypothesis(b.fault, on_top(a.variant, b.variant))
            if b.variant.search is not None:
                both, fit = search_parameter(trials, both, unit, deep=affordable(trials, unit, b))
            elif trials.touches(both.variant, unit):
                fit = trials.fit(both, unit)
            else:
                continue
            tried += 1
            if better(fit, before):
                found.append((Candidate(a, fit), Candidate(replace(b, p=both.p), fit)))
    if not found:
        return None
    found.sort(key=lambda row: (*_plainness(row), row[0].fit.ratio))
    first, second = found[0]
    if confidence(before, second.fit, tried, second.fitted) < TWO_AT_ONCE:
        return None
    for_a = [x for x, y in found if y.hypothesis.fault == second.hypothesis.fault and tied(first, x)]
    for_b = [y for x, y in found if x.hypothesis.fault == first.hypothesis.fault and tied(second, y)]
    return Pair(first, second, for_a, for_b, tried)


def _plainness(pair: tuple[Candidate, Candidate]) -> tuple[float, ...]:
    """Sort key: exact pairs first, then plainer names, then pairs without a solved parameter."""
    second = sum(c.hypothesis.fault in SECOND_NAMES for c in pair)
    return (not pair[0].fit.exact, second, pair[1].fitted)


def _hypotheses(trials: FaultTrials, unit: EvidenceUnit) -> Iterator[Hypothesis]:
    """Mistakes in a formula; misread files and narrow types are left out."""
    for fault in FAULTS.values():
        if FaultKind.WEIGHTS not in fault.kinds and FaultKind.PRECISION not in fault.kinds:
            for variant in fault.variants:
                common = variant.search.common if variant.search else ()
                if trials.touches(variant, unit, common[0] if common else 0.0):
                    yield Hypothesis(fault.id, variant)


def _plain(trials: FaultTrials, variant: Variant, unit: EvidenceUnit) -> bool:
    """Does it leave nodes of the same operation, on which another fault can be planted?"""
    changes = [(name, variant.at(trials.context, trials.graph[name])) for name in unit.segment]
    made = [(trials.graph[name], change) for name, change in changes if change is not None]
    return all(change.function is None and change.node.op == node.op for node, change in made)


def on_top(a: Variant, b: Variant) -> Variant:
    """The second fault, planted on the nodes that the first one changes."""

    def edit(c: Context, node: Node, p: float) -> Change | None:
        first = a.at(c, node)
        return b.edited(c, first.node, p) if first is not None else None

    return Variant(f"{a.label}, {b.label}", edit, b.search)
