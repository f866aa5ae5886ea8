"""Lists with one number for each token: a statistic of every row, if the values are that and no elements.

    L2 norm per token      id 101     id 14    id 250
    tok_emb                7.6216    4.9249    5.7384

The words of such a table rarely say which statistic it is. Where they do, as "norms per token" in a heading, they
decide for values that match nothing. One reading holds for all lists of the log that have as many numbers as there are
tokens, because one loop prints them. The lists that are nearest to the tokens decide, since those behind a fault match
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.models import Model
from assay.verify.dumps.observation import STATISTICS, Observation, rows_of, token_axis

Array = NDArray[Any]
_LEAST = 3  # tokens: fewer numbers match by chance
_NEAR = 0.02  # relative: the error of a coarse engine
_VALUES = "values"  # of a row, no statistics


def split_by_token(
    named: Sequence[Observation], model: Model, n: int, truth: Callable[[Collection[str]], dict[str, Array]]
) -> tuple[list[Observation], list[str]]:
    """The observations; lists of one statistic a token become an observation for each token."""
    asked = _by_place([o for o in named if o.kind == "first" and o.shape is None and o.head is None], n)
    if not asked:
        return list(named), []
    order = {node.name: i for i, node in enumerate(model.graph)}
    kinds: dict[int, str] = {}
    for lists in asked.values():
        first = min(lists, key=lambda o: order.get(o.name, len(order)))
        read = _statistic(first, model, n, truth)
        if read == _VALUES:
            continue
        matched = read if n >= _LEAST else ""
        kinds |= {id(o): kind for o in lists if (kind := matched or o.of_each_token)}
    found: list[Observation] = []
    for obs in named:
        found += _each_token(obs, kinds[id(obs)]) if id(obs) in kinds else [obs]
    return found, [
        f"lists of {n} numbers: read as the {kind} of each token's row" for kind in sorted({*kinds.values()})
    ]


def _by_place(lists: Sequence[Observation], n: int) -> dict[tuple[int, bool], list[Observation]]:
    """Lists with a number for each token, by their place among the lists of their line.

    A line may show a statistic of each token, and as many values of a row. Of a line with one list, the row that its
    words name is the list's, unless it is the last.
    """
    found: dict[tuple[int, bool], list[Observation]] = {}
    lines: dict[str, list[Observation]] = {}
    for obs in lists:
        lines.setdefault(obs.where, []).append(obs)
    for line in lines.values():
        for place, obs in enumerate(line):
            alone = len(line) == 1
            if len(obs.data) == n and (not alone or obs.rows in (None, (-1, 0), (n - 1, n))):
                found.setdefault((place, alone), []).append(obs)
    return found


def _each_token(obs: Observation, kind: str) -> list[Observation]:
    printed = obs.printed if len(obs.printed) == len(obs.data) else (0.0,) * len(obs.data)
    return [
        replace(obs, kind=kind, data=value, rows=(t, t + 1), printed=(half,), possible_row=None, alternatives=())
        for t, (value, half) in enumerate(zip(obs.data, printed, strict=True))
    ]


def _statistic(obs: Observation, model: Model, n: int, truth: Callable[[Collection[str]], dict[str, Array]]) -> str:
    """The statistic that every row has; `_VALUES` where they are a row's elements, and empty if they are neither."""
    names = [name for name in (obs.name, *obs.others) if name in model.graph]
    target = obs.target()
    for value, axis in ((truth([name])[name], token_axis(model.graph, name)) for name in names):
        rows = [np.asarray(rows_of(value, axis, (t, t + 1)), np.float64).reshape(-1) for t in range(n)]
        if any(len(row) >= n and np.allclose(row[:n], target, rtol=_NEAR, atol=_NEAR) for row in rows):
            return _VALUES
        for kind, of in STATISTICS.items():
            expected = np.array([of(row) for row in rows])
            if np.max(np.abs(expected - target) / (np.abs(expected) + 1e-30)) < _NEAR:
                return kind
    return ""
