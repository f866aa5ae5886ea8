"""One printed line as pieces: words, numbers with the precision they were printed in, lists of them, and marks.

Nothing here knows models. A line is stripped of what loggers put before it (colours, time, level, place in the code),
cut into pieces by one pass, and its brackets become lists. Every step takes time in proportion to the line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from assay.verify.dumps.print_rounding import Number as Number
from assay.verify.dumps.print_rounding import half_unit

MOST = 1 << 18  # characters read of one line, or of one array printed over several lines
MOST_PIECES = 1 << 13
_DEEPEST = 8  # brackets inside brackets

_COLOUR = re.compile(r"\x1b(?:\[[0-9;:?]*+[ -/]*+[@-~]|\][^\x07\x1b]*+(?:\x07|\x1b\\)|[@-Z\\-_])")
_TIME = (
    r"(?:\d{4}[-/]\d\d[-/]\d\d|(?:\w{3}\s{1,2})?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s{1,2}\d{1,2})?"
    r"[ T]?\d\d?:\d\d:\d\d(?:[.,:]\d{1,9})?(?:Z|\s?[+-]\d\d:?\d\d)?"
)
_LEVEL = (
    r"(?i:TRACE|DEBUG|DBG|DBUG|VERBOSE|FINE|FINER|FINEST|INFO|INF|NOTICE|WARN|WRN|WARNING|ERROR|ERR|FATAL|FTL|VRB|LOG)"
)
_CODE = (
    r"rs|[ch]|cc|[ch]pp|cuh?|go|zig|py|ipynb|jl|m?js|tsx?|swift|mm?|metal|java|kts?|cs|fsx?|vb|rb|f|f90|f95|for|exs?|erl"
    r"|dart|nim|mli?|hs|v|odin|lua|[rR]|php|pl|scm|lisp|clj|ad[bs]|pas|cr|d|scala|wgsl|glsl|comp|cl|asm|s"
)
_PROMPT = (
    r"(?:\((?:\w{1,4}-)?(?:gdb|lldb|dlv|i?pdb|Pdb|rdbg)\)|In \[\d{0,5}\]:|Out\[\d{0,5}\]:|>>>"
    r"|(?:julia|user|ghci|irb|iex|octave|node|utop|lua|php|jshell|sbcl|scala|R)[\w(): .]{0,20}[=*#]?>)"
)
_PREFIXES = tuple(
    re.compile(p)
    for p in (
        r"\s*\[" + _TIME + r"\s{1,4}" + _LEVEL + r"\s{1,4}[\w:./-]{1,80}\]\s*",  # [time level module]
        r"\s*[\[(<]?" + _TIME + r"[\])>]?\s*(?:[-|:]\s+)?",  # a time, alone or in brackets
        r"\s*[\[(<]\s{0,20}" + _LEVEL + r"\s{0,20}[\])>]:?\s*",  # [INFO]
        r"\s*" + _LEVEL + r"\([\w.]{1,40}\): ",  # debug(scope):
        r"\s*" + _LEVEL + r"(?:\s{1,20}|:\s*|\()(?=\S)",  # INFO, debug:
        r"\s*" + _LEVEL + r":[\w.]{1,40}:\s*",  # DEBUG:llama:
        r"\s*(?:time|ts|timestamp)=\S{1,60}\s+",  # time=… level=…
        r"\s*(?:level|lvl|severity)=\w{1,12}\s+",
        r"\s*[IWEFD]\d{4}\s+\S{1,40}\s+\d{1,10}\s+[\w./-]{1,200}:\d{1,7}\]\s*",  # glog
        r"\s*\d\d-\d\d\s+\d\d:\d\d:\d\d\.\d{1,6}\s+\d{1,9}\s+\d{1,9}\s+[VDIWEF]\s+\S{1,60}\s*:\s*",  # logcat
        r"\s*\d+\.\d\d\.\d{3}\.\d{3}\s+[A-Z]\s+",  # llama.cpp's clock and level
        r"\s*[VDIWE] \(\d{1,12}\) [\w.-]{1,40}: ",  # a microcontroller's
        r"\s*[VDIWEF]/[\w.-]{1,40}\s{0,8}(?:\(\s{0,8}\d{1,9}\))?:\s*",  # logcat, brief
        r"\s*" + _PROMPT + r"\s+",  # what a debugger or a console asks with
        r"\s*(?:\([\w \[\]*<>]{1,40}\)\s{1,4})?\$(?:\d{1,6}|R\d{1,6})\s*=\s*",  # $1 =
        r"\s*\[\s*\d{1,8}\.\d{3,9}s?\]\s+(?=\S)",  # seconds since the start
        r"\s*[\[(]?(?:[\w.-]{1,80}/){0,20}[\w.-]{1,80}\.(?:" + _CODE + r")"
        r":\d{1,7}(?::\d{1,5})?(?![\d.])[\])]?:?\s*(?:[-|]\s+)?",  # src/model.rs:42:
        r"\s*(?:>{1,3})\s+",  # a quote
    )
)
_ITEM = re.compile(r"(\s*)[*•·▪▸▶◦‣-]\s+(?=\S)")
_DECIMAL_COMMA = re.compile(r"(?<![\d.,\w])([-+\u2212]?\d{1,4}),(\d{3,20}(?:[eE][-+]?\d{1,4})?)(?![\d.\w]|,\S)")
_POINT = re.compile(r"\d\.\d")

_NUMBER = (
    r"[-+\u2212]?(?>\d[\d_]{0,60}(?:\.(?!\.)\d{0,60})?|\.\d{1,60})(?:[eEdD][-+]?\d{1,6})?"
    r"(?:_?(?:f16|f32|f64|bf16|f0|[fFhL])(?!\w))?+"
)
_PIECE = re.compile(
    r"(?P<space>\s++)"
    r"|(?P<unit>(?<![\w.])\d{1,20}(?:\.\d{1,20})?\s?(?:ms|us|µs|μs|ns|s|secs?|seconds|[KMGT]i?B|bytes|tok/s|tokens/s|%)(?![\w/]))"
    r"|(?P<most>\|max\||[mM]ax\s?\|\w{1,12}\||[mM]ax\(\s?\|\w{1,12}\|\s?\)|[|‖]\w{1,12}[|‖]_?(?:max|inf|∞))"
    r"|(?P<average>\|(?:mean|avg)\||(?:mean|avg)\s?\|\w{1,12}\||(?:mean|avg)\(\s?\|\w{1,12}\|\s?\)|\|\w{1,12}\|_?(?:mean|avg))"
    r"|(?P<norm>\|\s?[\w ]{1,40}\s?\|(?:_?2|₂)?(?=\s{0,4}[=:])"
    r"|‖[^‖]{1,80}‖(?:_?2(?!\w)|₂)?"
    r"|\|\|\s?\w{1,12}(?:\[[\w,:. -]{1,16}\])?\s?\|\|(?:_?2(?!\w)|₂)?)"
    r"|(?P<sum>[Σ∑](?:\s?\w{1,3}(?=\s{0,3}[=:]))?)"
    r"|(?P<dots>\.{2,}|…|\u22ef|\u22ee)"
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
class Group:
    """What stands between brackets."""

    bracket: str
    items: tuple[Piece, ...]

    def numbers(self) -> list[Number]:
        return [p for p in self.items if isinstance(p, Number)]


Piece = Number | Word | Mark | Group
DOTS = Mark("…")
ASSIGN = Mark("=")
COMMA = Mark(",")
BAR = Mark("|")
SLASH = Mark("/")
_MARKS = {mark.text: mark for mark in (SLASH, *map(Mark, "[](){}<>*#-_!?"))}
_CLOSES = {"]": "[", ")": "(", "}": "{", ">": "<"}


_UPRIGHT = "│┃║┆┇┊┋╎╏"
_BOX = str.maketrans({"¯": "-"} | {chr(c): "|" if chr(c) in _UPRIGHT else " " for c in range(0x2500, 0x2580)})


_FRAME = re.compile(r"^\s{0,40}[╭┌╔][─━═]{2,200}\s{0,8}(?=\w)")  # a title in the border of a box
_TAGGED = re.compile(r"<((?!t[dhr]>)[A-Za-z][\w-]{0,30})>([^<>]{0,2000})</\1>")  # <layer>0</layer>
_CELL = re.compile(r"(?:</?t[dhr][^<>]{0,80}>\s{0,8})+")
_BRANCHES = re.compile(r"\s*+(?:\|\s++)++")


def number(text: str) -> Number:
    """A number as people print them: `1.5`, `-2e-3`, `.5`, `1_000`, `0.5f32`, with a real minus sign."""
    plain = text.replace("\u2212", "-").replace("_", "").lower().replace("d", "e")
    for suffix in ("bf16", "f16", "f32", "f64", "f0", "f", "h", "l"):
        plain = plain.removesuffix(suffix)
    return Number(plain, float(plain), half_unit(plain))


def odd_number(text: str) -> Number:
    """NaN and infinities; JSON's null is how many write them."""
    plain = text.lower().removesuffix("(ind)").removesuffix("f") if text.lower() != "inf" else "inf"
    sign = -1.0 if plain.startswith(("-", "\u2212")) else 1.0
    value = sign * math.inf if "in" in plain and "nan" not in plain else math.nan
    return Number(text, value, 0.0)


