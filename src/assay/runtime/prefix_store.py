"""Prefixes on disk: saves the pages and states of a prefix tree to a `CacheFolder`, and brings them back.

A page is saved when it enters the tree, under a digest of everything that its bits depend on: the file, the graph, the
engine's arithmetic and layout, the version, and all tokens up to its end. A state of a fixed size is saved where the
tree keeps its snapshot. Copying a page out of the cache is all that the engine's thread does; the folder's own thread
writes it.

A sequence that arrives and whose prompt is longer on disk than in memory waits until its pages are back. A thread reads
them. The engine's thread writes them into the cache between two steps, as pages of a lease, and then gives the lease
back: the sequence finds them in the tree as if they had been computed. An entry that is missing or damaged ends the
restoring, and the rest of the prompt is computed.
"""

from __future__ import annotations

import json
import queue
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from hashlib import blake2b
from itertools import pairwise

import numpy as np

from assay.engines.contract import PAGE, Array, PagedEngine
from assay.errors import AssayError
from assay.runtime.cache_folder import CacheFolder, release_folder
from assay.runtime.pages import Lease, OutOfPages, Pages
from assay.runtime.sequence import Sequence as Running
from assay.version import __version__

_AHEAD = 16  # pages that the reading thread is ahead of the engine's
_PAGES_A_STEP = 32  # pages that are written into the cache between two steps of other sequences
_WAIT_S = 0.01  # a step without other work waits this long for a page


def identity(engine: PagedEngine, layout: str) -> bytes:
    """A digest of everything but the tokens that the content of a page depends on."""
    said = {
        "assay": __version__, "file": engine.model.file.sha256, "graph": repr(engine.graph.nodes),
        "engine": engine.name, "arithmetic": astuple(engine.arithmetic), "layout": layout, "page": PAGE,
    }  # fmt: skip
    return blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=32).digest()


class PrefixStore:
    """The `PageSaver` of one engine's pages, and the way back. It belongs to the thread that steps the engine."""

    def __init__(
        self,
        engine: PagedEngine,
        pages: Pages,
        folder: CacheFolder,
        on_restored: Callable[[int], None] = lambda n_tokens: None,
    ) -> None:
        if engine.cache_bytes is None:
            release_folder(folder)
            raise AssayError(f"--cache-dir: engine {engine.name} cannot save its cache; use --engine cpu")
        self.folder, self._bytes, self._pages = folder, engine.cache_bytes, pages
        self._identity = identity(engine, self._bytes.layout)
        self._windows = [window.positions for window in pages.windows]
        self._restores: deque[_Restore] = deque()
        self._on_restored = on_restored  # called with the tokens of each prefix that came back
        pages.saver = self

    # --- saving

    def root(self, salt: bytes) -> bytes:
        return blake2b(self._identity + salt, digest_size=32).digest()

    def digest(self, before: bytes, keys: Sequence[int]) -> bytes:
        if min(keys) >= 0:
            return blake2b(before + np.array(keys, "<i8").tobytes(), digest_size=32).digest()
        return blake2b(before + repr(list(keys)).encode(), digest_size=32).digest()

    def page(self, digest: bytes, page: int, slots: Mapping[int, int]) -> None:
        if not self.folder.has(name := digest.hex()) and self.folder.open_for(0):
            parts = [self._bytes.read_page(page), *(self._bytes.read_page(slots[w], w) for w in self._windows)]
            sizes = struct.pack(f"<{len(parts)}Q", *(part.nbytes for part in parts))
            self.folder.put(name, [sizes, *(part.data for part in parts)])

    def state(self, digest: bytes, slot: int) -> None:
        if not self.folder.has(name := _state_name(digest)) and self.folder.open_for(0):
            self.folder.put(name, [self._bytes.read_state(slot).data])

    # --- bringing back

    def saved(self, keys: Sequence[int], salt: bytes = b"") -> list[bytes]:
        """The digests of the pages on disk from which a sequence with this prompt could go on. For any thread."""
        digests, before, whole = list[bytes](), self.root(salt), 0
        for start in range(0, len(keys) - PAGE, PAGE):
            before = self.digest(before, keys[start : start + PAGE])
            if not self.folder.has(before.hex()):
                break
            digests.append(before)
            if not self._pages.states or self.folder.has(_state_name(before)):
                whole = len(digests)
        return digests[:whole]

    def want(self, sequence: Running) -> None:
        """Begin to restore the prompt of a sequence that arrives, if more of it is on disk than in memory."""
        if sequence.job.keep or sequence.job.prompt_logprobs is not None:  # cached tokens give no rows
            return
        found = self.saved(sequence.keys(), sequence.salt)
        if len(found) * PAGE > self._pages.match(sequence.keys(), sequence.salt):
            sequence.restoring = True
            self._restores.append(_Restore(sequence, found, self))
        elif found:
            self.folder.touch(digest.hex() for digest in reversed(found))

    def forget(self, sequence: Running) -> None:
        """A sequence has ended: nothing is restored for it."""
        for restore in [r for r in self._restores if r.sequence is sequence]:
            self._end(restore)

    def abort(self) -> None:
        """End all restoring: the pages have lost their content."""
        for restore in list(self._restores):
            self._end(restore)

    @property
    def busy(self) -> bool:
        """Whether some sequence waits for its pages."""
        return bool(self._restores)

    def advance(self, *, alone: bool) -> None:
        """Write some pages that have arrived into the cache. If `alone`, wait a little for the next one."""
        for _ in range(_PAGES_A_STEP if self._restores else 0):
            restore = self._restores[0]
            try:
                if not restore.step(self._pages, _WAIT_S if alone else 0):
                    self._end(restore)
            except queue.Empty:
                return
            except (OutOfPages, ValueError, struct.error):  # no room, or not a page of this engine
                self._end(restore)
            if not self._restores:
                return

    def _end(self, restore: _Restore) -> None:
        self._restores.remove(restore)
        self._on_restored(restore.close(self._pages))
        restore.sequence.restoring = False

    def close(self) -> None:
        """Save what is queued. The pages are not saved from now on."""
        self.abort()
        self._pages.saver = None
        release_folder(self.folder)

    def write_page(self, content: memoryview) -> Callable[[int, Mapping[int, int]], None]:
        """A function that writes an entry into a page and its slots."""
        n = 1 + len(self._windows)
        ends = np.cumsum([8 * n, *struct.unpack_from(f"<{n}Q", content)]).tolist()
        parts = [_array(content[a:b]) for a, b in pairwise(ends)]

        def write(page: int, slots: Mapping[int, int]) -> None:
            self._bytes.write_page(page, parts[0])
            for window, part in zip(self._windows, parts[1:], strict=True):
                self._bytes.write_page(slots[window], part, window)

        return write

    def write_state(self, slot: int, content: memoryview, length: int) -> None:
        self._bytes.write_state(slot, _array(content), length)


