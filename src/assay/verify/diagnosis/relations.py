"""Cheap descriptions of a deviation: what simple relation holds between what was found and what was expected?

They need neither a hypothesis nor the catalogue. With a named fault they are its fingerprint in numbers. Without one
they are all that can be said: "everything times 1.37", "rows permuted", "right only at position 0".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.verify.thresholds import CLOSE

Array = NDArray[Any]


@dataclass(frozen=True)
class Relation:
    """`text` says it, `kind` names it, `residual` is what remains, relative to what was found."""

    kind: str
    text: str
    residual: float


def relative(error: Array, found: Array) -> float:
    """rms of the error over rms of what was found."""
    size = float(np.sqrt(np.mean(np.square(found))))
    return float(np.sqrt(np.mean(np.square(error)))) / size if size else float(np.any(error))


def describe(
    found: Array,
    expected: Array,
    axis: int = 0,
    weight: Array | None = None,
    others: Mapping[str, Array] | None = None,
    starts: Array | None = None,
    block: int = 0,
) -> list[Relation]:
    """All relations that hold, the simplest first. `axis` counts tokens; `starts` gives each row's step's first row."""
    y = np.moveaxis(np.asarray(found, np.float64), axis, 0)
    x = np.moveaxis(np.asarray(expected, np.float64), axis, 0)
    if y.shape != x.shape or not y.size or not np.isfinite(y).all() or not np.isfinite(x).all():
        return []
    rows = y.reshape(len(y), -1), x.reshape(len(x), -1)
    tests: tuple[Callable[[], Iterator[Relation]], ...] = (
        lambda: _zero(*rows),
        lambda: _ratio(*rows),
        lambda: _offset(*rows),
        lambda: _elementwise(*rows, weight),
        lambda: _row_ratio(*rows),
        lambda: _rows_right(*rows, starts),
        lambda: _tail(*rows, block),
        lambda: _same_as(y, others or {}, axis),
        lambda: _row_moved(*rows),
        lambda: _permuted(*rows),
        lambda: _transposed(y, x),
    )
    return [relation for test in tests for relation in test() if relation.residual <= CLOSE]


def _zero(y: Array, x: Array) -> Iterator[Relation]:
    if x.any() and not y.any():
        yield Relation("zero", "all values are zero", 0.0)


def _ratio(y: Array, x: Array) -> Iterator[Relation]:
    power = float(np.sum(x * x))
    if power and y.any():
        k = float(np.sum(x * y)) / power
        if abs(k - 1) > 1e-6:
            yield Relation("ratio", f"every value is {k:.6g} times what it should be", relative(y - k * x, y))


def _offset(y: Array, x: Array) -> Iterator[Relation]:
    d = float(np.mean(y - x))
    if d:
        yield Relation("offset", f"every value is {d:+.6g} off", relative(y - x - d, y - x))
    column = np.mean(y - x, axis=0)
    if len(y) > 1 and not np.allclose(column, d):
        yield Relation("column offset", "every row is off by the same vector", relative(y - x - column, y - x))


def _row_ratio(y: Array, x: Array) -> Iterator[Relation]:
    power = np.sum(x * x, axis=1)
    if len(y) > 1 and (power > 0).all():
        k = np.sum(x * y, axis=1) / power
        if np.ptp(k) > 1e-6:
            text = ", ".join(f"{v:.5g}" for v in k[:6])
            yield Relation("row ratio", f"each row has a factor of its own: {text}", relative(y - k[:, None] * x, y))


def _elementwise(y: Array, x: Array, weight: Array | None) -> Iterator[Relation]:
    if weight is None or weight.ndim != 1 or len(weight) != x.shape[1] or not weight.all():
        return
    w = weight.astype(np.float64)
    for factor, text in (
        (w, "the weight is applied twice"),
        (1 / w, "the weight is not applied"),
        ((1 + w) / w, "1 + w stands for w"),
        ((w - 1) / w, "w - 1 stands for w"),
    ):
        yield Relation("weight", text, relative(y - x * factor, y))


def _rows_right(y: Array, x: Array, starts: Array | None) -> Iterator[Relation]:
    size = np.sqrt(np.mean(x * x, axis=1)) + 1e-30
    right = np.sqrt(np.mean((y - x) ** 2, axis=1)) / size <= CLOSE
    if not right.any() or right.all():
        return
    if right[0] and not right[1:].any():
        yield Relation("position 0", "right at position 0 only", 0.0)
    elif starts is not None and (starts > 0).any() and np.array_equal(right, starts == 0):
        yield Relation("decode", "right in the prompt, wrong in the decode steps", 0.0)
    elif right[-1] and not right[:-1].any():
        yield Relation("last row", "right in the last row only", 0.0)
    else:
        wrong = ", ".join(map(str, np.flatnonzero(~right)[:8]))
        yield Relation("rows", f"wrong in rows {wrong} only", 0.0)


def _tail(y: Array, x: Array, block: int) -> Iterator[Relation]:
    width = y.shape[1]
    if (y[:, -1] == 0).all() and x[:, -1].any():
        kept = width - int(np.argmax((y[:, ::-1] != 0).any(axis=0)))
        text = f"zero from element {kept} on"
        yield Relation("zero tail", text, relative(y[:, :kept] - x[:, :kept], y[:, :kept]) if y.any() else 0.0)
    for size in (block, 32, 64, 128, 256):
        if 1 < size < width and relative(y[:, :size] - x[:, :size], x[:, :size]) <= CLOSE < relative(y - x, x):
            yield Relation("first block", f"right in the first {size} elements only", 0.0)
            return


def _same_as(y: Array, others: Mapping[str, Array], axis: int) -> Iterator[Relation]:
    for name, value in others.items():
        z = np.moveaxis(value, axis, 0) if value.ndim == y.ndim else value
        if z.size == y.size and z.any():
            z = z.reshape(y.shape)
            residual = relative(y - z, z)
            if residual <= CLOSE:
                yield Relation("same as", f"equal to {name}", residual)


def _row_moved(y: Array, x: Array) -> Iterator[Relation]:
    """Rows that are another token's."""
    if len(y) < 2:
        return
    size = np.sum(x * x) / len(x) + 1e-30
    distance = ((y[:, None, :] - x[None, :, :]) ** 2).mean(-1) * x.shape[1] / size if y.size < 1 << 20 else None
    if distance is None:
        return
    nearest = distance.argmin(1)
    close = distance.min(1) <= CLOSE**2
    moved = close & (nearest != np.arange(len(y)))
    if moved.any() and close.all():
        pairs = ", ".join(f"{t} holds {nearest[t]}'s" for t in np.flatnonzero(moved)[:4])
        yield Relation("rows moved", f"rows are other tokens': {pairs}", 0.0)


