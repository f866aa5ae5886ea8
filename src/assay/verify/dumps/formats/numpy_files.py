"""Reads NumPy's array files, alone or in an .npz, without trusting the file.

The header of an array file is a Python expression. NumPy evaluates it; this module only searches its three fields. A
compressed member is inflated in a separate process (`assay.system.box`), and never beyond the size that its header
claims. Every claimed size is compared with the file before anything is read.
"""

from __future__ import annotations

import base64
import math
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.system.box import Box
from assay.verify.dumps.formats.element_types import as_numbers
from assay.verify.dumps.formats.recent_arrays import RecentArrays

Array = NDArray[Any]
Member = tuple[tuple[int, ...], Callable[[], Array]]  # the shape, and a function that reads the array
Arrays = dict[str, Member]
MAX_AXES = 8
MAX_MEMBERS = 1 << 16
MAX_INFLATED = 1 << 27  # bytes of one compressed member
_MAX_HEADER = 1 << 16
_DESCR = re.compile(rb"""['"]descr['"]\s{0,9}:\s{0,9}['"]([<>|=]?[a-zA-Z][0-9]{0,3})['"]""")
_ORDER = re.compile(rb"""['"]fortran_order['"]\s{0,9}:\s{0,9}(True|False)""")
_SHAPE = re.compile(rb"""['"]shape['"]\s{0,9}:\s{0,9}\(([0-9, ]{0,200})\)""")
_box = Box("archive", Path(__file__).with_name("inflate.py"))


class NoNumbers(AssayError):
    """An array of texts, flags or objects."""


@dataclass(frozen=True)
class Header:
    """The header of an array file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    offset: int  # of the first number

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self, raw: bytes | NDArray[np.uint8]) -> Array:
        """The numbers in `raw`, which begins with the first of them. Two bytes without a type are bfloat16."""
        stored = np.dtype("<u2") if self.dtype.kind == "V" else self.dtype
        flat = np.frombuffer(raw, stored, math.prod(self.shape))
        flat = as_numbers(flat, "bfloat16") if self.dtype.kind == "V" else flat
        return flat.reshape(self.shape, order="F" if self.fortran else "C")


def header(where: str, start: bytes, size: int) -> Header:
    """The header at the beginning of a file of `size` bytes."""
    short = AssayError(f"{where}: not an array file, or truncated (found first bytes {start[:8]!r})")
    if start[:6] != b"\x93NUMPY" or len(start) < 12 or start[6] not in (1, 2, 3):
        raise short
    at, form = (10, "<H") if start[6] == 1 else (12, "<I")
    (length,) = struct.unpack_from(form, start, 8)
    text = start[at : at + length]
    if length > _MAX_HEADER - 12 or len(text) < length:
        raise short
    descr, order, shape = (pattern.search(text) for pattern in (_DESCR, _ORDER, _SHAPE))
    if descr is None or order is None or shape is None:
        raise AssayError(f"{where}: its header does not say dtype, order and shape as NumPy does")
    dims = tuple(int(n) for n in shape[1].replace(b" ", b"").split(b",") if n)
    try:
        dtype = np.dtype(descr[1].decode())
    except TypeError:
        dtype = np.dtype(bool)
    if dtype.kind not in "fiu" and dtype != np.dtype("V2"):
        raise NoNumbers(f"{where}: must hold numbers (found dtype {descr[1].decode()})")
    if len(dims) > MAX_AXES:
        raise AssayError(f"{where}: {len(dims)} axes (expected at most {MAX_AXES})")
    found = Header(dtype, dims, order[1] == b"True", at + length)
    if found.nbytes > size - found.offset:
        raise AssayError(
            f"{where}: claims {found.nbytes} bytes for shape {list(dims)} but the file has {size - found.offset}; "
            "it is truncated"
        )
    return found


def read_raw(where: str, path: Path, offset: int, count: int, dtype: str | np.dtype[Any]) -> Array:
    """`count` numbers of a file, from `offset`. Read, not mapped: truncating a mapped file kills its reader."""
    array = np.fromfile(path, dtype, count, offset=offset)
    if array.size != count:
        raise AssayError(f"{where}: the file was truncated while it was read (found {array.size} of {count} values)")
    return array


def folder_arrays(path: Path) -> Arrays:
    """The .npy files of a folder."""
    return _with_numbers((file.stem, partial(file_array, file)) for file in sorted(path.glob("*.npy")))


def _with_numbers(members: Iterable[tuple[str, Callable[[], Member]]]) -> Arrays:
    """The arrays that hold numbers. Texts, flags and objects beside them, such as a name or a mask, are left out."""
    arrays: Arrays = {}
    other: NoNumbers | None = None
    for name, read in members:
        try:
            arrays[name] = read()
        except NoNumbers as error:
            other = other or error
    if other is not None and not arrays:
        raise other
    return arrays


def file_array(file: Path) -> tuple[tuple[int, ...], Callable[[], Array]]:
    """Shape of a .npy file, and a function that reads it."""
    with open(file, "rb") as handle:
        found = header(str(file), handle.read(_MAX_HEADER), file.stat().st_size)
    return found.shape, partial(_read_file, file, found)


def _read_file(path: Path, found: Header) -> Array:
    raw = read_raw(str(path), path, found.offset, found.nbytes, "u1")
    return found.array(raw)


def archive_arrays(path: Path) -> Arrays:
    """The .npy members of an .npz."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [m for m in archive.infolist() if m.filename.endswith(".npy")]
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, struct.error) as error:
        raise AssayError(f"{path}: not a whole .npz file ({str(error).lower()})") from None
    if len(members) > MAX_MEMBERS:
        raise AssayError(f"{path}: {len(members)} arrays (expected at most {MAX_MEMBERS})")
    names = Counter(m.filename[:-4] for m in members)
    if twice := [name for name, n in names.items() if n > 1]:
        raise AssayError(f"{path}: {twice[0]}: the name appears twice")
    recent = RecentArrays()

    def read(name: str, member: zipfile.ZipInfo) -> Member:
        where = f"{path}: {name}"
        found = header(where, member_bytes(where, path, member, _MAX_HEADER), member.file_size)
        return found.shape, partial(recent.get, name, partial(_read_member, where, path, member, found))

    return _with_numbers((m.filename[:-4], partial(read, m.filename[:-4], m)) for m in members)


