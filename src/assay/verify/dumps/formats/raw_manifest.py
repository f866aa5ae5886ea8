"""Reads raw numbers with a description beside them: a manifest of one or several files, or the files' own names.

`manifest_records.py` reads the text of a manifest. Here a record becomes an entry: a file, a name, a shape, a type.
The size of the file decides what its manifest leaves open: whether offsets and sizes count bytes or elements, and
which type the numbers have. Without offsets, the arrays follow each other.

    an entry for each token (`tok`, `pos`, `row`)    the rows of one name are joined
    an entry for each step (`step`, or other files)  the steps are joined, if ids are given for all of them
    no manifest                                      name, shape and type from the file's name: `q-0_8x64.f32`
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.system.text_files import read_text
from assay.verify.dumps.formats.array_dumps import from_arrays
from assay.verify.dumps.formats.call_steps import join_steps
from assay.verify.dumps.formats.element_types import STORED, element_type, half_type
from assay.verify.dumps.formats.field_checks import token_list
from assay.verify.dumps.formats.manifest_records import DATA, Record, manifest_records, text_records, whole_numbers
from assay.verify.dumps.formats.module_names import GENERATED, TOKENS
from assay.verify.dumps.formats.numpy_files import MAX_AXES, MAX_MEMBERS, Arrays
from assay.verify.dumps.formats.raw_entries import JoinedRows, RawEntry, joined_rows
from assay.verify.dumps.observation import Dump

Array = NDArray[Any]
MAX_MANIFEST = 16 << 20  # bytes
_TEXTS = (".json", ".jsonl", ".txt", ".toml", ".yaml", ".yml", ".idx", ".index", ".toc", ".csv", ".tsv", ".manifest",
          ".meta", ".hdr", ".ini", ".md", ".lst", ".list", ".shape", ".info", ".cfg")  # fmt: skip
_IN_NAME = re.compile(r"(?<![A-Za-z0-9])\[?(\d{1,7}(?:[x×,]\s?\d{1,7})+)\]?(?![A-Za-z0-9])")
_TRAILING = re.compile(r"(?:[-_.]\d{1,7}){1,4}$")
_MOST_FILES = 4096


def raw_source(path: Path) -> bool:
    """Whether the path is raw numbers: a data file, a folder of them, or a manifest of such files."""
    if path.is_dir():
        return bool(_data_files(path))
    if path.suffix.lower() in DATA:
        return True
    if path.suffix.lower() not in _TEXTS or path.stat().st_size > MAX_MANIFEST:
        return False
    beside = _data_files(path.parent)
    text = _words_of(path) if beside else ""
    entries = _entries_of(path, text, beside)[0] if beside else []
    prose = text.lstrip()[:1] not in ("{", "[") and 8 * len(entries) < len(text.splitlines())
    return bool(entries) and not prose  # a log beside other files has few lines that read like an entry


def manifest_of(path: Path) -> Path | None:
    """The manifest beside a file of raw numbers; None without a manifest."""
    folder = path if path.is_dir() else path.parent
    texts = [f for f in _files(folder) if f.suffix.lower() in _TEXTS and f.stat().st_size <= MAX_MANIFEST]
    if path.is_dir():
        twins = {f.stem for f in _data_files(path)}
        texts = [f for f in texts if f.stem not in twins or len(twins) == 1]
        near = texts
    else:
        near = [f for f in texts if _stem(f) == path.stem or f.stem == path.name]
        near += [f for f in texts if f not in near and re.search(r"manifest|index|meta|toc", f.name, re.IGNORECASE)]
    beside = [path] if path.is_file() else _data_files(folder)
    for file in (*near, *(f for f in texts if f not in near and not path.is_dir())):
        text = _words_of(file)
        if file not in near and path.name not in text:
            continue
        if _entries_of(file, text, beside)[0]:
            return file
    return None


def read_manifest(path: Path) -> Dump:
    """The arrays of a data file, of a manifest, or of a folder of data files."""
    beside = _data_files(path if path.is_dir() else path.parent)
    is_text = path.is_file() and path.suffix.lower() not in DATA
    manifest = path if is_text else manifest_of(path)
    if manifest is not None:
        text = _words_of(manifest)
        entries, ids = _entries_of(manifest, text, beside if is_text or path.is_dir() else [path])
    else:
        entries, ids = _named_files(path, beside)
    if not entries:
        raise AssayError(
            f"{path}: no array whose name and shape are known (found {_shown(beside)}); write a line for each array, "
            'such as {"name": "l_out-0", "file": "dump.bin", "dtype": "f32", "shape": [8, 576], "offset": 0}, into '
            "a manifest.json beside it"
        )
    if len(entries) > MAX_MEMBERS:
        raise AssayError(f"{path}: more than {MAX_MEMBERS} arrays")
    placed = [entry for file in dict.fromkeys(e.file for e in entries) for entry in _placed(file, entries)]
    return arrays_dump(path, placed, ids)


def _words_of(file: Path) -> str:
    """The text of a file that may be a manifest; nothing if the file is no text after all."""
    try:
        return read_text(file, lenient=True)
    except AssayError:
        return ""


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for file in folder.iterdir():
        if file.is_file():
            found.append(file)
        if len(found) > _MOST_FILES:
            break
    return sorted(found, key=_natural)


def _natural(file: Path) -> list[tuple[int, str]]:
    """Layer 10 comes behind layer 9."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d{1,9})", file.name)]


