"""Does a known mistake speak in deviations that some arithmetic's noise would cover?

Whether a deviation is small enough for a coarse arithmetic says nothing about a fault. What does is whether the fault
*predicts* it. Let e be what was found less the definition, d what the fault would have changed. If the fault did not
happen, e knows nothing of d, and taking d away makes the rest larger. If it happened, the rest shrinks to the engine's
own noise. With an unknown noise in every group of values (a token's row of a node, or what was printed of one) the
logarithm of the likelihood ratio is

    sum over the groups of  n/2 · ln((mean e² + v) / (mean (e - d)² + v))

where v is what nobody may call evidence: float32's own noise there and the rounding of the print. n counts the values
of a group, but at most so many, because values of one row share their luck. Groups that the fault does not touch are
the same either way and count nothing.

An engine that rounds by a rule (`judge.rounding`) can be predicted below its noise: the rules compete in the same way,
and faults are listened for under those that may be the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import numpy as np

from assay.verify.diagnosis.candidates import SECOND_NAMES, hypotheses, representatives
from assay.verify.diagnosis.damage import DAMAGE, damaged, glimpsed
from assay.verify.diagnosis.evidence_groups import Groups, Place, groups_of, off_at, run_of
from assay.verify.diagnosis.fault_trials import NEVER, EvidenceUnit, FaultTrials, Hypothesis, ObservationFit
from assay.verify.diagnosis.parameter import least, search_parameter
from assay.verify.diagnosis.result import Cause, Diagnosis
from assay.verify.diagnosis.rules import allowed, nothing_left, rules
from assay.verify.diagnosis.screen import Screen
from assay.verify.diagnosis.stable_predictions import moved_by, shaken_benches, with_off
from assay.verify.faults import FAULTS, FaultKind, Stage
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.compare_nodes import Diff
from assay.verify.judge.rounding import EXACT, Rounding
from assay.verify.thresholds import (
    A_LAYERS_WORTH,
    ALIKE_NATS,
    AROUND,
    COEFFICIENT,
    DAMAGE_LEFT,
    DAMAGED_ROWS,
    FIRM_LEFT,
    FIRM_ROWS,
    FIRM_SHARE,
    FLOAT32_LEFT,
    HARDLY_LEFT,
    HEARD,
    ITSELF,
    LEAVES,
    MAINLY,
    MOST_HEARD,
    MOST_REFINED,
    MOSTLY,
    ONE_KERNEL,
    PARAMETER_NATS,
    QUIET_LEFT,
    RULE_LEAVES,
    RULED_OUT,
    SPEAKS,
    STEPS_REFINED,
)

TORN = "weight-torn"
# Where mistakes are small enough to pass for noise.
_SMALL = (Stage.NORM, Stage.ROPE, Stage.ATTENTION, Stage.HEAD, Stage.RUNTIME)
Progress = Callable[[str], None]
Sieve = Callable[[Hypothesis], bool]


@dataclass(frozen=True)
class HypothesisScore:
    """How a hypothesis accounts for what was observed."""

    hypothesis: Hypothesis
    nats: float  # logarithm of the likelihood ratio over the definition
    better: float  # share of the touched groups in which it leaves less
    coefficient: float  # by how much of the predicted change the deviation is explained best: about 1
    before: float  # deviation over the floor, as rms over the touched groups
    after: float
    left: float  # as `after`, in the usual group: where an engine rounds by a rule, a few values lie on an edge
    usual: float  # as `before`, in the usual group
    touched: int  # groups in which it shows
    nodes: tuple[str, ...]  # observed nodes where it leaves less
    rule: Rounding = EXACT
    near: float = np.inf  # as `left`, in the places where it shows first: later ones add up what fell otherwise
    firm: bool = False  # it leaves nothing wherever its predictions stand still

    @property
    def rest(self) -> float:
        """What it leaves, at least where it shows first."""
        return min(self.left, self.near)

    @property
    def exact(self) -> bool:
        return self.firm or self.rest <= FLOAT32_LEFT

    @property
    def firmly(self) -> bool:
        """Of groups that count by how far their predictions move: is no more left than that?"""
        return self.after <= max(FIRM_LEFT, FIRM_SHARE * self.before) and self.touched >= FIRM_ROWS

    @property
    def odd(self) -> bool:
        """Was its parameter solved for, and is none that people use?"""
        search = self.hypothesis.variant.search
        return search is not None and self.hypothesis.p not in search.common

    @property
    def itself(self) -> bool:
        """Where every rounding falls as in the definition: does the fault's own change show?"""
        return ITSELF <= self.coefficient <= 1 / ITSELF

    def speaks(self, tried: int) -> bool:
        """Beyond chance, for so many hypotheses tried."""
        fitted = self.hypothesis.variant.search is not None
        enough = self.nats > SPEAKS + np.log(max(tried, 1)) + PARAMETER_NATS * fitted
        low, high = COEFFICIENT
        if self.hypothesis.fault == DAMAGE and self.left > max(FLOAT32_LEFT, DAMAGE_LEFT * self.before):
            return False  # one of thousands of bits resembles anything; the right one leaves nothing
        if self.hypothesis.fault == DAMAGE and self.rule != EXACT and self.touched < DAMAGED_ROWS:
            return False  # one token's value that was rounded the other way looks the same
        if _of_precision(self.hypothesis) and self.left > max(FLOAT32_LEFT, HARDLY_LEFT * self.before):
            return False  # a coarse engine rounds there too, and that is no fault
        if self.after > LEAVES * self.before:
            return False  # nearly all is left, so it is not what happened
        if self.before <= FLOAT32_LEFT and self.after > HARDLY_LEFT * self.before:
            return False  # float32's own noise has a shape, too; a fault as small as that leaves nearly nothing
        much = [self.after > RULE_LEAVES * self.before, self.left > RULE_LEAVES * self.usual]
        if self.rule != EXACT and (all(much) or (any(much) and self.odd)):
            return False  # other roundings of the same rule, by luck a little nearer; a solved parameter finds them
        return bool(enough and self.better >= MOSTLY and low <= self.coefficient <= high)


