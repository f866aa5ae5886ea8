"""The search for a small fault: does a known mistake predict deviations that the noise of some arithmetic would cover?

A deviation that is small enough for a coarse arithmetic may still be a fault. The sign of a fault is that it *predicts*
the deviation (`hypothesis_score`). Every mistake of the catalogue is scored in a few places first, and the promising
ones in all places.

The values of an engine that rounds by a rule (`judge.rounding`) can be predicted far below its noise. The rules compete
in the same way, and faults are searched for under every rule that may be the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np

from assay.verify.diagnosis.candidates import SECOND_NAMES, hypotheses, representatives
from assay.verify.diagnosis.damage import damage_in_prints, damage_in_tensor
from assay.verify.diagnosis.evidence_groups import EvidencePlace, off_at, run_of
from assay.verify.diagnosis.fault_trials import NEVER, EvidenceUnit, FaultTrials, Hypothesis, ObservationFit
from assay.verify.diagnosis.hypothesis_score import HypothesisScore, is_of_precision, score_all
from assay.verify.diagnosis.parameter import least, search_parameter
from assay.verify.diagnosis.posterior import posterior
from assay.verify.diagnosis.result import Cause, Diagnosis
from assay.verify.diagnosis.rules import explains_dump, nothing_left, trials_under_rules
from assay.verify.diagnosis.screen import Screen
from assay.verify.diagnosis.stable_predictions import shaken_trials, with_off_nodes
from assay.verify.faults import FAULTS, FaultKind, Stage
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.compare_nodes import Diff
from assay.verify.judge.rounding import EXACT, Rounding
from assay.verify.thresholds import (
    A_LAYERS_WORTH,
    ACCEPT,
    ALIKE_NATS,
    AROUND,
    FLOAT32_LEFT,
    HINT_NATS,
    MAINLY,
    MOST_HINTS,
    MOST_REFINED,
    ONE_KERNEL,
    QUIET_LEFT,
    RULED_OUT,
    SIGNIFICANT_NATS,
    STEPS_REFINED,
)

TORN = "weight-torn"
# Where mistakes are small enough to pass for noise.
_SMALL = (Stage.NORM, Stage.ROPE, Stage.ATTENTION, Stage.HEAD, Stage.RUNTIME)
Progress = Callable[[str], None]
Sieve = Callable[[Hypothesis], bool]


class SmallEvidence:
    """Where small faults are looked for, and the trials under each rounding rule that may be the engine's."""

    def __init__(self, trials: FaultTrials, diff: Diff) -> None:
        units = [EvidenceUnit(n.name, tuple(n.evidence.segment)) for n in diff.nodes if n.evidence.whole]
        if units:
            self.places = [EvidencePlace(u, (u.target,)) for u in units]
            self.first = [EvidencePlace(u, (u.target,)) for u in representatives(units)]
        else:
            trials = trials.from_tokens()
            self.places = [run_of(trials, diff)]
            self.first = [replace(self.places[0], brief=True)]
        self.diff, self.guessed, self.whole = diff, trials.terms.guessed, bool(units)
        self.trials_by_rule = trials_under_rules(trials, diff, [_before_the_fault(p, diff) for p in self.first])


def _before_the_fault(place: EvidencePlace, diff: Diff) -> EvidencePlace:
    """The place up to the first node that no arithmetic excuses: nodes after it do not show how the engine rounds."""
    wrong = diff.first_wrong
    if not place.brief or wrong is None or wrong.name not in place.targets or min(wrong.evidence.local) <= ACCEPT:
        return place
    targets = place.targets[: place.targets.index(wrong.name) + 1]
    segment = place.unit.segment[: place.unit.segment.index(wrong.name) + 1]
    return replace(place, unit=EvidenceUnit(wrong.name, segment), targets=targets)


