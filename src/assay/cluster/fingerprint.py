"""Who gives the same bits. A stream moves only between replicas whose fingerprints are equal.

file         the bytes of the model
arithmetic   whose sums and roundings, precision, type of the cache, version of the definition
sampling     what NumPy's exp, log and sums give on this machine: the draw and the log-probabilities use them
text         this version, and that of the grammars
context      where an answer ends because the context is full
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache
from hashlib import blake2b, sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from assay.engines.contract import Engine
from assay.version import __version__

_PIECE = 16 << 20  # bytes hashed at a time, by several threads


def file_digest(path: Path) -> str:
    """Of all bytes: the SHA-256 of the SHA-256 of every 16 MiB."""

    def pieces() -> Iterator[int]:
        yield from range(0, path.stat().st_size, _PIECE)

    def one(start: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return sha256(file.read(_PIECE)).digest()

    with ThreadPoolExecutor() as threads:
        return sha256(b"".join(threads.map(one, pieces()))).hexdigest()


@cache
def sampling_digest() -> str:
    """NumPy picks its routines by the processor: a hash of what they give on numbers like a sampler's."""
    x = -np.geomspace(1e-6, 60, 4099)
    found = [np.exp(x), np.log(-x), np.cumsum(np.exp(x)), np.exp(x).sum(keepdims=True)]
    return blake2b(b"".join(part.tobytes() for part in found), digest_size=8).hexdigest()


def fingerprint(path: Path, engine: Engine, n_ctx: int) -> dict[str, Any]:
    """All that a stream's bytes depend on beside the request."""
    try:
        grammars = version("llguidance")
    except PackageNotFoundError:
        grammars = ""
    return {
        "file": file_digest(path),
        "arithmetic": asdict(engine.arithmetic),
        "sampling": sampling_digest(),
        "text": [__version__, grammars],
        "context": n_ctx,
    }


def short(found: dict[str, Any]) -> str:
    """A name for a fingerprint, for people."""
    return blake2b(json.dumps(found, sort_keys=True).encode(), digest_size=4).hexdigest()