def _of_precision(h: Hypothesis) -> bool:
    return FaultKind.PRECISION in FAULTS[h.fault].kinds


def small_fault(trials: FaultTrials, diff: Diff, say: Progress, *, ruled: bool = False) -> Diagnosis | None:
    """The fault that the deviations speak of; None where they are what they look like, noise. Undecided, with the
    observation that would decide, where they are neither what a fault predicts nor what a rule of rounding does.
    Unexplained where they are too large for that.

    Every mistake of the catalogue is held against a few places first, those that are heard there against all. Families
    are tried with their common parameters; only if nothing speaks, with the one that fits the first place best. With
    `ruled`, only in an engine that clearly rounds by a rule.
    """
    units = [EvidenceUnit(n.name, tuple(n.evidence.segment)) for n in diff.nodes if n.evidence.whole]
    if units:
        places = [Place(u, (u.target,)) for u in units]
        first = [Place(u, (u.target,)) for u in representatives(units)]
    else:
        trials = trials.from_tokens()
        places = [run_of(trials, diff)]
        first = [replace(places[0], brief=True)]
    trials_by_rule = rules(trials, diff, first)
    if nothing_left(trials_by_rule[0], places, QUIET_LEFT):
        return _by_rule(trials_by_rule[0], diff, places)
    if ruled and trials_by_rule[0].rule == EXACT:  # only a flipped bit: printed values show it
        bits = [] if units else list(_damage(trials_by_rule[0], places))
        best = _speaking(trials_by_rule[0], _listen(trials_by_rule[0], bits, places), first, places, 1)
        return _answer(best, diff) if best and best[0].exact else None
    if first[0].brief:
        first = [with_off(trials_by_rule[0], first[0], QUIET_LEFT if diff.verdict == "same" else FLOAT32_LEFT)]
    say(f"small faults: trying the catalogue on {first[0].unit.target}, computed with {trials_by_rule[0].rule.name}")
    wide = diff.arithmetic.storage == "f32" or trials.terms.guessed
    best = _loudest(trials_by_rule, first, places, wide)
    covered = diff.verdict != "wrong" or allowed(trials_by_rule[0], diff, first)
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


def _by_rule(trials: FaultTrials, diff: Diff, places: Sequence[Place]) -> Diagnosis | None:
    """Everything is what this rule of rounding makes of the definition: how the engine rounds, and where its values
    were called wrong, that they are not."""
    seen = {name for p in places for name in p.targets}
    if {n.name for n in diff.nodes} - seen or (trials.rule == EXACT and diff.verdict != "wrong"):
        return None
    return Diagnosis("healthy", None, (), (), "", notes=(f"every value is what {trials.rule.name} gives",))


