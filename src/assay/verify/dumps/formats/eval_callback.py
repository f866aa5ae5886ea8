"""Reads the output of `llama-eval-callback` and `llama-debug`: three values at either end of every axis, and sums.

Versions differ: the first ones printed the first three values of an axis and no sum; `llama-debug` adds the sum of
squares; both print the token ids, in two ways.
"""

from __future__ import annotations

import io
import math
import re
from itertools import product
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.system.text_files import open_text
from assay.verify.dumps.observation import Dump, Observation
from assay.verify.dumps.print_rounding import half_unit

_NUMBER = r"(?>[-+]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][-+]?\d{1,6})?|-?nan|-?inf)"
_TENSOR = re.compile(
    r"(?:ggml_debug|cb_eval):\s{1,40}+(?P<name>\S[^=\n]{0,200}?) = \((?P<type>\w{1,20})\)\s{1,40}+(?P<op>\w{1,40})\("
    r".{0,2000}?\)\s{0,8}=\s{0,8}\{(?P<ne>[\d, ]{1,200})\}"
)
_SUM = re.compile(rf"\s*+(?P<what>sum|sum_sq)\s{{1,9}}= (?P<sum>{_NUMBER})\s*+$")
_COUNT = re.compile(r"number of input tokens = (\d{1,7})\s*$|^Token ids \((\d{1,7})\):\s*$")
_ID = re.compile(r"\((\d{1,9})\) ")
_ROW = re.compile(rf"\s*+\[\s*+(?P<row>{_NUMBER}(?:\s*+,\s*+(?:{_NUMBER}|\.\.\.))*+)\s*+\],?\s*+$")
MAX_LINE = 1 << 18  # characters
SHOWN = 3  # values it prints at each end of an axis


def is_eval_callback(head: str) -> bool:
    return bool(_TENSOR.search(head))


def read_eval_callback(path: Path) -> Dump:
    """llama.cpp's printout of every node. `ne` is fastest first."""
    found: list[Observation] = []
    counts: dict[tuple[str, str], int] = {}
    current: re.Match[str] | None = None
    rows: list[list[str]] = []
    sums: dict[str, str] = {}
    begun = 0
    tokens: list[int] = []
    n_tokens = 0  # of those that are printed below this line

    def finish() -> None:
        if current is not None and rows:
            key = current["name"], current["op"]
            counts[key] = counts.get(key, 0) + 1
            if counts[key] == 1:
                found.extend(_printed(current, rows, sums, f"{path}: line {begun}"))

    with io.TextIOWrapper(open_text(path), "utf-8", "replace") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), ""), 1):
            if m := _TENSOR.search(line):
                finish()
                current, rows, sums, begun = m, [], {}, number
                tokens, n_tokens = (tokens, n_tokens) if len(tokens) >= n_tokens else ([], 0)
            elif current and not sums and (m := _ROW.match(line)):
                rows.append(re.split(r"\s*,\s*", m["row"].strip()))
            elif current and (m := _SUM.match(line)):
                sums[m["what"]] = m["sum"]
            elif m := _COUNT.search(line):
                tokens, n_tokens = [], int(m[1] or m[2])
            elif len(tokens) < n_tokens:
                tokens += [int(t) for t in ([line] if line.strip().isdecimal() else _ID.findall(line))]
    finish()
    if not found:
        raise AssayError(f"{path}: llama-eval-callback's tensors are named but no values are printed; truncated")
    later = sum(n > 1 for n in counts.values())
    notes = (f"{later} names appear in several steps; only the first step was read",) if later else ()
    ids = tuple(tokens) if tokens and len(tokens) == n_tokens else ()
    return Dump("llama.cpp", ids, tuple(range(len(ids))), (len(ids),) if ids else (), tuple(found), str(path),
                notes=notes, log=True)  # fmt: skip


def _printed(tensor: re.Match[str], rows: list[list[str]], sums: dict[str, str], where: str) -> list[Observation]:
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
    total, squares = sums.get("sum", ""), float(sums.get("sum_sq", "nan"))
    if total and not _of_printed(total, texts, math.prod(shape)):
        found.append(Observation(name, "sum", float(total), printed=(half_unit(total),), **common))
    if squares > 0:
        norm = math.sqrt(squares)
        found.append(Observation(name, "norm", norm, printed=(half_unit(sums["sum_sq"]) / (2 * norm),), **common))
    return found


def _of_printed(total: str, texts: list[str], count: int) -> bool:
    """Whether the sum is that of the printed values alone, as versions of 2024 added them up."""
    if len(texts) == count:
        return False
    return abs(sum(map(float, texts)) - float(total)) <= sum(map(half_unit, texts)) + half_unit(total)
