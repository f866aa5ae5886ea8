"""Progress of long work. The code that works names its stages; the caller that waits decides how they are shown.

    with stage("comparing", len(graph), "nodes") as tell:     # the code that works
        for i, node in enumerate(graph):
            ...
            tell(i + 1)

    with shown_by(listener):                                  # the caller: a terminal, a pipe, a notebook, a callback
        diagnose(...)

The listener is a context variable, so functions in between pass nothing on. Without a listener a stage costs nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import IO, Protocol, TypeVar

BYTES = "B"  # the unit of amounts that are shown in MB
PERCENT = "%"  # the unit of amounts that mean nothing to a reader
PACE_S = 0.05  # seconds between two steps of one stage; its first and its last step always arrive
_SENT_S = 0.2  # seconds between two lines of a child process

Item = TypeVar("Item")
Report = Callable[[str, int, int], None]  # label, amount done, total amount (0: unknown)


@dataclass(frozen=True)
class StageStep:
    """The position of a stage. A `total` of 0 means that the amount is unknown."""

    label: str
    done: int
    total: int
    unit: str = ""
    seconds: float = 0.0  # since the stage began

    @property
    def share(self) -> float:
        return min(1.0, max(0.0, self.done / self.total)) if self.total > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Estimated seconds to the end of the stage; None in its first second, and without a total."""
        return self.seconds * (1 - self.share) / self.share if 0 < self.share < 1 and self.seconds > 1 else None

    @property
    def amount(self) -> str:
        """`41 of 98 MB`, `12 of 448 nodes` or `43 %`; empty without a total."""
        if self.total <= 0:
            return ""
        if self.unit == PERCENT:
            return f"{100 * self.share:.0f} %"
        scale, unit = (1e6, "MB") if self.unit == BYTES else (1, self.unit)
        return f"{self.done / scale:.0f} of {self.total / scale:.0f} {unit}".rstrip()


class Listener(Protocol):
    """Shows progress."""

    def step(self, step: StageStep) -> None:
        """The stage has come this far."""

    def end(self) -> None:
        """The stage has ended: erase what is drawn. It is also called before other output is printed."""

    def note(self, text: str) -> None:
        """One line that stays."""


class Tell:
    """Reports the steps of one stage, at most one each PACE_S. Threads may call it."""

    def __init__(self, listener: Listener | None, label: str, total: int, unit: str) -> None:
        self.listener, self.label, self.total, self.unit = listener, label, total, unit
        self._begun, self._told = time.monotonic(), float("-inf")

    def __call__(self, done: int, total: int | None = None) -> None:
        if self.listener is None:
            return
        self.total = self.total if total is None else total
        now = time.monotonic()
        if now - self._told >= PACE_S or (self.total and done >= self.total):
            self._told = now
            self.listener.step(StageStep(self.label, done, self.total, self.unit, now - self._begun))


_listener: ContextVar[Listener | None] = ContextVar("progress", default=None)


@contextmanager
def shown_by(listener: Listener | None) -> Iterator[None]:
    """Inside the block, `listener` shows the progress; None shows nothing."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
        if listener is not None:
            listener.end()


@contextmanager
def stage(label: str, total: int = 0, unit: str = "") -> Iterator[Tell]:
    """A stage of long work. The block calls the result with the amount done, and with the total once it is known."""
    tell = Tell(_listener.get(), label, total, unit)
    tell(0)
    try:
        yield tell
    finally:
        if tell.listener is not None:
            tell.listener.end()


@contextmanager
def reports(given: Report | None = None, unit: str = BYTES) -> Iterator[Report]:
    """A function of (label, done, total) for work whose stages follow one another. `given` replaces the listener."""
    listener = _listener.get()
    tell: Tell | None = None
    if given is not None:
        yield given
        return

    def report(label: str, done: int, total: int) -> None:
        nonlocal tell
        if tell is None or tell.label != label:
            tell = Tell(listener, label, total, unit)
        tell(done, total)

    try:
        yield report
    finally:
        if listener is not None:
            listener.end()


def counting(items: Iterable[Item], total: int, label: str, unit: str = "") -> Iterator[Item]:
    """The items one after another, as a stage of about `total`."""
    with stage(label, total, unit) as tell:
        for done, item in enumerate(items):
            tell(min(done, total))
            yield item


def each(items: Sequence[Item], label: str, unit: str = "") -> Iterator[Item]:
    """The items one after another, as a stage."""
    return counting(items, len(items), label, unit)


def note(text: str) -> None:
    """Give the listener one line about the work."""
    listener = _listener.get()
    if listener is not None:
        listener.note(text)


def unseen() -> None:
    """Erase what the listener has drawn, because other output follows."""
    listener = _listener.get()
    if listener is not None:
        listener.end()


def listening() -> Listener | None:
    """The listener of this context."""
    return _listener.get()


class Callback:
    """A listener that calls a function with label, done and total. A note is a label with 0 of 0."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def step(self, step: StageStep) -> None:
        self._report(step.label, step.done, step.total)

    def end(self) -> None: ...

    def note(self, text: str) -> None:
        self._report(text, 0, 0)


class JsonLines:
    """A listener of a child process: one JSON object a line, at most five a second while the label stays."""

    def __init__(self, out: IO[str]) -> None:
        self._out, self._label, self._sent = out, "", float("-inf")

    def step(self, step: StageStep) -> None:
        now = time.monotonic()
        if step.label == self._label and now - self._sent < _SENT_S and step.done < step.total:
            return
        self._label, self._sent = step.label, now
        self._write(step.label, step.done, step.total, step.unit)

    def end(self) -> None: ...

    def note(self, text: str) -> None:
        self._write(text, 0, 0, "")

    def _write(self, label: str, done: int, total: int, unit: str) -> None:
        line = {"event": "progress", "label": label, "done": done, "total": total, "unit": unit}
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()
