"""Tables in a log: a header that names its columns, and the rows below it.

A cell is about what its row and its column say together: a column of a statistic, of an element, of a list; a column of
a layer or of a node, whose rows are elements or statistics; a row named after a node, a layer, a token.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from assay.verify.dumps.naming.phrases import VALUES, meaning, split_words
from assay.verify.dumps.naming.statistic_names import statistic
from assay.verify.dumps.observation import STATISTICS
from assay.verify.dumps.printed.columns import BARS, FUNCTION, column_kind, without_statistics
from assay.verify.dumps.printed.lexer import MOST, Number, NumberList, lex, listed
from assay.verify.dumps.printed.statements import Statement

_INDEX = re.compile(r"\[\d{1,5}\]")
_SPEECH = re.compile(r"[()'\"#→<>?!]|\.\s|\.$")
_LAYER_HEAD = re.compile(r"[lL](?:[013-9]|[1-9]\d+)")
_LETTER_NUMBER = re.compile(r"[hxyv]_?(\d{1,4})", re.IGNORECASE)
_BARRED = re.compile(r"\|\s+\|(\w{1,20})\|(?=\s+\|)")  # a cell "|attn_out|" between the bars of a table
_LENGTH = re.compile(r"(?<=\s)\|(\w{2,20})\|(?=\s|$)")  # |attn_out| beside other heads
_COUNTER = "(index)"  # the head that console.table gives its first column
_VALUES_NAME = re.compile(r"(['\"`]?)(?!nan\b|inf)[A-Za-z_][\w .\[\]/-]{0,40}\1", re.IGNORECASE)  # of a column `value`
_STREAM = {"x", "h", "hidden", "resid", "residual"}
_ONE_ROW = re.compile(r"\b(?:last|final|first)\s(?:token|pos|position|row)\b", re.IGNORECASE)  # LOGITS LAST TOKEN
_DECIMAL = re.compile(r"\d\.\d")


@dataclass(frozen=True)
class PrintedTable:
    """The header of a table: the kind of each column (`columns.py`) and its head."""

    columns: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    kind: str = ""  # the statistic in the title above
    mark: str = ""  # the separator of its cells
    widths: tuple[int, ...] = ()  # numbers in each cell between bars, where a cell has several
    otherwise: PrintedTable | None = None  # the table, if heads with one blank between them are one column
    line: str = ""  # the header as it was printed


def _mark(line: str) -> str:
    """The separator of the cells."""
    text = _INDEX.sub("", line.strip())
    if text[:1] != "|":
        text = BARS.sub("", text)  # max|x|, ||x||
    if text.count(";") > max(text.count("|"), 1):
        return ";"
    for mark in ("|", " & ", "\t"):
        if mark in text:
            return mark
    if "," in text and "[" not in text:
        return ","
    return "  " if "  " in text else " "


def _cells(line: str, mark: str) -> list[str]:
    text = line.strip()
    if mark == "|":
        if text.startswith("|| ") and text.endswith(" ||"):  # Jira's header
            text = text.replace("||", "|")
        return [c.strip() for c in _BARRED.sub(r"| norm(\1)", text).strip("|").split("|")]
    if mark == " & ":
        return [c.strip() for c in text.replace("\\hline", "").rstrip(" \\").split("&")]
    if mark in ";,":
        return [c.strip().strip('"') for c in text.split(mark)]
    return [
        c.strip() for c in (re.split(r"\s{2,}", text) if mark == "  " else text.split(None if mark == " " else mark))
    ]


def table_header(line: str) -> PrintedTable | None:
    """The table that begins with this header; None for any other line."""
    if len(line) > 4096 or line[:1] == "#" or "=" in line:
        return None
    if ":" in line.replace(":-", "").replace("-:", "") and not (line.lstrip()[:1] == "|" and line.count("|") > 3):
        return None
    line = _LENGTH.sub(r" norm(\1)", line) if " | " in line else line
    mark = _mark(line)
    cells = _cells(line, mark)
    widths = tuple(len(_heads_in(cell)) for cell in cells) if mark == "|" else ()
    if any(width > 1 for width in widths):
        found = _header_of([head for cell in cells for head in _heads_in(cell)], mark, line)
        return None if found is None else replace(found, widths=widths)
    if len(cells) < 2 or len(cells) > 2048 or (mark == "," and (". " in line or line.rstrip().endswith("."))):
        return None  # a sentence
    if _DECIMAL.search(line) or any(c.count("(") != c.count(")") or c.count("[") != c.count("]") for c in cells):
        return None
    found = _header_of(cells, mark, line)
    if mark != "  " or not any(column_kind(c) in ("", "=") and _is_run_together(c) for c in cells):
        return found
    apart = _header_of(line.split(), " ", line)  # "layer tensor      mean      std"
    return found if apart is None else replace(apart, otherwise=found)


def _header_of(cells: list[str], mark: str, line: str) -> PrintedTable | None:
    columns = _beside_each_other(tuple(column_kind(c) for c in cells), cells, line)
    if columns.count("row") > 1:  # beside a position, the token is its id
        columns = tuple(
            "id" if kind == "row" and split_words([cell]) in (["token"], ["tok"]) else kind
            for kind, cell in zip(columns, cells, strict=True)
        )
    if not _is_header(columns, cells, line):
        return None
    return PrintedTable(columns, tuple(c.replace("+", " plus ") for c in cells), mark=mark, line=line)


def aligned(table: PrintedTable, row: str) -> PrintedTable:
    """The table with a column for each cell of its first row, where the heads stand above the cells' right ends.

    Wide heads leave one blank between them, so that the header alone does not tell where a column ends.
    """
    cells = list(re.finditer(r"\S+", row))
    if table.mark.strip() or len(cells) == len(table.columns) or len(cells) < 3:
        return table
    heads: list[list[str]] = [[] for _ in cells]
    for word in re.finditer(r"\S+", table.line):
        at = next((i for i, cell in enumerate(cells) if cell.end() >= word.end()), None)
        if at is None or (at and word.start() < cells[at - 1].end()):
            return table
        heads[at].append(word[0])
    ends = [word.end() for word in re.finditer(r"\S+", table.line)]
    if not all(heads) or sum(cell.end() in ends for cell in cells) < len(cells) - 1:
        return table
    found = _header_of([" ".join(words) for words in heads], "  ", table.line)
    return table if found is None else replace(found, kind=table.kind)


def with_index(table: PrintedTable, line: str) -> PrintedTable | None:
    """The table with the columns that a data frame names below its header: "layer node"."""
    words = line.split()
    if table.mark.strip() or not 1 < len(words) < 5:
        return None
    if not all(column_kind(word) in ("layer", "name", "row", "index") for word in words):
        return None
    found = _header_of([*words, *table.heads], "  ", f"{line.rstrip()}  {table.line.strip()}")
    return None if found is None else replace(found, kind=table.kind)


def _heads_in(cell: str) -> list[str]:
    """Heads that stand between the same two bars: "attn_out sum   norm(attn_out)"."""
    heads = re.split(r"\s{2,}", cell)
    return heads if len(heads) > 1 and all(column_kind(head).startswith("=") for head in heads) else [cell]


def _is_run_together(cell: str) -> bool:
    """Whether these are heads of several columns with one blank between them."""
    kinds = [column_kind(word) for word in cell.split() if not word.isdecimal()]
    nodes = any(kind.startswith("=") for kind in kinds)
    return len(kinds) > 1 and not nodes and any(kind[:1] in ("-", "#") or kind in ("layer", "name") for kind in kinds)


def _cells_of_row(table: PrintedTable, line: str) -> list[str]:
    """The cells of a row. Wide numbers leave one blank between columns that the header keeps apart by more."""
    cells = _cells(line, table.mark)
    if len(cells) == len(table.widths):
        return [c for cell, n in zip(cells, table.widths, strict=True) for c in (cell.split() if n > 1 else [cell])]
    words = line.split()
    numbers = sum(any(c.isdigit() for c in word) for word in words)
    if table.mark != "  " or _fits(table, cells) or not _fits(table, words) or 2 * numbers <= len(words) or "=" in line:
        return cells
    return words


def _fits(table: PrintedTable, cells: list[str]) -> bool:
    """Whether there is a cell for every column, or one more for the count of a data frame."""
    return len(cells) in (len(table.columns), len(table.columns) + 1)


def _beside_each_other(columns: tuple[str, ...], cells: list[str], line: str) -> tuple[str, ...]:
    """The kinds of columns, corrected by their neighbours."""
    if any(_LAYER_HEAD.fullmatch(c) for c in cells):  # beside L0 and L1, L2 is no norm
        columns = tuple("=" if c.lower() == "l2" else kind for c, kind in zip(cells, columns, strict=True))
    if "layer" in columns:
        columns = _elements_beside_layers(columns, cells)
    columns = _numbered_names(columns, cells)
    if any("@" in kind for kind in columns):  # beside norm_p0, one number called att_norm_last is a length, too
        columns = tuple(
            "=norm" if kind == "=" and "norm" in split_words([cell]) else kind
            for kind, cell in zip(columns, cells, strict=True)
        )
    rest = columns[1:]
    if columns[0] == "=" and len(split_words(cells[:1])) == 1 and not any(c.startswith("=") for c in rest):
        columns = ("name", *rest)  # "after", above rows of stages
    if not columns[0] and len(columns) > 2 and all(rest) and ("|" in line or "\t" in line or "," in line):
        columns = ("name", *columns[1:])
    low = [c.lower() for c in cells]
    if {"norm1", "ln1"} & set(low):  # and norm2 is no length
        norms = ("norm1", "norm2", "ln1", "ln2")
        columns = tuple("=" if c in norms else kind for c, kind in zip(low, columns, strict=True))
    if "layer" in columns or low[0] == _COUNTER or "=norm" in columns:
        columns = tuple("=norm" if _length_of_output(k, c) else k for k, c in zip(columns, cells, strict=True))
    if columns.count("=norm") > 1:  # beside |q| and |k|, |v| is the length of the values
        columns = tuple("=norm" if c.strip("|‖₂") == "v" else kind for c, kind in zip(low, columns, strict=True))
    if low[0] == _COUNTER:
        columns = (_counter(columns[1:]), *columns[1:])
    if "layer" in columns and any(len(kind) > 1 and kind[0] == "=" for kind in columns):
        # beside attnL2, xL2 is of the stream
        columns = tuple(
            f"={kind}" if kind in STATISTICS and _STREAM & {*split_words([cell])} else kind
            for kind, cell in zip(columns, cells, strict=True)
        )
    return columns


def _elements_beside_layers(columns: tuple[str, ...], cells: list[str]) -> tuple[str, ...]:
    """Where a column gives the layer, h0, h1 and h2 are elements and no layers."""
    found = {i: int(m[1]) for i, c in enumerate(cells) if (m := _LETTER_NUMBER.fullmatch(c)) and columns[i] == "="}
    if len(found) < 2 or sorted(found.values()) != list(range(len(found))):
        return columns
    return tuple(f"#{found[i]}" if i in found else kind for i, kind in enumerate(columns))


def _counter(rest: tuple[str, ...]) -> str:
    """The kind of console.table's own column: it counts layers where no column of the engine names the row."""
    if {"layer", "row"} & set(rest):
        return "-"
    nodes = [kind for kind in rest if len(kind) > 1 and kind[0] == "="]
    known = all(kind in nodes or kind[:1] == "#" or kind in STATISTICS for kind in rest)
    return "layer" if nodes and known else "index"


