"""Which replicas compute the same bits. A stream moves only between replicas whose fingerprints are equal.

file         the bytes of the model
arithmetic   the engine's order of sums and rounding, its precision, the type of its cache, the version of both
sampling     the bits of NumPy's exp, log and sums on this machine: sampling and log-probabilities use them
text         the versions of assay and of the grammar library
context      the context size, which may end an answer
tower        the bytes of the mmproj file and the arithmetic of its tower, where pictures are taken
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
from assay.vision.projector import Projector

_PIECE = 16 << 20  # bytes hashed at a time, by several threads


def file_digest(path: Path) -> str:
    """The SHA-256 over the SHA-256 of every 16 MiB of the file, so that threads can share the work."""

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
    """A hash of NumPy's results on values like a sampler's. NumPy chooses its routines by the processor."""
    x = -np.geomspace(1e-6, 60, 4099)
    found = [np.exp(x), np.log(-x), np.cumsum(np.exp(x)), np.exp(x).sum(keepdims=True)]
    return blake2b(b"".join(part.tobytes() for part in found), digest_size=8).hexdigest()


def fingerprint(path: Path, engine: Engine, n_ctx: int, projector: Projector | None = None) -> dict[str, Any]:
    """Everything that the bytes of a stream depend on, apart from the request."""
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
        **({"tower": [projector.digest.hex(), projector.arithmetic]} if projector else {}),
    }


def short(found: dict[str, Any]) -> str:
    """A short name of a fingerprint, for display."""
    return blake2b(json.dumps(found, sort_keys=True).encode(), digest_size=4).hexdigest()