_CALLER = re.compile(
    r"\s*(?:[A-Z][a-z]{2} \d{1,2}, \d{4}|\d{4}-\d\d-\d\d),? \d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?(?: [AP]M)?"
    r" (?:[a-z]\w{0,40}\.){1,8}[\w$.]{1,60} [\w$<>]{1,60}\s*"
)  # when, and which method: a line of its own, above the message


_BASE = re.compile(r"\((?:layers? )?(?:[01]|zero|one)[- ](?:based|indexed)\)")


def strip(line: str) -> str:
    """The line without colours and without what a logger put before it."""
    if _CALLER.fullmatch(line[:400]):
        return ""
    if "based" in line or "indexed" in line:
        line = _BASE.sub("", line)
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    line = _FRAME.sub("", line.rstrip("╮┐╗─━═"), count=1).translate(_BOX)
    if "</" in line:
        line = _TAGGED.sub(r"\1: \2 ", line)
    if "<t" in line:
        line = _CELL.sub(" | ", line)
    if line.lstrip()[:1] == "|":  # a tree's branches, not a table's cells
        line = _blank(_BRANCHES.match(line), line) if "|" not in line.lstrip(" |\t") else line
    for _ in range(5):
        for prefix in _PREFIXES:
            m = prefix.match(line)
            if m and m.end() and m.end() < len(line):
                line = line[m.end() :]
                break
        else:
            break
    if m := _ITEM.match(line):
        line = m[1] + line[m.end() :]  # as far in as its bullet
    return _with_points(line) if "," in line else line


