"""Reads assay's dump format in JSON lines (docs/reference/dump-format.md). Names and layouts stay as the file has them.

The file is not trusted: sizes are checked before anything is allocated, and every error names the line. NaN, infinities
and JSON's null for either are evidence, not errors (`finite.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.system.text_files import open_text
from assay.verify.dumps.formats.field_checks import is_whole, read_checked, token_list
from assay.verify.dumps.formats.numpy_files import read_raw
from assay.verify.dumps.observation import KINDS, STATISTICS, Dump, Observation
from assay.verify.dumps.print_rounding import Number, half_unit, half_units

Array = NDArray[Any]
MAX_LINE = 1 << 25
_RAW = {"f32": "<f4", "f16": "<f2", "f64": "<f8"}
_LARGEST = 1.7976931348623157e308
_FIELDS = {"name", "shape", "row", "file", "dtype", *KINDS}


def read_json_lines(path: Path) -> Dump:
    """A header `{"assay_dump": 1, …}` begins each step; the lines after it are observations of that step."""
    engine, tokens, positions, steps = "", list[int](), list[int](), list[int]()
    found: list[Observation] = []
    for where, item in _json_lines(path):
        if "assay_dump" in item:
            new, at = _header(where, item, len(tokens))
            engine = engine or str(item.get("engine", "unnamed"))
            tokens += new
            positions += at
            steps.append(len(new))
        elif not steps:
            raise AssayError(f'{where}: the first line must be the header {{"assay_dump": 1, "tokens": […]}}')
        else:
            found += _observations(path, where, item, len(tokens) - steps[-1], steps[-1], len(steps) == 1)
    if not steps:
        raise AssayError(f"{path}: empty; the first line must be a header")
    if len(steps) > 1:  # a whole tensor of the first step is not the whole sequence
        found = [_in_first_step(o, steps[0]) for o in found]
    return _unique(Dump(engine, tuple(tokens), tuple(positions), tuple(steps), tuple(found), str(path)))


def is_headless(head: bytes) -> bool:
    """Whether the first line is an observation of this format, so that the header is missing."""
    try:
        first = json.loads(head.splitlines()[0])
    except (ValueError, RecursionError, IndexError):
        return False
    return isinstance(first, dict) and "name" in first and set(first) <= _FIELDS


def _json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with open_text(path) as file:
        for number in range(1, 1 << 31):
            line = file.readline(MAX_LINE)
            where = f"{path}: line {number}"
            if not line:
                return
            if len(line) == MAX_LINE:
                raise AssayError(f'{where}: longer than {MAX_LINE >> 20} MiB; put the values into a file with "file"')
            if not line.strip():
                continue
            try:
                item = json.loads(line, parse_float=_Printed)
            except (ValueError, RecursionError) as error:
                raise AssayError(
                    f"{where}: not JSON ({str(error).lower()}); the dump is truncated or damaged"
                ) from None
            if not isinstance(item, dict):
                raise AssayError(f"{where}: must be a JSON object (found {type(item).__name__})")
            yield where, item


def _header(where: str, item: dict[str, Any], done: int) -> tuple[list[int], list[int]]:
    if item["assay_dump"] != 1:
        raise AssayError(f"{where}: dump version {item['assay_dump']!r:.60} is not known (expected 1)")
    tokens = token_list(where, "tokens", item.get("tokens"))
    positions = token_list(where, "positions", item.get("positions", list(range(done, done + len(tokens)))))
    if len(positions) != len(tokens):
        raise AssayError(f"{where}: {len(positions)} positions for {len(tokens)} tokens")
    if item.get("phase", "prefill") not in ("prefill", "decode"):
        raise AssayError(f"{where}: phase must be prefill or decode (found {item['phase']!r:.60})")
    if not done and item.get("phase") == "decode" and positions[0] > 0:
        raise AssayError(
            f"{where}: the dump begins at position {positions[0]}, so the tokens before it are unknown; "
            "put a header with them (and no observations) before this one"
        )
    return tokens, positions


class _Printed(float):
    """A number with the text that it was printed as."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> _Printed:
        made = super().__new__(cls, text)
        made.text = text.lower()
        return made


def _printed(data: Any) -> tuple[float, ...]:
    """Half a unit of the last printed digit of every number."""
    numbers = [x for x in data if x is not None and math.isfinite(x)]
    if len(numbers) < len(data):
        return ()
    texts = [x.text if isinstance(x, _Printed) else str(x) for x in numbers]
    return half_units([Number(text, float(text), half_unit(text)) for text in texts])


def _number(where: str, what: str, x: Any) -> float:
    if x is None:
        return math.nan
    if isinstance(x, bool) or not isinstance(x, int | float) or (isinstance(x, int) and abs(x) > _LARGEST):
        raise AssayError(f"{where}: {what}: not a number (found {x!r:.60})")
    return float(x)


