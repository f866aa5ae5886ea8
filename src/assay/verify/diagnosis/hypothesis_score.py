"""How well a fault predicts small deviations: the likelihood ratio of a hypothesis over the definition.

Let e be the observed value less the definition's, and d the change that the fault would have made. If the fault did not
happen, e does not depend on d, and e - d is larger than e on average. If it happened, e - d shrinks to the engine's
own noise. A group of values is a token's row of a node, or the printed values of one. The noise of a group is unknown,
so the logarithm of the likelihood ratio is

    sum over the groups of  n/2 · ln((mean e² + v) / (mean (e - d)² + v))

v is the noise floor of the group: the square of float32's own noise there, and of the rounding of the print. Where both
means are far below v, the logarithm is near 0, so deviations of that size are no evidence. n is the number of values in
the group, but at most MOST_OF_A_ROW, because the values of one row are not independent. Groups that the fault does not
change add nothing.

`score_all` computes the scores; `likelihood` chooses what is scored, and where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from assay.system.stages import PERCENT
from assay.verify.diagnosis.damage import DAMAGE
from assay.verify.diagnosis.evidence_groups import EvidencePlace, Groups, groups_of, mean_square
from assay.verify.diagnosis.fault_trials import FaultTrials, Hypothesis
from assay.verify.diagnosis.stable_predictions import moved_by
from assay.verify.faults import FAULTS, FaultKind
from assay.verify.judge.rounding import EXACT, Rounding
from assay.verify.thresholds import (
    COEFFICIENT,
    DAMAGE_LEFT,
    DAMAGED_ROWS,
    FIRM_LEFT,
    FIRM_ROWS,
    FIRM_SHARE,
    FLOAT32_LEFT,
    HARDLY_LEFT,
    ITSELF,
    LEAVES,
    MOSTLY,
    PARAMETER_NATS,
    RULE_LEAVES,
    SIGNIFICANT_NATS,
)


@dataclass(frozen=True)
class HypothesisScore:
    """How much likelier the observations are with a fault than with the definition, and how much it leaves."""

    hypothesis: Hypothesis
    nats: float  # Logarithm of the likelihood ratio over the definition.
    better: float  # Share of the touched groups in which the fault leaves a smaller deviation.
    coefficient: float  # Multiple of the predicted change that fits the deviation best: about 1.
    before: float  # Deviation over the noise floor without the fault, as rms over the touched groups.
    after: float  # The same with the fault planted.
    left: float  # As `after`, in the median group: a few values may lie at a rounding edge.
    usual: float  # As `before`, in the median group.
    touched: int  # Groups in which the fault shows.
    nodes: tuple[str, ...]  # Observed nodes where the fault leaves a smaller deviation.
    rule: Rounding = EXACT
    near: float = np.inf  # as `left`, where the fault shows first: later nodes accumulate other roundings
    stable: bool = False  # nothing is left wherever the prediction does not depend on the edge of a rounding step

    @property
    def least_left(self) -> float:
        """The deviation that is left, or the one that is left where the fault shows first if that is smaller."""
        return min(self.left, self.near)

    @property
    def exact(self) -> bool:
        return self.stable or self.least_left <= FLOAT32_LEFT

    @property
    def leaves_much(self) -> bool:
        """Is most of the deviation left, at most places, although float32's noise would be less?"""
        return not self.exact and self.after > RULE_LEAVES * self.before and self.left > RULE_LEAVES * self.usual

    @property
    def stays_explained(self) -> bool:
        """Is no more left than the predictions move when float32 errors are drawn anew?"""
        return self.after <= max(FIRM_LEFT, FIRM_SHARE * self.before) and self.touched >= FIRM_ROWS

    @property
    def parameter_unusual(self) -> bool:
        """Was its parameter solved for, and is it a value that people do not use?"""
        search = self.hypothesis.variant.search
        return search is not None and self.hypothesis.p not in search.common

    @property
    def own_change_shows(self) -> bool:
        """With every rounding as in the definition: does the fault's own change show in the deviation?"""
        return ITSELF <= self.coefficient <= 1 / ITSELF

    def is_significant(self, tried: int) -> bool:
        """Is the score beyond chance, for this number of hypotheses tried?"""
        fitted = self.hypothesis.variant.search is not None
        enough = self.nats > SIGNIFICANT_NATS + np.log(max(tried, 1)) + PARAMETER_NATS * fitted
        low, high = COEFFICIENT
        if self.hypothesis.fault == DAMAGE and self.left > max(FLOAT32_LEFT, DAMAGE_LEFT * self.before):
            return False  # one of thousands of bits fits any deviation roughly; the right one leaves nothing
        if self.hypothesis.fault == DAMAGE and self.rule != EXACT and self.touched < DAMAGED_ROWS:
            return False  # a single value that was rounded the other way looks the same
        if is_of_precision(self.hypothesis) and self.left > max(FLOAT32_LEFT, HARDLY_LEFT * self.before):
            return False  # a coarse engine rounds in this place too, which is no fault
        if self.after > LEAVES * self.before:
            return False  # nearly all of the deviation is left, so the fault is not its cause
        if self.before <= FLOAT32_LEFT and self.after > HARDLY_LEFT * self.before:
            return False  # float32's noise is not random either; a fault this small must leave nearly nothing
        much = [self.after > RULE_LEAVES * self.before, self.left > RULE_LEAVES * self.usual]
        if self.rule != EXACT and (all(much) or (any(much) and self.parameter_unusual)):
            return False  # other roundings of the same rule are a little nearer by luck; a solved parameter finds them
        if all(much) and self.parameter_unusual:
            return False  # the engine rounds by a rule that is not known: a solved parameter is nearer by luck
        return bool(enough and self.better >= MOSTLY and low <= self.coefficient <= high)


