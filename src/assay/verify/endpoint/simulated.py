"""Predictions of the log-probabilities that a server gives: by the definition, and with a fault planted in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.models import Model
from assay.verify.diagnosis.candidates import confidence
from assay.verify.diagnosis.fault_trials import EvidenceUnit, FaultTrials, Hypothesis, ObservationFit
from assay.verify.diagnosis.result import Cause
from assay.verify.dumps.observation import Dump, inputs_of
from assay.verify.endpoint.client import ServerReply
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.compare_nodes import Diff
from assay.verify.judge.noise import NoiseRuns
from assay.verify.judge.run_inputs import run_inputs
from assay.verify.judge.shared_pass import Together, sweep

Array = NDArray[Any]


@dataclass(frozen=True)
class SeenDistribution:
    """A place in a sequence of known tokens where a distribution was seen: after `row` tokens have been read."""

    row: int
    scores: dict[int, float]


@dataclass(frozen=True)
class Case:
    """A sequence that was fed in steps, and the distributions that were seen."""

    name: str
    tokens: tuple[int, ...]
    steps: tuple[int, ...]
    seen: tuple[SeenDistribution, ...]


class SimulatedServer:
    """A server simulated on the reference: right, or with a fault planted."""

    def __init__(self, model: Model, weights: Weights | None = None) -> None:
        self.model, self.weights = model, weights or Weights(model.file)
        self.everything = tuple(node.name for node in model.graph)
        self._trials: dict[tuple[int, ...], FaultTrials] = {}

    def trials(self, case: Case) -> FaultTrials:
        if case.tokens not in self._trials:
            dump = Dump("", case.tokens, tuple(range(len(case.tokens))), case.steps)
            self._trials[case.tokens] = FaultTrials(self.model, dump, Diff("", "", ARITHMETICS[0], ()), self.weights)
        return self._trials[case.tokens]

    def logits(self, tokens: Sequence[int]) -> Array:
        """The definition's logits, for all rows."""
        output = self.model.graph.output
        return interpret(self.model.graph, self.weights, inputs_of(tokens, range(len(tokens))), [output])[output]

    def faulty(self, case: Case, h: Hypothesis) -> Array | None:
        """The logits with a fault in the run; None where the fault cannot be planted in it."""
        output = self.model.graph.output
        values = self.trials(case).predict(h, EvidenceUnit(output, self.everything))
        return None if values is None else values[output]

    def noise(self, tokens: Sequence[int]) -> float:
        """Standard deviation of a logit under the coarsest arithmetic."""
        runs = NoiseRuns(run_inputs(self.model, tokens, range(len(tokens))))
        sweep(self.model, [Together([runs.visit])], "measuring the noise of arithmetic")
        return float(runs.levels[self.model.graph.output].rms.max())


def distance(seen: Sequence[SeenDistribution], logits: Array, rows: Sequence[int] | None = None) -> ObservationFit:
    """Root mean square difference of log-probabilities, in nats."""
    errors: list[float] = []
    for place in seen:
        row = place.row - 1 if rows is None else rows[place.row - 1]
        if not 0 <= row < len(logits):
            continue
        z = logits[row].astype(np.float64)
        z = z - z.max()
        z = z - np.log(np.sum(np.exp(z)))
        errors += [float(z[i] - value) for i, value in place.scores.items() if value > -30]
    if not errors or not np.isfinite(errors).all():
        return ObservationFit(np.inf, np.inf, len(errors))
    e = np.array(errors)
    return ObservationFit(float(np.sqrt(np.mean(e**2))), float(np.sum(e**2)), len(e))


def case_of(name: str, ids: Sequence[int], reply: ServerReply, scored: ServerReply | None) -> Case:
    """The prompt and the generated tokens, with every distribution that was seen."""
    seen = []
    if scored is not None:
        seen = [
            SeenDistribution(i, dict(s.scores)) for i, s in enumerate(scored.steps[: scored.n_prompt]) if i and s.scores
        ]
    tokens = list(ids)
    for step in reply.steps[reply.n_prompt :]:
        if step.scores:
            seen.append(SeenDistribution(len(tokens), dict(step.scores)))
        if step.id is None:
            break
        tokens.append(step.id)
    steps = (len(ids), *(1,) * (len(tokens) - len(ids)))
    return Case(name, tuple(tokens), steps, tuple(seen))


def cause_of(
    fault: str, node: str, how: str, before: ObservationFit, after: ObservationFit, tried: int, allowed: float = 1.0
) -> Cause:
    scaled = (ObservationFit(f.ratio / allowed, f.residual, f.count) for f in (before, after))
    b, a = scaled
    return Cause(
        fault=fault,
        node=node,
        how=how,
        nodes=(node,),
        confidence=confidence(b, a, tried, False),
        explains=max(0.0, 1 - after.residual / max(before.residual, 1e-30)),
        equivalent=(),
        before=b.ratio,
        after=a.ratio,
    )
