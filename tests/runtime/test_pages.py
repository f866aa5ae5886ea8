"""Pages: small cases first, then random histories against a cache that remembers what was written where."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from assay.errors import AssayError
from assay.runtime.cache_slots import StateSlots, StateUse
from assay.runtime.pages import Lease, OutOfPages, Pages
from assay.runtime.prefix_keys import PrefixFeed, feed_keys, page_names


def run(pages: Pages, tokens: list[int]) -> Lease:
    """Open, reserve, commit: what a prefill does."""
    lease = pages.open(tokens)
    pages.reserve(lease, len(tokens) - lease.length)
    pages.commit(lease, tokens[lease.length :])
    pages.check()
    return lease


def test_a_second_sequence_names_the_same_pages() -> None:
    pages = Pages(8, page_size=2)
    first = run(pages, [1, 2, 3, 4, 5])
    second = pages.open([1, 2, 3, 4, 9])
    assert second.length == 4
    assert second.pages.tolist() == first.pages.tolist()[:2]
    assert pages.match([1, 2, 3, 4, 9]) == 4
    assert pages.match([1, 2, 9, 9, 9]) == 2
    assert pages.match([9, 1, 2]) == 0


def test_the_last_token_is_always_computed() -> None:
    """A prompt that is in the cache as a whole still needs its logits."""
    pages = Pages(8, page_size=2)
    pages.close(run(pages, [1, 2, 3, 4]))
    assert pages.open([1, 2, 3, 4]).length == 2
    assert pages.open([1, 2, 3]).length == 2
    assert pages.open([1]).length == 0
    assert pages.open([]).length == 0


def test_a_partial_page_is_not_shared() -> None:
    pages = Pages(8, page_size=4)
    first = run(pages, [1, 2, 3, 4, 5, 6])
    second = run(pages, [1, 2, 3, 4, 5, 6])
    assert first.pages[0] == second.pages[0]
    assert first.pages[1] != second.pages[1]


class Copies:
    """Pages of 4 that note what is copied."""

    def __init__(self, n_pages: int) -> None:
        self.made: list[tuple[int, int]] = []
        self.pages = Pages(n_pages, page_size=4, copy=lambda source, to: self.made.append((source, to)))


def test_a_prefix_that_ends_inside_a_page_is_copied() -> None:
    copies = Copies(8)
    pages = copies.pages
    first = run(pages, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    second = pages.open([1, 2, 3, 4, 5, 6, 0, 0, 0])
    assert (second.length, second.tokens) == (6, [1, 2, 3, 4, 5, 6])
    assert copies.made == [(first.pages[1], second.pages[1])]
    assert second.pages[1] not in first.pages.tolist()
    pages.check()


@pytest.mark.parametrize(
    ("tokens", "length"),
    [
        ([1, 2, 3, 4], 3),  # the last token is always computed
        ([1, 2, 3], 2),
        ([1], 0),
        ([1, 2, 9, 9, 9], 2),
        ([1, 7, 7, 7, 7], 3),  # the longer match is the other neighbour in sorted order
        ([2, 2, 3, 4, 5], 0),
        ([0], 0),
        ([], 0),
    ],
)
def test_the_closest_page_is_the_one_copied(tokens: list[int], length: int) -> None:
    pages = Copies(8).pages
    for prompt in ([1, 2, 3, 4, 5], [1, 7, 7, 8, 5], [9, 9, 9, 9, 9]):
        pages.close(run(pages, prompt))
    lease = pages.open(tokens)
    assert lease.length == length
    assert lease.n_pages == (length > 0)
    pages.check()


def test_the_only_room_may_be_the_page_to_copy() -> None:
    """Then no page is free to copy it to, and it stays."""
    copies = Copies(1)
    copies.pages.close(run(copies.pages, [1, 2, 3, 4]))
    lease = copies.pages.open([1, 2, 3, 9, 9])
    assert (lease.length, copies.made) == (0, [])
    assert copies.pages.match([1, 2, 3, 4, 5]) == 4
    copies.pages.reserve(lease, 4)
    copies.pages.check()


def test_the_prefix_must_match_from_the_start() -> None:
    """The same tokens after other ones have other keys and values."""
    pages = Pages(8, page_size=2)
    run(pages, [1, 2, 3, 4, 5])
    assert pages.match([3, 4, 5]) == 0


def test_two_that_computed_the_same_end_up_sharing() -> None:
    pages = Pages(8, page_size=2)
    a, b = pages.open([1, 2, 3]), pages.open([1, 2, 3])
    for lease in (a, b):
        pages.reserve(lease, 3)
        pages.commit(lease, [1, 2, 3])
    pages.check()
    assert a.pages[0] == b.pages[0]
    assert pages.available == 8 - 3


def test_out_of_pages_changes_nothing() -> None:
    pages = Pages(2, page_size=2)
    first = run(pages, [1, 2, 3])
    second = pages.open([7, 8])
    with pytest.raises(OutOfPages, match=r"1 more pages are needed \(found 0 available of 2\)"):
        pages.reserve(second, 2)
    pages.check()
    assert second.pages.tolist() == []
    pages.close(first)
    pages.reserve(second, 2)
    pages.check()


def test_the_least_recently_used_goes_first() -> None:
    pages = Pages(3, page_size=1)
    for token in (1, 2, 3):
        pages.close(run(pages, [token]))
    pages.close(pages.open([1, 99]))  # 1 is used again
    pages.close(run(pages, [4]))
    assert [pages.match([t, 99]) for t in (1, 2, 3, 4)] == [1, 0, 1, 1]


def test_leaves_go_before_their_parents() -> None:
    pages = Pages(3, page_size=1)
    pages.close(run(pages, [1, 2, 3]))
    pages.close(run(pages, [9]))
    assert pages.match([1, 2, 3, 4]) == 2


def test_a_huge_cache_costs_nothing_until_used() -> None:
    pages = Pages(2**40)
    assert run(pages, [1, 2, 3]).pages.tolist() == [0]
    assert pages.available == 2**40 - 1


def test_clear_forgets_idle_pages_only() -> None:
    pages = Pages(4, page_size=1)
    held = run(pages, [1])
    pages.close(run(pages, [2]))
    pages.clear()
    pages.check()
    assert (pages.match([1, 9]), pages.match([2, 9])) == (1, 0)
    pages.close(held)


def test_misuse_is_refused() -> None:
    pages = Pages(2, page_size=2)
    lease = pages.open([1])
    with pytest.raises(ValueError, match="reserved"):
        pages.commit(lease, [1])
    pages.close(lease)
    pages.close(lease)
    with pytest.raises(ValueError, match="closed"):
        pages.reserve(lease, 1)
    with pytest.raises(AssayError, match="at least one page"):
        Pages(0)


def test_a_long_sequence_holds_the_slots_of_its_window() -> None:
    pages = Pages(100, page_size=2, windows={5: 4})
    lease = pages.open([])
    for token in range(150):
        pages.reserve(lease, 1)
        pages.commit(lease, [token])
        pages.check()
        table = lease.windows[5]
        assert len(table) == lease.n_pages
        assert (table >= 0).sum() <= 4
        assert (table[max(0, token + 1 - 5 + 1) // 2 :] >= 0).all()


def test_a_prefix_is_shared_where_its_last_window_is_there() -> None:
    """Slots behind a window are reused: a prefix that ends there is computed again, a longer one is not."""
    pages = Pages(100, page_size=2, windows={5: 6})
    pages.close(run(pages, list(range(8))))
    assert pages.match(list(range(8))) == 6
    lease = pages.open(list(range(20)))
    while lease.length < 20:
        pages.reserve(lease, 2)
        pages.commit(lease, list(range(lease.length, lease.length + 2)))
    pages.close(lease)
    assert pages.match(list(range(21))) == 20
    assert pages.match([*range(10), 99]) == 0  # its last window is gone
    assert pages.match([*range(16), 99]) in (0, 16)
    pages.check()


def test_a_window_decides_how_much_is_computed_at_once() -> None:
    pages = Pages(100, page_size=2, windows={5: 6})
    lease = pages.open([])
    for _ in range(10):
        pages.reserve(lease, pages.step)
        pages.commit(lease, list(range(pages.step)))
        pages.check()
    with pytest.raises(OutOfPages, match="available of 6"):
        pages.reserve(lease, 9)
    pages.check()


def test_a_page_computed_twice_gets_its_slot_back() -> None:
    """The page is in the tree, but its slot was given to another page."""
    pages = Pages(100, page_size=2, windows={3: 7})
    first, second = pages.open([1, 2, 3]), pages.open([1, 2, 3])
    pages.reserve(second, 2)
    for lease, tokens in ((first, [1, 2, *range(10, 24)]), (second, [1, 2])):
        while tokens:
            pages.reserve(lease, 2)
            pages.commit(lease, tokens[:2])
            tokens = tokens[2:]
            pages.check()
    assert second.pages[0] == first.pages[0]
    assert second.windows[3][0] >= 0
    assert first.windows[3][0] == -1


SIZE = 3
tokens_ = st.lists(st.integers(0, 2), max_size=12)


class Histories(RuleBasedStateMachine):
    """A model cache: `memory[slot]` is what an engine would have written, the token and all before it; so for the
    slots of each window."""

    leases = Bundle("leases")
    windows: Mapping[int, int] = MappingProxyType({})

    def __init__(self) -> None:
        super().__init__()
        self.pages = Pages(6, page_size=SIZE, copy=self.copy, windows=self.windows)
        self.memory: dict[tuple[int, int], tuple[int, ...]] = {}  # by window and slot

    def copy(self, source: int, to: int, window: int = 0) -> None:
        assert to not in {page for lease in self.pages._leases for page in self.table(lease, window)}
        for i in range(SIZE):
            self.memory[window, to * SIZE + i] = self.memory[window, source * SIZE + i]

    def table(self, lease: Lease, window: int) -> list[int]:
        found = lease.windows[window] if window else lease.pages
        return [int(page) for page in found]

    def slot(self, lease: Lease, position: int, window: int) -> int:
        page = self.table(lease, window)[position // SIZE]
        assert page >= 0, "a page that is seen has no slot"
        return page * SIZE + position % SIZE

    def seen(self, lease: Lease, window: int) -> range:
        """What its next token sees."""
        return range(max(0, lease.length - window + 1) if window else 0, lease.length)

    def compute(self, lease: Lease, tokens: list[int]) -> None:
        self.pages.reserve(lease, len(tokens))
        others = [o for o in self.pages._leases if o is not lease]
        for window in (0, *self.windows):
            for offset, token in enumerate(tokens):
                slot = self.slot(lease, lease.length + offset, window)
                read_elsewhere = {self.slot(o, p, window) for o in others for p in self.seen(o, window)}
                assert slot not in read_elsewhere, "a page that others read was written"
                self.memory[window, slot] = (*lease.tokens, *tokens[: offset + 1])
                assert token == self.memory[window, slot][-1]
        self.pages.commit(lease, tokens)

    @rule(target=leases, tokens=tokens_)
    def open(self, tokens: list[int]) -> tuple[Lease, list[int]]:
        lease = self.pages.open(tokens)
        assert self.pages.match(tokens) <= lease.length < max(len(tokens), 1)
        assert lease.tokens == tokens[: lease.length]
        return lease, tokens[lease.length :]

    @rule(target=leases, taken=consumes(leases), count=st.integers(1, 9))
    def prefill(self, taken: tuple[Lease, list[int]], count: int) -> tuple[Lease, list[int]]:
        """A chunk of what the lease was opened for."""
        lease, rest = taken
        before = (lease.tokens.copy(), lease.pages.tolist())
        try:
            self.compute(lease, rest[:count])
        except OutOfPages:
            assert before == (lease.tokens, lease.pages.tolist())
            return taken
        return lease, rest[count:]

    @rule(taken=leases, token=st.integers(0, 2))
    def decode(self, taken: tuple[Lease, list[int]], token: int) -> None:
        lease, rest = taken
        slots = not self.pages.states or lease.state_slot >= 0
        if not rest and slots and self.pages.available and all(w.available for w in self.pages.windows):
            self.compute(lease, [token])

    @rule(taken=consumes(leases))
    def close(self, taken: tuple[Lease, list[int]]) -> None:
        self.pages.close(taken[0])

    @rule()
    def clear(self) -> None:
        self.pages.clear()

    @invariant()
    def pages_are_consistent(self) -> None:
        self.pages.check()

    @invariant()
    def every_lease_reads_its_own_history(self) -> None:
        for lease in self.pages._leases:
            for window in (0, *self.windows):
                for position in self.seen(lease, window):
                    assert self.memory[window, self.slot(lease, position, window)] == tuple(
                        lease.tokens[: position + 1]
                    )


class WindowHistories(Histories):
    """The same with layers that see 4 back, and others that see 2."""

    windows: Mapping[int, int] = MappingProxyType({4: 5, 2: 4})


_SETTINGS = settings(max_examples=120, stateful_step_count=40, deadline=None)
Histories.TestCase.settings = WindowHistories.TestCase.settings = _SETTINGS
TestHistories, TestWindowHistories = Histories.TestCase, WindowHistories.TestCase


def test_state_slots_are_resumed_at_snapshots_only() -> None:
    copied: list[tuple[int, int]] = []
    pages = Pages(8, page_size=2, copy=lambda *_: None, states=StateSlots(3, lambda a, b: copied.append((a, b))))
    assert not pages.copies
    first = run(pages, [1, 2, 3, 4, 5])  # the step ends inside a page: no snapshot, nothing to resume
    assert pages.match([1, 2, 3, 4, 5, 6]) == 0 and not copied
    pages.close(first)
    second = run(pages, [1, 2, 3, 4])
    assert pages.match([1, 2, 3, 4, 9]) == 4 and pages.match([1, 2, 9]) == 0
    third = pages.open([1, 2, 3, 4, 9])
    assert third.length == 4 and copied[-1][1] == third.state_slot != second.state_slot
    fourth = pages.open([7, 8])  # takes the snapshot's slot
    assert pages.match([1, 2, 3, 4, 9]) == 0
    fifth = pages.open([7, 8])
    assert fifth.state_slot == -1 and not pages.fits(fifth, 2, 2, 0)
    with pytest.raises(OutOfPages, match="3 state slots"):
        pages.reserve(fifth, 1)
    pages.close(fourth)
    pages.reserve(fifth, 1)
    pages.check()


def test_the_only_snapshot_becomes_the_working_state() -> None:
    copied: list[tuple[int, int]] = []
    pages = Pages(8, page_size=2, states=StateSlots(2, lambda a, b: copied.append((a, b))))
    first = run(pages, [1, 2])
    second = pages.open([1, 2, 3])
    assert len(copied) == 1 and second.length == 2 and second.state_slot != first.state_slot
    pages.check()
    assert pages.match([1, 2, 3]) == 0


def test_a_prefix_is_what_was_fed_and_not_ids_alone() -> None:
    """Rows that are given, and positions of several numbers, are part of the key of a prefix."""
    ids, row = [1, 2, 3, 4, 5], np.arange(4, dtype=np.float32)
    feeds = [
        PrefixFeed(ids),
        PrefixFeed(ids, {1: row}),
        PrefixFeed(ids, {1: row + 1}),
        PrefixFeed(ids, {1: row.astype(np.float16)}),
        PrefixFeed(ids, {2: row}),
        PrefixFeed(ids, positions={1: (1, 0, 0)}),
        PrefixFeed(ids, positions={1: (1, 0, 1)}),
        PrefixFeed(ids, {1: row}, {1: (1, 0, 1)}),
    ]
    assert len({tuple(feed_keys(feed)) for feed in feeds}) == len({page_names(feed, 4)[0] for feed in feeds}) == 8
    assert feed_keys(PrefixFeed(ids)) == feed_keys(ids) == ids
    assert page_names(PrefixFeed(ids, {1: row.copy()}), 4) == page_names(feeds[1], 4)
    pages = Pages(16, page_size=2)
    lease = pages.open(feeds[1])
    pages.reserve(lease, 5)
    pages.commit(lease, feeds[1])
    pages.check()
    assert [pages.match(feed) for feed in feeds] == [0, 4, 0, 0, 0, 0, 0, 0]


class StateHistories(Histories):
    """The same with state that cannot be cut: a slot holds all tokens that were computed in it."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, tuple[int, ...]] = {}
        self.pages = Pages(6, page_size=SIZE, copy=self.copy, states=StateSlots(4, self.copy_state))

    def copy_state(self, source: int, to: int) -> None:
        assert to not in {lease.state_slot for lease in self.pages._leases}
        self.held[to] = self.held[source]

    def compute(self, lease: Lease, tokens: list[int]) -> None:
        self.pages.reserve(lease, len(tokens))
        if tokens:
            self.held[lease.state_slot] = (*(self.held[lease.state_slot] if lease.length else ()), *tokens)
        super().compute(lease, tokens)

    @invariant()
    def every_slot_holds_its_own_history(self) -> None:
        for lease in self.pages._leases:
            if lease.length:
                assert self.held[lease.state_slot] == tuple(lease.tokens)


