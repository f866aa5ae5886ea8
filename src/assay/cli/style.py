"""Colours and tables on a terminal; plain text in pipes and files."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

from assay.system.terminal import harmless

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def coloured(stream: TextIO) -> bool:
    """Whether to use colours on a stream: a terminal that has them, unless NO_COLOR is set (no-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def paint(text: str, style: str, stream: TextIO | None = None) -> str:
    """The text in a style if the stream (default: stdout) shows colours."""
    return f"\033[{_CODES[style]}m{text}\033[0m" if text and coloured(stream or sys.stdout) else text


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table. Columns in `right` are right-aligned; on a terminal, lines are cut at its width."""
    shown = [[harmless(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *shown, strict=True)]
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10**9

    def line(cells: Sequence[str]) -> str:
        padded = [
            f"{c:>{w}}" if i in right else f"{c:<{w}}" for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        ]
        text = "  ".join(padded).rstrip()
        return text if len(text) <= columns else f"{text[: columns - 1]}…"

    return "\n".join([paint(line(head), "bold"), *map(line, shown)])


def size(count: float) -> str:
    """Bytes in a readable unit."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} B"
