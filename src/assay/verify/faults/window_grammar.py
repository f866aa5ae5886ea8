"""Generators of the grammar for the window of a causal convolution: in which order a call finds the rows before it.

ring      row p lies in slot p % n, and the slots are read from 0 on, not from the oldest row
reverse   the newest row comes first
left      the prompt leaves other rows, or in another order than decode steps read and replace them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from assay.graph import Node
from assay.verify.faults.description import RING, Description, placed
from assay.verify.faults.fault import Array, Change, Context, Edit
from assay.verify.faults.recurrent.token_loops import call_starts

# Of the rows [n, C] before a call, oldest first, its first position, and its own first row: the n rows and its own.
Reading = Callable[[Array, int, Array], tuple[Array, Array]]


def _ring(rows: Array, at: int, own: Array) -> tuple[Array, Array]:
    n = len(rows)
    slots = np.empty_like(rows)
    slots[np.arange(at - n, at) % n] = rows
    return slots, own


def _ring_with_own(rows: Array, at: int, own: Array) -> tuple[Array, Array]:
    """The call's own row is in the ring as well, so that all taps meet slots."""
    all_rows = np.concatenate([rows, own])
    slots = np.empty_like(all_rows)
    slots[np.arange(at - len(rows), at + 1) % len(all_rows)] = all_rows
    return slots[:-1], slots[-1:]


def _newest_first(rows: Array, at: int, own: Array) -> tuple[Array, Array]:
    return rows[::-1], own


_READINGS: dict[str, Reading] = {
    "the window is a ring that is read in the order of its slots, not oldest first": _ring,
    "the window with the own row is a ring that is read in the order of its slots": _ring_with_own,
    "the window is read newest row first": _newest_first,
    "the window is one row older than it should be": lambda rows, at, own: (
        np.concatenate([rows[:1], rows[:-1]]),
        own,
    ),
    "all rows of the window are the newest one": lambda rows, at, own: (np.repeat(rows[-1:], len(rows), axis=0), own),
    "all rows of the window are the oldest one": lambda rows, at, own: (np.repeat(rows[:1], len(rows), axis=0), own),
}


# Of all rows before decode, oldest first, and the number of slots: what the prompt leaves in the slots.
Left = Callable[[Array, int], Array]


def _in_slots(past: Array, n: int) -> Array:
    return _ring(past[-n:], len(past) - n, past)[0]  # the rows before the prompt are the first n


# What the prompt leaves, and whether decode steps take the slots for a ring (else they shift them).
_LEFT: dict[str, tuple[Left, bool]] = {
    "the window that the prompt leaves ends one token early": (lambda past, n: past[-n - 1 : -1], False),
    "the window that the prompt leaves has its first rows": (lambda past, n: past[n : 2 * n], False),
    "the window that the prompt leaves has the newest row first": (lambda past, n: past[: -n - 1 : -1], False),
    "the prompt leaves its window as a ring, and decode steps shift it": (_in_slots, False),
    "the prompt leaves its window oldest row first, and decode steps take it for a ring": (
        lambda past, n: past[-n:],
        True,
    ),
}


def windows(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Another order of the rows that a call of one token finds; longer calls are computed apart."""
    if len(c.steps) < 2 or not any(node.op == "causal_conv" for node in nodes):
        return
    for words, reading in _READINGS.items():
        yield RING, placed(f"in decode {words}", _read_so(reading), ("causal_conv",))
    for words, (left, ring) in _LEFT.items():
        yield RING, placed(words, _left_so(left, ring), ("causal_conv",))


def _left_so(left: Left, ring: bool) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        def run(x: Array, w: Array, window: Array) -> tuple[Array, Array]:
            channels, n = window.shape
            kernel = np.asarray(w).reshape(channels, n + 1)
            kept = np.concatenate([window.T, x.reshape(len(x), channels)])
            y = np.asarray(sum(kernel[:, k] * kept[k : k + len(x)] for k in range(n + 1)))
            slots = None
            starts = call_starts(c, len(x))
            for start, stop in zip(starts, [*starts[1:], len(x)], strict=True):
                if not start or stop - start > 1:
                    slots = None  # a longer call is right, and leaves a window in its turn
                    continue
                if slots is None:
                    slots = left(kept[: start + n], n).copy()
                    if len(slots) < n:
                        return y, kept[len(x) :].T.copy()  # the prompt is shorter than the window
                own, turn = kept[start + n], start % n if ring else 0
                y[start] = np.sum(kernel.T * np.concatenate([np.roll(slots, -turn, axis=0), own[None]]), axis=0)
                if ring:
                    slots[turn] = own
                else:
                    slots = np.concatenate([slots[1:], own[None]])
            return y, (kept[len(x) :] if slots is None else slots).T.copy()

        return Change(node, run)

    return edit


def _read_so(reading: Reading) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        def run(x: Array, w: Array, window: Array) -> tuple[Array, Array]:
            channels, n = window.shape
            kernel = np.asarray(w).reshape(channels, n + 1)
            kept = np.concatenate([window.T, x.reshape(len(x), channels)])
            y = np.asarray(sum(kernel[:, k] * kept[k : k + len(x)] for k in range(n + 1)))
            starts = call_starts(c, len(x))
            for start, stop in zip(starts, [*starts[1:], len(x)], strict=True):
                if start and stop - start == 1:
                    rows, own = reading(kept[start : start + n], start, kept[start + n : start + n + 1])
                    y[start] = np.sum(kernel.T * np.concatenate([rows, own]), axis=0)
            return y, kept[len(x) :].T.copy()

        return Change(node, run)

    return edit


GENERATORS = (windows,)
