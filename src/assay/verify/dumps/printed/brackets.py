"""Recognises shapes of lexemes: ids with logits, slices, short vectors, a layer's number before its word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.verify.dumps.naming.layer_and_row import LAYER
from assay.verify.dumps.naming.phrases import meaning, split_words
from assay.verify.dumps.naming.statistic_names import statistic
from assay.verify.dumps.printed.lexer import (
    ASSIGN,
    BAR,
    COMMA,
    DOTS,
    SLASH,
    Bracket,
    Lexeme,
    Mark,
    Number,
    NumberList,
    Word,
    listed,
)

_HASH = Mark("#")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value that a line states. `kind` is "list", "at", "top", a statistic, or "?" for one that a title may name.

    `words` stand between it and the item before.
    """

    kind: str
    data: Any
    words: tuple[str, ...] = ()
    key: tuple[str, ...] = ()  # the last of these words, since a comma
    row: int | None = None  # by a slice: h[0, -1, :5]
    from_end: bool = False  # by a slice: x[-4:]
    outer: int | None = None  # of a matrix in an array of three axes: its place


def pairs_from(lexemes: Sequence[Lexeme], i: int) -> tuple[tuple[tuple[int, Number], ...], int]:
    """`2:2.12, 13:1.5` or `2 (2.12) 13 (1.5)`: ids with logits one after the other, at least two."""
    found: list[tuple[int, Number]] = []
    while i + 1 < len(lexemes):
        a, b = lexemes[i], lexemes[i + 1]
        c = lexemes[i + 2] if len(lexemes) > i + 2 else None
        if not (isinstance(a, Number) and a.whole and a.value >= 0):
            break
        if b is ASSIGN and isinstance(c, Number) and not c.whole:
            found.append((int(a.value), c))
            i += 3
        elif isinstance(b, Bracket) and len(b.items) == 1 and isinstance(b.items[0], Number) and not b.items[0].whole:
            found.append((int(a.value), b.items[0]))
            i += 2
        else:
            break
        while i < len(lexemes) and (
            lexemes[i] is COMMA or lexemes[i] is BAR or lexemes[i] in (Word("and"), Word("then"))
        ):
            i += 1
    return (tuple(found), i) if len(found) > 1 else ((), i)


def elements_from(lexemes: Sequence[Lexeme], i: int) -> tuple[tuple[int, Number], ...]:
    """`[0] 1.5 [1] 2.5`: at least two elements with rising indices."""
    found: list[tuple[int, Number]] = []
    while i + 1 < len(lexemes):
        a, b = lexemes[i], lexemes[i + 1]
        index = a.items[0] if isinstance(a, Bracket) and a.bracket == "[" and len(a.items) == 1 else None
        if not (isinstance(index, Number) and index.whole and isinstance(b, Number) and not b.whole):
            break
        if found and index.value <= found[-1][0]:
            break
        found.append((int(index.value), b))
        i += 2
    return tuple(found) if len(found) > 1 else ()


def quoted_pairs(group: Bracket) -> tuple[tuple[int, Number], ...]:
    """`[(450, "The", 9.5), …]`: the id first, the logit last, text between."""
    rows = [p for p in group.items if isinstance(p, Bracket)]
    if not rows or any(not isinstance(p, Bracket) and p is not COMMA and p is not DOTS for p in group.items):
        return ()
    found = []
    for row in rows:
        numbers = row.numbers()
        if len(numbers) != 2 or not numbers[0].whole:
            return ()
        found.append((int(numbers[0].value), numbers[1]))
    return tuple(found)


def assigned_pairs(items: Sequence[Lexeme]) -> tuple[tuple[int, Number], ...]:
    """`450: 9.5, 278: 8.25`, `450="9.5"`, `450 -> 9.5`: pairs and nothing else, at least two."""
    kept = [p for p in items if p is not COMMA]
    if len(kept) < 6 or len(kept) % 3:
        return ()
    found = []
    for a, b, c in zip(kept[::3], kept[1::3], kept[2::3], strict=True):
        if not (isinstance(a, Number) and a.whole and b is ASSIGN and isinstance(c, Number) and not c.whole):
            return ()
        found.append((int(a.value), c))
    return tuple(found)


def axes_of(group: Bracket) -> list[list[Lexeme]] | None:
    """The parts of a slice or an index, `[0, -1, :5]`, `[end]`, `[-4:]`; None for any other bracket."""
    axes: list[list[Lexeme]] = [[]]
    if group.bracket != "[" and not any(isinstance(p, Number) for p in group.items):
        return None  # x (end)
    for p in group.items[:24]:
        if p is COMMA:
            axes.append([])
        else:
            axes[-1].append(p)
    flat = [p for axis in axes for p in axis]
    plain = all(
        (isinstance(p, Number) and p.whole)
        or p is ASSIGN
        or p is DOTS
        or (isinstance(p, Word) and p.text.lower() in ("end", "last"))
        for p in flat
    )
    tells = any(isinstance(p, Word) or p is ASSIGN or (isinstance(p, Number) and p.value < 0) for p in flat)
    return axes if plain and tells and len(group.items) <= 24 else None