def _blank(m: re.Match[str] | None, line: str) -> str:
    return line if m is None else " " * m.end() + line[m.end() :]


def _with_points(line: str) -> str:
    """Decimal commas as points, where a line has several and no point: `0,5613; -1,2041`."""
    found = _DECIMAL_COMMA.findall(line[:MOST])
    if len(found) < 2 or _POINT.search(line) or not any(a.strip("-+\u2212") == "0" or len(b) > 3 for a, b in found):
        return line
    return _DECIMAL_COMMA.sub(r"\1.\2", line)


def pieces(line: str) -> tuple[Piece, ...]:
    """The line cut up, brackets made into groups. A bracket that does not close ends with the line."""
    stack: list[tuple[str, list[Piece]]] = [("", [])]
    for count, piece in enumerate(_cut(line)):
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


def _close(stack: list[tuple[str, list[Piece]]]) -> None:
    bracket, items = stack.pop()
    stack[-1][1].append(Group(bracket, tuple(items)))


_SIGNS = {"most": "absmax", "average": "absmean", "norm": "nrm2", "sum": "sum"}


def _cut(line: str) -> Iterator[Piece]:
    for m in _PIECE.finditer(line[:MOST]):
        kind, text = m.lastgroup, m[0]
        if kind == "number":
            yield number(text)
        elif kind == "odd":
            yield odd_number(text)
        elif kind in _SIGNS:
            yield from map(Word, _inside(text) if kind == "norm" else ())
            yield Word(_SIGNS[kind])
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
    """The words of what a norm is of, without the arguments of its functions: ‖Attn(RMSNorm(h))·W_O‖₂."""
    inner = text.lstrip("|‖").rpartition(text[0])[0].strip("|‖ ")
    if text[0] != "‖":
        return [w for w in inner.split() if len(w) > 2 or w.isdecimal()]
    inner = _ARGUMENTS.sub(" ", _ARGUMENTS.sub(" ", inner)).strip()
    if m := _STATE.fullmatch(inner):
        return ["hidden", "layer", m[1]]
    if inner in ("e", "E"):
        return ["embedding"]
    return [w for w in _NAMES.findall(inner) if len(w) > 1 or w.isdecimal()]