def _length_of_output(kind: str, cell: str) -> bool:
    """Is it `attn_out_norm` beside a column of layers? One number a layer is the length of attn_out, not a norm's
    result."""
    words = split_words([cell])
    return kind == "=" and words[-1:] == ["norm"] and words[-2:-1] in (["out"], ["output"])


def _is_header(columns: tuple[str, ...], cells: list[str], line: str) -> bool:
    """Whether enough columns are known, and the line is neither prose nor a list of token ids."""
    named = [c for c in columns if c and not c.startswith("#")]
    elements = [int(c[1:]) for c in columns if c.startswith("#")]
    if elements != sorted(elements) or sum(c.isdecimal() for c in cells) == 1:
        return False  # token ids, "LAYER   1 OF   3"
    about = {"layer", "name", "row", "index", "id"} & set(named)
    across = sum(1 for c in columns if c.startswith("="))
    strong = any(mark in line for mark in "|\t,;")
    marked = strong or "  " in line.strip()
    if not marked and ("" in columns or across or any(c.isdecimal() for c in cells) or _ONE_ROW.search(line)):
        return False
    unknown = sum(1 for c in columns[1:] if not c)
    plain = FUNCTION.sub("", line.replace("[0]", "").replace("...", ""))
    if not strong and (_SPEECH.search(plain) or 3 * unknown > len(cells)):
        return False
    if across and not about and not ("|" in line or "\t" in line or "  " in line.strip()):
        return False  # prose with a comma
    if across and not (about or columns[0] == "") and not (marked and across + 1 >= len(cells)):
        return False
    known = 2 * (len(named) + len(elements)) >= len(cells) and (len(named) >= 2 or len(elements) >= 2)
    unnamed = line[:4].isspace() and len(cells) > 2 and all(columns) and not across  # a data frame's
    return known and bool(about or (marked and across >= 2) or unnamed)


