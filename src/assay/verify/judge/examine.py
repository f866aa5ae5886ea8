"""One pass over the graph that gathers the evidence of a dump.

For every node the pass has three values: the definition's own run from the tokens, the definition on the dump's own
inputs, and the noise that each legitimate arithmetic makes there. `OwnInputs` gathers them in one `JudgedNode`, and
`evidence.measure_evidence` measures it. Touch this module to change what a node is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference.weights import Weights
from assay.graph import Node, Trait
from assay.verify.dumps.observation import Dump, Observation, patch, token_axis
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.evidence import Evidence, JudgedNode, RouterScores, deviation, measure_evidence, ratios
from assay.verify.judge.noise import Level, NoiseRuns, cache_path, load_levels, save_levels
from assay.verify.judge.routing import (
    Route,
    experts_used,
    keeps_first,
    masks_groups,
    ranking,
    ranks,
    routes,
    with_printed,
)
from assay.verify.judge.run_inputs import RunInputs, in_float64
from assay.verify.judge.shared_pass import Last, Together, evaluate_all, sweep
from assay.verify.judge.state_evidence import (
    KeptStates,
    StateEvidence,
    StatePath,
    StateWatch,
    state_evidence,
    wrong_from,
)
from assay.verify.thresholds import RUN

Array = NDArray[Any]
LevelOf = Callable[[str], Level]  # the noise of a node, by its name


@dataclass(frozen=True)
class Examined:
    """Findings of one pass over the graph."""

    evidence: list[Evidence]  # of every observed node, in the graph's order
    routes: list[Route]  # tokens that got other experts
    states: list[StateEvidence]  # of every observed state


def examine(inputs: RunInputs, dump: Dump, cache: bool = True) -> Examined:
    """The evidence of every observed node and state."""
    model = inputs.model
    path = cache_path(inputs)
    watch, carried_states, local_states = StateWatch(model.graph, dump), KeptStates(), KeptStates()
    # The noise of a state depends on where the calls end, so none is kept on disk.
    levels = load_levels(path, model) if cache and not dump.states else None
    one_step = NoiseRuns(inputs, dump.by_name, partial(watch.keep, local_states))
    # Where values were only printed, a step begins at the tokens too: its noise is that of the whole run.
    printed = not any(o.kind == "values" or masks_groups(model.graph[o.name]) for o in dump.observations)
    whole_run = None if levels or printed else NoiseRuns(inputs, watch=partial(watch.keep, carried_states))

    def carried(name: str) -> Level:
        if levels:
            return levels[name]
        return whole_run.levels[name] if whole_run else replace(one_step.levels[name], parts={})

    own = OwnInputs(inputs, dump, carried, one_step.levels.__getitem__, watch)
    with np.errstate(over="ignore", invalid="ignore"):  # a dump's values may be too large for some arithmetic
        noise = Together([run.visit for run in (whole_run, one_step) if run])
        sweep(model, [noise, own], "comparing with the definition")
    if cache and not levels:
        save_levels(path, (whole_run or one_step).levels)
    carried_states = carried_states if whole_run else local_states
    states = state_evidence(watch, dump, own.states, own.state_paths, carried_states, local_states)
    return Examined(own.evidence, own.routes, states)


class OwnInputs:
    """Visitor: the definition's run, and the recomputation of every observed node from the dump's own values."""

    def __init__(self, inputs: RunInputs, dump: Dump, carried: LevelOf, local: LevelOf, watch: StateWatch) -> None:
        self.watch, self.states = watch, KeptStates()
        self.state_paths: dict[str, StatePath] = {}
        self.inputs, self.graph, self.dump = inputs, inputs.model.graph, dump
        self.carried, self.local = carried, local
        self.truth: dict[str, Array] = dict(inputs.given)
        self.theirs: dict[str, Array] = dict(inputs.given)  # dumped where dumped, else recomputed from what was
        self.path: dict[str, tuple[str, ...]] = {}  # unobserved nodes that a value was derived through
        self.last = Last(self.graph)
        self.evidence: list[Evidence] = []
        self.scores: dict[str, tuple[str, RouterScores]] = {}  # of the routers, by the node that ranks them
        self.routes: list[Route] = []  # tokens that got, or may have got, other experts

    def visit(self, node: Node, weights: Weights) -> None:
        lanes = [in_float64([values[i] for i in node.inputs]) for values in (self.truth, self.theirs)]
        truth, own = evaluate_all(node, lanes, weights)
        self.watch.keep(self.states, node, lanes, weights)
        if ranks(node):
            score = node.inputs[0]
            noise = self.carried(score), self.local(score)
            used = experts_used(self.graph, node)
            self.scores[node.name] = score, RouterScores.of(self.truth[score], self.theirs[score], *noise, used)
        paths = [self.path[i] for i in node.inputs if i in self.path]
        segment = (*(paths[0] if len(paths) == 1 else dict.fromkeys(chain.from_iterable(paths))), node.name)
        observations = _observed(self.dump, node)
        if observations:
            judged = self._gathered(node, observations, segment, truth, own)
            self.evidence.append(measure_evidence(judged))
            theirs, complete = patch(observations, own, judged.axis), judged.whole
            if node.has(Trait.INDICES):
                theirs = with_printed(observations, theirs, int(self.graph.shapes[ranking(self.graph, node).name][-1]))
        else:
            theirs, complete = own, False
        if node.name in self.watch.keepers:
            first = wrong_from(theirs, own, self.local(node.name))
            self.state_paths[node.name] = StatePath(segment[:-1], self._given(segment), first)
        self.truth[node.name], self.theirs[node.name] = truth, theirs
        if not complete:
            self.path[node.name] = segment
        if keeps_first(node):
            self._note_routes(node, truth, theirs, bool(observations))
        self.last.forget(node, self.truth, self.theirs, self.path)

    def _gathered(
        self, node: Node, observations: tuple[Observation, ...], segment: tuple[str, ...], truth: Array, own: Array
    ) -> JudgedNode:
        return JudgedNode(
            node=node,
            observations=observations,
            segment=segment,
            truth=truth,
            own=own,
            carried=self.carried(node.name),
            local=self.local(node.name),
            axis=token_axis(self.graph, node.name),
            head_width=self.inputs.head_width,
            hidden=self.inputs.hidden_at(node),
            scores=self.scores[ranking(self.graph, node).name][1] if node.has(Trait.INDICES) else None,
            is_output=node.name == self.graph.output,
            given=self._given(segment),
        )

    def _given(self, segment: tuple[str, ...]) -> bool:
        """Were the inputs of the segment dumped?"""
        return len(segment) == 1 or not any("inp_tokens" in self.graph[part].inputs for part in segment)

    def _note_routes(self, node: Node, truth: Array, theirs: Array, observed: bool) -> None:
        score, scores = self.scores[ranking(self.graph, node).name]
        seen = observed or not np.array_equal(np.sort(truth), np.sort(theirs))
        self.routes += routes(node.name, scores.truth, truth, theirs, self.carried(score).rms, seen)


def _observed(dump: Dump, node: Node) -> tuple[Observation, ...]:
    """The node's observations, with values decoded once."""
    found = dump.by_name.get(node.name, ())
    return tuple(replace(o, data=o.array()) if o.kind == "values" and callable(o.data) else o for o in found)


def follows(inputs: RunInputs, dump: Dump, e: Evidence, faulty: Collection[str]) -> Array:
    """Ratios of a node that is recomputed as if its faulty inputs were right, against the noise of the whole run."""
    graph = inputs.model.graph
    axis, hidden = token_axis(graph, e.name), inputs.hidden_at(graph[e.name])
    value = inputs.recompute(dump, e.name, faulty)
    worst = np.zeros(len(ARITHMETICS))
    for obs in dump.by_name[e.name]:
        error, expected = deviation(obs, value, axis, inputs.head_width, hidden)
        worst = np.maximum(worst, ratios(obs, error, expected, value, axis, e.noise_carried, RUN))
    return worst
