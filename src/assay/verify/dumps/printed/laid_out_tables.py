"""Rewrites tables by their layout: a header, and rows that have a cell for each head.

Heads may be in any order. Columns that measure the engine (times, sizes, rates, addresses) and columns that count the
rows are left out; units behind the numbers of a cell are, too. Such a table becomes one with bars, whose rows the
reader of tables takes cell by cell; the header is repeated below a line that stands between the rows, such as
`Layer 1` or a rule. Tables that `tables.table_header` understands as they are stay as they are.

The cells are those between bars, tabs, semicolons or commas; without these, the places of the line at which no row has
a letter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from assay.verify.dumps.observation import STATISTICS
from assay.verify.dumps.printed.columns import column_kind
from assay.verify.dumps.printed.lexer import barred_signs_as_words
from assay.verify.dumps.printed.line_prefixes import without_prefix
from assay.verify.dumps.printed.tables import table_header

_LONGEST = 2000  # characters of a line of a table
_FEWEST_ROWS = 2
_AHEAD = 12  # lines below a header among which its first rows stand
_MOST_BETWEEN = 3  # lines between rows: blank ones, rules, a heading
_MOST_COLUMNS = 64
_FIT = 0.9  # of a column's cells that are one number each
_WINDOW = 40  # lines by which a table is recognised

_NUMBER = r"[-+\u2212]?(?>\d{1,20}(?:[.,]\d{0,20})?|\.\d{1,20})(?:[eEdD][-+]?\d{1,4})?"
_UNIT = (
    r"(?:[munpµμ]?s(?:ecs?|econds)?|min|h|cyc(?:les)?|ticks|[kKMGTP]?i?B|bytes?|[kKMGT]?bit|%|"
    r"[kKMGT]?FLOPS?(?:/s)?|[kKMGT]?i?[bB](?:yte)?/s|[kKMGT]?Hz|tok(?:ens?)?/s|it/s|[KMG])"
)
_VALUE = re.compile(rf"(?:{_NUMBER}|[-+]?(?:nan|inf|NaN|Inf|NAN|INF)|nan\(ind\))")
_MEASURED = re.compile(rf"{_NUMBER}\s?{_UNIT}")
_DECIMAL = re.compile(r"\d[.,]\d{2}")
_DASHED = re.compile(r"\s{0,8}-\s")  # a cell without a layer, not the bullet of a list
_RULE = re.compile(r"[\s\-=_+|:*~.─━]*")
_IN_HEAD = re.compile(rf"[\s_]*[\[(/,]\s{{0,2}}({_UNIT})\s{{0,2}}[\])]?$")
_BEHIND = re.compile(r"[a-z]_(?:[munµμ]s|ms|sec|secs|bytes|[kmg]i?b|pct|percent)$")
_ABOUT_THE_ENGINE = {
    "time", "times", "dur", "duration", "elapsed", "took", "latency", "wall", "cpu", "start", "end", "ts", "timestamp",
    "t", "bytes", "byte", "mem", "memory", "size", "sizes", "rss", "alloc", "allocated", "peak", "flop", "flops",
    "gflop", "gflops", "mflops", "tflops", "bw", "bandwidth", "gbps", "throughput", "share", "percent", "pct", "calls",
    "call", "count", "cnt", "n", "numel", "elems", "elements", "nelem", "dtype", "type", "typ", "shape", "dims", "dim",
    "addr", "address", "ptr", "pointer", "offset", "stride", "strides", "device", "dev", "backend", "stream", "queue",
    "nan", "nans", "inf", "infs", "nonfinite", "finite", "ticks", "cycles", "tick", "threads", "thread", "tid", "nth",
    "worker", "workers", "lane", "core", "numa", "us", "µs", "μs", "ms", "ns", "s", "kb", "kib", "mb", "mib", "gb",
    "gib", "b", "%", "gbs", "ok", "status", "zeit", "dauer", "laufzeit", "größe", "grösse", "groesse", "speicher",
    "anteil", "anzahl", "aufrufe", "form", "durée", "duree", "temps", "taille", "mémoire", "memoire", "octets",
    "appels", "tiempo", "tamaño", "memoria", "llamadas", "tempo", "tamanho",
    "memória", "durata", "耗时", "时间", "字节",
    "内存", "形状", "类型", "次数", "占比", "時間", "型", "время", "байт", "байты",
    "память", "размер", "тип", "форма",
    "вызовов", "доля",
}  # fmt: skip
_COUNTERS = {
    "",
    "#",
    "no",
    "no.",
    "nr",
    "nr.",
    "n°",
    "idx",
    "index",
    "(index)",
    "i",
    "seq",
    "id",
    "row",
    "line",
    "step",
    "lfd",
}


@dataclass(frozen=True)
class TableLayout:
    """How the lines of a table are cut, and which columns are kept: their heads, as the reader of tables knows them."""

    mark: str
    cuts: tuple[int, ...]  # without a mark: the places where columns begin
    width: int
    kept: tuple[int, ...]
    heads: tuple[str, ...]


def with_tables_laid_out(text: str) -> str:
    """The text with tables whose layout is certain as rows between bars."""
    lines = text.split("\n")
    if len(lines) < _FEWEST_ROWS + 1:
        return text
    plain = [line if len(line) >= _LONGEST or _DASHED.match(line) else _in_bars(line) for line in lines]
    out: list[str] = []
    at = 0
    changed = False
    while at < len(lines):
        table = _table_at(plain, at)
        if table is None:
            out.append(lines[at])
            at += 1
            continue
        layout, rows = table
        changed = True
        _uncentre(out, plain[at])
        out += _drawn(plain, at, rows, layout)
        at = rows[-1][0] + 1
    return "\n".join(out) if changed else text


def _uncentre(above: list[str], head: str) -> None:
    """Move a title that is centred above a table to the left: its indentation says nothing about what it heads."""
    at = len(above) - 1
    while at >= 0 and _RULE.fullmatch(without_prefix(above[at])):
        at -= 1
    if at >= 0 and _indentation(above[at]) > _indentation(head):
        above[at] = above[at].lstrip()


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def _in_bars(line: str) -> str:
    """The line without its prefix; a bar inside a cell of a drawn box is no border."""
    if line.count("│") > 2 and "|" in line:
        line = barred_signs_as_words(line).replace("|", "/")
    return without_prefix(line)


def _table_at(lines: Sequence[str], at: int) -> tuple[TableLayout, list[tuple[int, list[str]]]] | None:
    """The layout of the table whose header is this line, and its rows by their lines; None if it is no header."""
    head = lines[at]
    if not 3 < len(head) < _LONGEST or _DECIMAL.search(head) or "=" in head or not any(c.isalpha() for c in head):
        return None
    mark = _mark_of(head)
    near = [line for line in lines[at + 1 : at + 1 + _AHEAD] if _DECIMAL.search(line)]
    if len(near) < _FEWEST_ROWS or (mark and sum(mark in line for line in near) < _FEWEST_ROWS):
        return None
    if not mark and sum("|" in line for line in near) >= _FEWEST_ROWS:
        return None  # a title above a box
    if not mark and len(wide := _split(head, "  ", ())) > 2:
        mark = "  " if all(len(_split(line, "  ", ())) == len(wide) for line in near) else ""
    cuts: tuple[int, ...] = ()
    if mark:
        heads = _split(head, mark, ())
    else:
        found = _aligned(head, near)
        if found is None:
            return None
        heads, cuts = found
    if not 2 < len(heads) <= _MOST_COLUMNS or (not mark and head.rstrip().endswith(":")):
        return None  # a title ends with a colon
    rows = _rows(lines, at + 1, at + _WINDOW, mark, cuts, len(heads))  # decided by a few rows: the time is bounded
    if len(rows) < _FEWEST_ROWS:
        return None
    above = [line for line in lines[at + 1 : rows[0][0]] if line.strip() and not _RULE.fullmatch(line)]
    if not mark and not heads[0] and above:
        return None  # a data frame that names its index below the heads
    if any((below := table_header(line)) is not None and all(below.columns) for line in above):
        return None  # a title above the header
    layout = _laid_out(heads, [cells for _, cells in rows], mark, cuts)
    if layout is None:
        return None
    known = table_header(head)
    if known is not None and all(known.columns):
        units = any(_MEASURED.fullmatch(cell) for _, cells in rows[:4] for cell in cells)
        headed = any(lines[i].strip() and not _RULE.fullmatch(lines[i]) for i in _between(rows))
        if not units and not headed:
            return None
    return layout, _rows(lines, at + 1, len(lines), mark, cuts, len(heads))


def _between(rows: Sequence[tuple[int, list[str]]]) -> list[int]:
    """The lines from the first row to the last that are no rows."""
    places = {at for at, _ in rows}
    return [i for i in range(rows[0][0], rows[-1][0]) if i not in places]


def _mark_of(head: str) -> str:
    bars = _BARRED.sub("", _LARGEST.sub("", head.strip()))
    if bars.count("|") > 1 or " | " in bars:
        return "|"
    return next((mark for mark in ("\t", ";") if bars.count(mark) > 1), "," if bars.count(",") > 1 else "")


def _split(line: str, mark: str, cuts: Sequence[int]) -> list[str]:
    if mark == "|":
        text = line.strip()
        text = text[1:] if text[:1] == "|" else text
        text = text[:-1] if text[-1:] == "|" else text
        return [cell.strip() for cell in _BARRED.sub(r"norm(\1)", _LARGEST.sub("absmax", text)).split("|")]
    if mark == "  ":
        return re.split(r"\s{2,}", line.strip())
    if mark:
        return [cell.strip().strip('"') for cell in line.split(mark)]
    ends = [*cuts[1:], max(len(line), cuts[-1] + 1)]
    return [line[a:b].strip() for a, b in zip(cuts, ends, strict=True)]


_BARRED = re.compile(r"(?<!\w)\|(\w{1,12})\|(?=\s)")  # |x| between blanks
_LARGEST = re.compile(r"\b(?:abs)?max\s?\|\w{1,3}\|", re.IGNORECASE)


def _aligned(head: str, rows: Sequence[str]) -> tuple[list[str], tuple[int, ...]] | None:
    """Heads and the places where columns begin: where all lines have a blank, and two next to each other or more, or
    a head and every row have one word each."""
    lines = [head, *rows]
    width = max(map(len, lines))
    used = [any(i < len(line) and not line[i].isspace() for line in lines) for i in range(width)]
    starts = [i for i in range(width) if used[i] and (i == 0 or not used[i - 1])]
    if len(starts) < 3:
        return None
    cuts = (0, *starts[1:])
    heads = _split(head, "", cuts)
    joined = _joined(cuts, lines)
    return (heads, cuts) if joined == cuts else (_split(head, "", joined), joined)


def _joined(cuts: tuple[int, ...], lines: Sequence[str]) -> tuple[int, ...]:
    """The cuts without those inside words: a column without a head and without a number belongs to the one before."""
    cells = [_split(line, "", cuts) for line in lines]
    kept = [0]
    for i in range(1, len(cuts)):
        numbers = sum(bool(_VALUE.fullmatch(row[i])) for row in cells[1:])
        before = sum(bool(_VALUE.fullmatch(row[i - 1])) for row in cells[1:])
        headless = not cells[0][i]
        unit = headless and before and all(re.fullmatch(_UNIT, row[i]) or not row[i] for row in cells[1:])
        text = not numbers and not before and (headless or not cells[0][i - 1] or _close(cuts[i], lines))
        beside = cells[0][i] and cells[0][i - 1] and _close(cuts[i], lines)
        empty = beside and (not any(row[i] for row in cells[1:]) or not any(row[i - 1] for row in cells[1:]))
        if not (unit or text or empty):
            kept.append(i)
    return tuple(cuts[i] for i in kept)


def _close(cut: int, lines: Sequence[str]) -> bool:
    """Whether the header has one blank before the cut."""
    return cut > 1 and not lines[0][cut - 2 : cut - 1].isspace()


def _rows(
    lines: Sequence[str], start: int, end: int, mark: str, cuts: Sequence[int], n: int
) -> list[tuple[int, list[str]]]:
    found: list[tuple[int, list[str]]] = []
    between = 0
    for at in range(start, min(end, len(lines))):
        line = lines[at]
        cells = _split(line, mark, cuts) if (mark and mark in line) or (not mark and line.strip()) else []
        if not mark and cells and found and len(line) < _LONGEST and _crosses(line, cuts):
            wider = _split(line, "", _moved(line, cuts))
            if len(wider) == n and _is_row(wider, line, ()) and _alike(wider, [row for _, row in found[:_AHEAD]]):
                found.append((at, wider))
                between = 0
                continue
        if len(cells) == n and len(line) < _LONGEST and _is_row(cells, line, cuts):
            found.append((at, cells))
            between = 0
            continue
        if between >= _MOST_BETWEEN or (len(line) > 120 and not _RULE.fullmatch(line)):
            break
        if _DECIMAL.search(line) and not _goes_on(lines[at + 1 : at + 2 + _MOST_BETWEEN], mark, cuts, found):
            break
        between += bool(line.strip()) and not _RULE.fullmatch(line)
        if not found and between > 1:
            break
    return found


def _is_row(cells: Sequence[str], line: str, cuts: Sequence[int]) -> bool:
    numbers = sum(bool(_VALUE.fullmatch(c) or _MEASURED.fullmatch(c)) for c in cells)
    if cuts and _crosses(line, cuts):
        return False
    return numbers > 1 and _DECIMAL.search(line) is not None


def _goes_on(below: Sequence[str], mark: str, cuts: Sequence[int], found: Sequence[tuple[int, Sequence[str]]]) -> bool:
    """Whether the next rows below a line with values name what earlier rows named: the table is not over."""
    rows = [row for _, row in found]
    if not rows:
        return False
    names = [{row[i] for row in rows if any(c.isalpha() for c in row[i])} for i in range(len(rows[0]))]
    for line in below:
        cells = _split(line, mark, () if mark else _moved(line, cuts)) if len(line) < _LONGEST and line.strip() else []
        if len(cells) == len(rows[0]) and _is_row(cells, line, ()) and _alike(cells, rows[:_AHEAD]):
            told = [cell in of for cell, of in zip(cells, names, strict=True) if any(c.isalpha() for c in cell)]
            return bool(told) and all(told)
    return False


def _crosses(line: str, cuts: Sequence[int]) -> bool:
    """Whether text runs over a place where a column begins."""
    return any(0 < c < len(line) and not line[c - 1].isspace() for c in cuts[1:])


def _moved(line: str, cuts: Sequence[int]) -> tuple[int, ...]:
    """The places where the columns of this row begin: a word that is wider than those of the rows above it moves them.

    The word belongs to the column on the right, as numbers that end below each other do. Where it would leave nothing
    in the column on the left, it is a long name there.
    """
    found = [cuts[0]]
    for cut in cuts[1:]:
        begin, end = min(cut, len(line)), min(cut, len(line))
        while begin > found[-1] and not line[begin - 1].isspace():
            begin -= 1
        while begin < cut and end < len(line) and not line[end].isspace():
            end += 1
        found.append(begin if begin == cut or line[found[-1] : begin].strip() else end)
    return tuple(found)


def _alike(cells: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the row has a number in each column where all rows have one, and words where all have words."""
    for i, cell in enumerate(cells):
        numbers = [bool(_VALUE.fullmatch(row[i])) for row in rows]
        if not cell and all(row[i] for row in rows):
            return False
        if len(set(numbers)) == 1 and cell and bool(_VALUE.fullmatch(cell)) != numbers[0]:
            return False
    return True


