"""Makes statements of numbers below each other: a list, rows, elements with an index, one statistic a layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from assay.verify.dumps.naming.phrases import split_words
from assay.verify.dumps.naming.statistic_names import statistic
from assay.verify.dumps.printed.bracket_rules import TOP_WORDS
from assay.verify.dumps.printed.headings import HeadingStack
from assay.verify.dumps.printed.lexer import DOTS, Bracket, Lexeme, Number, NumberList, listed
from assay.verify.dumps.printed.line_blocks import Block, numbers_of
from assay.verify.dumps.printed.statements import Statement

_SHAPE = re.compile(r"(?<!\d)(\d{1,6})\s?[×x]\s?(\d{1,6})\s")  # 32×24 Matrix{Float32}
_TOP = TOP_WORDS | {"greatest", "id", "ids", "logit", "logits"}


def block_statements(block: Block, context: HeadingStack, n_tokens: int, title: str = "") -> list[Statement]:
    """The statements of a block of numbers under its heading. `title` is the line above, which may give the shape."""
    rows = [numbers_of(row) for row in block.rows]
    shape = _SHAPE.search(title[:200])
    if shape and int(shape[2]) == n_tokens != int(shape[1]) and not block.index:
        return _columns_of_tokens(block, int(shape[1]), n_tokens)
    if block.index:
        return _indexed(block.index, rows, context)
    widths = {len(row) for row in rows if row}
    apart = len(widths) == 1 and widths != {1} and len(rows) > 1 and not block.wrapped
    items: list[Lexeme]
    if apart and (len(rows) == n_tokens or (len(rows) > 4 and len(rows[0]) < 6 and not n_tokens)):
        items = [Bracket("[", tuple(_with_dots(texts))) for texts in block.rows if numbers_of(texts)]
    else:
        items = [lexeme for texts in block.rows for lexeme in _with_dots(texts)]
    statement = Statement()
    values = listed(items)
    if values is not None:
        statement.add("list", values)
    return [statement]


def _with_dots(texts: Sequence[str]) -> list[Lexeme]:
    """The numbers of a row, and an ellipsis where some are left out."""
    found: list[Lexeme] = []
    for text in texts:
        found += numbers_of((text,)) or [DOTS]
    return found


def _columns_of_tokens(block: Block, width: int, n_tokens: int) -> list[Statement]:
    """A matrix with a row for each element and a column for each token, as Julia prints: `32×24 Matrix{Float32}:`."""
    places = _places([bool(numbers_of(row)) for row in block.rows], width)
    found: dict[int, list[tuple[int, Number]]] = {}
    for element, row in zip(places, block.rows, strict=True):
        tokens = _places(
            [text[-1:].isdigit() or (text[-1:] == "." and bool(text.strip("."))) for text in row], n_tokens
        )
        for token, text in zip(tokens, row, strict=True):
            if element is not None and token is not None:
                found.setdefault(token, []).extend((element, n) for n in numbers_of((text,)))
    statements = []
    for token, pairs in found.items():
        statement = Statement(row=token)
        statement.add("at", tuple(pairs))
        statements.append(statement)
    return statements


def _places(shown: Sequence[bool], size: int) -> list[int | None]:
    """The index of each shown part; those behind an ellipsis count from the end."""
    cut = shown.index(False) if False in shown else len(shown)
    return [None if not s else i if i < cut else size - len(shown) + i for i, s in enumerate(shown)]


def _indexed(index: Sequence[int], rows: Sequence[Sequence[Number]], context: HeadingStack) -> list[Statement]:
    """One number a line with an index: elements, best logits, or a statistic a layer. Also rows with a number."""
    words = split_words(context.words)
    kind = next((k for w in context.words if (k := statistic([w])) and k != "norm"), None)
    logits = context.subject.nodes == ("result_output",)
    if any(len(row) != 1 for row in rows) or (context.each and kind and not logits):
        several = []
        for i, row in zip(index, rows, strict=True):
            statement = Statement(layer=i) if context.each or context.subject.layer is None else Statement(row=i)
            if kind and len(row) == 1:
                statement.add(kind, row[0])
            elif row:
                statement.add("list", NumberList(tuple(row)))
            several.append(statement)
        return several
    counted = list(index) == list(range(index[0], index[0] + len(index)))
    base = 1 if counted and index[0] == 1 and not logits else 0
    statement = Statement()
    falls = all(a[0].value >= b[0].value for a, b in pairwise(rows))
    best = logits and (not counted or (falls and bool(set(words) & _TOP)))
    statement.add("top" if best or not (counted or context.subject.role) else "at",
             tuple((i - base, row[0]) for i, row in zip(index, rows, strict=True)))  # fmt: skip
    return [statement]
