"""Places values of one attention head within their node: "L0 H4 q", "attention weights head 3", `scores[0]`.

A node holds all heads of a token: queries, keys and values side by side, scores and weights one head after the other.
The values of head h begin behind those of the heads before it. Values of several heads of one node are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from assay.graph import Graph, split
from assay.models import Model
from assay.verify.dumps.observation import STATISTICS, Observation

_SIDE_BY_SIDE = ("Qcur", "Kcur", "Vcur", "kqv_out")
_MERGED = "kqv_out"  # what the heads give, before the output projection


def place_heads(
    named: Sequence[Observation], model: Model, n: int, steps: Sequence[int]
) -> tuple[list[Observation], list[str]]:
    """The observations; those of one head count within the whole row, or are left out where that cannot be said."""
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
    return found, [f"{left} lines of one head: not used; print the head's values, not a statistic"] if left else []


def _placed(obs: Observation, model: Model, n: int, steps: Sequence[int]) -> Observation | None:
    graph, width = model.graph, model.hparams.n_embd_head
    role, layer = split(obs.name)
    if not _has_heads(graph, obs.name):
        merged = f"{_MERGED}-{layer}"
        if layer is None or obs.kind != "first" or len(obs.data) != width or merged not in graph:
            return replace(obs, head=None)  # `head` was no attention head
        obs, role = replace(obs, name=merged, others=(), vague=False), _MERGED
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
        if obs.kind in STATISTICS or obs.kind == "top" or start + size > total or len(obs.data) > size:
            return None
    if obs.kind == "at":
        data = tuple((start + i, value) for i, value in obs.data)
    else:
        first = start if obs.kind == "first" else start + size - len(obs.data)
        data = tuple((first + i, value) for i, value in enumerate(obs.data))
    return replace(obs, kind="at", data=data, head=None)


def _has_heads(graph: Graph, name: str) -> bool:
    return split(name)[0].startswith(_SIDE_BY_SIDE) or "S" in graph.shapes[name]