def _laid_out(
    heads: Sequence[str], rows: Sequence[Sequence[str]], mark: str, cuts: tuple[int, ...]
) -> TableLayout | None:
    """Which columns are kept; None if no column is a statistic, an element or a node."""
    kinds = [column_kind(head) for head in heads]
    kept: list[int] = []
    told: list[str] = []
    wordy = [_words_in([row[i] for row in rows]) for i in range(len(heads))]
    texts = [i for i, words in enumerate(wordy) if 2 * words > len(rows) and kinds[i] != "layer"]
    named = max(texts, key=lambda i: (kinds[i] == "name", len({row[i] for row in rows})), default=-1)
    for i, head in enumerate(heads):
        cells, words = [row[i] for row in rows], wordy[i]
        low = head.strip().lower()
        if low in _COUNTERS and _counts(cells) and ("layer" in kinds or (words == 0 and _has_names(heads, rows))):
            continue
        if _is_measured(head, cells, kinds[i]):
            continue
        if 2 * words > len(cells):
            if i != named and kinds[i] != "layer":
                if column_kind(head) == "name":
                    kept.append(i)
                    told.append(head)
                continue
            kept.append(i)
            told.append(head if kinds[i] in ("name", "layer") else "name")
            continue
        kept.append(i)
        told.append(head)
    final = [column_kind(head) for head in told]
    if not {"layer", "name"} & set(final) or not any(
        (kind in STATISTICS or kind[:1] == "=") and not head.strip("[]()., ").isdecimal()
        for kind, head in zip(final, told, strict=True)
    ):
        return None
    if not all(_holds(kind, [row[i] for row in rows]) for kind, i in zip(final, kept, strict=True)):
        return None
    told = ["absmax" if _LARGEST.fullmatch(head) else head for head in told]
    return TableLayout(mark, cuts, len(heads), tuple(kept), tuple(told))


