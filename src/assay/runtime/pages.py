"""Which page of the cache belongs to whom: allocation, sharing of prefixes, eviction. No numbers, no engine.

A *page* holds the keys and values of `PAGE` consecutive positions. Every page is in exactly one state:

    free      nobody's
    private   of one sequence, which writes it
    shared    in the prefix tree: full, never written again, read by any number of sequences

The tree's edges are the exact token ids of a page, so a path from the root spells a prefix, and equal prefixes
are one path. A sequence that starts takes the longest path along its tokens, but never all of them: the last
token is always computed, because its logits are wanted. Only full pages are shared. Where the tokens leave the
tree inside a page, that page is copied to a private one (`copy`, the engine's), of which the common start is good.

Pages in the tree that no sequence reads are *idle* and keep their content until room is needed. They are
evicted least recently used first. A sequence lets go of its pages from the last to the first, and holding a
page means holding the whole path above it, so the oldest idle page never has a child: eviction is O(1).

Layers that see only a *window* back may have pages of their own (`Window`). There a page has a *slot* while a sequence
can still see it, and afterwards until the room is needed; a sequence lets go of slots as it moves on. So a long
sequence holds few slots, and a prefix can be shared up to where the slots of its last window are all there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import PAGE, PagedEngine
from assay.errors import AssayError


class OutOfPages(AssayError):
    """Every page is held by a running sequence; wait for one to end, or end one."""


def page_name(before: str, tokens: Sequence[int]) -> str:
    """A name for the prefix that ends with this page: the same wherever the same tokens are."""
    return blake2b(before.encode() + np.array(tokens, np.int32).tobytes(), digest_size=8).hexdigest()


def page_names(tokens: Sequence[int], page_size: int = PAGE) -> list[str]:
    """Of the pages that a lease on these tokens can find: never all, for the last token is always computed."""
    names, name = [], ""
    for start in range(0, len(tokens) - page_size, page_size):
        name = page_name(name, tokens[start : start + page_size])
        names.append(name)
    return names


class Window:
    """The slots of layers that see `positions` back, a token's own among them: which page has which, and for how many
    sequences. A page without a reader keeps its slot until another page wants it, the oldest first."""

    def __init__(self, positions: int, n_slots: int) -> None:
        self.positions, self.n_slots = positions, n_slots
        self.slots: dict[int, int] = {}  # by page
        self._readers: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # pages that nobody sees, oldest first
        self._fresh = 0
        self._free: list[int] = []

    @property
    def available(self) -> int:
        return self.n_slots - self._fresh + len(self._free) + len(self._idle)

    def first(self, length: int, page_size: int) -> int:
        """The first page that a token in place `length` sees."""
        return max(0, length - self.positions + 1) // page_size

    def take(self, page: int) -> None:
        """A slot for a page that is written from now on."""
        if not self._free and self._fresh == self.n_slots:
            self.drop(next(iter(self._idle)))
        if self._free:
            self.slots[page] = self._free.pop()
        else:
            self.slots[page] = self._fresh
            self._fresh += 1
        self._readers[page] = 1

    def hold(self, page: int) -> None:
        self._readers[page] += 1
        self._idle.pop(page, None)

    def release(self, page: int) -> None:
        self._readers[page] -= 1
        if not self._readers[page]:
            self._idle[page] = None

    def drop(self, page: int) -> None:
        """The page is nobody's any more: its slot, if it still has one, is free."""
        if page in self.slots:
            self._free.append(self.slots.pop(page))
            del self._readers[page]
            self._idle.pop(page, None)

    def merge(self, page: int, other: int) -> None:
        """A sequence reads page `other` from now on, which holds the same as its own. Where that has lost its slot, it
        gets this one's."""
        if other in self.slots:
            self.hold(other)
            self.drop(page)
        else:
            self.slots[other], self._readers[other] = self.slots.pop(page), self._readers.pop(page)

    def check(self, readers: dict[int, int]) -> None:
        """Raise AssertionError unless slots are those of these pages and of idle ones, each once."""
        assert self._readers == {page: readers.get(page, 0) for page in self.slots}, "a count of a window is wrong"
        assert readers.keys() <= self.slots.keys(), "a page that is seen has no slot"
        assert set(self._idle) == {page for page, n in self._readers.items() if not n}
        assert sorted([*self._free, *self.slots.values()]) == list(range(self._fresh)), "a slot is lost or used twice"


