"""Generators of the grammar for axes: a value of several axes that is read in another order than it was written.

heads and tokens    [heads, tokens, width] is read as [tokens, heads * width], or the reverse, without a transpose
experts             the experts of a token, or their weights, are read as [experts, tokens]

In each call the axes have that call's number of tokens, so a decode step of one token is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from assay.graph import Node, Trait
from assay.verify.faults.description import AXES, Description, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, by_heads, role, standard

Reading = Callable[[Array], Array]  # of a call's value, [tokens, heads, width] as it should be

# A buffer [tokens, heads, width] as it is read under a wrong order of its axes.
_READINGS: dict[str, Reading] = {
    "[heads, tokens, width] is read as [tokens, heads, width] without a transpose": lambda x: x.swapaxes(0, 1).reshape(
        x.shape
    ),
    "[tokens, heads, width] is read as [heads, tokens, width] without a transpose": lambda x: x.reshape(
        x.shape[1], x.shape[0], x.shape[2]
    ).swapaxes(0, 1),
    "[tokens, width, heads] is read as [tokens, heads, width] without a transpose": lambda x: x.swapaxes(1, 2).reshape(
        x.shape
    ),
    "[width, tokens, heads] is read as [tokens, heads, width] without a transpose": lambda x: x.transpose(
        2, 0, 1
    ).reshape(x.shape),
    "[heads, width, tokens] is read as [tokens, heads, width] without a transpose": lambda x: x.transpose(
        1, 2, 0
    ).reshape(x.shape),
}


def _by_call(c: Context, x: Array, reading: Reading) -> Array:
    calls = c.steps if sum(c.steps) == len(x) else (len(x),)
    return np.concatenate([reading(part) for part in np.split(x, np.cumsum(calls)[:-1].tolist())])


def heads(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The heads' results before the output projection, and queries, keys and values after theirs."""
    ops = {node.op for node in nodes}
    for words, reading in _READINGS.items():
        if "merge_heads" in ops:
            yield AXES, placed(f"the heads' results: {words}", _merged(reading), ("merge_heads",))
        for what, (op, roles) in _HEADS.items():
            if any(node.op == op and (not roles or role(node) in roles) for node in nodes):
                yield AXES, placed(f"{what}: {words}", _EDITS[op](reading), (op,), *roles)


_HEADS: dict[str, tuple[str, tuple[str, ...]]] = {
    "queries and keys": ("rope", ()),
    "queries": ("rope", ("Qcur",)),
    "keys": ("rope", ("Kcur",)),
    "values": ("kqv", ()),
}


def _merged(reading: Reading) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        def run(x: Array) -> Array:
            y = x.transpose(1, 0, 2)
            return _by_call(c, y, reading).reshape(len(y), -1)

        return Change(node, run)

    return edit


def _rotated(reading: Reading) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own, n_head = standard(node), node.attr("n_head")
        return Change(
            node, lambda x, *rest: own(_by_call(c, x.reshape(len(x), n_head, -1), reading).reshape(x.shape), *rest)
        )

    return edit


def _values(reading: Reading) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)
        return Change(node, lambda p, v: own(p, _by_call(c, v, reading))) if by_heads(c, node.inputs[1]) else None

    return edit


_EDITS: dict[str, Callable[[Reading], Edit]] = {"rope": _rotated, "kqv": _values}


def _exchanged(x: Array) -> Array:
    """[T, k] of which a reader takes the buffer for [k, T]."""
    return x.reshape(x.shape[1], x.shape[0]).T


def _written_so(x: Array) -> Array:
    """[T, k] that was written as [k, T] and is read as [T, k]."""
    return np.asarray(x.T.reshape(x.shape))


def experts(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The chosen experts, and their weights."""
    ways: dict[str, Reading] = {
        "[tokens, experts] is read as [experts, tokens]": _exchanged,
        "[experts, tokens] is read as [tokens, experts]": _written_so,
    }
    for node in nodes:
        for words, reading in ways.items():
            if node.op in ("expert_scale", "expert_input"):
                label = f"the experts' weights: {words} without a transpose"
                yield AXES, placed(label, _operand(1, reading), (node.op,), role(node))
            elif node.has(Trait.EXPERTS):
                label = f"the chosen experts of {role(node)}: {words} without a transpose"
                yield AXES, placed(label, _operand(1, reading), (node.op,), role(node))


def _operand(k: int, reading: Reading) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)
        width = c.model.graph.shapes[node.inputs[k]][-1]

        def run(*operands: Array) -> Array:
            changed = _by_call(c, operands[k], reading)
            return own(*operands[:k], changed, *operands[k + 1 :])

        return Change(replace(node), run) if isinstance(width, int) and width > 1 else None

    return edit


GENERATORS = (heads, experts)
