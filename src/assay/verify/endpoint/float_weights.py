"""Files as servers with small floats hold them: a matrix in FP8 or MXFP4, everything else as it is.

No engine here computes in these formats. The rounded values are written in float16, whose own error is 128 times
smaller than that of FP8. Embeddings and the output matrix stay as they are, as in the usual checkpoints.

    FP8     E4M3, one scale for each row: its largest value becomes 448
    MXFP4   E2M1 in blocks of 32 with a power of two for each (OCP Microscaling)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.gguf import GGUFFile
from assay.gguf.codecs import decode, encode
from assay.gguf.codecs.microscaling import E2M1
from assay.gguf.mixes import mix_by_name, role_of
from assay.gguf.requantize import plan
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from assay.verify.faults.attention_edits import e4m3

Array = NDArray[Any]
BITS = {"FP8": 8.0, "MXFP4": 4.25}  # a weight
_LARGEST_FP8, _BLOCK = 448.0, 32
_LEVELS = np.unique(np.abs(E2M1)) / 2  # 0 to 6; the codec's table has them doubled
_MIDDLES = (_LEVELS[1:] + _LEVELS[:-1]) / 2
_ROWS = 4096  # decoded at a time


def fp8(x: Array) -> Array:
    """Rows rounded to E4M3 with a scale each."""
    top = np.abs(x).max(-1, keepdims=True)
    scale = np.where(top > 0, top / _LARGEST_FP8, 1.0)
    return np.asarray(e4m3(x / scale) * scale)


def mxfp4(x: Array) -> Array:
    """Rows in blocks of 32 with a power of two each; a row of another width stays as it is."""
    if x.shape[-1] % _BLOCK:
        return x
    blocks = x.reshape(*x.shape[:-1], -1, _BLOCK)
    top = np.abs(blocks).max(-1, keepdims=True)
    scale = np.exp2(np.floor(np.log2(np.where(top > 0, top, 1.0))) - 2)  # E2M1's largest power of two is 4
    rounded = _LEVELS[np.searchsorted(_MIDDLES, np.abs(blocks) / scale)]
    return np.asarray(np.sign(blocks) * rounded * scale).reshape(x.shape)


FORMATS: dict[str, Callable[[Array], Array]] = {"FP8": fp8, "MXFP4": mxfp4}


def write_rounded(file: GGUFFile, out: Path, name: str) -> None:
    """Write `file` with the matrices of its layers rounded to a format of `FORMATS`."""
    half, tensors = by_name("F16"), []
    for step in plan(file, mix_by_name("F16")):
        if step.after == half and role_of(step.name) not in ("embedding", "output"):
            tensors.append(Tensor(step.name, step.shape, half, partial(_rounded, file, step.name, name)))
        else:
            tensors.append(Tensor(step.name, step.shape, step.before, partial(_copied, file, step.name)))
    write(out, {key: file.metadata.typed(key) for key in file.metadata if not key.startswith("split.")}, tensors)


def _copied(file: GGUFFile, name: str) -> Array:
    return np.array(file.raw(name))


def _rounded(file: GGUFFile, name: str, kind: str) -> Array:
    info, raw = file.tensors[name], file.raw(name)
    rows, half = raw.reshape(-1, raw.shape[-1]), by_name("F16")
    out = np.empty((len(rows), half.row_bytes(info.shape[-1])), np.uint8)
    for i in range(0, len(rows), _ROWS):
        values = FORMATS[kind](np.asarray(decode(info.type, rows[i : i + _ROWS]), np.float32))
        out[i : i + _ROWS] = encode(half, values.astype(np.float32))
    return out
