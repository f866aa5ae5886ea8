"""Speculative decoding: draft the next tokens cheaply, then verify all of them in one step. No bit changes.

A decoding sequence computes one token per step. With a draft, a step computes the next token and the drafted ones
together. The scheduler then draws from each row of logits in turn, as long as the drawn token equals the drafted one.
Logits do not depend on the batch, and random numbers depend on seed and position only. Every drawn token is therefore
the one that plain decoding would have drawn; a rejected draft costs time and nothing else.

Drafts come from the sequence's own text (`ngram_draft.py`), from a small model (`draft_model.py`) or from a draft
head (`head_draft.py`, `eagle_draft.py`). A draft is verified if that is expected to raise tokens per second. Two
measurements decide: the acceptance rate of such drafts, and the duration of a step by its number of tokens
(`StepCosts`). Change this module to change that decision.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import accumulate
from statistics import median
from typing import Protocol
from weakref import WeakSet

from assay.engines.contract import Array, PagedEngine
from assay.runtime.ngram_draft import AcceptanceRate
from assay.runtime.pages import Pages
from assay.runtime.sequence import Sequence

MAX_DRAFT = 15  # drafted tokens of one sequence in one step
_MIN_GAIN = 1.04  # a draft is verified only above this gain in tokens per second; less is noise between steps
_STALE = 512  # steps after which a measured duration is dropped unless it was measured again
_RETRY = 64  # steps after which a draft model that did not pay is tried again


class StepCosts:
    """Seconds of a decode step by its number of tokens. Sizes that were not measured are interpolated."""

    def __init__(self, slope: float = 0.25) -> None:
        self._slope = slope  # assumed cost of a further token, relative to a step of one token
        self._seen: dict[int, tuple[int, deque[float]]] = {}
        self._medians: dict[int, float] = {}
        self._steps = 0

    def record(self, n: int, seconds: float) -> None:
        self._steps += 1
        durations = self._seen[n][1] if n in self._seen else deque[float](maxlen=7)
        durations.append(seconds)
        self._seen[n] = self._steps, durations
        self._medians[n] = median(durations)
        if self._steps % _STALE == 0:
            self._seen = {size: row for size, row in self._seen.items() if row[0] > self._steps - _STALE}
            self._medians = {size: self._medians[size] for size in self._seen}

    def __call__(self, n: int) -> float:
        """Seconds of a step of n tokens; 0 before any step was measured.

        Between two measured sizes, their ratios to the assumed line are interpolated.
        """
        if n in self._medians:
            return self._medians[n]
        below = max((size for size in self._medians if size <= n), default=0)
        above = min((size for size in self._medians if size >= n), default=0)
        if not below and not above:
            return 0.0
        a, b = self._ratio(below or above), self._ratio(above or below)
        share = (n - below) / (above - below) if 0 < below < above else 0.0
        return (a + (b - a) * share) * self._assumed(n)

    def _assumed(self, n: int) -> float:
        """The cost of n tokens relative to one token, before any measurement."""
        return 1 + self._slope * (n - 1)

    def _ratio(self, size: int) -> float:
        return self._medians[size] / self._assumed(size)


def _sizes(limit: int) -> Iterator[int]:
    """Draft sizes to compare: 1 to `limit`, every one up to 16 and then in steps of an eighth. In between, the cost of
    a step hardly differs."""
    n = 0
    while n < limit:
        n = min(limit, n + max(1, n // 8))
        yield n


class Drafter(Protocol):
    """Drafts tokens for sequences whose own text gives no draft that pays."""

    reads: tuple[str, ...] = ()  # nodes of the model whose rows it is given

    def attach(self, engine: PagedEngine, pages: Pages) -> None:
        """Called once, before anything else, with the model's engine and its pages."""
        return

    def observe(self, sequence: Sequence, start: int, nodes: Mapping[str, Array]) -> None:
        """The rows of `reads` for tokens start, start + 1, … of a sequence: computed, and not taken back."""
        return

    def draft(self, wanted: dict[Sequence, int]) -> dict[Sequence, list[int]]:
        """Up to `wanted[sequence]` tokens after each sequence."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Free everything that is kept for a sequence that has ended."""
        ...

    def close(self) -> None: ...


