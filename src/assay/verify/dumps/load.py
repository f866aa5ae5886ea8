"""Opens a dump of any format and, given a model, brings it into the model's names and layouts.

The table of readers is filled here, because this is the only module that knows all formats. Another package imports
from here to add a format (`register_reader`, `DumpReader`) or a habit of printing (`register_rule`, `pattern_rule`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from assay.errors import AssayError
from assay.models import Model
from assay.system import plugins
from assay.system.text_files import as_utf8, check_text, read_text
from assay.verify.dumps.formats.array_dumps import read_npy_folder, read_npz, read_tensors, read_torch
from assay.verify.dumps.formats.call_tree import is_call_tree, read_call_tree
from assay.verify.dumps.formats.eval_callback import is_eval_callback, read_eval_callback
from assay.verify.dumps.formats.folders import has_values, read_database, read_folder, the_log_of
from assay.verify.dumps.formats.headed_raw import is_headed_raw, read_headed_raw
from assay.verify.dumps.formats.inspector_table import is_inspector_table, read_inspector_table
from assay.verify.dumps.formats.json_arrays import is_json_arrays, read_json_arrays
from assay.verify.dumps.formats.json_lines import is_headless, read_json_lines
from assay.verify.dumps.formats.llama_debug import read_saved_logits, saved_logits
from assay.verify.dumps.formats.raw_manifest import raw_source, read_manifest
from assay.verify.dumps.formats.torch_files import is_torch_archive
from assay.verify.dumps.matching.reading_notes import nothing_read_error, says_nothing
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.other_evidence import claims_of_file
from assay.verify.dumps.printed.habits import pattern_rule, register_rule
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.printed.number_notations import in_decimal
from assay.verify.dumps.printed.number_tables import is_number_table, read_number_table
from assay.verify.dumps.reader_table import DumpReader, DumpSource, register_reader, registered_readers
from assay.verify.dumps.resolve import resolve

log = logging.getLogger("assay.plugins")

A_LOG = "a log or a dump; give what the engine printed or saved: assay diagnose MODEL LOG"

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


def read_dump(path: Path, patterns: Sequence[str] = (), *, lenient: bool = False) -> Dump:
    """The observations as they were written. The first bytes decide which reader takes the file.

    A text in which nothing can be read is an error here; with `lenient`, `resolve` raises it and names the model.
    """
    plugins.register_all("assay.readers")
    try:
        path = the_log_of(path) if path.is_dir() else path
        source = DumpSource(path, b"" if path.is_dir() else _first_bytes(path), tuple(patterns))
        reader = next(row for row in registered_readers() if _takes(row, source))
        dump = reader.read(source) if reader in _BUILT_IN else _read_with_plugin(reader, source)
    except OSError as error:
        raise AssayError(f"{path}: cannot be opened ({(error.strerror or str(error)).lower()})") from None
    if not lenient and says_nothing(dump):
        raise nothing_read_error(dump)
    return dump


def _takes(reader: DumpReader, source: DumpSource) -> bool:
    """Ask a reader. A reader of another package that fails takes nothing, so that the others still work."""
    if reader in _BUILT_IN:
        return reader.takes(source)
    try:
        return bool(reader.takes(source))
    except Exception as error:  # the code of another package may raise anything
        log.warning("reader %s: its test of %s failed (%s: %s)", reader.name, source.path, type(error).__name__, error)
        return False


def _read_with_plugin(reader: DumpReader, source: DumpSource) -> Dump:
    try:
        return reader.read(source)
    except (AssayError, OSError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise AssayError(f"{source.path}: the reader {reader.name} failed ({reason}); update its package") from error


def _first_bytes(path: Path) -> bytes:
    with open(path, "rb") as file:
        head = file.read(1 << 16)
    if not head:
        raise AssayError(f"{path}: the file is empty")
    return as_utf8(head)


def _no_dump(source: DumpSource) -> Dump:
    raise AssayError(
        f"{source.path}: not an assay dump; begin the file with a header line, or name the folder of .npy files"
    )


def _read_print(source: DumpSource) -> Dump:
    check_text(source.head, str(source.path), A_LOG)
    return replace(read_log(source.path, source.patterns), claims=claims_of_file(source.path, in_decimal))


def _is_torch(source: DumpSource) -> bool:
    """A zip file with data.pkl, or a pickle: its protocol from 2 on is the second byte."""
    if source.head[:4] == b"PK\x03\x04":
        return is_torch_archive(source.path)
    return source.head[:1] == b"\x80" and source.head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def _has_tensor_header(source: DumpSource) -> bool:
    """The length of a JSON header, then the header."""
    if source.head[8:10] not in (b'{"', b"{}"):
        return False
    return int.from_bytes(source.head[:8], "little") <= source.path.stat().st_size


def _has_raw_files(folder: Path) -> bool:
    return not any(folder.glob("*.npy")) and raw_source(folder)


_BUILT_IN = (
    DumpReader(
        "llama-debug's logits", 105, lambda s: saved_logits(s.path) is not None, lambda s: read_saved_logits(s.path)
    ),
    DumpReader(
        "folder of .pt, .tensorproto, …",
        104,
        lambda s: s.is_folder and has_values(s.path),
        lambda s: read_folder(s.path),
    ),
    DumpReader("torch.save, pickle", 103, _is_torch, lambda s: read_torch(s.path)),
    DumpReader(
        "ONNX Runtime's database", 102, lambda s: s.head[:15] == b"SQLite format 3", lambda s: read_database(s.path)
    ),
    DumpReader(
        "folder of raw numbers", 101, lambda s: s.is_folder and _has_raw_files(s.path), lambda s: read_manifest(s.path)
    ),
    DumpReader("folder of .npy", 100, lambda s: s.is_folder, lambda s: read_npy_folder(s.path)),
    DumpReader(".npz", 90, lambda s: s.head[:4] == b"PK\x03\x04", lambda s: read_npz(s.path)),
    DumpReader(
        "safetensors",
        80,
        lambda s: s.path.suffix == ".safetensors" or _has_tensor_header(s),
        lambda s: read_tensors(s.path),
    ),
    DumpReader(
        "JSON lines",
        70,
        lambda s: s.head.lstrip()[:1] == b"{" and b"assay_dump" in s.head.splitlines()[0],
        lambda s: read_json_lines(s.path),
    ),
    DumpReader("JSON lines of arrays", 68, lambda s: is_json_arrays(s.head), lambda s: read_json_arrays(s.path)),
    DumpReader("array without a header", 60, lambda s: s.path.suffix == ".npy" or is_headless(s.head), _no_dump),
    DumpReader("raw numbers behind a text", 66, lambda s: is_headed_raw(s.path), lambda s: read_headed_raw(s.path)),
    DumpReader("raw numbers with a manifest", 65, lambda s: raw_source(s.path), lambda s: read_manifest(s.path)),
    DumpReader(
        "llama-eval-callback",
        50,
        lambda s: is_eval_callback(s.head.decode("utf-8", "replace")),
        lambda s: read_eval_callback(s.path),
    ),
    DumpReader("transformers' debugger", 45, lambda s: is_call_tree(s.head), lambda s: read_call_tree(s.path)),
    DumpReader(
        "ExecuTorch's numeric gap", 40, lambda s: is_inspector_table(s.head), lambda s: read_inspector_table(s.path)
    ),
    DumpReader("table of numbers", 30, lambda s: is_number_table(s.head), lambda s: read_number_table(s.path)),
    DumpReader("printed text", 10, lambda s: True, _read_print),
)
for _row in _BUILT_IN:
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
    dump = read_dump(Path(path), patterns, lenient=model is not None)
    return dump if model is None else resolve(dump, model, map, tokens=tokens, side=side)


def read_map(path: Path) -> dict[str, str]:
    """`--map`: a JSON object from foreign names to nodes."""
    try:
        found = json.loads(read_text(path, "a map of names; write a JSON object"))
    except OSError as error:
        raise AssayError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})") from None
    except (ValueError, RecursionError) as error:
        raise AssayError(f"{path}: not a JSON map of names ({str(error).lower()})") from None
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise AssayError(f"{path}: must be a JSON object from foreign names to node names")
    return found
