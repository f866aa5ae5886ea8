"""Lookahead: guess the next tokens, check them all in one step. The text is the same, bit for bit.

A decoding sequence computes one token a step. With a guess of what follows it computes that token and the guessed ones
together and draws from each row of logits in turn, for as long as what is drawn is what was guessed. Because logits do
not depend on the batch and draws are a function of seed and position, every draw is the one it would have been; a
wrong guess costs time and nothing else.

Guesses come from the sequence itself (`Guesses`: where its last tokens stood before, it goes on as it did then) or
from a small model (`draft.py`). Whether a guess is worth its time is a question of two numbers that are measured all
the while: how often guesses of that kind were right, also those that were not used, and what a step of so many tokens
takes on this engine.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Row
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from assay.runtime.sequence import Sequence


LONGEST = 15  # tokens guessed at once for one sequence
_GAIN = 1.04  # tokens a second over those without, from which guesses are used: less is within the noise of a step
_PLACES = 4  # of each pair of tokens that are remembered, the latest
_REACH = 16  # equal tokens looked back at most
_ODDS = {8: 0.9, 4: 0.7, 2: 0.3}  # from so many equal tokens on: how often the next is right, to begin with
_MEMORY = 0.9  # a guess counts so much less with each that follows it
_STALE = 512  # steps after which a size is measured anew
_AGAIN = 64  # steps after which a drafter that did not pay is asked again


class Odds:
    """How often guesses were right, the last ones counting most."""

    def __init__(self, first: float, weight: float = 4.0) -> None:
        self._right, self._tried = first * weight, weight

    @property
    def value(self) -> float:
        return self._right / self._tried

    def learn(self, right: bool) -> None:
        self._right = self._right * _MEMORY + right
        self._tried = self._tried * _MEMORY + 1


class Guesses:
    """What may come next in one sequence, from its own tokens, and how far that can be believed."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], deque[int]] = {}  # a pair of tokens: where the second one stood
        self._indexed = 1
        self._odds = {least: Odds(first) for least, first in _ODDS.items()}
        self.tokens: list[int] = []  # the guess that was made,
        self.odds: Odds | None = None  # and how often such guesses were right

    def make(self, ids: Row[int], most: int) -> list[int]:
        """Up to `most` tokens after `ids`: the longest match with what came before, the latest of equals."""
        last = len(ids) - 1
        for i in range(self._indexed, last):
            self._places.setdefault((ids[i - 1], ids[i]), deque(maxlen=_PLACES)).append(i)
        self._indexed = max(self._indexed, last)
        self.tokens, self.odds = [], None
        if last < 1 or most < 1:
            return self.tokens
        matched, best = 0, -1
        for place in self._places.get((ids[last - 1], ids[last]), ()):
            n = 2
            while n < min(_REACH, place + 1) and ids[place - n] == ids[last - n]:
                n += 1
            if n >= matched:
                matched, best = n, place
        if best >= 0:
            period = last - best  # a copy that reaches its own start goes round
            self.tokens = [ids[best + 1 + i % period] for i in range(most)]
            self.odds = next(odds for least, odds in self._odds.items() if matched >= least)
        return self.tokens

    def learn(self, drawn: Row[int]) -> None:
        """What came instead, or just so."""
        if odds := self.odds:
            for token, guess in zip(drawn, self.tokens, strict=False):
                odds.learn(token == guess)
                if token != guess:
                    break


class Costs:
    """Seconds of a step by its number of tokens: measured where it was tried, else of the shape that is usual."""

    def __init__(self, slope: float = 0.25) -> None:
        self._slope = slope  # what a token more costs, in steps of one token, unless it was measured
        self._seen: dict[int, tuple[int, deque[float]]] = {}
        self._medians: dict[int, float] = {}
        self._steps = 0

    def note(self, n: int, seconds: float) -> None:
        self._steps += 1
        taken = self._seen[n][1] if n in self._seen else deque[float](maxlen=7)
        taken.append(seconds)
        self._seen[n] = self._steps, taken
        self._medians[n] = median(taken)
        if self._steps % _STALE == 0:
            self._seen = {size: row for size, row in self._seen.items() if row[0] > self._steps - _STALE}
            self._medians = {size: self._medians[size] for size in self._seen}

    def __call__(self, n: int) -> float:
        """Between two sizes that were measured, what they have in common with the usual shape; 0 before any was."""
        if n in self._medians:
            return self._medians[n]
        below = max((size for size in self._medians if size <= n), default=0)
        above = min((size for size in self._medians if size >= n), default=0)
        if not below and not above:
            return 0.0
        a, b = self._ratio(below or above), self._ratio(above or below)
        share = (n - below) / (above - below) if 0 < below < above else 0.0
        return (a + (b - a) * share) * self._shape(n)

    def _shape(self, n: int) -> float:
        return 1 + self._slope * (n - 1)

    def _ratio(self, size: int) -> float:
        return self._medians[size] / self._shape(size)


