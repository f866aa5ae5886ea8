"""Layouts: how another engine's array maps to the graph's axes, `[tokens, features]` or `[heads, tokens, …]`.

`readings` lists every layout that the shape allows. `nearest` takes the one nearest to the definition's values, and the
caller notes it. Hugging Face's order of a rotary head (two halves instead of pairs) is found the same way. It is a
convention, not a fault, as long as the scores are right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Graph, Trait
from assay.verify.dumps.matching.state_layouts import value_head_order
from assay.verify.dumps.observation import Observation, from_hf, measure, rows_of, token_axis

Array = NDArray[Any]
BUCKET = 32  # rows of the smallest padded prompt
MOST_TAPS = 8  # of a convolution whose padding is recognised


@dataclass(frozen=True)
class ArrayReading:
    """One way to read an array: the array in the graph's axes and the token rows it covers."""

    label: str
    array: Array
    rows: tuple[int, int] | None


def readings(graph: Graph, name: str, array: Array, rows: tuple[int, int], n_tokens: int) -> list[ArrayReading]:
    """All ways in which the array can be the node's value for the tokens of `rows`, the likeliest first."""
    found: list[ArrayReading] = []
    for reading in _readings(graph, name, array, rows, n_tokens):
        for one in _head_orders(graph, name, reading):
            if not any(np.array_equal(one.array, r.array) and one.rows == r.rows for r in found):
                found.append(one)
    return found


def _head_orders(graph: Graph, name: str, reading: ArrayReading) -> Iterator[ArrayReading]:
    """The reading, and with value heads in Hugging Face's order where the layer has a delta rule with key heads."""
    yield reading
    rows = reading.array.reshape(len(reading.array), -1)
    order = value_head_order(graph, name, rows.shape[1])
    if order is not None:
        label = ", ".join(filter(None, (reading.label, "value heads in Hugging Face's order")))
        yield replace(reading, label=label, array=rows[:, order].reshape(reading.array.shape))


def _readings(graph: Graph, name: str, array: Array, rows: tuple[int, int], n_tokens: int) -> Iterator[ArrayReading]:
    n = rows[1] - rows[0]
    whole = None if rows == (0, n_tokens) else rows
    last = (rows[1] - 1, rows[1])
    symbolic = graph.shapes[name]
    keys = rows[1]
    if symbolic[0] == "S":  # a cache: all keys so far, or only this step's
        for count, covered in ((keys, None if keys == n_tokens else (0, keys)), (n, whole)):
            want = (count, *(int(d) for d in symbolic[1:]))
            yield from (ArrayReading(label, a, covered) for label, a in _arrange(array, want, 0))
        return
    if graph[name].has(Trait.SHOWS_STATE):
        return  # a state has no row for each token: `state_layouts.py`
    axis = token_axis(graph, name)
    if name.startswith("conv_output") and (cut := _channels_first(array, n, int(symbolic[-1]))) is not None:
        yield ArrayReading("channels first, the kernel's overhang cut", cut, whole)
        return
    padded = symbolic[-1] == "S" and array.ndim >= 2 and array.shape[-1] > keys
    if padded:  # scores over the whole allocated cache: the keys so far come first
        array = array[..., :keys]
    heads_rows = (int(symbolic[0]), n) if symbolic[-1] == "S" else ()
    if heads_rows and array.shape[:-1] == heads_rows and array.shape[-1] < keys and n < keys:
        # a step that saw too few keys is a fault to diagnose, not a dump to reject
        room = [(0, 0), (0, 0), (0, keys - array.shape[-1])]
        yield ArrayReading("fewer keys than tokens so far", np.pad(array, room), whole)
        return
    for count, covered, note in ((n, whole, ""), (1, last, "last token only")):
        if count == 1 and n == 1 and note:
            continue
        want = tuple(count if d == "T" else keys if d == "S" else int(d) for d in symbolic)
        for label, a in _arrange(array, want, axis):
            yield ArrayReading(", ".join(filter(None, (note, label, "padded keys cut" if padded else ""))), a, covered)
    if (cut := _bucket_cut(array, symbolic, n)) is not None:
        yield ArrayReading(f"the first {n} rows of a padded prompt", cut, whole)


def _bucket_cut(array: Array, symbolic: tuple[int | str, ...], n: int) -> Array | None:
    """The rows of the tokens, where a compiler has padded the prompt to a power of two."""
    if len(symbolic) != 2 or symbolic[0] != "T" or array.ndim < 2 or array.shape[-1] != symbolic[1]:
        return None
    rows = array.size // array.shape[-1]
    return array.reshape(rows, -1)[:n] if rows > n and rows >= BUCKET and rows & (rows - 1) == 0 else None


def _channels_first(array: Array, n: int, channels: int) -> Array | None:
    """A convolution of PyTorch, [channels, tokens + taps - 1], whose columns after the last token are its padding."""
    thin = array.reshape(tuple(d for d in array.shape if d != 1) or (1,))
    if thin.ndim == 2 and thin.shape[0] == channels and n < thin.shape[1] <= n + MOST_TAPS:
        return thin[:, :n].T
    return None


def _arrange(array: Array, want: tuple[int, ...], axis: int) -> Iterator[tuple[str, Array]]:
    """The array as `want`, in the layouts that engines use."""
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
    if len(want) == 2 and want[0] == 1 and len(shape) == 2:  # one token, heads apart
        yield "", array.reshape(want)
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


def nearest(found: list[ArrayReading], truth: Array, axis: int) -> ArrayReading:
    """The plain reading, unless another is much nearer to the truth."""

    def distance(reading: ArrayReading) -> float:
        part = rows_of(truth, axis, reading.rows)
        part = part[tuple(slice(0, n) for n in reading.array.shape)]
        return float(np.sum((reading.array - part) ** 2))

    best = min(found, key=distance)
    return best if 10 * distance(best) < distance(found[0]) else found[0]  # a faulty dump may match no layout


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
