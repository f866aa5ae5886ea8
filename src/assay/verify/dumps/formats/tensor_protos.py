"""Reads ONNX's TensorProto, which ONNX Runtime writes for every node when it dumps to files or to SQLite.

A protobuf message is a sequence of fields, each with a number and a wire type. Only the fields of a dense tensor are
read: dims (1), data_type (2), the typed lists (4, 5, 7, 10, 11), name (8) and raw_data (9).
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.verify.dumps.formats.element_types import STORED, as_numbers
from assay.verify.dumps.formats.numpy_files import MAX_AXES, MAX_MEMBERS, Arrays

Array = NDArray[Any]
MAX_PROTO = 1 << 30  # bytes of one tensor
_MOST_FIELDS = 1 << 18  # of a tensor whose values are listed one by one
_MOST_STEPS = 20_000_000  # virtual machine steps of a query, about a second
# ONNX's number of an element type: its name here, and the field of the list that may hold it instead of raw_data.
TYPES = {
    1: ("float32", 4), 2: ("uint8", 5), 3: ("int8", 5), 4: ("uint16", 5), 5: ("int16", 5), 6: ("int32", 5),
    7: ("int64", 7), 9: ("bool", 5), 10: ("float16", 5), 11: ("float64", 10), 12: ("uint32", 11), 13: ("uint64", 11),
    16: ("bfloat16", 5), 17: ("float8_e4m3fn", 5), 19: ("float8_e5m2", 5),
}  # fmt: skip
_LISTS = {4: "<f4", 10: "<f8"}  # lists of fixed width; the others are varints

Found = tuple[str, tuple[int, ...], Callable[[], Array]]  # name, shape, a function that reads it


def proto_array(path: Path) -> Found:
    """The tensor of a .tensorproto or .pb file."""
    if path.stat().st_size > MAX_PROTO:
        raise AssayError(f"{path}: a tensor of {path.stat().st_size} bytes (expected at most {MAX_PROTO})")
    name, shape, _ = tensor(str(path), path.read_bytes())
    return name, shape, lambda: tensor(str(path), path.read_bytes())[2]()


def tensor(where: str, data: bytes) -> Found:
    """Name, shape and values of a serialised TensorProto."""
    dims: list[int] = []
    kind, name, raw = 0, "", None
    lists: dict[int, list[Any]] = {}
    try:
        for count, (field, value) in enumerate(_fields(data)):
            if count > _MOST_FIELDS or (
                field in (1, 5, 7, 11) and isinstance(value, bytes) and len(value) > _MOST_FIELDS
            ):
                raise AssayError(f"{where}: more than {_MOST_FIELDS} listed values; save it with raw_data")
            if field == 1:
                dims += _varints(value) if isinstance(value, bytes) else [value]
            elif field == 2 and isinstance(value, int):
                kind = value
            elif field == 8 and isinstance(value, bytes):
                name = value.decode("utf-8", "replace")[:300]
            elif field == 9 and isinstance(value, bytes):
                raw = value
            elif field in (4, 5, 7, 10, 11):
                lists.setdefault(field, []).append(value)
            elif field == 13:
                raise AssayError(f"{where}: its data are in another file; save the tensor with its data")
    except (IndexError, ValueError) as error:
        raise AssayError(f"{where}: not a whole TensorProto ({error})") from None
    if kind not in TYPES or len(dims) > MAX_AXES or not all(0 <= n < 2**31 for n in dims):
        raise AssayError(f"{where}: not a tensor of numbers (found element type {kind}, shape {dims[:9]})")
    type_, listed = TYPES[kind]
    shape, dtype = tuple(dims), np.dtype(STORED[type_])
    if raw is None:
        flat = _from_list(lists.get(listed, []), listed)
    elif len(raw) == math.prod(shape) * dtype.itemsize:
        flat = np.frombuffer(raw, dtype)
    else:
        raise AssayError(f"{where}: {len(raw)} bytes for shape {dims} of {type_}; the file is truncated")
    if flat.size != math.prod(shape):
        raise AssayError(f"{where}: {flat.size} values for shape {dims}; the file is truncated")
    return name, shape, lambda: as_numbers(flat.astype(dtype, copy=False), type_).reshape(shape)


def _from_list(parts: list[Any], field: int) -> Array:
    """The values of a typed list: packed bytes, or one value a field."""
    if field in _LISTS:
        return np.frombuffer(b"".join(p for p in parts if isinstance(p, bytes)), _LISTS[field])
    numbers = [n for p in parts for n in (_varints(p) if isinstance(p, bytes) else [p])]
    return np.asarray([n - (1 << 64) if n >= 1 << 63 else n for n in numbers], np.int64)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size, at = _varint(data, at) if wire == 2 else ({1: 8, 5: 4}.get(wire, -1), at)
        if size < 0 or at + size > len(data):
            raise ValueError(f"field {key >> 3} ends after the file")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
    raise ValueError("a number of more than ten bytes")


def _varints(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value)
    return found


# -- SQLite ------------------------------------------------------------------------------------------------------------


def database_arrays(path: Path) -> dict[int, Arrays]:
    """The table `Tensors` of an execution trace: for each step its tensors by name."""
    steps: dict[int, Arrays] = {}
    try:
        with closing(_database(path)) as base:
            kind = base.execute("select type from sqlite_master where name = 'Tensors'").fetchone()
            if kind != ("table",):
                raise AssayError(f"{path}: a database without the table Tensors that ONNX Runtime writes")
            rows = base.execute("select rowid, Step, Name, length(Value) from Tensors order by Step, rowid")
            for row, step, name, size in rows.fetchmany(MAX_MEMBERS):
                if not isinstance(step, int) or not isinstance(name, str) or not isinstance(size, int):
                    continue
                blob = partial(_blob, path, row, name)
                _, shape, _ = tensor(f"{path}: {name:.80}", blob())
                steps.setdefault(step, {})[name] = shape, partial(_read_blob, path, name, blob)
    except sqlite3.Error as error:
        raise AssayError(f"{path}: the database cannot be read ({str(error).lower()})") from None
    return steps


def _database(path: Path) -> sqlite3.Connection:
    base = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    base.execute("pragma trusted_schema = 0")
    base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_PROTO)
    left = iter(range(_MOST_STEPS // 1000))
    base.set_progress_handler(lambda: 0 if next(left, None) is not None else 1, 1000)
    return base


def _blob(path: Path, row: int, name: str) -> bytes:
    with closing(_database(path)) as base:
        found = base.execute("select Value from Tensors where rowid = ?", (row,)).fetchone()
    if not found or not isinstance(found[0], bytes):
        raise AssayError(f"{path}: {name:.80}: no tensor (expected a serialised TensorProto)")
    return found[0]


def _read_blob(path: Path, name: str, blob: Callable[[], bytes]) -> Array:
    return tensor(f"{path}: {name:.80}", blob())[2]()