def _data_files(folder: Path) -> list[Path]:
    return [f for f in _files(folder) if f.suffix.lower() in DATA]


def _stem(file: Path) -> str:
    """`dump` of dump.manifest.txt, dump.bin.json and dump.json."""
    return re.sub(r"(?:\.(?:manifest|meta|index|bin|raw|dat|f32))+$", "", file.stem)


def _shown(files: Sequence[Path]) -> str:
    names = ", ".join(f"{f.name} with {f.stat().st_size} bytes" for f in files[:2])
    return f"{names}{f' and {len(files) - 2} more' if len(files) > 2 else ''}" or "no data file"


def _entries_of(manifest: Path, text: str, beside: Sequence[Path]) -> tuple[list[RawEntry], dict[str, list[int]]]:
    """The entries of a manifest whose data file is there."""
    records, ids = manifest_records(text)
    by_name = {f.name: f for f in beside}
    found = []
    for record in text_records(records):
        file = _file_of(record, manifest, beside, by_name)
        entry = None if file is None else entry_of(record, file)
        if entry is not None:
            found.append(entry)
    return found, ids


def _file_of(record: Record, manifest: Path, beside: Sequence[Path], by_name: dict[str, Path]) -> Path | None:
    """The data file of a record: the one it names, the one named after it or after the manifest, or the only one."""
    if said := str(record.get("file", "")):
        return by_name.get(re.split(r"[/\\]", said)[-1])
    if len(beside) == 1:
        return beside[0]
    own = [f for f in beside if f.stem == str(record.get("name", ""))]
    same = [f for f in beside if f.stem == _stem(manifest)]
    found = own or same
    return found[0] if found else None


