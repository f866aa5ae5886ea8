"""Calls of an engine as the steps of one sequence: a prompt, then tokens through the cache.

Readers of folders, of named arrays and of JSON lines make one dump for each call and join them here. Touch this module
when calls may overlap or be dumped in part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.verify.dumps.observation import Dump, Observation

Array = NDArray[Any]


def join_steps(parts: list[Dump], notes: tuple[str, ...]) -> Dump:
    """One dump of all steps; row t of a value is the token at index t of the whole sequence."""
    first = parts[0]
    if len(parts) == 1:
        return replace(
            first, notes=(*notes, *first.notes), positions=first.positions or tuple(range(len(first.tokens)))
        )
    if not all(part.tokens for part in parts):
        note = f"{len(parts)} steps were dumped, not all with input_ids; only the first step was read"
        return replace(first, notes=(*notes, note, *first.notes))
    tokens, positions = list[int](), list[int]()
    found: list[Observation] = []
    for part in parts:
        rows = len(tokens), len(tokens) + len(part.tokens)
        found += [replace(obs, rows=rows) for obs in part.observations]
        tokens += part.tokens
        positions += part.positions or range(*rows)
    found = _whole_arrays(found, parts)
    steps = tuple(len(part.tokens) for part in parts)
    every = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    return replace(
        first, tokens=tuple(tokens), positions=tuple(positions), steps=steps, observations=tuple(found),
        notes=(*notes, *every),
    )  # fmt: skip


def join_calls(parts: list[Dump], rows: list[int]) -> Dump:
    """One dump of calls that do not name their ids: call i has `rows[i]` tokens, which the caller gives."""
    joined = join_steps([replace(part, tokens=(0,) * n, positions=()) for part, n in zip(parts, rows, strict=True)], ())
    return replace(joined, tokens=(), positions=())


def rows_of_call(shapes: Iterable[tuple[int, ...]]) -> int:
    """The tokens of a call: the first axis that most of its arrays have."""
    rows = [shape[0] for shape in shapes if len(shape) > 1]
    return max(set(rows), key=rows.count) if rows else 1


def _whole_arrays(found: list[Observation], parts: list[Dump]) -> list[Observation]:
    """Arrays that every step has, with a row for each of its tokens, as one array of all rows."""
    by_name: dict[str, list[Observation]] = {}
    for obs in found:
        by_name.setdefault(obs.foreign, []).append(obs)
    out: list[Observation] = []
    for several in by_name.values():
        shapes = [obs.shape or () for obs in several]
        rows = [shape[0] if len(shape) > 1 else -1 for shape in shapes]
        same = len({shape[1:] for shape in shapes}) == 1 and rows == [len(part.tokens) for part in parts]
        if not same:
            out += several
            continue
        data = partial(_stacked, several)
        out.append(replace(several[0], data=data, rows=None, shape=(sum(rows), *shapes[0][1:])))
    return out


def _stacked(several: list[Observation]) -> Array:
    return np.concatenate([obs.array() for obs in several])
