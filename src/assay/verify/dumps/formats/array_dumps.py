"""Dumps made of named arrays: .npz, a folder of .npy, .safetensors, what `torch.save` writes.

Layouts stay as the file has them. Names keep their wrapping as `foreign`; `module_names` takes it off. A residual
stream that an engine returns in two parts (vLLM, sglang: what the layer adds, and the residual) is added up.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.verify.dumps.formats.call_steps import join_calls, rows_of_call
from assay.verify.dumps.formats.field_checks import MAX_TOKENS, read_checked, token_list
from assay.verify.dumps.formats.module_names import GENERATED, TOKENS, first_of_tuple, layer_of_half, module_name
from assay.verify.dumps.formats.named_calls import arrays_of_calls, ids_in_document, ids_of_calls
from assay.verify.dumps.formats.numpy_files import Arrays, archive_arrays, folder_arrays
from assay.verify.dumps.formats.safetensors import read_safetensors
from assay.verify.dumps.formats.torch_files import torch_arrays
from assay.verify.dumps.formats.trace_file import read_trace
from assay.verify.dumps.observation import Dump, Observation

Array = NDArray[Any]
_MAX_DOCUMENT = 16 << 20  # bytes
_LISTS = ("tokens", "positions", "steps")  # arrays of whole numbers: the tokens, and how they were fed


def read_npz(path: Path) -> Dump:
    """Arrays by name. `tokens` holds the ids; `positions` and `steps` are optional."""
    return from_arrays(path, archive_arrays(path))


def read_npy_folder(path: Path) -> Dump:
    """A folder of .npy files, named after the nodes; `tokens.npy` holds the ids."""
    arrays = folder_arrays(path)
    if not arrays:
        raise AssayError(f"{path}: a folder without .npy files; a dump folder holds NAME.npy and tokens.npy")
    if not any(name in arrays for name in TOKENS) and (ids := _ids_beside(path)):
        arrays["tokens"] = (len(ids),), partial(np.asarray, ids, np.int64)
    return from_arrays(path, arrays)


def _ids_beside(folder: Path) -> list[int]:
    """The ids of a JSON document in the folder, such as a manifest."""
    for file in sorted(folder.glob("*.json")):
        try:
            if file.stat().st_size <= _MAX_DOCUMENT and (ids := ids_in_document(json.loads(file.read_bytes()))):
                return ids if len(ids) <= MAX_TOKENS else []
        except (OSError, ValueError, RecursionError):
            continue
    return []


def read_tensors(path: Path) -> Dump:
    """A safetensors file: a trace of assay, or any tensors with the token ids as `tokens`."""
    trace = read_trace(path)
    if trace is not None:
        return trace
    readers, entries, _ = read_safetensors(path)
    return from_arrays(path, {name: (entries[name].shape, readers[name]) for name in entries})


def read_torch(path: Path) -> Dump:
    """A file of `torch.save`, or a pickle of arrays."""
    arrays, left = torch_arrays(path)
    if not arrays:
        what = f"; it holds {', '.join(left[:3])}" if left else ""
        raise AssayError(f"{path}: holds no tensors{what}; save a dict from names to tensors with torch.save")
    return from_arrays(path, arrays, _left_out(left))


def _left_out(left: list[str]) -> tuple[str, ...]:
    return (f"left out: {', '.join(left[:3])}{' …' if len(left) > 3 else ''}",) if left else ()


def from_arrays(path: Path, arrays: Arrays, notes: tuple[str, ...] = ()) -> Dump:
    """A dump from arrays by name; each has a shape and a function that reads it. `tokens` holds the ids."""
    arrays = _with_tokens(arrays)
    calls, beside = arrays_of_calls(arrays, _LISTS)
    if calls:
        return _joined_calls(path, calls, beside, notes)
    return _of_one_call(path, arrays, notes)


def _of_one_call(path: Path, arrays: Arrays, notes: tuple[str, ...]) -> Dump:
    decoded = _with_generated(path, arrays, notes)
    if decoded is not None:
        return decoded
    ids = [_ids(f"{path}: {k}", *arrays[k]) if k in arrays else None for k in _LISTS]
    tokens = token_list(f"{path}: tokens", "tokens", ids[0]) if ids[0] is not None else []
    positions = (
        token_list(f"{path}: positions", "positions", ids[1]) if ids[1] is not None else list(range(len(tokens)))
    )
    if len(positions) != len(tokens):
        raise AssayError(f"{path}: {len(positions)} positions for {len(tokens)} tokens")
    steps = token_list(f"{path}: steps", "steps", ids[2]) if ids[2] is not None else [len(tokens)] if tokens else []
    if sum(steps) != len(tokens) or 0 in steps:
        raise AssayError(
            f"{path}: steps: must be positive and add up to the {len(tokens)} tokens (found {steps!s:.60})"
        )
    found, added = _observations(path, {name: a for name, a in arrays.items() if name not in _LISTS})
    return Dump(path.stem, tuple(tokens), tuple(positions), tuple(steps), found, str(path), notes=(*notes, *added))


def _joined_calls(path: Path, calls: list[Arrays], beside: Arrays, notes: tuple[str, ...]) -> Dump:
    """The calls as steps of one sequence, whose ids stand in the file or are given by the caller."""
    rows = [rows_of_call(shape for shape, _ in call.values()) for call in calls]
    tokens = ids_of_calls(calls, beside, rows)
    joined = join_calls([_of_one_call(path, call, notes) for call in calls], rows)
    if tokens:
        return replace(joined, tokens=tuple(tokens), positions=tuple(range(len(tokens))))
    if "tokens" in beside:
        n = math.prod(beside["tokens"][0])
        raise AssayError(f"{path}: {n} tokens for calls of {rows} rows; give the ids of all calls")
    return joined


def _with_tokens(arrays: Arrays) -> Arrays:
    """The ids under the name `tokens`, whatever the tool calls them."""
    if "tokens" in arrays:
        return arrays
    name = next((n for n in TOKENS if n in arrays and 0 < math.prod(arrays[n][0]) <= MAX_TOKENS), None)
    if name is None or np.asarray(arrays[name][1]()).dtype.kind not in "iu":
        return arrays
    return {"tokens": arrays[name]} | {n: a for n, a in arrays.items() if n != name}


def _with_generated(path: Path, arrays: Arrays, notes: tuple[str, ...]) -> Dump | None:
    """Logits of the last prompt token and of the tokens generated after it, in one array with a row for each."""
    name = next((n for n in GENERATED if n in arrays and len(arrays[n][0]) == 1), None)
    rows = [(n, a) for n, a in arrays.items() if "logits" in n.lower() and len(a[0]) == 2]
    if name is None or "tokens" not in arrays or len(rows) != 1:
        return None
    (logits, (shape, read)), made = rows[0], arrays[name][0][0]
    if not 1 < shape[0] <= made + 1:
        return None
    prompt, more = (_ids(f"{path}: {n}", *arrays[n]) for n in ("tokens", name))
    tokens = token_list(f"{path}: tokens", "tokens", [*prompt, *more[: shape[0] - 1]])
    n = len(prompt)
    seen = Observation("result_output", "values", partial(read_checked, f"{path}: {logits}", read), shape=shape,
                       rows=(n - 1, n - 1 + shape[0]), foreign=logits, where=logits)  # fmt: skip
    steps = (n, *(1 for _ in range(shape[0] - 1)))
    return Dump(path.stem, tuple(tokens), tuple(range(len(tokens))), steps, (seen,), str(path), notes=notes)


def _observations(path: Path, arrays: Arrays) -> tuple[tuple[Observation, ...], tuple[str, ...]]:
    """An observation for each array, and a note on residual streams that were added up."""
    plain = {name: module_name(name) for name in arrays}
    halves: dict[str, dict[int, str]] = {}
    for name, said in plain.items():
        if (half := layer_of_half(said)) is not None:
            halves.setdefault(half[0], {})[half[1]] = name
    split = {
        h[0]: (layer, h[1])
        for layer, h in halves.items()
        if len(h) == 2 and arrays[h[0]][0] == arrays[h[1]][0] and layer not in plain.values()
    }
    residuals = {other for _, other in split.values()}
    found, taken = [], {layer for layer, _ in split.values()}
    for name, (shape, read) in arrays.items():
        value: Callable[[], Array] = partial(read_checked, f"{path}: {name}", read)
        said, foreign = first_of_tuple(plain[name]) or plain[name], name
        if name in residuals:
            continue
        if name in split:
            said, other = split[name]
            value = partial(_sum, value, partial(read_checked, f"{path}: {other}", arrays[other][1]))
            foreign = f"{name} + {other}"
        elif said in taken:
            said = name
        taken.add(said)
        found.append(Observation(said, "values", value, shape=shape, foreign=foreign, where=name))
    layers = [layer for layer, _ in split.values()]
    notes = tuple(f"{layer}: its residual stream is given in two parts, which were added" for layer in layers)
    return tuple(found), notes


def _sum(a: Callable[[], Array], b: Callable[[], Array]) -> Array:
    x, y = a(), b()
    return np.asarray(x.astype(np.float32) + y.astype(np.float32))


def _ids(where: str, shape: tuple[int, ...], read: Callable[[], Array]) -> list[Any]:
    if math.prod(shape) > MAX_TOKENS:
        raise AssayError(f"{where}: {math.prod(shape)} of them (expected at most {MAX_TOKENS})")
    found: list[Any] = np.asarray(read()).reshape(-1).tolist()
    return found