def entry_of(record: Record, file: Path) -> RawEntry | None:
    """The array of a file that a record describes; None if its name, its size or its type is not known."""
    dims = whole_numbers(record.get("shape"))
    if not dims and (cols := _number(record.get("cols"))):
        dims = [_number(record.get("rows")) or 1, cols]
    spelled = str(record.get("dtype", "")) or file.suffix[1:]
    kind = element_type(spelled)
    if kind is None and record.get("dtype"):
        return None
    dtype, big = kind or ("", False)
    big = big or str(record.get("order", "")).lower().startswith(("b", ">"))
    width = np.dtype(STORED[dtype or "float32"]).itemsize
    offset, nbytes, sized = _number(record.get("offset")), _number(record.get("bytes")), _number(record.get("length"))
    ends = whole_numbers(record.get("range"))
    if len(ends) == 2 and ends[0] < ends[1]:
        offset, nbytes = ends[0], ends[1] - ends[0]
    count = _number(record.get("count"))
    dims = dims or ([count] if count else [nbytes // width] if nbytes else [sized] if sized else [])
    name = str(record.get("name") or (_name_in(file)[0] if record.get("file") else ""))[:200]
    if (offset is not None and offset < 0) or not all(dims) or len(dims) > MAX_AXES or not name:
        return None
    layer, row, head = (_number(record.get(key)) for key in ("layer", "row", "head"))
    row, head = (None if at is None or at < 0 else at for at in (row, head))
    open_size = sized or 0 if not (record.get("shape") or count or nbytes or record.get("cols")) else 0
    step = str(record.get("step", "")) or (file.name if record.get("file") else "")
    return RawEntry(
        file, _with_layer(name, layer), -1 if offset is None else offset, tuple(dims), dtype, row, head, step, big,
        open_size,
    )  # fmt: skip


def _with_layer(name: str, layer: int | None) -> str:
    """The name with the layer in front of it: `q.0` and `layer=0 q` are `layers.0.q`."""
    if layer is None and (m := re.fullmatch(r"(.+?)[.\-_/@](-?\d{1,4})", name)) and not re.search(r"\d", m[1]):
        name, layer = m[1], int(m[2])
    if layer is not None and layer >= 0 and not re.search(r"(?:layers?|blk|blocks?|\bh|\bl)[._-]?\d", name, re.I):
        name = f"layers.{layer}.{name}"
    return name


def _number(value: Any) -> int | None:
    return int(value) if re.fullmatch(r"-?\d{1,15}", str(value)) else None


def _named_files(path: Path, beside: Sequence[Path]) -> tuple[list[RawEntry], dict[str, list[int]]]:
    """Entries of files that no manifest describes: a text of the same name, or the file's name and size."""
    folder = path if path.is_dir() else path.parent
    texts = [f for f in _files(folder) if f.suffix.lower() in _TEXTS and f.stat().st_size <= MAX_MANIFEST]
    found, ids = list[RawEntry](), dict[str, list[int]]()
    for text in texts:
        records, lists = manifest_records(_words_of(text))
        ids |= lists
        if text.stem.lower() in TOKENS and not lists:
            ids["tokens"] = whole_numbers(_words_of(text)[: 1 << 20])
    for file in beside if path.is_dir() else [path]:
        name, dims, kind = _name_in(file)
        if name.lower() in (*TOKENS, *GENERATED):
            ids[name.lower()] = _ids_of(file)
            continue
        twin = next((t for t in texts if _stem(t) == file.stem or t.stem == file.name), None)
        said = _words_of(twin) if twin is not None else ""
        records = list(text_records(manifest_records(said)[0])) if said else []
        record: Record = records[0] if records else {"shape": whole_numbers(said[:200])} if said else {}
        record = {"name": name, **({"dtype": kind} if kind else {}), **record}
        if twin is not None and not records and not whole_numbers(said[:200]):
            continue  # a text beside it that describes nothing
        if not whole_numbers(record.get("shape")) and not record.keys() & {"count", "bytes", "length", "cols"}:
            width = np.dtype(STORED[(element_type(str(record.get("dtype", ""))) or ("float32", False))[0]]).itemsize
            record["shape"] = dims or [file.stat().st_size // width]
        step = re.search(r"(?:step|pass|call)[-_]?(\d{1,4})", file.stem, re.IGNORECASE)
        entry = entry_of(record, file)
        if entry is not None and file.stat().st_size:
            found.append(replace(entry, step=step[1] if step else ""))
    return found, ids


def _name_in(file: Path) -> tuple[str, list[int], str]:
    """Name, shape and type that a file's name gives. A shape counts if the file has its size."""
    stem, kind = file.stem, ""
    for part in re.split(r"[-_.]", stem)[1:]:
        if element_type(part) and re.search(r"\d", part):
            kind = part
            stem = re.sub(rf"[-_.]{re.escape(part)}(?=$|[-_.])", "", stem, count=1)
            break
    size = file.stat().st_size if file.is_file() else 0
    widths = {np.dtype(STORED[element_type(kind)[0]]).itemsize} if element_type(kind) else {2, 4, 8}  # type: ignore[index]
    if m := _IN_NAME.search(stem):
        dims = whole_numbers(m[1])
        if any(math.prod(dims) * width == size for width in widths):
            return (stem[: m.start()] + stem[m.end() :]).strip("-_. "), dims, kind
    if m := _TRAILING.search(stem):
        numbers = whole_numbers(m[0])
        for k in range(len(numbers), 1, -1):
            dims = numbers[-k:]
            if all(dims) and any(math.prod(dims) * width == size for width in widths):
                return re.sub(rf"(?:[-_.]\d{{1,7}}){{{k}}}$", "", stem), dims, kind
    return stem, [], kind


def _ids_of(file: Path) -> list[int]:
    """Token ids of a raw file: 32 bits each, or 64 where every second half is zero."""
    raw = np.fromfile(file, "<i4", 1 << 20)
    wide = raw.size > 1 and raw.size % 2 == 0 and not raw[1::2].any()
    return [int(t) for t in (raw[::2] if wide else raw)]


def _placed(file: Path, entries: Iterable[RawEntry]) -> list[RawEntry]:
    """The entries of a file with their offsets in bytes, under the reading that fits the file's size best.

    Readings: the type of the numbers, where none is given; offsets in bytes or elements; sizes in bytes or elements.
    """
    mine = [e for e in entries if e.file == file]
    size = file.stat().st_size
    types = [""] if all(e.dtype for e in mine) else ["float32", "float16", "float64"]
    best: tuple[int, list[RawEntry]] | None = None
    first: list[RawEntry] = []
    for kind, by_element, in_bytes in product(types, (False, True), (False, True)):
        if in_bytes and not any(e.sized for e in mine):
            continue
        at, placed = 0, list[RawEntry]()
        for entry in mine:
            dtype = entry.dtype or kind
            width = np.dtype(STORED[dtype]).itemsize
            shape = (max(entry.sized // width, 1),) if entry.sized and in_bytes else entry.shape
            offset = at if entry.offset < 0 else entry.offset * (width if by_element else 1)
            placed.append(replace(entry, offset=offset, dtype=dtype, shape=shape, sized=0))
            at = offset + math.prod(shape) * width
        first = first or placed
        spans = sorted((e.offset, e.offset + e.count * np.dtype(STORED[e.dtype]).itemsize) for e in placed)
        apart = all(a[1] <= b[0] for a, b in pairwise(spans))
        if spans[-1][1] <= size and (apart or len(spans) == 1):
            left = size - sum(end - start for start, end in spans)
            if best is None or left < best[0]:
                best = left, placed
    placed = best[1] if best is not None else first
    worst = max(placed, key=lambda e: e.offset + e.count * np.dtype(STORED[e.dtype]).itemsize)
    end = worst.offset + worst.count * np.dtype(STORED[worst.dtype]).itemsize
    if end > size:
        raise AssayError(
            f"{file}: {worst.name}: ends at byte {end}, the file has {size}; it is truncated, or its shape "
            f"{list(worst.shape)} or type {worst.dtype} is another one"
        )
    if any(not e.dtype for e in mine) and placed[0].dtype == "float16":
        kind = half_type(np.fromfile(file, "<u2", 4096))
        placed = [replace(e, dtype=kind) if e.dtype == "float16" else e for e in placed]
    return placed


def arrays_dump(path: Path, entries: Sequence[RawEntry], ids: dict[str, list[int]]) -> Dump:
    """All entries as one dump: rows of one name joined, then steps."""
    tokens = next((ids[name] for name in (*TOKENS, "prompt", "input", "sequence") if name in ids), [])
    made = next((ids[name] for name in (*GENERATED, "decoded", "decode") if name in ids), [])
    for name, listed in (("tokens", tokens), ("generated ids", made)):
        if listed:
            token_list(str(path), name, listed)
    steps: dict[str, dict[str, list[RawEntry]]] = {}
    names = [entry.name for entry in entries if entry.row is None]
    several = len(set(names)) < len(names)
    for entry in entries:
        key = entry.step if several else ""
        steps.setdefault(key, {}).setdefault(entry.name, []).append(entry)
    joined = [{name: joined_rows(group) for name, group in by_name.items()} for by_name in steps.values()]
    if len(joined) == 1 and (last := max((e.row for e in entries if e.row is not None), default=-1)) >= 0:
        return _by_rows(path, joined[0], last + 1, tokens, made or ids.get("fed", [])[len(tokens) :])
    parts = [{name: of[0].member for name, of in part.items()} for part in joined]
    rows = [_most_common(shape[0] for shape, _ in part.values() if len(shape) > 1) for part in parts]
    if len(parts) > 1 and all(any(name in TOKENS for name in part) for part in parts):
        return join_steps([replace(from_arrays(path, part), positions=()) for part in parts], ())
    if len(parts) > 1 and sum(rows) == len(tokens) + len(made):
        tokens = [*tokens, *made]
    notes: tuple[str, ...] = ()
    if len(parts) > 1 and tokens and sum(rows) != len(tokens):
        notes = (f"{len(parts)} steps of {rows} rows for {len(tokens)} token ids; only the first step was read",)
        parts, rows = parts[:1], rows[:1]
    if len(parts) == 1:
        return from_arrays(path, _with_ids(parts[0], tokens), notes)
    at, dumps = 0, list[Dump]()
    for part, n in zip(parts, rows, strict=True):
        dumps.append(replace(from_arrays(path, _with_ids(part, tokens[at : at + n])), positions=()))
        at += n
    return join_steps(dumps, notes)


def _by_rows(path: Path, arrays: dict[str, list[JoinedRows]], n: int, tokens: list[int], made: list[int]) -> Dump:
    """A dump of rows that are numbered through: those behind the prompt are decode steps of one token each."""
    members: Arrays = {}
    rows: dict[str, tuple[int, int]] = {}
    for name, several in arrays.items():
        for part in several:
            key = name if part is several[0] else f"{name} row {part.start}"
            members[key] = part.member
            if part.start is not None:
                axis = 1 if len(part.shape) > 2 else 0
                rows[key] = part.start, part.start + part.shape[axis]
    steps = max(n - len(tokens), 0) if tokens else 0
    if 0 < steps <= len(made):
        tokens = [*tokens, *made[:steps]]
        calls = [len(tokens) - steps, *[1] * steps]
        members["steps"] = (len(calls),), partial(np.asarray, calls, np.int64)
    elif steps:
        tokens = []  # the caller gives the ids of all rows
    found = from_arrays(path, _with_ids(members, tokens))
    observations = (replace(o, rows=rows.get(o.foreign, o.rows)) for o in found.observations)
    return replace(found, observations=tuple(observations))


def _with_ids(arrays: Arrays, tokens: list[int]) -> Arrays:
    return ({"tokens": ((len(tokens),), partial(np.asarray, tokens, np.int64))} if tokens else {}) | arrays


def _most_common(numbers: Iterable[int]) -> int:
    found = list(numbers)
    return max(set(found), key=found.count) if found else 1
