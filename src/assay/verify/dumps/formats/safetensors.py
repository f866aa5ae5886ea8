"""Safetensors files, written in any order and read lazily.

A file is eight bytes of header length, a JSON header, and raw little-endian data. The graph gives every size before the
first number is computed. So the header is written first, and values go to their places in any order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.system.files import NewFile, errors_about
from assay.verify.dumps.formats.numpy_files import MAX_AXES, read_raw

Array = NDArray[Any]
MAX_HEADER = 64 << 20
DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
_NAMES = {np.dtype(code): name for name, code in DTYPES.items() if name != "BF16"}


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of a safetensors file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int  # from the start of the file


class TensorWriter:
    """A safetensors file of known shapes, filled in any order. Nothing is held in memory."""

    def __init__(
        self, path: Path, tensors: Iterable[tuple[str, np.dtype[Any], tuple[int, ...]]], metadata: Mapping[str, str]
    ) -> None:
        header: dict[str, Any] = {"__metadata__": dict(metadata)}
        relative: dict[str, TensorEntry] = {}
        at = 0
        for name, dtype, shape in tensors:
            size = math.prod(shape) * dtype.itemsize
            header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [at, at + size]}
            relative[name] = TensorEntry(name, _NAMES[dtype], shape, at)
            at += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        base = 8 + len(text)
        self.entries = {n: TensorEntry(n, e.dtype, e.shape, base + e.offset) for n, e in relative.items()}
        self.size = base + at
        self.file = NewFile(path, self.size)
        self._put(len(text).to_bytes(8, "little") + text, 0)

    def put(self, name: str, value: Array, axis: int = 0, start: int = 0) -> None:
        """Write `value` at index `start` of `axis`; other axes begin at 0."""
        entry = self.entries[name]
        data = np.ascontiguousarray(value, DTYPES[entry.dtype])
        run = data.ndim  # axes from here on lie in the file as they lie in `data`
        while run and (run == data.ndim or data.shape[run] == entry.shape[run]):
            run -= 1
        width = data.dtype.itemsize
        strides = [width * math.prod(entry.shape[i + 1 :]) for i in range(data.ndim)]
        origin = entry.offset + (start * strides[axis] if strides else 0)
        for index in np.ndindex(data.shape[:run]):
            self._put(data[index].data, origin + sum(i * s for i, s in zip(index, strides, strict=False)))

    def _put(self, data: bytes | memoryview, offset: int) -> None:
        with errors_about(self.file.path):
            self.file.put(data, offset)

    def close(self, keep: bool = True) -> None:
        """The file appears under its name only when it is whole."""
        if keep:
            self.file.keep()
        else:
            self.file.discard()


def read_safetensors(path: Path) -> tuple[dict[str, Callable[[], Array]], dict[str, TensorEntry], dict[str, str]]:
    """Readers by tensor name, the entries, and the metadata. Nothing but the header is read now."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, MAX_HEADER):
            raise AssayError(f"{path}: not a safetensors file, or truncated (header of {length} bytes in {size})")
        try:
            header = json.loads(file.read(length))
            metadata = {str(k): str(v) for k, v in (header.pop("__metadata__", None) or {}).items()}
            entries = {name: _entry(path, name, item, 8 + length, size) for name, item in header.items()}
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError, OverflowError) as error:
            if isinstance(error, AssayError):
                raise
            raise AssayError(f"{path}: the safetensors header is not valid ({error!s:.200})") from None
    return {name: partial(_read, path, entry) for name, entry in entries.items()}, entries, metadata


def _entry(path: Path, name: str, item: Any, base: int, size: int) -> TensorEntry:
    dtype, shape, (begin, end) = item["dtype"], tuple(item["shape"]), item["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise AssayError(f"{path}: {name}: unknown element type {dtype!r:.60}; known are {', '.join(DTYPES)}")
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in (*shape, begin, end)):
        raise AssayError(f"{path}: {name}: shape and offsets must be whole numbers (found {item!s:.60})")
    if len(shape) > MAX_AXES:
        raise AssayError(f"{path}: {name}: {len(shape)} axes (expected at most {MAX_AXES})")
    claimed = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    if end - begin != claimed or base + end > size:
        present = max(0, min(end, size - base) - begin)
        raise AssayError(
            f"{path}: {name}: claims {claimed} bytes for shape {list(shape)} but has {present}; "
            "the file is truncated or its header is wrong"
        )
    return TensorEntry(name, dtype, shape, base + begin)


def _read(path: Path, entry: TensorEntry) -> Array:
    if 0 in entry.shape:
        return np.empty(entry.shape, DTYPES[entry.dtype])
    array = read_raw(f"{path}: {entry.name}", path, entry.offset, math.prod(entry.shape), DTYPES[entry.dtype])
    if entry.dtype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.reshape(entry.shape)