_WHOLE_NUMBER = re.compile(_NUMBER)


_QUOTED_LIST = re.compile(rf"{_NUMBER}(?:[\s,;]++{_NUMBER})++(?:[\s,]*+(?:\.\.\.|…))?")


_BETWEEN = re.compile(r"[\s,;]+")


def _quoted(text: str) -> Piece:
    if text[:1] == "[":  # key="[1.5 2.5]"
        found = pieces(text)
        if len(found) == 1 and isinstance(found[0], Group):
            return found[0]
    if _QUOTED_LIST.fullmatch(text) and "." in text:
        parts = _BETWEEN.split(text)
        return Group("[", tuple(number(t) if t[-1:] not in (".", "…") or t[:-1].isdigit() else DOTS for t in parts))
    if "|" in text and (m := _PIECE.match(text + "=")) and m.end() == len(text) and m.lastgroup in _SIGNS:
        return Word(_SIGNS[m.lastgroup])  # "max|x|": 1.5
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
class Values:
    """A printed list of numbers, perhaps with the middle left out."""

    first: tuple[Number, ...]
    last: tuple[Number, ...] = ()
    cut: bool = False  # an ellipsis stood somewhere

    @property
    def all(self) -> tuple[Number, ...]:
        return self.first + self.last

    @property
    def whole(self) -> bool:
        """Counts, ids or a shape rather than values of a tensor."""
        return all(n.whole for n in self.all)


@dataclass(frozen=True)
class Rows:
    """Lists inside a list: rows from the front, and from the back where the middle was left out."""

    first: tuple[Values, ...]
    last: tuple[Values, ...] = ()
    cut: bool = field(default=False)


def listed(items: Sequence[Piece]) -> Values | Rows | None:
    """The numbers of a bracket or of columns: one list, or rows of lists; None where something else stands there."""
    items = [p for p in items if p is not COMMA and p is not BAR]
    while len(items) == 1 and isinstance(items[0], Group):
        items = [p for p in items[0].items if p is not COMMA]
    if not items:
        return None
    if all(isinstance(p, Number) or p is DOTS for p in items) and any(isinstance(p, Number) for p in items):
        return _values(items)
    if all(isinstance(p, Group) or p is DOTS for p in items):
        rows: list[list[Values]] = [[], []]
        cut = False
        for p in items:
            if not isinstance(p, Group):
                cut = True
                continue
            row = listed(p.items)
            if isinstance(row, Rows) and len(row.first) == 1 and not row.cut:
                row = row.first[0]
            if not isinstance(row, Values):
                return None
            rows[cut].append(row)
        return Rows(tuple(rows[0]), tuple(rows[1]), cut) if rows[0] else None
    return None


def _values(items: Sequence[Piece]) -> Values:
    halves: list[list[Number]] = [[], []]
    cut = False
    for p in items:
        if isinstance(p, Number):
            halves[cut].append(p)
        else:
            cut = True
    return Values(tuple(halves[0]), tuple(halves[1]), cut)
