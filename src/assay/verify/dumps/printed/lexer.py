"""Cuts a printed line into lexemes: words, numbers with their printed precision, marks, and brackets of these.

Nothing here knows models. One pass finds the lexemes; brackets nest. Every step takes time in proportion to the line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from assay.verify.dumps.print_rounding import Number as Number
from assay.verify.dumps.print_rounding import half_unit
from assay.verify.dumps.printed.statistic_signs import BARRED, LEXEMES, WORDS

MOST = 1 << 18  # characters read of one line, or of one array printed over several lines
MOST_PIECES = 1 << 13
_DEEPEST = 8  # brackets inside brackets

_NUMBER = (
    r"[-+\u2212]?(?>\d[\d_]{0,60}(?:\.(?!\.)\d{0,60})?|\.\d{1,60})(?:[eEdD][-+]?\d{1,6})?"
    r"(?:_?(?:f16|f32|f64|bf16|f0|[fFhL])(?!\w))?+"
)
_PIECE = re.compile(
    r"(?P<space>\s++)"
    r"|(?P<unit>(?<![\w.])\d{1,20}(?:\.\d{1,20})?\s?(?:ms|us|µs|μs|ns|s|secs?|seconds|[KMGT]i?B|bytes|tok/s|tokens/s|%)(?![\w/]))"
    + "".join(rf"|(?P<{kind}>{sign})" for kind, sign in LEXEMES.items())
    + r"|(?P<dots>\.{2,}|…|\u22ef|\u22ee)"
    rf"|(?P<number>(?<!\w)(?:{_NUMBER})(?![A-Za-z0-9_]|\.\w))"
    r"|(?P<odd>(?<![\w.])[-+\u2212]?(?:nan|inf|infinity|NaN|NAN|Inf|INF|Infinity|null|None)(?:f)?(?!\w)(?:\(ind\))?(?!\s{0,2}[=:]))"
    r"|(?P<word>[^\W\d](?:\w|[.]\w|::\w|/\w|-(?=[^\W\d])\w|-(?=\d{1,5}(?![\w.]))\w|\[\d{1,5}\](?=[.\w]))*+)"
    r"|(?P<id>\d\w{0,80})"
    r"|(?P<text>\"(?:[^\"\\]|\\.){0,64}+\"|'(?:[^'\\]|\\.){0,64}+'|`[^`]{0,64}+`)"
    r"|(?P<open>[\[({<])"
    r"|(?P<close>[\])}>])"
    r"|(?P<assign>=>|->|→|:=|==|[=:：≈~])"
    r"|(?P<mark>[,;|&\t])"
    r"|(?P<other>.)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Word:
    """Letters, with the dots, dashes and indices that belong to a name."""

    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """`=` for anything that assigns, `,` for anything that separates, `…`, or another sign."""

    text: str


@dataclass(frozen=True, slots=True)
class Bracket:
    """The lexemes between two brackets."""

    bracket: str
    items: tuple[Lexeme, ...]

    def numbers(self) -> list[Number]:
        return [p for p in self.items if isinstance(p, Number)]


Lexeme = Number | Word | Mark | Bracket
DOTS = Mark("…")
ASSIGN = Mark("=")
COMMA = Mark(",")
BAR = Mark("|")
SLASH = Mark("/")
_MARKS = {mark.text: mark for mark in (SLASH, *map(Mark, "[](){}<>*#-_!?"))}
_CLOSES = {"]": "[", ")": "(", "}": "{", ">": "<"}


def number(text: str) -> Number:
    """A number as people print them: `1.5`, `-2e-3`, `.5`, `1_000`, `0.5f32`, with a real minus sign."""
    plain = text.replace("\u2212", "-").replace("_", "").lower().replace("d", "e")
    for suffix in ("bf16", "f16", "f32", "f64", "f0", "f", "h", "l"):
        plain = plain.removesuffix(suffix)
    return Number(plain, float(plain), half_unit(plain))


def odd_number(text: str) -> Number:
    """NaN and infinities; many programs write JSON's null for NaN."""
    plain = text.lower().removesuffix("(ind)").removesuffix("f") if text.lower() != "inf" else "inf"
    sign = -1.0 if plain.startswith(("-", "\u2212")) else 1.0
    value = sign * math.inf if "in" in plain and "nan" not in plain else math.nan
    return Number(text, value, 0.0)


