"""A folder of cache entries that outlives the process: bounded in size, checksummed, least recently used out first.

    <folder>/<two hex digits>/<64 hex digits>     magic, sha256 of name and content, content

An entry is found by its name, which is a hash of everything that its content depends on. It appears under its name only
when it is complete. So a process that is killed while it writes leaves the other entries as they are. An entry that was
cut, damaged or renamed does not match its checksum; it is deleted and counts as absent. A disk that is full or broken
pauses writing. All of this costs time and never a wrong byte.

`put` queues bytes for a thread that writes; it never waits for the disk. `get` reads in the caller's thread. Entries
are not flushed to the disk: one that a power failure damages is found by its checksum.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.errors import AssayError
from assay.system import files

log = logging.getLogger("assay.runtime")
DEFAULT_BYTES = 8 << 30
_MAGIC = b"assaykv1"
_HEAD = len(_MAGIC) + 32
_NAME = re.compile(r"[0-9a-f]{64}")
_QUEUED = 64 << 20  # bytes that may wait for the disk; what comes then is saved when its sequence ends, or never
_PAUSE_S = 30.0  # after a write that failed
_ABANDONED_S = 3600.0  # after which an unfinished file of another process is deleted


@dataclass(frozen=True)
class FolderUse:
    """Size of a cache folder, and counts of writes, failures and damaged entries since the process started."""

    entries: int
    bytes: int
    written: int
    failed: int  # writes that the disk refused
    damaged: int  # entries that did not match their checksum


class CacheFolder:
    """Entries by name. Every method may be called by any thread."""

    def __init__(self, path: str | os.PathLike[str], limit: int = DEFAULT_BYTES) -> None:
        self.path, self.limit = Path(path), limit
        with files.errors_about(self.path):
            files.check_target_folder(self.path)
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.path.stat()
        if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            raise AssayError(
                f"{self.path}: another user owns it or may write to it, and could plant wrong values; "
                "use a folder of your own (chmod go-w)"
            )
        self._entries: OrderedDict[str, int] = OrderedDict()  # name -> bytes, least recently used first
        self._bytes = self._written = self._failed = self._damaged = 0
        self._paused = 0.0
        self._wake = threading.Condition()
        self._queue: deque[tuple[str, Sequence[bytes | memoryview]]] = deque()
        self._queued: set[str] = set()
        self._waiting = 0  # bytes in the queue
        self._touched: set[str] = set()
        self._closing = False
        self._scan()
        self._thread = threading.Thread(target=self._write_all, name="assay-cache-dir", daemon=True)
        self._thread.start()

    def has(self, name: str) -> bool:
        """Whether an entry is on disk or queued for writing."""
        return name in self._entries or name in self._queued

    def put(self, name: str, parts: Sequence[bytes | memoryview]) -> bool:
        """Queue an entry for writing. False where the queue is full or writing is paused; the caller may try later."""
        size = sum(len(part) for part in parts)
        with self._wake:
            if not self.open_for(size) or self._closing or size + _HEAD > self.limit:
                return False
            if not self.has(name):
                self._queue.append((name, parts))
                self._queued.add(name)
                self._waiting += size
                self._wake.notify_all()
        return True

    def open_for(self, size: int) -> bool:
        """Whether the queue would take an entry of this size now."""
        return (not self._waiting or self._waiting + size <= _QUEUED) and time.monotonic() >= self._paused

    def get(self, name: str) -> memoryview | None:
        """The content of an entry, or None. An entry that does not match its checksum is deleted."""
        path = self._path(name)
        try:
            content = files.read_own(path)
        except OSError:
            self._forget(name)
            return None
        if content[:_HEAD] != _MAGIC + _checksum(name, [content[_HEAD:]]):
            log.warning("%s: damaged, deleted; what it held is computed again", path)
            with contextlib.suppress(OSError):
                path.unlink()
            self._forget(name, damaged=True)
            return None
        return content[_HEAD:]

    def touch(self, names: Iterable[str]) -> None:
        """Entries were used, the most important one last. They are evicted after all others."""
        with self._wake:
            for name in names:
                if name in self._entries:
                    self._entries.move_to_end(name)
                    self._touched.add(name)
            self._wake.notify_all()

    def flush(self, timeout: float = 60.0) -> bool:
        """Wait until everything that was queued is written. False if that takes longer than `timeout` seconds."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._queued and not self._touched, timeout)

    def close(self) -> None:
        """Write what is queued, then end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join()

    @property
    def use(self) -> FolderUse:
        with self._wake:
            return FolderUse(len(self._entries), self._bytes, self._written, self._failed, self._damaged)

    # --- the thread that writes

    def _write_all(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._queue or self._touched or self._closing)
                if not self._queue and not self._touched:
                    return
                name, parts = self._queue[0] if self._queue else ("", ())
                touched, self._touched = self._touched, set()
            for used in touched:  # the time of a file's last use survives the process as the time of its change
                with contextlib.suppress(OSError):
                    os.utime(self._path(used))
            if name:
                written = self._write(name, parts)
                with self._wake:
                    self._queue.popleft()
                    self._queued.discard(name)
                    self._waiting -= sum(len(part) for part in parts)
                    if written:
                        self._entries[name] = written
                        self._bytes += written
                        self._written += 1
            with self._wake:
                self._wake.notify_all()

    def _write(self, name: str, parts: Sequence[bytes | memoryview]) -> int:
        """Write one entry; returns its bytes, or 0 if the disk refused it."""
        size = _HEAD + sum(len(part) for part in parts)
        self._make_room(size)
        path = self._path(name)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with files.NewFile(path, size, durable=False, mode=0o600) as file:
                file.write(_MAGIC + _checksum(name, parts))
                for part in parts:
                    file.write(part)
        except (OSError, AssayError) as error:
            with self._wake:
                self._failed += 1
                self._paused = time.monotonic() + _PAUSE_S
            log.warning("%s; nothing is saved for %d s", error, int(_PAUSE_S))
            return 0
        return size

    def _make_room(self, size: int) -> None:
        while True:
            with self._wake:
                if self._bytes + size <= self.limit or not self._entries:
                    return
                name = next(iter(self._entries))
            with contextlib.suppress(OSError):
                self._path(name).unlink()
            self._forget(name)

    def _forget(self, name: str, *, damaged: bool = False) -> None:
        with self._wake:
            self._bytes -= self._entries.pop(name, 0)
            self._damaged += damaged

    def _path(self, name: str) -> Path:
        return self.path / name[:2] / name

    def _scan(self) -> None:
        """Read which entries there are, oldest first; delete what unfinished writes have left, and the surplus."""
        found: list[tuple[int, str, int]] = []
        for folder in os.scandir(self.path):
            if not re.fullmatch("[0-9a-f]{2}", folder.name) or not folder.is_dir(follow_symlinks=False):
                continue
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):
                    at = entry.stat(follow_symlinks=False)
                    if _NAME.fullmatch(entry.name) and stat.S_ISREG(at.st_mode):
                        found.append((at.st_mtime_ns, entry.name, at.st_size))
                    elif entry.name.endswith(".part") and time.time() - at.st_mtime > _ABANDONED_S:
                        os.unlink(entry)
        for _, name, size in sorted(found):
            self._entries[name] = size
            self._bytes += size
        self._make_room(0)


def _checksum(name: str, parts: Iterable[bytes | memoryview]) -> bytes:
    """Of the name, too: an entry that was renamed is not the entry of its new name."""
    digest = hashlib.sha256(name.encode())
    for part in parts:
        digest.update(part)
    return digest.digest()


_folders: dict[Path, tuple[CacheFolder, int]] = {}  # open folders of this process, and their users
_folders_lock = threading.Lock()


def open_folder(path: str | os.PathLike[str], limit: int = DEFAULT_BYTES) -> CacheFolder:
    """The folder at a path. All models of a process share one, so that its limit holds for all of them."""
    real = Path(path).absolute()
    with _folders_lock:
        folder, users = _folders.get(real) or (CacheFolder(real, limit), 0)
        _folders[real] = folder, users + 1
    return folder


def release_folder(folder: CacheFolder) -> None:
    """One user less; the last one closes it."""
    with _folders_lock:
        known, users = _folders[folder.path]
        if users > 1:
            _folders[folder.path] = known, users - 1
            return
        del _folders[folder.path]
    folder.close()
