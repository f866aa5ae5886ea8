"""A weight that is damaged in one place: which row, which block, and by how much, solved from what it makes of it.

A flipped bit in a file changes one number, or the scale of one block, of one row of one matrix. There are too many such
places to try; but the product that uses the row is wrong in one feature, by the product of the block with its inputs.
So the place is read off the deviation: the feature gives the row, and of its blocks the one whose share of the product
runs in proportion to the deviation over the tokens, the factor being the constant. Where only a layer's output was
dumped, the deviation lies along one feature (the last product, or the one before it) or along one column of the last
matrix (the two before that).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.functions import linear
from assay.graph import Node, split
from assay.verify.diagnosis.lab import Hypothesis, Lab, Unit
from assay.verify.faults import Change, Context, Variant

Array = NDArray[Any]
FAULT = "weight-damaged"
_ALONG = 0.7  # of the squared deviation that must lie along one direction
_PARTS = 2  # blocks that are tried: those whose share fits best
_FLIPS = (0.0, -1.0, 0.5, 2.0, 0.25, 4.0, 1 / 16, 16.0, 1 / 256, 256.0)  # what a flipped bit makes of a half scale


def damaged(lab: Lab, unit: Unit) -> Iterator[Hypothesis]:
    """Damage that the deviation of the unit's target speaks of."""
    found = lab.dump.values(unit.target)
    if found is None or lab.graph.shapes[unit.target][0] != "T" or found.ndim != 2:
        return
    base = lab.base(unit)
    error = found - base[unit.target]
    if not np.isfinite(error).all() or not error.any():
        return
    node = lab.graph[unit.target]
    if len(unit.segment) == 1:
        row = _one_column(error)
        if row is not None and _product(node):
            yield from _solved(lab, node, row, lab.theirs[node.inputs[0]], error[:, row])
        return
    for name in unit.segment if split(unit.target)[0] == "l_out" else ():
        row = _row_of(lab, unit, lab.graph[name], error) if _product(lab.graph[name]) else None
        if row is not None:
            yield from _guessed(lab, lab.graph[name], row)


def _product(node: Node) -> bool:
    return node.op == "linear" and len(node.weights) == 1


def _one_column(error: Array) -> int | None:
    energy = np.sum(error * error, axis=0)
    row = int(energy.argmax())
    return row if energy[row] >= _ALONG * energy.sum() else None


def _row_of(lab: Lab, unit: Unit, source: Node, error: Array) -> int | None:
    """The row of the matrix whose feature the deviation of the target lies along."""
    role = split(source.name)[0]
    if role in ("ffn_out", "ffn_down", "attn_out"):
        return _one_column(error)
    last = next((lab.graph[n] for n in unit.segment if split(n)[0] in ("ffn_out", "ffn_down")), None)
    if role not in ("ffn_gate", "ffn_up") or last is None or not _product(last):
        return None  # a norm behind the last matrix turns its columns; those faults stay unexplained
    columns = np.asarray(lab.weights[last.weights[0]][:])
    along = np.sum((error @ columns) ** 2, axis=0) / (np.sum(columns * columns, axis=0) + 1e-300)
    row = int(along.argmax())
    return row if along[row] >= _ALONG * float(np.sum(error * error)) else None


def _solved(lab: Lab, node: Node, row: int, x: Array, error: Array) -> Iterator[Hypothesis]:
    """The factors that account for the deviation of one feature, block by block, and element by element."""
    weights = np.asarray(lab.weights[node.weights[0]][row : row + 1][0], np.float64)
    x = x.reshape(len(x), -1).astype(np.float64)
    block = max(32, lab.model.file.tensors[node.weights[0]].type.block_size)
    shares = (x * weights).reshape(len(x), -1, block).sum(-1)
    yield _scaled(node, row, slice(None), _factor(shares.sum(1), error))
    for i in _best(shares, error):
        yield _scaled(node, row, slice(i * block, (i + 1) * block), _factor(shares[:, i], error))
    for i in _best(x * weights, error):
        if weights[i]:
            yield _scaled(node, row, slice(i, i + 1), _factor(x[:, i] * weights[i], error))


def _guessed(lab: Lab, node: Node, row: int) -> Iterator[Hypothesis]:
    """What flipped bits make of each block of the row: where its feature was not dumped, they are tried."""
    block = max(32, lab.model.file.tensors[node.weights[0]].type.block_size)
    width = lab.graph.weights[node.weights[0]][-1]
    yield _scaled(node, row, slice(None), 0.0)
    for i in range(width // block):
        for factor in _FLIPS:
            yield _scaled(node, row, slice(i * block, (i + 1) * block), factor)


def _best(shares: Array, error: Array) -> list[int]:
    """The columns in proportion to the deviation, by what is left of it."""
    power = np.sum(shares * shares, axis=0) + 1e-300
    gained = (error @ shares) ** 2 / power
    return [int(i) for i in np.argsort(-gained)[:_PARTS]]


def _factor(share: Array, error: Array) -> float:
    return 1 + float(share @ error) / (float(share @ share) + 1e-300)


def _scaled(node: Node, row: int, part: slice, factor: float) -> Hypothesis:
    """The weights of the row's part times a factor."""
    where = "" if part == slice(None) else f", elements {part.start} to {part.stop - 1}"
    label = f"times {factor:.6g} in row {row}{where}"

    def edit(c: Context, here: Node, p: float) -> Change | None:
        if here.name != node.name:
            return None

        def run(x: Array, W: Array) -> Array:
            value = linear(x, W).copy()
            flat, weights = x.reshape(len(x), -1), np.asarray(W[row : row + 1][0], x.dtype)
            value[:, row] += (factor - 1) * (flat[:, part] @ weights[part])
            return value

        return Change(here, run)

    return Hypothesis(FAULT, Variant(label, edit))
