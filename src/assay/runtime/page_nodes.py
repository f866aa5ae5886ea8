"""The data of the page allocator: a shared page in the prefix tree, and the lease of a sequence on its pages.

`pages.py` owns the tree and changes both. Touch this when a page or a sequence has to remember something more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from assay.runtime.cache_slots import WindowSlots
from assay.runtime.prefix_keys import common


@dataclass(eq=False)
class PageNode:
    """A shared page: the keys of what was fed, its place in the tree, how many sequences read it."""

    page: int
    key: tuple[int, ...]
    parent: PageNode | None
    children: dict[tuple[int, ...], PageNode] = field(default_factory=dict)
    order: list[tuple[int, ...]] = field(default_factory=list)  # the children's keys, sorted
    readers: int = 0
    name: str = ""  # of the prefix that it ends; empty unless `Pages.watch` is set
    digest: bytes = b""  # of the prefix that it ends; empty unless `Pages.saver` is set
    salt: bytes = b""  # of a root; a root's `readers` are the leases of its tree

    def add(self, page: int, key: tuple[int, ...]) -> PageNode:
        self.children[key] = node = PageNode(page, key, self)
        self.order.insert(bisect_left(self.order, key), key)
        return node

    def remove(self, key: tuple[int, ...]) -> None:
        del self.children[key], self.order[bisect_left(self.order, key)]

    def closest(self, tokens: tuple[int, ...]) -> tuple[PageNode | None, int]:
        """The child with the longest common start, and its length. In sorted order it is a neighbour of `tokens`."""
        at = bisect_left(self.order, tokens)
        found = [(common(key, tokens), key) for key in self.order[max(at - 1, 0) : at + 1]]
        n, key = max(found, default=(0, ()))
        return (self.children[key], n) if n else (None, 0)


class PageSaver(Protocol):
    """Keeps the contents of shared pages elsewhere (`prefix_store.py`). Each method returns at once."""

    def root(self, salt: bytes) -> bytes:
        """Identifies the empty prefix of sequences with a salt."""
        ...

    def digest(self, before: bytes, keys: Sequence[int]) -> bytes:
        """Identifies the prefix that ends with a page, from that of the page before."""
        ...

    def page(self, digest: bytes, page: int, slots: Mapping[int, int]) -> None:
        """A full page, and its slot for each window."""
        ...

    def state(self, digest: bytes, slot: int) -> None:
        """A snapshot of the state after the last token of a page."""
        ...


@dataclass(eq=False)
class Lease:
    """The pages of one sequence: first the shared ones along a path of the tree, then private ones.

    `tokens` are the prefix keys of what is in the cache (ids, for text), so `length` is where the next token goes.
    """

    tokens: list[int]
    _path: list[PageNode]
    _root: PageNode
    _windows: tuple[WindowSlots, ...] = ()
    _first: list[int] = field(default_factory=list)  # for each window, the first page that is still held
    _private: list[int] = field(default_factory=list)
    closed: bool = False
    state_slot: int = -1  # its working slot, where the graph keeps state of a fixed size
    guess_slot: int = -1  # a second one, for tokens that a draft model guesses
    places: frozenset[int] = frozenset()  # lengths at which a snapshot of that state is worth keeping
    _moving: int | None = None  # the page of the snapshot that the next one replaces
    _table: tuple[tuple[int, int], NDArray[np.int32]] | None = None  # the page table, and the counts it was made for

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
        """A page table for each sliding window; -1 marks evicted pages."""
        pages = self._all() if self._windows else []
        return {
            w.positions: np.array([-1] * first + [w.slots[page] for page in pages[first:]], dtype=np.int32)
            for w, first in zip(self._windows, self._first, strict=True)
        }

    def _all(self) -> list[int]:
        return [node.page for node in self._path] + self._private

    def _held(self, i: int) -> list[int]:
        """The pages whose slots it holds in window i."""
        return self._all()[self._first[i] :]
