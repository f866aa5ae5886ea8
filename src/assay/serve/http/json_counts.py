"""Count the nodes of JSON text before it is parsed.

A body of 2 MB can hold half a million values. Building and validating them takes seconds, so the limits on them must
hold before that. This counter reads the bytes as they arrive, in linear time and without building anything.

    nodes   arrays, objects, keys and texts
    items   commas: items of arrays and fields of objects, without the first of each
    depth   nesting of arrays and objects

All three are exact if the text is JSON. If it is not, they are exact up to the first error, where a parser stops.
"""

from __future__ import annotations

import numpy as np

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_BIT = 0x20  # `[` and `{`, and `]` and `}`, differ only in this bit
_OPEN, _CLOSE = b"{}"


class JsonCounts:
    """The counts of the bytes fed so far."""

    def __init__(self) -> None:
        self.nodes = self.items = self.depth = 0
        self._level = 0
        self._in_string = False
        self._backslashes = 0  # at the end of the last part

    def feed(self, part: bytes) -> None:
        """Count another part. A part may end anywhere, also inside a string or an escape."""
        if not part:
            return
        data = np.frombuffer(part, np.uint8)
        quotes = self._string_ends(data)
        self.nodes += (int(np.count_nonzero(quotes)) + (not self._in_string)) // 2
        inside = np.bitwise_xor.accumulate(quotes.view(np.uint8))  # 1: an odd number of quotes up to here
        outside = data[inside == self._in_string]
        self._in_string ^= bool(inside[-1])
        self.items += int(np.count_nonzero(outside == _COMMA))
        brackets = outside | _BIT
        opens = brackets == _OPEN
        self.nodes += int(np.count_nonzero(opens))
        steps = opens.view(np.int8) - (brackets == _CLOSE).view(np.int8)
        levels = np.cumsum(steps[steps != 0], dtype=np.int32)
        if levels.size:
            self.depth = max(self.depth, self._level + int(levels.max()))
            self._level += int(levels[-1])

    def _string_ends(self, data: Bytes) -> Flags:
        """Where a quote begins or ends a string: an even number of backslashes stands before it."""
        quotes: Flags = data == _QUOTE
        slashes = data == _BACKSLASH
        before = self._backslashes
        if not slashes.any():
            self._backslashes = 0
            if before & 1:
                quotes[0] = False
            return quotes
        places = np.arange(len(data), dtype=np.int32)
        others = np.maximum.accumulate(np.where(slashes, np.int32(-1 - before), places))  # the last other byte
        run = places - others  # backslashes that end at each place
        escaped = np.empty_like(quotes)
        escaped[0], escaped[1:] = before & 1, run[:-1] & 1
        self._backslashes = int(run[-1])
        quotes &= ~escaped
        return quotes
