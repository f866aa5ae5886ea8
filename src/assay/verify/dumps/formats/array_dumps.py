"""Dumps made of named arrays: .npz, a folder of .npy, .safetensors. Names and layouts stay as the file has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.verify.dumps.formats.checks import MAX_TOKENS, read_checked, token_list
from assay.verify.dumps.formats.numpy_files import Arrays, archive_arrays, folder_arrays
from assay.verify.dumps.formats.safetensors import read_safetensors
from assay.verify.dumps.formats.trace_file import read_trace
from assay.verify.dumps.observation import Dump, Observation

Array = NDArray[Any]
_LISTS = ("tokens", "positions", "steps")  # arrays of whole numbers that say what was fed


def read_npz(path: Path) -> Dump:
    """Arrays by name; the ids as `tokens`, `positions` if they do not count from 0, `steps` if they were several."""
    return from_arrays(path, archive_arrays(path))


def read_npy_folder(path: Path) -> Dump:
    """A folder of .npy files, named after the nodes; `tokens.npy` holds the ids."""
    arrays = folder_arrays(path)
    if not arrays:
        raise AssayError(f"{path}: a folder without .npy files; a dump folder holds NAME.npy and tokens.npy")
    return from_arrays(path, arrays)


def read_tensors(path: Path) -> Dump:
    """A safetensors file: our own trace, or anybody's tensors with the ids as `tokens`."""
    trace = read_trace(path)
    if trace is not None:
        return trace
    readers, entries, _ = read_safetensors(path)
    return from_arrays(path, {name: (entries[name].shape, readers[name]) for name in entries})


def from_arrays(path: Path, arrays: Arrays) -> Dump:
    """A dump of arrays by name: the shape of each, and how to read it; the ids as `tokens`."""
    ids = [_ids(f"{path}: {k}", *arrays[k]) if k in arrays else None for k in _LISTS]
    tokens = token_list(f"{path}: tokens", "tokens", ids[0]) if ids[0] is not None else []
    positions = (
        token_list(f"{path}: positions", "positions", ids[1]) if ids[1] is not None else list(range(len(tokens)))
    )
    if len(positions) != len(tokens):
        raise AssayError(f"{path}: {len(positions)} positions for {len(tokens)} tokens")
    observations = tuple(
        Observation(
            name, "values", partial(read_checked, f"{path}: {name}", read), shape=shape, foreign=name, where=name
        )
        for name, (shape, read) in arrays.items()
        if name not in _LISTS
    )
    steps = token_list(f"{path}: steps", "steps", ids[2]) if ids[2] is not None else [len(tokens)] if tokens else []
    if sum(steps) != len(tokens) or 0 in steps:
        raise AssayError(
            f"{path}: steps: must be positive and add up to the {len(tokens)} tokens (found {steps!s:.60})"
        )
    return Dump(path.stem, tuple(tokens), tuple(positions), tuple(steps), observations, str(path))


def _ids(where: str, shape: tuple[int, ...], read: Callable[[], Array]) -> list[Any]:
    if math.prod(shape) > MAX_TOKENS:
        raise AssayError(f"{where}: {math.prod(shape)} of them (expected at most {MAX_TOKENS})")
    found: list[Any] = np.asarray(read()).reshape(-1).tolist()
    return found
