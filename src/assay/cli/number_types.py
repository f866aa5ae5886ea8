"""Argument types of numeric options: each states the range that it accepts, and its error names it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

LARGEST = 2**63 - 1
MOST_TOKENS = 1 << 26  # tokens of a context or a window, as in `--ctx-size`
MOST_LAYERS = 10_000  # of a model
MOST_THREADS = 1024  # as in the thread pool of the cpu engine
MOST_SEED = 2**64 - 1


def whole(least: int, most: int = LARGEST) -> Callable[[str], int]:
    """An argument type: an integer from `least` to `most`."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a whole number (found {text!r:.60})") from None
        if value < least or (value > most and most == LARGEST):
            raise argparse.ArgumentTypeError(f"expected at least {least} (found {text:.60})")
        if value > most:
            raise argparse.ArgumentTypeError(f"expected {least} to {most} (found {text:.60})")
        return value

    return convert


def lengths(text: str) -> list[int]:
    """An argument type: lengths in tokens, separated by commas or spaces."""
    found = [whole(1, MOST_TOKENS)(part) for part in text.replace(",", " ").split()]
    if not found:
        raise argparse.ArgumentTypeError(f"expected lengths such as 1,7,33 (found {text!r:.60})")
    return found


def real(low: float = -math.inf, high: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """An argument type: a finite number from `low` to `high`; with `above`, `low` itself is excluded."""

    def convert(text: str) -> float:
        value = number(text)
        if value < low or (above and value == low) or value > high:
            raise argparse.ArgumentTypeError(f"expected {_range(low, high, above)} (found {text:.60})")
        return value

    return convert


def number(text: str) -> float:
    """An argument type: any finite number."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number (found {text!r:.60})") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a finite number (found {text:.60})")
    return value


def _range(low: float, high: float, above: bool) -> str:
    if high < math.inf:
        return f"a number {'above' if above else 'from'} {low:g} {'and at most' if above else 'to'} {high:g}"
    return f"a number above {low:g}" if above else f"at least {low:g}"