def _array(content: memoryview) -> Array:
    return np.frombuffer(content, np.uint8).copy()  # aligned, and writable for the native module


def _state_name(digest: bytes) -> str:
    return blake2b(digest + b"state", digest_size=32).hexdigest()


class _Restore:
    """A prefix that is read from the folder into the cache. `step` and `close` are called by the engine's thread."""

    def __init__(self, sequence: Running, digests: list[bytes], store: PrefixStore) -> None:
        self.sequence, self._store = sequence, store
        self._digests = digests
        self._lease: Lease | None = None
        self._first = 0  # tokens that were in memory before
        self._read: queue.Queue[memoryview | None] = queue.Queue(_AHEAD)
        self._ended = threading.Event()

    def step(self, pages: Pages, timeout: float) -> bool:
        """Take the next entry. False when no entry is left. Raises queue.Empty where none has arrived in time."""
        if self._lease is None:
            restored = self.sequence.keys(0, len(self._digests) * PAGE + 1)
            self._lease = pages.open(restored, self.sequence.salt, whole=True)
            self._first = self._lease.length
            names = [digest.hex() for digest in self._digests[self._first // PAGE :]]
            if names and pages.states:
                names.append(_state_name(self._digests[-1]))
            threading.Thread(target=self._read_all, args=(names,), name="assay-cache-read", daemon=True).start()
        content = self._read.get(timeout=timeout) if timeout else self._read.get_nowait()
        if content is None:
            return False
        start = self._lease.length
        if start < len(self._digests) * PAGE:
            pages.adopt(self._lease, self.sequence.keys(start, start + PAGE), self._store.write_page(content))
        else:
            if self._lease.state_slot < 0:
                raise OutOfPages("cache: no state slot for a prefix from disk")
            self._store.write_state(self._lease.state_slot, content, start)
            pages.adopt_state(self._lease)
        return True

    def close(self, pages: Pages) -> int:
        """End it; returns the tokens that were restored. Its pages stay in the tree."""
        self._ended.set()
        if self._lease is None:
            return 0
        restored = self._lease.length - self._first
        self._store.folder.touch(digest.hex() for digest in reversed(self._digests))
        pages.close(self._lease)
        return restored

    def _read_all(self, names: list[str]) -> None:
        for name in names:
            content = self._store.folder.get(name)
            if not self._give(content) or content is None:
                return
        self._give(None)

    def _give(self, content: memoryview | None) -> bool:
        """Queue an entry for the engine's thread. False if the request has ended."""
        while not self._ended.is_set():
            try:
                self._read.put(content, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False