@dataclass(eq=False)
class _Node:
    """A shared page: the tokens it holds, its place in the tree, how many sequences read it."""

    page: int
    key: tuple[int, ...]
    parent: _Node | None
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)
    order: list[tuple[int, ...]] = field(default_factory=list)  # the children's keys, sorted
    readers: int = 0
    name: str = ""  # of the prefix it ends, where anybody watches

    def add(self, page: int, key: tuple[int, ...]) -> _Node:
        self.children[key] = node = _Node(page, key, self)
        self.order.insert(bisect_left(self.order, key), key)
        return node

    def remove(self, key: tuple[int, ...]) -> None:
        del self.children[key], self.order[bisect_left(self.order, key)]

    def closest(self, tokens: tuple[int, ...]) -> tuple[_Node | None, int]:
        """The child that begins with most of `tokens`, and how many that are: in sorted order it stands beside them."""
        at = bisect_left(self.order, tokens)
        found = [(common(key, tokens), key) for key in self.order[max(at - 1, 0) : at + 1]]
        n, key = max(found, default=(0, ()))
        return (self.children[key], n) if n else (None, 0)


@dataclass(eq=False)
class Lease:
    """One sequence's hold on pages: first the shared ones along a path of the tree, then private ones.

    `tokens` are the ids whose keys and values are in the cache, so `length` is where the next one goes.
    """

    tokens: list[int]
    _path: list[_Node]
    _windows: tuple[Window, ...] = ()
    _first: list[int] = field(default_factory=list)  # of each window, the first page that is still held
    _private: list[int] = field(default_factory=list)
    closed: bool = False
    _table: tuple[tuple[int, int], NDArray[np.int32]] | None = None  # the page table, and for how many pages it stands

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def n_pages(self) -> int:
        return len(self._path) + len(self._private)

    @property
    def pages(self) -> NDArray[np.int32]:
        """The page table an engine is given; the same array until a page is added or shared."""
        held = len(self._path), len(self._private)
        if self._table is None or self._table[0] != held:
            self._table = held, np.array(self._all(), dtype=np.int32)
        return self._table[1]

    @property
    def windows(self) -> dict[int, NDArray[np.int32]]:
        """And those of windows: slots, and -1 for pages behind."""
        pages = self._all() if self._windows else []
        return {
            w.positions: np.array([-1] * first + [w.slots[page] for page in pages[first:]], dtype=np.int32)
            for w, first in zip(self._windows, self._first, strict=True)
        }

    def _all(self) -> list[int]:
        return [node.page for node in self._path] + self._private

    def _held(self, i: int) -> list[int]:
        """Pages that it holds a slot of in window i."""
        return self._all()[self._first[i] :]


