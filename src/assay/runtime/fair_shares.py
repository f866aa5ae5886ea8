"""Fair shares: order sequences by the work that their client, and then their request, has had so far.

Work is counted in computed tokens. The client with the least work goes first; among its requests, the one with the
least. A new client or request starts at the current minimum, so idle time earns no credit and an arrival waits only
for the work under way.
"""

from __future__ import annotations

from collections import Counter

from assay.runtime.sequence import Sequence

Owner = tuple[str, str]  # client, request


class FairShares:
    """Tokens computed for each client and each request that has sequences here."""

    def __init__(self) -> None:
        self._tokens: dict[Owner, int] = {}
        self._sequences: Counter[Owner] = Counter()

    def enter(self, sequence: Sequence) -> None:
        for key in self._accounts(sequence):
            if not self._sequences[key]:
                others = [self._tokens[k] for k, n in self._sequences.items() if n and self._are_siblings(key, k)]
                self._tokens[key] = min(others, default=0)
            self._sequences[key] += 1

    def leave(self, sequence: Sequence) -> None:
        for key in self._accounts(sequence):
            self._sequences[key] -= 1
            if not self._sequences[key]:
                del self._sequences[key], self._tokens[key]

    def charge(self, sequence: Sequence, tokens: int) -> None:
        for key in self._accounts(sequence):
            self._tokens[key] += tokens

    def rank(self, sequence: Sequence) -> tuple[int, int, float]:
        """A sort key: the sequence with the smallest goes first."""
        client, request = self._accounts(sequence)
        return self._tokens[client], self._tokens[request], sequence.times.arrived

    def lead(self, sequence: Sequence) -> int:
        """How many more tokens its request has had than the request with the fewest."""
        tokens = [n for (_, request), n in self._tokens.items() if request]
        return self._tokens[self._accounts(sequence)[1]] - min(tokens)

    def requests(self) -> int:
        """The number of requests that have sequences here."""
        return sum(1 for _, request in self._sequences if request)

    @staticmethod
    def _accounts(sequence: Sequence) -> tuple[Owner, Owner]:
        """The keys of the client's account and of the request's."""
        client, request = sequence.job.owner
        return (client, ""), (client, f"/{request}")

    @staticmethod
    def _are_siblings(key: Owner, other: Owner) -> bool:
        """Clients are compared with clients, and requests with requests of the same client."""
        return other[0] == key[0] and bool(other[1]) if key[1] else not other[1]