def _permuted(y: Array, x: Array) -> Iterator[Relation]:
    """The same numbers in another order: one permutation of the features for all rows."""
    if y.shape[1] > 1 << 16 or relative(y - x, x) < 50 * CLOSE:
        return
    if relative(np.sort(y, axis=1) - np.sort(x, axis=1), x) > CLOSE:
        return
    text = "the same numbers in another order"
    order = np.argsort(np.argsort(y[-1])), np.argsort(x[-1])
    if relative(y - x[:, order[1][order[0]]], y) <= CLOSE:
        moves = order[1][order[0]]
        text += f": element 1 is element {moves[1]}, 2 is {moves[2]}" if len(moves) > 2 else ""
    yield Relation("permuted", text, 0.0)


def _transposed(y: Array, x: Array) -> Iterator[Relation]:
    """Axes exchanged inside each row, where the row has two."""
    if y.ndim != 3 or y.shape[1] == 1 or y.shape[2] == 1:
        return
    other = x.reshape(len(x), x.shape[2], x.shape[1]).swapaxes(1, 2)
    yield Relation("transposed", "heads and dimensions exchanged", relative(y - other, y))


# -- where nothing simple holds: what is affected --------------------------------------------------------------------

_AXES = {1: ("values",), 2: ("rows", "values"), 3: ("rows", "heads", "values of each")}


def extent(found: Array, expected: Array, axis: int = 0) -> Relation | None:
    """Which rows, heads and values differ, how the found values correlate with the right ones, and their size."""
    y = np.moveaxis(np.asarray(found, np.float64), axis, 0)
    x = np.moveaxis(np.asarray(expected, np.float64), axis, 0)
    finite = np.isfinite(x) & np.isfinite(y)
    if y.shape != x.shape or y.ndim not in _AXES or not finite.any():
        return None
    y, x = np.where(finite, y, 0), np.where(finite, x, 0)
    off = np.abs(y - x) > CLOSE * np.sqrt(np.mean(x * x))
    if not off.any():
        return None
    parts = []
    for i, what in enumerate(_AXES[y.ndim]):
        touched = np.flatnonzero(off.any(axis=tuple(j for j in range(y.ndim) if j != i)))
        if len(touched) < y.shape[i]:
            parts.append(f"{what} {ranges(touched.tolist())} of {y.shape[i]}")
    return Relation("extent", _alike(f"differs in {', '.join(parts) or 'all values'}", y[off], x[off]), 1.0)


def extent_of_rows(rows: Mapping[int, bool], found: Array, expected: Array) -> Relation | None:
    """The same for some observed numbers: by row, whether they differ."""
    wrong = sorted(row for row, off in rows.items() if off)
    where = f"rows {ranges(wrong)} of the observed {ranges(sorted(rows))}" if len(wrong) < len(rows) else "all of it"
    return Relation("extent", _alike(f"differs in {where}", found, expected), 1.0)


def _alike(text: str, y: Array, x: Array) -> str:
    size, right = float(np.sqrt(np.mean(y * y))), float(np.sqrt(np.mean(x * x)))
    if not size or not right or y.size < 3:
        return text
    both, times = float(np.mean(x * y)) / (size * right), size / right
    return f"{text}; the correlation with the right values is {both:.3g} there, the size {times:.3g} times theirs"


def ranges(numbers: Sequence[int]) -> str:
    """`0, 3 to 7, 9`."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], n]
        else:
            parts.append([n])
    said = [str(p[0]) if len(p) == 1 else f"{p[0]} to {p[-1]}" for p in parts]
    return ", ".join(said[:8]) + (f" and {len(said) - 8} more" if len(said) > 8 else "")
