"""Who is next: of the clients that want something, the one that had least; of its requests, the one that had least.

Work is counted in tokens computed. Who comes new begins with what the least of those present has had, so that nobody is
owed anything for the time before and nobody waits for more than the work under way.
"""

from __future__ import annotations

from collections import Counter

from assay.runtime.sequence import Sequence

Owner = tuple[str, str]  # client, request


class Shares:
    """What each client and each of its requests has had; those with nothing left to do are forgotten."""

    def __init__(self) -> None:
        self._had: dict[Owner, int] = {}
        self._present: Counter[Owner] = Counter()

    def enter(self, sequence: Sequence) -> None:
        for key in self._levels(sequence):
            if not self._present[key]:
                others = [self._had[k] for k, n in self._present.items() if n and self._beside(key, k)]
                self._had[key] = min(others, default=0)
            self._present[key] += 1

    def leave(self, sequence: Sequence) -> None:
        for key in self._levels(sequence):
            self._present[key] -= 1
            if not self._present[key]:
                del self._present[key], self._had[key]

    def charge(self, sequence: Sequence, tokens: int) -> None:
        for key in self._levels(sequence):
            self._had[key] += tokens

    def rank(self, sequence: Sequence) -> tuple[int, int, float]:
        """The least goes first."""
        client, request = self._levels(sequence)
        return self._had[client], self._had[request], sequence.times.arrived

    def lead(self, sequence: Sequence) -> int:
        """How many tokens more its request has had than the one that had least."""
        had = [n for (_, request), n in self._had.items() if request]
        return self._had[self._levels(sequence)[1]] - min(had)

    def requests(self) -> int:
        """How many requests have something to do."""
        return sum(1 for _, request in self._present if request)

    @staticmethod
    def _levels(sequence: Sequence) -> tuple[Owner, Owner]:
        """The client and the request."""
        client, request = sequence.job.owner
        return (client, ""), (client, f"/{request}")

    @staticmethod
    def _beside(key: Owner, other: Owner) -> bool:
        """Clients stand beside clients, requests beside those of the same client."""
        return other[0] == key[0] and bool(other[1]) if key[1] else not other[1]
