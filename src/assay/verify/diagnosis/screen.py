"""Ruling hypotheses out cheaply, where a trial means running the whole model or a large layer.

Both shortcuts are exact. A fault *would have shown earlier* if it changes a node before the target that was observed
and found right. And a run is *causal*: the first rows of the logits depend on the first tokens alone, so a hypothesis
that fails on them in float32 fails. A fault that lets a token see later ones is detected by computing the first node
that it changes both ways, and is then run in full.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import evaluate
from assay.graph import split
from assay.verify.diagnosis.fault_trials import NEVER, EvidenceUnit, FaultTrials, Hypothesis, ObservationFit
from assay.verify.diagnosis.parameter import search_parameter
from assay.verify.diagnosis.run_cache import Narrow, narrowed
from assay.verify.faults import FAULTS, Context, FaultKind
from assay.verify.judge.compare_nodes import NodeVerdict
from assay.verify.judge.noise import Level
from assay.verify.thresholds import ACCEPT, AROUND, HEAD, LARGE_LAYER, LONG_RUN, ROUGH, RULED_OUT, SMALL_SEGMENT

Array = NDArray[Any]


class Screen:
    """Trials of hypotheses about one unit, with cheap tests before the full run."""

    def __init__(self, trials: FaultTrials, unit: EvidenceUnit) -> None:
        self.trials, self.unit = trials, unit

    def fit(self, h: Hypothesis, most: float = np.inf) -> ObservationFit:
        """The observations against a hypothesis; its noise does not matter where it leaves `most` or more."""
        if self._shown_earlier(h) or self._fails_at_once(h):
            return NEVER
        rough = self.narrow.fit(h, self.unit) if self.narrow is not None else None
        return rough if rough is not None and not self._possible(rough) else self.trials.fit(h, self.unit, most)

    def search(self, h: Hypothesis, *, deep: bool) -> tuple[Hypothesis, ObservationFit]:
        """The best member of a family. A scan is done on the first rows where they are wrong, then refined on all."""
        if not deep or not self._telling_head:
            return search_parameter(self.trials, h, self.unit, self.fit, deep=deep)
        head = self.head
        assert head is not None
        best, short = search_parameter(head, h, self.unit, lambda x: head.fit(x, self.unit))
        if not self._causal(best):
            return search_parameter(self.trials, h, self.unit, self.fit)
        if not self._possible(short):
            return best, NEVER
        full = self.trials.fit(best, self.unit)
        if full.explained or best.variant.search is None or best.variant.search.whole:
            return best, full
        return search_parameter(self.trials, best, self.unit, around=AROUND)

    # -- it would have shown earlier -------------------------------------------------------------------------------

    def _shown_earlier(self, h: Hypothesis) -> bool:
        trials, unit = self.narrow or self.trials, self.unit
        if not self._observed_right:
            return False
        changed = trials.changed(h, unit, unit.target)
        first = next((name for name in unit.segment if name in changed and name in trials.dump.by_name), None)
        if first not in self._observed_right:
            return False
        values = trials.predict(h, unit, [first])
        return values is None or trials.after(unit, first, values[first]).ratio > RULED_OUT * ACCEPT

    @cached_property
    def _observed_right(self) -> set[str]:
        """Right nodes before the target, in segments so long that the test is worth its cost."""
        segment = self.unit.segment
        on_the_way = set(segment[: segment.index(self.unit.target)])
        return (on_the_way & self.trials.right) if len(segment) >= LONG_RUN else set()

    # -- it fails on the first rows --------------------------------------------------------------------------------

    def _fails_at_once(self, h: Hypothesis) -> bool:
        return self.head is not None and not self._possible(self.head.fit(h, self.unit)) and self._causal(h)

    def _possible(self, fit: ObservationFit) -> bool:
        """May all rows be explained, if need be with a coarser arithmetic than the guessed one?"""
        trials = self.trials
        near = (
            trials.terms.guessed
            and not trials.terms.subtle
            and fit.residual < ROUGH * trials.before(self.unit).residual
        )
        return min(fit.ratio, *(fit.every if near else ()), np.inf) <= RULED_OUT * ACCEPT

    @cached_property
    def _telling_head(self) -> bool:
        return self.head is not None and not self.head.before(self.unit).explained

    @cached_property
    def right_at_first(self) -> bool:
        """Are the first rows what the definition gives?"""
        return self.head is not None and self.head.before(self.unit).exact

    @cached_property
    def head(self) -> FaultTrials | None:
        """The same question about the first rows of the run."""
        trials, target, segment = self.trials, self.unit.target, self.unit.segment
        seen = {name: trials.dump.values(name) for name in (target, *(self._inputs() - trials.given.keys()))}
        cheap = len(segment) < LONG_RUN and (len(segment) == 1 or trials.size(segment) < LARGE_LAYER)
        if cheap or trials.dump.given or (trials.dump.steps or (len(trials.dump.tokens),))[0] <= HEAD:
            return None
        cut = []
        for name, whole in seen.items():
            if whole is None:
                return None
            cut.append(replace(trials.dump.by_name[name][0], data=self._cut(name, whole), shape=None))
        dump = replace(
            trials.dump, tokens=trials.dump.tokens[:HEAD], positions=trials.dump.positions[:HEAD], steps=(HEAD,),
            observations=tuple(cut),
        )  # fmt: skip
        known = trials.evidence[target]
        local, carried = (_first_rows(level) for level in (known.noise_local, known.noise_carried))
        node = NodeVerdict(target, "wrong", None, None, replace(known, noise_local=local, noise_carried=carried))
        diff = replace(trials.diff, nodes=(node,))
        return FaultTrials(trials.model, dump, diff, self._weights, trials.terms, budget=trials.budget)

    @cached_property
    def long(self) -> bool:
        """Is every trial a run of many layers?"""
        return self.head is not None and len(self.unit.segment) >= LONG_RUN

    @cached_property
    def narrow(self) -> FaultTrials | None:
        """The same question in float32, which takes half the time, where a trial is more than a few small products."""
        if self.head is not None:
            return self.trials.with_weights(self._weights)
        segment = self.unit.segment[: self.unit.segment.index(self.unit.target) + 1]
        large = self.trials.ran and self.trials.size(segment) > SMALL_SEGMENT
        return self.trials.in_float32(self._weights) if large else None

    @cached_property
    def _weights(self) -> Narrow:
        return narrowed(self.trials.weights)

    def _inputs(self) -> set[str]:
        inside = set(self.unit.segment)
        return {i for name in inside for i in self.trials.graph[name].inputs} - inside

    def _cut(self, name: str, value: Array) -> Array:
        """The rows (and keys) of the first tokens."""
        shape = self.trials.graph.shapes.get(name, ("T",))
        return value[tuple(slice(0, HEAD) if isinstance(d, str) else slice(None) for d in shape)]

    def passes(self, h: Hypothesis) -> bool:
        """Do the first rows leave the hypothesis possible under some rounding rule? Rules differ by less than the
        deviation, so a hypothesis that is off by much more is ruled out."""
        if self.head is None:
            return True
        left, before = self.head.fit(h, self.unit).residual, self.head.before(self.unit).residual
        return left <= RULED_OUT**2 * before or not self._causal(h)

    def _causal(self, h: Hypothesis) -> bool:
        """Are the first rows of the nodes it touches, one of each kind, the same when computed alone?"""
        if FaultKind.WEIGHTS in FAULTS[h.fault].kinds:  # weights are the same for all rows
            return True
        trials, base = self.trials, self.trials.base(self.unit)
        short, seen = Context(trials.model, (HEAD,)), set[str]()
        for name in self.unit.segment:
            node = trials.graph[name]
            whole, part = (h.variant.at(context, node, h.p) for context in (trials.context, short))
            if whole is None or split(name)[0] in seen:
                continue
            seen.add(split(name)[0])
            if part is None:
                return False
            values = []
            for change, cut in ((whole, False), (part, True)):
                if any(i not in base and i not in trials.theirs for i in change.node.inputs):
                    return True  # it reads a value that the dump does not give: no trial can be made
                inputs = [(i, base[i] if i in base else trials.theirs[i]) for i in change.node.inputs]
                operands = [self._cut(i, x) if cut else x for i, x in inputs]
                with np.errstate(all="ignore"):
                    values.append(evaluate(change.node, operands, trials.weights, function=change.function))
            if not np.allclose(self._cut(name, values[0]), values[1], rtol=1e-6, atol=0, equal_nan=True):
                return False
        return True


def _first_rows(level: Level) -> Level:
    return Level(level.rms[:, :HEAD], level.top[:, :HEAD])
