"""By which rule an engine rounds, as far as its values tell; and whether the rule leaves anything to explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile

import numpy as np

from assay.graph import split
from assay.verify.diagnosis.evidence_groups import Groups, Place, gains, groups_of, off_in
from assay.verify.diagnosis.fault_trials import FaultTrials
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.compare_nodes import Diff
from assay.verify.judge.rounding import EXACT, roundings
from assay.verify.thresholds import (
    AN_EDGE,
    CLEARER_NATS,
    FEW_EDGES,
    FLOAT32_LEFT,
    ON_AN_EDGE,
    RULE_NATS,
    SPEAKS,
)


def rules(trials: FaultTrials, diff: Diff, first: Sequence[Place]) -> list[FaultTrials]:
    """The bench under each rule of rounding that may be the engine's, the likeliest first: none, unless another is
    clearly likelier. A rule stays possible while its roundings are smaller than what is there to explain."""
    most = ARITHMETICS[-1] if diff.verdict == "wrong" else diff.arithmetic
    trials_by_rule = [trials.rounding(rule) for rule in roundings(most)]
    plain = [_definition(bench, [p.early() for p in first]) for bench in trials_by_rule]
    nats, exact = [], []
    for groups in plain:
        both = ((before, groups.get(name)) for name, before in plain[0].items())
        heard = sum(sum(gains(a, b)) for a, b in both if a is not None and b is not None)
        nats.append(heard if np.isfinite(heard) else -np.inf)  # values too large to be squared tell nothing of a rule
        exact.append(len(_exactly(groups)))
    values = sum(float(groups.counts.sum()) for groups in plain[0].values() if groups is not None)
    plainest = nats[0] > max(nats) - max(SPEAKS, CLEARER_NATS * values)
    # A fault hides the rule in all that follows from it: the right one is exact up to there.
    possible = [
        i
        for i in range(len(trials_by_rule))
        if nats[i] > max(nats) - max(SPEAKS, RULE_NATS * values) or exact[i] == max(exact) > exact[0]
    ] or [0]
    return [trials_by_rule[i] for i in sorted(possible, key=lambda i: (i > 0 or not plainest, -nats[i]))]


def _exactly(groups: Mapping[str, Groups | None]) -> list[str]:
    """The nodes from the first on that are what the rule gives, to float32's noise."""
    return list(takewhile(lambda n: (g := groups[n]) is not None and off_in(g) <= FLOAT32_LEFT**2, groups))


def allowed(trials: FaultTrials, diff: Diff, first: Sequence[Place]) -> bool:
    """Is the engine one that rounds by this rule, and nothing more than its noise? In the first layers every operation
    is what the rule gives, and then no value is off by more than an arithmetic as coarse as the rule may be."""
    coarse = [a.name for a in ARITHMETICS].index(trials.rule.as_coarse)
    if trials.rule == EXACT or any(n.evidence.local[coarse] > 1 for n in diff.nodes):
        return False
    proven = {split(name)[0] for name in _exactly(_definition(trials, [p.early() for p in first]))}
    return all(role in proven for role, layer in (split(n.name) for n in diff.nodes) if layer is not None)


def _definition(trials: FaultTrials, places: Sequence[Place]) -> dict[str, Groups | None]:
    """What the definition leaves at every place."""
    return {name: groups_of(trials, name, trials.base(p.unit)[name]) for p in places for name in p.targets}


def nothing_left(trials: FaultTrials, places: Sequence[Place], limit: float) -> bool:
    """Is everything the definition under this rule, to float32's noise? A few values of a row may lie on an edge, but
    not a whole row, nor a feature in most rows. Of a large model some rows do, where an operand fell the other way."""
    edges: Counter[int] = Counter()  # by token
    for name, groups in _definition(trials, places).items():
        if groups is None:
            return False
        left = [e * e / v for e, v in zip(groups.errors, groups.floors, strict=True)]
        off = [i for i, row in enumerate(left) if np.quantile(row, ON_AN_EDGE) > limit**2]
        if off and not _fell_otherwise(trials, name, groups, off):
            return False
        edges.update(off)
        if len({row.size for row in left}) == 1 and len(left) > 2 and np.median(left, axis=0).max() > limit**2:
            return False
    return all(n <= FEW_EDGES * len(places) for n in edges.values())


def _fell_otherwise(trials: FaultTrials, name: str, groups: Groups, off: Sequence[int]) -> bool:
    """Are these rows off as an operand's rounding makes them that fell the other way: few, and far less than all the
    roundings of the rule together?"""
    tokens = len(trials.dump.tokens)
    if trials.terms.carried or len(groups.errors) != tokens or len(off) > FEW_EDGES * tokens:
        return False
    rule = [a.name for a in ARITHMETICS].index(trials.rule.as_coarse)
    noise = trials.evidence[name].noise_local.rms[rule]
    return all(float(np.sqrt(np.mean(np.square(groups.errors[i])))) <= AN_EDGE * noise[i] for i in off)
