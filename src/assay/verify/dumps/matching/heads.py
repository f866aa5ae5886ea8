"""Places values of one attention head within their node: "L0 H4 q", "attention weights head 3", `scores[0]`.

A node holds all heads of a token: queries, keys and values side by side, scores and weights one head after the other.
The values of head h begin behind those of the heads before it. Values of several heads of one node are joined.

An array with three axes is heads of all tokens, or tokens with their heads. A matrix may be the heads of one token. The
sizes decide, and the values where the sizes allow both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Graph, split
from assay.models import Model
from assay.verify.dumps.observation import STATISTICS, Observation

Array = NDArray[Any]
Values = Callable[[Collection[str]], dict[str, Array]]  # the definition's, by name of the node
_SIDE_BY_SIDE = ("Qcur", "Kcur", "Vcur", "kqv_out")
_MERGED = "kqv_out"  # what the heads give, before the output projection


def place_heads(
    named: Sequence[Observation], model: Model, n: int, steps: Sequence[int], truth: Values
) -> tuple[list[Observation], list[str]]:
    """The observations; those of one head count within the whole row, or are left out where that cannot be said."""
    named = _by_axes(named, model, n, truth)
    found: list[Observation] = []
    joined: dict[tuple[object, ...], int] = {}
    left = 0
    for obs in named:
        if obs.head is None:
            found.append(obs)
            continue
        placed = _placed(obs, model, n, steps)
        if placed is None:
            left += 1
            continue
        key = (placed.name, placed.others, placed.kind, placed.rows, placed.side)
        if placed.kind == "at" and key in joined:
            last = found[joined[key]]
            if not {i for i, _ in last.data} & {i for i, _ in placed.data}:
                printed = last.printed + placed.printed if last.printed and placed.printed else ()
                found[joined[key]] = replace(last, data=last.data + placed.data, printed=printed)
                continue
        joined[key] = len(found)
        found.append(placed)
    return found, [
        f"{left} lines of one head: not used; name what they show, and print the head's values, not a statistic"
    ] if left else []


def _placed(obs: Observation, model: Model, n: int, steps: Sequence[int]) -> Observation | None:
    graph, width = model.graph, model.hparams.n_embd_head
    layer = split(obs.name)[1]
    if not _has_heads(graph, obs.name):
        merged = f"{_MERGED}-{layer}"
        if layer is None or obs.kind != "first" or len(obs.data) != width or merged not in graph:
            unnamed = split(obs.name)[0] == "l_out" and obs.kind == "first" and len(obs.data) != obs.head
            # `L0 h2 s: …` names a head of the layer, and not what is shown of it; `ffn_out head 5: …` no attention head
            return replace(obs, head=None, vague=obs.vague or (unnamed and names_only_a_head(obs.template)))
        obs = replace(obs, name=merged, others=(), vague=False)
    shape = graph.shapes[obs.name]
    head = obs.head or 0
    if "S" in shape:
        if obs.kind != "first":
            return None
        row = obs.rows[0] if obs.rows is not None else len(obs.data) - 1
        row = row + n if row < 0 else row
        keys = next((end for end in accumulate(steps) if end > row), n)
        if row >= n or len(obs.data) > keys or head >= int(shape[0]):
            return None
        obs, start = replace(obs, rows=(row, row + 1), others=(), possible_row=None), head * keys
    else:
        size = int(shape[-1]) if len(shape) == 3 else width
        total = size * int(shape[1]) if len(shape) == 3 else int(shape[-1])
        start = head * size
        if start + size > total or (obs.kind in ("first", "last") and len(obs.data) > size):
            return replace(obs, head=None)  # more values than a head has: "head 10" are the first ten
        if obs.kind in STATISTICS or obs.kind == "top":
            return None
    if obs.kind == "at":
        data = tuple((start + i, value) for i, value in obs.data)
    else:
        first = start if obs.kind == "first" else start + size - len(obs.data)
        data = tuple((first + i, value) for i, value in enumerate(obs.data))
    return replace(obs, kind="at", data=data, head=None)


def names_only_a_head(template: str) -> bool:
    """Whether the words are a layer, a head, a row, and single letters: no word for the layer's output."""
    words = [w for w in template.split() if not w.isdecimal() and len(w) > 1 and w != "layer"]
    return bool(template) and not words


