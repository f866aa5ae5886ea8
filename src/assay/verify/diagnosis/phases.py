"""Which calls a deviation shows in: the prompt's, the decode steps', or both.

Engines have kernels for a prompt and others for one token. A mistake in one of them leaves the other's rows right.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from assay.verify.diagnosis.fault_trials import EvidenceUnit, FaultTrials
from assay.verify.dumps.observation import Observation, token_axis

_QUIET = 1e-2  # of the largest error in the other rows


class Phase(StrEnum):
    """The rows of a node that are wrong."""

    BOTH = "in all calls"
    DECODE = "in the decode steps only"
    PROMPT = "in the prompt only"
    UNSEEN = "in the decode steps, and no row of the prompt was observed"


def phase(trials: FaultTrials, unit: EvidenceUnit) -> Phase:
    """The calls in which the unit's target is wrong."""
    if len(trials.dump.steps) < 2:
        return Phase.BOTH
    whole = trials.dump.values(unit.target)
    if whole is None:
        return _of_prints(trials, unit)
    own, axis = trials.base(unit)[unit.target], token_axis(trials.graph, unit.target)
    if own.shape != whole.shape or own.dtype.kind != "f":
        return Phase.BOTH
    error = np.moveaxis(np.abs(whole - own), axis, 0).reshape(len(trials.dump.tokens), -1).max(1)
    prompt, decode = (float(part.max()) for part in np.split(error, [trials.dump.steps[0]]))
    if prompt < _QUIET * decode:
        return Phase.DECODE
    return Phase.PROMPT if decode < _QUIET * prompt else Phase.BOTH


def _of_prints(trials: FaultTrials, unit: EvidenceUnit) -> Phase:
    """The same for printed values: each is of rows of one call."""
    end, own = trials.dump.steps[0], trials.base(unit)[unit.target]

    def right(later: bool) -> bool | None:
        """Are the printed values of these rows right? None where there are none."""

        def chosen(obs: Observation) -> bool:
            return obs.rows is not None and (obs.rows[0] >= end if later else obs.rows[1] <= end)

        if not any(map(chosen, trials.dump.by_name[unit.target])):
            return None
        return trials.compare(unit.target, own, only=chosen).explained

    prompt, decode = right(False), right(True)
    if decode is False:
        return {True: Phase.DECODE, None: Phase.UNSEEN, False: Phase.BOTH}[prompt]
    return Phase.PROMPT if prompt is False and decode else Phase.BOTH
