"""Reading what `llama-eval-callback` prints: three values at either end of every axis, and the sum."""

from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.verify.dumps.observation import Dump, Observation
from assay.verify.dumps.print_rounding import half_unit

_NUMBER = r"(?>[-+]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][-+]?\d{1,6})?|-?nan|-?inf)"
_TENSOR = re.compile(
    r"(?:ggml_debug|cb_eval):\s{1,40}+(?P<name>\S[^=\n]{0,200}?) = \((?P<type>\w{1,20})\)\s{1,40}+(?P<op>\w{1,40})\("
    r".{0,2000}?\)\s{0,8}=\s{0,8}\{(?P<ne>[\d, ]{1,200})\}"
)
_SUM = re.compile(rf"\s*+sum = (?P<sum>{_NUMBER})\s*+$")
_ROW = re.compile(rf"\s*+\[\s*+(?P<row>{_NUMBER}(?:\s*+,\s*+(?:{_NUMBER}|\.\.\.))*+)\s*+\],?\s*+$")
MAX_LINE = 1 << 18  # characters
SHOWN = 3  # values it prints at each end of an axis


def is_eval_callback(head: str) -> bool:
    return bool(_TENSOR.search(head))


def read_eval_callback(path: Path) -> Dump:
    """llama.cpp's printout: three values at either end of every axis, and the sum. `ne` is fastest first.

    Before 2025 it printed only the first three values of an axis and no sum.
    """
    found: list[Observation] = []
    counts: dict[tuple[str, str], int] = {}
    current: re.Match[str] | None = None
    rows: list[list[str]] = []
    total, begun = "", 0

    def finish() -> None:
        if current is not None and rows:
            key = current["name"], current["op"]
            counts[key] = counts.get(key, 0) + 1
            if counts[key] == 1:
                found.extend(_printed(current, rows, total, f"{path}: line {begun}"))

    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), ""), 1):
            if m := _TENSOR.search(line):
                finish()
                current, rows, total, begun = m, [], "", number
            elif current and not total and (m := _ROW.match(line)):
                rows.append(re.split(r"\s*,\s*", m["row"].strip()))
            elif current and (m := _SUM.match(line)):
                total = m["sum"]
    finish()
    if not found:
        raise AssayError(f"{path}: llama-eval-callback's tensors are named but no values are printed; truncated")
    later = sum(n > 1 for n in counts.values())
    notes = (f"{later} names appear in several steps; only the first step was read",) if later else ()
    return Dump("llama.cpp", (), (), (), tuple(found), str(path), notes=notes, log=True)


def _printed(tensor: re.Match[str], rows: list[list[str]], total: str, where: str) -> list[Observation]:
    name = tensor["name"].strip()
    shape = tuple(int(n) for n in reversed(tensor["ne"].split(",")) if n.strip())
    if not shape or not all(0 < n < 2**31 for n in shape) or len(shape) > 8:
        raise AssayError(f"{where}: {name}: no shape (found {{{tensor['ne']}}})")
    old = all(row[-1] == "..." for row in rows)

    def shown(n: int) -> list[int]:
        tail = [] if old else [*range(max(SHOWN, n - SHOWN), n)]
        return [*range(min(n, SHOWN)), *tail]

    axes = [shown(n) for n in shape]
    texts = [t for row in rows for t in row if t != "..."]
    if len(rows) != math.prod(len(a) for a in axes[:-1]) or len(texts) != math.prod(len(a) for a in axes):
        raise AssayError(f"{where}: {name}: the printed values do not fit the shape {list(shape)}; truncated or edited")
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    index = [sum(i * s for i, s in zip(at, strides, strict=True)) for at in product(*axes)]
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    common: dict[str, Any] = {"shape": shape, "foreign": name, "op": tensor["op"], "where": where}
    pairs = tuple(zip(index, map(float, texts), strict=True))
    found = [Observation(name, "at", pairs, printed=tuple(half_unit(t) for t in texts), **common)]
    if total:
        found.append(Observation(name, "sum", float(total), printed=(half_unit(total),), **common))
    return found
