"""Reads raw numbers in one file with a manifest beside it: a line or a JSON object for each array, with its offset.

People write such pairs from C and Rust in their own words. Of a manifest line these parts are read, in any order:

    a name                     the first word, or the key `name`; `q.0` and `layer=0 q` are of layer 0
    offset, start              bytes from the beginning of the data
    shape, dims | count, n     the array's shape or its number of values
    f32, f16, bf16, f64, …     the type of the values; float32 if none is given
    tok, pos, row              the token whose row it is; rows of one name are joined

A line with `tokens` or `ids` and whole numbers gives the ids.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.verify.dumps.formats.array_dumps import from_arrays
from assay.verify.dumps.formats.element_types import STORED, as_numbers
from assay.verify.dumps.formats.numpy_files import MAX_AXES, MAX_MEMBERS, Arrays, read_raw
from assay.verify.dumps.observation import Dump

Array = NDArray[Any]
MAX_MANIFEST = 16 << 20  # bytes
_DATA = (".bin", ".raw", ".dat", ".f32")
_BESIDE = (
    ".manifest.txt",
    ".manifest.json",
    ".manifest",
    ".json",
    ".txt",
    ".idx",
    ".index",
    ".toc",
    ".csv",
    ".tsv",
    ".jsonl",
)
_TYPES = {
    "f32": "float32", "fp32": "float32", "float": "float32", "f16": "float16", "fp16": "float16", "half": "float16",
    "bf16": "bfloat16", "f64": "float64", "double": "float64", "i32": "int32", "i64": "int64", "u8": "uint8",
    **{name: name for name in STORED},
}  # fmt: skip
_KEYS = {
    "offset": "offset", "start": "offset", "at": "offset", "byte_offset": "offset", "shape": "shape", "dims": "shape",
    "count": "count", "n": "count", "len": "count", "numel": "count", "size": "count", "elems": "count",
    "tok": "row", "token": "row", "pos": "row", "row": "row", "position": "row", "layer": "layer", "l": "layer",
    "dtype": "dtype", "type": "dtype", "name": "name", "node": "name", "tensor": "name",
}  # fmt: skip
_PAIR = re.compile(r"([A-Za-z_]{1,16})\s{0,3}[=:]\s{0,3}(\[[\d, x×]{0,80}\]|\([\d, x×]{0,80}\)|[\w.-]{1,80})")
_IDS = re.compile(
    r"^\W{0,4}(?:prompt[ _]?)?(?:tokens|token[ _]ids|ids|prompt)\W{1,4}([\d, \]]{1,100000})$", re.IGNORECASE
)


@dataclass(frozen=True)
class RawEntry:
    """An array of the data file."""

    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: str
    row: int | None


def manifest_of(path: Path) -> Path | None:
    """The manifest beside a file of raw numbers; None if there is none."""
    if path.suffix not in _DATA:
        return None
    for name in (path.stem + end for end in _BESIDE):
        if (
            (file := path.with_name(name)).is_file()
            and file.stat().st_size <= MAX_MANIFEST
            and b"off" in file.read_bytes()
        ):
            return file
    alone = [f for f in sorted(path.parent.glob("*manifest*"))[:2] if f.is_file() and f != path]
    return alone[0] if len(alone) == 1 and alone[0].stat().st_size <= MAX_MANIFEST else None


def read_manifest(path: Path) -> Dump:
    """The arrays that the manifest lists."""
    manifest = manifest_of(path)
    assert manifest is not None
    text = manifest.read_text("utf-8", "replace")
    tokens, entries = _parsed(manifest, text)
    size = path.stat().st_size
    for entry in entries:
        end = entry.offset + math.prod(entry.shape) * np.dtype(STORED[entry.dtype]).itemsize
        if end > size:
            raise AssayError(f"{path}: {entry.name}: ends at byte {end}, the file has {size}; it is truncated")
    by_name: dict[str, list[RawEntry]] = {}
    for entry in entries:
        by_name.setdefault(entry.name, []).append(entry)
    arrays: Arrays = {"tokens": ((len(tokens),), partial(np.asarray, tokens, np.int64))} if tokens else {}
    for name, several in by_name.items():
        arrays[name] = _joined(path, several)
    return from_arrays(path, arrays)


def _parsed(path: Path, text: str) -> tuple[list[int], list[RawEntry]]:
    tokens: list[int] = []
    entries: list[RawEntry] = []
    for item in _items(text):
        if isinstance(item, list):
            tokens = tokens or item
        elif (entry := _entry(item)) is not None:
            entries.append(entry)
        if len(entries) > MAX_MEMBERS:
            raise AssayError(f"{path}: more than {MAX_MEMBERS} arrays")
    if not entries:
        raise AssayError(f"{path}: no line with a name, an offset and a shape or count; write one line for each array")
    return tokens, entries


def _items(text: str) -> Iterator[dict[str, Any] | list[int]]:
    """The entries as plain keys and values, and the list of ids."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            yield from _json_items(json.loads(text), "", 0)
            return
        except (ValueError, RecursionError):
            pass  # JSON lines
    head: list[str] = []
    for line in text.splitlines():
        if m := _IDS.match(line):
            yield [int(n) for n in re.findall(r"\d{1,9}", m[1])]
        elif line.lstrip()[:1] == "{":
            try:
                yield from _json_items(json.loads(line), "", 0)
            except (ValueError, RecursionError):
                continue
        elif pairs := _PAIR.findall(line):
            words = _PAIR.sub(" ", line).split()
            kind = next((w for w in words[1:] if w.lower() in _TYPES), "")
            yield {"name": words[0] if words else "", "dtype": kind, **{key.lower(): value for key, value in pairs}}
        elif re.search(r"[\t,]", line):
            cells = [c.strip() for c in re.split(r"[\t,]", line)]
            if "offset" in (c.lower() for c in cells):
                head = [c.lower() for c in cells]
            elif len(cells) == len(head):
                yield dict(zip(head, cells, strict=True))


