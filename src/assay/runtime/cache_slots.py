"""Slots beside the pages: rows of layers with a sliding window, and state that has a fixed size for each sequence.

`pages.py` owns the objects of this module and calls them as sequences start, grow and end. Touch this when such memory
is to be given out or evicted in another order.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_SEVERAL = 2  # sequences that went on from a snapshot, from which it counts as shared


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


@dataclass(frozen=True)
class StateUse:
    """How the slots for state of a fixed size are used now, and how snapshots have fared."""

    slots: int
    running: int  # slots of running sequences
    snapshots: int
    taken: int  # snapshots since the start
    reused: int  # sequences that went on from a snapshot
    evicted: int  # snapshots that lost their slot because it was needed


class StateSlots:
    """Slots for state of a fixed size: a working slot for each running sequence, and snapshots.

    Tokens cannot be taken back from such state. So a prefix can be resumed only where a snapshot was taken: at the end
    of a page, when a step ended exactly there or kept the state after each of its tokens. A snapshot goes with its
    page. It is evicted when its slot is needed: superseded ones first, then the least recently used one.
    `copy(source, to)` is the engine's.

    A snapshot is *superseded* when a sequence that passed it has saved another one further on: the next turn of a
    conversation will use that one. Two kinds stay useful and are not superseded: those at places where prompts part,
    and those from which two sequences or more went on.

    A sequence has few snapshots, because each is as large as its whole state: one at each place in `Lease.places`, and
    one at the last page end that it passed. That one is replaced at the next page end.
    """

    def __init__(self, n_slots: int, copy: Callable[..., None]) -> None:
        self.n_slots = n_slots
        self._copy = copy
        self._free = list(range(n_slots))[::-1]
        self._snapshots: OrderedDict[int, int] = OrderedDict()  # page -> slot, least recently used first
        self._staying: set[int] = set()  # pages whose snapshot is not replaced by a later one of the same sequence
        self._superseded: OrderedDict[int, None] = OrderedDict()  # pages whose snapshots are evicted first
        self._uses: Counter[int] = Counter()  # by page: sequences that went on from its snapshot
        self._taken = self._reused = self._evicted = 0

    @property
    def available(self) -> int:
        """Slots that a new sequence can have, after eviction."""
        return len(self._free) + len(self._snapshots)

    def has_snapshot(self, page: int) -> bool:
        """Whether the state after the last token of this page was saved."""
        return page in self._snapshots

    def snapshot(self, page: int) -> int | None:
        """The slot of the state after the last token of this page, if it was saved."""
        return self._snapshots.get(page)

    def start(self, page: int | None = None) -> int:
        """A working slot, with the state after `page`, or for a new sequence. -1 where every slot is in use."""
        if page is not None and not self._free and len(self._snapshots) == 1:
            self._reused += 1
            return self._remove(page)  # the only snapshot becomes the working state, uncopied
        if page is not None:
            self._snapshots.move_to_end(page)  # or making room could evict it
            self._superseded.pop(page, None)
            self._uses[page] += 1
        slot = self._take()
        if page is not None and slot >= 0:
            self._copy(self._snapshots[page], slot)
            self._reused += 1
        return slot

    @property
    def snapshots(self) -> int:
        """How many snapshots there are."""
        return len(self._snapshots)

    @property
    def use(self) -> StateUse:
        running = self.n_slots - len(self._free) - len(self._snapshots)
        return StateUse(self.n_slots, running, self.snapshots, self._taken, self._reused, self._evicted)

    def save(
        self,
        page: int,
        slot: int,
        instead_of: int | None = None,
        *,
        stays: bool = True,
        parting: bool = False,
        length: int | None = None,
    ) -> None:
        """Take a snapshot of a working slot at the end of `page`, unless there is one or no room for it.

        With `length`, the state is the one after that many tokens: drafted ones behind it may still be taken back.
        The snapshot of page `instead_of` is given up for it, unless some sequence has saved that one to stay.
        `parting`: other sequences went on from this place in another way.
        """
        if instead_of is not None and instead_of not in self._staying:
            self.drop(instead_of)
        if stays:
            self._staying.add(page)
        if page in self._snapshots:
            self._snapshots.move_to_end(page)
        elif (to := self._take()) >= 0:
            self._copy(slot, to, *([] if length is None else [length]))
            self._snapshots[page] = to
            self._taken += 1
        if parting and page in self._snapshots:
            self._uses[page] = max(self._uses[page], _SEVERAL)

    def supersede(self, pages: Iterable[int]) -> None:
        """A sequence that passed the ends of these pages has saved a snapshot further on."""
        for page in pages:
            if page in self._snapshots and self._uses[page] < _SEVERAL:
                self._superseded[page] = None

    def duplicate(self, source: int, to: int) -> None:
        """Make a working slot hold what another one holds."""
        self._copy(source, to)

    def free(self, slot: int) -> None:
        """A sequence ends and gives its working slot back."""
        self._free.append(slot)

    def drop(self, page: int) -> None:
        """Forget the snapshot of a page that is evicted."""
        self._staying.discard(page)
        if page in self._snapshots:
            self._free.append(self._remove(page))

    def check(self, working: list[int], shared: set[int]) -> None:
        """Raise AssertionError unless every slot is free, a sequence's or a snapshot's, and snapshots have pages."""
        states = sorted([*self._free, *working, *self._snapshots.values()])
        assert states == list(range(self.n_slots)), "a state slot is lost or used twice"
        assert self._snapshots.keys() <= shared, "a snapshot belongs to a page that is not in the tree"
        assert {*self._superseded, *self._uses} <= self._snapshots.keys(), "a page without a snapshot is still counted"

    def _take(self) -> int:
        if not self._free and self._snapshots:
            self._free.append(self._remove(next(iter(self._superseded or self._snapshots))))
            self._evicted += 1
        return self._free.pop() if self._free else -1

    def _remove(self, page: int) -> int:
        """Forget a snapshot; returns its slot."""
        self._superseded.pop(page, None)
        self._uses.pop(page, None)
        return self._snapshots.pop(page)