def _would_decide(diff: Diff, rule: Rounding) -> str:
    """The value that, dumped whole, would tell a fault from noise where this evidence cannot, if one is missing."""
    whole = [n.evidence for n in diff.nodes if n.evidence.whole]
    longer = next((e.segment for e in whole if len(e.segment) > ONE_KERNEL), None)
    if whole and longer is None:
        return ""
    node = longer[(len(longer) - 1) // 2] if longer else next(n.name for n in diff.nodes if n.name != "embd")
    coarse = rule.name if diff.verdict == "wrong" else diff.arithmetic.name
    return f"dump {node} whole, for all tokens: it would show a fault smaller than the noise of {coarse}"


def _loudest(
    trials_by_rule: Sequence[FaultTrials], first: Sequence[Place], places: Sequence[Place], wide: bool
) -> list[HypothesisScore]:
    """The mistakes that speak everywhere, under the rule that leaves least of the best of them.

    What is heard in a few places under one of the rules is held against all places under each: a fault may hide which
    rule is the engine's, and the roundings of the right rule a fault that is as small as they are.
    """
    likeliest, best, tried, families = trials_by_rule[0], list[HypothesisScore](), 0, list[HypothesisScore]()
    damage = (chain.from_iterable(_damage(trials, places) for trials in trials_by_rule), places)
    screen = Screen(likeliest, places[0].unit)
    sieve, costly = (screen.passes if len(places) == 1 else None), len(places) == 1 and screen.head is not None
    kinds = [(filter(sieve, _mistakes(likeliest, places, wide=wide)), first), (_solved(likeliest, first, sieve), first)]
    kinds.insert(0 if first[0].brief else 2, damage)  # what was printed tells of few bits, so they are soon tried
    for mistakes, where in kinds:
        some = list(mistakes)
        tried += len(some)
        for trials in trials_by_rule:
            voices = _listen(trials, some, where)
            heard = [v.hypothesis for v in sorted(voices, key=lambda v: -v.nats) if v.nats > HEARD]
            # Rules differ by less than what is there to explain: what is off by much more stays so under each.
            some = [v.hypothesis for v in voices if v.nats <= HEARD and v.after <= RULED_OUT * v.before]
            for bench in trials_by_rule:
                few = heard if bench is trials or not costly else heard[:MOST_HEARD]
                solved = [_solved_here(bench, h, where) for h in few]
                voices = _listen(bench, solved, places)
                families += [v for v in voices if v.nats > SPEAKS and _refinable(v.hypothesis)]
                spoken = _speaking(bench, voices, where, places, tried)
                best = _better(best, spoken)
                if best and best[0].rest <= FLOAT32_LEFT:
                    return best
    for voice in _loudest_families(families):
        trials = next(bench for bench in trials_by_rule if bench.rule == voice.rule)
        voices = _listen(trials, [_solved_here(trials, _refined(trials, voice.hypothesis, places), first)], places)
        spoken = _speaking(trials, voices, first, places, tried)
        best = _better(best, spoken)
    return best


def _better(best: list[HypothesisScore], other: list[HypothesisScore]) -> list[HypothesisScore]:
    """Of two answers the one that leaves less, unless it says much less."""
    if not best or not other:
        return best or other
    a, b = best[0], other[0]
    if min(a.nats, b.nats) < MAINLY * max(a.nats, b.nats):
        return best if a.nats > b.nats else other
    return other if b.rest < a.rest else best


def _loudest_families(voices: Sequence[HypothesisScore]) -> list[HypothesisScore]:
    found: dict[str, HypothesisScore] = {}
    for v in sorted(voices, key=lambda v: -v.nats):
        found.setdefault(v.hypothesis.variant.label, v)
    return list(found.values())[:MOST_REFINED]


def _refinable(h: Hypothesis) -> bool:
    search = h.variant.search
    return search is not None and not search.whole and not search.nominal and search.points > 1


def _refined(trials: FaultTrials, h: Hypothesis, places: Sequence[Place]) -> Hypothesis:
    """With the parameter that is likeliest everywhere: at a single place a few roundings may have hidden it."""
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
        h, p=least(lambda p: -_listen(trials, [replace(h, p=p)], places)[0].nats, lo, hi, log, STEPS_REFINED)
    )


