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

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import split
from assay.verify.diagnosis.candidates import SECOND_NAMES, hypotheses, representatives
from assay.verify.diagnosis.damage import DAMAGE, damaged, glimpsed
from assay.verify.diagnosis.lab import Hypothesis, Lab, Unit
from assay.verify.diagnosis.parameter import search_parameter
from assay.verify.diagnosis.result import Cause, Diagnosis
from assay.verify.dumps.observation import STATISTICS, token_axis
from assay.verify.faults import FAULTS, Kind, Stage
from assay.verify.judge.arithmetic import ARITHMETICS, UNIT
from assay.verify.judge.diff import Diff
from assay.verify.judge.evidence import deviation
from assay.verify.judge.noise import by_rows
from assay.verify.judge.rounding import EXACT, Rounding, roundings
from assay.verify.thresholds import (
    A_LAYERS_WORTH,
    ALIKE_NATS,
    AN_EDGE,
    AROUND,
    CLEARER_NATS,
    COEFFICIENT,
    DAMAGE_LEFT,
    DAMAGED_ROWS,
    FEW_EDGES,
    FIRST_OBSERVED,
    FLOAT32_LEFT,
    FLOOR_UNITS,
    HARDLY_LEFT,
    HEARD,
    LEAVES,
    LONG_RUN,
    MOST_OF_A_ROW,
    MOSTLY,
    ON_AN_EDGE,
    PARAMETER_NATS,
    QUIET_LEFT,
    RULE_LEAVES,
    RULE_NATS,
    SHORT,
    SPEAKS,
)

Array = NDArray[Any]
# Where mistakes are small enough to pass for noise.
TORN = "weight-torn"
_SMALL = (Stage.NORM, Stage.ROPE, Stage.ATTENTION, Stage.HEAD, Stage.RUNTIME)
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Groups:
    """For each group of values of one node: errors, how many count, and what is no evidence (squared)."""

    errors: tuple[Array, ...]
    counts: Array
    floors: Array


@dataclass(frozen=True)
class Voice:
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

    @property
    def rest(self) -> float:
        """What it leaves, at least where it shows first."""
        return min(self.left, self.near)

    @property
    def exact(self) -> bool:
        return self.rest <= FLOAT32_LEFT

    def speaks(self, tried: int) -> bool:
        """Beyond chance, for so many hypotheses tried."""
        fitted = self.hypothesis.variant.search is not None
        enough = self.nats > SPEAKS + np.log(max(tried, 1)) + PARAMETER_NATS * fitted
        low, high = COEFFICIENT
        if self.hypothesis.fault == DAMAGE and self.left > max(FLOAT32_LEFT, DAMAGE_LEFT * self.before):
            return False  # one of thousands of bits resembles anything; the right one leaves nothing
        if self.hypothesis.fault == DAMAGE and self.rule != EXACT and self.touched < DAMAGED_ROWS:
            return False  # one token's value that was rounded the other way looks the same
        if Kind.PRECISION in FAULTS[self.hypothesis.fault].kinds and self.left > max(
            FLOAT32_LEFT, HARDLY_LEFT * self.before
        ):
            return False  # a coarse engine rounds there too, and that is no fault
        if self.after > LEAVES * self.before:
            return False  # nearly all is left, so it is not what happened
        if self.rule != EXACT and self.after > RULE_LEAVES * self.before and self.left > RULE_LEAVES * self.usual:
            return False  # other roundings of the same rule, by luck a little nearer
        return bool(enough and self.better >= MOSTLY and low <= self.coefficient <= high)