def _json_items(value: Any, name: str, depth: int) -> Iterator[dict[str, Any] | list[int]]:
    if depth > 4:
        return
    if isinstance(value, list) and value and all(type(v) is int for v in value):
        if name in ("tokens", "ids", "token_ids", "prompt", "input_ids"):
            yield value
    elif isinstance(value, list):
        for item in value[: MAX_MEMBERS + 1]:
            yield from _json_items(item, "", depth + 1)
    elif isinstance(value, dict) and {"offset", "start", "byte_offset"} & set(value):
        yield {"name": name, **value}
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _json_items(item, str(key), depth + 1)


def _entry(item: dict[str, Any]) -> RawEntry | None:
    known: dict[str, Any] = {}
    for key, value in item.items():
        if (means := _KEYS.get(str(key).lower())) is not None and value not in ("", None):
            known.setdefault(means, value)
    offset, shape = _number(known.get("offset")), known.get("shape")
    dims = [int(n) for n in re.findall(r"\d{1,9}", str(shape))] if shape is not None else []
    count = _number(known.get("count"))
    dims = dims or ([] if count is None else [count])
    kind = _TYPES.get(str(known.get("dtype", "f32")).lower().removeprefix("torch."), "")
    name = str(known.get("name", ""))[:200]
    if offset is None or offset < 0 or not dims or len(dims) > MAX_AXES or not kind or not name:
        return None
    layer, row = _number(known.get("layer")), _number(known.get("row"))
    if layer is None and (m := re.fullmatch(r"(.+?)[.\-_/@](-?\d{1,4})", name)):
        name, layer = m[1], int(m[2])
    if layer is not None and layer >= 0 and not re.search(r"layers?\.\d", name):
        name = f"layers.{layer}.{name}"
    return RawEntry(name, offset, tuple(dims), kind, row)


def _number(value: Any) -> int | None:
    return int(value) if re.fullmatch(r"-?\d{1,15}", str(value)) else None


def _joined(path: Path, several: list[RawEntry]) -> tuple[tuple[int, ...], Any]:
    """One array of all rows, if each token has its own entry; else the first entry."""
    rows = {entry.row: entry for entry in several}
    first = several[0]
    if len(several) == 1 or sorted(rows, key=lambda r: -1 if r is None else r) != list(range(len(several))):
        return first.shape, partial(_read, path, first)
    if len({entry.shape for entry in several}) > 1:
        return first.shape, partial(_read, path, first)
    ordered = [rows[i] for i in range(len(several))]
    return (len(several), *first.shape), lambda: np.stack([_read(path, entry) for entry in ordered])


def _read(path: Path, entry: RawEntry) -> Array:
    raw = read_raw(f"{path}: {entry.name}", path, entry.offset, math.prod(entry.shape), STORED[entry.dtype])
    return as_numbers(raw, entry.dtype).reshape(entry.shape)
