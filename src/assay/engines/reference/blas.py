"""The number of threads that NumPy's matrix products use.

OpenBLAS splits even a product of a few tokens over all processors, and its threads spin-wait for each other. For
products under a millisecond the spin-wait costs more than the split saves; on a machine that is also busy otherwise,
ten times more. So a search that computes thousands of small products asks for one thread while it runs.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from assay.graph import Graph

SMALL = 1 << 22  # elements of a matrix; up to this size one thread is faster for a few tokens
_NAMES = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads")


@cache
def _openblas() -> tuple[Any, Any] | None:
    """OpenBLAS' getter and setter of the number of threads; None where NumPy uses another library."""
    try:
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]  # and what it links to
    except (AttributeError, OSError):
        return None
    for name in _NAMES:
        if hasattr(library, name.format("set")):
            return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None


@contextmanager
def one_thread(graph: Graph) -> Iterator[None]:
    """While inside, the whole process multiplies with one thread, unless the graph's matrices are large."""
    found = _openblas()
    sizes = (math.prod(shape[-2:]) for name, shape in graph.weights.items() if name.startswith("blk."))
    if found is None or max(sizes, default=0) > SMALL:
        yield
        return
    get, put = found
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)