@dataclass(frozen=True)
class Place:
    """Observed nodes that one computation reaches. Of a `brief` one, the first few that a mistake changes are heard,
    and the first few of these that are off."""

    unit: Unit
    targets: tuple[str, ...]
    brief: bool = False
    off: frozenset[str] = frozenset()

    def heard(self, lab: Lab, h: Hypothesis) -> tuple[str, ...]:
        if not self.brief:
            return self.targets
        changed = lab.changed(h, self.unit)
        names = [name for name in self.targets if name in changed]
        off = [name for name in names if name in self.off]
        return tuple(dict.fromkeys((*names[:FIRST_OBSERVED], *off[:FIRST_OBSERVED])))

    def early(self) -> Place:
        """Of a brief place, its first layers: enough to tell how an engine rounds."""
        segment = self.unit.segment[:LONG_RUN]
        targets = tuple(name for name in self.targets if name in segment)
        if not self.brief or not targets:
            return self
        return Place(Unit(targets[-1], segment[: segment.index(targets[-1]) + 1]), targets)

    def near(self, lab: Lab, h: Hypothesis) -> Unit | None:
        """The shortest computation in which the mistake shows; None where it does not, or is a run of many layers."""
        targets = self.heard(lab, h)
        if not targets:
            return None
        unit = Unit(targets[-1], self.unit.segment[: self.unit.segment.index(targets[-1]) + 1])
        return unit if len(lab.changed(h, unit)) < LONG_RUN else None


def small_fault(lab: Lab, diff: Diff, say: Progress, *, ruled: bool = False) -> Diagnosis | None:
    """The fault that the deviations speak of; None where they are what they look like, noise. Undecided, with the
    observation that would decide, where they are neither what a fault predicts nor what a rule of rounding does.
    Unexplained where they are too large for that.

    Every mistake of the catalogue is held against a few places first, those that are heard there against all. Families
    are tried with their common parameters; only if nothing speaks, with the one that fits the first place best. With
    `ruled`, only in an engine that clearly rounds by a rule.
    """
    units = [Unit(n.name, tuple(n.evidence.segment)) for n in diff.nodes if n.evidence.whole]
    if units:
        places = [Place(u, (u.target,)) for u in units]
        first = [Place(u, (u.target,)) for u in representatives(units)]
    else:
        lab = lab.from_tokens()
        places = [_run(lab, diff)]
        first = [replace(places[0], brief=True)]
    labs = _rules(lab, diff, first)
    if _nothing_left(labs[0], places, QUIET_LEFT):
        return _by_rule(labs[0], diff, places)
    if ruled and labs[0].rule == EXACT:  # of one bit at most: printed values tell it at once, and nothing else does
        best = [] if units else _speaking(labs[0], list(_damage(labs[0], places)), first, places, 1)
        return _answer(best, diff) if best and best[0].exact else None
    if first[0].brief:
        limit = (QUIET_LEFT if diff.verdict == "same" else FLOAT32_LEFT) ** 2
        first = [replace(first[0], off=frozenset(n for n in first[0].targets if _off(labs[0], first[0], n) > limit))]
    say(f"small faults: the catalogue is tried on {first[0].unit.target}, as computed with {labs[0].rule.name}")
    wide = diff.arithmetic.storage == "f32" or lab.terms.guessed
    best = _loudest(labs, first, places, wide)
    covered = diff.verdict != "wrong" or _allowed(labs[0], diff, first)
    if not best and (diff.verdict == "same" or _nothing_left(labs[0], places, FLOAT32_LEFT)):
        return _by_rule(labs[0], diff, places)
    if not best and covered:
        would_decide = _would_decide(diff, labs[0].rule)
        return Diagnosis("undecided" if would_decide else "healthy", None, (), (), would_decide)
    if not best or not (covered or best[0].exact):
        # An unknown fault resembles known ones; it does not leave float32's noise when they are taken away.
        return Diagnosis("unexplained", None, (), (), "")
    return _answer(best, diff)


def _by_rule(lab: Lab, diff: Diff, places: Sequence[Place]) -> Diagnosis | None:
    """Everything is what this rule of rounding makes of the definition. Where it was called wrong, that is news."""
    if diff.verdict != "wrong" or {n.name for n in diff.nodes} - {name for p in places for name in p.targets}:
        return None
    return Diagnosis("healthy", None, (), (), "", notes=(f"every value is what {lab.rule.name} gives",))