def _numbered_names(columns: tuple[str, ...], cells: list[str]) -> tuple[str, ...]:
    """Beside other nodes, heads such as w1, residual_2, k and value name nodes too, not elements or an index."""
    elements = [int(c[1:]) for c in columns if c[:1] == "#"]
    run = len(elements) > 1 and elements[0] in (0, 1) and elements == list(range(elements[0], elements[-1] + 1))
    if run or sum(c == "=" for c in columns) < 2:
        return columns
    return tuple(
        "="
        if (kind[:1] == "#" or kind in ("value", "first", "index"))
        and meaning([cell, "layer", "0"], generic=False).nodes
        else kind
        for kind, cell in zip(columns, cells, strict=True)
    )


def unread_columns(table: PrintedTable) -> list[str]:
    """Heads of columns whose cells no statement takes: unknown ones, and statistics beside columns of nodes."""
    beside = any(kind.startswith("=") for kind in table.columns)
    ends = () if "layer" in table.columns else ("first", "last")
    return [
        head[:40]
        for kind, head in zip(table.columns, table.heads, strict=True)
        if head.strip(" .-") and (not kind or (beside and (kind in STATISTICS or kind in ends)))
    ]


def table_row(table: PrintedTable, line: str, nth: int = 0) -> list[Statement]:
    """The statements of the nth row: one of its own, and one for every column that names a layer or a node."""
    if not table.columns or len(line) > MOST or table.mark.strip() not in line:
        return []
    cells = _cells_of_row(table, line)
    if table.otherwise is not None and not _fits(table, cells):
        return table_row(replace(table.otherwise, kind=table.kind), line, nth)
    columns, heads = table.columns, table.heads
    if len(cells) == len(columns) + 1 and columns[0]:
        counted = cells[0].isdecimal() and all(c[:1] == "=" for c in columns)
        columns, heads = ("layer" if counted else "name", *columns), ("", *heads)  # the first column has no head
    if len(cells) == len(columns) - 1 and columns[0] in ("layer", "row", "index"):
        cells = ["", *cells]  # the first cell is missing: the row belongs to no layer
    if len(cells) != len(columns) or not any(c.isdigit() for c in line):
        return []
    row = _RowReader(columns)
    for column, head, cell in zip(columns, heads, cells, strict=True):
        row.take(column, head, cell)
    return row.statements(table.kind, nth)


