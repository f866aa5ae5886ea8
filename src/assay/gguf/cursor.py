"""Bounded reading of an untrusted buffer: no read past the end, no endless loop, no allocation before a check.

Every count is compared with the remaining bytes before it is used. Python integers do not overflow, so the comparisons
are exact.

String arrays are the slow part of a GGUF header: a vocabulary has 150,000 strings, and each is found only by the length
of the previous one. `_walk_strings` is many times faster than a loop. A length below 256 is a byte before seven zero
bytes, and NumPy finds all such positions at once. A position counts only if the previous string ends exactly there.
`bench/open_file.py` measures it.
"""

from __future__ import annotations

import copy
import mmap
import struct

import numpy as np
import numpy.typing as npt

from assay.errors import AssayError
from assay.gguf.types import SCALARS, ValueType
from assay.system.terminal import printable

Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]

MAX_DEPTH = 4
"""Maximum nesting depth of arrays; no known file exceeds one."""

MAX_STRINGS = 1 << 22
"""Maximum strings in a file's arrays: many times the largest vocabulary, and a few seconds at worst."""

MAX_INNER_ARRAYS = 1 << 12
"""Maximum arrays inside arrays of a file. No known file has one, and each costs many times a string's time."""

_WINDOW = 1 << 20
_LONGEST = 8 + 255  # bytes of a string whose length the window shows
_SHORT = 8
_BURST = 256