def small_fault(given: SmallEvidence, say: Progress, *, ruled: bool = False) -> Diagnosis | None:
    """The fault that predicts the deviations; None where they are noise.

    The result is undecided, with the observation that would decide, where neither a fault nor a rounding rule predicts
    the deviations. It is unexplained where they are too large for noise.

    Families are tried with their common parameters first. The parameter that fits the first place best is tried only
    if no common one is significant. With `ruled`, the search stops unless the engine clearly rounds by a rule.
    """
    diff, places, first, trials_by_rule = given.diff, given.places, given.first, given.trials_by_rule
    if nothing_left(trials_by_rule[0], places, QUIET_LEFT):
        return _by_rule(trials_by_rule[0], diff, places)
    if ruled and trials_by_rule[0].rule == EXACT:  # only a flipped bit: printed values show it
        bits = [] if given.whole else list(_damage(trials_by_rule[0], places))
        best = _significant(trials_by_rule[0], score_all(trials_by_rule[0], bits, places), first, places, 1)
        return _answer(best, diff) if best and best[0].exact else None
    if first[0].brief:
        first = [with_off_nodes(trials_by_rule[0], first[0], QUIET_LEFT if diff.verdict == "same" else FLOAT32_LEFT)]
    say(f"small faults: trying the catalogue on {first[0].unit.target}, computed with {trials_by_rule[0].rule.name}")
    wide = diff.arithmetic.storage == "f32" or given.guessed
    best = _exact_where_first_off(trials_by_rule[0], first, places, wide) or _likeliest(
        trials_by_rule, first, places, wide
    )
    covered = diff.verdict != "wrong" or explains_dump(trials_by_rule[0], diff, first)
    if not best and (diff.verdict == "same" or nothing_left(trials_by_rule[0], places, FLOAT32_LEFT)):
        return _by_rule(trials_by_rule[0], diff, places)
    if not best and covered:
        would_decide = _would_decide(diff, trials_by_rule[0].rule)
        return Diagnosis("undecided" if would_decide else "healthy", None, (), (), would_decide)
    if not best or not (covered or best[0].exact):
        # An unknown fault resembles known ones; it does not leave float32's noise when they are taken away.
        rules_of = max((bench.rule.as_coarse for bench in trials_by_rule), key=[a.name for a in ARITHMETICS].index)
        return Diagnosis("unexplained", None, (), (), "", rounds=rules_of)
    return _answer(best, diff)


def _by_rule(trials: FaultTrials, diff: Diff, places: Sequence[EvidencePlace]) -> Diagnosis | None:
    """Healthy: every value is what this rounding rule makes of the definition, also those that were called wrong."""
    seen = {name for p in places for name in p.targets}
    if {n.name for n in diff.nodes} - seen or (trials.rule == EXACT and diff.verdict != "wrong"):
        return None
    return Diagnosis("healthy", None, (), (), "", notes=(f"every value is what {trials.rule.name} gives",))


