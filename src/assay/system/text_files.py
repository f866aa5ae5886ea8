"""Text that others saved. Every reader of a text file that a user names goes through here.

The text is UTF-8, or what a byte order mark states: Windows PowerShell's `>` writes UTF-16. A mark is not part of the
text. Binary data is refused by name. `expected` is two parts of that error: what a reader expects; what to do.
"""

from __future__ import annotations

import codecs
import io
import os
from pathlib import Path
from typing import BinaryIO

from assay.errors import AssayError
from assay.system.file_kinds import HEAD, marked_encoding, unlike_text

PLAIN = "a text file; name another file"  # the default of `expected`


def decode_text(data: bytes, name: str, expected: str = PLAIN, *, lenient: bool = False) -> str:
    """The text of bytes. Line ends stay. Wrong bytes are an error, or U+FFFD if `lenient`."""
    check_text(data[:HEAD], name, expected)
    encoding, mark = marked_encoding(data[:HEAD])
    try:
        return data[mark:].decode(encoding, "replace" if lenient else "strict")
    except UnicodeDecodeError as error:
        at = error.start + mark
        shown = encoding.upper().removesuffix("-LE").removesuffix("-BE")
        raise AssayError(
            f"{name}: not valid {shown} (byte 0x{data[at]:02x} at offset {at}); save it as UTF-8"
        ) from None


def read_text(path: str | os.PathLike[str], expected: str = PLAIN, *, lenient: bool = False, most: int = -1) -> str:
    """The text of a file, `most` bytes of it. Line ends become `\\n`. System errors are the caller's."""
    with open(path, "rb") as file:
        text = decode_text(file.read(most), str(path), expected, lenient=lenient)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def open_text(path: Path, expected: str = PLAIN) -> BinaryIO:
    """A file as UTF-8 without a mark, to be read line by line. Wrong bytes of UTF-16 become U+FFFD."""
    file = open(path, "rb")  # noqa: SIM115  the caller closes it
    try:
        head = file.read(HEAD)
        check_text(head, str(path), expected)
        encoding, mark = marked_encoding(head)
        file.seek(mark)
    except BaseException:
        file.close()
        raise
    return file if encoding == "utf-8" else io.BufferedReader(_Recoded(file, encoding))


def check_text(head: bytes, name: str, expected: str = PLAIN) -> None:
    """Refuse a file that is known to be something else."""
    if found := unlike_text(head):
        what, _, action = expected.partition("; ")
        raise AssayError(f"{name}: is {found} (expected {what}); {action}")


def as_utf8(head: bytes) -> bytes:
    """The first bytes of a marked text as UTF-8 without the mark; other bytes as they are."""
    encoding, mark = marked_encoding(head)
    if encoding == "utf-8":
        return head[mark:]
    return codecs.getincrementaldecoder(encoding)("replace").decode(head[mark:]).encode()


class _Recoded(io.RawIOBase):
    """UTF-8 of a file in another encoding."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            data = self._file.read(1 << 16)
            self._ready = self._decoder.decode(data, final=not data).encode(errors="replace")
            if not data:
                break
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()