class Cursor:
    """A position in a file's bytes; every method checks, then advances."""

    def __init__(self, name: str, data: mmap.mmap | bytes, order: str) -> None:
        self.name = name
        self.data = data
        self.view: Bytes = np.frombuffer(data, np.uint8)
        self.size = len(data)
        self.order = order  # "<" or ">"
        self.pos = 0
        self.walked = 0  # strings of arrays skipped so far
        self.inner = 0  # arrays inside arrays skipped so far
        self._u32 = struct.Struct(order + "I").unpack_from
        self._u64 = struct.Struct(order + "Q").unpack_from

    def at(self, pos: int) -> Cursor:
        """Another cursor on the same bytes, so that threads can read different values."""
        other = copy.copy(self)
        other.pos = pos
        return other

    def error(self, what: str) -> AssayError:
        return AssayError(f"{self.name}: {printable(what)}")

    def need(self, count: int, what: str) -> None:
        """Raise unless `count` bytes are left."""
        if count > self.size - self.pos:
            raise self.error(
                f"{what}: the file ends too early (needs {count} bytes at offset {self.pos}, "
                f"{self.size - self.pos} are left); the file is truncated or corrupt; download it again"
            )

    def u32(self, what: str) -> int:
        self.need(4, what)
        (value,) = self._u32(self.data, self.pos)
        self.pos += 4
        return int(value)

    def u64(self, what: str) -> int:
        self.need(8, what)
        (value,) = self._u64(self.data, self.pos)
        self.pos += 8
        return int(value)

    def count(self, what: str, smallest: int, limit: int = MAX_STRINGS) -> int:
        """A 64-bit number of records of at least `smallest` bytes each, which must fit in the remaining bytes."""
        value = self.u64(what)
        most = min((self.size - self.pos) // smallest, limit)
        if value > most:
            raise self.error(f"{what}: impossible count (found {value}, at most {most} fit in the file)")
        return value

    def string(self, what: str, longest: int | None = None) -> str:
        length = self.u64(what)
        if longest is not None and length > longest:
            raise self.error(f"{what}: impossible length (found {length} bytes, at most {longest})")
        self.need(length, what)
        raw = bytes(self.data[self.pos : self.pos + length])
        self.pos += length
        return self.text(raw, what)

    def text(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what}: not valid UTF-8 (byte 0x{raw[error.start]:02x} at {error.start})") from None

    def value_type(self, what: str) -> ValueType:
        number = self.u32(what)
        try:
            return ValueType(number)
        except ValueError:
            raise self.error(f"{what}: unknown value type (found {number}, expected 0 to 12)") from None

    def skip(self, type_: ValueType, what: str, depth: int = 0) -> None:
        """Advance over one value without decoding it."""
        if type_ in SCALARS:
            width = int(SCALARS[type_][1])
            self.need(width, what)
            self.pos += width
        elif type_ is ValueType.STRING:
            length = self.u64(what)
            self.need(length, what)
            self.pos += length
        else:
            item, count = self.array_header(what, depth)
            if item in SCALARS:
                self.pos += count * int(SCALARS[item][1])
                return
            if item is ValueType.STRING:
                self.walked += count
                if self.walked > MAX_STRINGS:
                    raise self.error(f"{what}: more than {MAX_STRINGS} strings and arrays in the file's arrays")
                self._walk_strings(count, what)
                return
            self.inner += count
            if self.inner > MAX_INNER_ARRAYS:
                raise self.error(f"{what}: too many arrays inside arrays (at most {MAX_INNER_ARRAYS})")
            for _ in range(count):
                self.skip(item, what, depth + 1)

    def array_header(self, what: str, depth: int = 0) -> tuple[ValueType, int]:
        """Element type and count of an array. Scalar elements are checked to fit; others are checked later."""
        if depth == MAX_DEPTH:
            raise self.error(f"{what}: arrays are nested more than {MAX_DEPTH} deep")
        item = self.value_type(f"{what}: array element")
        if item in SCALARS:
            return item, self.count(what, int(SCALARS[item][1]), limit=self.size)
        return item, self.count(what, 8 if item is ValueType.STRING else 12)

    def strings(self, count: int, what: str) -> list[str]:
        """`count` length-prefixed strings."""
        if count == 0:
            return []
        first = self.pos
        found: list[Index] = []
        self._walk_strings(count, what, found)
        begin = np.concatenate(found) + (8 - first)
        end = np.append(begin[1:] - 8, self.pos - first)  # a string ends where the next length starts
        blob = bytes(self.data[first : self.pos])
        try:
            return [blob[a:b].decode() for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
        except UnicodeDecodeError as error:
            raise self.error(f"{what}: an element is not valid UTF-8 (found {error.object!r:.60})") from None

    def _walk_strings(self, count: int, what: str, found: list[Index] | None = None) -> None:
        """Advance over `count` strings; `found` gets the offsets of their lengths.

        The offsets `at` are all candidates in a window for a length below 256. `at[i]` is a length if `at[i - 1]` is
        one and its string ends there. If that fails (an empty or long string, zero bytes inside a string), some
        strings are walked one by one before the next attempt.
        """
        if count < _SHORT:
            count -= self._step_strings(count, what, found)
        while count:
            stop = min(self.pos + min(_WINDOW, count * _LONGEST), self.size)
            at, lengths = self._short_lengths(self.pos, stop)
            after = at + (8 + lengths)
            broken = np.flatnonzero(after[:-1] != at[1:])
            while count and self.pos < stop:
                i = int(at.searchsorted(self.pos))
                b = int(broken.searchsorted(i))
                j = min(int(broken[b]) + 1 if b < len(broken) else len(at), i + count)
                if j - i < _SHORT or at[i] != self.pos:
                    count -= self._step_strings(min(count, _BURST), what, found)
                    continue
                if found is not None:
                    found.append(at[i:j])
                count -= j - i
                self.pos = int(after[j - 1])
                if self.pos > self.size or (count and self.pos == self.size):
                    self.pos = int(at[j - 1])
                    self._step_strings(2, what, None)  # raises with the reason
            if count:
                self.need(8, what)

    def _step_strings(self, count: int, what: str, found: list[Index] | None) -> int:
        """The plain loop behind `_walk_strings`. Empty strings are taken together: their lengths are zero bytes."""
        zeros = self.view[self.pos : self.pos + 8 * count]
        empty = (int(np.argmax(zeros != 0)) if zeros.any() else len(zeros)) // 8
        if empty == count:
            if found is not None:
                found.append(np.arange(self.pos, self.pos + 8 * empty, 8, dtype=np.int64))
            self.pos += 8 * empty
            return count
        offsets = []
        for _ in range(count):
            offsets.append(self.pos)
            length = self.u64(what)
            self.need(length, what)
            self.pos += length
        if found is not None:
            found.append(np.array(offsets, np.int64))
        return count

    def _short_lengths(self, start: int, stop: int) -> tuple[Index, Index]:
        """Offsets in `start..stop` of 64-bit numbers below 256, and these numbers."""
        window = self.view[start:stop]
        if len(window) < 8:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        zero = window == 0
        two = zero[:-1] & zero[1:]
        four = two[:-2] & two[2:]
        seven = four[:-3] & four[3:]  # seven[i]: bytes i..i+6 are zero
        if self.order == "<":
            at = np.flatnonzero(seven[1:])
            return at + start, window[at].astype(np.int64)
        at = np.flatnonzero(seven[:-1])
        return at + start, window[at + 7].astype(np.int64)