def _would_decide(diff: Diff, rule: Rounding) -> str:
    """The node to dump whole, so that a fault can be told from noise; empty where all such nodes were dumped."""
    whole = [n.evidence for n in diff.nodes if n.evidence.whole]
    longer = next((e.segment for e in whole if len(e.segment) > ONE_KERNEL), None)
    if whole and longer is None:
        return ""
    node = longer[(len(longer) - 1) // 2] if longer else next(n.name for n in diff.nodes if n.name != "embd")
    coarse = rule.name if diff.verdict == "wrong" else diff.arithmetic.name
    return f"dump {node} whole, for all tokens: it would show a fault smaller than the noise of {coarse}"


def _exact_where_first_off(
    trials: FaultTrials, first: Sequence[EvidencePlace], places: Sequence[EvidencePlace], wide: bool
) -> list[HypothesisScore]:
    """Significant hypotheses that leave float32's noise at the first node that is off, where trials cost least.

    Most mistakes that change this node leave much of its deviation, and need no run of the whole model.
    """
    place = first[0].first_off()
    if place is None or trials.run_of(place.unit.segment):
        return []
    some = [*_mistakes(trials, [place], wide=wide), *_solved(trials, [place])]
    scores = sorted(score_all(trials, some, [place]), key=lambda v: -v.nats)
    exact = [v.hypothesis for v in scores if v.nats > HINT_NATS and v.left <= FLOAT32_LEFT]
    best = _significant(trials, score_all(trials, exact[:MOST_HINTS], places), first, places, len(some))
    return best if best and best[0].least_left <= FLOAT32_LEFT else []


def _likeliest(
    trials_by_rule: Sequence[FaultTrials], first: Sequence[EvidencePlace], places: Sequence[EvidencePlace], wide: bool
) -> list[HypothesisScore]:
    """Significant hypotheses under the rounding rule with the smallest residual, the best first.

    A hypothesis that is promising in a few places under one rule is scored in all places under every rule. A fault may
    hide the engine's rule, and the roundings of the right rule may hide a fault of their own size.
    """
    likeliest, best, tried, families = trials_by_rule[0], list[HypothesisScore](), 0, list[HypothesisScore]()
    damage = (chain.from_iterable(_damage(trials, places) for trials in trials_by_rule), places)
    screen = Screen(likeliest, places[0].unit)
    sieve, costly = (screen.passes if len(places) == 1 else None), len(places) == 1 and screen.head is not None
    kinds = [(filter(sieve, _mistakes(likeliest, places, wide=wide)), first), (_solved(likeliest, first, sieve), first)]
    kinds.insert(0 if first[0].brief else 2, damage)  # printed values leave few bits to try, so these come first
    for mistakes, where in kinds:
        some = list(mistakes)
        tried += len(some)
        for trials in trials_by_rule:
            scores = score_all(trials, some, where)
            promising = [v.hypothesis for v in sorted(scores, key=lambda v: -v.nats) if v.nats > HINT_NATS]
            # Rules differ by less than the deviation, so a hypothesis that is far off under one is so under all.
            some = [v.hypothesis for v in scores if v.nats <= HINT_NATS and v.after <= RULED_OUT * v.before]
            for bench in trials_by_rule:
                few = promising if bench is trials or not costly else promising[:MOST_HINTS]
                solved = [_solved_here(bench, h, where) for h in few]
                scores = score_all(bench, solved, places)
                families += [v for v in scores if v.nats > SIGNIFICANT_NATS and _refinable(v.hypothesis)]
                spoken = _significant(bench, scores, where, places, tried)
                best = _better(best, spoken)
                if best and best[0].least_left <= FLOAT32_LEFT:
                    return best
    for score in _likeliest_families(families):
        trials = next(bench for bench in trials_by_rule if bench.rule == score.rule)
        scores = score_all(trials, [_solved_here(trials, _refined(trials, score.hypothesis, places), first)], places)
        spoken = _significant(trials, scores, first, places, tried)
        best = _better(best, spoken)
    return best


def _better(best: list[HypothesisScore], other: list[HypothesisScore]) -> list[HypothesisScore]:
    """The answer with the smaller residual, unless its likelihood is much lower."""
    if not best or not other:
        return best or other
    a, b = best[0], other[0]
    if min(a.nats, b.nats) < MAINLY * max(a.nats, b.nats):
        return best if a.nats > b.nats else other
    return other if b.least_left < a.least_left else best


def _likeliest_families(scores: Sequence[HypothesisScore]) -> list[HypothesisScore]:
    found: dict[str, HypothesisScore] = {}
    for v in sorted(scores, key=lambda v: -v.nats):
        found.setdefault(v.hypothesis.variant.label, v)
    return list(found.values())[:MOST_REFINED]


def _refinable(h: Hypothesis) -> bool:
    search = h.variant.search
    return search is not None and not search.whole and not search.nominal and search.points > 1


def _refined(trials: FaultTrials, h: Hypothesis, places: Sequence[EvidencePlace]) -> Hypothesis:
    """The hypothesis with the parameter that is likeliest in all places: a few roundings may hide it in one place."""
    search = h.variant.search
    assert search is not None
    log = search.log and search.lo > 0
    if log:
        step = (search.hi / search.lo) ** (1 / (search.points - 1))
        lo, hi = h.p / step, h.p * step
    else:
        step = (search.hi - search.lo) / (search.points - 1)
        lo, hi = h.p - step, h.p + step
    return replace(
        h, p=least(lambda p: -score_all(trials, [replace(h, p=p)], places)[0].nats, lo, hi, log, STEPS_REFINED)
    )


def _significant(
    trials: FaultTrials,
    scores: Sequence[HypothesisScore],
    first: Sequence[EvidencePlace],
    places: Sequence[EvidencePlace],
    tried: int,
) -> list[HypothesisScore]:
    """The significant scores, the best first.

    A value that is rounded the other way moves everything after it. There, a fault that did happen leaves as much as
    one that did not. So a score also counts if it is significant wherever its predictions are stable.
    """
    near = score_all(trials, [v.hypothesis for v in scores], first)
    scores = [replace(v, near=n.left) for v, n in zip(scores, near, strict=True)]
    clear = [v for v in scores if v.is_significant(tried)]
    unclear = [v for v, n in zip(scores, near, strict=True) if v not in clear and n.is_significant(tried)]
    clear, unclear = (_with_own_change(trials, some, places) for some in (clear, unclear))
    if unclear or not all(v.exact for v in clear):
        again = score_all(trials, [v.hypothesis for v in (*clear, *unclear)], places, draws=shaken_trials(trials))
        again = [replace(v, stable=v.is_significant(tried) and v.stays_explained) for v in again]
        still = again[len(clear) :]
        clear = [replace(v, stable=f.stable) for v, f in zip(clear, again, strict=False)]
        clear += [replace(f, nats=v.nats) for v, f in zip(unclear, still, strict=True) if f.stable]
    most = max((v.nats for v in clear), default=0.0)
    return sorted(clear, key=lambda v: (not (v.exact and v.nats >= MAINLY * most), *_rank(v)))


def _with_own_change(
    trials: FaultTrials, scores: Sequence[HypothesisScore], places: Sequence[EvidencePlace]
) -> list[HypothesisScore]:
    """The scores of faults whose own change shows, and not only a value that it moved over a rounding edge."""
    if trials.rule == EXACT:
        return list(scores)
    smooth = score_all(trials, [v.hypothesis for v in scores], places, trials.rounding(EXACT))
    return [v for v, s in zip(scores, smooth, strict=True) if is_of_precision(v.hypothesis) or s.own_change_shows]


def _solved_here(trials: FaultTrials, h: Hypothesis, first: Sequence[EvidencePlace]) -> Hypothesis:
    """The hypothesis with its solved parameter solved again under this rounding rule."""
    search = h.variant.search
    if search is None or search.whole or search.nominal or not search.points or h.p in search.common:
        return h
    place = next((p for p in first if trials.touches(h.variant, p.unit, h.p)), None)
    unit = None if place is None else place.near(trials, h)
    return h if unit is None else search_parameter(trials, h, unit, around=AROUND)[0]


def _damage(trials: FaultTrials, places: Sequence[EvidencePlace]) -> Iterator[Hypothesis]:
    off = {p: max(off_at(trials, p, name) for name in p.targets) for p in places}
    for place in places:
        if place.targets == (place.unit.target,):
            yield from damage_in_tensor(trials, place.unit, bent=off[place] == max(off.values()))
        else:
            yield from damage_in_prints(trials, place.unit, place.targets)


def _rank(score: HypothesisScore) -> tuple[float, ...]:
    return (
        -round(score.nats / ALIKE_NATS),
        score.parameter_unusual,
        score.hypothesis.fault in SECOND_NAMES,
        -score.nats,
    )


def _mistakes(trials: FaultTrials, places: Sequence[EvidencePlace], *, wide: bool = True) -> Iterator[Hypothesis]:
    """Every mistake that touches something observed, families with each of their common parameters. Of an engine that
    is not `wide` the nodes have told that narrow types are its arithmetic."""
    everything = EvidenceUnit(places[-1].unit.target, tuple(dict.fromkeys(n for p in places for n in p.unit.segment)))
    costly = min(trials.run_of(p.unit.segment) for p in places)  # many hypotheses are runs of many layers
    for h in hypotheses(trials, everything):
        if (costly and FAULTS[h.fault].stage not in _SMALL) or (not wide and is_of_precision(h)):
            continue
        if h.variant.search is None:
            yield h
        else:
            usual = h.variant.search.usual(trials.rows)
            yield from (replace(h, p=p) for p in usual if trials.touches(h.variant, everything, p))
    yield from _torn(trials, everything)


def _torn(trials: FaultTrials, unit: EvidenceUnit) -> Iterator[Hypothesis]:
    """The end of the file is missing. That is small where the noise of a router's choices covers it."""
    nodes = [trials.graph[name] for name in unit.segment]
    for variant in FAULTS[TORN].variants:
        ends = variant.search.scan(trials.context, nodes) if variant.search and variant.search.scan else ()
        yield from (Hypothesis(TORN, variant, p) for p in ends[:A_LAYERS_WORTH])


def _solved(trials: FaultTrials, first: Sequence[EvidencePlace], sieve: Sieve | None = None) -> Iterator[Hypothesis]:
    """Families with the parameter that fits the first place they touch best."""
    for fault in FAULTS.values():
        for variant in fault.variants:
            search = variant.search
            if search is None or not search.points or FaultKind.WEIGHTS in fault.kinds:
                continue
            grid = search.grid(trials.rows)
            tries = [(p, place) for p in (*grid[len(grid) // 2 :][:1], *grid[:1]) for place in first]
            found_at = next(((p, place) for p, place in tries if trials.touches(variant, place.unit, p)), None)
            if found_at is None:
                continue
            h = Hypothesis(fault.id, variant, found_at[0])
            unit = found_at[1].near(trials, h)
            if unit is None:
                continue
            found, _ = search_parameter(trials, h, unit, partial(_fit, trials, found_at[1], unit, sieve))
            if found.p not in search.common and trials.touches(variant, unit, found.p):
                yield found


def _fit(
    trials: FaultTrials, place: EvidencePlace, unit: EvidenceUnit, sieve: Sieve | None, h: Hypothesis
) -> ObservationFit:
    """How a hypothesis fits a unit, unless it would have shown earlier."""
    if sieve and not sieve(h):
        return NEVER
    parts = place.targets_of(trials, h)
    if len(parts) > 1:
        early = replace(place, targets=parts[0], off=frozenset())
        if score_all(trials, [h], [early])[0].nats < -SIGNIFICANT_NATS:
            return NEVER
    return trials.fit(h, unit)


def _answer(scores: Sequence[HypothesisScore], diff: Diff) -> Diagnosis:
    best = scores[0]
    h = best.hypothesis
    same = [
        v.hypothesis.fault
        for v in scores[1:]
        if v.hypothesis.fault != h.fault and v.nats > best.nats - max(ALIKE_NATS, 0.02 * best.nats)
    ]
    equivalent = tuple(dict.fromkeys(same))
    cause = Cause(
        fault=h.fault,
        node=best.nodes[0],
        how=str(h),
        nodes=best.nodes,
        confidence=posterior(
            best.nats / np.log(2), rivals=len(set(equivalent) - SECOND_NAMES), leaves_much=best.leaves_much
        ),
        explains=max(0.0, 1 - (best.after / max(best.before, 1e-30)) ** 2),
        equivalent=equivalent,
        before=best.before,
        after=best.after,
        fitted=best.parameter_unusual,
    )
    notes = []
    if diff.verdict != "wrong":
        notes.append(
            f"small enough for the noise of {diff.arithmetic.name}, but not noise: it is what this fault predicts "
            f"({best.before:.3g} times float32's noise, {best.after:.2g} with the fault planted)"
        )
    if best.rule != EXACT:
        notes.append(f"the rest is computed with {best.rule.name}")
    return Diagnosis("fault", cause.node, best.nodes, (cause,), "", notes=tuple(notes), diff=diff)