def _speaking(
    trials: FaultTrials, voices: Sequence[HypothesisScore], first: Sequence[Place], places: Sequence[Place], tried: int
) -> list[HypothesisScore]:
    """Those of the mistakes that speak everywhere, or wherever their predictions stand still: a rounding that falls
    otherwise moves all that follows, and there a fault that did happen leaves as much as one that did not."""
    near = _listen(trials, [v.hypothesis for v in voices], first)
    voices = [replace(v, near=n.left) for v, n in zip(voices, near, strict=True)]
    clear = [v for v in voices if v.speaks(tried)]
    unclear = [v for v, n in zip(voices, near, strict=True) if v not in clear and n.speaks(tried)]
    clear, unclear = (_themselves(trials, some, places) for some in (clear, unclear))
    if unclear or not all(v.exact for v in clear):
        again = _listen(trials, [v.hypothesis for v in (*clear, *unclear)], places, draws=shaken_benches(trials))
        again = [replace(v, firm=v.speaks(tried) and v.firmly) for v in again]
        still = again[len(clear) :]
        clear = [replace(v, firm=f.firm) for v, f in zip(clear, again, strict=False)]
        clear += [replace(f, nats=v.nats) for v, f in zip(unclear, still, strict=True) if f.firm]
    most = max((v.nats for v in clear), default=0.0)
    return sorted(clear, key=lambda v: (not (v.exact and v.nats >= MAINLY * most), *_rank(v)))


def _themselves(
    trials: FaultTrials, voices: Sequence[HypothesisScore], places: Sequence[Place]
) -> list[HypothesisScore]:
    """Those whose own change shows, and not only a value on an edge that it turned."""
    if trials.rule == EXACT:
        return list(voices)
    smooth = _listen(trials, [v.hypothesis for v in voices], places, trials.rounding(EXACT))
    return [v for v, s in zip(voices, smooth, strict=True) if _of_precision(v.hypothesis) or s.itself]


def _solved_here(trials: FaultTrials, h: Hypothesis, first: Sequence[Place]) -> Hypothesis:
    """A solved parameter solved once more under this rule."""
    search = h.variant.search
    if search is None or search.whole or search.nominal or not search.points or h.p in search.common:
        return h
    place = next((p for p in first if trials.touches(h.variant, p.unit, h.p)), None)
    unit = None if place is None else place.near(trials, h)
    return h if unit is None else search_parameter(trials, h, unit, around=AROUND)[0]


def _damage(trials: FaultTrials, places: Sequence[Place]) -> Iterator[Hypothesis]:
    off = {p: max(off_at(trials, p, name) for name in p.targets) for p in places}
    for place in places:
        if place.targets == (place.unit.target,):
            yield from damaged(trials, place.unit, bent=off[place] == max(off.values()))
        else:
            yield from glimpsed(trials, place.unit, place.targets)


def _rank(voice: HypothesisScore) -> tuple[float, ...]:
    return (-round(voice.nats / ALIKE_NATS), voice.odd, voice.hypothesis.fault in SECOND_NAMES, -voice.nats)


def _mistakes(trials: FaultTrials, places: Sequence[Place], *, wide: bool = True) -> Iterator[Hypothesis]:
    """Every mistake that touches something observed, families with each of their common parameters. Of an engine that
    is not `wide` the nodes have told that narrow types are its arithmetic."""
    everything = EvidenceUnit(places[-1].unit.target, tuple(dict.fromkeys(n for p in places for n in p.unit.segment)))
    costly = min(trials.run_of(p.unit.segment) for p in places)  # many hypotheses are runs of many layers
    for h in hypotheses(trials, everything, decode=False):
        if (costly and FAULTS[h.fault].stage not in _SMALL) or (not wide and _of_precision(h)):
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


def _solved(trials: FaultTrials, first: Sequence[Place], sieve: Sieve | None = None) -> Iterator[Hypothesis]:
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


def _fit(trials: FaultTrials, place: Place, unit: EvidenceUnit, sieve: Sieve | None, h: Hypothesis) -> ObservationFit:
    """How a hypothesis fits a unit, unless it would have shown earlier."""
    if sieve and not sieve(h):
        return NEVER
    parts = place.heard(trials, h)
    if len(parts) > 1:
        early = replace(place, targets=parts[0], off=frozenset())
        if _listen(trials, [h], [early])[0].nats < -SPEAKS:
            return NEVER
    return trials.fit(h, unit)


