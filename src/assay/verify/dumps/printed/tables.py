"""Tables in a log: a header that names its columns, and the rows below it.

A cell is about what its row and its column say together: a column of a statistic, of an element, of a list; a column of
a layer or of a node, whose rows are elements or statistics; a row named after a node, a layer, a token.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from assay.verify.dumps.naming.layer_and_row import LAYER, LAYERS, ROW, layer_of, row_of
from assay.verify.dumps.naming.phrases import meaning, split_words
from assay.verify.dumps.naming.statistic_names import statistic
from assay.verify.dumps.printed.lexer import MOST, Number, Values, Word, listed, pieces
from assay.verify.dumps.printed.statements import Said

_COLUMN = re.compile(r"(?:\w{0,12}?[\[_(]|[a-z]{1,5}|\[)?(\d{1,5})[\])]?", re.IGNORECASE)
_INDEX = re.compile(r"\[\d{1,5}\]")
_BARS = re.compile(r"\|{1,2}\w{1,12}\|{1,2}|‖\w{1,12}‖")
_SPEECH = re.compile(r"[()'\"#→<>?!]|\.\s|\.$")
_LAYER_HEAD = re.compile(r"[lL](?:[013-9]|[1-9]\d+)")
_LENGTH = re.compile(r"‖(.{1,40})‖(?:₂|_?2)?")
_ELEMENT = re.compile(r"([a-z]\w{0,11})\[(\d{1,5})\]")
_DECIMAL = re.compile(r"\d\.\d")
_NAME_COLUMN = {"name", "node", "tensor", "op", "stage", "what", "label", "activation", "tag", "site", "point", "step",
                "key", "module", "file", "filename", "dump",
                 "where", "hook", "probe", "stat", "metric", "kind", "variable", "buffer"}  # fmt: skip
_INDEX_COLUMN = {"i", "idx", "index", "(index)", "dim", "channel", "ch", "element", "elem", "#", "j", "k", "component"}
_DULL = {"shape", "dim", "dims", "n", "numel", "size", "dtype", "type", "count", "elems", "len"}
_ROW_COLUMN = ROW | {"token", "tok"}
_VALUES = {"first", "values", "sample", "head", "vals", "data", "slice", "preview"}


@dataclass(frozen=True)
class Table:
    """What each column holds, and the words of those that name a layer or a node."""

    columns: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    kind: str = ""  # the statistic that the title told
    mark: str = ""  # between its cells


def _mark(line: str) -> str:
    """What stands between the cells."""
    text = _INDEX.sub("", line.strip())
    if text[:1] != "|":
        text = _BARS.sub("", text)  # max|x|, ||x||
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
        return [c.strip() for c in text.strip("|").split("|")]
    if mark == " & ":
        return [c.strip() for c in text.replace("\\hline", "").rstrip(" \\").split("&")]
    if mark in ";,":
        return [c.strip().strip('"') for c in text.split(mark)]
    return [
        c.strip() for c in (re.split(r"\s{2,}", text) if mark == "  " else text.split(None if mark == " " else mark))
    ]


def _column(cell: str) -> str:
    """What a column of a table holds; empty where its head says nothing known."""
    word = cell.strip(" *`'\"").lower()
    words = split_words([cell])
    if _BARS.fullmatch(word) and word.strip("|‖") in ("x", "h", "y", "v", "z"):
        return "norm"
    if m := _LENGTH.fullmatch(cell):
        return "=norm" if meaning([m[1], "layer", "0"], generic=False).nodes else "norm"
    named = re.split(r"\s+", cell.strip(" *`'\"()."))
    if "|" in cell:  # Max |v|
        named = [p.text for p in pieces(cell) if isinstance(p, Word)]
        words = split_words(named)
    if kind := statistic(named if word else []):
        rest = _but_statistics(words)
        return f"={kind}" if rest and len(rest) < 6 and meaning([*rest, "layer", "0"], generic=False).nodes else kind
    if (m := _ELEMENT.fullmatch(word)) and m[1] not in LAYERS:
        return f"#{int(m[2])}"  # h[0]
    if "".join(words) in ("id", "tokenid", "tokid", "vocabid") or word in ("logit", "logits", "score", "logprob"):
        return "id" if words[-1] == "id" else "logit"
    if word in ("value", "val"):
        return "value"
    if word in _DULL:
        return "-"
    if word in LAYER - {"h"} or (
        set(words) & LAYER and words[-1:] and words[-1] in ("idx", "index", "no", "id", "num", "nr")
    ):
        return "layer"
    if set(words) & LAYERS and set(words) <= LAYERS | {"after", "of"}:
        return "layer"
    if len(words) > 1 and set(words) <= _ROW_COLUMN | {"idx", "index", "seq"}:
        return "row"
    if word in _ROW_COLUMN or word in _NAME_COLUMN or word in _INDEX_COLUMN:
        return "row" if word in _ROW_COLUMN else "name" if word in _NAME_COLUMN else "index"
    if set(words) & _VALUES and not layer_of(words)[1]:
        return "first"
    if len(words) == 2 and words[1].isdecimal() and row_of(words, set()) is not None:
        return "="
    if len(words) < 6 and (layer_of(words)[0] is not None and any(w in LAYER for w in words)):
        return "=" if len(word) < 40 else ""
    if m := _COLUMN.fullmatch(word):
        return f"#{int(m[1])}"
    return "=" if 0 < len(words) < 8 and meaning([*words, "layer", "0"], generic=False).nodes else ""


def _but_statistics(words: list[str]) -> list[str]:
    parts = {i + k for i in range(len(words) - 1) if words[i : i + 2] == ["l", "2"] for k in (0, 1)}
    dull = ("abs", "x", "h", "dev", "norm")
    return [w for i, w in enumerate(words) if not statistic([w]) and w not in dull and i not in parts]


def table_header(line: str) -> Table | None:
    if len(line) > 4096 or line[:1] == "#" or "=" in line:
        return None
    if ":" in line.replace(":-", "").replace("-:", "") and not (line.lstrip()[:1] == "|" and line.count("|") > 3):
        return None
    mark = _mark(line)
    cells = _cells(line, mark)
    if len(cells) < 2 or len(cells) > 2048 or (mark == "," and (". " in line or line.rstrip().endswith("."))):
        return None  # or a sentence
    if _DECIMAL.search(line) or any(c.count("(") != c.count(")") or c.count("[") != c.count("]") for c in cells):
        return None
    columns = tuple(_column(c) for c in cells)
    if mark == "  " and "" in columns and all(map(_column, line.split())):
        mark, cells = " ", line.split()  # "layer tensor      mean      std"
        columns = tuple(_column(c) for c in cells)
    if any(_LAYER_HEAD.fullmatch(c) for c in cells):  # beside L0 and L1, L2 is no norm
        columns = tuple("=" if c.lower() == "l2" else kind for c, kind in zip(cells, columns, strict=True))
    columns = _numbered_names(columns, cells)
    rest = columns[1:]
    if columns[0] == "=" and len(split_words(cells[:1])) == 1 and not any(c.startswith("=") for c in rest):
        columns = ("name", *rest)  # "after", above rows of stages
    if not columns[0] and len(columns) > 2 and all(rest) and ("|" in line or "\t" in line or "," in line):
        columns = ("name", *columns[1:])
    low = [c.lower() for c in cells]
    if {"norm1", "ln1"} & set(low):  # and norm2 is no length
        norms = ("norm1", "norm2", "ln1", "ln2")
        columns = tuple("=" if c in norms else kind for c, kind in zip(low, columns, strict=True))
    named = [c for c in columns if c and not c.startswith("#")]
    elements = [int(c[1:]) for c in columns if c.startswith("#")]
    if elements != sorted(elements) or sum(c.isdecimal() for c in cells) == 1:
        return None  # token ids, "LAYER   1 OF   3"
    counted = len(elements)
    about = {"layer", "name", "row", "index", "id"} & set(named)
    across = sum(1 for c in columns if c.startswith("="))
    strong = "|" in line or "\t" in line or "," in line
    marked = strong or "  " in line.strip()
    if not marked and ("" in columns or across or any(c.isdecimal() for c in cells)):
        return None
    if not strong and (
        _SPEECH.search(line.replace("[0]", "")) or 3 * sum(1 for c in columns[1:] if not c) > len(cells)
    ):
        return None
    if across and not about and not ("|" in line or "\t" in line or "  " in line.strip()):
        return None  # prose with a comma
    if across and not (about or columns[0] == "") and not (marked and across + 1 >= len(cells)):
        return None
    known = 2 * (len(named) + counted) >= len(cells) and (len(named) >= 2 or counted >= 2)
    unnamed = line[:4].isspace() and len(cells) > 2 and all(columns) and not across  # a data frame's
    if not known or not (about or (marked and across >= 2) or unnamed):
        return None
    return Table(columns, tuple(c.replace("+", " plus ") for c in cells), mark=mark)


def _numbered_names(columns: tuple[str, ...], cells: list[str]) -> tuple[str, ...]:
    """Beside other nodes, w1 and residual_2 are no elements, k no index, value no column of values."""
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


def table_row(table: Table, line: str, nth: int = 0) -> list[Said]:
    """What the nth row says: one line of its own, and one for every column that names a layer or a node."""
    if not table.columns or len(line) > MOST or table.mark not in line:
        return []
    cells = _cells(line, table.mark)
    columns, heads = table.columns, table.heads
    if len(cells) == len(columns) + 1 and columns[0]:
        counted = cells[0].isdecimal() and all(c[:1] == "=" for c in columns)
        columns, heads = ("layer" if counted else "name", *columns), ("", *heads)  # the first column has no head
    if len(cells) == len(columns) - 1 and columns[0] in ("layer", "row", "index"):
        cells = ["", *cells]  # a dash, for what is no layer's
    if len(cells) != len(columns) or not any(c.isdigit() for c in line):
        return []
    said = Said()
    at: list[tuple[int, Number]] = []
    across: list[tuple[str, str, str]] = []
    index: int | None = None
    single: Number | None = None
    for column, head, cell in zip(columns, heads, cells, strict=True):
        cut = pieces(cell)
        value = cut[0] if len(cut) == 1 and isinstance(cut[0], Number) else None
        if "logit" in columns and column in ("row", "name", "index"):
            if column == "row" and "id" not in columns and value is not None and value.whole:
                index = int(value.value)
        elif column in ("index", "id") and value is not None and value.whole:
            index = int(value.value)
        elif column in ("layer", "row") and value is not None and value.whole:
            if column == "layer":
                said.layer = int(value.value)
            else:
                said.row = int(value.value)
        elif column in ("name", "layer", "row", "index") or (column == "" and head == ""):
            said.label.append(cell.strip("`*' \"").replace("+", " plus "))
        elif column == "first":
            values = listed(cut)
            if isinstance(values, Values):
                said.add("list", values, ["first"])
        elif column.startswith("="):
            across.append((column[1:], head, cell))
        elif column.startswith("#") and value is not None:
            at.append((int(column[1:]), value))
        elif column in ("value", "logit"):
            single = value
        elif column and value is not None:
            said.add(column, value)
        elif not (column or value or cell[:1].isdigit()) and meaning([cell, "layer", "0"], generic=False).nodes:
            said.label.append(cell)
    if at:
        least = min(i for i, _ in at)
        ordered = [i - least for i, _ in at] == list(range(len(at)))
        if ordered and least in (0, 1) and len(at) > 1:
            said.add("list", Values(tuple(n for _, n in at)), ["first"])
        else:
            said.add("at", tuple(at))
    if single is not None and index is not None:
        said.label += ["logit"] if "logit" in columns else []
        said.add("at", ((index, single),))
    if index is None and all(c[:1] == "=" for c in columns):
        index = nth  # nothing but columns of values
    several = [
        s for kind, head, cell in across if (s := _across(said, kind, table.kind, head, cell, index)) is not None
    ]
    return several or ([said] if said.items else [])


def _across(row: Said, kind: str, title: str, head: str, cell: str, index: int | None) -> Said | None:
    """A cell below the name of a layer or of a node."""
    cut = pieces(cell)
    values = listed(cut)
    if not isinstance(values, Values) or values.whole:
        return None
    head = " ".join(_but_statistics(split_words([head]))) if kind else head
    kind = kind or title or (statistic(row.label[-1:]) or "" if row.label else "")
    label = _but_statistics(split_words(row.label)) if statistic(row.label[-1:]) else row.label
    said = Said([head, *label], layer=row.layer, row=row.row)
    if index is not None and len(values.all) == 1:
        said.add("at", ((index, values.first[0]),))
    elif kind and len(values.all) == 1:
        said.add(kind, values.first[0])
    elif len(values.all) > 1:
        said.add("list", values)
    return said if said.items else None