def lex(line: str) -> tuple[Lexeme, ...]:
    """The lexemes of a line, with nested brackets. An open bracket ends with the line."""
    stack: list[tuple[str, list[Lexeme]]] = [("", [])]
    for count, piece in enumerate(_scan(line)):
        if count > MOST_PIECES:
            break
        if type(piece) is not Mark:
            stack[-1][1].append(piece)
        elif piece.text in "[({":
            if len(stack) <= _DEEPEST:
                stack.append((piece.text, []))
        elif piece.text in "])}":
            if stack[-1][0] == _CLOSES[piece.text]:
                _close(stack)
        else:
            stack[-1][1].append(piece)
    while len(stack) > 1:
        _close(stack)
    return tuple(stack[0][1])


def _close(stack: list[tuple[str, list[Lexeme]]]) -> None:
    bracket, items = stack.pop()
    stack[-1][1].append(Bracket(bracket, tuple(items)))


def _scan(line: str) -> Iterator[Lexeme]:
    for m in _PIECE.finditer(line[:MOST]):
        kind, text = m.lastgroup, m[0]
        if kind == "number":
            yield number(text)
        elif kind == "odd":
            yield odd_number(text)
        elif kind in WORDS:
            yield from map(Word, _inside(text) if kind == "norm" else ())
            yield Word(WORDS[kind])
        elif kind in ("word", "id"):
            yield Word(text)
        elif kind == "text":
            yield Word(text[1:-1], quoted=True) if text[0] == "'" and text[1:-1].isdecimal() else _quoted(text[1:-1])
        elif kind == "dots":
            yield DOTS
        elif kind == "assign":
            yield ASSIGN
        elif kind == "mark":
            yield COMMA if text in ",;&\t" else BAR
        elif kind in ("open", "close", "other"):
            yield _MARKS.get(text) or Mark(text)


_ARGUMENTS = re.compile(r"\([^()]{0,60}\)")
_STATE = re.compile(r"[hx][\W_]{0,3}(\d{1,4})\W{0,2}")  # h⁽0⁾
_NAMES = re.compile(r"[^\W\d]\w*|\d+")


def _inside(text: str) -> list[str]:
    """The words inside the bars of a norm, without arguments of functions: ‖Attn(RMSNorm(h))·W_O‖₂."""
    inner = text.lstrip("|‖∥").rpartition(text[0])[0].strip("|‖∥ ")
    if text[0] not in "‖∥":
        return [w for w in inner.split() if len(w) > 2 or w.isdecimal()]
    inner = _ARGUMENTS.sub(" ", _ARGUMENTS.sub(" ", inner)).strip()
    if m := _STATE.fullmatch(inner):
        return ["hidden", "layer", m[1]]
    if inner in ("e", "E"):
        return ["embedding"]
    return [w for w in _NAMES.findall(inner) if len(w) > 1 or w.isdecimal()]


def statistic_sign(text: str) -> str:
    """The statistic that the whole text writes in signs: `max|x|`, `√⟨x²⟩`; empty for any other text."""
    if text.isascii() and not any(sign in text for sign in "|^*("):
        return ""
    m = _PIECE.match(text + "=")
    return WORDS[m.lastgroup] if m and m.end() == len(text) and m.lastgroup in WORDS else ""


_BARRED_SIGN = re.compile("|".join(f"(?P<{kind}>{sign})" for kind, sign in LEXEMES.items() if kind in BARRED))


def barred_signs_as_words(text: str) -> str:
    """The text with words for the statistics that are written with bars: `max|.|` is `absmax`."""
    return _BARRED_SIGN.sub(lambda m: WORDS[m.lastgroup or "norm"], text)


_WHOLE_NUMBER = re.compile(_NUMBER)


_QUOTED_LIST = re.compile(rf"{_NUMBER}(?:[\s,;]++{_NUMBER})++(?:[\s,]*+(?:\.\.\.|…))?")


