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
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from assay.engines.base import PAGE
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
        found = [(_common(key, tokens), key) for key in self.order[max(at - 1, 0) : at + 1]]
        n, key = max(found, default=(0, ()))
        return (self.children[key], n) if n else (None, 0)


@dataclass(eq=False)
class Lease:
    """One sequence's hold on pages: first the shared ones along a path of the tree, then private ones.

    `tokens` are the ids whose keys and values are in the cache, so `length` is where the next one goes.
    """

    tokens: list[int]
    _path: list[_Node]
    _private: list[int] = field(default_factory=list)
    closed: bool = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def n_pages(self) -> int:
        return len(self._path) + len(self._private)

    @property
    def pages(self) -> NDArray[np.int32]:
        """The page table an engine is given."""
        return np.array([node.page for node in self._path] + self._private, dtype=np.int32)


class Pages:
    """The pages of one engine. Open a lease, reserve room, compute, commit what was computed, close.

    `copy(source, to)` copies a page's content; without it, prefixes are shared in whole pages only. `watch`, where it
    is set, hears the name of every page that comes into the tree (True) or leaves it (False).
    """

    watch: Callable[[str, bool], None] | None = None

    def __init__(self, n_pages: int, page_size: int = PAGE, copy: Callable[[int, int], None] | None = None) -> None:
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
        lease = Lease(list(tokens[: len(path) * self.page_size]), path)
        self._leases.add(lease)
        if self._copy:
            self._begin_page(lease, tokens, self._copy)
        return lease

    def _begin_page(self, lease: Lease, tokens: Sequence[int], copy: Callable[[int, int], None]) -> None:
        """Give the lease a copy of the page that begins as its next one does, if there is such a page and room."""
        last = lease._path[-1] if lease._path else self._root
        rest = tokens[lease.length : min(lease.length + self.page_size, len(tokens) - 1)]
        source, n = last.closest(tuple(rest))
        if source is None:
            return
        self._hold(source)  # or making room could take it
        if self.available:
            page = self._take()
            copy(source.page, page)
            lease._private.append(page)
            lease.tokens.extend(rest[:n])
        self._release(source)

    def reserve(self, lease: Lease, n_tokens: int) -> None:
        """Make room for `n_tokens` more. All or nothing: on OutOfPages the lease is as it was."""
        self._check_open(lease)
        needed = -(-(lease.length + n_tokens) // self.page_size) - lease.n_pages
        if needed > self.available:
            raise OutOfPages(
                f"cache: {needed} more pages are needed (found {self.available} available of {self.n_pages}); "
                "use a larger --ctx-size or fewer sequences"
            )
        lease._private.extend(self._take() for _ in range(needed))

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
                self._free.append(page)
                self._hold(node)
            lease._path.append(node)

    def close(self, lease: Lease) -> None:
        """End the sequence. Its full pages stay in the tree for whoever comes with the same prefix."""
        if lease.closed:
            return
        self._check_open(lease)
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
        for lease in self._leases:
            size = self.page_size
            for depth, node in enumerate(lease._path):
                assert node.key == tuple(lease.tokens[depth * size : (depth + 1) * size]), "a path is misspelt"
            assert len(lease._path) == lease.length // size, "a full page is not shared"

    def _walk(self, tokens: Sequence[int]) -> list[_Node]:
        """The longest path that spells a prefix of all tokens but the last."""
        node, path = self._root, []
        for start in range(0, len(tokens) - self.page_size, self.page_size):
            child = node.children.get(tuple(tokens[start : start + self.page_size]))
            if child is None:
                break
            path.append(child)
            node = child
        return path

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
        if self.watch:
            self.watch(node.name, False)
        return page

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


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading items are equal."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
