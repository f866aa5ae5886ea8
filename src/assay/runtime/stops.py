"""Stop strings in a stream: text is held back while it might be the beginning of one."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Push text as it comes; get what may be shown. After a stop string `found` is it, and nothing more comes."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """The text that is certain not to belong to a stop string."""
        if not self._stops:
            return text
        if self.found is not None:
            return ""
        held = self._held + text
        hits = [(at, -len(stop), stop) for stop in self._stops if (at := held.find(stop)) >= 0]
        if hits:  # the earliest; of those that begin together, the longest
            at, _, self.found = min(hits)
            self._held = ""
            return held[:at]
        keep = self._longest_beginning(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """What was held back in vain."""
        held, self._held = self._held, ""
        return held

    def _longest_beginning(self, text: str) -> int:
        """The length of the longest end of `text` that begins a stop string without being all of it."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for size in range(min(longest, len(text)), 0, -1):
            end = text[len(text) - size :]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0