@dataclass
class _Tally:
    """What a hypothesis gains, summed place by place."""

    nats: float = 0.0
    better: int = 0
    touched: int = 0
    dots: float = 0.0
    squares: float = 0.0
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    possible: bool = True

    def add(self, name: str, plain: Groups, faulty: Groups) -> None:
        gained = 0.0
        for e, rest, n, v in zip(plain.errors, faulty.errors, plain.counts, plain.floors, strict=True):
            change = e - rest
            moved = np.count_nonzero(change)
            if not moved:
                continue
            a, b = float(np.mean(e * e)), float(np.mean(rest * rest))
            gain = 0.5 * min(n, moved) * float(np.log((a + v) / (b + v)))
            gained += gain
            if float(np.mean(change * change)) > v:  # else it shows nowhere in this group
                self.touched += 1
                self.better += gain > 0
                self.dots += float(np.sum(e * change)) / (b + v)
                self.squares += float(np.sum(change * change)) / (b + v)
                self.before.append(a / v)
                self.after.append(b / v)
        self.nats += gained
        if gained > 1:
            self.nodes.append(name)

    def voice(self, h: Hypothesis, rule: Rounding) -> HypothesisScore:
        before, after = (float(np.sqrt(np.mean(m))) if m else 0.0 for m in (self.before, self.after))
        share = self.better / self.touched if self.touched else 0.0
        coefficient = self.dots / self.squares if self.squares else 0.0
        nats = self.nats if self.possible else -np.inf
        usual, left = (float(np.sqrt(np.median(m))) if m else 0.0 for m in (self.before, self.after))
        return HypothesisScore(
            h, nats, share, coefficient, before, after, left, usual, self.touched, tuple(self.nodes), rule
        )


def _listen(
    trials: FaultTrials,
    mistakes: Sequence[Hypothesis],
    places: Sequence[Place],
    unrounded: FaultTrials | None = None,
    draws: Sequence[FaultTrials] = (),
) -> list[HypothesisScore]:
    """Place after place, so that the definition's values of one are computed once for all hypotheses.

    With the `unrounded` bench every rounding falls as in the definition: a fault gains by what it changes itself, and
    not by a value on an edge that any other change would have turned as well. With `draws`, shaken benches, what moves
    on them is no evidence.
    """
    tallies = [_Tally() for _ in mistakes]
    for place in places:
        plain: dict[str, Groups | None] = {}
        for h, tally in zip(mistakes, tallies, strict=True):
            if not tally.possible or not trials.touches(h.variant, place.unit, h.p):
                continue
            for targets in place.heard(trials, h):
                if tally.nats < -SPEAKS:
                    break  # it would have shown earlier
                values = (unrounded or trials).predict(h, place.unit, targets)
                shaken = [bench.predict(h, place.unit, targets) or {} for bench in draws]
                for name in targets if values is not None else ():
                    base = trials.base(place.unit)[name]
                    if name not in plain:
                        plain[name] = groups_of(trials, name, base, trials.rule)
                    assert values is not None
                    value = values[name]
                    if unrounded and value.shape == base.shape:
                        value = base + (value - unrounded.base(place.unit)[name])
                    before, after = plain[name], groups_of(trials, name, value, trials.rule)
                    if before is None or after is None:
                        tally.possible = False
                        break
                    if draws:
                        moved = moved_by(trials, name, before, [bench.base(place.unit) for bench in draws])
                        before = replace(before, floors=before.floors + moved + moved_by(trials, name, after, shaken))
                    tally.add(name, before, after)
    return [t.voice(h, trials.rule) for h, t in zip(mistakes, tallies, strict=True)]


def _answer(voices: Sequence[HypothesisScore], diff: Diff) -> Diagnosis:
    best = voices[0]
    h = best.hypothesis
    same = [
        v.hypothesis.fault
        for v in voices[1:]
        if v.hypothesis.fault != h.fault and v.nats > best.nats - max(ALIKE_NATS, 0.02 * best.nats)
    ]
    equivalent = tuple(dict.fromkeys(same))
    cause = Cause(
        fault=h.fault,
        node=best.nodes[0],
        how=str(h),
        nodes=best.nodes,
        confidence=0.99 / (1 + len(set(equivalent) - SECOND_NAMES)),
        explains=max(0.0, 1 - (best.after / max(best.before, 1e-30)) ** 2),
        equivalent=equivalent,
        before=best.before,
        after=best.after,
        fitted=best.odd,
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