def _read_member(where: str, path: Path, member: zipfile.ZipInfo, found: Header) -> Array:
    raw = member_bytes(where, path, member, found.offset + found.nbytes)
    if len(raw) == member.file_size and zlib.crc32(raw) != member.CRC:
        raise AssayError(f"{where}: its checksum is wrong; the file is damaged")
    if len(raw) < found.offset + found.nbytes:
        raise AssayError(f"{where}: ends before its last value; the file is truncated")
    return found.array(raw[found.offset :])


def member_bytes(where: str, path: Path, member: zipfile.ZipInfo, most: int) -> bytes:
    """The first `most` bytes of a member, inflated if it is compressed."""
    if member.flag_bits & 0x1:
        raise AssayError(f"{where}: is encrypted; save it without a password")
    stored = member.compress_type == zipfile.ZIP_STORED
    if not stored and member.compress_type != zipfile.ZIP_DEFLATED:
        raise AssayError(f"{where}: compressed in another way than deflate; save it with np.savez")
    if not stored and most > MAX_INFLATED:
        raise AssayError(
            f"{where}: {most} bytes, compressed (expected at most {MAX_INFLATED}); save it with np.savez, "
            "which does not compress"
        )
    with open(path, "rb") as file:
        _seek_data(where, file, member)
        data = file.read(min(member.compress_size, most if stored else most + 1024))
    if stored:
        return data
    reply = _box.ask({"deflated": base64.b64encode(data).decode(), "most": most})
    if "raw" not in reply:
        raise AssayError(f"{where}: cannot be inflated ({reply.get('message') or reply['fault']}); it is damaged")
    return base64.b64decode(reply["raw"])


def member_offset(where: str, path: Path, member: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin in the file."""
    with open(path, "rb") as file:
        _seek_data(where, file, member)
        return file.tell()


def _seek_data(where: str, file: BinaryIO, member: zipfile.ZipInfo) -> None:
    """Past the member's own header, whose name and extra field may be longer than the directory's."""
    file.seek(max(member.header_offset, 0))
    local = file.read(30)
    if len(local) < 30 or local[:4] != b"PK\x03\x04":
        raise AssayError(f"{where}: the archive points to something else; it is damaged")
    file.seek(sum(struct.unpack_from("<HH", local, 26)), 1)
