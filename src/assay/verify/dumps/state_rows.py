"""States of recurrent layers in a dump: one array for each call, where other nodes have a row for each token.

A dump may hold `cache_r_lN` and `cache_s_lN` after each call, and `cache_r_before-N` and `cache_s_before-N` before it.
Such an observation is kept apart from the others (`Dump.states`), and its `rows` count calls: (1, 2) is the second
call. The definition's states follow from the inputs of the node that keeps them, call by call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import evaluate
from assay.engines.reference.weights import Weights
from assay.graph import Graph, Node, Trait
from assay.verify.dumps.observation import Dump, Observation

Array = NDArray[Any]


class _OneState:
    """The state of one node, handed from call to call."""

    def __init__(self) -> None:
        self.kept: Array | None = None

    def append(self, name: str, rows: Array) -> Array:
        raise NotImplementedError(f"{name} keeps rows, not a state")

    def load(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.zeros(shape, dtype) if self.kept is None else self.kept

    def store(self, name: str, value: Array) -> None:
        self.kept = value

    def stored(self, name: str) -> Array:
        assert self.kept is not None
        return self.kept


def states_after(node: Node, inputs: Sequence[Array], weights: Weights, steps: Sequence[int]) -> Array:
    """State of a node after each call, [calls, …]; `inputs` are its inputs for all tokens, `steps` cuts them."""
    cache, start, found = _OneState(), 0, []
    for n in steps:
        evaluate(node, [x[start : start + n] for x in inputs], weights, cache)
        found.append(cache.stored(node.name))
        start += n
    return np.stack(found)


def shown_states(node: Node, kept: Mapping[str, Array]) -> Array:
    """The value of a node that shows state, for each call, from what the nodes that it reads keep after each call."""
    parts = [kept[name] for name in node.inputs]
    flat = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
    if node.op == "state_before":
        flat = np.concatenate([np.zeros_like(flat[:1]), flat[:-1]])
    return flat.reshape(len(flat), *node.attr("state"))


def take_states(
    observations: Sequence[Observation], graph: Graph, steps: Sequence[int]
) -> tuple[list[Observation], list[Observation]]:
    """The observations of other nodes, and those of states with rows that count calls.

    Without rows, a state is that of the last call: traces keep the last one.
    """
    others, states = [], []
    ends = np.cumsum(steps)
    for obs in observations:
        if not graph[obs.name].has(Trait.SHOWS_STATE):
            others.append(obs)
            continue
        call = len(steps) - 1
        if obs.rows is not None:
            call = min(int(np.searchsorted(ends, obs.rows[1] - 1, side="right")), call)
        states.append(replace(obs, rows=(call, call + 1), others=(), alternatives=()))
    return others, states


def with_states_apart(dump: Dump, graph: Graph) -> Dump:
    """The dump with its states in `states`, where a tracer has put them among the observations."""
    others, states = take_states(dump.observations, graph, dump.steps or (len(dump.tokens),))
    return replace(dump, observations=tuple(others), states=(*dump.states, *states)) if states else dump