def is_of_precision(h: Hypothesis) -> bool:
    """Is it a narrow type in one place?"""
    return FaultKind.PRECISION in FAULTS[h.fault].kinds


@dataclass
class _Tally:
    """The likelihood ratio of one hypothesis, summed place by place."""

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
            a, b = mean_square(e), mean_square(rest)
            gain = 0.5 * min(n, moved) * float(np.log((a + v) / (b + v)))
            gained += gain
            if mean_square(change) > v:  # else the fault does not show in this group
                self.touched += 1
                self.better += gain > 0
                self.dots += float(np.sum(e * change)) / (b + v)
                self.squares += float(np.sum(change * change)) / (b + v)
                self.before.append(a / v)
                self.after.append(b / v)
        self.nats += gained
        if gained > 1:
            self.nodes.append(name)

    def score(self, h: Hypothesis, rule: Rounding) -> HypothesisScore:
        before, after = (float(np.sqrt(np.mean(m))) if m else 0.0 for m in (self.before, self.after))
        share = self.better / self.touched if self.touched else 0.0
        coefficient = self.dots / self.squares if self.squares else 0.0
        nats = self.nats if self.possible else -np.inf
        usual, left = (float(np.sqrt(np.median(m))) if m else 0.0 for m in (self.before, self.after))
        return HypothesisScore(
            h, nats, share, coefficient, before, after, left, usual, self.touched, tuple(self.nodes), rule
        )


def score_all(
    trials: FaultTrials,
    mistakes: Sequence[Hypothesis],
    places: Sequence[EvidencePlace],
    unrounded: FaultTrials | None = None,
    draws: Sequence[FaultTrials] = (),
) -> list[HypothesisScore]:
    """The scores of several hypotheses. Places are the outer loop, so that the definition's values of a place are
    computed once for all hypotheses.

    With `unrounded` trials every rounding falls as in the definition. A fault then gains by its own change only. It
    does not gain by a value at a rounding edge, which any other change would have moved as well. With `draws` (shaken
    trials), values that move from draw to draw are no evidence.
    """
    tallies = [_Tally() for _ in mistakes]
    pairs = list(zip(mistakes, tallies, strict=True))
    steps = trials.budget.each(range(len(places) * len(pairs)), "scoring mistakes smaller than noise", PERCENT)
    unscored = {place: len(pairs) for place in places}
    for place in places:
        plain: dict[str, Groups | None] = {}
        for (h, tally), _ in zip(pairs, steps, strict=False):
            unscored[place] -= 1
            if not tally.possible or not trials.touches(h.variant, place.unit, h.p):
                continue
            for targets in place.targets_of(trials, h):
                if tally.nats < -SIGNIFICANT_NATS:
                    break  # it would have shown in earlier nodes
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
    for tally in tallies[len(tallies) - max(unscored.values(), default=0) :]:
        tally.possible = False  # the time was up before it was scored in all places
    return [t.score(h, trials.rule) for h, t in zip(mistakes, tallies, strict=True)]
