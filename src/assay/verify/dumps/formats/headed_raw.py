"""Reads raw numbers behind a text that describes them, in one file.

    MYDUMP 1                             q layer=0 row=0 floats=288                {"tensors": [{"name": "q", …}]}
    ids 1 317 2518                       k layer=0 row=0 floats=288                <numbers>
    dtype f32le                          ---
    q l=0 pos=0 n=288 off=0              <numbers>
    END
    <numbers>

The text is what a manifest beside the file would be (`manifest_records.py`). Offsets count from the first number or
from the beginning of the file, in bytes or in numbers: the reading that ends where the file ends is taken.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np

from assay.errors import AssayError
from assay.verify.dumps.formats.element_types import STORED
from assay.verify.dumps.formats.manifest_records import manifest_records, text_records
from assay.verify.dumps.formats.numpy_files import MAX_MEMBERS
from assay.verify.dumps.formats.raw_entries import RawEntry
from assay.verify.dumps.formats.raw_manifest import MAX_MANIFEST, arrays_dump, entry_of
from assay.verify.dumps.observation import Dump

_FIRST = 1 << 12  # bytes that must be text before the first line ends
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_CLOSING = re.compile(
    rb"(?:[ \t]*(?:[\[<(]?/?(?:end|data|begin|binary|raw|header|payload)\b[^\n]{0,40}|[-=#*%]{2,80})?\r?\n){1,4}",
    re.IGNORECASE,
)
_FEWEST = 2  # arrays
_MOST_BETWEEN = 1 << 12  # bytes between the last line that describes an array and the first number
_TYPES = ("float32", "float16", "float64")


@dataclass(frozen=True)
class TextHeader:
    """The text before the numbers: the arrays that it names, lists of ids, and where its text ends."""

    entries: tuple[RawEntry, ...]
    ids: dict[str, list[int]]
    end: int  # of the last line that may be text
    least: int  # of the last line that names an array, or of the document


def is_headed_raw(path: Path) -> bool:
    """Whether the file begins with a text that describes the numbers behind it, and has as many as it says."""
    header = text_header(path) if path.is_file() else None
    return header is not None and _placed(header, path.stat().st_size) is not None


def text_header(path: Path) -> TextHeader | None:
    """The text of a file that goes on with raw numbers; None for other files."""
    with open(path, "rb") as file:
        data = file.read(_FIRST)
        first = _NO_TEXT.search(data)
        if data[:1] != b"{" and b"\n" not in data[: first.start() if first else None]:
            return None
        data += file.read(MAX_MANIFEST)
    found = _NO_TEXT.search(data)
    if found is None:
        return None
    text = data[: found.start()]
    if text[:1] == b"{" and (whole := _document(text)):
        text = text[:whole]
    else:
        text = text[: text.rfind(b"\n") + 1]
    records, ids = manifest_records(text.decode("utf-8", "replace"))
    entries = [entry for record in text_records(records) if (entry := entry_of(_unbound(record), path)) is not None]
    if any(entry.offset >= 0 for entry in entries):
        entries = [entry for entry in entries if entry.offset >= 0]  # the others are settings
    if not _FEWEST <= len(entries) <= MAX_MEMBERS:
        return None
    last = entries[-1].name.rpartition(".")[2].encode()
    line = text.find(b"\n", max(text.rfind(last), 0))
    least = line + 1 if line >= 0 and text[:1] != b"{" else len(text)
    closed = _CLOSING.match(text, least)
    return TextHeader(tuple(entries), ids, len(text), closed.end() if closed else least)


def read_headed_raw(path: Path) -> Dump:
    header = text_header(path)
    placed = _placed(header, path.stat().st_size) if header is not None else None
    if header is None or placed is None:
        raise AssayError(f"{path}: the numbers behind its text are not as many as the text says; it is truncated")
    return arrays_dump(path, placed, header.ids)


def _unbound(record: dict[str, object]) -> dict[str, object]:
    """The record without the file that it names: the numbers are in this one."""
    return {key: value for key, value in record.items() if key != "file"}


def _document(text: bytes) -> int:
    """The length of the JSON document at the beginning; 0 if it is none."""
    shown = text.decode("latin-1")
    try:
        return int(json.JSONDecoder().raw_decode(shown)[1])
    except (ValueError, RecursionError):
        return 0


def _placed(header: TextHeader, size: int) -> list[RawEntry] | None:
    """The entries with their offsets in the file; None if no reading ends where the file ends."""
    types = [""] if all(entry.dtype for entry in header.entries) else _TYPES
    for kind, by_number, in_bytes in product(types, (False, True), (False, True)):
        if in_bytes and not any(entry.sized for entry in header.entries):
            continue
        laid = _laid(header.entries, kind, by_number, in_bytes)
        ends = [entry.offset + _nbytes(entry) for entry in laid]
        spans = sorted(zip((entry.offset for entry in laid), ends, strict=True))
        if any(a[1] > b[0] for a, b in pairwise(spans)):
            continue
        if spans[0][0] >= header.least and max(ends) == size:
            return laid
        begin = size - max(ends)  # of the first number
        if header.least <= begin <= header.end + _MOST_BETWEEN and spans[0][0] < header.least:
            return [replace(entry, offset=entry.offset + begin) for entry in laid]
    return None


def _laid(entries: Sequence[RawEntry], kind: str, by_number: bool, in_bytes: bool) -> list[RawEntry]:
    laid, at = list[RawEntry](), 0
    for entry in entries:
        dtype = entry.dtype or kind
        width = np.dtype(STORED[dtype]).itemsize
        shape = (max(entry.sized // width, 1),) if entry.sized and in_bytes else entry.shape
        offset = at if entry.offset < 0 else entry.offset * (width if by_number else 1)
        laid.append(replace(entry, offset=offset, dtype=dtype, shape=shape, sized=0))
        at = offset + math.prod(shape) * width
    return laid


def _nbytes(entry: RawEntry) -> int:
    return entry.count * np.dtype(STORED[entry.dtype]).itemsize