def _observations(
    path: Path, where: str, item: dict[str, Any], start: int, n_rows: int, only: bool
) -> Iterator[Observation]:
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise AssayError(f'{where}: has no "name"')
    where = f"{where}: {name}"
    unknown = set(item) - _FIELDS
    if unknown:
        raise AssayError(f"{where}: unknown field {sorted(unknown)[0]!r}; known are {', '.join(sorted(_FIELDS))}")
    shape = _shape(where, item["shape"]) if "shape" in item else None
    rows: tuple[int, int] | None = None if only else (start, start + n_rows)
    if "row" in item:
        row = item["row"]
        if not is_whole(row) or not -n_rows <= row < n_rows:
            raise AssayError(f"{where}: row {row!r:.60} is outside the {n_rows} tokens of this step")
        rows = (start + row % n_rows, start + row % n_rows + 1)
    common: dict[str, Any] = {"rows": rows, "shape": shape, "foreign": name, "where": where}
    n = 0
    if "file" in item:
        yield Observation(name, "values", _raw_file(path, where, item, shape), **common)
        n += 1
    for kind in KINDS:
        if kind in item:
            data = _data(where, kind, item[kind], shape)
            printed = () if kind == "values" else _printed(_texts(kind, item[kind]))
            yield Observation(name, kind, data, printed=printed, **common)
            n += 1
    if not n:
        raise AssayError(f"{where}: holds no observation; give values, file or any of {', '.join(KINDS[1:])}")


def _texts(kind: str, data: Any) -> list[Any]:
    """The numbers of an item, as they were printed."""
    if kind in STATISTICS:
        return [data]
    return [pair[1] for pair in data] if kind in ("at", "top") else list(data)


def _shape(where: str, shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or len(shape) > 6 or not all(is_whole(n) and 0 < n < 2**31 for n in shape):
        raise AssayError(f"{where}: shape must be up to 6 positive whole numbers (found {shape!r:.60})")
    return tuple(shape)


def _data(where: str, kind: str, data: Any, shape: tuple[int, ...] | None) -> Any:
    if kind in STATISTICS:
        return _number(where, kind, data)
    if not isinstance(data, list) or not data:
        raise AssayError(f"{where}: {kind} must be a list that is not empty")
    if kind in ("at", "top"):
        pairs = []
        for pair in data:
            if not isinstance(pair, list) or len(pair) != 2 or not is_whole(pair[0]) or not 0 <= pair[0] < 2**63:
                raise AssayError(f"{where}: {kind} must hold pairs [index, value] (found {pair!r:.60})")
            pairs.append((pair[0], _number(where, f"{kind}[{pair[0]}]", pair[1])))
        return tuple(pairs)
    if kind != "values":
        return tuple(_number(where, f"{kind}[{i}]", x) for i, x in enumerate(data))
    try:
        array = np.asarray(data, np.float64)
    except (ValueError, TypeError, OverflowError):
        raise AssayError(f"{where}: values must be numbers, flat or nested evenly") from None
    if shape is not None:
        if array.size != math.prod(shape):
            raise AssayError(f"{where}: {array.size} values for shape {list(shape)}, which has {math.prod(shape)}")
        array = array.reshape(shape)
    return array


def _raw_file(path: Path, where: str, item: dict[str, Any], shape: tuple[int, ...] | None) -> Callable[[], Array]:
    name, kind = item["file"], item.get("dtype", "f32")
    if not isinstance(kind, str) or kind not in _RAW:
        raise AssayError(f"{where}: dtype must be f32, f16 or f64 (found {kind!r:.60})")
    if shape is None:
        raise AssayError(f'{where}: a "file" needs a "shape"')
    if not isinstance(name, str) or Path(name).is_absolute() or ".." in Path(name).parts:
        raise AssayError(f"{where}: file must be a name beside the dump (found {name!r:.60})")
    file = path.parent / name
    size = file.stat().st_size if file.is_file() else -1
    wanted = math.prod(shape) * np.dtype(_RAW[kind]).itemsize
    if size != wanted:
        found = "no such file" if size < 0 else f"{size} bytes"
        raise AssayError(f"{where}: {name}: {found}, expected {wanted} for shape {list(shape)} of {kind}")
    return partial(read_checked, where, lambda: read_raw(where, file, 0, math.prod(shape), _RAW[kind]).reshape(shape))


def _in_first_step(obs: Observation, n: int) -> Observation:
    return replace(obs, rows=(0, n)) if obs.rows is None else obs


def _unique(dump: Dump) -> Dump:
    seen: set[tuple[Any, ...]] = set()
    for obs in dump.observations:
        key = (obs.foreign, obs.op, obs.kind, obs.rows, obs.side)
        if key in seen:
            raise AssayError(f"{obs.where}: the {obs.kind} of this name was given before; give each name one value")
        seen.add(key)
    return dump
