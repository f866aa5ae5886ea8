"""N-gram drafts: propose the next tokens of a sequence from its own earlier tokens.

If the last tokens of a sequence occurred before, the tokens that followed them then are a cheap draft of what follows
now. Code, quotations and rewritten texts repeat themselves often enough for this to pay. `speculation.py` decides
whether a draft is verified in a step; this module only makes drafts and measures how often they are accepted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile

_PLACES = 4  # earlier positions remembered for each pair of tokens; the latest are kept
_MAX_MATCH = 16  # equal tokens compared at most when two positions are matched
_FIRST_RATES = {8: 0.9, 4: 0.7, 2: 0.3}  # length of the match -> acceptance rate assumed before any was measured
_DECAY = 0.9  # weight of an observation relative to the next one


class AcceptanceRate:
    """The share of drafted tokens that were accepted; recent tokens weigh most."""

    def __init__(self, first: float, weight: float = 4.0) -> None:
        self._accepted, self._drafted = first * weight, weight

    @property
    def value(self) -> float:
        return self._accepted / self._drafted

    def update(self, accepted: bool) -> None:
        self._accepted = self._accepted * _DECAY + accepted
        self._drafted = self._drafted * _DECAY + 1

    def update_from(self, drawn: Sequence[int], draft: Sequence[int]) -> None:
        """Compare drawn tokens with their draft, up to the first difference."""
        for token, drafted in zip(drawn, draft, strict=False):
            self.update(token == drafted)
            if token != drafted:
                break


class NgramDraft:
    """The current draft of one sequence, and the acceptance rates of its earlier drafts by length of match."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], deque[int]] = {}  # pair of tokens -> positions of the second one
        self._indexed = 1
        self._rates = {length: AcceptanceRate(first) for length, first in _FIRST_RATES.items()}
        self.tokens: list[int] = []  # the current draft
        self.rate: AcceptanceRate | None = None  # of drafts with a match as long as the current one's

    def propose(self, ids: Sequence[int], max_tokens: int) -> list[int]:
        """Draft up to `max_tokens` tokens after `ids`: the longest match wins, and of equal ones the latest."""
        last = len(ids) - 1
        for i in range(self._indexed, last):
            self._places.setdefault((ids[i - 1], ids[i]), deque(maxlen=_PLACES)).append(i)
        self._indexed = max(self._indexed, last)
        self.tokens, self.rate = [], None
        if last < 1 or max_tokens < 1:
            return self.tokens
        longest, best = 0, -1
        for place in self._places.get((ids[last - 1], ids[last]), ()):
            n = 2
            while n < min(_MAX_MATCH, place + 1) and ids[place - n] == ids[last - n]:
                n += 1
            if n >= longest:
                longest, best = n, place
        if best >= 0:
            period = last - best  # a copy that reaches the end of the sequence starts over
            copied = (ids[best + 1 + i % period] for i in range(max_tokens))
            self.tokens = list(takewhile(lambda token: token >= 0, copied))  # rows of a picture are no tokens
            self.rate = next(rate for length, rate in self._rates.items() if longest >= length)
        return self.tokens

    def learn(self, drawn: Sequence[int]) -> None:
        """Update the acceptance rate with the tokens that were drawn, whether or not the draft was verified."""
        if self.rate:
            self.rate.update_from(drawn, self.tokens)
