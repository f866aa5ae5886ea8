"""Reads what `torch.save` and `pickle.dump` write: tensors and NumPy arrays in any nesting, without running code.

A file of `torch.save` is a zip archive: `data.pkl` describes the objects, `data/0`, `data/1`, … hold the elements of
the storages. A tensor is a storage with an offset, a shape and strides. Only the described part of a storage is read,
when its values are asked for. Objects of unknown classes are searched for tensors in their fields, nothing else.
"""

from __future__ import annotations

import math
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.verify.dumps.formats.element_types import STORED, as_numbers
from assay.verify.dumps.formats.numpy_files import MAX_AXES, MAX_MEMBERS, Arrays, member_bytes, member_offset, read_raw
from assay.verify.dumps.formats.pickle_data import PickledName, PickledObject, PickleError, read_pickle

Array = NDArray[Any]
MAX_PICKLE = 64 << 20  # bytes
MAX_VALUES = 1 << 30  # of one tensor, whose strides may repeat elements
MAX_DEPTH = 32
_TYPES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "UntypedStorage": "",
}  # fmt: skip


@dataclass(frozen=True)
class _Storage:
    """Elements in a member of the archive. `type` is empty where the tensor says it."""

    key: str
    type: str


@dataclass(eq=False)
class StoredArray:
    """An array of a file: its shape, and a function that reads it."""

    shape: tuple[int, ...]
    read: Callable[[], Array]

    def set_state(self, state: Any) -> None:
        """NumPy's state: version, shape, dtype, whether the first axis is fastest, and the bytes."""
        _, shape, dtype, fortran, raw = state
        made = _numpy_array(raw, dtype, shape, "F" if fortran else "C")
        self.shape, self.read = made.shape, made.read


