"""Layouts: how a stranger's array lies against the graph's, `[tokens, features]` or `[heads, tokens, …]`.

What the shape alone allows is listed; where it allows several readings, the one nearest to the truth is taken, and
said so. Hugging Face's order of a rotary head (two halves instead of pairs) is found the same way: it is a
convention, not a fault, as long as scores come out right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Graph
from assay.verify.dumps.observation import Observation, from_hf, measure, rows_of, token_axis

Array = NDArray[Any]


@dataclass(frozen=True)
class Reading:
    """One way to read an array: the array in the graph's axes and the token rows it covers."""

    label: str
    array: Array
    rows: tuple[int, int] | None


def readings(graph: Graph, name: str, array: Array, rows: tuple[int, int], n_tokens: int) -> list[Reading]:
    """All ways in which the array can be the node's value for the tokens of `rows`, the likeliest first."""
    found: list[Reading] = []
    for reading in _readings(graph, name, array, rows, n_tokens):
        if not any(np.array_equal(reading.array, r.array) and reading.rows == r.rows for r in found):
            found.append(reading)
    return found


def _readings(graph: Graph, name: str, array: Array, rows: tuple[int, int], n_tokens: int) -> Iterator[Reading]:
    n = rows[1] - rows[0]
    whole = None if rows == (0, n_tokens) else rows
    last = (rows[1] - 1, rows[1])
    symbolic = graph.shapes[name]
    keys = rows[1]
    if symbolic[0] == "S":  # a cache: all keys so far, or only this step's
        for count, covered in ((keys, None if keys == n_tokens else (0, keys)), (n, whole)):
            want = (count, *(int(d) for d in symbolic[1:]))
            yield from (Reading(label, a, covered) for label, a in _arrange(array, want, 0))
        return
    axis = token_axis(graph, name)
    padded = symbolic[-1] == "S" and array.ndim >= 2 and array.shape[-1] > keys
    if padded:  # scores over the whole allocated cache: the keys so far come first
        array = array[..., :keys]
    heads_rows = (int(symbolic[0]), n) if symbolic[-1] == "S" else ()
    if heads_rows and array.shape[:-1] == heads_rows and array.shape[-1] < keys and n < keys:
        # a step that saw fewer keys than there are: a fault to be named, not a dump to be refused
        room = [(0, 0), (0, 0), (0, keys - array.shape[-1])]
        yield Reading("fewer keys than tokens so far", np.pad(array, room), whole)
        return
    for count, covered, note in ((n, whole, ""), (1, last, "last token only")):
        if count == 1 and n == 1 and note:
            continue
        want = tuple(count if d == "T" else keys if d == "S" else int(d) for d in symbolic)
        for label, a in _arrange(array, want, axis):
            yield Reading(", ".join(filter(None, (note, label, "padded keys cut" if padded else ""))), a, covered)


def _arrange(array: Array, want: tuple[int, ...], axis: int) -> Iterator[tuple[str, Array]]:
    """The array as `want`, in the ways that happen."""
    if array.size != math.prod(want):
        return
    shape = tuple(d for d in array.shape if d != 1)
    thin = tuple(d for d in want if d != 1)
    flat = (want[0], math.prod(want[1:]))
    if shape in (thin, tuple(d for d in flat if d != 1)) or array.ndim == 1:
        yield "", array.reshape(want)
    if len(want) == 3:  # [heads, tokens, dim] for [tokens, heads, dim], and the other way round
        swapped = (want[1], want[0], want[2])
        if shape == tuple(d for d in swapped if d != 1):
            yield "axes [tokens, heads] exchanged", array.reshape(swapped).transpose(1, 0, 2)
        side = (want[1], want[0] * want[2])
        if axis == 1 and shape == tuple(d for d in side if d != 1):
            yield "heads side by side", array.reshape(swapped).transpose(1, 0, 2)
    if len(want) == 2 and len(shape) == 3:  # heads apart, where the graph has them side by side
        if shape[0] == want[0]:
            yield "", array.reshape(want)
        if shape[1] == want[0]:
            yield "axes [tokens, heads] exchanged", array.reshape(shape).transpose(1, 0, 2).reshape(want)
    if len(thin) > 1:
        for target in (want, flat):
            if shape == tuple(d for d in reversed(target) if d != 1):
                yield "shape printed fastest axis first", array.reshape(want)
                yield "axes reversed", array.reshape(tuple(reversed(target))).transpose().reshape(want)


def nearest(found: list[Reading], truth: Array, axis: int) -> Reading:
    """The plain reading, unless another is much nearer to the truth."""

    def distance(reading: Reading) -> float:
        part = rows_of(truth, axis, reading.rows)
        part = part[tuple(slice(0, n) for n in reading.array.shape)]
        return float(np.sum((reading.array - part) ** 2))

    best = min(found, key=distance)
    return best if 10 * distance(best) < distance(found[0]) else found[0]  # a faulty dump is near to nothing


def is_hf(observations: list[Observation], truth: dict[str, Array], graph: Graph, width: int) -> bool:
    """Do these queries or keys fit the truth ten times better in Hugging Face's order?"""
    errors = {"gguf": 0.0, "hf": 0.0}
    for obs in observations:
        axis = token_axis(graph, obs.name)
        for order in errors:
            expected = measure(replace(obs, order=order), truth[obs.name], axis, width)
            errors[order] += float(np.sum((obs.target().astype(np.float64) - expected) ** 2))
    return errors["hf"] * 10 < errors["gguf"]


def reorder(obs: Observation, width: int) -> Observation:
    """A query or key in Hugging Face's order: values are brought into ours, partial ones keep the mark."""
    if obs.kind != "values":
        return replace(obs, order="hf")
    data = obs.data
    return replace(obs, data=(lambda: from_hf(np.asarray(data()), width)) if callable(data) else from_hf(data, width))
