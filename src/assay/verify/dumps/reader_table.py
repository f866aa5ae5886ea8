"""Which reader takes a dump: a table of readers, to which other packages add rows.

A reader is a row: a test of the first bytes, and a function that reads the path. `load.py` fills the table with assay's
own formats and asks it. Call `register_reader` to add a format; nothing else in assay changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.verify.dumps.observation import Dump


@dataclass(frozen=True)
class DumpSource:
    """A path that is to be read: a folder, or a file with its first 64 KiB. `patterns` are the user's `--pattern`s."""

    path: Path
    head: bytes = b""
    patterns: tuple[str, ...] = ()

    @property
    def is_folder(self) -> bool:
        return self.path.is_dir()


@dataclass(frozen=True)
class DumpReader:
    """A file format. `takes` looks at the path and the first bytes; `read` returns names and layouts as written.

    The reader with the highest priority that takes a source reads it. assay's own have 10 (printed text) to 100.
    """

    name: str
    priority: int
    takes: Callable[[DumpSource], bool]
    read: Callable[[DumpSource], Dump]


_readers: list[DumpReader] = []


def register_reader(reader: DumpReader) -> None:
    """Add a format."""
    for other in _readers:
        if reader.name == other.name or reader.priority == other.priority:
            raise ValueError(
                f"reader {reader.name!r}: name or priority {reader.priority} is taken by {other.name!r}; choose another"
            )
    _readers.append(reader)
    _readers.sort(key=lambda row: -row.priority)


def unregister_reader(name: str) -> None:
    """Take a format out of the table."""
    _readers[:] = [row for row in _readers if row.name != name]


def registered_readers() -> Sequence[DumpReader]:
    """All formats, the one that is asked first at the front."""
    return tuple(_readers)