_BETWEEN = re.compile(r"[\s,;]+")


def _quoted(text: str) -> Lexeme:
    if text[:1] in (" ", "▁", "Ġ") and text.strip(" ▁Ġ").isalpha():  # a token's text, not the name of a value
        return Mark(text)
    if text[:1] == "[":  # key="[1.5 2.5]"
        found = lex(text)
        if len(found) == 1 and isinstance(found[0], Bracket):
            return found[0]
    if _QUOTED_LIST.fullmatch(text) and "." in text:
        parts = _BETWEEN.split(text)
        return Bracket("[", tuple(number(t) if t[-1:] not in (".", "…") or t[:-1].isdigit() else DOTS for t in parts))
    if sign := statistic_sign(text):  # "max|x|": 1.5
        return Word(sign)
    return number(text) if _WHOLE_NUMBER.fullmatch(text) else Word(text, quoted=True)


def open_brackets(line: str) -> int:
    """How many square or round brackets the line leaves open; below 0 where it closes more than it opens."""
    depth = 0
    for c in line:
        if c in "[(":
            depth += 1
        elif c in "])":
            depth -= 1
    return depth


@dataclass(frozen=True)
class NumberList:
    """A printed list of numbers; the middle may be left out."""

    first: tuple[Number, ...]
    last: tuple[Number, ...] = ()
    elided: bool = False  # it has an ellipsis

    @property
    def all(self) -> tuple[Number, ...]:
        return self.first + self.last

    @property
    def whole(self) -> bool:
        """Whether all are whole: counts, ids or a shape rather than values of a tensor."""
        return all(n.whole for n in self.all)


@dataclass(frozen=True)
class NumberRows:
    """Lists inside a list: rows from the front, and from the back where the middle was left out."""

    first: tuple[NumberList, ...]
    last: tuple[NumberList, ...] = ()
    elided: bool = field(default=False)


def listed(items: Sequence[Lexeme]) -> NumberList | NumberRows | None:
    """The numbers of a bracket or of columns: one list, or rows of lists; None for anything else."""
    items = [p for p in items if p is not COMMA and p is not BAR]
    while len(items) == 1 and isinstance(items[0], Bracket):
        items = [p for p in items[0].items if p is not COMMA]
    if not items:
        return None
    if all(isinstance(p, Number) or p is DOTS for p in items) and any(isinstance(p, Number) for p in items):
        return _values(items)
    if all(isinstance(p, Bracket) or p is DOTS for p in items):
        rows: list[list[NumberList]] = [[], []]
        elided = False
        for p in items:
            if not isinstance(p, Bracket):
                elided = True
                continue
            row = listed(p.items)
            if isinstance(row, NumberRows) and len(row.first) == 1 and not row.elided:
                row = row.first[0]
            if not isinstance(row, NumberList):
                return None
            rows[elided].append(row)
        return NumberRows(tuple(rows[0]), tuple(rows[1]), elided) if rows[0] else None
    return None


def matrices(items: Sequence[Lexeme]) -> tuple[tuple[int, NumberRows], ...]:
    """The matrices of a bracket three levels deep, by their place; those behind an ellipsis count from the end."""
    items = [p for p in items if p is not COMMA]
    while len(items) == 1 and isinstance(items[0], Bracket):
        items = [p for p in items[0].items if p is not COMMA]
    if len(items) < 2 or not all(isinstance(p, Bracket) or p is DOTS for p in items):
        return ()
    cut = next((i for i, p in enumerate(items) if p is DOTS), len(items))
    found = []
    for i, p in enumerate(items):
        rows = listed([p]) if isinstance(p, Bracket) else None
        if isinstance(rows, NumberRows):
            found.append((i if i < cut else i - len(items), rows))
        elif p is not DOTS:
            return ()
    return tuple(found)


def _values(items: Sequence[Lexeme]) -> NumberList:
    halves: list[list[Number]] = [[], []]
    elided = False
    for p in items:
        if isinstance(p, Number):
            halves[elided].append(p)
        else:
            elided = True
    return NumberList(tuple(halves[0]), tuple(halves[1]), elided)
