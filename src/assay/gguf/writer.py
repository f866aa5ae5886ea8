"""Write GGUF files that gguf-py and llama.cpp accept.

The tensor table precedes the data and must be complete first. The data need not be in memory together: `data` of a
tensor may be a function, which is called when the tensor is written and whose result is then freed.

    write("out.gguf", {"general.architecture": "llama"}, [
        Tensor("small", (2, 32), by_name("F32"), array),
        Tensor("large", (4096, 4096), by_name("Q8_0"), lambda: encode(...)),
    ])

The file appears under its name only when it is complete (`assay.system.files`).
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.errors import AssayError
from assay.gguf.metadata import MAX_KEY
from assay.gguf.reader import DEFAULT_ALIGNMENT, MAGIC, MAX_ALIGNMENT, MAX_DIMS
from assay.gguf.types import SCALARS, GGMLType, Typed, ValueType
from assay.system.files import NewFile

Data = bytes | npt.NDArray[Any]
"""Blocks as little-endian bytes, or an array of the elements of the type."""

MAX_NAME = 63
"""Maximum bytes of a tensor name in llama.cpp."""

_BY_CODE = {np.dtype(code): t for t, code in SCALARS.items() if t is not ValueType.BOOL} | {
    np.dtype(np.bool_): ValueType.BOOL
}
_WHOLE = (ValueType.UINT32, ValueType.INT32, ValueType.UINT64, ValueType.INT64)
_WHOLE_ITEMS = (ValueType.INT32, ValueType.INT64, ValueType.UINT64)  # gguf-py and llama.cpp use int32


@dataclass(frozen=True)
class Tensor:
    """A tensor to write. `data` may be a function that returns the data; it is called once."""

    name: str
    shape: tuple[int, ...]  # row-major
    type: GGMLType
    data: Data | Callable[[], Data]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.type.row_bytes(self.shape[-1])


@dataclass(frozen=True)
class Writer:
    """Writes one version and byte order of GGUF; the default is little-endian version 3."""

    version: int = 3
    byteorder: str = "little"

    def write(
        self, path: str | os.PathLike[str], metadata: Mapping[str, object], tensors: Iterable[Tensor] = ()
    ) -> None:
        """Write the file, atomically. Values are typed by `infer`, or explicitly by `Typed`."""
        table = list(tensors)
        alignment = _alignment(metadata)
        header = self._header(metadata, table, alignment)
        with NewFile(path, sum(_padded(n, alignment) for n in (len(header), *(t.nbytes for t in table)))) as file:
            _put(file, header, alignment)
            for tensor in table:
                _put(file, self._blocks(tensor).data, alignment)

    def _header(self, metadata: Mapping[str, object], tensors: list[Tensor], alignment: int) -> bytes:
        out = Packer("<" if self.byteorder == "little" else ">")
        out.raw(MAGIC)
        out.number("I", self.version)
        out.number("Q", len(tensors))
        out.number("Q", len(metadata))
        for key, value in metadata.items():
            if len(key.encode()) > MAX_KEY:
                raise AssayError(f"{key[:40]}…: the key is longer than {MAX_KEY} bytes")
            out.string(key)
            typed = value if isinstance(value, Typed) else infer(value, key)
            out.number("I", typed.type)
            out.value(typed, key)
        offset, names = 0, set()
        for tensor in tensors:
            _check(tensor)
            if tensor.name in names:
                raise AssayError(f"{tensor.name}: the tensor appears twice")
            names.add(tensor.name)
            out.string(tensor.name)
            out.number("I", len(tensor.shape))
            for n in reversed(tensor.shape):
                out.number("Q", n)
            out.number("I", tensor.type.id)
            out.number("Q", offset)
            offset += _padded(tensor.nbytes, alignment)
        return bytes(out.data)

    def _blocks(self, tensor: Tensor) -> npt.NDArray[np.uint8]:
        """The tensor's bytes in the file's byte order."""
        data = tensor.data() if callable(tensor.data) else tensor.data
        if isinstance(data, np.ndarray):
            array = np.ascontiguousarray(data, data.dtype.newbyteorder("<"))
        else:
            array = np.frombuffer(data, np.uint8)
        flat = array.reshape(-1).view(np.uint8)
        if flat.nbytes != tensor.nbytes:
            raise AssayError(
                f"{tensor.name}: {flat.nbytes} bytes of data for shape {list(tensor.shape)} of {tensor.type} "
                f"(expected {tensor.nbytes})"
            )
        if self.byteorder == "little":
            return flat
        if tensor.type.layout is None:
            raise AssayError(f"{tensor.name}: type {tensor.type} has no defined big-endian form")
        return flat.view(np.dtype(tensor.type.layout)).byteswap().view(np.uint8)


def write(path: str | os.PathLike[str], metadata: Mapping[str, object], tensors: Iterable[Tensor] = ()) -> None:
    """Write a little-endian version 3 file."""
    Writer().write(path, metadata, tensors)


class Packer:
    """Appends numbers, strings and values in one byte order."""

    def __init__(self, order: str) -> None:
        self.order = order
        self.data = bytearray()

    def raw(self, data: bytes) -> None:
        self.data += data

    def number(self, code: str, value: int) -> None:
        self.data += struct.pack(self.order + code, value)

    def string(self, text: str) -> None:
        raw = text.encode()
        self.number("Q", len(raw))
        self.raw(raw)

    def value(self, typed: Typed, key: str) -> None:
        value = typed.value
        if typed.type is ValueType.STRING:
            if not isinstance(value, str):
                raise AssayError(f"{key}: cannot be written as string (found {value!r:.60})")
            self.string(value)
        elif typed.type is ValueType.ARRAY:
            self._array(typed, key)
        else:
            self.raw(self._numbers([value], typed.type, key))

    def _array(self, typed: Typed, key: str) -> None:
        items = typed.value
        if typed.item is None or not isinstance(items, list | tuple | np.ndarray):
            raise AssayError(f"{key}: cannot be written as array (found {items!r:.60})")
        self.number("I", typed.item)
        self.number("Q", len(items))
        if typed.item in SCALARS:
            self.raw(self._numbers(items, typed.item, key))
            return
        for item in items:
            if typed.item is ValueType.ARRAY:
                self.value(infer(item, key), key)
            else:
                self.value(Typed(typed.item, item), key)

    def _numbers(self, values: Any, type_: ValueType, key: str) -> bytes:
        """`values` in the bytes of `type_`. A value out of range is an error; it is never wrapped or truncated."""
        dtype = np.dtype(SCALARS[type_])
        misfit = AssayError(f"{key}: does not fit {type_.name.lower()} (found {values!r:.60})")
        if isinstance(values, np.ndarray) and values.ndim == 1 and _BY_CODE.get(values.dtype) is type_:
            return values.astype(self.order + SCALARS[type_]).tobytes()
        items = [v.item() if isinstance(v, np.generic) else v for v in values]
        kinds = {bool} if type_ is ValueType.BOOL else {int} if dtype.kind in "ui" else {int, float}
        if not {type(v) for v in items} <= kinds:
            raise misfit
        try:
            with np.errstate(over="raise"):
                return np.array(items, dtype).astype(self.order + SCALARS[type_]).tobytes()
        except (OverflowError, FloatingPointError):
            raise misfit from None


def infer(value: object, key: str = "value") -> Typed:
    """The type in which a Python or NumPy value is written.

    bool, str: the same. int: uint32, int32 if negative, 64 bits if necessary. float: float32. An array: its element
    type. A list: int32 (or wider) for integers, float32 if any is a float, else the type of its elements.
    """
    if isinstance(value, str):
        return Typed(ValueType.STRING, value)
    if isinstance(value, bool | np.bool_):
        return Typed(ValueType.BOOL, bool(value))
    if isinstance(value, np.generic) and value.dtype in _BY_CODE:
        return Typed(_BY_CODE[value.dtype], value.item())
    if isinstance(value, int):
        return Typed(_holding([value], _WHOLE, key), value)
    if isinstance(value, float):
        return Typed(ValueType.FLOAT32, value)
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.newbyteorder("=") in _BY_CODE:
        return Typed(ValueType.ARRAY, value, _BY_CODE[value.dtype.newbyteorder("=")])
    if isinstance(value, list | tuple):
        return Typed(ValueType.ARRAY, value, _item_type(list(value), key))
    raise AssayError(f"{key}: no metadata type for {type(value).__name__} (found {value!r:.60})")


def _item_type(items: list[object], key: str) -> ValueType:
    kinds = {type(item) for item in items}
    if kinds <= {int}:
        return _holding([int(i) for i in items], _WHOLE_ITEMS, key)  # type: ignore[call-overload]
    if kinds <= {int, float}:
        return ValueType.FLOAT32
    if len({infer(item, key).type for item in items}) == 1:
        return infer(items[0], key).type
    raise AssayError(f"{key}: elements of different types (found {sorted(k.__name__ for k in kinds)})")


def _holding(values: list[int], choices: tuple[ValueType, ...], key: str) -> ValueType:
    low, high = min(values, default=0), max(values, default=0)
    for type_ in choices:
        limits = np.iinfo(SCALARS[type_])
        if limits.min <= low and high <= limits.max:
            return type_
    raise AssayError(f"{key}: no 64-bit integer holds {low} and {high}")


def _alignment(metadata: Mapping[str, object]) -> int:
    key = "general.alignment"
    value = metadata.get(key, DEFAULT_ALIGNMENT)
    typed = value if isinstance(value, Typed) else infer(value, key)
    n = typed.value
    if typed.type is not ValueType.UINT32 or not isinstance(n, int) or n < 1 or n & (n - 1) or n > MAX_ALIGNMENT:
        raise AssayError(f"{key}: found {n!r}, expected a uint32 power of two up to {MAX_ALIGNMENT}")
    return n


def _check(tensor: Tensor) -> None:
    length = len(tensor.name.encode())
    if not 1 <= length <= MAX_NAME:
        raise AssayError(f"tensor {tensor.name[:40]}…: a name of {length} bytes (expected 1 to {MAX_NAME})")
    if not 1 <= len(tensor.shape) <= MAX_DIMS or min(tensor.shape) < 1:
        raise AssayError(f"{tensor.name}: shape {list(tensor.shape)} (expected 1 to {MAX_DIMS} positive dimensions)")


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _put(file: NewFile, data: bytes | memoryview, alignment: int) -> None:
    file.write(data)
    file.write(bytes(-memoryview(data).nbytes % alignment))