def _has_heads(graph: Graph, name: str) -> bool:
    return split(name)[0].startswith(_SIDE_BY_SIDE) or "S" in graph.shapes[name]


def _by_axes(named: Sequence[Observation], model: Model, n: int, truth: Values) -> list[Observation]:
    """Arrays with several axes: the head and the token of each of their lists."""
    groups: dict[tuple[str, str], list[Observation]] = {}
    for obs in named:
        if obs.kind in ("first", "last") and obs.rows is not None and obs.head is None and obs.where:
            groups.setdefault((obs.where, obs.name), []).append(obs)
    placed: dict[int, Observation | None] = {}
    for several in groups.values():
        if _has_heads(model.graph, several[0].name) and len(several) > 1:
            heads, width = _heads_of(model, several[0].name)
            if several[0].outer is not None:
                placed |= _three_axes(several, heads, n, model, truth)
            elif "S" not in model.graph.shapes[several[0].name]:
                placed |= _one_token(several, heads, width, n)
    found = [placed.get(id(obs), obs) for obs in named]
    return [replace(obs, outer=None) for obs in found if obs is not None]


def _heads_of(model: Model, name: str) -> tuple[int, int]:
    """Number of heads of a node, and the width of one."""
    shape = model.graph.shapes[name]
    if "S" in shape:
        return int(shape[0]), 0
    width = int(shape[-1]) if len(shape) == 3 else model.hparams.n_embd_head
    return int(shape[1]) if len(shape) == 3 else int(shape[-1]) // width, width


def _one_token(several: Sequence[Observation], heads: int, width: int, n: int) -> dict[int, Observation | None]:
    """A matrix with a row for each head is one token's value, unless there are as many tokens."""
    rows = [obs.rows[0] for obs in several if obs.rows is not None]
    whole = all(obs.kind == "first" and len(obs.data) == width for obs in several)
    if not whole or rows != list(range(heads)) or heads == n:
        return {}
    data = tuple(value for obs in several for value in obs.data)
    printed = tuple(half for obs in several for half in obs.printed)
    joined = replace(several[0], data=data, rows=None, printed=printed if len(printed) == len(data) else ())
    return {id(obs): None for obs in several[1:]} | {id(several[0]): joined}


def _three_axes(
    several: Sequence[Observation], heads: int, n: int, model: Model, truth: Values
) -> dict[int, Observation | None]:
    """Head and token of each list, in the order of axes that fits the sizes and is nearer to the definition."""
    readings: list[list[Observation]] = []
    for heads_first in (True, False):
        made = []
        for obs in several:
            assert obs.rows is not None and obs.outer is not None
            head, row = (obs.outer, obs.rows[0]) if heads_first else (obs.rows[0], obs.outer)
            head, row = head + heads * (head < 0), row + n * (row < 0)
            if 0 <= head < heads and 0 <= row < n:
                made.append(replace(obs, head=head, rows=(row, row + 1), outer=None, possible_row=None))
        if len(made) == len(several):
            readings.append(made)
    if not readings:
        return {id(obs): None for obs in several}
    sizes = {len({obs.outer for obs in several}), len({obs.rows for obs in several})}
    if len(readings) > 1 and sizes != {heads, n}:
        readings.sort(key=lambda made: _distance(made, model, truth))
    elif len(readings) > 1 and len({obs.outer for obs in several}) != heads:
        readings.reverse()
    return {id(obs): made for obs, made in zip(several, readings[0], strict=True)}


def _distance(made: Sequence[Observation], model: Model, truth: Values) -> float:
    """The error of the lists as values of their heads, for the nearest node that the words may mean."""
    names = [name for name in (made[0].name, *made[0].others) if name in model.graph]
    best = np.inf
    for name, value in truth(names).items():
        heads, width = _heads_of(model, name)
        error = 0.0
        for obs in made[:64]:
            assert obs.rows is not None
            row = value[:, obs.rows[0]] if not width else value[obs.rows[0]].reshape(heads, width)
            part = row[obs.head or 0]
            part = part[: len(obs.data)] if obs.kind == "first" else part[len(part) - len(obs.data) :]
            error += float(np.mean((part - obs.target()[: len(part)]) ** 2)) if part.size == len(obs.data) else np.inf
        best = min(best, error)
    return best
