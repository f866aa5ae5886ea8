"""A cache of the arrays that were read last from one file.

Judging a node asks for its values several times: to lay them out, to check them, to compare them twice. Inflating a
member in another process costs more than the judgement. The cache is bounded, so a dump of any size can be read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
ROOM = 32 << 20  # bytes of all arrays that are kept


class RecentArrays:
    """Arrays by name, read-only; those that were not asked for the longest are evicted first."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._kept: dict[str, Array] = {}
        self._size = 0
        self._lock = threading.Lock()

    def get(self, name: str, read: Callable[[], Array]) -> Array:
        """The array under this name; `read` gives it where it is not kept."""
        with self._lock:
            found = self._kept.pop(name, None)
            if found is not None:
                self._kept[name] = found  # now the last
                return found
        found = read()
        if found.nbytes <= self._room:
            found.flags.writeable = False
            with self._lock:
                self._size += found.nbytes - (self._kept.pop(name).nbytes if name in self._kept else 0)
                self._kept[name] = found
                while self._size > self._room:
                    self._size -= self._kept.pop(next(iter(self._kept))).nbytes
        return found