@dataclass
class _RowReader:
    """The cells of a row, taken one after the other."""

    columns: tuple[str, ...]
    statement: Statement = field(default_factory=Statement)
    elements: list[tuple[int, Number]] = field(default_factory=list)
    endings: dict[int, Number] = field(default_factory=dict)  # by their distance from the end
    across: list[tuple[str, str, str]] = field(default_factory=list)  # kind, head, cell of a layer's or node's column
    # Statistics and first values of one token's row.
    of_rows: list[tuple[str, int, Number | NumberList]] = field(default_factory=list)
    index: int | None = None
    single: Number | None = None  # the value or logit at `index`

    def take(self, column: str, head: str, cell: str) -> None:
        lexemes = lex(cell)
        if column == "value" and _VALUES_NAME.fullmatch(cell.strip()):
            column = "name"
        value = lexemes[0] if len(lexemes) == 1 and isinstance(lexemes[0], Number) else None
        whole = int(value.value) if value is not None and value.whole else None
        if "logit" in self.columns and column in ("row", "name", "index"):
            if column == "row" and "id" not in self.columns and whole is not None:
                self.index = whole
        elif column == "id" and "row" in self.columns:
            self.statement.fed = whole  # the token at that position
        elif column == "first" and whole is not None and "head" in split_words([head]) and len(self.columns) > 3:
            self.statement.label += ["head", str(whole)]  # an attention head
        elif column in ("index", "id") and whole is not None:
            self.index = whole
        elif column == "layer" and whole == -1:
            self.statement.label.append("embd")  # before layer 0
        elif column == "layer" and whole is not None:
            self.statement.layer = whole
        elif column == "row" and whole is not None:
            self.statement.row = whole
        elif column in ("name", "layer", "row", "index") or (column == "" and head == ""):
            self.statement.label.append(cell.strip("`*' \"").replace("+", " plus "))
        elif column.startswith("="):
            self.across.append((column[1:], head, cell))
        elif "@" in column:
            kind, _, row = column.partition("@")
            values = listed(lexemes) if kind == "first" else None
            if isinstance(values, NumberList):
                self.of_rows.append((kind, int(row), values))
            elif value is not None and kind != "first":
                self.of_rows.append((kind, int(row), value))
        else:
            self._take_value(column, cell, value)

    def _take_value(self, column: str, cell: str, value: Number | None) -> None:
        if column in ("first", "last"):
            values = listed(lex(cell))
            if isinstance(values, NumberList):
                self.statement.add("list", values, [column])
        elif column.startswith("#") and value is not None:
            self.elements.append((int(column[1:]), value))
        elif column.startswith("~") and value is not None:
            self.endings[int(column[1:])] = value
        elif column in ("value", "logit"):
            self.single = value
        elif column and value is not None:
            self.statement.add(column, value)
        elif not (column or value or cell[:1].isdigit()) and meaning([cell, "layer", "0"], generic=False).nodes:
            self.statement.label.append(cell)

    def statements(self, title: str, nth: int) -> list[Statement]:
        """The statements of the row; `title` is the statistic above the table."""
        statement, at = self.statement, self.elements
        if at:
            least = min(i for i, _ in at)
            ordered = [i - least for i, _ in at] == list(range(len(at)))
            if ordered and least in (0, 1) and len(at) > 1:
                statement.add("list", NumberList(tuple(n for _, n in at)), ["first"])
            else:
                statement.add("at", tuple(at))
        if self.endings and set(self.endings) == set(range(1, len(self.endings) + 1)):
            ending = tuple(self.endings[k] for k in sorted(self.endings, reverse=True))
            statement.add("list", NumberList(ending), ["last"])
        if self.single is not None and self.index is not None:
            statement.label += ["logit"] if "logit" in self.columns else []
            statement.add("at", ((self.index, self.single),))
        if self.index is None and all(c[:1] == "=" for c in self.columns):
            self.index = nth  # nothing but columns of values
        several = [_across(statement, kind, title, head, cell, self.index) for kind, head, cell in self.across]
        rows = [_of_row(statement, *cell) for cell in self.of_rows]
        if rows and statement.items and not any(several):
            return [statement, *rows]
        found = [s for s in several if s is not None] + rows
        lists = [item for item in statement.items if item.kind in ("list", "at")]
        if found and lists and statement.layer is not None:  # beside nodes, a list is of the layer's output
            return [*found, replace(statement, items=lists, label=statement.label or ["x"])]
        told = len(self.columns) > 3 and statement.label and statement.layer is not None
        return found or ([statement] if statement.items or told else [])  # a row that says nothing more is no line