class Speculator:
    """Chooses the drafts that a step verifies."""

    def __init__(self, drafter: Drafter | None = None) -> None:
        self.drafter = drafter
        self.costs = StepCosts()
        self._drafted: dict[Sequence, list[int]] = {}  # by the draft model, for the step under way
        self._rate = AcceptanceRate(0.6)  # of the draft model
        self._draft_seconds = 0.0  # that the draft model takes for one token of all sequences
        self._idle_steps = 0  # since the draft model was used
        self._read: WeakSet[Sequence] = WeakSet()  # sequences whose prompt the draft model has read

    @property
    def reads(self) -> tuple[str, ...]:
        """Nodes of the model that the drafter must be given."""
        return self.drafter.reads if self.drafter else ()

    def choose(self, room: dict[Sequence, int]) -> dict[Sequence, list[int]]:
        """Drafts for decoding sequences, at most `room` tokens each: as many as maximise tokens per second."""
        for sequence, limit in room.items():
            sequence.ngrams.propose(sequence.ids, min(limit, MAX_DRAFT))
        chances: list[tuple[float, Sequence]] = []  # probability that a drafted token is reached and accepted
        for sequence in room:
            if rate := sequence.ngrams.rate:
                chance, each = 1.0, rate.value
                for _ in sequence.ngrams.tokens:
                    chance *= each
                    chances.append((chance, sequence))
        # Within a sequence the chances fall, so a prefix of the sorted list has a prefix of every draft.
        chances.sort(key=lambda pair: -pair[0])
        n = self._best_size(len(room), [chance for chance, _ in chances])
        chosen: dict[Sequence, list[int]] = {}
        for _, sequence in chances[:n]:
            draft = chosen.setdefault(sequence, [])
            draft.append(sequence.ngrams.tokens[len(draft)])
        self._drafted = {} if chosen or not self.drafter else self._ask_drafter(self.drafter, room)
        return chosen or self._drafted

    def learn(self, sequence: Sequence, drawn: list[int]) -> None:
        """Update acceptance rates with the tokens that a step drew, whether or not their draft was verified."""
        sequence.ngrams.learn(drawn)
        if draft := self._drafted.get(sequence):
            self._rate.update_from(drawn, draft)

    def _best_size(self, base: int, chances: list[float]) -> int:
        """How many drafted tokens to verify beside `base` certain ones; `chances` are in descending order."""
        if not chances or not (alone := self.costs(base)):
            return 0
        best, found = 0, _MIN_GAIN * base / alone
        expected = list(accumulate(chances, initial=float(base)))
        for n in _sizes(len(chances)):
            rate = expected[n] / self.costs(base + n)
            if rate > found:
                best, found = n, rate
        return best

    def _ask_drafter(self, drafter: Drafter, room: dict[Sequence, int]) -> dict[Sequence, list[int]]:
        """Drafts of the small model, equally long for all sequences.

        If no length pays, a short draft is verified every `_RETRY` steps, so that its acceptance rate stays measured.
        """
        base, acceptance = len(room), self._rate.value
        alone = self.costs(base)
        best, found, expected = 0, _MIN_GAIN * base / alone if alone else float("inf"), float(base)
        for n in range(1, MAX_DRAFT + 1):
            expected += base * acceptance**n
            rate = expected / (self.costs(base * (1 + n)) + n * self._draft_seconds) if alone else 0.0
            if rate > found:
                best, found = n, rate
        self._idle_steps += 1
        if not best and self._idle_steps < _RETRY:
            return {}
        self._idle_steps = 0
        n = best or 2
        started = time.perf_counter()
        wanted = {s: min(n, limit) for s, limit in room.items() if limit and not s.job.images}  # it sees no pictures
        drafts = drafter.draft(wanted)
        if drafts and self._read.issuperset(drafts):  # else it read a prompt first, unlike in the next draft
            self._draft_seconds = (time.perf_counter() - started) / n
        self._read.update(drafts)
        return {sequence: tokens for sequence, tokens in drafts.items() if tokens}
