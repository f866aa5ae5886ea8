"""Where the state of each slot lies: a batch writes to spare places, which take effect when all of it is done.

So a batch that fails, or that is computed twice to keep further nodes, begins with the state that the one before left.
A chunk with drafted tokens writes the state after its last certain token and after each drafted one, each to a place of
its own. They stay until the next batch, so that drafted tokens can be taken back without computing anything again.

The cpu and the cuda engine have two places for each slot. Touch this when a state must survive something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Chunk, Engine, check_state_lengths
from assay.engines.plan.batching import Piece, Step
from assay.errors import AssayError

Targets = Mapping[int, Sequence[int]]  # by slot: the places of its states, that of the last token last
CONTINUES = -2  # instead of a place to read: the state that the row before has written


class StatePlaces:
    """Places 0 to 2 n - 1 for n state slots."""

    def __init__(self, slots: int) -> None:
        self.place = list(range(slots))  # of each state slot
        self.spare = list(range(2 * slots - 1, slots - 1, -1))
        self.lengths: dict[int, int] = {}  # the tokens in each slot's state, where the host knows it
        self._earlier: dict[int, dict[int, int]] = {}  # by slot: places of states before drafted tokens, by length

    @contextmanager
    def updated(self, batch: Sequence[Chunk]) -> Iterator[Targets]:
        """The places that each slot of the batch is written to. An error leaves every slot where it was."""
        if not self.place:
            yield {}
            return
        self._drop_earlier()
        needed = sum(1 + chunk.drafted for chunk in batch)
        if needed > len(self.spare):
            raise AssayError(
                f"state slots: too few for the drafted tokens of a batch (found {len(self.spare)} spare states, "
                f"expected {needed}); draft fewer tokens"
            )
        targets = {chunk.state_slot: [self.spare.pop() for _ in range(1 + chunk.drafted)] for chunk in batch}
        try:
            yield targets
        except BaseException:
            self.spare.extend(place for places in targets.values() for place in places)
            raise
        for chunk in batch:
            slot, (*earlier, last) = chunk.state_slot, targets[chunk.state_slot]
            self.spare.append(self.place[slot])
            self.place[slot] = last
            if earlier:
                self._earlier[slot] = {chunk.end - len(earlier) + i: place for i, place in enumerate(earlier)}
            self.lengths[slot] = chunk.end

    def _drop_earlier(self) -> None:
        for places in self._earlier.values():
            self.spare.extend(places.values())
        self._earlier.clear()

    def check(self, engine: Engine, batch: Sequence[Chunk]) -> None:
        """Refuse a chunk that does not go on where its state stands."""
        known = [chunk for chunk in batch if chunk.state_slot in self.lengths or not chunk.start]
        check_state_lengths(engine, known, self.lengths)

    def at(self, slot: int, length: int | None = None) -> int:
        """The place of a slot's state, or of its state after `length` tokens."""
        found = self.lengths.get(slot)
        if length is None or length == found or found is None:
            return self.place[slot]
        kept = self._earlier.get(slot, {})
        if length not in kept:
            raise AssayError(
                f"state slot {slot}: no state after {length} tokens is kept (found {[*kept, found]}); "
                "compute the sequence again from its start"
            )
        return kept[length]

    def cut(self, slot: int, length: int) -> None:
        """Take drafted tokens back: the slot's state is the one after `length` tokens."""
        place = self.at(slot, length)
        if place == self.place[slot]:
            return
        kept = self._earlier[slot]
        self.spare.append(self.place[slot])
        self.spare.extend(kept.pop(after) for after in [after for after in kept if after > length])
        self.place[slot], self.lengths[slot] = kept.pop(length), length

    def copied(self, source: int, to: int, length: int | None = None) -> None:
        """Slot `to` now has the state of `source`, or the one that it had after `length` tokens."""
        self.lengths.pop(to, None)
        self.spare.extend(self._earlier.pop(to, {}).values())
        if source in self.lengths:
            self.lengths[to] = self.lengths[source] if length is None else length

    def written(self, slot: int, length: int) -> None:
        """The slot now has the state after `length` tokens, which was not computed here."""
        self.spare.extend(self._earlier.pop(slot, {}).values())
        self.lengths[slot] = length

    def run_on(self, batch: Sequence[Chunk]) -> None:
        """The device decodes further tokens of these sequences; the host does not count them."""
        for chunk in batch:
            self.lengths.pop(chunk.state_slot, None)

    def read_and_written(self, step: Step, targets: Targets) -> NDArray[np.int32]:
        """For each place that a step writes: tokens, the place to read, the place to write, 1 where a sequence begins.

        A piece has one row, or several where states are kept between its tokens. The further ones read `CONTINUES`.
        """
        rows = [row for piece in (step.pieces if targets else ()) for row in self._rows(piece, targets)]
        return np.array(rows, np.int32).reshape(-1, 4)

    def _rows(self, piece: Piece, targets: Targets) -> Iterator[tuple[int, int, int, int]]:
        chunk, places = piece.chunk, targets[piece.chunk.state_slot]
        certain = chunk.n_tokens - chunk.drafted
        at, read = piece.begin, places[max(0, piece.begin - certain)] if piece.begin else self.place[chunk.state_slot]
        begins = int(chunk.start + at == 0)
        while at < piece.end:
            stop = min(piece.end, max(at + 1, certain))
            yield stop - at, read, places[max(0, stop - certain)], begins
            at, read, begins = stop, CONTINUES, 0