def _of_row(row: Statement, kind: str, at: int, value: Number | NumberList) -> Statement:
    """A statistic of one token's row, or its first values."""
    statement = Statement([word for word in row.label if word != VALUES], layer=row.layer, row=at)
    if isinstance(value, NumberList):
        statement.add("list", value, ["first"])
    else:
        statement.add(kind, value)
    return statement


def _across(row: Statement, kind: str, title: str, head: str, cell: str, index: int | None) -> Statement | None:
    """A cell below the name of a layer or of a node."""
    lexemes = lex(cell)
    values = listed(lexemes)
    if not isinstance(values, NumberList) or values.whole:
        return None
    if kind.startswith("#"):
        index, kind, head = int(kind[1:]), "", head.partition("[")[0]
    own = kind  # a statistic that the head names is no element, whatever counts the rows
    head = " ".join(without_statistics(split_words([head]))) or "x" if kind else head
    kind = kind or title or (statistic(row.label[-1:]) or "" if row.label else "")
    label = without_statistics(split_words(row.label)) if statistic(row.label[-1:]) else row.label
    statement = Statement([head, *label], layer=row.layer, row=row.row)
    if index is not None and not own and len(values.all) == 1:
        statement.add("at", ((index, values.first[0]),))
    elif kind and len(values.all) == 1:
        statement.add(kind, values.first[0])
    elif len(values.all) > 1:
        statement.add("list", values)
    return statement if statement.items else None
