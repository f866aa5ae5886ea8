"""NaN and infinities in a dump: where the first stands. What was computed before it is kept, the rest says nothing.

Masked scores may be -inf; nothing else in a right run may.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Graph
from assay.verify.dumps.observation import NotFinite, Observation, token_axis

_MAY_BE_MASKED = ("kq", "group_mask")


def is_finite(values: NDArray[Any], op: str = "") -> NDArray[np.bool_]:
    """Which values a right run may hold."""
    if values.dtype.kind != "f":
        return np.ones(values.shape, bool)
    finite = np.isfinite(values)
    return np.asarray(finite | np.isneginf(values) if op in _MAY_BE_MASKED else finite)


def up_to_first(
    observations: Sequence[Observation], graph: Graph, steps: Sequence[int]
) -> tuple[list[Observation], NotFinite | None]:
    """The observations of what was computed before the first value that is not finite; and that value."""
    order = {node.name: i for i, node in enumerate(graph)}
    ends = np.cumsum(steps)

    def when(obs: Observation) -> tuple[int, int]:
        step = int(np.searchsorted(ends, obs.rows[0], side="right")) if obs.rows and len(steps) > 1 else 0
        return step, order[obs.name]

    masked: int | None = None
    for obs in sorted(observations, key=when):
        values, op = obs.target(), graph[obs.name].op
        good = is_finite(values, op)
        if op == "kq" and obs.kind == "values" and masked is None and np.isneginf(values).any():
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
        )
    return list(observations), None


def _row(obs: Observation, graph: Graph, shape: tuple[int, ...], first: tuple[int, ...], n: int) -> int | None:
    if obs.row is not None:
        return obs.row
    axis = token_axis(graph, obs.name)
    fits = obs.kind == "values" and len(shape) == len(graph.shapes[obs.name]) and shape[axis] == n
    return first[axis] if fits else None
