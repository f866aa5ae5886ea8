"""Generators of the grammar for the cache: which rows are lost or moved, and whose rows a layer reads.

rows                 a row is lost, the rows from a position on are written one further
slots                the rows of all calls, or of the prompt, are written one slot early or late
constant slots       decode writes every row to one slot, or two slots apart, or its first row alone
strides              the buffer is addressed with the tokens so far, so that each call moves the rows of the others
another layer's      the offset of the layer in the cache is off, or missing: all layers share the rows of one
rows of the prompt   what the prompt computes is not stored, so that decode steps find zeros
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from assay.graph import Node, Trait, join, split
from assay.verify.faults.description import INDEX, OTHER_CACHE, Description, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, by_heads, layer, role, standard

MOST_POSITIONS = 64  # that are tried one by one


def rows(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """A row of the cache is lost, or the rows from a position on are written one further."""
    caches = {role(node) for node in nodes if node.has(Trait.CACHES)}
    total = min(sum(c.steps), MOST_POSITIONS)
    for at in range(1, total) if caches else ():
        for what, roles in _CACHES.items():
            if roles & caches:
                late = f"from position {at} on {what} are written one row further in the cache"
                yield INDEX, placed(late, _cached(_late, at), ("cache",), *roles)
                yield INDEX, placed(f"{what} of position {at} are lost: zeros", _cached(_lost, at), ("cache",), *roles)


_CACHES = {
    "keys and values": frozenset({"cache_k", "cache_v"}),
    "keys": frozenset({"cache_k"}),
    "values": frozenset({"cache_v"}),
}


def _late(rows: Array, at: int) -> Array:
    return np.concatenate([rows[:at], np.zeros_like(rows[:1]), rows[at:-1]])[: len(rows)]


def _lost(rows: Array, at: int) -> Array:
    rows = rows.copy()
    rows[at : at + 1] = 0
    return rows


def _cached(change: Callable[[Array, int], Array], at: int) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)
        return Change(node, lambda *operands: change(own(*operands), at))

    return edit


# -- what a decode step finds ----------------------------------------------------------------------------------------

_READERS = {"keys and values": ("kq", "kqv"), "keys": ("kq",), "values": ("kqv",)}
_QUERIES: dict[str, Callable[[Array, Array], Array]] = {
    "kq": lambda q, some: q[some],
    "kqv": lambda p, some: p[:, some],
}
Older = Callable[[Context, Array, Array, int], Array]  # own rows, another layer's, the step's first row: rows before it


def found_in_decode(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The rows of earlier steps, as a decode step finds them."""
    ops = {node.op for node in nodes}
    if len(c.steps) < 2 or not ops & {"kq", "kqv"}:
        return
    for what, readers in _READERS.items():
        if ops & set(readers):
            for words, of, older in _FOUND:
                fault = OTHER_CACHE if older is _others else INDEX
                yield fault, placed(f"in decode {words.format(what)}", _view(of, older), readers)


def _prompt_lost(c: Context, own: Array, other: Array, start: int) -> Array:
    seen = own[:start].copy()
    seen[: c.steps[0]] = 0
    return seen


def _others(c: Context, own: Array, other: Array, start: int) -> Array:
    return other[:start]


# The rows of the last layer are found where they were dumped: a run of the graph computes them later.
# Words, the layer whose rows are read (from the layer's own number and that of the last), and the rows found.
_FOUND: tuple[tuple[str, Callable[[int, int], int], Older], ...] = (
    ("{} of the prompt are not stored: zeros", lambda at, last: at, _prompt_lost),
    ("earlier {} are those of the layer before", lambda at, last: at - 1, _others),
    ("earlier {} are those of layer 0", lambda at, last: 0, _others),
    ("earlier {} are those of the last layer", lambda at, last: last, _others),
)


def _view(of: Callable[[int, int], int], older: Older) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        at = layer(node)
        if at is None or not by_heads(c, node.inputs[1]):
            return None
        source = join(split(node.inputs[1])[0], of(at, len(c.model.hparams.layers) - 1))
        own, queries, shapes = standard(node), _QUERIES[node.op], c.model.graph.shapes
        if source != node.inputs[1] and shapes.get(source) != shapes[node.inputs[1]]:
            return None
        if source == node.inputs[1] and older is _others:
            return None

        def run(a: Array, kv: Array, other: Array, *more: Array) -> Array:
            out = own(a, kv, *more).copy()
            starts = c.starts(out.shape[1])
            for start in np.unique(starts[starts > 0]).tolist():
                some = starts == start
                out[:, some] = own(queries(a, some), np.concatenate([older(c, kv, other, start), kv[start:]]), *more)
            return out

        return Change(replace(node, inputs=(*node.inputs, source)), run)

    return edit


# -- rows in other slots ----------------------------------------------------------------------------------------------


