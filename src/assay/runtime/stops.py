"""Stop strings in a stream of text. Text is held back while it could be the start of a stop string."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Push text as it is generated, and show what `push` returns.

    After a stop string, `found` is set and `push` returns no more text.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """The text that is certainly not part of a stop string."""
        if not self._stops:
            return text
        if self.found is not None:
            return ""
        held = self._held + text
        hits = [(at, -len(stop), stop) for stop in self._stops if (at := held.find(stop)) >= 0]
        if hits:  # the earliest match; of those that start together, the longest
            at, _, self.found = min(hits)
            self._held = ""
            return held[:at]
        keep = self._held_suffix(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """The text that is still held back."""
        held, self._held = self._held, ""
        return held

    def _held_suffix(self, text: str) -> int:
        """The length of the longest suffix of `text` that is a proper prefix of a stop string."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for size in range(min(longest, len(text)), 0, -1):
            end = text[len(text) - size :]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0