def _sizes(most: int) -> Iterator[int]:
    """1 to `most`, each up to 16 and then by eighths: between two of them a step's cost hardly differs."""
    n = 0
    while n < most:
        n = min(most, n + max(1, n // 8))
        yield n


class Drafter(Protocol):
    """Whoever guesses for sequences that do not repeat themselves."""

    def guess(self, wanted: dict[Sequence, int]) -> dict[Sequence, list[int]]: ...

    def forget(self, sequence: Sequence) -> None: ...

    def close(self) -> None: ...


class Lookahead:
    """Which guesses of which sequences go into a step."""

    def __init__(self, drafter: Drafter | None = None) -> None:
        self.drafter = drafter
        self.costs = Costs()
        self._drafted: dict[Sequence, list[int]] = {}
        self._odds = Odds(0.6)  # of the drafter
        self._round = 0.0  # seconds the drafter takes for a token of everybody
        self._idle = 0  # steps since it was asked

    def choose(self, room: dict[Sequence, int]) -> dict[Sequence, list[int]]:
        """Guesses for sequences that decode, `room` at most: as many as make the most tokens a second."""
        for sequence, most in room.items():
            sequence.guesses.make(sequence.ids, min(most, LONGEST))
        chances: list[tuple[float, Sequence]] = []
        for sequence in room:
            if odds := sequence.guesses.odds:
                chance, each = 1.0, odds.value
                for _ in sequence.guesses.tokens:
                    chance *= each
                    chances.append((chance, sequence))
        chances.sort(key=lambda pair: -pair[0])  # of one sequence they fall, so a later one never goes without
        n = self._best(len(room), [chance for chance, _ in chances])
        chosen: dict[Sequence, list[int]] = {}
        for _, sequence in chances[:n]:
            kept = chosen.setdefault(sequence, [])
            kept.append(sequence.guesses.tokens[len(kept)])
        self._drafted = {} if chosen or not self.drafter else self._draft(self.drafter, room)
        return chosen or self._drafted

    def learn(self, sequence: Sequence, drawn: list[int]) -> None:
        """What a step drew, whatever was guessed."""
        sequence.guesses.learn(drawn)
        for token, guess in zip(drawn, self._drafted.get(sequence, ()), strict=False):
            self._odds.learn(token == guess)
            if token != guess:
                break

    def _best(self, base: int, chances: list[float]) -> int:
        """How many of the chances to take, best first."""
        if not chances or not (alone := self.costs(base)):
            return 0
        best, found = 0, _GAIN * base / alone
        expected = list(accumulate(chances, initial=float(base)))
        for n in _sizes(len(chances)):
            rate = expected[n] / self.costs(base + n)
            if rate > found:
                best, found = n, rate
        return best

    def _draft(self, drafter: Drafter, room: dict[Sequence, int]) -> dict[Sequence, list[int]]:
        """The drafter's guesses, equally many for everybody; now and then a few although they would not pay."""
        base, odds = len(room), self._odds.value
        alone = self.costs(base)
        best, found, expected = 0, _GAIN * base / alone if alone else float("inf"), float(base)
        for n in range(1, LONGEST + 1):
            expected += base * odds**n
            rate = expected / (self.costs(base * (1 + n)) + n * self._round) if alone else 0.0
            if rate > found:
                best, found = n, rate
        self._idle += 1
        if not best and self._idle < _AGAIN:
            return {}
        self._idle = 0
        n = best or 2
        started = time.perf_counter()
        guessed = drafter.guess({sequence: min(n, most) for sequence, most in room.items() if most})
        self._round = (time.perf_counter() - started) / n
        return {sequence: tokens for sequence, tokens in guessed.items() if tokens}