def lone_of(axis: Sequence[Lexeme]) -> int | None:
    if len(axis) != 1:
        return None
    return int(axis[0].value) if isinstance(axis[0], Number) else -1 if isinstance(axis[0], Word) else None


_VECTOR = re.compile(r"(?:vec|float|half|double|simd_?float|f32x|v)\d", re.IGNORECASE)


def vectors(items: list[Quantity]) -> list[Quantity]:
    """`vec4(…) vec4(…)`: short vectors side by side are one list."""
    found: list[Quantity] = []
    for item in items:
        last = found[-1] if found else None
        alike = last and len(item.words) == 1 and _VECTOR.fullmatch(item.words[0]) and last.words[-1:] == item.words
        if (
            last
            and alike
            and isinstance(last.data, NumberList)
            and isinstance(item.data, NumberList)
            and not last.data.elided
        ):
            found[-1] = replace(
                last, data=NumberList(last.data.first + item.data.first, item.data.last, item.data.elided)
            )
        else:
            found.append(item)
    return found


_LAYER_KEY = re.compile(r"[lL](?:[013-9]|[1-9]\d+)")


def layers_beside(items: list[Quantity]) -> list[Quantity]:
    """`L0=… L1=… L2=…`: beside other layers, L2 is no norm."""
    if not any(i.kind == "?" and _LAYER_KEY.fullmatch(i.key[-1]) for i in items if i.key):
        return items
    return [
        replace(i, kind="?", words=(*i.words, "L2")) if i.kind == "norm" and i.key[-1:] in (("L2",), ("l2",)) else i
        for i in items
    ]


def number_first(lexemes: Sequence[Lexeme]) -> tuple[int | None, int]:
    """A layer's number before the word: "[0] layer output", "0: block", "#0 layer"; and the number of lexemes read."""
    at = 1 if lexemes and isinstance(lexemes[0], Mark) else 0
    first = lexemes[at] if len(lexemes) > at else None
    number = first
    if isinstance(first, Bracket):
        number = first.items[0] if len(first.items) == 1 else None
    if not isinstance(number, Number) or not number.whole:
        return None, 0
    rest = at + 1
    if len(lexemes) > rest and lexemes[rest] is ASSIGN:
        rest += 1
    elif isinstance(first, Number) and not at:
        return None, 0  # "12 layers loaded"
    word = lexemes[rest] if len(lexemes) > rest else None
    names_layer = isinstance(word, Word) and set(split_words([word.text])) & LAYER
    own = isinstance(word, Word) and (
        meaning([word.text]).layer is not None or isinstance((*lexemes[rest + 1 :], None)[0], Number)
    )
    return (int(number.value), rest) if names_layer and not own else (None, 0)


def is_count(lexemes: Sequence[Lexeme], i: int) -> bool:
    """Whether the number is a total: behind "1 of" or "1/"."""
    if i < 2 or not isinstance(lexemes[i - 2], Number):
        return False
    between = lexemes[i - 1]
    return between is SLASH or (isinstance(between, Word) and between.text.lower() in ("of", "von", "de"))


def ranked(lexemes: Sequence[Lexeme], items: list[Quantity]) -> list[Quantity]:
    """Best logits with their ids in two lists, in either order: `values=[9.5, 8.1] indices=[2, 13]`."""
    lists = [p for p in lexemes if isinstance(p, Bracket) and p.bracket in "[("]
    named = [p.text.lower() for p in lexemes if isinstance(p, Word)]
    if (
        len(items) != 1
        or items[0].kind != "list"
        or not set(named) & {"indices", "ids", "idx", "index", "argsort", "topk"}
    ):
        return items
    values = items[0].data
    if not isinstance(values, NumberList):
        return items
    whole = [
        v for p in lists if isinstance(v := listed(p.items), NumberList) and v.whole and len(v.all) == len(values.all)
    ]
    if len(whole) != 1:
        return items
    pairs = tuple((int(i.value), n) for i, n in zip(whole[0].all, values.all, strict=True))
    return [Quantity("top", pairs, items[0].words, items[0].key, items[0].row)]


def plain(lexemes: Sequence[Lexeme]) -> list[Lexeme]:
    """The lexemes without `#` before a number, and with the name of a function behind its argument."""
    lexemes = list(lexemes)
    found: list[Lexeme] = []
    for i, piece in enumerate(lexemes):
        before = found[-1] if found else None
        if isinstance(piece, Number) and before == _HASH and lexemes[i + 1 : i + 2] == [ASSIGN]:
            found.pop()
        call = isinstance(piece, Bracket) and piece.bracket == "(" and lexemes[i + 1 : i + 2] == [ASSIGN]
        if call and isinstance(piece, Bracket) and isinstance(before, Word) and statistic([before.text]):
            found.pop()
            found += [*piece.items, before]  # norm(x[:, end]) = 1.5
            continue
        found.append(piece)
    return found
