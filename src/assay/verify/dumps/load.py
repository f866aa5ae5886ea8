"""Opens a dump of any format and, given a model, brings it into the model's names and layouts.

The table of readers is filled here, because this is the only module that knows all formats. Another package imports
from here to add a format (`register_reader`, `DumpReader`) or a habit of printing (`register_rule`, `pattern_rule`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from assay.errors import AssayError
from assay.models import Model
from assay.verify.dumps.formats.array_dumps import read_npy_folder, read_npz, read_tensors
from assay.verify.dumps.formats.eval_callback import is_eval_callback, read_eval_callback
from assay.verify.dumps.formats.json_lines import read_json_lines
from assay.verify.dumps.matching.by_values import can_identify
from assay.verify.dumps.matching.reading_notes import nothing_read_error
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.printed.habits import pattern_rule, register_rule
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.reader_table import DumpReader, DumpSource, register_reader, registered_readers
from assay.verify.dumps.resolve import resolve

__all__ = [
    "DumpReader",
    "DumpSource",
    "load_dump",
    "pattern_rule",
    "read_dump",
    "read_map",
    "register_reader",
    "register_rule",
]


def read_dump(path: Path, patterns: Sequence[str] = ()) -> Dump:
    """The observations as they were written. The first bytes decide which reader takes the file."""
    try:
        source = DumpSource(path, b"" if path.is_dir() else _first_bytes(path), tuple(patterns))
        reader = next(row for row in registered_readers() if row.takes(source))
        return reader.read(source)
    except OSError as error:
        raise AssayError(f"{path}: cannot be opened ({(error.strerror or str(error)).lower()})") from None


def _first_bytes(path: Path) -> bytes:
    with open(path, "rb") as file:
        head = file.read(1 << 16)
    if not head:
        raise AssayError(f"{path}: the file is empty")
    return head


def _no_dump(source: DumpSource) -> Dump:
    raise AssayError(
        f"{source.path}: not an assay dump; begin the file with a header line, or name the folder of .npy files"
    )


def _read_print(source: DumpSource) -> Dump:
    dump = read_log(source.path, source.patterns)
    if not dump.observations and not can_identify(dump.unread):
        raise nothing_read_error(dump)
    return dump


for _row in (
    DumpReader("folder of .npy", 100, lambda s: s.is_folder, lambda s: read_npy_folder(s.path)),
    DumpReader(".npz", 90, lambda s: s.head[:4] == b"PK\x03\x04", lambda s: read_npz(s.path)),
    DumpReader(
        "safetensors",
        80,
        lambda s: s.path.suffix == ".safetensors" or s.head[8:10] in (b'{"', b"{}"),
        lambda s: read_tensors(s.path),
    ),
    DumpReader(
        "JSON lines",
        70,
        lambda s: s.head.lstrip()[:1] == b"{" and b"assay_dump" in s.head.splitlines()[0],
        lambda s: read_json_lines(s.path),
    ),
    DumpReader("array without a header", 60, lambda s: s.path.suffix in (".jsonl", ".npy"), _no_dump),
    DumpReader(
        "llama-eval-callback",
        50,
        lambda s: is_eval_callback(s.head.decode("utf-8", "replace")),
        lambda s: read_eval_callback(s.path),
    ),
    DumpReader("printed text", 10, lambda s: True, _read_print),
):
    register_reader(_row)


def load_dump(
    path: Path | str,
    model: Model | None = None,
    map: Mapping[str, str] | None = None,
    *,
    tokens: Sequence[int] = (),
    patterns: Sequence[str] = (),
    side: str = "",
) -> Dump:
    """Read a dump. With a model, its observations carry the model's names and layouts."""
    dump = read_dump(Path(path), patterns)
    return dump if model is None else resolve(dump, model, map, tokens=tokens, side=side)


def read_map(path: Path) -> dict[str, str]:
    """`--map`: a JSON object from foreign names to nodes."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise AssayError(f"{path}: not a JSON map of names ({str(error).lower()})") from None
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise AssayError(f"{path}: must be a JSON object from foreign names to node names")
    return found
