"""Weights encoded in a block type, searched for once: files in `build/encoded`, as the compiled shim is one.

The search takes up to three seconds for a small model, and several processes make the same models. A file belongs to
the values, the type, the sources of the encoders and NumPy's version. The tests of the encoders call `encode`
themselves.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.gguf import codecs
from assay.gguf.codecs import encode
from assay.gguf.types import GGMLType

FOLDER = Path(__file__).parents[1] / "build" / "encoded"
SEARCHED = 1 << 10  # values: fewer are encoded at once
_ENCODED: dict[tuple[str, bytes], Any] = {}  # of this process: models of one seed share their first tensors


@cache
def _folder() -> Path:
    sources = sorted(Path(codecs.__file__).parent.glob("*.py"))
    state = hashlib.sha256(b"".join([np.__version__.encode(), *(source.read_bytes() for source in sources)]))
    found = FOLDER / state.hexdigest()[:16]
    found.mkdir(parents=True, exist_ok=True)
    return found


def encoded(kind: GGMLType, x: NDArray[np.float32]) -> Any:
    """The rows of `x` as blocks, or as numbers of a float type."""
    key = kind.name, hashlib.sha256(x.tobytes()).digest()
    if key not in _ENCODED:
        _ENCODED[key] = encode(kind, x) if kind.block_size == 1 or x.size < SEARCHED else _kept(kind, x, key[1].hex())
    return _ENCODED[key]


def _kept(kind: GGMLType, x: NDArray[np.float32], digest: str) -> Any:
    shape = "x".join(map(str, x.shape))
    path = _folder() / f"{kind.name}-{shape}-{digest[:32]}.npy"
    if not path.exists():
        new = path.with_suffix(f".{os.getpid()}.new")
        with new.open("wb") as file:
            np.save(file, encode(kind, x))
        new.replace(path)
    return np.load(path)
