"""The allocator of an engine's cache: pages, shared prefixes, eviction. It holds no numbers and calls no kernel.

It gives out what the graph declares (`Graph.state`). State by position lies in *pages* of `PAGE` positions. Layers with
a sliding window may have slots of their own, and state of a fixed size lies in state slots (`cache_slots.py`).

Every page is in exactly one state:

    free      no sequence uses it
    private   one sequence writes it
    shared    it is in the prefix tree: full, never written again, read by any number of sequences

An edge of the tree is what was fed at the positions of a page (`prefix_keys.py`). So a path from the root spells a
prefix, and equal prefixes are one path. A sequence that starts takes the longest path along its prompt. It never takes
the whole prompt: the last token is always computed, because its logits are wanted. Only full pages are shared. Where
the prompt leaves the tree inside a page, that page is copied to a private one, whose common start is valid.

Pages in the tree without a reader are *idle*. They keep their content until room is needed and are evicted least
recently used first. A sequence releases its pages from the last to the first, and holding a page means holding the
whole path above it. So the oldest idle page never has a child, and eviction is O(1).

A layer with a window needs only the last pages of a sequence. A page has a *slot* there while a sequence can see it,
and afterwards until the slot is needed. A prefix can be reused up to a place whose last window still has its slots.

Sequences with a different *salt* share nothing: each salt (which adapters are applied, and how strongly) has a tree.

State of a fixed size cannot be cut: a prefix can be reused only at a page end with a snapshot of that state, and no
page is copied in part.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence

from assay.engines.contract import PAGE, PagedEngine
from assay.errors import AssayError
from assay.runtime.cache_slots import StateSlots, WindowSlots
from assay.runtime.page_nodes import Lease as Lease  # others import it from here
from assay.runtime.page_nodes import PageNode, PageSaver
from assay.runtime.prefix_keys import PrefixFeed, feed_keys, page_name


class OutOfPages(AssayError):
    """Running sequences hold every page or slot. Wait until one ends, or preempt one."""


class Pages:
    """The pages of one engine. Open a lease, reserve room, compute, commit what was computed, close.

    `copy(source, to)` copies a page's content, and with a window as third argument the content of a slot. Without it,
    prefixes are shared in whole pages only. `windows` has the number of slots of each window. `states` are the slots of
    state that cannot be cut. `watch` is called with the name of every page that enters the tree (True) or leaves it
    (False). `saver` is given the content of every page that enters the tree.
    """

    watch: Callable[[str, bool], None] | None = None
    saver: PageSaver | None = None

    def __init__(
        self,
        n_pages: int,
        page_size: int = PAGE,
        copy: Callable[..., None] | None = None,
        windows: Mapping[int, int] | None = None,
        states: StateSlots | None = None,
    ) -> None:
        if n_pages < 1 or page_size < 1:
            raise AssayError(f"cache: needs at least one page of one position (found {n_pages} of {page_size})")
        self.n_pages = n_pages
        self.page_size = page_size
        self._copy = None if states else copy  # a page copied in part would need state that was cut
        self._fresh = 0  # pages from here on were never used, and need no list
        self._free: list[int] = []  # used before, free now
        self._roots: dict[bytes, PageNode] = {}  # by salt
        self._idle: OrderedDict[int, PageNode] = OrderedDict()  # by page, oldest first
        self._leases: set[Lease] = set()
        self.windows = tuple(WindowSlots(positions, n) for positions, n in (windows or {}).items())
        self.states = states

    @classmethod
    def of(cls, engine: PagedEngine) -> Pages:
        """The pages of an engine, and the slots that its graph's state needs."""
        state = engine.graph.state
        states = StateSlots(engine.state_slots, engine.copy_state) if state.per_sequence else None
        copy = engine.copy_page if state.cuttable else None
        return cls(engine.n_pages, copy=copy, windows=engine.windows, states=states)

    @property
    def copies(self) -> bool:
        """Whether a sequence whose prompt leaves the tree inside a page starts with a copy of that page."""
        return self._copy is not None

    @property
    def step(self) -> int:
        """Tokens that a sequence can always compute in one step while no other runs."""
        return min([self.capacity, *((w.n_slots - 1) * self.page_size - w.positions for w in self.windows)])

    def fits(self, lease: Lease, n_tokens: int, step: int, spare: int) -> bool:
        """Whether `n_tokens` in all, computed `step` at a time, leave `spare` pages to other sequences."""
        if self.states and lease.state_slot < 0:
            return False
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
        """The most positions that one sequence can have."""
        return self.n_pages * self.page_size

    def match(self, fed: PrefixFeed | Sequence[int], salt: bytes = b"") -> int:
        """How many leading tokens a lease on this prompt would find in the cache, as whole pages."""
        return len(self._walk(feed_keys(fed), salt)[0]) * self.page_size

    def open(self, fed: PrefixFeed | Sequence[int], salt: bytes = b"", *, whole: bool = False) -> Lease:
        """Start a sequence that will compute this prompt; tokens before `lease.length` are in the cache already.

        With `whole`, `lease.length` is the end of a page: no page is copied in part.
        """
        tokens = feed_keys(fed)
        path, known = self._walk(tokens, salt)
        slot = self.states.start(path[-1].page if path else None) if self.states else -1
        for node in path:
            self._hold(node)
        length = len(path) * self.page_size
        first = [w.first(length, self.page_size) for w in self.windows]
        lease = Lease(list(tokens[:length]), path, self._root_of(salt), self.windows, first, state_slot=slot)
        if self.states:
            lease.places = self._places(len(tokens), known) - frozenset(range(length + 1))
        for i, window in enumerate(self.windows):
            for page in lease._held(i):
                window.hold(page)
        self._leases.add(lease)
        if self._copy and not whole:
            self._begin_page(lease, tokens, self._copy)
            self._move_on(lease)
        return lease

    def _places(self, n_tokens: int, known: int) -> frozenset[int]:
        """The lengths at which later sequences will want to go on: the last page ends of this prompt, and the end of
        what the tree knows of it. Where one prompt has left the tree, another may do so, too."""
        size = self.page_size
        return frozenset({known, n_tokens // size * size, max(n_tokens - 1, 0) // size * size})

    def next_place(self, lease: Lease, end: int) -> int:
        """The first of the lease's places before `end`, for a step to stop at; `end` where no place lies before it."""
        return min((place for place in lease.places if lease.length < place < end), default=end)

    def _begin_page(self, lease: Lease, tokens: Sequence[int], copy: Callable[..., None]) -> None:
        """Give the lease a copy of the shared page that starts like its next page, if there is one and room for it."""
        last = lease._path[-1] if lease._path else lease._root
        rest = tokens[lease.length : min(lease.length + self.page_size, len(tokens) - 1)]
        source, n = last.closest(tuple(rest))
        if source is None or any(source.page not in window.slots for window in self.windows):
            return
        self._hold(source)  # or making room could evict it
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
        """Release the slots that its next token does not see."""
        for i, window in enumerate(self.windows):
            first = window.first(lease.length, self.page_size)
            for page in lease._held(i)[: first - lease._first[i]]:
                window.release(page)
            lease._first[i] = first

    def reserve(self, lease: Lease, n_tokens: int) -> None:
        """Make room for `n_tokens` more. All or nothing: on OutOfPages the lease is as it was."""
        self._check_open(lease)
        if self.states and lease.state_slot < 0 and (slot := self.states.start()) >= 0:
            lease.state_slot = slot
        if self.states and lease.state_slot < 0:
            raise OutOfPages(f"cache: every one of {self.states.n_slots} state slots is in use; run fewer sequences")
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

    def commit(self, lease: Lease, fed: PrefixFeed | Sequence[int], *, each: bool = False) -> None:
        """Record that the state after these tokens is in the cache. Pages that became full are shared.

        `each`: the engine has kept the state after each of these tokens, and its slot may be further than the last.
        """
        self._check_open(lease)
        tokens = feed_keys(fed)
        size, before = self.page_size, lease.length
        if lease.length + len(tokens) > lease.n_pages * size:
            raise ValueError("commit of more tokens than were reserved")
        lease.tokens.extend(tokens)
        self._share(lease)
        end = len(lease._path) * size
        if self.states and before < end and (each or end == lease.length):
            self._save_state(self.states, lease, end if each else None)
        self._move_on(lease)

    def adopt(self, lease: Lease, keys: Sequence[int], write: Callable[[int, Mapping[int, int]], None]) -> None:
        """Append a whole page whose content `write` brings, given the page and its slot for each window.

        The lease must end with a page. State of a fixed size follows with `adopt_state`, after the last page.
        """
        self.reserve(lease, self.page_size)
        page = lease._private[-1]
        write(page, {w.positions: w.slots[page] for w in self.windows})
        lease.tokens.extend(keys)
        self._share(lease)
        self._move_on(lease)

    def adopt_state(self, lease: Lease) -> None:
        """The working slot of the lease now holds the state after its last page: keep a snapshot of it."""
        if self.states and lease._path:
            self.states.save(lease._path[-1].page, lease.state_slot)

    def _share(self, lease: Lease) -> None:
        """Move the full pages of a lease into the tree."""
        size = self.page_size
        while (len(lease._path) + 1) * size <= lease.length:
            start = len(lease._path) * size
            key = tuple(lease.tokens[start : start + size])
            parent = lease._path[-1] if lease._path else lease._root
            page = lease._private.pop(0)
            node = parent.children.get(key)
            if node is None:
                node = parent.add(page, key)
                node.readers = 1
                if self.watch:
                    node.name = page_name(parent.name, key)
                    self.watch(node.name, True)
                if self.saver:
                    node.digest = self.saver.digest(parent.digest, key)
                    self._save_page(self.saver, node)
            else:  # another sequence has computed the same: read its page, free this one
                for window in self.windows:
                    window.merge(page, node.page)
                self._free.append(page)
                self._hold(node)
            lease._path.append(node)

    def _save_page(self, saver: PageSaver, node: PageNode) -> None:
        if all(node.page in window.slots for window in self.windows):
            saver.page(node.digest, node.page, {w.positions: w.slots[node.page] for w in self.windows})

    def _save_state(self, states: StateSlots, lease: Lease, length: int | None) -> None:
        """Take a snapshot at the end of a lease's last page. One that stays supersedes those that the lease passed.

        With `length`, it is the state after that many tokens.
        """
        node, stays = lease._path[-1], len(lease._path) * self.page_size in lease.places
        if stays:  # before room is made for it
            own = {place // self.page_size - 1 for place in lease.places}
            states.supersede(n.page for depth, n in enumerate(lease._path[:-1]) if depth not in own)
        parting = stays and bool(node.children)
        states.save(node.page, lease.state_slot, instead_of=lease._moving, stays=stays, parting=parting, length=length)
        lease._moving = None if stays else node.page
        if stays and self.saver and (slot := states.snapshot(node.page)) is not None:
            self.saver.state(node.digest, slot)

    def also_copy(self, copy: Callable[..., None]) -> None:
        """Pages that are copied are copied by `copy`, too: another engine keeps rows in pages of the same numbers."""
        if first := self._copy:

            def both(source: int, to: int, *window: int) -> None:
                first(source, to, *window)
                if not window:
                    copy(source, to)

            self._copy = both

    def guess(self, lease: Lease) -> int:
        """A second state slot with a copy of the lease's state, for tokens that are guessed; -1 if there is no room."""
        if self.states and lease.guess_slot < 0:
            lease.guess_slot = self.states.start()
        if self.states and lease.guess_slot >= 0:
            self.states.duplicate(lease.state_slot, lease.guess_slot)
        return lease.guess_slot

    def close(self, lease: Lease) -> None:
        """End the sequence. Its full pages stay in the tree for later sequences with the same prefix."""
        if lease.closed:
            return
        self._check_open(lease)
        if self.saver:
            self._save_rest(self.saver, lease)
        for i, window in enumerate(self.windows):
            for page in lease._held(i)[::-1]:
                window.release(page)
        for page in lease._private:
            self._drop_slots(page)
        self._free.extend(reversed(lease._private))
        for slot in (lease.state_slot, lease.guess_slot):
            if self.states and slot >= 0:
                self.states.free(slot)
        for node in reversed(lease._path):
            self._release(node)
        lease.tokens, lease._path, lease._private = [], [], []
        lease.closed, lease.state_slot, lease.guess_slot = True, -1, -1
        self._leases.discard(lease)
        self._drop_root(lease._root)

    def _save_rest(self, saver: PageSaver, lease: Lease) -> None:
        """Save what the saver had no room for before, and the state at the last page end: a next turn begins there."""
        for node in lease._path:
            self._save_page(saver, node)
        if self.states and lease._moving is not None and lease._path[-1].page == lease._moving:
            slot = self.states.snapshot(lease._moving)
            if slot is not None:
                saver.state(lease._path[-1].digest, slot)

    def clear(self) -> None:
        """Evict every idle page."""
        while self._idle:
            self._free.append(self._evict())

    def check(self) -> None:
        """Raise AssertionError unless every page is in exactly one state and every count is exact."""
        shared: dict[int, PageNode] = {}
        assert all(root.children or root.readers for salt, root in self._roots.items() if salt), "a tree is empty"
        stack = [node for root in self._roots.values() for node in root.children.values()]
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
            assert window.slots.keys() <= {*private, *shared}, "a free page has a slot"
        if self.states:
            slots = [slot for lease in self._leases for slot in (lease.state_slot, lease.guess_slot) if slot >= 0]
            self.states.check(slots, set(shared))
        for lease in self._leases:
            size = self.page_size
            for depth, node in enumerate(lease._path):
                assert node.key == tuple(lease.tokens[depth * size : (depth + 1) * size]), "a path is misspelt"
            assert len(lease._path) == lease.length // size, "a full page is not shared"
            assert lease._first == [w.first(lease.length, size) for w in self.windows], "a page behind a window is held"

    def _root_of(self, salt: bytes) -> PageNode:
        """The root of a salt's tree, for one more lease."""
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = PageNode(page=-1, key=(), parent=None, name=salt.hex(), salt=salt)
            root.digest = self.saver.root(salt) if self.saver else b""
        root.readers += 1
        return root

    def _drop_root(self, root: PageNode) -> None:
        """One lease less; forget a tree that is empty, because a client can ask for any number of salts."""
        root.readers -= 1
        self._forget_empty(root)

    def _forget_empty(self, root: PageNode) -> None:
        if root.salt and not root.children and not root.readers:
            self._roots.pop(root.salt, None)

    def _walk(self, tokens: Sequence[int], salt: bytes) -> tuple[list[PageNode], int]:
        """The longest path along these tokens, the last one left out, from whose end a sequence can go on.

        The next token must find the slots of its windows there, and a snapshot of state that cannot be cut. The second
        result is the number of tokens that the tree knows, whether or not a sequence can go on there.
        """
        node, path, whole = self._roots.get(salt), list[PageNode](), 0
        if node is None:
            return [], 0
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
            resumable = not self.states or self.states.has_snapshot(child.page)
            if resumable and all(first > last for first, last in zip(seen, missing, strict=True)):
                whole = len(path)
        return path[:whole], len(path) * self.page_size

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
        self._forget_empty(node.parent)
        self._drop_slots(page)
        if self.watch:
            self.watch(node.name, False)
        return page

    def _drop_slots(self, page: int) -> None:
        """Free what an evicted page has beside its own memory: window slots and its snapshot."""
        for window in self.windows:
            window.drop(page)
        if self.states:
            self.states.drop(page)

    def _hold(self, node: PageNode) -> None:
        if node.readers == 0:
            del self._idle[node.page]
        node.readers += 1

    def _release(self, node: PageNode) -> None:
        node.readers -= 1
        if node.readers == 0:
            self._idle[node.page] = node

    def _check_open(self, lease: Lease) -> None:
        if lease not in self._leases:
            raise ValueError("the lease is closed or of another cache")