def is_torch_archive(path: Path) -> bool:
    """Whether a zip file holds the `data.pkl` of `torch.save`."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") or name == "data.pkl" for name in archive.namelist()[:MAX_MEMBERS])
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, struct.error):
        return False


def torch_arrays(path: Path) -> tuple[Arrays, list[str]]:
    """Arrays by name in a file of `torch.save` or `pickle.dump`, and what was left out."""
    with open(path, "rb") as file:
        start = file.read(4)
    try:
        value = _archive(path) if start == b"PK\x03\x04" else _plain(path)
    except PickleError as error:
        raise AssayError(f"{path}: its pickle cannot be read as data ({error}); save tensors in a dict") from None
    arrays: Arrays = {}
    left: list[str] = []
    for name, found in _arrays_in(value, path.stem, left):
        if name not in arrays and len(arrays) < MAX_MEMBERS:
            arrays[name] = found.shape, found.read
    return arrays, left


def _archive(path: Path) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {m.filename.partition("/")[2] or m.filename: m for m in archive.infolist()[:MAX_MEMBERS]}
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, struct.error) as error:
        raise AssayError(f"{path}: not a whole file of torch.save ({str(error).lower()})") from None
    if "data.pkl" not in members:
        raise AssayError(f"{path}: a zip file without data.pkl; save it with torch.save")
    program = members["data.pkl"]
    if program.file_size > MAX_PICKLE:
        raise AssayError(f"{path}: data.pkl has {program.file_size} bytes (expected at most {MAX_PICKLE})")
    order = members.get("byteorder")
    big = order is not None and member_bytes(f"{path}: byteorder", path, order, 16).startswith(b"big")

    def tensor(storage: Any, offset: int, shape: Any, strides: Any, *rest: Any) -> Any:
        if not isinstance(storage, _Storage):
            return PickledObject("torch.tensor")
        kind = storage.type or next((r.name for r in rest if isinstance(r, PickledName) and r.name in STORED), "")
        if kind not in STORED:
            return PickledObject(f"torch.{kind or 'tensor of an unknown type'}")
        return _tensor(path, members, storage.key, kind, int(offset), tuple(shape), tuple(strides), big)

    def persistent(pid: Any) -> Any:
        if not isinstance(pid, tuple) or len(pid) < 3 or not isinstance(pid[1], PickledName):
            raise PickleError("a storage is not described as PyTorch does")
        return _Storage(str(pid[2]), _TYPES.get(pid[1].name, pid[1].name))

    known = {
        **_KNOWN,
        "torch._utils._rebuild_tensor": tensor,
        "torch._utils._rebuild_tensor_v2": tensor,
        "torch._utils._rebuild_tensor_v3": tensor,
        "torch._tensor._rebuild_from_type_v2": lambda function, _type, args, _state: (
            tensor(*args) if getattr(function, "name", "").startswith("_rebuild_tensor") else PickledObject("torch")
        ),
    }
    return read_pickle(member_bytes(f"{path}: data.pkl", path, program, MAX_PICKLE), known, persistent)


def _tensor(
    path: Path,
    members: Mapping[str, zipfile.ZipInfo],
    key: str,
    kind: str,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    big: bool,
) -> StoredArray:
    where = f"{path}: storage {key}"
    member = members.get(f"data/{key}")
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in (offset, *shape, *strides))
    if member is None or not whole or len(shape) != len(strides) or len(shape) > MAX_AXES:
        raise PickleError(f"a tensor of storage {key!r:.40} is not described as PyTorch does")
    if math.prod(shape) > MAX_VALUES:
        raise PickleError(f"a tensor of shape {list(shape)} (expected at most {MAX_VALUES} values)")
    dtype = np.dtype(STORED[kind]).newbyteorder(">" if big else "<")
    extent = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if (offset + extent) * dtype.itemsize > member.file_size:
        raise PickleError(
            f"a tensor of shape {list(shape)} needs {(offset + extent) * dtype.itemsize} bytes of storage {key}, "
            f"which has {member.file_size}"
        )

    def read() -> Array:
        if member.compress_type == zipfile.ZIP_STORED:
            start = member_offset(where, path, member) + offset * dtype.itemsize
            flat = read_raw(where, path, start, extent, dtype)
        else:
            raw = member_bytes(where, path, member, (offset + extent) * dtype.itemsize)
            flat = np.frombuffer(raw, dtype, extent, offset * dtype.itemsize)
        steps = tuple(s * dtype.itemsize for s in strides)
        value = np.lib.stride_tricks.as_strided(flat, shape, steps) if extent else np.empty(shape, dtype)
        return as_numbers(np.ascontiguousarray(value, dtype.newbyteorder("=")), kind)

    return StoredArray(shape, read)


def _plain(path: Path) -> Any:
    size = path.stat().st_size
    if size > MAX_PICKLE:
        raise AssayError(f"{path}: a pickle of {size} bytes (expected at most {MAX_PICKLE}); save it with np.savez")
    data = path.read_bytes()
    if data[2:].startswith(b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"):
        raise AssayError(f"{path}: written by torch.save before PyTorch 1.6; save it again with a newer PyTorch")
    return read_pickle(data, _KNOWN)


# -- NumPy's arrays in a pickle ----------------------------------------------------------------------------------------


def _numpy_array(raw: Any, kind: Any, shape: Any, order: str = "C") -> StoredArray:
    dims = tuple(int(n) for n in shape)
    dtype = kind.dtype() if isinstance(kind, _NumpyType) else None
    if dtype is None or not isinstance(raw, bytes | bytearray):
        return _empty()
    if min(dims, default=0) < 0 or math.prod(dims) * dtype.itemsize != len(raw) or len(dims) > MAX_AXES:
        raise PickleError(f"{len(raw)} bytes for an array of shape {list(dims)}")
    kept: Array = np.frombuffer(bytes(raw), dtype).reshape(dims, order="F" if order == "F" else "C")
    return StoredArray(dims, lambda: kept)


@dataclass(eq=False)
class _NumpyType:
    """A dtype, whose byte order is set afterwards."""

    code: Any
    order: str = "="

    def set_state(self, state: Any) -> None:
        self.order = state[1] if state[1] in "<>" else "="

    def dtype(self) -> np.dtype[Any] | None:
        if not isinstance(self.code, str) or not re.fullmatch(r"[fiub]\d{1,2}", self.code):
            return None
        try:
            return np.dtype(self.code).newbyteorder(self.order)  # type: ignore[arg-type]
        except TypeError:
            return None


def _empty(*_: Any) -> StoredArray:
    return StoredArray((0,), lambda: np.zeros(0))


def _bytes_of(text: Any, encoding: Any = "latin1") -> bytes:
    return text.encode("latin1") if isinstance(text, str) and encoding in ("latin1", "latin-1") else b""


_KNOWN: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": lambda *pairs: dict(pairs[0]) if pairs and isinstance(pairs[0], list) else {},
    "collections.defaultdict": lambda *_: {},
    "torch.Size": lambda *dims: tuple(dims[0]) if dims else (),
    "torch._utils._rebuild_parameter": lambda data, *_: data,
    "torch._utils._rebuild_parameter_with_state": lambda data, *_: data,
    "numpy.dtype": lambda code="", *_: _NumpyType(code),
    "_codecs.encode": _bytes_of,
    "builtins.bytearray": lambda *data: data[0] if data else b"",
}
for _home in ("numpy.core.multiarray", "numpy._core.multiarray"):
    _KNOWN[f"{_home}._reconstruct"] = _empty
    _KNOWN[f"{_home}.scalar"] = lambda dtype, raw=b"", *_: _numpy_array(raw, dtype, ())
for _home in ("numpy.core.numeric", "numpy._core.numeric"):
    _KNOWN[f"{_home}._frombuffer"] = lambda raw, dtype, shape, order="C": _numpy_array(raw, dtype, shape, order)


# -- names -------------------------------------------------------------------------------------------------------------


def _arrays_in(value: Any, stem: str, left: list[str]) -> Iterator[tuple[str, StoredArray]]:
    """Arrays with their path: keys are joined with dots, places in a list or tuple stand in brackets."""
    todo: list[tuple[str, Any, int]] = [("", value, 0)]
    seen: set[int] = set()
    while todo:
        path, found, depth = todo.pop()
        if isinstance(found, StoredArray):
            yield path or stem, found
            continue
        if depth > MAX_DEPTH or id(found) in seen:
            continue
        if isinstance(found, dict | list | tuple | PickledObject):
            seen.add(id(found))
        parts = list(_parts(found, path))
        if isinstance(found, PickledObject) and not parts and found.made_by.startswith("torch."):
            left.append(f"{path or stem} ({found.made_by})")
        todo += [(name, part, depth + 1) for name, part in reversed(parts)]
        if len(todo) > 4 * MAX_MEMBERS:
            raise PickleError(f"more than {4 * MAX_MEMBERS} values")


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, PickledObject):
        fields = value.state[0] if isinstance(value.state, tuple) and value.state else value.state
        yield from _parts({**value.items, **(fields if isinstance(fields, dict) else {})}, path)
        yield from _parts(value.members, path)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield f"{path}.{key}" if path else str(key), part
    elif isinstance(value, list | tuple):
        if value and len(value) > 1 and all(type(v) is int for v in value):  # ids that were saved as a list
            yield path or "list", _whole_numbers(value)
        else:
            for i, part in enumerate(value):
                yield f"{path}[{i}]", part


def _whole_numbers(values: list[int] | tuple[int, ...]) -> StoredArray:
    small = all(abs(v) < 2**62 for v in values)
    return StoredArray((len(values),), partial(np.asarray, list(values) if small else [], np.int64))
