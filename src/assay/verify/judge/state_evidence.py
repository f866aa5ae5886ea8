"""Evidence about states: what a recurrent layer keeps after each call, against what the definition keeps there.

A state is not computed by the node that shows it (`cache_s_l0`) but kept by another (`attn_output-0`). So while a pass
visits the nodes, `StateWatch` cuts the inputs of each keeper into the calls of the dump and runs the keeper call by
call. That is done in the definition's run, on the dump's own inputs, and in every run of the noise model.

A float32 state gathers one rounding for each token and forgets it as it decays. `own_terms.state_squares` gives the
squares of all that is gathered and not forgotten, so the excuse grows with the tokens that still count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference.weights import Weights
from assay.graph import Graph, Node, Trait
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.state_rows import shown_states, states_after
from assay.verify.judge.arithmetic import ARITHMETICS, UNIT, round_to
from assay.verify.judge.evidence import Evidence, JudgedNode, measure_evidence
from assay.verify.judge.noise import Level, by_rows, expected_noise, rms_of_rows
from assay.verify.judge.own_terms import state_squares
from assay.verify.thresholds import STEP

Array = NDArray[Any]
_ROUNDINGS = 16  # half-units, squared, of one update beside its sums: the decay's exponential and two products
LEAST_SHOWN = 16  # values that differ from zero, from which on their digits tell the type of a state


@dataclass
class KeptStates:
    """States of the observed layers after each call, [calls, …], for each lane of a run."""

    lanes: dict[str, list[Array]] = field(default_factory=dict)
    squares: dict[str, Array] = field(default_factory=dict)  # of the rounding errors that a state has gathered


class StateWatch:
    """Which nodes keep the observed states, and how the tokens were fed."""

    def __init__(self, graph: Graph, dump: Dump) -> None:
        self.graph, self.steps = graph, dump.steps or (len(dump.tokens),)
        self.shown = {obs.name for obs in dump.states}
        self.keepers = {keeper for name in self.shown for keeper in graph[name].inputs}

    def keep(self, into: KeptStates, node: Node, lanes: Sequence[Sequence[Array]], weights: Weights) -> None:
        """Run the node call by call on each set of inputs, where its state is observed."""
        if node.name not in self.keepers:
            return
        made: dict[tuple[int, ...], Array] = {}
        found = []
        for lane in lanes:
            key = tuple(map(id, lane))
            if key not in made:
                made[key] = states_after(node, lane, weights, self.steps)
            found.append(made[key])
        into.lanes[node.name] = found
        values = [np.asarray(weights[name]) for name in node.weights]
        ends = [sum(self.steps[: i + 1]) - 1 for i in range(len(self.steps))]
        squares = state_squares(node, lanes[0], values, ends)
        if squares is not None:
            into.squares[node.name] = squares

    def value(self, node: Node, kept: KeptStates, lane: int) -> Array:
        return shown_states(node, {name: kept.lanes[name][lane] for name in node.inputs})

    def level(self, node: Node, kept: KeptStates) -> Level:
        """Noise of a shown state, [arithmetic, call]; lane 0 is exact, the others are the arithmetics."""
        exact = self.value(node, kept, 0)
        flat = exact.reshape(len(exact), -1)
        least = np.zeros((2, len(flat)))
        if all(name in kept.squares for name in node.inputs):
            terms = math.prod(node.attr("state")[-1:]) + _ROUNDINGS
            squares = shown_states(node, kept.squares).reshape(len(exact), -1)
            least = np.stack(expected_noise(squares)) * math.sqrt(terms) * UNIT["f32"]
        rms, top = [], []
        for i, a in enumerate(ARITHMETICS, 1):
            value = round_to(self.value(node, kept, i), a.storage)
            apart = np.abs(value.astype(np.float64) - exact).reshape(len(exact), -1)
            rms.append(np.maximum(np.sqrt(np.mean(apart * apart, axis=1)), least[0]))
            top.append(np.maximum(apart.max(axis=1), least[1]))
        return Level(np.stack(rms), np.stack(top))


@dataclass(frozen=True)
class StatePath:
    """How the dump's own inputs of a keeper were found, and where its own values part from them."""

    segment: tuple[str, ...]  # unobserved nodes between observed ones and the keeper
    given: bool  # not derived from the token ids alone
    wrong_from: Array  # for each arithmetic: the first wrong token row; the number of tokens where none is


def wrong_from(theirs: Array, own: Array, level: Level) -> Array:
    """The first row of a node that its own inputs do not explain, for each arithmetic."""
    error, size = (rms_of_rows(by_rows(x.astype(np.float64), 0)) for x in (theirs - own, own))
    units = np.array([a.unit for a in ARITHMETICS])[:, None]
    wrong = error > STEP * (level.rms + units * size)
    return np.where(wrong.any(axis=1), wrong.argmax(axis=1), len(error))


@dataclass(frozen=True)
class StateEvidence:
    """The measurements of one observed state, over all calls and call by call."""

    overall: Evidence
    calls: Mapping[int, Array]  # by call: ratios against the recomputation from the dump's own values
    keeper_from: Array  # for each arithmetic: the first token row at which a node that keeps it is wrong itself

    def first_call(self, i: int) -> int | None:
        """The first call after which it is wrong in the arithmetic `i`."""
        return min((call for call, ratios in self.calls.items() if ratios[i] > 1), default=None)


def state_evidence(
    watch: StateWatch,
    dump: Dump,
    own: KeptStates,
    paths: Mapping[str, StatePath],
    carried: KeptStates,
    local: KeptStates,
) -> list[StateEvidence]:
    """The evidence of every observed state. `own` has the lanes of the definition and of the dump's own inputs."""
    found = []
    for node in watch.graph:
        if node.name not in watch.shown or not node.has(Trait.SHOWS_STATE):
            continue
        through = dict.fromkeys(part for name in node.inputs for part in paths[name].segment)
        judged = JudgedNode(
            node=node,
            observations=tuple(o for o in dump.states if o.name == node.name),
            segment=(*through, node.name),
            truth=watch.value(node, own, 0),
            own=watch.value(node, own, 1),
            carried=watch.level(node, carried),
            local=watch.level(node, local),
            axis=0,
            head_width=0,
            hidden=None,
            scores=None,
            is_output=False,
            given=all(paths[name].given for name in node.inputs),
        )
        calls: dict[int, Array] = {}
        for obs in judged.observations:
            one, call = measure_evidence(replace(judged, observations=(obs,))), (obs.rows or (0, 1))[0]
            calls[call] = np.maximum(calls.get(call, one.local), one.local)
        first = np.min([paths[name].wrong_from for name in node.inputs], axis=0)
        found.append(StateEvidence(measure_evidence(judged), calls, first))
    return found


def narrow_type(value: Array) -> str | None:
    """The 16-bit type that holds every value of a state, or None: a float32 state has digits beyond it."""
    shown = value[value != 0].astype(np.float32)
    if shown.size < LEAST_SHOWN:
        return None
    for kind in ("bf16", "f16"):  # a half holds nearly every bfloat16, and not the reverse
        if np.array_equal(round_to(shown, kind), shown):
            return kind
    return None
