"""Pages: small cases first, then random histories against a cache that remembers what was written where."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from assay.errors import AssayError
from assay.runtime.pages import Lease, OutOfPages, Pages


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
        ([1, 7, 7, 7, 7], 3),  # its better half stands on the other side in sorted order
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
    """Then there is nothing to copy it to, and it stays."""
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


SIZE = 3
tokens_ = st.lists(st.integers(0, 2), max_size=12)


class Histories(RuleBasedStateMachine):
    """A model cache: `memory[slot]` is what an engine would have written, the token and all before it."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.pages = Pages(6, page_size=SIZE, copy=self.copy)
        self.memory: dict[int, tuple[int, ...]] = {}

    def copy(self, source: int, to: int) -> None:
        assert to not in {page for lease in self.pages._leases for page in lease.pages.tolist()}
        for i in range(SIZE):
            self.memory[to * SIZE + i] = self.memory[source * SIZE + i]

    def slot(self, lease: Lease, position: int) -> int:
        return int(lease.pages[position // SIZE]) * SIZE + position % SIZE

    def compute(self, lease: Lease, tokens: list[int]) -> None:
        self.pages.reserve(lease, len(tokens))
        others = [o for o in self.pages._leases if o is not lease]
        for offset, token in enumerate(tokens):
            slot = self.slot(lease, lease.length + offset)
            read_elsewhere = {self.slot(o, p) for o in others for p in range(o.length)}
            assert slot not in read_elsewhere, "a page that others read was written"
            self.memory[slot] = (*lease.tokens, *tokens[: offset + 1])
            assert token == self.memory[slot][-1]
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
        if not rest and self.pages.available:
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
            for position in range(lease.length):
                assert self.memory[self.slot(lease, position)] == tuple(lease.tokens[: position + 1])


Histories.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase
