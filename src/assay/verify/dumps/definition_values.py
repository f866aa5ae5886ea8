"""The definition's values for the tokens of a dump: what its observations are compared with while names are resolved.

Touch this module when resolving a dump computes too much, or the same values twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.models import Model
from assay.verify.dumps.observation import Dump, inputs_of
from assay.verify.dumps.state_rows import shown_states, states_after

Array = NDArray[Any]


class Truth:
    """The definition's values for these tokens, computed when first asked for."""

    def __init__(
        self,
        model: Model,
        tokens: Sequence[int],
        positions: Sequence[int],
        given: Mapping[str, Array] | None = None,
    ) -> None:
        self._graph, self._weights = model.graph, Weights(model.file, np.float32, budget=1 << 30)
        self._feed = tuple(tokens), tuple(positions)
        self._given = {**inputs_of(tokens, positions), **(given or {})}
        self._known: dict[str, Array] = {}

    def fits(self, model: Model, dump: Dump) -> bool:
        """Is it of this model and these tokens?"""
        return self._graph is model.graph and self._feed == (dump.tokens, dump.positions)

    def __call__(self, names: Collection[str]) -> dict[str, Array]:
        missing = set(names) - self._known.keys()
        if missing:
            self._known |= interpret(self._graph, self._weights, self._given | self._known, missing)
        return {name: self._known[name] for name in names}

    def after(self, name: str, value: Array, later: str) -> Array:
        """The value of a later node, if a node had this value."""
        changed = {name}
        for node in self._graph:
            if changed & set(node.inputs):
                changed.add(node.name)
        between = changed & self._graph.ancestors([later]) - {name}
        sides = {other for node in between for other in self._graph[node].inputs} - changed - self._given.keys()
        return interpret(self._graph, self._weights, {**self._given, **self(sides), name: value}, {later})[later]

    def states(self, name: str, steps: Sequence[int]) -> Array:
        """The state that a node shows, for each call."""
        kept = {}
        for keeper in (self._graph[other] for other in self._graph[name].inputs):
            inputs = self(keeper.inputs)
            kept[keeper.name] = states_after(keeper, [inputs[i] for i in keeper.inputs], self._weights, steps)
        return shown_states(self._graph[name], kept)
