"""Placement: a stream goes to the replica with the lowest cost, in tokens to compute before its first token.

    cost = prompt tokens that the replica's prefix cache does not hold
         + prompt tokens that the replica still has to compute for other streams
         + DECODES for every stream that decodes there, because each takes a share of every step

A replica reports the pages of its prefix cache as they are added and evicted; the router does not guess from texts.
A prompt that was just sent counts as cached before its first token, so simultaneous requests with one prefix meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from assay.engines.contract import PAGE

DECODES = 16  # tokens of prefill that one decoding stream costs a newcomer


class ReplicaLoad:
    """The prefix cache and the pending prefill work of one replica."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._coming: Counter[str] = Counter()
        self.owed = 0  # prompt tokens sent to the replica and not computed yet

    def reset(self, held: Iterable[str]) -> None:
        """Start again for a new connection: streams of the old one are not pending any more."""
        self._held = set(held)
        self._coming.clear()
        self.owed = 0

    def changed(self, news: dict[str, bool]) -> None:
        for name, here in news.items():
            (self._held.add if here else self._held.discard)(name)

    def found(self, names: Sequence[str]) -> int:
        """How many tokens of a prompt with these pages are cached, or will be."""
        n = 0
        for name in names:
            if name not in self._held and not self._coming[name]:
                break
            n += 1
        return n * PAGE

    def send(self, names: Sequence[str], n_tokens: int) -> int:
        """Count a prompt as sent. Returns how many of its tokens must be computed."""
        owed = max(n_tokens - self.found(names), 1)
        self.owed += owed
        self._coming.update(names)
        return owed

    def began(self, names: Sequence[str], owed: int) -> None:
        """A prompt is no longer pending: its stream has its first token, or left."""
        self.owed = max(self.owed - owed, 0)
        self._coming.subtract(names)
        for name in names:
            if self._coming[name] <= 0:
                del self._coming[name]


def cost(known: ReplicaLoad, names: Sequence[str], n_tokens: int, decoding: int) -> int:
    """The cost of a prompt on a replica with `decoding` streams, in tokens."""
    return max(n_tokens - known.found(names), 1) + known.owed + DECODES * decoding
