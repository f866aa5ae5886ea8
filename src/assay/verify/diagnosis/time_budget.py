"""How long a search may compute, and what it had to leave out.

The clock is the processor time of the calling thread, so a busy machine does not change a verdict. Only where the
machine gives the thread less than a tenth of a core, the clock on the wall counts, a tenth as fast: a user does not
wait for ever. A search that ends within its time tries everything in a fixed order: its verdict does not depend on the
speed of the machine. Loops of the search run through `TimeBudget.each` and stop when the time is up; `untried` then
names them for the user.

Touch this module to change how a deadline is kept. The default is `thresholds.SECONDS`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from assay.system.stages import Listener, StageStep, counting, listening, shown_by
from assay.verify.thresholds import BUSY, THOROUGH_SECONDS

Item = TypeVar("Item")
SEARCHING = 0.8  # share of the time for the search; the rest compares what was found with everything observed


def working_clock() -> Callable[[], float]:
    """A clock of the computing of this thread, which runs at a tenth of the speed of the wall at least."""
    began = time.thread_time(), time.monotonic()
    return lambda: max(time.thread_time() - began[0], (time.monotonic() - began[1]) / BUSY)


class TimeIsUp(Exception):
    """A stage that counts its steps went on until the time was up."""


class _Stopping:
    """A listener that passes steps on, and ends the stage when the time is up."""

    def __init__(self, budget: TimeBudget, shown: Listener | None) -> None:
        self._budget, self._shown = budget, shown

    def step(self, step: StageStep) -> None:
        if self._shown is not None:
            self._shown.step(step)
        if self._budget.over(step.label):
            raise TimeIsUp(step.label)

    def end(self) -> None:
        if self._shown is not None:
            self._shown.end()

    def note(self, text: str) -> None:
        if self._shown is not None:
            self._shown.note(text)


class TimeBudget:
    """The seconds that are left, and the stages that were cut short."""

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or working_clock()
        self.seconds, self._begun = seconds, self._clock()
        self._end = math.inf  # of the clock, inside `part`
        self._cut: dict[str, list[str]] = {}  # stages, in the order in which they were cut, and the nodes of each

    def over(self, what: str, share: float = SEARCHING) -> bool:
        """Has the search used this share of its time? Then `what` is remembered as not tried."""
        if self.seconds == math.inf or self._clock() < min(self._begun + share * self.seconds, self._end):
            return False
        node, _, stage = what.rpartition(": ")
        nodes = self._cut.setdefault(stage, [])
        if node and node not in nodes:
            nodes.append(node)
        return True

    def each(self, items: Sequence[Item], label: str, unit: str = "", share: float = SEARCHING) -> Iterator[Item]:
        """The items one after another, as a stage, until the time is up."""
        return self.counting(items, len(items), label, unit, share)

    def counting(
        self, items: Iterable[Item], total: int, label: str, unit: str = "", share: float = SEARCHING
    ) -> Iterator[Item]:
        """The items one after another, as a stage of about `total`, until the time is up."""
        for item in counting(items, total, label, unit):
            if self.over(label, share):
                return
            yield item

    @contextmanager
    def part(self, share: float) -> Iterator[Callable[[], bool]]:
        """Inside the block a search may use this share of the time that is left. Skipped work is not recorded: the
        caller has other searches to make, and may come back. The result tells whether it left something out."""
        before, now = self._cut, self._clock()
        cut: dict[str, list[str]] = {}
        self._cut = cut
        if self.seconds < math.inf:
            self._end = now + share * max(0.0, self._begun + SEARCHING * self.seconds - now)
        try:
            yield lambda: bool(cut)
        finally:
            self._cut, self._end = before, math.inf

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Inside the block every stage ends with `TimeIsUp` when the time is up."""
        if self.seconds == math.inf:
            yield
            return
        with shown_by(_Stopping(self, listening())):
            yield

    @property
    def cut(self) -> bool:
        """Was anything left out?"""
        return bool(self._cut)

    def untried(self) -> tuple[str, ...]:
        """A sentence about what was left out; none where everything was tried."""
        if not self._cut:
            return ()
        stages = "; ".join(f"{stage}{_at(nodes)}" for stage, nodes in self._cut.items())
        more = f"--thorough gives it {THOROUGH_SECONDS:g} s, " if self.seconds < THOROUGH_SECONDS else ""
        return (
            f"the search stopped after {self.seconds:.3g} s and did not finish: {stages}. {more}--seconds N gives N s",
        )


def _at(nodes: Sequence[str]) -> str:
    return "" if not nodes else f" at {nodes[0]}" + (f" and {len(nodes) - 1} more nodes" if len(nodes) > 1 else "")


UNLIMITED = TimeBudget()
