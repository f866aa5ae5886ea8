"""`tokenizer.ggml.precompiled_charsmap`: SentencePiece's normalisation, compiled.

Four bytes of length, a double array of 32-bit units, then the replacements, each ended by a zero byte. The array
is a trie over UTF-8: from a node with offset b, byte c leads to unit b ^ c if that unit's label is c. A unit holds
its label (bits 0-7), whether a key ends there (bit 8) and its offset (bits 10-30, shifted by 8 more if bit 9 is
set). Where a key ends, the unit at its offset holds the offset of the replacement. At every position of a text the
longest matching key is replaced; other characters stay.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from assay.errors import AssayError
from assay.gguf import GGUFFile

KEY = "tokenizer.ggml.precompiled_charsmap"
_MAX_KEY = 256  # bytes: bounds the walk in a damaged array with a cycle
_REMEMBERED = 1 << 16


class Charsmap:
    """Applies the replacements to a text."""

    def __init__(self, units: npt.NDArray[np.uint32], replacements: bytes) -> None:
        self._units: list[int] = units.tolist()
        self._replacements = replacements
        self._known: dict[str, str] = {}  # cache: replacement of the first of two characters

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Charsmap | None:
        """The map of the file, or None."""
        if KEY not in file.metadata:
            return None
        value = file.metadata[KEY]
        if not isinstance(value, np.ndarray) or value.dtype.itemsize != 1 or value.dtype.kind not in "iu":
            raise AssayError(
                f"{file.path.name}: {KEY}: wrong type (found {file.metadata.describe(KEY)}, expected array of bytes)"
            )
        data = value.tobytes()
        size = int.from_bytes(data[:4], "little")
        if len(data) < 4 or size % 4 or 4 + size >= len(data):
            raise AssayError(
                f"{file.path.name}: {KEY}: damaged (found {len(data)} bytes, of which {size} should be the array); "
                "convert the model again"
            )
        return cls(np.frombuffer(data, "<u4", size // 4, 4), data[4 + size :])

    def normalise(self, text: str) -> str:
        out, at, known = [], 0, self._known
        while at < len(text):
            pair = text[at : at + 2]
            short = known.get(pair)
            if short is not None:
                out.append(short)
                at += 1
                continue
            replacement, taken, read = self._longest(text, at)
            if taken == 1 and read <= len(pair) and len(known) < _REMEMBERED:
                known[pair] = replacement
            out.append(replacement)
            at += taken
        return "".join(out)

    def _longest(self, text: str, at: int) -> tuple[str, int, int]:
        """The replacement of the longest key at `at`, the length of the key, and the number of characters examined."""
        best, taken, looked = text[at], 1, 0
        node = self._offset(0) if self._units else 0
        for place in range(at, min(at + _MAX_KEY, len(text))):
            looked += 1
            leaf = None
            for byte in text[place].encode("utf-8", "surrogatepass"):
                node ^= byte
                if byte == 0 or (unit := self._unit(node)) & 0x800000FF != byte:
                    return best, taken, looked
                node ^= self._offset(node)
                leaf = self._unit(node) & 0x7FFFFFFF if unit >> 8 & 1 else None
            if leaf is not None:
                best, taken = self._replacement(leaf), looked
        return best, taken, looked + 1

    def _unit(self, index: int) -> int:
        if index >= len(self._units):
            raise AssayError(f"{KEY}: damaged (an offset points outside the array); convert the model again")
        return self._units[index]

    def _offset(self, index: int) -> int:
        unit = self._unit(index)
        return (unit >> 10) << ((unit & 1 << 9) >> 6)

    def _replacement(self, start: int) -> str:
        end = self._replacements.find(b"\0", start)
        try:
            if end < 0 or start >= len(self._replacements):
                raise ValueError
            return self._replacements[start:end].decode()
        except ValueError:
            raise AssayError(f"{KEY}: damaged (a replacement is not valid UTF-8); convert the model again") from None