def _would_decide(diff: Diff, rule: Rounding) -> str:
    """The value that, dumped whole, would tell a fault from noise where this evidence cannot, if one is missing."""
    whole = [n.evidence for n in diff.nodes if n.evidence.whole]
    longer = next((e.segment for e in whole if len(e.segment) > SHORT), None)
    if whole and longer is None:
        return ""
    node = longer[(len(longer) - 1) // 2] if longer else next(n.name for n in diff.nodes if n.name != "embd")
    coarse = rule.name if diff.verdict == "wrong" else diff.arithmetic.name
    return f"dump {node} whole, for all tokens: it would show a fault smaller than the noise of {coarse}"


def _rules(lab: Lab, diff: Diff, first: Sequence[Place]) -> list[Lab]:
    """The bench under each rule of rounding that may be the engine's, the likeliest first: none, unless another is
    clearly likelier. A rule stays possible while its roundings are smaller than what is there to explain."""
    most = ARITHMETICS[-1] if diff.verdict == "wrong" else diff.arithmetic
    labs = [lab.rounding(rule) for rule in roundings(most)]
    plain = [_definition(bench, [p.early() for p in first]) for bench in labs]
    nats, exact = [], []
    for groups in plain:
        tally = _Tally()
        for name, before in plain[0].items():
            after = groups.get(name)
            if before is not None and after is not None:
                tally.add(name, before, after)
        nats.append(tally.nats)
        exact.append(len(_exactly(groups)))
    values = sum(float(groups.counts.sum()) for groups in plain[0].values() if groups is not None)
    plainest = nats[0] > max(nats) - max(SPEAKS, CLEARER_NATS * values)
    # A fault hides the rule in all that follows from it: the right one is exact up to there.
    possible = [
        i
        for i in range(len(labs))
        if nats[i] > max(nats) - max(SPEAKS, RULE_NATS * values) or exact[i] == max(exact) > exact[0]
    ]
    return [labs[i] for i in sorted(possible, key=lambda i: (i > 0 or not plainest, -nats[i]))]


def _exactly(groups: Mapping[str, Groups | None]) -> list[str]:
    """The nodes from the first on that are what the rule gives, to float32's noise."""
    return list(takewhile(lambda n: (g := groups[n]) is not None and _off_in(g) <= FLOAT32_LEFT**2, groups))


def _allowed(lab: Lab, diff: Diff, first: Sequence[Place]) -> bool:
    """Is the engine one that rounds by this rule, and nothing more than its noise? In the first layers every operation
    is what the rule gives, and then no value is off by more than an arithmetic as coarse as the rule may be."""
    coarse = [a.name for a in ARITHMETICS].index(lab.rule.as_coarse)
    if lab.rule == EXACT or any(n.evidence.local[coarse] > 1 for n in diff.nodes):
        return False
    proven = {split(name)[0] for name in _exactly(_definition(lab, [p.early() for p in first]))}
    return all(role in proven for role, layer in (split(n.name) for n in diff.nodes) if layer is not None)


def _definition(lab: Lab, places: Sequence[Place]) -> dict[str, Groups | None]:
    """What the definition leaves at every place."""
    return {name: _groups(lab, name, lab.base(p.unit)[name]) for p in places for name in p.targets}


def _nothing_left(lab: Lab, places: Sequence[Place], limit: float) -> bool:
    """Is everything the definition under this rule, to float32's noise? A few values of a row may lie on an edge, but
    not a whole row, nor a feature in most rows. Of a large model some rows do, where an operand fell the other way."""
    edges: Counter[int] = Counter()  # by token
    for name, groups in _definition(lab, places).items():
        if groups is None:
            return False
        left = [e * e / v for e, v in zip(groups.errors, groups.floors, strict=True)]
        off = [i for i, row in enumerate(left) if np.quantile(row, ON_AN_EDGE) > limit**2]
        if off and not _fell_otherwise(lab, name, groups, off):
            return False
        edges.update(off)
        if len({row.size for row in left}) == 1 and len(left) > 2 and np.median(left, axis=0).max() > limit**2:
            return False
    return all(n <= FEW_EDGES * len(places) for n in edges.values())


def _fell_otherwise(lab: Lab, name: str, groups: Groups, off: Sequence[int]) -> bool:
    """Are these rows off as an operand's rounding makes them that fell the other way: few, and far less than all the
    roundings of the rule together?"""
    tokens = len(lab.dump.tokens)
    if lab.terms.carried or len(groups.errors) != tokens or len(off) > FEW_EDGES * tokens:
        return False
    rule = [a.name for a in ARITHMETICS].index(lab.rule.as_coarse)
    noise = lab.evidence[name].noise_local.rms[rule]
    return all(float(np.sqrt(np.mean(np.square(groups.errors[i])))) <= AN_EDGE * noise[i] for i in off)


def _loudest(labs: Sequence[Lab], first: Sequence[Place], places: Sequence[Place], wide: bool) -> list[Voice]:
    """The mistakes that speak everywhere, under the rule that leaves least of the best of them.

    What is heard in a few places under one of the rules is held against all places under each: a fault may hide which
    rule is the engine's, and the roundings of the right rule a fault that is as small as they are.
    """
    likeliest, best, tried = labs[0], list[Voice](), 0
    damage = (chain.from_iterable(_damage(lab, places) for lab in labs), places)
    kinds = [(_mistakes(likeliest, places, wide=wide), first), (_solved(likeliest, places, first), first)]
    kinds.insert(0 if first[0].brief else 2, damage)  # what was printed tells of few bits, so they are soon tried
    for mistakes, where in kinds:
        some = list(mistakes)
        tried += len(some)
        for lab in labs:
            voices = _listen(lab, some, where)
            heard = [v.hypothesis for v in voices if v.nats > HEARD]
            some = [v.hypothesis for v in voices if v.nats <= HEARD]
            for bench in labs:
                spoken = _speaking(bench, heard, where, places, tried)
                if spoken and (not best or spoken[0].rest < best[0].rest):
                    best = spoken
                if best and best[0].exact:
                    return best
    return best


def _speaking(
    lab: Lab, heard: Sequence[Hypothesis], first: Sequence[Place], places: Sequence[Place], tried: int
) -> list[Voice]:
    """Those of the mistakes that speak everywhere, a solved parameter solved once more under this rule."""
    heard = [_solved_here(lab, h, first) for h in heard]
    near = _listen(lab, heard, first)
    voices = (replace(v, near=n.left) for v, n in zip(_listen(lab, heard, places), near, strict=True))
    return sorted((v for v in voices if v.speaks(tried)), key=_rank)


def _solved_here(lab: Lab, h: Hypothesis, first: Sequence[Place]) -> Hypothesis:
    search = h.variant.search
    if search is None or search.whole or search.nominal or not search.points or h.p in search.common:
        return h
    place = next((p for p in first if lab.touches(h.variant, p.unit, h.p)), None)
    unit = None if place is None else place.near(lab, h)
    return h if unit is None else search_parameter(lab, h, unit, around=AROUND)[0]


def _damage(lab: Lab, places: Sequence[Place]) -> Iterator[Hypothesis]:
    off = {p: max(_off(lab, p, name) for name in p.targets) for p in places}
    for place in places:
        if place.targets == (place.unit.target,):
            yield from damaged(lab, place.unit, bent=off[place] == max(off.values()))
        else:
            yield from glimpsed(lab, place.unit, place.targets)


def _off(lab: Lab, place: Place, name: str) -> float:
    """By how much (squared) the definition is off at a node, over what is no evidence."""
    groups = _groups(lab, name, lab.base(place.unit)[name])
    return np.inf if groups is None else _off_in(groups)


def _off_in(groups: Groups) -> float:
    return max(float(np.mean(e * e) / v) for e, v in zip(groups.errors, groups.floors, strict=True))


def _rank(voice: Voice) -> tuple[float, ...]:
    h = voice.hypothesis
    odd = h.variant.search is not None and h.p not in h.variant.search.common
    return (-round(voice.nats / ALIKE_NATS), odd, h.fault in SECOND_NAMES, -voice.nats)


def _run(lab: Lab, diff: Diff) -> Place:
    """Nothing was dumped whole: what was observed is reached from the tokens on."""
    order = {node.name: i for i, node in enumerate(lab.graph)}
    names = sorted((n.name for n in diff.nodes), key=order.__getitem__)
    return Place(Unit(names[-1], tuple(list(order)[: order[names[-1]] + 1])), tuple(names))


def _mistakes(lab: Lab, places: Sequence[Place], *, wide: bool = True) -> Iterator[Hypothesis]:
    """Every mistake that touches something observed, families with each of their common parameters. Of an engine that
    is not `wide` the nodes have told that narrow types are its arithmetic."""
    everything = Unit(places[-1].unit.target, tuple(dict.fromkeys(n for p in places for n in p.unit.segment)))
    long = min(len(p.unit.segment) for p in places) >= LONG_RUN  # many hypotheses are runs of many layers
    for h in hypotheses(lab, everything, decode=False):
        if (long and FAULTS[h.fault].stage not in _SMALL) or (not wide and Kind.PRECISION in FAULTS[h.fault].kinds):
            continue
        if h.variant.search is None:
            yield h
        else:
            yield from (replace(h, p=p) for p in h.variant.search.common if lab.touches(h.variant, everything, p))
    yield from _torn(lab, everything)


def _torn(lab: Lab, unit: Unit) -> Iterator[Hypothesis]:
    """The end of the file is missing. That is small where the noise of a router's choices covers it."""
    nodes = [lab.graph[name] for name in unit.segment]
    for variant in FAULTS[TORN].variants:
        ends = variant.search.scan(lab.context, nodes) if variant.search and variant.search.scan else ()
        yield from (Hypothesis(TORN, variant, p) for p in ends[:A_LAYERS_WORTH])


def _solved(lab: Lab, places: Sequence[Place], first: Sequence[Place]) -> Iterator[Hypothesis]:
    """Families with the parameter that fits the first place they touch best."""
    for fault in FAULTS.values():
        for variant in fault.variants:
            search = variant.search
            if search is None or not search.points or Kind.WEIGHTS in fault.kinds:
                continue
            grid = search.grid()
            tries = [(p, place) for p in (*grid[len(grid) // 2 :][:1], *grid[:1]) for place in first]
            found_at = next(((p, place) for p, place in tries if lab.touches(variant, place.unit, p)), None)
            if found_at is None:
                continue
            h = Hypothesis(fault.id, variant, found_at[0])
            unit = found_at[1].near(lab, h)
            if unit is None:
                continue
            found, _ = search_parameter(lab, h, unit)
            if found.p not in search.common and lab.touches(variant, unit, found.p):
                yield found


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
            if not change.any():
                continue
            a, b = float(np.mean(e * e)), float(np.mean(rest * rest))
            gain = 0.5 * n * float(np.log((a + v) / (b + v)))
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

    def voice(self, h: Hypothesis, rule: Rounding) -> Voice:
        before, after = (float(np.sqrt(np.mean(m))) if m else 0.0 for m in (self.before, self.after))
        share = self.better / self.touched if self.touched else 0.0
        coefficient = self.dots / self.squares if self.squares else 0.0
        nats = self.nats if self.possible else -np.inf
        usual, left = (float(np.sqrt(np.median(m))) if m else 0.0 for m in (self.before, self.after))
        return Voice(h, nats, share, coefficient, before, after, left, usual, self.touched, tuple(self.nodes), rule)


def _listen(lab: Lab, mistakes: Sequence[Hypothesis], places: Sequence[Place]) -> list[Voice]:
    """Place after place, so that the definition's values of one are computed once for all hypotheses."""
    tallies = [_Tally() for _ in mistakes]
    for place in places:
        plain: dict[str, Groups | None] = {}
        for h, tally in zip(mistakes, tallies, strict=True):
            if not tally.possible or not lab.touches(h.variant, place.unit, h.p):
                continue
            targets = place.heard(lab, h)
            values = lab.predict(h, place.unit, targets)
            for name in targets if values is not None else ():
                if name not in plain:
                    plain[name] = _groups(lab, name, lab.base(place.unit)[name], lab.rule)
                assert values is not None
                before, after = plain[name], _groups(lab, name, values[name], lab.rule)
                if before is None or after is None:
                    tally.possible = False
                    break
                tally.add(name, before, after)
    return [t.voice(h, lab.rule) for h, t in zip(mistakes, tallies, strict=True)]


def _groups(lab: Lab, name: str, value: Array, edges: Rounding = EXACT) -> Groups | None:
    """What was observed of a node less a value, row by row; None where the value is not finite or of another shape.
    Beyond a step of what `edges` stores, where a hypothesis must not gain by a value that was rounded the other way."""
    graph, axis = lab.graph, token_axis(lab.graph, name)
    if value.dtype.kind != "f" or value.shape[axis] < len(lab.dump.tokens):
        return None
    level = lab.evidence[name].noise_carried if lab.terms.carried else lab.evidence[name].noise_local
    hide = lab.hidden if graph[name].op == "kq" else None
    errors: list[Array] = []
    counts: list[float] = []
    floors: list[float] = []
    for obs in lab.dump.by_name[name]:
        error, expected = deviation(obs, value, axis, lab.model.hparams.n_embd_head, hide)
        if not np.isfinite(error).all():
            return None
        start, stop = obs.rows or (0, level.rms.shape[1])
        noise = level.rms[0, start:stop]
        if obs.kind == "values":
            for row, x, one in zip(by_rows(error, axis), by_rows(expected, axis), noise, strict=True):
                size = float(np.sqrt(np.mean(x * x)))
                errors.append(_beyond_an_edge(row, x, edges))
                counts.append(min(row.size, MOST_OF_A_ROW))
                floors.append((FLOOR_UNITS * (one + UNIT["f32"] * size)) ** 2 + 1e-60)
            continue
        printed = np.asarray(obs.printed or 0.0, np.float64)
        size = float(np.sqrt(np.mean(np.square(by_rows(value, axis)[start:stop]))))
        spread = float(noise.max()) + UNIT["f32"] * size
        if obs.kind in STATISTICS:
            spread *= 4.0 if obs.kind in ("min", "max", "absmax", "norm") else 1.0
        errors.append(np.sign(error) * np.maximum(np.abs(error) - printed, 0))
        counts.append(error.size)
        floors.append((FLOOR_UNITS * spread) ** 2 + float(np.mean(printed**2)) / 3 + 1e-60)
    return Groups(tuple(errors), np.array(counts), np.array(floors))


def _beyond_an_edge(error: Array, value: Array, rule: Rounding) -> Array:
    """In an engine that stores narrow numbers, a value on an edge may be rounded the other way: a step says nothing."""
    if not rule.storage:
        return error
    return np.asarray(np.sign(error) * np.maximum(np.abs(error) - 2 * UNIT[rule.storage] * np.abs(value), 0))


def _answer(voices: Sequence[Voice], diff: Diff) -> Diagnosis:
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
        fitted=h.variant.search is not None and h.p not in h.variant.search.common,
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
