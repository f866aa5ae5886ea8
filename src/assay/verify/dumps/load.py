"""A file of somebody's making as a dump: the format is told by what is in it, the names and layouts by the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from assay.errors import AssayError
from assay.models import Model
from assay.verify.dumps.formats.array_dumps import read_npy_folder, read_npz, read_tensors
from assay.verify.dumps.formats.eval_callback import is_eval_callback, read_eval_callback
from assay.verify.dumps.formats.json_lines import read_json_lines
from assay.verify.dumps.matching.by_values import can_tell
from assay.verify.dumps.matching.reading_notes import nothing_read
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.resolve import resolve


def read_dump(path: Path, patterns: Sequence[str] = ()) -> Dump:
    """The observations as they were written; the format is told by what is in the file."""
    try:
        if path.is_dir():
            return read_npy_folder(path)
        with open(path, "rb") as file:
            head = file.read(1 << 16)
    except OSError as error:
        raise AssayError(f"{path}: cannot be opened ({(error.strerror or str(error)).lower()})") from None
    if not head:
        raise AssayError(f"{path}: the file is empty")
    if head[:4] == b"PK\x03\x04":
        return read_npz(path)
    if path.suffix == ".safetensors" or head[8:10] in (b'{"', b"{}"):
        return read_tensors(path)
    if head.lstrip()[:1] == b"{" and b"assay_dump" in head.splitlines()[0]:
        return read_json_lines(path)
    if path.suffix in (".jsonl", ".npy"):
        raise AssayError(f"{path}: not an assay dump; its first line must be a header, or the folder of .npy be named")
    text = head.decode("utf-8", "replace")
    if is_eval_callback(text):
        return read_eval_callback(path)
    dump = read_log(path, patterns)
    if not dump.observations and not can_tell(dump.unread):
        raise nothing_read(dump)
    return dump


def load_dump(
    path: Path | str,
    model: Model | None = None,
    map: Mapping[str, str] | None = None,
    *,
    tokens: Sequence[int] = (),
    patterns: Sequence[str] = (),
    side: str = "",
) -> Dump:
    """A dump; with a model, its observations carry the model's names and layouts."""
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
