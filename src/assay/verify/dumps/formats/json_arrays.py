"""Reads JSON lines with one whole array each: {"call": 0, "node": "mixer.3", "shape": [7, 32], "data": [0.5, …]}.

The names are the writer's own, so that they are matched by value like those of an .npz file. A field such as `call` or
`step` counts the calls of the engine. Records without an array may list the ids of the prompt and those fed after it.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from assay.errors import AssayError
from assay.system.text_files import open_text
from assay.verify.dumps.formats.array_dumps import from_arrays
from assay.verify.dumps.formats.call_steps import join_calls, join_steps, rows_of_call
from assay.verify.dumps.formats.field_checks import is_whole, token_list
from assay.verify.dumps.formats.module_names import GENERATED, TOKENS
from assay.verify.dumps.observation import Dump

MAX_BYTES = 1 << 28
MAX_ARRAYS = 1 << 16
_VALUES = ("data", "values", "value", "array", "tensor", "vals", "v", "x")
_NAMES = ("node", "name", "tensor", "key", "op", "at", "stage", "what", "label", "var", "variable", "v")
_ROWS = ("rows", "tokens", "n_tokens", "n_rows", "seq", "seq_len", "T")  # where a record gives rows in place of a shape
_CALLS = ("call", "step", "pass", "forward", "phase", "iter")
_LAYERS = ("layer", "block", "blk", "il", "l")
_PROMPT = re.compile(r"prompt|input|context|^ids$", re.IGNORECASE)
_FED = re.compile(r"fed|then|decod|generat|next|after|new", re.IGNORECASE)
Record = dict[str, Any]


def is_json_arrays(head: bytes) -> bool:
    """Whether most of the first complete lines are records with a whole array."""
    lines = head.split(b"\n")[:16]
    if not head.lstrip().startswith(b"{") or len(lines) < 2:
        return False
    lines = [line for line in (lines if len(head) < 1 << 16 else lines[:-1]) if line.strip()]
    records = [_record(line) for line in lines]
    whole = sum(record is not None and _array_key(record) != "" for record in records)
    return bool(records) and whole >= max(1, (3 * len(records)) // 4)


def read_json_arrays(path: Path) -> Dump:
    """The arrays of every call as one dump."""
    if path.stat().st_size > MAX_BYTES:
        raise AssayError(f"{path}: larger than {MAX_BYTES >> 20} MiB; save the arrays with numpy.savez")
    tokens, made = list[int](), list[int]()
    calls: dict[str, dict[str, Any]] = {}
    count = 0
    with open_text(path) as file:
        for line in file:
            record = _record(line)
            if record is None:
                continue
            key = _array_key(record)
            if not key:
                tokens, made = tokens or _ids(record, _PROMPT, TOKENS), made or _ids(record, _FED, GENERATED)
                continue
            count += 1
            if count > MAX_ARRAYS:
                raise AssayError(f"{path}: more than {MAX_ARRAYS} arrays")
            shape = tuple(_shape(record, key))
            array = np.asarray([np.nan if x is None else x for x in record[key]], np.float64).reshape(shape)
            call = next((str(record[k]) for k in _CALLS if k in record), "")
            calls.setdefault(call, {}).setdefault(_name(record, key), (shape, partial(np.asarray, array)))
    if not calls:
        raise AssayError(f"{path}: no line with a whole array; write its shape and all of its values")
    return _joined(path, list(calls.values()), tokens, made)


def _joined(path: Path, parts: list[dict[str, Any]], tokens: list[int], made: list[int]) -> Dump:
    """The calls as steps, where the ids of all of them are known; else the first one."""
    for name, listed in (("tokens", tokens), ("generated ids", made)):
        if listed:
            token_list(str(path), name, listed)
    rows = [rows_of_call(shape for shape, _ in part.values()) for part in parts]
    notes: tuple[str, ...] = ()
    if len(parts) > 1 and not tokens and not made and rows[0] > 1:  # one row may be the prompt's last
        return join_calls([from_arrays(path, part) for part in parts], rows)
    if len(parts) > 1:
        if sum(rows) == len(tokens) + len(made):
            tokens = [*tokens, *made]
        else:
            notes = (f"{len(parts)} calls of {rows} rows for {len(tokens)} token ids; only the first call was read",)
            parts, rows = parts[:1], rows[:1]
    at, dumps = 0, []
    for part, n in zip(parts, rows, strict=True):
        ids = tokens[at : at + n] if len(parts) > 1 else tokens
        given = {"tokens": ((len(ids),), partial(np.asarray, ids, np.int64))} if ids else {}
        dumps.append(from_arrays(path, given | part, notes if not at else ()))
        at += n
    if len(dumps) == 1:
        return dumps[0]
    return join_steps([replace(dump, positions=()) for dump in dumps], ())


def _record(line: bytes) -> Record | None:
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _array_key(record: Record) -> str:
    """The field with all values of the shape that the record gives; empty if it has none, or no name."""
    for key in _VALUES:
        data = record.get(key)
        if isinstance(data, list) and (shape := _shape(record, key)):
            good = len(shape) <= 4 and all(is_whole(n) and n > 0 for n in shape) and math.prod(shape) == len(data)
            if good and all(map(_is_number, data)):
                return key if _name(record, key) else ""
    return ""


def _shape(record: Record, key: str) -> list[Any]:
    """The shape of a record's values, or [rows, values of a row] where it gives the number of rows; else empty."""
    if isinstance(shape := record.get("shape"), list):
        return shape
    rows, size = next((record[k] for k in _ROWS if is_whole(record.get(k))), 0), len(record[key])
    return [rows, size // rows] if rows > 0 and size % rows == 0 and size > rows else []


def _is_number(x: Any) -> bool:
    return x is None or (isinstance(x, float | int) and not isinstance(x, bool))


def _name(record: Record, values: str) -> str:
    name = next((record[k] for k in _NAMES if k != values and isinstance(record.get(k), str)), "")
    layer = next((record[k] for k in _LAYERS if is_whole(record.get(k)) and record[k] >= 0), None)
    if layer is None and (m := re.fullmatch(r"(.+?)[.\-_/@](\d{1,4})", name)) and not re.search(r"\.\d+$", m[1]):
        name, layer = m[1], int(m[2])
    return name[:200] if layer is None or not name else f"layers.{layer}.{name[:180]}"


def _ids(record: Record, words: re.Pattern[str], names: tuple[str, ...]) -> list[int]:
    lists = {k: v for k, v in record.items() if isinstance(v, list) and v and all(map(is_whole, v))}
    return next((v for k, v in lists.items() if k in names or words.search(k)), [])