StateHistories.TestCase.settings = _SETTINGS
TestStateHistories = StateHistories.TestCase


def converse(slots: int, conversations: int, turns: int = 6) -> tuple[Pages, list[int]]:
    """Conversations with a common start take turns; the tokens of each turn that had to be computed, after the first.

    A turn asks 5 tokens, and its answer has 3. The pages are many, so only snapshots can be short.
    """
    pages = Pages(1000, page_size=4, states=StateSlots(slots, lambda source, to: None))
    computed = []
    for turn in range(turns):
        for who in range(conversations):
            text = [1, 2, 3, 4, *(100 * (who + 1) + i for i in range(8 * turn + 8))]
            lease = pages.open(text[:-3])
            if turn:
                computed.append(len(text) - 3 - lease.length)
            while lease.length < len(text):
                end = len(text) - 3 if lease.length < len(text) - 3 else lease.length + 1
                end = pages.next_place(lease, end)
                pages.reserve(lease, end - lease.length)
                pages.commit(lease, text[lease.length : end])
            pages.close(lease)
            pages.check()
    return pages, computed


def test_snapshots_of_earlier_turns_are_evicted_first() -> None:
    """Room for two snapshots of each conversation is enough for every turn to go on where the last one ended."""
    pages, computed = converse(slots=2 * 5 + 2, conversations=5)
    assert pages.states and set(computed) == {5}
    use = pages.states.use
    assert use.evicted and use.running == 0 and use.snapshots <= use.slots
    assert use.reused >= len(computed)


def test_a_snapshot_where_prompts_part_is_kept() -> None:
    """After many turns of five conversations, a new one still goes on from the end of their common start."""
    pages, _ = converse(slots=2 * 5 + 2, conversations=5, turns=9)
    lease = pages.open([1, 2, 3, 4, 7, 8, 9])
    assert lease.length == 4
    pages.close(lease)


def test_a_used_snapshot_is_superseded_once_and_a_shared_one_is_not() -> None:
    states = StateSlots(5, lambda source, to: None)
    slot = states.start()
    for page in (1, 2, 3):
        states.save(page, slot)
    states.free(states.start(2))
    states.free(states.start(2))  # two sequences went on from 2
    states.supersede([1, 2])
    states.save(4, slot)  # takes the last free slot
    states.save(5, slot)  # and this one the slot of 1
    assert [states.has_snapshot(page) for page in (1, 2, 3, 4, 5)] == [False, True, True, True, True]
    states.save(6, slot)  # no superseded one is left: the least recently used one goes
    assert [states.has_snapshot(page) for page in (2, 3, 4, 5, 6)] == [True, False, True, True, True]
    assert states.use == StateUse(slots=5, running=1, snapshots=4, taken=6, reused=2, evicted=2)
