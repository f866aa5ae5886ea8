"""Slots beside the pages: rows of layers with a sliding window, and state that has a fixed size for each sequence.

`pages.py` owns the objects of this module and calls them as sequences start, grow and end. Touch this when such memory
is to be given out or evicted in another order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class WindowSlots:
    """The slots of layers that see `positions` back, a token's own among them.

    A page has a slot here while some sequence can still see it. Afterwards it keeps the slot until another page needs
    it; the page that has been out of sight longest loses its slot first.
    """

    def __init__(self, positions: int, n_slots: int) -> None:
        self.positions, self.n_slots = positions, n_slots
        self.slots: dict[int, int] = {}  # by page
        self._readers: dict[int, int] = {}  # by page: sequences that can see it
        self._idle: OrderedDict[int, None] = OrderedDict()  # pages without readers, oldest first
        self._fresh = 0  # slots from here on were never used
        self._free: list[int] = []

    @property
    def available(self) -> int:
        """Slots that new pages can have, after eviction."""
        return self.n_slots - self._fresh + len(self._free) + len(self._idle)

    def first(self, length: int, page_size: int) -> int:
        """The first page that the token at place `length` sees."""
        return max(0, length - self.positions + 1) // page_size

    def take(self, page: int) -> None:
        """Give a slot to a page that one sequence is about to write."""
        if not self._free and self._fresh == self.n_slots:
            self.drop(next(iter(self._idle)))
        if self._free:
            self.slots[page] = self._free.pop()
        else:
            self.slots[page] = self._fresh
            self._fresh += 1
        self._readers[page] = 1

    def hold(self, page: int) -> None:
        """One more sequence sees the page."""
        self._readers[page] += 1
        self._idle.pop(page, None)

    def release(self, page: int) -> None:
        """One sequence no longer sees the page."""
        self._readers[page] -= 1
        if not self._readers[page]:
            self._idle[page] = None

    def drop(self, page: int) -> None:
        """Free the page's slot, if it still has one."""
        if page in self.slots:
            self._free.append(self.slots.pop(page))
            del self._readers[page]
            self._idle.pop(page, None)

    def merge(self, page: int, other: int) -> None:
        """A sequence drops `page` and reads `other`, which holds the same. If `other` has lost its slot, it inherits
        the slot of `page`."""
        if other in self.slots:
            self.hold(other)
            self.drop(page)
        else:
            self.slots[other], self._readers[other] = self.slots.pop(page), self._readers.pop(page)

    def check(self, readers: dict[int, int]) -> None:
        """Raise AssertionError unless exactly these pages and idle ones have slots, each its own."""
        assert self._readers == {page: readers.get(page, 0) for page in self.slots}, "a count of a window is wrong"
        assert readers.keys() <= self.slots.keys(), "a page that is seen has no slot"
        assert set(self._idle) == {page for page, n in self._readers.items() if not n}
        assert sorted([*self._free, *self.slots.values()]) == list(range(self._fresh)), "a slot is lost or used twice"


class StateSlots:
    """Slots for state of a fixed size: a working slot for each running sequence, and snapshots.

    Tokens cannot be taken back from such state. So a prefix can be resumed only where a snapshot was taken: at the end
    of a page, when a step ended exactly there. A snapshot is evicted when its slot is needed, the least recently used
    one first, and it goes with its page. `copy(source, to)` is the engine's.
    """

    def __init__(self, n_slots: int, copy: Callable[[int, int], None]) -> None:
        self.n_slots = n_slots
        self._copy = copy
        self._free = list(range(n_slots))[::-1]
        self._snapshots: OrderedDict[int, int] = OrderedDict()  # page -> slot, least recently used first

    @property
    def available(self) -> int:
        """Slots that a new sequence can have, after eviction."""
        return len(self._free) + len(self._snapshots)

    def has_snapshot(self, page: int) -> bool:
        """Whether the state after the last token of this page was saved."""
        return page in self._snapshots

    def start(self, page: int | None = None) -> int:
        """A working slot, with the state after `page`, or for a new sequence. -1 where every slot is in use."""
        if page is not None and not self._free and len(self._snapshots) == 1:
            return self._snapshots.pop(page)  # the only snapshot becomes the working state, uncopied
        if page is not None:
            self._snapshots.move_to_end(page)  # or making room could evict it
        slot = self._take()
        if page is not None and slot >= 0:
            self._copy(self._snapshots[page], slot)
        return slot

    def save(self, page: int, slot: int) -> None:
        """Take a snapshot of a working slot at the end of `page`, unless there is one or no room for it."""
        if page in self._snapshots:
            self._snapshots.move_to_end(page)
        elif (to := self._take()) >= 0:
            self._copy(slot, to)
            self._snapshots[page] = to

    def free(self, slot: int) -> None:
        """A sequence ends and gives its working slot back."""
        self._free.append(slot)

    def drop(self, page: int) -> None:
        """Forget the snapshot of a page that is evicted."""
        if page in self._snapshots:
            self._free.append(self._snapshots.pop(page))

    def check(self, working: list[int], shared: set[int]) -> None:
        """Raise AssertionError unless every slot is free, a sequence's or a snapshot's, and snapshots have pages."""
        states = sorted([*self._free, *working, *self._snapshots.values()])
        assert states == list(range(self.n_slots)), "a state slot is lost or used twice"
        assert self._snapshots.keys() <= shared, "a snapshot belongs to a page that is not in the tree"

    def _take(self) -> int:
        if not self._free and self._snapshots:
            self._free.append(self._snapshots.popitem(last=False)[1])
        return self._free.pop() if self._free else -1
