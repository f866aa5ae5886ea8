"""Reads a text that is one wide table of numbers: the logits of every position as CSV or TSV, or rows of any node.

Heads and index columns say what a row and a column are. Without heads the size decides, when the model is known
(`resolve.py`): a list as long as the vocabulary is logits.

    pos,token,logit_0,logit_1,…      a row for each position; the column of ids gives the tokens
    token_id,pos0,pos1,…             a column for each position; the rows are elements
    layer,name,v0,v1,…               a row for each layer and node
    1<TAB>-6.2<TAB>-12.6…            no heads: an index column, then a column for each position, or elements
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.errors import AssayError
from assay.system.text_files import read_text
from assay.verify.dumps.naming.phrases import meaning, split_words
from assay.verify.dumps.observation import Dump, Observation
from assay.verify.dumps.print_rounding import Number, half_unit, half_units
from assay.verify.dumps.printed.columns import column_kind
from assay.verify.dumps.printed.log_reader import ids_of_line

MAX_BYTES = 1 << 28
WIDE = 16  # numbers in a row, or rows, from which on a table is an array and not a list of statistics
_MOST_ROWS = 1 << 20
_COMMENT = ("#", "//", "%", ";", "--")
_NUMBER = re.compile(
    r"[-+\u2212]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][-+]?\d{1,4})?|[-+]?(?:nan|inf(?:inity)?)", re.I
)
_SERIES = re.compile(r"(.{0,60}?)[\[(_.:# -]{0,2}(\d{1,7})[\])]?")
_POSITIONS = {"pos", "position", "t", "tok", "token", "row", "step", "p", "prompt"}
_LAYER_WORDS = {"layer", "l", "block", "blk"}


@dataclass(frozen=True)
class NumberTable:
    """The labels and the block of numbers of a delimited text."""

    labels: tuple[tuple[str, tuple[str, ...]], ...]  # kind of column (`columns.py`), its cells
    heads: tuple[str, ...]  # of the block; empty without a header
    series: str  # the word before the heads' numbers
    rows: tuple[tuple[str, ...], ...]
    tokens: tuple[int, ...]
    title: str  # words of the comments and of the file's name


def is_number_table(head: bytes) -> bool:
    """Whether a text begins as a wide table of numbers."""
    text = head.decode("utf-8", "replace")
    if text.lstrip()[:1] in ("{", "[", "<") or "\x00" in text:
        return False
    lines = [line for line in text.splitlines()[:64] if line.strip()]
    lines = lines[:-1] if len(head) >= 1 << 16 and len(lines) > 2 else lines
    return len(lines) > 2 and _table(lines, "") is not None


def read_number_table(path: Path) -> Dump:
    """Observations of whole rows: every value of a row, as printed."""
    if path.stat().st_size > MAX_BYTES:
        raise AssayError(f"{path}: larger than {MAX_BYTES >> 20} MiB; save the numbers with numpy.save")
    text = read_text(path, lenient=True)
    table = _table([line for line in text.splitlines() if line.strip()], path.stem)
    if table is None:
        raise AssayError(f"{path}: its rows have different numbers of cells; write one row for each position")
    tokens = table.tokens or ids_column(table)
    named, unread = list[Observation](), list[Observation]()
    for obs in _observations(table, str(path)):
        (named if obs.name else unread).append(obs)
    return Dump(
        path.stem, tokens, tuple(range(len(tokens))), (len(tokens),) if tokens else (), tuple(named), str(path),
        log=True, unread=tuple(unread),
    )  # fmt: skip


def _table(lines: Sequence[str], stem: str) -> NumberTable | None:
    said, tokens, body = [stem], tuple[int, ...](), list[str]()
    for line in lines:
        if line.lstrip().startswith(_COMMENT) and not _NUMBER.fullmatch(line.split()[0]):
            tokens = tokens or ids_of_line(line)
            said.append(line)
        else:
            body.append(line)
        if len(body) > _MOST_ROWS:
            return None
    while body and tokens == () and len(body) > 2 and (found := ids_of_line(body[0])):
        tokens, body = found, body[1:]
    if len(body) < 2:
        return None
    mark = next((m for m in ("\t", ";", ",") if m in body[1]), None)
    cells = [_cells(line, mark) for line in body]
    width = len(cells[-1])
    if not width:
        return None
    head = cells[0] if not all(_is_number(c) for c in cells[0] if c) else []
    rows = cells[1:] if head else cells
    if any(len(row) != width for row in rows) or (head and len(head) not in (width, width - 1)):
        return None
    head = ["", *head] if head and len(head) < width else head
    return _with_block(head, rows, tokens, " ".join(said))


def _cells(line: str, mark: str | None) -> list[str]:
    if mark is None:
        return line.split()
    if '"' not in line:
        return [c.strip() for c in line.strip().split(mark)]
    try:
        return [c.strip() for c in next(csv.reader(io.StringIO(line.strip()), delimiter=mark), [])]
    except csv.Error:
        return []


def _is_number(cell: str) -> bool:
    return _NUMBER.fullmatch(cell) is not None


def _with_block(head: list[str], rows: list[list[str]], tokens: tuple[int, ...], title: str) -> NumberTable | None:
    """The table, if its last columns are one block: numbered heads or no heads, with real numbers."""
    width = len(rows[0])
    start, series = _block_start(head) if head else (_index_columns(rows), "")
    if start is None or width - start < 2 or (width - start < WIDE and len(rows) < WIDE):
        return None
    block = [row[start:] for row in rows]
    if not all(_is_number(c) for row in (*block[:64], *block[-2:]) for c in row):
        return None
    if not any(not c.lstrip("+-").isdecimal() for c in block[0]):
        return None
    kinds = [column_kind(h) for h in head[:start]] if head else ["index"] * start
    labels = tuple((kind, tuple(row[i] for row in rows)) for i, kind in enumerate(kinds))
    by_row = series_is(series, _POSITIONS)
    if head and not by_row and width - start < WIDE:
        return None  # a few elements of each row: `printed/tables.py`
    if head and series_is(series, _LAYER_WORDS):
        return None
    return NumberTable(labels, tuple(head[start:]), series, tuple(map(tuple, block)), tokens, title)


def _block_start(head: list[str]) -> tuple[int | None, str]:
    """Where heads with one word and numbers that count up begin, and the word."""
    at, before, word = len(head), None, ""
    for i in range(len(head) - 1, -1, -1):
        m = _SERIES.fullmatch(head[i].strip())
        if m is None or (before is not None and (int(m[2]) != before - 1 or m[1] != word)):
            break
        at, before, word = i, int(m[2]), m[1]
    return (at if len(head) - at > 1 else None), word


def _index_columns(rows: list[list[str]]) -> int | None:
    """Leading columns of whole numbers, at most two; the first counts the rows or nothing does."""
    n = 0
    while n < 2 and n < len(rows[0]) and all(row[n].isdecimal() for row in rows):
        n += 1
    return n


def series_is(series: str, words: set[str]) -> bool:
    found = split_words([series])
    return bool(found) and set(found) <= words


def _numbers(cells: Sequence[str]) -> list[Number]:
    texts = [c.replace("\u2212", "-").lower() for c in cells]
    return [Number(t, float(t), half_unit(t) if t[-1:].isdigit() or t[-1:] == "." else 0.0) for t in texts]


def _observations(table: NumberTable, source: str) -> list[Observation]:
    labels = dict(reversed(table.labels))  # of two columns of one kind, `pos` and `token`, the first is the place
    columns = series_is(table.series, _POSITIONS)
    n, width = len(table.rows), len(table.rows[0])
    if not table.heads and n >= WIDE and n > 2 * width and len(table.tokens) in (0, width):
        columns = True  # no heads: more rows than columns, so that a column is a position
    about = [table.series] if table.series and not columns else []
    ids = any(kind in ("id", "row") for kind, _ in table.labels) and columns
    name = _name(about) or ("result_output" if ids else "") or _name(re.split(r"[^\w]+", table.title))
    if columns:
        vectors = [[row[i] for row in table.rows] for i in range(width)]
        places = [_position(h, i) for i, h in enumerate(table.heads or [""] * width)]
        return [_row(name, vector, at, source) for vector, at in zip(vectors, places, strict=True)]
    layers, names, rows = labels.get("layer"), labels.get("name"), labels.get("row")
    found = []
    for i, cells in enumerate(table.rows):
        words = [*(names[i : i + 1] if names else ()), *(("layer", layers[i]) if layers else ()), *about]
        mine = _name(words) if names or layers else name
        at = int(rows[i]) if rows and _is_index(rows[i]) else None if names or layers else i
        found.append(_row(mine, cells, at, source))
    return found


def ids_column(table: NumberTable) -> tuple[int, ...]:
    """Token ids of a column beside the positions."""
    whole = [cells for kind, cells in table.labels if kind in ("row", "id") and all(map(_is_index, cells))]
    counted = [cells for cells in whole if [int(c) for c in cells] == list(range(len(cells)))]
    others = [cells for cells in whole if cells not in counted]
    return tuple(int(c) for c in others[0]) if counted and others else ()


def _is_index(cell: str) -> bool:
    return cell.isdecimal() and len(cell) < 8


def _position(head: str, i: int) -> int:
    m = _SERIES.fullmatch(head.strip())
    return int(m[2]) if m else i


def _name(words: Sequence[str]) -> str:
    found = meaning([w for w in words if w], generic=False)
    if not found.nodes:
        return ""
    node = found.nodes[0]
    return node if not node.endswith("-") else f"{node}{found.layer}" if found.layer is not None else ""


def _row(name: str, cells: Sequence[str], at: int | None, source: str) -> Observation:
    numbers = _numbers(cells)
    return Observation(
        name, "first", tuple(n.value for n in numbers), None if at is None else (at, at + 1),
        printed=half_units(numbers), foreign=name or "a table of numbers", where=f"{source}: row {at}",
    )  # fmt: skip