def slots(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The rows of the prompt, or of all calls, one slot early or late. Slots that no call writes are zero.

    Rows of the decode steps alone are `kv-seqpos-units`, and `rows` from the first decode step on.
    """
    ops = {node.op for node in nodes}
    several = len(c.steps) > 1
    for what, readers in _READERS.items():
        for step, words in ((1, "late"), (-1, "early")) if ops & set(readers) else ():
            label = f"{what} are cached one slot {words}"
            yield INDEX, placed(label, _moved(step, prompt=False, own=False), readers)
            if several:
                yield INDEX, placed(f"{label}, in the prompt alone", _moved(step, prompt=True, own=False), readers)
                mine = f"{what} of the prompt are cached one slot {words}, which decode steps read"
                yield INDEX, placed(mine, _moved(step, prompt=True, own=True), readers)


def _moved(step: int, *, prompt: bool, own: bool) -> Edit:
    """`prompt`: the prompt's rows alone are moved. `own`: the prompt reads its own rows, not the cache."""

    def caches(c: Context, kv: Array) -> Iterator[tuple[int, Array]]:
        cache = np.zeros_like(kv)
        starts, ends = c.starts(len(kv)), c.ends(len(kv))
        for start in np.unique(starts).tolist():
            end = int(ends[start])
            to = np.arange(start, end) + (step if not (prompt and start) else 0)
            kept = (to >= 0) & (to < len(kv))
            cache[to[kept]] = kv[start:end][kept]
            if start or not own:
                yield start, cache

    return _recomputed(caches)


def _recomputed(caches: Callable[[Context, Array], Iterator[tuple[int, Array]]]) -> Edit:
    """`caches(rows)` gives the first row of a call and its cache: the call's results are computed from this cache."""

    def edit(c: Context, node: Node, p: float) -> Change | None:
        if layer(node) is None or not by_heads(c, node.inputs[1]):
            return None
        right, queries = standard(node), _QUERIES[node.op]

        def run(a: Array, kv: Array, *more: Array) -> Array:
            out = right(a, kv, *more).copy()
            starts = c.starts(len(kv))
            for start, cache in caches(c, kv):
                some = starts == start
                out[:, some] = right(queries(a, some), cache, *more)
            return out

        return Change(node, run)

    return edit


# -- slots that decode computes wrongly ----------------------------------------------------------------------------

# For the number of a decode row (0, 1, …) and the length of the prompt: the slot it is written to; none for -1.
Slot = Callable[[int, int], int]
_SLOTS: dict[str, Slot] = {
    "in decode every row of {} is written to the first slot after the prompt": lambda i, n: n,
    "in decode every row of {} is written to the prompt's last slot": lambda i, n: n - 1,
    "in decode every row of {} is written to slot 0": lambda i, n: 0,
    "in decode the rows of {} are written two slots apart": lambda i, n: n + 2 * i,
    "in decode the rows of {} are written two slots apart, from the second slot on": lambda i, n: n + 2 * i + 1,
    "in decode only the first row of {} is written": lambda i, n: n if i == 0 else -1,
}


def decode_slots(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Other slots for the rows of decode steps; a slot that no step writes is zero."""
    ops = {node.op for node in nodes}
    if len(c.steps) < 2:
        return
    for what, readers in _READERS.items():
        if not ops & set(readers):
            continue
        for words, slot in _SLOTS.items():
            label = words.format(what)
            yield INDEX, placed(label, _stored(slot, own=False), readers)
            yield INDEX, placed(f"{label}; a step reads its own row elsewhere", _stored(slot, own=True), readers)
        for words, layout in _LAYOUTS.items():
            yield INDEX, placed(words.format(what), _strided(layout), readers)


def _in_decode(found: Callable[[Context, Array, int, int], Array]) -> Edit:
    """In the steps after the first: what `found(rows, first row, end)` has in the cache."""

    def caches(c: Context, kv: Array) -> Iterator[tuple[int, Array]]:
        starts, ends = c.starts(len(kv)), c.ends(len(kv))
        for start in np.unique(starts[starts > 0]).tolist():
            yield start, found(c, kv, start, int(ends[start]))

    return _recomputed(caches)


def _stored(slot: Slot, *, own: bool) -> Edit:
    def found(c: Context, kv: Array, start: int, end: int) -> Array:
        n, seen = c.steps[0], kv.copy()
        seen[n:] = 0
        for t in range(n, end):
            if 0 <= (to := slot(t - n, n)) < len(seen):
                seen[to] = kv[t]
        if own:
            seen[start:end] = kv[start:end]
        return seen

    return _in_decode(found)


# The places of a buffer for [tokens, heads, width], from three indices, the width, and the stride in tokens.
Places = Callable[[Array, Array, Array, int, int], Array]
# The stride in tokens, from the context and the rows that the cache holds after a call.
Stride = Callable[[Context, int], int]
_PLACES: dict[str, Places] = {
    "[heads, tokens, width]": lambda t, h, i, width, n: (h * n + t) * width + i,
    "[heads, width, tokens]": lambda t, h, i, width, n: (h * width + i) * n + t,
}
_STRIDES: dict[str, Stride] = {
    "the tokens so far as its stride": lambda c, end: end,
    "the prompt's length as its stride": lambda c, end: c.steps[0],
}
_LAYOUTS: dict[str, tuple[Places, Stride]] = {
    f"the cache of {{}} is {axes} with {words}": (places, stride)
    for axes, places in _PLACES.items()
    for words, stride in _STRIDES.items()
}


def _strided(layout: tuple[Places, Stride]) -> Edit:
    """Every call writes its rows, and reads all of them, at its stride; rows of one call lie over those of another."""
    places, stride = layout

    def found(c: Context, kv: Array, start: int, end: int) -> Array:
        total, heads, width = kv.shape
        index = np.arange(total)[:, None, None], np.arange(heads)[:, None], np.arange(width)
        flat, at = np.zeros((heads + 1) * (total + 1) * width, kv.dtype), 0
        for step in c.steps:
            if at >= end:
                break
            flat[places(*index, width, stride(c, at + step))[at : at + step]] = kv[at : at + step]
            at += step
        seen = kv.copy()
        seen[:end] = flat[places(*index, width, stride(c, end))[:end]]
        return seen

    return _in_decode(found)


GENERATORS = (rows, slots, found_in_decode, decode_slots)
