"""The calls of a dump that does not say which tokens were fed together: may the wrong rows be those of decode steps?

An archive or a table has the rows of all calls, and often no word about the calls. A mistake of the decode steps alone
leaves every row of the prompt right. So the search is repeated with decode steps from a row on, under two conditions.
Nothing explains the values, and the first wrong node is right before that row and wrong from it on. The answer says so.

Touch this module to take other calls, such as a prompt in chunks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from assay.verify.diagnosis.fault_trials import EvidenceUnit, FaultTrials
from assay.verify.diagnosis.result import Diagnosis
from assay.verify.dumps.observation import Dump, Observation, token_axis
from assay.verify.judge.compare_nodes import NodeVerdict
from assay.verify.thresholds import CLOSE

TAKEN = (
    "the dump does not say which tokens were fed together; tokens from position {start} on were taken for decode "
    "steps, because the rows before it are right"
)


def with_decode_steps(trials: FaultTrials, first: NodeVerdict) -> Dump | None:
    """The dump with decode steps from the first wrong row on; None where its calls are known, or all rows are wrong."""
    dump = trials.dump
    if len(dump.steps) > 1 or dump.given or dump.states or trials.graph.state.per_sequence:
        return None
    right = _right_rows(trials, first)
    start = next((t for t, ok in enumerate(right) if ok is False), 0)
    if start < 2 or not any(right[:start]) or any(ok for ok in right[start:]):
        return None
    return replace(dump, steps=(start, *[1] * (len(dump.tokens) - start)))


def told(found: Diagnosis, dump: Dump) -> Diagnosis:
    """The answer of such a search, with a note about the calls."""
    return replace(found, notes=(TAKEN.format(start=dump.steps[0]), *found.notes))


def _right_rows(trials: FaultTrials, first: NodeVerdict) -> list[bool | None]:
    """For each token, is the node right there? None where it was not observed."""
    name, count = first.name, len(trials.dump.tokens)
    axis = token_axis(trials.graph, name)
    if not first.evidence.whole:
        trials = trials.from_tokens()
    unit = EvidenceUnit(name, tuple(first.evidence.segment))
    own = trials.base(unit)[name]
    if own.dtype.kind != "f" or own.shape[axis] != count:
        return []
    whole = trials.dump.values(name)
    if whole is not None and whole.shape == own.shape:
        error, size = (np.sqrt(np.mean(np.moveaxis(x, axis, 0).reshape(count, -1) ** 2, 1)) for x in (whole - own, own))
        return [bool(e <= CLOSE * s) for e, s in zip(error, size, strict=True)]

    def judged(t: int) -> bool | None:
        def here(obs: Observation) -> bool:
            return obs.rows == (t, t + 1)

        if not any(map(here, trials.dump.by_name[name])):
            return None
        return trials.compare(name, own, only=here).explained

    return [judged(t) for t in range(count)]
