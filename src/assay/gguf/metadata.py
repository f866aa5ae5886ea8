"""The key-value pairs of a GGUF file. Types and offsets are read on opening, values on first access.

Every getter checks the type. A file whose block count is a string, or whose vocabulary is a number, gets an error with
the key, the found and the expected type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar, overload

import numpy as np
import numpy.typing as npt

from assay.gguf.cursor import Cursor
from assay.gguf.types import SCALARS, Typed, ValueType

MAX_KEY = (1 << 16) - 1
MAX_PAIRS = 1 << 16
REQUIRED: Final = object()

D = TypeVar("D")
Value = Any
"""str, bool, int, float; a NumPy array (numbers, bools); list[str]; a list of these for nested arrays."""

_INTEGERS: set[ValueType] = {t for t, code in SCALARS.items() if code[0] in "ui" and t is not ValueType.BOOL}
_FLOATS: set[ValueType] = {ValueType.FLOAT32, ValueType.FLOAT64}
_BOOLS: set[ValueType] = {ValueType.BOOL}
_STRINGS: set[ValueType] = {ValueType.STRING}
_KINDS: dict[type, tuple[set[ValueType], str]] = {
    int: (_INTEGERS, "integer"),
    float: (_FLOATS, "float"),
    bool: (_BOOLS, "bool"),
    str: (_STRINGS, "string"),
}


class Metadata(Mapping[str, Value]):
    """The pairs of one file, in file order. Values are decoded on first access and cached."""

    def __init__(self, cursor: Cursor, count: int) -> None:
        self._cursor = cursor
        self._places: dict[str, tuple[ValueType, int]] = {}
        self._values: dict[str, Value] = {}
        for i in range(count):
            key = cursor.string(f"key {i} of {count}", longest=MAX_KEY)
            if key in self._places:
                raise cursor.error(f"{key}: the key appears twice")
            type_ = cursor.value_type(key)
            self._places[key] = (type_, cursor.pos)
            cursor.skip(type_, key)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __getitem__(self, key: str) -> Value:
        if key not in self._values:
            type_, place = self._places[key]
            self._values[key] = _decode(self._cursor.at(place), type_, key)
        return self._values[key]

    def types(self, key: str) -> tuple[ValueType, ValueType | None]:
        """Type of the value, and of its elements if it is an array."""
        type_, place = self._places[key]
        if type_ is not ValueType.ARRAY:
            return type_, None
        return type_, self._cursor.at(place).value_type(key)

    def length(self, key: str) -> int | None:
        """Number of elements of an array, without decoding it; None for a scalar."""
        type_, place = self._places[key]
        if type_ is not ValueType.ARRAY:
            return None
        return self._cursor.at(place).array_header(key)[1]

    def typed(self, key: str) -> Typed:
        """The value with its type in this file, for the writer."""
        type_, item = self.types(key)
        return Typed(type_, self[key], item)

    def describe(self, key: str) -> str:
        """`uint32`, `string`, `array of 49152 string`: the type of a value, for messages."""
        type_, item = self.types(key)
        if item is None:
            return type_.name.lower()
        return f"array of {self.length(key)} {item.name.lower()}"

    def scalar(self, key: str, default: object, kind: type) -> Value:
        """The value of `key`, which must be of `kind`; `default` if the key is absent."""
        wanted, word = _KINDS[kind]
        if key not in self._places:
            return self._absent(key, default, word)
        if self._places[key][0] not in wanted:
            raise self._cursor.error(f"{key}: wrong type (found {self.describe(key)}, expected {word})")
        value = self[key]
        if kind is float and not math.isfinite(value):
            raise self._cursor.error(f"{key}: not a finite number (found {value})")
        return value

    def array(self, key: str, default: object, kind: type) -> Value:
        """The array of `key`, whose elements must be of `kind`; `default` if the key is absent."""
        wanted, word = _KINDS[kind]
        if key not in self._places:
            return self._absent(key, default, f"array of {word}")
        type_, item = self.types(key)
        if type_ is not ValueType.ARRAY or item not in wanted:
            raise self._cursor.error(f"{key}: wrong type (found {self.describe(key)}, expected array of {word})")
        return self[key]

    def _absent(self, key: str, default: object, word: str) -> Value:
        if default is REQUIRED:
            raise self._cursor.error(f"{key}: the file lacks this key (expected {word})")
        return default


def _decode(cursor: Cursor, type_: ValueType, key: str) -> Value:
    """The value of type `type_` at the cursor. It was bounds-checked when it was skipped on opening."""
    if type_ is ValueType.STRING:
        return cursor.string(key)
    if type_ is ValueType.ARRAY:
        item, count = cursor.array_header(key)
        if item is ValueType.STRING:
            return cursor.strings(count, key)
        if item is ValueType.ARRAY:
            return [_decode(cursor, item, key) for _ in range(count)]
        return _numbers(cursor, item, count, key)
    return _numbers(cursor, type_, 1, key)[0].item()


def _numbers(cursor: Cursor, type_: ValueType, count: int, key: str) -> npt.NDArray[Any]:
    dtype = np.dtype(cursor.order + SCALARS[type_])
    values = np.frombuffer(cursor.data, dtype, count, cursor.pos)
    cursor.pos += values.nbytes
    if type_ is not ValueType.BOOL:
        return values.astype(dtype.newbyteorder("="))
    if values.size and values.max() > 1:
        raise cursor.error(f"{key}: not a bool (found byte {values.max()}, expected 0 or 1)")
    return values.astype(np.bool_)


class Getters:
    """Typed access to `metadata`, mixed into the file. Without a default, the key is required."""

    metadata: Metadata

    @overload
    def get_int(self, key: str) -> int: ...
    @overload
    def get_int(self, key: str, default: D) -> int | D: ...
    def get_int(self, key: str, default: object = REQUIRED) -> object:
        return self.metadata.scalar(key, default, int)

    @overload
    def get_float(self, key: str) -> float: ...
    @overload
    def get_float(self, key: str, default: D) -> float | D: ...
    def get_float(self, key: str, default: object = REQUIRED) -> object:
        return self.metadata.scalar(key, default, float)

    @overload
    def get_bool(self, key: str) -> bool: ...
    @overload
    def get_bool(self, key: str, default: D) -> bool | D: ...
    def get_bool(self, key: str, default: object = REQUIRED) -> object:
        return self.metadata.scalar(key, default, bool)

    @overload
    def get_str(self, key: str) -> str: ...
    @overload
    def get_str(self, key: str, default: D) -> str | D: ...
    def get_str(self, key: str, default: object = REQUIRED) -> object:
        return self.metadata.scalar(key, default, str)

    def get_array(self, key: str, default: object = REQUIRED, *, kind: type = int) -> Any:
        """Array of `kind` (int, float, bool: a NumPy array; str: a list); its element type is checked."""
        return self.metadata.array(key, default, kind)
