"""Where a stream should go: where it costs least, counted in tokens that have to be computed before its first one.

    cost = tokens that the replica's cache does not hold
         + tokens of the prompts that it has still to compute for others
         + DECODES for every stream that decodes there, for each takes a share of every step

What a replica's cache holds it says itself, page by page, as pages come and go: nothing is guessed from past texts.
Only what was sent there a moment ago and has no first token yet is counted as if it were there already, so that
requests with a common beginning that come together go together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from assay.engines.contract import PAGE

DECODES = 16  # tokens


class Known:
    """What one replica holds and has before it."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._coming: Counter[str] = Counter()
        self.owed = 0  # prompt tokens sent there and not computed yet

    def reset(self, held: Iterable[str]) -> None:
        """A new connection: what it says counts, what was sent over the old one does not come."""
        self._held = set(held)
        self._coming.clear()
        self.owed = 0

    def changed(self, news: dict[str, bool]) -> None:
        for name, here in news.items():
            (self._held.add if here else self._held.discard)(name)

    def found(self, names: Sequence[str]) -> int:
        """How many tokens of a prompt with these pages are there, or will be."""
        n = 0
        for name in names:
            if name not in self._held and not self._coming[name]:
                break
            n += 1
        return n * PAGE

    def send(self, names: Sequence[str], n_tokens: int) -> int:
        """A prompt goes there: how many of its tokens have to be computed."""
        owed = max(n_tokens - self.found(names), 1)
        self.owed += owed
        self._coming.update(names)
        return owed

    def began(self, names: Sequence[str], owed: int) -> None:
        """It has its first token, or is gone."""
        self.owed = max(self.owed - owed, 0)
        self._coming.subtract(names)
        for name in names:
            if self._coming[name] <= 0:
                del self._coming[name]


def cost(known: Known, names: Sequence[str], n_tokens: int, decoding: int) -> int:
    return max(n_tokens - known.found(names), 1) + known.owed + DECODES * decoding
