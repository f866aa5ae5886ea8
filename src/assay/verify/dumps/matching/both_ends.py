"""Lists of a row's first values and its last one without dots between them: `x[0], x[1], x[n-1]`.

Such a list looks like the first values of the row. It is split where all of its numbers but the last agree with the
beginning of the definition's row, and the last one with the row's end.
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
    """The observations with such lists as first values and a last one, and notes on them."""
    lists = [o for o in observations if o.kind == "first" and len(o.data) > 2 and o.template and o.order != "hf"]
    layers = sorted({at for o in lists if (at := split(o.name)[1]) is not None})[:_LAYERS]
    asked = [o for o in lists if split(o.name)[1] in (None, *layers) and o.name != "result_output"]
    values = truth({o.name for o in asked}) if asked else {}
    found = {o.template for o in asked if _has_both_ends(o, values[o.name], token_axis(model.graph, o.name))}
    if not found:
        return list(observations), []
    out: list[Observation] = []
    for obs in observations:
        if obs not in lists or obs.template not in found:
            out.append(obs)
            continue
        printed = obs.printed if len(obs.printed) == len(obs.data) else ()
        out.append(replace(obs, data=obs.data[:-1], printed=printed[:-1]))
        out.append(replace(obs, kind="last", data=obs.data[-1:], printed=printed[-1:]))
    return out, [f"lines like {words!r}: the last number of each list is the last of the row" for words in found]


def _has_both_ends(obs: Observation, value: NDArray[Any], axis: int) -> bool:
    row = np.asarray(rows_of(value, axis, obs.rows), np.float64).reshape(-1)
    target = obs.target().astype(np.float64)
    if row.size <= len(target):
        return False
    half = np.asarray(obs.printed if len(obs.printed) == len(target) else (0.0,) * len(target), np.float64)
    slack = half + _RIGHT * np.sqrt(np.mean(row * row))
    k = len(target) - 1
    begins = np.abs(target[:k] - row[:k]) <= slack[:k]
    return bool(begins.all() and abs(target[k] - row[k]) > 10 * slack[k] and abs(target[k] - row[-1]) <= slack[k])
