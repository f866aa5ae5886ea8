"""The words of a step: what the kernels must know of its tokens (`shaders/step.wgsl` reads them).

    word 0, 1   tokens and output rows
    word 2      where the list of output rows' tokens begins
    word 3      where the state of each piece begins: first token, tokens, place to read, place to write, 1 at the start
    word 4 + i  where rope table i begins: a row of cosines, then sines, for each token
    word 16     8 words for each token: id, position, slot, keys of its sequence, where its page table begins, and the
                last slot of its sequence that it sees, where that is given
    then        page tables, output rows, states, rope tables

Touch it together with the shader.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from assay import _native
from assay.engines.contract import PAGE, pages_for
from assay.engines.plan.batching import Step
from assay.engines.plan.values import RopeTable
from assay.models.pictures import LAST

HEADER, RECORD, MAX_TABLES = 16, 8, 12


def step_words(
    step: Step, ropes: Sequence[NDArray[np.float32]], states: NDArray[np.int32] | None = None
) -> NDArray[np.uint32]:
    """The words of a step. `ropes` has the rows of each rope table, `states` those of `StatePlaces`, if any."""
    n = step.n_tokens
    records = np.zeros((n, RECORD), np.int64)
    records[:, 0] = step.tokens()
    records[:, 1] = step.positions()
    tables, outputs = [], []
    first, at = 0, HEADER + RECORD * n
    for piece in step.pieces:
        count, start = piece.end - piece.begin, piece.chunk.start + piece.begin
        rows = records[first : first + count]
        pages = piece.chunk.pages[: pages_for(start + count)]
        slots = np.arange(start, start + count)
        rows[:, 2] = pages[slots // PAGE].astype(np.int64) * PAGE + slots % PAGE
        rows[:, 3] = start + count
        rows[:, 4] = at
        if LAST in piece.chunk.rows:
            rows[:, 5] = piece.chunk.rows[LAST][piece.begin : piece.end, 0]
        tables.append(pages)
        outputs.append(np.arange(first + count - piece.n_outputs, first + count))
        first, at = first + count, at + len(pages)
    header = np.zeros(HEADER, np.int64)
    header[:3] = n, step.n_outputs, at
    at += step.n_outputs
    places = np.zeros((0, 5), np.int64)
    if states is not None and len(states):
        ends = np.cumsum(states[:, 0])
        places = np.column_stack([ends - states[:, 0], states])
    header[3] = at
    at += places.size
    for i, table in enumerate(ropes):
        header[4 + i] = at
        at += table.size
    integers = np.concatenate([header, records.ravel(), *tables, *outputs, places.ravel()]).astype(np.uint32)
    return np.concatenate([integers, *(table.reshape(-1).view(np.uint32) for table in ropes)])


class RopeRows:
    """Cosines and sines of positions, computed by the native engine: WGSL has no doubles."""

    ROWS = 1024  # most positions at once

    def __init__(self, tables: Sequence[RopeTable]) -> None:
        self.tables = tables
        if not tables:
            return
        self._program = _native.Program(_native.Pool(1), _native.Cache([(0, self.ROWS // PAGE)], []), False)
        for table in tables:
            value = self._program.value(table.n_rot, "tokens", True)
            self._program.rope_table(list(table.frequencies), table.magnitude, value)

    def at(self, positions: NDArray[np.int32]) -> list[NDArray[np.float32]]:
        """For each table the rows of these positions."""
        found = [np.empty((len(positions), table.n_rot), np.float32) for table in self.tables]
        pages = np.arange(self.ROWS // PAGE, dtype=np.int32)
        for first in range(0, len(positions) if self.tables else 0, self.ROWS):
            some = np.ascontiguousarray(positions[first : first + self.ROWS])
            chunk = np.array([[len(some), 0, 0, len(pages), 0]], np.int32)
            rows = [array[first : first + self.ROWS].reshape(-1) for array in found]
            none = np.empty((0, 4), np.int32)
            self._program.run(np.zeros(len(some), np.int32), some, chunk, pages, none, rows, False)
        return found
