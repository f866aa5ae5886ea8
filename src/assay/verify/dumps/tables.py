"""Tables in a log: a header that names its columns, and the rows below it."""

from __future__ import annotations

import re

from assay.verify.dumps.lines import MOST, Number, Values, listed, pieces
from assay.verify.dumps.said import STATISTIC_WORDS, Said
from assay.verify.dumps.words import LAYER, ROW, split_words

_COLUMN = re.compile(r"(?:v|x|val|value|d|e|c|col|h|y|a)?[\[_]?(\d{1,5})\]?", re.IGNORECASE)
_DECIMAL = re.compile(r"\d\.\d")
_NAME_COLUMN = {"name", "node", "tensor", "op", "stage", "what", "label", "activation"}


def _cells(line: str) -> list[str]:
    text = line.strip()
    if "|" in text:
        return [c.strip() for c in text.strip("|").split("|")]
    if "\t" in text:
        return [c.strip() for c in text.split("\t")]
    if "," in text and "[" not in text:
        return [c.strip() for c in text.split(",")]
    return [c.strip() for c in re.split(r"\s{2,}", text)] if "  " in text else text.split()


def _column(cell: str) -> str:
    """What a column of a table holds; empty where its head says nothing known."""
    word = cell.strip(" *`").lower()
    joined = "".join(split_words([word]))
    if word in STATISTIC_WORDS or joined in STATISTIC_WORDS:
        return STATISTIC_WORDS.get(word) or STATISTIC_WORDS[joined]
    if word in LAYER or word in ROW or word in _NAME_COLUMN:
        return "layer" if word in LAYER else "row" if word in ROW else "name"
    if set(split_words([word])) & {"first", "values", "sample", "head"}:
        return "first"
    m = _COLUMN.fullmatch(word)
    return f"#{int(m[1])}" if m else ""


def table_header(line: str) -> tuple[str, ...] | None:
    if len(line) > 4096 or line[:1] == "#" or "=" in line or ":" in line.replace(":-", "").replace("-:", ""):
        return None
    cells = _cells(line)
    if len(cells) < 2 or len(cells) > 2048:
        return None
    columns = tuple(_column(c) for c in cells)
    named = [c for c in columns if c and not c.startswith("#")]
    counted = len([c for c in columns if c.startswith("#")])
    about = {"layer", "name", "row"} & set(named)
    known = 2 * (len(named) + counted) >= len(cells) and (len(named) >= 2 or counted >= 2)
    return columns if about and known and not _DECIMAL.search(line) else None


def table_row(columns: tuple[str, ...], line: str) -> Said | None:
    if not columns or len(line) > MOST:
        return None
    cells = _cells(line)
    if len(cells) != len(columns) or not any(c.isdigit() for c in line):
        return None
    said = Said([], [], [], [])
    at: list[tuple[int, Number]] = []
    for column, cell in zip(columns, cells, strict=True):
        cut = pieces(cell)
        value = cut[0] if len(cut) == 1 and isinstance(cut[0], Number) else None
        if column == "name":
            said.label.append(cell.strip("`* "))
        elif column in ("layer", "row") and value is not None and value.whole:
            if column == "layer":
                said.layer = int(value.value)
            else:
                said.row = int(value.value)
        elif column in ("layer", "row"):
            said.label.append(cell.strip("`* "))
        elif column == "first":
            values = listed(cut)
            if isinstance(values, Values):
                said.lists.append((["first"], values))
        elif column.startswith("#") and value is not None:
            at.append((int(column[1:]), value))
        elif column and value is not None:
            said.statistics.append((column, value))
    if at:
        least = min(i for i, _ in at)
        first = [n for _, n in at]
        ordered = [i - least for i, _ in at] == list(range(len(at)))
        if ordered and least in (0, 1):
            said.lists.append((["first"], Values(tuple(first))))
        else:
            said.pairs.append(("at", tuple(at)))
    return said