def _words_in(cells: Sequence[str]) -> int:
    """The number of cells that are words and no values."""
    return sum(any(ch.isalpha() for ch in c) and not _VALUE.fullmatch(c) and not _MEASURED.fullmatch(c) for c in cells)


def _holds(kind: str, cells: Sequence[str]) -> bool:
    """Whether nearly all cells are what the column's head says: a number each, or words without a value."""
    if kind in ("name", "layer", "row", "index", "id"):
        return not any(_DECIMAL.search(cell) for cell in cells)
    if kind in ("first", "last") or kind.startswith("first@"):
        return True
    fit = sum(bool(_VALUE.fullmatch(cell)) or not cell.strip("-–—") for cell in cells)
    return fit >= _FIT * len(cells)


def _has_names(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    return any(
        2 * sum(any(c.isalpha() for c in row[i]) and not _VALUE.fullmatch(row[i]) for row in rows) > len(rows)
        for i in range(len(heads))
    )


def _is_measured(head: str, cells: Sequence[str], kind: str) -> bool:
    """Whether the column measures the engine: by its cells' unit, by the unit of its head, or by its word."""
    low = head.strip().lower()
    if sum(bool(_MEASURED.fullmatch(c)) for c in cells) * 2 > len(cells):
        return True
    if _IN_HEAD.search(head.strip()) and kind in ("", "-", "index", "row", "last", "sum"):
        return True
    if _BEHIND.search(low) and kind in ("", "-", "last"):
        return True
    words = [w for w in re.split(r"[\s_/().\[\]-]+", low) if w]
    return kind in ("", "-", "index", "row", "last") and bool(words) and all(w in _ABOUT_THE_ENGINE for w in words)


def _counts(cells: Sequence[str]) -> bool:
    """Whether the cells count the rows from 0 or 1."""
    if not cells or not all(c.isdecimal() and len(c) < 7 for c in cells):
        return False
    first = int(cells[0])
    return first in (0, 1) and [int(c) for c in cells] == list(range(first, first + len(cells)))


def _drawn(lines: Sequence[str], at: int, rows: Sequence[tuple[int, list[str]]], layout: TableLayout) -> list[str]:
    """The lines of the table between bars, one for each of its lines, and its header below each interruption."""
    header = "| " + " | ".join(layout.heads) + " |"
    out: list[str] = []
    fresh = True
    places, head = dict(rows), " ".join(lines[at].split())
    for i in range(at, rows[-1][0] + 1):
        cells = places.get(i)
        if cells is None:
            if i > at and lines[i].strip() and not _RULE.fullmatch(lines[i]):
                fresh = True
                out += [lines[i].strip(" |")] if " ".join(lines[i].split()) != head else []  # a header again
            continue
        if fresh:
            out.append(header)
            fresh = False
        out.append("| " + " | ".join(cells[k] for k in layout.kept) + " |")
    return out
