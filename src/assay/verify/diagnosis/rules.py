"""Which rounding rule an engine follows, as far as its values tell, and whether the rule explains every deviation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile

import numpy as np

from assay.graph import split
from assay.verify.diagnosis.evidence_groups import EvidencePlace, Groups, gains, groups_of, off_in
from assay.verify.diagnosis.fault_trials import FaultTrials
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.compare_nodes import Diff
from assay.verify.judge.rounding import EXACT, roundings
from assay.verify.thresholds import (
    AN_EDGE,
    CLEARER_NATS,
    FAR_OFF,
    FEW_EDGES,
    FLOAT32_LEFT,
    ON_AN_EDGE,
    RULE_NATS,
    SIGNIFICANT_NATS,
)


def trials_under_rules(trials: FaultTrials, diff: Diff, first: Sequence[EvidencePlace]) -> list[FaultTrials]:
    """Trials under each rounding rule that may be the engine's, the likeliest first.

    Float32 comes first unless a rule is clearly likelier. A rule stays possible while its roundings are smaller than
    the deviation.
    """
    most = ARITHMETICS[-1] if diff.verdict == "wrong" else diff.arithmetic
    trials_by_rule = [trials.rounding(rule) for rule in roundings(most)]
    plain = [_definition(bench, [p.early() for p in first]) for bench in trials_by_rule]
    nats, exact = [], []
    for groups in plain:
        both = ((before, groups.get(name)) for name, before in plain[0].items())
        heard = sum(sum(gains(a, b)) for a, b in both if a is not None and b is not None)
        nats.append(
            heard if np.isfinite(heard) else -np.inf
        )  # values that overflow when squared say nothing about a rule
        exact.append(len(_exactly(groups)))
    values = sum(float(groups.counts.sum()) for groups in plain[0].values() if groups is not None)
    plainest = nats[0] > max(nats) - max(SIGNIFICANT_NATS, CLEARER_NATS * values)
    # A fault hides the rule in all nodes after it: the right rule is exact up to the fault.
    possible = [
        i
        for i in range(len(trials_by_rule))
        if nats[i] > max(nats) - max(SIGNIFICANT_NATS, RULE_NATS * values) or exact[i] == max(exact) > exact[0]
    ] or [0]
    return [trials_by_rule[i] for i in sorted(possible, key=lambda i: (i > 0 or not plainest, -nats[i]))]


def _exactly(groups: Mapping[str, Groups | None]) -> list[str]:
    """The leading nodes that match the rule to float32's noise."""
    return list(takewhile(lambda n: (g := groups[n]) is not None and off_in(g) <= FLOAT32_LEFT**2, groups))


def explains_dump(trials: FaultTrials, diff: Diff, first: Sequence[EvidencePlace]) -> bool:
    """Does the rounding rule explain the whole dump?

    Every kind of operation must match the rule in the first layers. After them no value may be off by more than the
    noise of an arithmetic as coarse as the rule.
    """
    coarse = [a.name for a in ARITHMETICS].index(trials.rule.as_coarse)
    if trials.rule == EXACT or any(n.evidence.local[coarse] > 1 for n in diff.nodes):
        return False
    proven = {split(name)[0] for name in _exactly(_definition(trials, [p.early() for p in first]))}
    return all(role in proven for role, layer in (split(n.name) for n in diff.nodes) if layer is not None)


def _definition(trials: FaultTrials, places: Sequence[EvidencePlace]) -> dict[str, Groups | None]:
    """The deviation from the definition at every place."""
    return {name: groups_of(trials, name, trials.base(p.unit)[name]) for p in places for name in p.targets}


def nothing_left(trials: FaultTrials, places: Sequence[EvidencePlace], limit: float) -> bool:
    """Does everything match the definition under this rule, to float32's noise?

    A few values of a row may lie at a rounding edge, but not a whole row, nor one feature in most rows. No value at an
    edge is off by far more than the rule's noise. In a large
    model some whole rows do, where an operand was rounded the other way.
    """
    edges: Counter[int] = Counter()  # by token
    rule = [a.name for a in ARITHMETICS].index(trials.rule.as_coarse)
    for name, groups in _definition(trials, places).items():
        if groups is None:
            return False
        left = [e * e / v for e, v in zip(groups.errors, groups.floors, strict=True)]
        seen = trials.evidence[name]
        noise = (seen.noise_carried if trials.terms.carried else seen.noise_local).rms[rule].max()
        if off_by_more(groups, FAR_OFF * float(noise)):
            return False
        off = [i for i, row in enumerate(left) if np.quantile(row, ON_AN_EDGE) > limit**2]
        if off and not _fell_otherwise(trials, name, groups, off):
            return False
        edges.update(off)
        if len({row.size for row in left}) == 1 and len(left) > 2 and np.median(left, axis=0).max() > limit**2:
            return False
    return all(n <= FEW_EDGES * len(places) for n in edges.values())


def off_by_more(groups: Groups, limit: float) -> bool:
    """Is a value off by more than the limit and the noise floor?"""
    far = (np.abs(e).max() > max(limit, FAR_OFF * v**0.5) for e, v in zip(groups.errors, groups.floors, strict=True))
    return any(map(bool, far))


def _fell_otherwise(trials: FaultTrials, name: str, groups: Groups, off: Sequence[int]) -> bool:
    """Can these rows be off because one operand was rounded the other way? They must be few, and off by far less than
    all roundings of the rule together."""
    tokens = len(trials.dump.tokens)
    if trials.terms.carried or len(groups.errors) != tokens or len(off) > FEW_EDGES * tokens:
        return False
    rule = [a.name for a in ARITHMETICS].index(trials.rule.as_coarse)
    noise = trials.evidence[name].noise_local.rms[rule]
    return all(float(np.sqrt(np.mean(np.square(groups.errors[i])))) <= AN_EDGE * noise[i] for i in off)
