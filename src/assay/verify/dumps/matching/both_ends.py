"""Lists of a row's first and last values without dots between them: `x[0], x[1], x[n-1]`.

Such a list looks like the first values of the row. It is split where its numbers up to some place agree with the
beginning of the definition's row, and those behind it with the row's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import split
from assay.models import Model
from assay.verify.dumps.matching.confirmed_later import Definition
from assay.verify.dumps.observation import Observation, rows_of, token_axis

_RIGHT = 1e-3  # of the row's rms, beyond the printed digits
_LAYERS = 3  # whose values are compared; a print statement does the same in every layer


def split_both_ends(
    observations: Sequence[Observation], model: Model, truth: Definition, n: int
) -> tuple[list[Observation], list[str]]:
    """The observations with such lists as first and last values, and notes on them."""
    lists = [o for o in observations if o.kind == "first" and len(o.data) > 2 and o.template and o.order != "hf"]
    layers = sorted({at for o in lists if (at := split(o.name)[1]) is not None})[:_LAYERS]
    asked = [o for o in lists if split(o.name)[1] in (None, *layers) and o.name != "result_output"]
    values = truth({o.name for o in asked}) if asked else {}
    found: dict[str, int] = {}  # by the statement: how many last values
    for obs in asked:
        if last := _last_values(obs, values[obs.name], token_axis(model.graph, obs.name)):
            found.setdefault(obs.template, last)
    if not found:
        return list(observations), []
    out: list[Observation] = []
    for obs in observations:
        if obs not in lists or obs.template not in found:
            out.append(obs)
            continue
        printed = obs.printed if len(obs.printed) == len(obs.data) else ()
        cut = len(obs.data) - found[obs.template]
        out.append(replace(obs, data=obs.data[:cut], printed=printed[:cut]))
        out.append(replace(obs, kind="last", data=obs.data[cut:], printed=printed[cut:]))
    return out, [_note(words, last) for words, last in found.items()]


def _note(words: str, last: int) -> str:
    which = "number of each list is the last" if last == 1 else f"{last} numbers of each list are the last ones"
    return f"lines like {words!r}: the last {which} of the row"


def _last_values(obs: Observation, value: NDArray[Any], axis: int) -> int:
    """How many of the list's numbers are the row's last ones; 0 where all may be its first ones, or nothing fits."""
    row = np.asarray(rows_of(value, axis, obs.rows), np.float64).reshape(-1)
    target = obs.target().astype(np.float64)
    n = len(target)
    if row.size <= n:
        return 0
    half = np.asarray(obs.printed if len(obs.printed) == n else (0.0,) * n, np.float64)
    slack = half + _RIGHT * np.sqrt(np.mean(row * row))
    begins = np.abs(target - row[:n]) <= slack
    ends = np.abs(target - row[-n:]) <= slack
    for last in range(1, n - 1):
        cut = n - last
        other = abs(target[cut] - row[cut]) > 10 * slack[cut]
        if begins[:cut].all() and ends[cut:].all() and other:
            return last
    return 0
