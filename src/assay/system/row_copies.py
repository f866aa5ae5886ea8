"""Work on large arrays in several threads: mapping new memory page by page takes one thread longer than the copy.

Touch this when another place copies megabytes while a device waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

_EACH, _MOST = 2 << 20, 8  # bytes that are worth a thread; most threads


def in_parts(rows: int, size: int, work: Callable[[int, int], None]) -> None:
    """Run `work(begin, end)` over all rows of an array of `size` bytes, in several threads if it is large."""
    n = max(1, min(_MOST, os.cpu_count() or 1, size // _EACH, rows))
    if n == 1:
        work(0, rows)
        return
    ends = pairwise(rows * i // n for i in range(n + 1))
    with ThreadPoolExecutor(n) as team:
        list(team.map(lambda part: work(*part), ends))


def copied(array: NDArray[Any]) -> NDArray[Any]:
    """A copy in memory of its own."""
    flat = array.reshape(-1)
    found = np.empty(flat.shape, flat.dtype)
    in_parts(flat.size, flat.nbytes, lambda a, b: np.copyto(found[a:b], flat[a:b]))
    return found.reshape(array.shape)
