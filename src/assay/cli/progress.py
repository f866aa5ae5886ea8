"""Progress of long work on stderr: a bar with an estimate on a terminal, a line now and then in a pipe or a file.

`cli.main` installs the listener, so every verb has it. Work of less than half a second shows nothing on a terminal, and
work of less than two seconds nothing in a pipe.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import IO

from assay.system.stages import Listener, StageStep
from assay.system.terminal import harmless

_DELAY_S = 0.5  # seconds of a stage before its bar is drawn
_PACE_S = 0.1  # seconds between two drawings
_WIDEST = 30  # characters of a bar
_QUIET_S = 2.0  # seconds of a stage before its first line in a pipe
_LINES_S = 10.0  # seconds between two lines of a stage


def on_stderr() -> Listener | None:
    """The listener for this process's stderr; None if it is closed."""
    if sys.stderr is None:
        return None
    return Bar(sys.stderr) if sys.stderr.isatty() else Lines(sys.stderr)


class Bar:
    """A listener that draws a bar on a terminal, and erases it when its stage ends or another line is printed."""

    def __init__(self, out: IO[str]) -> None:
        self._out, self._drawn = out, float("-inf")
        self._visible = False

    def step(self, step: StageStep) -> None:
        now = time.monotonic()
        if step.seconds > _DELAY_S and (step.done >= step.total > 0 or now - self._drawn > _PACE_S):
            self._drawn, self._visible = now, True
            print(f"\r\033[K{drawn(step)}", end="", file=self._out, flush=True)

    def end(self) -> None:
        if self._visible:
            self._visible = False
            print("\r\033[K", end="", file=self._out, flush=True)

    def note(self, text: str) -> None:
        self.end()
        print(harmless(text), file=self._out, flush=True)


class Lines:
    """A listener that prints a line of a long stage now and then."""

    def __init__(self, out: IO[str]) -> None:
        self._out, self._label, self._printed = out, "", float("-inf")

    def step(self, step: StageStep) -> None:
        now = time.monotonic()
        pause = _LINES_S if step.label == self._label else _QUIET_S  # stages may alternate
        if step.seconds < _QUIET_S or step.share == 1 or now - self._printed < pause:
            return
        self._label, self._printed = step.label, now
        left = f", {clock(step.left)} left" if step.left is not None else ""
        self.note(": ".join(part for part in (step.label, step.amount) if part) + left)

    def end(self) -> None: ...

    def note(self, text: str) -> None:
        print(harmless(text), file=self._out, flush=True)


def drawn(step: StageStep) -> str:
    """`fetching smollm2 ██████···· 41 of 98 MB, 0:07 left`, cut to the width of the terminal."""
    left = f", {clock(step.left)} left" if step.left is not None else ""
    sizes = f"{step.amount}{left}" if step.total > 0 else clock(step.seconds)
    columns = shutil.get_terminal_size().columns - 1
    room = min(_WIDEST, columns - len(step.label) - len(sizes) - 2) if step.total > 0 else 0
    bar = f"{'█' * round(room * step.share):·<{room}} " if room >= 5 else ""
    return harmless(f"{step.label} {bar}{sizes}")[:columns]


def clock(seconds: float) -> str:
    """`0:07`, `12:34` or `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
