"""Recurrences written as a loop over tokens or calls, with the part that a faulty engine gets wrong as an argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from assay.graph import Node
from assay.verify.faults.fault import Array, Context, Function, standard

Pair = tuple[Array, Array]
Between = Callable[[Array, int, Sequence[Array]], Array]  # (state, first row of the next part, inputs) -> state


def heads(x: Array, n_head: int) -> Array:
    """[T, H, D] of a value, whether its heads lie side by side or have an axis."""
    return x.reshape(x.shape[0], n_head, -1)


def call_starts(c: Context, n: int) -> list[int]:
    """The first row of every call."""
    return [int(at) for at in np.unique(c.starts(n))]


def in_parts(
    node: Node, cuts: Callable[[int], Sequence[int]], between: Between, *, at_end: bool = False
) -> Callable[..., Pair]:
    """The node's own operation, run part by part; `cuts(rows)` are the first rows of the parts, 0 the first of them.

    `between` changes the state before every part but the first, and after the last with `at_end`: then the change
    belongs to the end of a call.
    """
    own: Callable[..., Any] = standard(node)
    n_in = len(node.inputs)

    def run(*operands: Array) -> Pair:
        *values, state = operands
        inputs, weights = values[:n_in], values[n_in:]
        n = len(inputs[0])
        starts = list(cuts(n))
        found = []
        for start, stop in zip(starts, [*starts[1:], n], strict=True):
            if start:
                state = between(state, start, inputs)
            value, state = own(*(x[start:stop] for x in inputs), *weights, state)
            found.append(value)
        return np.concatenate(found), between(state, n, inputs) if at_end else state

    return run


def state_passes(function: Function) -> Callable[..., Pair]:
    """A function of inputs and weights alone, for a node with state: the state is returned as it was given."""
    return lambda *operands: (function(*operands[:-1]), operands[-1])
