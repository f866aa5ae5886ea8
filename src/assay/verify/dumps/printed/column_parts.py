"""Joins matrices that are printed in parts of some columns each: MATLAB, Octave, R, Torch, pandas.

    Columns 1 through 9            [,1]     [,2]               0         1  \\        Columns 1 to 8
       0.5   1.5 …           [1,]   0.5      1.5          0  0.5       1.5            0.5  1.5 …
    Columns 10 through 12          [,3]                        2                      Columns 9 to 12

A matrix becomes one line `[[0.5, 1.5, …], …]`, a row for each of its rows. MATLAB's common factor, `1.0e+03 *`, is
multiplied into its numbers. A matrix whose columns are headed by positions, `dim t0 t1 …`, becomes the first elements
of each position's row. Where the engine's tokens are as many as the columns and not as the rows, a column is a
token's, as column-major languages keep them. The variable, `x =`, is left out where all matrices have the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_LONGEST = 4000  # characters of a line
_MOST_ROWS = 1 << 14
_NUMBER = r"[-+\u2212]?(?>\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eEdD][-+]?\d{1,4})?"
_ROW = re.compile(rf"\s*+(?>(?:{_NUMBER}|[-+]?(?:nan|inf|NaN|Inf|NA))[\s,]*+)++")
_REAL = re.compile(r"[.eE]")
_COLUMNS = re.compile(
    r"\s{0,12}Columns?\s{1,4}(\d{1,6})(?:\s{1,4}(?:through|to|and|thru|-)\s{1,4}(\d{1,6}))?\s{0,4}:?\s{0,4}", re.I
)
_NAMED = re.compile(r"([^\n]{1,200}[=:])\s{1,4}(Columns?\s{1,4}1\b[\w ]{0,24}:?)\s{0,4}")
_R_HEAD = re.compile(r"\s*+(?:\[,\d{1,6}\]\s*+)++")
_R_ROW = re.compile(r"\s*+\[\d{1,6},\]\s")
_PANDAS = re.compile(r"\s{2,}(?:\d{1,6}\s++)++\\\s*+")
_PANDAS_LAST = re.compile(r"\s{2,}\d{1,6}(?:\s++\d{1,6})*+\s*+")
_INDEX = re.compile(r"\s*+\d{1,6}\s++(?=[-+.\d])")
_POSITIONS = re.compile(
    r"(.{0,80}?[=:]|)\s*+(?:dim|i|idx|index|ch|channel|d|k|feature|element|elem|#|j)\s++"
    r"((?:(?:t|tok|pos|p|token|position)[_=\[]?\d{1,5}\]?\s*+){2,})"
)
_SCALE = re.compile(r"\s{0,12}1\.0e([-+]?\d{1,3})\s?[*x×]\s{0,4}")
_ASSIGNED = re.compile(r"\s{0,12}(?:>> ?)?([A-Za-z_]\w{0,30}) =\s{0,4}")
_IDS = re.compile(r"(?:tokens?|ids|prompt|input)\D{0,24}(\d{1,7}(?:[\s,;]{1,4}\d{1,7}){1,4000})\W{0,4}$", re.I)


@dataclass
class _Matrix:
    """The rows so far, and how the next part must look."""

    kind: str
    rows: list[list[str]] = field(default_factory=list)
    part: int = 0  # rows of the part that is being read
    columns: int = 0  # of all parts
    scale: str = ""


def with_parts_joined(text: str) -> str:
    """The text with each matrix that is printed in parts on one line."""
    lines = _positions_as_rows(text.split("\n"))
    if not re.search(
        r"^\s{0,12}Columns?\s{1,4}1\b|[=:] {1,4}Columns?\s{1,4}1\b|^\s{0,12}\[,1\]|\d\s++\\\s*+$", text, re.MULTILINE
    ):
        return "\n".join(lines)
    lines = [part for line in lines for part in _head_apart(line)]
    tokens = _n_tokens(lines)
    out: list[str] = []
    places: list[int] = []
    at = 0
    while at < len(lines):
        found = _matrix_at(lines, at) if len(lines[at]) < _LONGEST else None
        if found is None:
            out.append(lines[at])
            at += 1
            continue
        matrix, end = found
        places.append(len(out))
        out.append(_on_one_line(matrix, tokens))
        at = end
    return "\n".join(_without_variables(out, places))


def _positions_as_rows(lines: list[str]) -> list[str]:
    """The lines with each matrix below `dim t0 t1 …`, one line an element, as a list of rows, one a position."""
    out: list[str] = []
    at = 0
    while at < len(lines):
        m = _POSITIONS.fullmatch(lines[at]) if len(lines[at]) < _LONGEST else None
        n = len(m[2].split()) if m else 0
        rows: list[list[str]] = []
        for i in range(at + 1, len(lines)) if m and _counts(m[2]) else ():
            line = lines[i]
            row = line.split() if len(line) < _LONGEST and _ROW.fullmatch(line) else []
            if len(row) != n + 1 or row[0] != str(len(rows)):
                break
            rows.append(row[1:])
        if m is None or len(rows) < 2:
            out.append(lines[at])
            at += 1
            continue
        columns = ("[" + ", ".join(column) + ", ...]" for column in zip(*rows, strict=True))
        out.append(f"{m[1]} [" + ", ".join(columns) + "]")
        at += 1 + len(rows)
    return out


def _head_apart(line: str) -> tuple[str, ...]:
    """The name before the first columns on the same line, and the columns: `x = Columns 1 to 8`."""
    m = _NAMED.fullmatch(line) if len(line) < 300 else None
    return (line,) if m is None else (m[1], m[2])


def _counts(heads: str) -> bool:
    return [int(n) for n in re.findall(r"\d{1,5}", heads)] == list(range(len(heads.split())))


def _n_tokens(lines: Sequence[str]) -> int:
    for line in lines[:200]:
        if len(line) < 2000 and (m := _IDS.search(line)):
            return len(re.findall(r"\d{1,7}", m[1]))
    return 0


def _matrix_at(lines: Sequence[str], at: int) -> tuple[_Matrix, int] | None:
    """The matrix that begins here, and the line behind it."""
    scale = ""
    if m := _SCALE.fullmatch(lines[at]):
        scale = f"e{int(m[1])}"
        at += 1
        while at < len(lines) and not lines[at].strip():
            at += 1
        if at >= len(lines):
            return None
    kind, first = _head(lines[at])
    if not kind or first != (0 if kind == "pandas" else 1):
        return None if not scale else _unparted(lines, at, scale)
    matrix = _Matrix(kind, scale=scale)
    end = at
    for i, line in _near(lines, at):
        now, begin = _head(line)
        if now != kind and kind == "pandas" and _PANDAS_LAST.fullmatch(line) and not _REAL.search(line):
            now, begin = kind, 0
        if now == kind:
            if (kind != "pandas" and begin != matrix.columns + 1) or (i > at and not matrix.part):
                break  # the next matrix, or columns without rows
            if matrix.part not in (0, len(matrix.rows)):
                return None
            matrix.part = 0
            continue
        row = _row(line, kind)
        if row is None or matrix.part >= _MOST_ROWS:
            break
        if matrix.columns and matrix.part < len(matrix.rows) and matrix.columns > 0 and len(matrix.rows[matrix.part]):
            matrix.rows[matrix.part] += row
        elif matrix.part == len(matrix.rows):
            matrix.rows.append(row)
        else:
            return None
        matrix.part += 1
        matrix.columns = len(matrix.rows[0])
        end = i + 1
    whole = matrix.rows and len({len(row) for row in matrix.rows}) == 1
    return (matrix, end) if whole else None


def _unparted(lines: Sequence[str], at: int, scale: str) -> tuple[_Matrix, int] | None:
    """A matrix below a common factor that fits into the width of the page."""
    matrix = _Matrix("columns", scale=scale)
    end = at
    for i, line in _near(lines, at):
        row = _row(line, "columns")
        if row is None or (matrix.rows and len(row) != len(matrix.rows[0])) or len(matrix.rows) >= _MOST_ROWS:
            break
        matrix.rows.append(row)
        end = i + 1
    return (matrix, end) if matrix.rows else None


def _near(lines: Sequence[str], at: int) -> Iterator[tuple[int, str]]:
    """The lines from here on, without blank ones."""
    for i in range(at, len(lines)):
        if len(lines[i]) >= _LONGEST:
            return
        if lines[i].strip():
            yield i, lines[i]


def _head(line: str) -> tuple[str, int]:
    """The kind of a line that names columns, and the first of them."""
    if m := _COLUMNS.fullmatch(line):
        return "columns", int(m[1])
    if _R_HEAD.fullmatch(line):
        return "R", int(line.strip()[2:].split("]")[0])
    if _PANDAS.fullmatch(line):
        return "pandas", int(line.split()[0])
    return "", 0


def _row(line: str, kind: str) -> list[str] | None:
    """The numbers of a row, None for another line."""
    if kind == "R":
        m = _R_ROW.match(line)
        line = line[m.end() :] if m else ""
    elif kind == "pandas":
        m = _INDEX.match(line)
        line = line[m.end() :].rstrip("\\ ") if m else ""
    if not line.strip() or not _ROW.fullmatch(line) or not _REAL.search(line):
        return None
    return line.replace(",", " ").split()


def _on_one_line(matrix: _Matrix, tokens: int) -> str:
    rows = [[_scaled(text, matrix.scale) for text in row] for row in matrix.rows]
    if tokens > 1 and len(rows[0]) == tokens != len(rows):
        rows = [list(column) for column in zip(*rows, strict=True)]
    if len(rows) == 1:
        return "[" + ", ".join(rows[0]) + "]"
    return "[" + ", ".join("[" + ", ".join(row) + "]" for row in rows) + "]"


def _scaled(text: str, scale: str) -> str:
    """The number times the common factor, with its printed digits."""
    return f"{text}{scale}" if scale and text[-1:].isdigit() and not re.search("[eEdD]", text) else text


def _without_variables(lines: list[str], places: Sequence[int]) -> list[str]:
    """The lines without `x =` above the matrices, if it is the same above all of several."""
    above: dict[int, str] = {}
    for place in places:
        i = place - 1
        while i >= 0 and not lines[i].strip():
            i -= 1
        if i >= 0 and (m := _ASSIGNED.fullmatch(lines[i])):
            above[i] = m[1]
    if len(above) > 1 and len(set(above.values())) == 1:
        return [line for i, line in enumerate(lines) if i not in above]
    return lines
