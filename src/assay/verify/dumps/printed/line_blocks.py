"""Joins lines that belong together: arrays over several lines, numbers below each other, numbers with an index.

Other lines pass unchanged. Every step takes time in proportion to the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from assay.errors import AssayError
from assay.verify.dumps.printed.lexer import MOST, Number, number, open_brackets
from assay.verify.dumps.printed.line_prefixes import without_prefix
from assay.verify.dumps.printed.tables import table_header

MOST_LINES = 2_000_000
_ARRAY_LINES = 4096  # of one array printed over several lines

_ARRAY_LINE = re.compile(
    r"[\[\](){}\s,;.…\u22ee\d+\-eEnaifINF|*'\"]*+"
    r"(?:\w{1,20}=(?>[\w.:'\"<> ]{1,60}|[(\[][\d, ]{0,60}[)\]])?[\s,]*+)*+[\])}\s,]*+"
)
_OPENS = re.compile(r"[\[(]\s*+(?:[\[(]\s*+)*+(?:[-+.\d\u2212…]|nan|inf|['\"]-?\d|$)")
_FLOAT = r"[-+\u2212]?(?>\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eEdD][-+]?\d{1,4})?"
_BLANKS = str.maketrans(",;/|", "    ")
_DIGIT = re.compile(r"\d")
_REAL = re.compile(r"[.eE]")
_NUMBERS = re.compile(
    rf"\s*+(?:(?:\[\s{{0,6}}\d{{1,6}}\]:?|\d{{1,6}}[:)])\s++)?(?>{_FLOAT}|\u22ee|\.{{3}}|…)"
    rf"(?:[\s,;/|]++(?>{_FLOAT}|\.{{2,3}}|[…\u22ee\u22f1]))*+[\s,;]*+"
)
_TEXT = r"[(\[]?(?:\"[^\"]{0,40}+\"|'[^']{0,40}+'|▁\S{0,40}+)[)\]]?[\s,:|=]*+"
_INDEXED = re.compile(
    rf"\s*+(?:#\s?)?[\[(]?\s{{0,8}}(\d{{1,7}})(?:[\])]\s*+(?:=>|->|→|[:=|,])?|\s*+(?:=>|->|→|[:=|,]|with\s)|\s++)\s*+"
    rf"(?:{_TEXT})?(?:float\(|\()?({_FLOAT})\)?[\])]?,?(?:\s++(?:float|double|f32|f64))?\s*+"
)
_REPEATED = re.compile(rf"\s*+[\"']?([A-Za-z_]\w{{0,40}})[\"']?\s{{0,8}}[:=]\s{{0,8}}({_FLOAT})[,;]?\s*+")
_INDEX_ALONE = re.compile(r"\s*+\[\d{1,7}\]\s*+=>\s*+")
_PREFIX = re.compile(r"\s*+(?:\[\s{0,6}(\d{1,6})\]:?|(\d{1,6})[:)])\s++")
_BRACE = re.compile(r"\{\s{0,8}[-+]?\d{1,40}\.\d")
_COLUMNS = re.compile(
    r"\s*+Columns?\s{1,4}\d{1,6}(?:\s{1,4}(?:through|to|and|thru)\s{1,4}\d{1,6})?:?\s*+", re.IGNORECASE
)


_REMARK = re.compile(r"([\])}])\s{0,8}(?:#|//)\s.{0,200}$")  # behind an array: ]]])  # [1, 6, 40]
_WORDS_BEHIND = re.compile(r"[\])}]{1,4}[,;:]?\s{1,8}(?=[(A-Za-z])[^\[\]{}]{1,200}")  # ] length 7


@dataclass(frozen=True)
class Block:
    """The numbers of joined lines: `rows`, or one number a line with its `index`."""

    rows: tuple[tuple[str, ...], ...]
    index: tuple[int, ...] = ()
    wrapped: bool = False  # the text marks the lines as one list


def blocks(path: Path, content: str) -> Iterator[tuple[int, str, Block | None]]:
    """Line number, the line without its logger's prefix, and a block if several lines were joined."""
    kept: list[tuple[int, str]] = []
    kind = ""
    columns = False  # of Octave or MATLAB: blank lines do not end the block
    tabled = False
    index = ""
    for at, raw in _arrays(path, content):
        line = without_prefix(raw)
        if index:
            line, index = index + line.strip(), ""
        if _INDEX_ALONE.fullmatch(line):
            index = line.rstrip()
            continue
        if tabled and line.strip().lower() in ("layer", "index", "idx", "pos", "token"):
            continue  # pandas names its index below the columns
        if table_header(line):
            tabled = True
        elif not _DIGIT.search(line) and line.strip(" -=+|:"):
            tabled = False
        new = _kind(line) if len(line) < 4096 and not tabled else ""
        if columns and not line.strip():
            continue
        if _COLUMNS.fullmatch(line) and len(line) < 100:
            columns = True
            continue
        if kept and (new != kind or len(kept) >= _ARRAY_LINES):
            yield from _block(kept, kind, columns)
            kept, columns = [], columns and bool(new)
        if new:
            kept.append((at, line))
            kind = new
            continue
        columns = False
        yield at, line, None
    if kept:
        yield from _block(kept, kind, columns)


