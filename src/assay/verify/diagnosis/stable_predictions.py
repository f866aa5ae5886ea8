"""How far a prediction moves under small random errors. Only predictions that hardly move count as evidence.

Some engines round by a rule, for example every result to float16. Where a value lies halfway between two float16
numbers, its last float32 digit decides which of them it becomes, and all later values follow. assay cannot know that
digit, because it depends on the order in which the engine sums.

So each trial is repeated with random errors of float32's size added to every result (`FaultTrials.shaken`), DRAWS
times. The largest square of a prediction's change is added to its noise floor (`moved_by`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.verify.diagnosis.evidence_groups import EvidencePlace, Groups, groups_of, off_in
from assay.verify.diagnosis.fault_trials import FaultTrials
from assay.verify.judge.rounding import EXACT
from assay.verify.thresholds import DRAWS

Array = NDArray[Any]
_TOO_MUCH = 1e300


def with_off_nodes(trials: FaultTrials, place: EvidencePlace, limit: float) -> EvidencePlace:
    """The place with the nodes at which the definition is off by more than an edge of the rounding rule explains."""
    base, benches = trials.base(place.unit), shaken_trials(trials) if trials.rule != EXACT else []
    shaken = [bench.base(place.unit) for bench in benches]
    off = set()
    for name in place.targets:
        groups, still = (groups_of(trials, name, base[name], edges) for edges in (EXACT, trials.rule))
        if groups is None or still is None or off_in(groups, moved_by(trials, name, still, shaken)) > limit**2:
            off.add(name)
    return replace(place, off=frozenset(off))


def shaken_trials(trials: FaultTrials) -> list[FaultTrials]:
    return [trials.shaken(i + 1) for i in range(DRAWS)]


def moved_by(trials: FaultTrials, name: str, still: Groups, draws: Sequence[Mapping[str, Array]]) -> Array:
    """The largest squared move of each group in one of the draws."""
    most = np.zeros(len(still.floors))
    for values in draws:
        groups = groups_of(trials, name, values[name], trials.rule)
        if groups is None:
            return np.full(len(most), _TOO_MUCH)
        most = np.maximum(most, [np.mean((a - b) ** 2) for a, b in zip(groups.errors, still.errors, strict=True)])
    return most