class Pages:
    """The pages of one engine. Open a lease, reserve room, compute, commit what was computed, close.

    `copy(source, to)` copies a page's content, and with a window as third argument that of a slot; without it, prefixes
    are shared in whole pages only. `watch`, where it is set, hears the name of every page that comes into the tree
    (True) or leaves it (False). `windows` says how many slots each window has.
    """

    watch: Callable[[str, bool], None] | None = None

    def __init__(
        self,
        n_pages: int,
        page_size: int = PAGE,
        copy: Callable[..., None] | None = None,
        windows: Mapping[int, int] | None = None,
    ) -> None:
        if n_pages < 1 or page_size < 1:
            raise AssayError(f"cache: needs at least one page of one position (found {n_pages} of {page_size})")
        self.n_pages = n_pages
        self.page_size = page_size
        self._copy = copy
        self._fresh = 0  # pages from here on were never used, and need no list
        self._free: list[int] = []  # used before, nobody's now
        self._root = _Node(page=-1, key=(), parent=None)
        self._idle: OrderedDict[int, _Node] = OrderedDict()  # by page, oldest first
        self._leases: set[Lease] = set()
        self.windows = tuple(Window(positions, n) for positions, n in (windows or {}).items())

    @classmethod
    def of(cls, engine: PagedEngine) -> Pages:
        """The pages of an engine."""
        return cls(engine.n_pages, copy=engine.copy_page, windows=engine.windows)

    @property
    def copies(self) -> bool:
        """Whether a page that begins as another is begun with a copy of it."""
        return self._copy is not None

    @property
    def step(self) -> int:
        """Tokens that can always be computed at once, by a sequence that is alone."""
        return min([self.capacity, *((w.n_slots - 1) * self.page_size - w.positions for w in self.windows)])

    def fits(self, lease: Lease, n_tokens: int, step: int, spare: int) -> bool:
        """Whether there is room for so many tokens in all, computed so many at a time, and for some pages of others."""
        needed = -(-n_tokens // self.page_size) - lease.n_pages
        most = [-(-(w.positions + step) // self.page_size) + 1 for w in self.windows]
        return needed + spare <= self.available and all(
            min(needed, n) + spare <= w.available for w, n in zip(self.windows, most, strict=True)
        )

    @property
    def available(self) -> int:
        """Pages that a reservation can have: free ones, and idle ones after eviction."""
        return self.n_pages - self._fresh + len(self._free) + len(self._idle)

    @property
    def capacity(self) -> int:
        """Positions a single sequence can have at most."""
        return self.n_pages * self.page_size

    def match(self, tokens: Sequence[int]) -> int:
        """How many leading tokens a lease on these would find in the cache, as whole pages."""
        return len(self._walk(tokens)) * self.page_size

    def open(self, tokens: Sequence[int]) -> Lease:
        """Start a sequence that will compute `tokens`; those before `lease.length` need no computing."""
        path = self._walk(tokens)
        for node in path:
            self._hold(node)
        length = len(path) * self.page_size
        first = [w.first(length, self.page_size) for w in self.windows]
        lease = Lease(list(tokens[:length]), path, self.windows, first)
        for i, window in enumerate(self.windows):
            for page in lease._held(i):
                window.hold(page)
        self._leases.add(lease)
        if self._copy:
            self._begin_page(lease, tokens, self._copy)
            self._move_on(lease)
        return lease

    def _begin_page(self, lease: Lease, tokens: Sequence[int], copy: Callable[..., None]) -> None:
        """Give the lease a copy of the page that begins as its next one does, if there is such a page and room."""
        last = lease._path[-1] if lease._path else self._root
        rest = tokens[lease.length : min(lease.length + self.page_size, len(tokens) - 1)]
        source, n = last.closest(tuple(rest))
        if source is None or any(source.page not in window.slots for window in self.windows):
            return
        self._hold(source)  # or making room could take it
        for window in self.windows:
            window.hold(source.page)
        if self.available and all(window.available for window in self.windows):
            page = self._take()
            copy(source.page, page)
            for window in self.windows:
                window.take(page)
                copy(window.slots[source.page], window.slots[page], window.positions)
            lease._private.append(page)
            lease.tokens.extend(rest[:n])
        for window in self.windows:
            window.release(source.page)
        self._release(source)

    def _move_on(self, lease: Lease) -> None:
        """Let go of the slots that its next token does not see."""
        for i, window in enumerate(self.windows):
            first = window.first(lease.length, self.page_size)
            for page in lease._held(i)[: first - lease._first[i]]:
                window.release(page)
            lease._first[i] = first

    def reserve(self, lease: Lease, n_tokens: int) -> None:
        """Make room for `n_tokens` more. All or nothing: on OutOfPages the lease is as it was."""
        self._check_open(lease)
        needed = -(-(lease.length + n_tokens) // self.page_size) - lease.n_pages
        for available, of in [(self.available, self.n_pages), *((w.available, w.n_slots) for w in self.windows)]:
            if needed > available:
                raise OutOfPages(
                    f"cache: {needed} more pages are needed (found {available} available of {of}); "
                    "use a larger --ctx-size or fewer sequences"
                )
        for _ in range(needed):
            page = self._take()
            lease._private.append(page)
            for window in self.windows:
                window.take(page)

    def commit(self, lease: Lease, tokens: Sequence[int]) -> None:
        """Say that `tokens` now have their keys and values in the cache. Pages that became full are shared."""
        self._check_open(lease)
        size = self.page_size
        if lease.length + len(tokens) > lease.n_pages * size:
            raise ValueError("commit of more tokens than were reserved")
        lease.tokens.extend(tokens)
        while (len(lease._path) + 1) * size <= lease.length:
            start = len(lease._path) * size
            key = tuple(lease.tokens[start : start + size])
            parent = lease._path[-1] if lease._path else self._root
            page = lease._private.pop(0)
            node = parent.children.get(key)
            if node is None:
                node = parent.add(page, key)
                node.readers = 1
                if self.watch:
                    node.name = page_name(parent.name, key)
                    self.watch(node.name, True)
            else:  # another sequence computed the same meanwhile: read its page, give ours back
                for window in self.windows:
                    window.merge(page, node.page)
                self._free.append(page)
                self._hold(node)
            lease._path.append(node)
        self._move_on(lease)

    def close(self, lease: Lease) -> None:
        """End the sequence. Its full pages stay in the tree for whoever comes with the same prefix."""
        if lease.closed:
            return
        self._check_open(lease)
        for i, window in enumerate(self.windows):
            for page in lease._held(i)[::-1]:
                window.release(page)
        for page in lease._private:
            self._forget(page)
        self._free.extend(reversed(lease._private))
        for node in reversed(lease._path):
            self._release(node)
        lease.tokens, lease._path, lease._private = [], [], []
        lease.closed = True
        self._leases.discard(lease)

    def clear(self) -> None:
        """Forget every idle page."""
        while self._idle:
            self._free.append(self._evict())

    def check(self) -> None:
        """Raise AssertionError unless every page is in exactly one state and every count is exact."""
        shared: dict[int, _Node] = {}
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            assert node.page not in shared, "a page is in the tree twice"
            assert node.parent is not None
            assert node.parent.children[node.key] is node
            assert node.order == sorted(node.children)
            assert len(node.key) == self.page_size, "a page in the tree is not full"
            shared[node.page] = node
            stack.extend(node.children.values())
        private = [page for lease in self._leases for page in lease._private]
        states = [*self._free, *private, *shared]
        assert sorted(states) == list(range(self._fresh)), "a page is in no state or in two"
        for page, node in shared.items():
            readers = sum(node in lease._path for lease in self._leases)
            assert node.readers == readers, "a count of readers is wrong"
            assert (page in self._idle) == (readers == 0), "idle pages are those without readers"
        assert set(self._idle) <= set(shared)
        for i, window in enumerate(self.windows):
            window.check(Counter(page for lease in self._leases for page in lease._held(i)))
            assert window.slots.keys() <= {*private, *shared}, "a page that is nobody's has a slot"
        for lease in self._leases:
            size = self.page_size
            for depth, node in enumerate(lease._path):
                assert node.key == tuple(lease.tokens[depth * size : (depth + 1) * size]), "a path is misspelt"
            assert len(lease._path) == lease.length // size, "a full page is not shared"
            assert lease._first == [w.first(lease.length, size) for w in self.windows], "a page behind a window is held"

    def _walk(self, tokens: Sequence[int]) -> list[_Node]:
        """The longest path that spells a prefix of all tokens but the last, and has all slots that the next sees."""
        node, path, whole = self._root, list[_Node](), 0
        missing = [-1] * len(self.windows)  # the last page without a slot
        for start in range(0, len(tokens) - self.page_size, self.page_size):
            child = node.children.get(tuple(tokens[start : start + self.page_size]))
            if child is None:
                break
            for i, window in enumerate(self.windows):
                if child.page not in window.slots:
                    missing[i] = len(path)
            path.append(child)
            node = child
            seen = [w.first(len(path) * self.page_size, self.page_size) for w in self.windows]
            if all(first > last for first, last in zip(seen, missing, strict=True)):
                whole = len(path)
        return path[:whole]

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        if self._fresh < self.n_pages:
            self._fresh += 1
            return self._fresh - 1
        return self._evict()

    def _evict(self) -> int:
        page, node = self._idle.popitem(last=False)
        assert node.parent is not None
        node.parent.remove(node.key)
        self._forget(page)
        if self.watch:
            self.watch(node.name, False)
        return page

    def _forget(self, page: int) -> None:
        """It is nobody's any more."""
        for window in self.windows:
            window.drop(page)

    def _hold(self, node: _Node) -> None:
        if node.readers == 0:
            del self._idle[node.page]
        node.readers += 1

    def _release(self, node: _Node) -> None:
        node.readers -= 1
        if node.readers == 0:
            self._idle[node.page] = node

    def _check_open(self, lease: Lease) -> None:
        if lease not in self._leases:
            raise ValueError("the lease is closed or of another cache")


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading items are equal."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