def _kind(line: str) -> str:
    if not line[:200].strip()[:1]:
        return ""
    m = _INDEXED.fullmatch(line)
    if m:
        return "indexed" if _REAL.search(m[2]) else ""
    if m := _REPEATED.fullmatch(line):
        return f"same {m[1]}"
    dots = not line.strip(" \t⋮⋱…")
    return "numbers" if _NUMBERS.fullmatch(line) and (_REAL.search(line) or dots) else ""


def _block(kept: list[tuple[int, str]], kind: str, columns: bool) -> Iterator[tuple[int, str, Block | None]]:
    at, first = kept[0]
    if kind == "indexed":
        if len(kept) == 1:
            yield at, first, None
            return
        found = [m for _, line in kept if (m := _INDEXED.fullmatch(line))]
        yield at, first, Block(tuple((m[2],) for m in found), tuple(int(m[1]) for m in found))
        return
    if kind.startswith("same "):
        if len(kept) < 3:
            yield from ((i, line, None) for i, line in kept)
        else:
            yield at, first, Block(tuple((m[2],) for _, line in kept if (m := _REPEATED.fullmatch(line))))
        return
    prefixed = [_PREFIX.match(line) for _, line in kept]
    rows = [
        tuple((line[m.end() :] if m else line).translate(_BLANKS).split())
        for (_, line), m in zip(kept, prefixed, strict=True)
    ]
    if len(rows) == 1 and not prefixed[0]:
        yield at, first, None
        return
    at_start = [int(m[1] or m[2]) if m else -1 for m in prefixed]
    if len(rows) > 1 and all(prefixed) and at_start == list(range(at_start[0], at_start[0] + len(rows))):
        yield at, first, Block(tuple(rows), tuple(at_start))  # numbered rows, not one wrapped list
        return
    counted = [row[0].isdecimal() and len(row) > 2 and not row[1].isdecimal() for row in rows]
    if all(counted) and not any(prefixed):
        yield at, first, Block(tuple(row[1:] for row in rows), tuple(int(row[0]) for row in rows))
        return
    yield at, first, Block(tuple(rows), (), columns or all(prefixed))


def _arrays(path: Path, content: str) -> Iterator[tuple[int, str]]:
    waiting: list[str] = []
    depth = begun = size = 0
    braced = False
    for at, line in enumerate(content.splitlines(), 1):
        if len(line) > MOST * 4:
            raise AssayError(f"{path}: line {at}: longer than {MOST >> 18} MiB; split the line")
        if at > MOST_LINES:
            raise AssayError(f"{path}: more than {MOST_LINES} lines; cut the log to the run in question")
        if braced or (_BRACE.search(line) and "}" not in line):
            braced = "}" not in line
            line = line.replace("{", "[").replace("}", "]")
        opens = open_brackets(line)
        if waiting:
            rest = _REMARK.sub(r"\1", line.strip())
            if depth + opens == -1 and rest[-1:] == ")" and rest.count(")") > rest.count("("):
                rest, opens = rest[:-1], opens + 1  # of a call that opened above: tf.Tensor(
            ends = depth + opens == 0 and _WORDS_BEHIND.fullmatch(rest) is not None
            goes_on = _array_line(rest) or ends
            if depth + opens < 0 or len(waiting) >= _ARRAY_LINES or size > MOST or not goes_on:
                yield from ((begun + i, part) for i, part in enumerate(waiting))
                waiting = []
            else:
                waiting.append(rest)
                depth, size = depth + opens, size + len(rest)
                if depth == 0:
                    yield begun, " ".join(waiting)
                    waiting = []
                continue
        if opens > 0 and _opens_array(line):
            waiting, depth, begun, size = [line], opens, at, len(line)
        else:
            yield at, line
    yield from ((begun + i, part) for i, part in enumerate(waiting))


def _array_line(line: str) -> bool:
    return bool(_ARRAY_LINE.fullmatch(line)) and (any(c.isdigit() for c in line) or line.strip(" ,])}.…") == "")


def _opens_array(line: str) -> bool:
    places = {line.rfind("["), line.rfind("[["), line.rfind("[[[")} - {-1}
    return any(_OPENS.match(line, i) for i in places)


def numbers_of(texts: tuple[str, ...]) -> list[Number]:
    """The numbers of a row of a block; dots are left out."""
    return [number(t) for t in texts if t[-1:].isdigit() or (t[-1:] == "." and t.strip("."))]
