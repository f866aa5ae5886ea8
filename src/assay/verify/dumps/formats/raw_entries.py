"""Entries of raw files: where an array's numbers stand, and how entries of single rows and heads become whole arrays.

An engine that writes a token at a time has an entry for each row of a node, and for each head of its attention weights.
Rows side by side become one array. The weights of later rows are longer; shorter ones are filled with zeros, as the
mask has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.verify.dumps.formats.element_types import STORED, as_numbers
from assay.verify.dumps.formats.numpy_files import Member, read_raw

Array = NDArray[Any]
_LARGEST = 1 << 24  # numbers of an array that is filled with zeros


@dataclass(frozen=True)
class RawEntry:
    """An array of a data file. An open number is -1: the offset, or the count of a flat array."""

    file: Path
    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: str  # empty: decided by the size of the file
    row: int | None = None
    head: int | None = None
    step: str = ""
    big: bool = False
    sized: int = 0  # a size that may count bytes or elements

    @property
    def count(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class JoinedRows:
    """An array of the rows side by side from `start` on; of all rows without a `start`."""

    start: int | None
    member: Member

    @property
    def shape(self) -> tuple[int, ...]:
        return self.member[0]


def joined_rows(several: Sequence[RawEntry]) -> list[JoinedRows]:
    """One array of all rows, if each token has its own entry; arrays of rows side by side; else the first entry."""
    first = several[0]
    rows: dict[int, dict[int, RawEntry]] = {}
    for entry in several:
        if entry.row is None:
            return [JoinedRows(None, (first.shape, partial(read_entry, first)))]
        rows.setdefault(entry.row, {})[entry.head if entry.head is not None else 0] = entry
    heads = sorted(rows[min(rows)])
    by_head = any(entry.head is not None for entry in several)
    if any(sorted(of) != heads for of in rows.values()) or sum(map(len, rows.values())) != len(several):
        return [JoinedRows(None, (first.shape, partial(read_entry, first)))]
    found = []
    for run in _runs(sorted(rows)):
        grid = [[rows[row][head] for row in run] for head in heads]
        member = _member(grid if by_head else grid[:1], by_head)
        if member is not None:
            found.append(JoinedRows(run[0], member))
    if len(found) == 1 and found[0].start == 0:
        return [JoinedRows(None, found[0].member)]
    return found or [JoinedRows(None, (first.shape, partial(read_entry, first)))]


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Numbers that follow each other."""
    runs = [[numbers[0]]]
    for a, b in pairwise(numbers):
        if b == a + 1:
            runs[-1].append(b)
        else:
            runs.append([b])
    return runs


def _member(grid: list[list[RawEntry]], by_head: bool) -> Member | None:
    """The array of all rows of each head; None where its rows do not fit together."""
    shapes = {entry.shape for of in grid for entry in of}
    widths = {shape[-1] for shape in shapes}
    if len({shape[:-1] for shape in shapes}) > 1 or (len(widths) > 1 and not by_head):
        return None
    shape = (*grid[0][0].shape[:-1], max(widths))
    whole = (len(grid), len(grid[0]), *shape) if by_head else (len(grid[0]), *shape)
    if len(widths) > 1 and math.prod(whole) > _LARGEST:
        return None
    return whole, partial(_filled, grid, whole)


def _filled(grid: list[list[RawEntry]], shape: tuple[int, ...]) -> Array:
    rows = [[read_entry(entry) for entry in of] for of in grid]
    out = np.zeros(
        (len(grid), len(grid[0]), *shape[-len(rows[0][0].shape) :]), np.result_type(*(r for of in rows for r in of))
    )
    for h, of in enumerate(rows):
        for t, row in enumerate(of):
            out[h, t][tuple(slice(0, n) for n in row.shape)] = row
    return out.reshape(shape)


def read_entry(entry: RawEntry) -> Array:
    """The numbers of an entry."""
    stored = STORED[entry.dtype].replace("<", ">") if entry.big else STORED[entry.dtype]
    raw = read_raw(f"{entry.file}: {entry.name}", entry.file, entry.offset, entry.count, stored)
    return as_numbers(raw.astype(STORED[entry.dtype]) if entry.big else raw, entry.dtype).reshape(entry.shape)
