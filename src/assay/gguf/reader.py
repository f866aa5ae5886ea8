"""Opening a GGUF file: header, tensor table, memory map, split files.

The layout (all numbers in the file's byte order, versions 2 and 3; version 1 had 32-bit counts):

    "GGUF"  u32 version  u64 n_tensors  u64 n_pairs
    n_pairs   x { string key, u32 value type, value }              string = u64 length, bytes
    n_tensors x { string name, u32 n_dims, u64 dims[], u32 type, u64 offset }
    padding to `general.alignment` (32)
    tensor data, each tensor at its aligned offset from here

`dims` are ordered from fastest to slowest; shapes here are row-major, the reverse. Opening checks everything that
later code relies on: counts fit, names are unique, offsets are aligned, tensors lie inside the file and do not overlap.
Afterwards no access can leave the map.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import mmap
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.errors import AssayError
from assay.gguf.cursor import Bytes, Cursor
from assay.gguf.metadata import MAX_KEY, MAX_PAIRS, Getters, Metadata
from assay.gguf.types import REMOVED, TYPES, GGMLType, ValueType
from assay.system.file_kinds import HEAD, is_text, kind_of, marked_encoding
from assay.system.terminal import printable

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4
MAX_TENSORS = 1 << 17
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32

_SMALLEST_PAIR = 8 + 4 + 1  # empty key, type, one byte
_SMALLEST_INFO = 8 + 4 + 4 + 8  # empty name, no dims, type, offset
_SPLIT_NAME = re.compile(r"^(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$", re.DOTALL)


@dataclass(frozen=True)
class TensorInfo:
    """Location, shape and type of a tensor."""

    name: str
    shape: tuple[int, ...]  # row-major: the last dimension is contiguous
    type: GGMLType
    offset: int  # from the start of its file
    nbytes: int
    part: int = 0  # index into GGUFFile.parts

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class FilePart:
    """One mapped file of a model, validated on its own."""

    path: Path
    version: int
    byteorder: str  # "little" or "big"
    alignment: int
    metadata: Metadata
    tensors: tuple[TensorInfo, ...]
    data: Bytes
    guard: Any = None  # detects whether the file was truncated while it was mapped


class GGUFFile(Getters):
    """A model file, or all parts of a split one. Arrays from `raw` view the map and keep it alive."""

    def __init__(self, path: Path, parts: tuple[FilePart, ...]) -> None:
        first = parts[0]
        self.path = path
        self.parts = parts
        self.version = first.version
        self.byteorder = first.byteorder
        self.alignment = first.alignment
        self.metadata = first.metadata
        self.size = sum(len(part.data) for part in parts)
        self.tensors: dict[str, TensorInfo] = {t.name: t for part in parts for t in part.tensors}
        self.reading: Callable[[TensorInfo], None] | None = None  # called with every tensor that is read

    @cached_property
    def sha256(self) -> str:
        """The digest of the bytes of all parts. It is not cached on disk, because a stored digest cannot be trusted."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(part.data.data)
        self.check()
        return digest.hexdigest()

    def check(self) -> None:
        """Call after reading from the map: raises if the file was truncated meanwhile, because the data is invalid."""
        for part in self.parts:
            if part.guard is not None and part.guard.lost:
                raise AssayError(
                    f"{part.path}: the file became shorter while it was in use; restore it and load the model again"
                )

    def info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise AssayError(f"{self.path.name}: {printable(name)}: the file has no such tensor")
        return self.tensors[name]

    def raw(self, name: str) -> Bytes:
        """The tensor's bytes, `[*shape[:-1], row_bytes]`, blocks in little-endian form in any case."""
        info = self.info(name)
        if not self.parts:
            raise AssayError(f"{self.path.name}: {name}: the file has been closed")
        if self.reading:
            self.reading(info)
        flat = self.parts[info.part].data[info.offset : info.offset + info.nbytes]
        if self.byteorder == "big":
            flat = self._swapped(info, flat)
        return flat.reshape(*info.shape[:-1], info.type.row_bytes(info.shape[-1]))

    def _swapped(self, info: TensorInfo, flat: Bytes) -> Bytes:
        if info.type.layout is None:
            raise AssayError(
                f"{self.path.name}: {info.name}: type {info.type} has no defined big-endian form; "
                "convert the file on the machine that made it"
            )
        return flat.view(np.dtype(info.type.layout)).byteswap().view(np.uint8)

    def decode(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor as float32."""
        from assay.gguf import codecs

        found = codecs.decode(self.info(name).type, self.raw(name))
        self.check()
        return found

    def close(self) -> None:
        """Release the map. It is unmapped when the last array that views it is freed."""
        self.parts = ()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: Any, trace: TracebackType | None) -> None:
        if kind is None:
            self.check()
        self.close()


def open_file(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file; any part of a split model opens the whole model."""
    given = Path(path)
    match = _SPLIT_NAME.match(given.name)
    count = int(match["count"]) if match else 1
    if match is None or count < 2:
        part = _open_part(given, 0)
        declared = _split_key(part, "split.count", default=1)
        if declared > 1:
            raise AssayError(
                f"{given.name}: the file is one of {declared} parts but is not named so; "
                f"name the parts NAME-00001-of-{declared:05}.gguf and so on"
            )
        return GGUFFile(given, (part,))
    parts: list[FilePart] = []
    for no in range(count):
        sibling = given.with_name(f"{match['stem']}-{no + 1:05}-of-{count:05}.gguf")
        if not sibling.exists():
            raise AssayError(f"{given.name}: part {no + 1} of {count} is missing (expected {sibling})")
        part = _open_part(sibling, no)
        _check_part(part, no, count, parts[0] if parts else part)
        parts.append(part)
    _check_together(parts)
    return GGUFFile(given, tuple(parts))


def _split_key(part: FilePart, key: str, default: int | None = None) -> int:
    value = part.metadata.scalar(key, default, int)
    if value is None:
        raise AssayError(f"{part.path.name}: {key}: the file lacks this key, so it is not part of a split model")
    return int(value)


def _check_part(part: FilePart, no: int, count: int, first: FilePart) -> None:
    name = part.path.name
    for key, expected in (("split.count", count), ("split.no", no)):
        found = _split_key(part, key)
        if found != expected:
            raise AssayError(f"{name}: {key}: disagrees with the file name (found {found}, expected {expected})")
    for what in ("version", "byteorder", "alignment"):
        found, expected = getattr(part, what), getattr(first, what)
        if found != expected:
            raise AssayError(f"{name}: {what}: disagrees with part 1 (found {found}, expected {expected})")


def _check_together(parts: list[FilePart]) -> None:
    names: dict[str, FilePart] = {}
    for part in parts:
        for tensor in part.tensors:
            if tensor.name in names:
                other = names[tensor.name].path.name
                raise AssayError(f"{part.path.name}: {printable(tensor.name)}: the tensor is also in {other}")
            names[tensor.name] = part
    for part in parts:
        total = _split_key(part, "split.tensors.count", default=len(names))
        if total != len(names):
            raise AssayError(
                f"{part.path.name}: split.tensors.count: disagrees with the parts "
                f"(found {total}, expected the {len(names)} tensors present)"
            )


def _map(path: Path) -> mmap.mmap:
    """The file's bytes, read-only."""
    shown = printable(str(path))
    try:
        with open(path, "rb", opener=_open_without_waiting) as handle:
            mode = os.fstat(handle.fileno()).st_mode
            if stat.S_ISDIR(mode):
                raise AssayError(f"{shown}: is a directory; name the .gguf file in it")
            if not stat.S_ISREG(mode):
                raise AssayError(f"{shown}: is not a regular file; save it to disk first")
            if os.fstat(handle.fileno()).st_size == 0:
                raise AssayError(f"{shown}: the file is empty; download it again")
            return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise AssayError(f"{shown}: no such file") from None
    except IsADirectoryError:
        raise AssayError(f"{shown}: is a directory; name the .gguf file in it") from None
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise AssayError(f"{shown}: cannot be opened ({reason.lower()})") from None


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # opening a named pipe would block


def _guard(data: mmap.mmap) -> Any:
    try:
        from assay import _native
    except ImportError:
        return None
    return _native.Guard(np.frombuffer(data, np.uint8))


def _open_part(path: Path, index: int) -> FilePart:
    data = _map(path)
    guard = _guard(data)
    name = path.name
    if data[:4] != MAGIC:
        raise AssayError(f"{name}: not a GGUF file{_found_instead(bytes(data[:HEAD]))}")
    version, order = Cursor(name, data, "<").at(4).u32("version"), "<"
    if version & 0xFFFF == 0:  # the version has swapped bytes: a big-endian file
        version, order = int.from_bytes(data[4:8], "big"), ">"
    if version not in VERSIONS:
        raise AssayError(f"{name}: GGUF version {version} is not supported (expected 2 or 3); convert the model again")
    cursor = Cursor(name, data, order).at(8)
    n_tensors = cursor.count("tensor count", _SMALLEST_INFO, MAX_TENSORS)
    n_pairs = cursor.count("key-value count", _SMALLEST_PAIR, MAX_PAIRS)
    metadata = Metadata(cursor, n_pairs)
    alignment = _alignment(cursor, metadata)
    cursor.need(n_tensors * _SMALLEST_INFO, "tensor table")
    infos = [_read_info(cursor, f"tensor {i} of {n_tensors}") for i in range(n_tensors)]
    start = -(-cursor.pos // alignment) * alignment
    tensors = tuple(_check_tensor(cursor, info, start, alignment, index) for info in infos)
    _check_disjoint(cursor, tensors)
    byteorder = "little" if order == "<" else "big"
    return FilePart(path, version, byteorder, alignment, metadata, tensors, cursor.view, guard)


def _found_instead(head: bytes) -> str:
    """The kind of a file that does not begin as GGUF, and what to do."""
    if kind := kind_of(head):
        return f"; it is {kind.name}: {kind.advice}"
    if is_text(head):
        encoding, mark = marked_encoding(head)
        start = " ".join(head[mark:].decode(encoding, "replace").split())[:40]
        return f"; it is a text that begins {start!r}: name the .gguf file of a model"
    return f" (found first bytes {head[:4]!r}, expected {MAGIC!r}); download it again, or name another file"


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    key = "general.alignment"
    if key not in metadata:
        return DEFAULT_ALIGNMENT
    if metadata.types(key)[0] is not ValueType.UINT32:
        raise cursor.error(f"{key}: wrong type (found {metadata.describe(key)}, expected uint32)")
    value = int(metadata[key])
    if value < 1 or value & (value - 1) or value > MAX_ALIGNMENT:
        raise cursor.error(f"{key}: impossible (found {value}, expected a power of two up to {MAX_ALIGNMENT})")
    return value


def _read_info(cursor: Cursor, what: str) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string(f"{what}: name", longest=MAX_KEY)
    n_dims = cursor.u32(f"{name}: number of dimensions")
    if n_dims > MAX_DIMS:
        raise cursor.error(f"{name}: too many dimensions (found {n_dims}, expected at most {MAX_DIMS})")
    dims = tuple(cursor.u64(f"{name}: dimensions") for _ in range(n_dims))
    return name, dims[::-1] or (1,), cursor.u32(f"{name}: type"), cursor.u64(f"{name}: offset")


def _check_tensor(
    cursor: Cursor, info: tuple[str, tuple[int, ...], int, int], start: int, alignment: int, part: int
) -> TensorInfo:
    name, shape, number, offset = info
    type_ = TYPES.get(number)
    if type_ is None:
        known = f"the withdrawn {REMOVED[number]}" if number in REMOVED else "unknown"
        raise cursor.error(f"{name}: tensor type {number} is {known}; quantise the model again with a current type")
    if 0 in shape:
        raise cursor.error(f"{name}: a dimension is 0 (shape {list(shape)})")
    if shape[-1] % type_.block_size:
        raise cursor.error(
            f"{name}: a row of {shape[-1]} elements is not a whole number of {type_} blocks of {type_.block_size}"
        )
    nbytes = math.prod(shape) // type_.block_size * type_.type_size
    if offset % alignment:
        raise cursor.error(f"{name}: offset {offset} is not a multiple of the alignment {alignment}")
    if start + offset + nbytes > cursor.size:
        raise cursor.error(
            f"{name}: the data reach beyond the end of the file (shape {list(shape)} of {type_}, {nbytes} bytes "
            f"at {start + offset}, file has {cursor.size}); the file is truncated or corrupt; download it again"
        )
    return TensorInfo(name, shape, type_, start + offset, nbytes, part)


def _check_disjoint(cursor: Cursor, tensors: tuple[TensorInfo, ...]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise cursor.error(f"{tensor.name}: the tensor appears twice")
        seen.add(tensor.name)
    ordered = sorted(tensors, key=lambda t: t.offset)
    for before, after in itertools.pairwise(ordered):
        if before.offset + before.nbytes > after.offset:
            raise cursor.error(
                f"{after.name}: overlaps {before.name} (begins at {after.offset}, "
                f"which ends at {before.offset + before.nbytes})"
            )
