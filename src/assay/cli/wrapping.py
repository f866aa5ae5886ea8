"""An answer on a terminal: streamed as it comes, with lines that break at words.

A terminal breaks a line at its last column, in the middle of a word. Here a word that would cross it is erased and
written again on the next line. Text in a fence of code (```) is left as it is, so that a copied line stays one line.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Callable

from assay.system.terminal import harmless

_TAB = 8


class WordWrap:
    """Text in, text with line breaks and erasures out. `columns` gives the width of the terminal."""

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._column = 0  # cells of the current line
        self._word = ""  # what was written since the last place where the line may break
        self._line = ""  # the beginning of the line, by which a fence is recognised
        self._code = False
        self._width = 0

    def feed(self, text: str) -> str:
        self._width = self._columns()  # a window may be resized during an answer
        return "".join(map(self._one, text))

    def _one(self, c: str) -> str:
        if c == "\n":
            self._code ^= self._line.lstrip().startswith("```")
            self._column, self._word, self._line = 0, "", ""
            return c
        if len(self._line) < 64:
            self._line += c
        width = _TAB - self._column % _TAB if c == "\t" else cells(c)
        if self._code:
            return c
        if self._column + width < self._width:  # the last column stays free: a cursor behind it is ambiguous
            self._column += width
            self._word = "" if c.isspace() or width == 2 else self._word + c
            return c
        if c.isspace():  # the space at the end of a line becomes the line's end
            self._column, self._word = 0, ""
            return "\n"
        return self._next_line(c, width)

    def _next_line(self, c: str, width: int) -> str:
        """The character on the next line, with the word that it belongs to."""
        word, taken = ("", 0) if width == 2 else (self._word, sum(map(cells, self._word)))
        if taken >= self._column:  # the word fills the whole line: it breaks where it is
            word, taken = "", 0
        erased = f"\033[{taken}D\033[K" if taken else ""
        self._column, self._word = taken + width, "" if width == 2 else word + c
        return f"{erased}\n{word}{c}"


def cells(c: str) -> int:
    """Columns that a character takes: 2 for wide East Asian characters and emoji, 0 for marks that combine."""
    if c.isascii():
        return 1
    if unicodedata.combining(c) or unicodedata.category(c) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


class AnswerPrinter:
    """Writes the text of an answer to stdout. Control characters are escaped on a terminal, and words are kept whole;
    a pipe or a file gets the text as it is."""

    def __init__(self, *, wrap: bool) -> None:
        self._terminal = sys.stdout.isatty()
        able = self._terminal and os.environ.get("TERM") not in (None, "", "dumb")
        self._wrap = WordWrap(lambda: shutil.get_terminal_size().columns) if wrap and able else None

    def write(self, text: str) -> None:
        shown = harmless(text) if self._terminal else text
        sys.stdout.write(self._wrap.feed(shown) if self._wrap else shown)
        sys.stdout.flush()
