"""Progress of long work on stderr: a bar with an estimate on a terminal, one line per stage elsewhere.

    with progress("tensors") as report:
        report("quantising", done, total)

On a terminal, work of less than half a second shows nothing.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from assay.system.terminal import harmless

Tell = Callable[[str, int, int], None]  # stage, amount done, total amount
_DELAY = 0.5  # seconds before anything is drawn
_PACE = 0.1  # seconds between two drawings
_WIDEST = 30  # characters of a bar


@contextmanager
def progress(unit: str = "MB") -> Iterator[Tell]:
    """A function that reports progress. With the unit MB the amounts are bytes; other units are counted as they are."""
    live = sys.stderr.isatty()
    scale = 1e6 if unit == "MB" else 1
    stage, begun, drawn = "", 0.0, 0.0

    def tell(what: str, done: int, total: int) -> None:
        nonlocal stage, begun, drawn
        now = time.monotonic()
        if what != stage:
            stage, begun = what, now
            if not live:
                print(harmless(f"{what} ({total / scale:.0f} {unit})"), file=sys.stderr, flush=True)
        if live and now - begun > _DELAY and (done >= total or now - drawn > _PACE):
            drawn = now
            print(f"\r\033[K{_line(what, done, total, now - begun, scale, unit)}", end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


@contextmanager
def loading() -> Iterator[Tell]:
    """Progress of loading a file. It prints nothing without a terminal, and is erased at the end."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    with progress() as tell:
        yield tell


def _line(what: str, done: int, total: int, seconds: float, scale: float, unit: str) -> str:
    """`fetching smollm2 ██████···· 41 of 98 MB, 0:07 left`, cut to the width of the terminal."""
    share = min(done / total, 1.0) if total > 0 else 0.0
    left = f", {clock(seconds * (1 - share) / share)} left" if 0 < share < 1 and seconds > 1 else ""
    sizes = f"{done / scale:.0f} of {total / scale:.0f} {unit}{left}"
    columns = shutil.get_terminal_size().columns - 1
    room = min(_WIDEST, columns - len(what) - len(sizes) - 2)
    bar = f"{'█' * round(room * share):·<{room}} " if room >= 5 else ""
    return harmless(f"{what} {bar}{sizes}")[:columns]


def clock(seconds: float) -> str:
    """`0:07`, `12:34` or `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def counting(what: str, unit: str = "nodes") -> Iterator[Callable[[int, int], None]]:
    """Progress of work with one stage. It prints nothing without a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with progress(unit) as tell:
        yield lambda done, total: tell(what, done, total)
