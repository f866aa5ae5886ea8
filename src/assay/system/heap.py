"""Keep freed memory in the process during a computation.

glibc returns large freed blocks to the system at once, and the next array of that size causes page faults again. That
takes a tenth of the time of a computation that allocates and frees arrays of megabytes. Without glibc it does nothing.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_TRIM, _PAD, _MAP = -1, -2, -3  # glibc's M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD
_KEPT = {_TRIM: 512 << 20, _PAD: 32 << 20, _MAP: 32 << 20}
_USUAL = {_TRIM: 128 << 10, _PAD: 0}
_depth = 0
_lock = threading.Lock()  # a server may judge dumps in several threads


@cache
def _glibc() -> Any:
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "gnu_get_libc_version") else None
    except (OSError, TypeError):
        return None


@contextmanager
def kept() -> Iterator[None]:
    """Within this context, freed memory stays in the process. The outermost context returns it at its end."""
    global _depth
    found = _glibc()
    if found is None:
        yield
        return
    with _lock:
        _set(found, _KEPT)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth:
                _set(found, _USUAL)
                found.malloc_trim(0)


def _set(library: Any, options: dict[int, int]) -> None:
    for option, value in options.items():
        library.mallopt(option, value)
