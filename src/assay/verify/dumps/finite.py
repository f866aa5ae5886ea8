"""Finds the first NaN or infinity of a dump, in the order of computation.

Observations of nodes computed before it are kept. Later ones are dropped, because the error has reached them. Only
maskable nodes (`Trait.MASKABLE`) may hold -inf in a correct run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Graph, Trait
from assay.verify.dumps.observation import NotFinite, Observation, number_in_words, token_axis


def is_finite(values: NDArray[Any], maskable: bool = False) -> NDArray[np.bool_]:
    """Which values a correct run may hold. `maskable` allows -inf (`Trait.MASKABLE`)."""
    if values.dtype.kind != "f":
        return np.ones(values.shape, bool)
    finite = np.isfinite(values)
    return np.asarray(finite | np.isneginf(values) if maskable else finite)


def up_to_first(
    observations: Sequence[Observation], graph: Graph, steps: Sequence[int]
) -> tuple[list[Observation], NotFinite | None]:
    """The observations computed before the first value that is not finite, and that value."""
    order = {node.name: i for i, node in enumerate(graph)}
    ends = np.cumsum(steps)

    def when(obs: Observation) -> tuple[int, int]:
        step = int(np.searchsorted(ends, obs.rows[0], side="right")) if obs.rows and len(steps) > 1 else 0
        return step, order[obs.name]

    masked: int | None = None
    for obs in sorted(observations, key=when):
        values, node = obs.target(), graph[obs.name]
        good = is_finite(values, node.has(Trait.MASKABLE))
        if (
            node.has(Trait.SCORES)
            and node.has(Trait.MASKABLE)
            and obs.kind == "values"
            and masked is None
            and np.isneginf(values).any()
        ):
            dead = np.argwhere(np.isneginf(values).all(-1))
            masked = int(dead[0][-1]) if len(dead) else None
        if good.all():
            continue
        first = tuple(int(i) for i in np.argwhere(~good)[0])
        bad = float(values[first])
        kept = [o for o in observations if when(o) < when(obs)]
        return kept, NotFinite(
            node=obs.name,
            what="NaN" if np.isnan(bad) else "Inf" if bad > 0 else "-Inf",
            count=int((~good).sum()),
            size=values.size,
            at=first,
            row=_row(obs, graph, values.shape, first, int(ends[-1]) if len(ends) else 0),
            left=len({o.name for o in observations if when(o) >= when(obs)}),
            masked=masked,
            place="" if obs.kind == "values" else number_in_words(obs, first[-1]),
        )
    return list(observations), None


def _row(obs: Observation, graph: Graph, shape: tuple[int, ...], first: tuple[int, ...], n: int) -> int | None:
    if obs.row is not None:
        return obs.row
    axis = token_axis(graph, obs.name)
    fits = obs.kind == "values" and len(shape) == len(graph.shapes[obs.name]) and shape[axis] == n
    return first[axis] if fits else None
