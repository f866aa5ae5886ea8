"""How many threads NumPy's products use.

OpenBLAS shares a product of a few tokens out over all processors, and each thread then waits, spinning, for the others.
On products that take less than a millisecond the waiting costs more than it saves; on a machine that does other work as
well, ten times more. So a search that makes thousands of small products asks for one thread while it runs.
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

SMALL = 1 << 22  # elements of a matrix, up to which a product with a few tokens is short
_NAMES = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads")


@cache
def _openblas() -> tuple[Any, Any] | None:
    """What reads and what sets the number of threads; None where NumPy was built with something else."""
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
    """Products by one thread, unless the matrices of a layer are large enough for several. Of the whole process."""
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
