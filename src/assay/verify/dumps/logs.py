"""Reading printed text: any line with a word for a node and numbers, from whatever an engine prints.

A line says what it speaks of (a node, a layer, a token's row, whose engine) and gives numbers: a list, columns, rows of
a printed array, statistics by name, token ids with logits. What a line does not say is taken from the heading above it.
Tables have their own header. Lines with numbers that speak of no known node are kept aside, for the message.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.verify.dumps.lines import (
    ASSIGN,
    BAR,
    COMMA,
    DOTS,
    MOST,
    SLASH,
    Group,
    Mark,
    Number,
    Piece,
    Rows,
    Values,
    Word,
    listed,
    open_brackets,
    pieces,
    sharpened,
    strip,
)
from assay.verify.dumps.observation import STATISTICS, Dump, Observation
from assay.verify.dumps.patterns import Pattern
from assay.verify.dumps.words import LAYER, PERHAPS, ROW, Meaning, meaning, split_words

MOST_LINES = 2_000_000
_ARRAY_LINES = 4096  # of one array printed over several lines
_ASIDE = 200  # lines with numbers that were not understood, kept for the message

_STATISTICS = {
    "rms": "rms", "mean": "mean", "avg": "mean", "average": "mean", "mu": "mean", "min": "min", "minimum": "min",
    "max": "max", "maximum": "max", "sum": "sum", "total": "sum", "std": "std", "stddev": "std", "sd": "std",
    "sigma": "std", "var": "var", "variance": "var", "norm": "norm", "l2": "norm", "l2norm": "norm", "absmax": "absmax",
    "maxabs": "absmax", "amax": "absmax", "absmean": "absmean", "meanabs": "absmean",
}  # fmt: skip
_TOKENS = {"tokens", "ids", "inputs", "prompt", "tokenized"}
_SHAPE = {"shape", "dims", "dim", "ne", "size", "strides", "stride", "nb", "torch", "heads"}
_ID, _LOGIT = {"token", "id", "tok", "idx", "index"}, {"logit", "score", "val", "value", "logprob", "prob"}
_HEADING = re.compile(r"^\s*(?:#+\s|\*\*|[-\d.]+\s+\*\*)|[:：]\s*\**\s*$|^\s*[-=]{2,}.*[-=]{2,}\s*$")
_BOLD = re.compile(r"^\s*\**([A-Za-z][\w.+-]*)\**\s*(?:\([^)]*\))?\s*:?\s*$")
_NOT_SIDES = {
    "first", "last", "values", "value", "data", "tensor", "array", "float", "stats", "shape", "top", "range", "result",
    "results", "differences", "actual", "wrong", "right", "expected", "note", "analysis", "conclusion", "head", "tail",
    "sample", "vals", "samples", "output", "input",
}  # fmt: skip
_ARRAY_MAKERS = {"tensor", "array", "vec", "vector", "list", "float32", "ndarray", "parameter", "arr", "slice", "f32"}


_NOTHING = Meaning()


@dataclass(frozen=True)
class _Context:
    """What the lines below a heading speak of."""

    about: Meaning = _NOTHING
    side: str = ""
    table: tuple[str, ...] = ()


@dataclass
class _Line:
    """What one line said, as it is read."""

    label: list[str]
    statistics: list[tuple[str, Number]]
    lists: list[tuple[list[str], Values | Rows]]
    pairs: list[tuple[str, tuple[tuple[int, Number], ...]]]
    tokens: tuple[int, ...] = ()
    before: int | None = None  # words before the first list
    layer: int | None = None
    row: int | None = None
    perhaps: int | None = None
    id: int | None = None  # of the token whose logit may follow
    side: str = ""

    def take(self, key: list[str], values: Values | Rows) -> None:
        """A list, under the words before it."""
        self.lists.append((key, values))
        if self.before is None:
            self.before = len(self.label)

    @property
    def empty(self) -> bool:
        return not (self.statistics or self.lists or self.pairs)


def read_log(path: Path, patterns: Sequence[str] = (), text: str | None = None) -> Dump:
    """Observations from any text that people print or paste. Patterns of the caller's own are tried first."""
    own = [Pattern(p) for p in patterns]
    content = path.read_text("utf-8", "replace") if text is None else text
    context = _Context()
    sides: set[str] = set()
    tokens: tuple[int, ...] = ()
    found: list[Observation] = []
    aside: list[str] = []
    fenced = False
    for number, raw in _joined(path, content):
        where = f"{path}: line {number}"
        fenced ^= raw.lstrip().startswith("```")
        line = strip(raw)
        matched = _by_pattern(own, line, context, where)
        if matched is not None:
            found += matched[0]
            tokens = tokens or matched[1]
            continue
        cut = pieces(line)
        if (header := _table_header(line)) is not None:
            context = replace(context, table=header)
            continue
        said = _table_row(context, line) or _said(cut, sides)
        tokens = tokens or said.tokens
        new = list(_observations(said, context, where)) if not said.empty else []
        found += new
        if said.empty or not new:
            if not said.empty and not said.tokens and len(aside) < _ASIDE:
                aside.append(raw.strip()[:300])
            if not (fenced and line.lstrip().startswith("#")) and not said.tokens:  # a comment in code is no heading
                context = _heading(line, said, context, sides)
        if said.side:
            sides.add(said.side)
        if context.side:
            sides.add(context.side)
    return Dump(
        path.stem, tokens, tuple(range(len(tokens))), (len(tokens),) if tokens else (), tuple(_together(found)),
        str(path), log=True, aside=tuple(aside),
    )  # fmt: skip


def _joined(path: Path, content: str) -> Iterator[tuple[int, str]]:
    """The lines; an array printed over several of them is one."""
    waiting: list[str] = []
    depth = begun = size = 0
    for number, line in enumerate(content.splitlines(), 1):
        if len(line) > MOST * 4:
            raise AssayError(f"{path}: line {number}: longer than {MOST >> 18} MiB; that is no log line")
        if number > MOST_LINES:
            raise AssayError(f"{path}: more than {MOST_LINES} lines; cut the log to the run in question")
        opens = open_brackets(line)
        if waiting:
            rest = line.strip()
            if depth + opens < 0 or len(waiting) >= _ARRAY_LINES or size > MOST or not _array_line(rest):
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
            waiting, depth, begun, size = [line], opens, number, len(line)
        else:
            yield number, line
    yield from ((begun + i, part) for i, part in enumerate(waiting))


_ARRAY_LINE = re.compile(r"[\[\](){}\s,;.…\d+\-eEnaifINFxutlcdpgrvs_='\"<>:|*]*+")
_OPENS = re.compile(r"[\[(]\s*+(?:[\[(]\s*+)*+(?:[-+.\d\u2212…]|nan|inf|$)")


def _array_line(line: str) -> bool:
    return bool(_ARRAY_LINE.fullmatch(line)) and (any(c.isdigit() for c in line) or line.strip(" ,])}.…") == "")


def _opens_array(line: str) -> bool:
    at = max(line.rfind("[["), 0) if line.count("[") > 1 else line.rfind("[")
    return at >= 0 and any(_OPENS.match(line, i) for i in range(at, min(at + 4, len(line))))


# -- one line --------------------------------------------------------------------------------------------------


def _said(cut: Sequence[Piece], sides: set[str]) -> _Line:
    line = _Line([], [], [], [])
    _walk(list(cut), line, [])
    side = _side(cut)
    if side and (side in sides or not meaning([side]).role):
        line.side = side
    return line


def _walk(cut: list[Piece], line: _Line, key: list[str]) -> list[str]:
    """Take the pieces one after the other; `key` are the words since the last value."""
    i = 0
    while i < len(cut):
        piece = cut[i]
        if isinstance(piece, Word):
            key.append(piece.text)
            line.label.append(piece.text)
        elif isinstance(piece, Number):
            run, i = _run(cut, i, key)
            _number_run(run, key, line, assigned=i > len(run) and cut[i - len(run) - 1] is ASSIGN)
            key = key if len(run) == 1 and _counts(key) else []
            continue
        elif isinstance(piece, Group):
            after = cut[i + 1 : i + 3]
            key = _group(piece, after, key, line)
        elif piece is COMMA or piece is BAR:
            key = key if _waits(key) else []
        i += 1
    return key


def _counts(key: list[str]) -> bool:
    """Words that are followed by how many: "first 5 values"."""
    return bool(key) and key[-1].lower() in ("first", "last", "top")


def _waits(key: list[str]) -> bool:
    """Words that go on behind a comma: "first 5 values, last row: [...]"."""
    return any(w.lower() in ("first", "last", "values", "vals", "head") for w in key)


def _run(cut: list[Piece], i: int, key: list[str]) -> tuple[list[Piece], int]:
    """Numbers side by side, with commas or dots between them; one after a word that takes one."""
    first = cut[i]
    assert isinstance(first, Number)
    last = split_words(key[-1:])[-1:] if key else []
    if last and last[0] in LAYER | ROW and first.whole:
        return [first], i + 1
    run: list[Piece] = []
    while i < len(cut):
        piece = cut[i]
        if isinstance(piece, Number) or piece is DOTS:
            run.append(piece)
        elif not (
            (piece is COMMA or piece is SLASH)
            and i + 1 < len(cut)
            and (isinstance(cut[i + 1], Number) or cut[i + 1] is DOTS)
        ):
            break
        i += 1
    return run, i


def _number_run(run: list[Piece], key: list[str], line: _Line, assigned: bool) -> None:
    numbers = [p for p in run if isinstance(p, Number)]
    several = [_STATISTICS.get(part.lower()) for part in key[-1].split("/")] if key else []
    if len(several) > 1 and len(several) == len(numbers) and all(several):
        line.statistics += [(kind, n) for kind, n in zip(several, numbers, strict=True) if kind]
        line.label.pop()
        return
    words = split_words(key)
    last = words[-1] if words else ""
    one = numbers[0]
    if len(numbers) == 1:
        kind = _statistic(key)
        if kind == "norm" and not assigned:
            kind = None  # "L2" may be the third layer
        if last in LAYER and one.whole:
            line.layer = int(one.value)
        elif kind and not (one.whole and last in ("max", "total", "min") and len(words) > 1):
            line.statistics.append((kind, one))
            line.label.pop()  # the word was the statistic's
        elif _LOGIT & set(words[-2:]) and line.id is not None and not (one.whole and last not in _LOGIT):
            line.pairs.append(("at", ((line.id, one),)))
        elif last in _ID and one.whole:
            line.perhaps = int(one.value) if last in PERHAPS else line.perhaps
            line.id = int(one.value)
        elif last in ROW and one.whole:
            line.row = int(one.value)
        elif line.id is not None and not one.whole and not words:
            line.pairs.append(("at", ((line.id, one),)))
        elif one.whole:
            line.label.append(one.text)
        return
    values = listed(run)
    if isinstance(values, Values):
        if values.whole:
            if set(words) & _TOKENS:
                line.tokens = line.tokens or tuple(int(n.value) for n in numbers)
        else:
            line.take(key, values)


def _group(group: Group, after: Sequence[Piece], key: list[str], line: _Line) -> list[str]:
    """What a bracket says, given the words before it; the words that go on after it."""
    words = split_words(key)
    values = listed(group.items)
    index = group.numbers()
    if isinstance(values, Values) and len(group.items) == 1 and index and index[0].whole:
        value = after[1] if len(after) == 2 and after[0] is ASSIGN else None
        if isinstance(value, Number) and not value.whole and not set(words) & _SHAPE:
            line.pairs.append(("at", ((int(index[0].value), value),)))
        elif words and words[-1] in LAYER | {"hidden", "states"}:
            line.layer = int(index[0].value)
        elif set(words) & (_TOKENS | {"token", "bos"}):
            line.tokens = line.tokens or (int(index[0].value),)
        return key
    if isinstance(values, Values):
        if values.whole:
            if set(words) & (_TOKENS | {"token", "input"}) and not set(words) & _SHAPE:
                line.tokens = line.tokens or tuple(int(n.value) for n in values.all)
            return key
        if "range" in words[-2:] and len(values.all) == 2:
            line.statistics += [("min", values.all[0]), ("max", values.all[1])]
        else:
            line.take(key, values)
        return []
    if isinstance(values, Rows):
        every = values.first + values.last
        if all(len(r.all) == 2 and r.all[0].whole for r in every) and not all(r.whole for r in every):
            line.pairs.append(("top", tuple((int(r.all[0].value), r.all[1]) for r in every)))
        elif all(r.whole for r in every):
            if set(words) & (_TOKENS | {"token", "input"}) and len(every) == 1:
                line.tokens = line.tokens or tuple(int(n.value) for n in every[0].all)
        else:
            line.take(key, values)
        return []
    pairs = _quoted_pairs(group)
    if pairs:
        line.pairs.append(("top", pairs))
        return []
    inner = list(group.items)
    if group.bracket == "(" and all(isinstance(p, Word) for p in inner):
        line.label += [p.text for p in inner if isinstance(p, Word)]
        return key
    if any(isinstance(p, Word) and p.text.lower() in ("id", "token") for p in inner) and len(inner) == 2:
        number = inner[1]
        if isinstance(number, Number) and number.whole and "bos" in words:
            line.tokens = line.tokens or (int(number.value),)
            return key
    return _walk(inner, line, list(key))


def _quoted_pairs(group: Group) -> tuple[tuple[int, Number], ...]:
    """`[(450, "The", 9.5), …]`: the id first, the logit last, text between."""
    rows = [p for p in group.items if isinstance(p, Group)]
    if not rows or any(not isinstance(p, Group) and p is not COMMA and p is not DOTS for p in group.items):
        return ()
    found = []
    for row in rows:
        numbers = row.numbers()
        if len(numbers) != 2 or not numbers[0].whole:
            return ()
        found.append((int(numbers[0].value), numbers[1]))
    return tuple(found)


def _statistic(key: Sequence[str]) -> str | None:
    """The statistic that the word before a number names."""
    if not key:
        return None
    word = key[-1].lower().strip("_")
    joined = "".join(split_words(key[-2:]))
    return (
        _STATISTICS.get(word)
        or _STATISTICS.get(word.replace("_", ""))
        or (
            _STATISTICS.get(joined)
            if len(key) > 1 and joined in ("absmax", "maxabs", "absmean", "meanabs", "l2norm")
            else None
        )
    )


def _side(cut: Sequence[Piece]) -> str:
    """Whose values: a single name before a colon and a list."""
    flat = [p for p in cut if not (isinstance(p, Mark) and p.text == "*")]
    if len(flat) >= 3 and isinstance(flat[0], Word) and flat[1] is ASSIGN and isinstance(flat[2], Group):
        word = flat[0].text
        parts = split_words([word])
        plain = not set(parts) & (_NOT_SIDES | _TOKENS | LAYER | ROW | set(_STATISTICS) | _ARRAY_MAKERS)
        if plain and not flat[0].quoted:
            return word
    return ""


# -- what it means ---------------------------------------------------------------------------------------------


def _observations(said: _Line, context: _Context, where: str) -> Iterator[Observation]:
    about = _about(said, context)
    if said.pairs and not (about.role and "result_output" not in about.nodes):
        ids = any(w in _ID or w in _LOGIT or w == "top" for w in split_words(said.label)) or any(
            kind == "top" for kind, _ in said.pairs
        )
        if ids:
            about = replace(about, nodes=("result_output",), verbatim="", layer=None)
    if not about.role:
        return
    names = _names(about)
    side = said.side or context.side
    common: dict[str, Any] = {
        "others": names[1:],
        "foreign": side or names[0],
        "side": side,
        "where": where,
        "perhaps": about.perhaps,
    }

    def observe(kind: str, data: Any, printed: Sequence[float], row: int | None, shape: Any = None) -> Observation:
        rows = None if row is None else (row, row + 1)
        return Observation(names[0], kind, data, rows, shape, printed=tuple(printed), **common)

    row = about.row
    for kind, n in said.statistics:
        if kind == "var" and n.value >= 0:
            root = math.sqrt(n.value)
            yield observe("std", root, [n.half / (2 * root) if root else math.sqrt(n.half)], row)
        elif kind in STATISTICS:
            yield observe(kind, n.value, [n.half], row)
    for key, values in said.lists:
        yield from _of_list(key, values, row, observe)
    for kind, pairs in said.pairs:
        yield observe(kind, tuple((i, n.value) for i, n in pairs), [n.half for _, n in pairs], row)


def _of_list(key: Sequence[str], values: Values | Rows, row: int | None, observe: Any) -> Iterator[Observation]:
    if isinstance(values, Values):
        values = Rows((values,))
        single = True
    else:
        single = len(values.first) == 1 and not values.last
    back = len(values.last)
    tail = _is_tail(key)
    for at, line in (*enumerate(values.first), *((i - back, v) for i, v in enumerate(values.last))):
        mine = row if single else at
        first, last = (line.last, line.first) if tail and not line.last else (line.first, line.last)
        for kind, part in (("first", first), ("last", last)):
            if part:
                yield observe(kind, tuple(n.value for n in part), sharpened(part), mine)


def _is_tail(key: Sequence[str]) -> bool:
    """ "last 5 values", "tail": the end of a row. "last row" and "last token" are rows."""
    words = split_words(key)
    for a, b in zip(words, [*words[1:], ""], strict=False):
        if a == "tail" or (a == "last" and b not in ROW | PERHAPS | LAYER | {"hidden"}):
            return True
    return False


def _about(said: _Line, context: _Context) -> Meaning:
    """The line's own words first; what they leave open is the heading's."""
    before = said.label[: said.before] if said.before is not None else said.label
    known = meaning(before)
    label = before if known.role or known.layer is not None or said.layer is not None else said.label
    if said.side and not meaning([said.side]).role:
        label = [w for w in label if w != said.side]
    own = meaning(label)
    if said.layer is not None and own.layer is None and not own.verbatim:
        named = meaning([*label, "layer", str(said.layer)])
        own = replace(named, row=own.row)
    above = context.about
    layer = own.layer
    nodes, verbatim = own.nodes, own.verbatim
    if not own.role:
        nodes, verbatim = above.nodes, above.verbatim
        layer = above.layer if layer is None else layer
        if layer is not None and own.layer is None and not above.role:
            nodes = ("l_out-",)
    elif layer is None and not verbatim and above.layer is not None:
        inside = meaning([*label, "layer", str(above.layer)], generic=False)
        if inside.nodes and nodes not in (("result_output",), ("embd",)):
            nodes, layer = inside.nodes, above.layer
    row = said.row if said.row is not None else own.row if own.row is not None else above.row
    perhaps = said.perhaps if said.perhaps is not None else own.perhaps
    return Meaning(nodes, layer, row, above.perhaps if perhaps is None else perhaps, verbatim)


def _names(about: Meaning) -> tuple[str, ...]:
    """Node names; those of a layer with its number. `last` stands for the number of the last one."""
    if about.verbatim:
        return (about.verbatim,)
    return tuple(
        f"{node}{0 if about.layer is None else about.layer}" if node.endswith("-") else node for node in about.nodes
    )


def _heading(line: str, said: _Line, context: _Context, sides: set[str]) -> _Context:
    """A line that speaks of a node, a layer, a position or an engine, and gives no values, is about those below it."""
    marked = bool(_HEADING.search(line))
    own = meaning(said.label) if len(said.label) <= 12 else Meaning()
    if said.layer is not None and own.layer is None:
        own = replace(meaning([*said.label, "layer", str(said.layer)]), row=own.row)
    row = said.row if said.row is not None else own.row
    short = len(said.label) <= 4
    if not marked and not (short and (own.role or own.layer is not None)):
        return context
    if line.lstrip().startswith("#"):
        context = replace(context, side="", about=replace(context.about, row=None), table=())
    if own.role or own.layer is not None:
        context = replace(context, about=replace(own, row=row if row is not None else context.about.row), table=())
        m = re.search(r"\bfrom\s{1,8}([A-Za-z][\w.+-]{0,60})", line)
        if m and m[1].lower() not in _NOT_SIDES:
            context = replace(context, side=m[1])
    elif row is not None:
        context = replace(context, about=replace(context.about, row=row))
    elif marked and (m := _BOLD.match(line)) and m[1].lower() not in _NOT_SIDES:
        context = replace(context, side=m[1])
    if marked and (named := {s for s in sides if s in line}):
        context = replace(context, side=max(named, key=len))
    return context


# -- tables ----------------------------------------------------------------------------------------------------

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
    if word in _STATISTICS or joined in _STATISTICS:
        return _STATISTICS.get(word) or _STATISTICS[joined]
    if word in LAYER or word in ROW or word in _NAME_COLUMN:
        return "layer" if word in LAYER else "row" if word in ROW else "name"
    if set(split_words([word])) & {"first", "values", "sample", "head"}:
        return "first"
    m = _COLUMN.fullmatch(word)
    return f"#{int(m[1])}" if m else ""


def _table_header(line: str) -> tuple[str, ...] | None:
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


def _table_row(context: _Context, line: str) -> _Line | None:
    if not context.table or len(line) > MOST:
        return None
    cells = _cells(line)
    if len(cells) != len(context.table) or not any(c.isdigit() for c in line):
        return None
    said = _Line([], [], [], [])
    at: list[tuple[int, Number]] = []
    for column, cell in zip(context.table, cells, strict=True):
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


# -- the caller's own patterns ---------------------------------------------------------------------------------


def _by_pattern(
    own: Sequence[Pattern], line: str, context: _Context, where: str
) -> tuple[list[Observation], tuple[int, ...]] | None:
    """What the first pattern that fits makes of the line."""
    for pattern in own:
        holes = pattern.match(line)
        if holes is None:
            continue
        said = _Line([], [], [], [])
        if "tokens" in holes:
            return [], tuple(int(n.value) for n in Group("[", pieces(holes["tokens"])).numbers() if n.whole)
        if "name" in holes:
            said.label.append(holes["name"].strip())
        elif "layer" in holes:
            said.label += [p.text for p in pieces(pattern.literal) if isinstance(p, Word)]
        said.layer = int(holes["layer"]) if "layer" in holes else None
        said.row = int(holes["row"]) if "row" in holes else None
        said.side = holes.get("side", "")
        for kind in STATISTICS:
            if kind in holes:
                said.statistics += [(kind, n) for n in Group("[", pieces(holes[kind])).numbers()]
        for kind in ("first", "last"):
            if kind in holes and isinstance(values := listed(pieces(holes[kind])), Values):
                said.lists.append(([kind], values))
        if "top" in holes:
            wrapped = Group("[", pieces(holes["top"]))
            said.pairs.append(("top", _quoted_pairs(wrapped)))
        for i, v in (("id", "logit"), ("index", "value")):
            if i in holes and v in holes:
                (n,) = Group("[", pieces(holes[v])).numbers()
                said.pairs.append(("at", ((int(holes[i]), n),)))
                said.label.append("logit" if i == "id" else "")
        new = list(_observations(said, context, where))
        if new:
            return new, ()
    return None


def _together(found: list[Observation]) -> list[Observation]:
    """Single values of consecutive lines become one observation; a repeated statement counts once."""
    out: list[Observation] = []
    seen: dict[tuple[Any, ...], list[Any]] = {}
    for obs in found:
        last = out[-1] if out else None
        key = (obs.name, obs.kind, obs.rows, obs.side)
        if last and obs.kind == "at" and key == (last.name, last.kind, last.rows, last.side):
            have = dict(last.data)
            fresh = [(k, pair) for k, pair in enumerate(obs.data) if pair[0] not in have]
            if fresh:
                data = last.data + tuple(pair for _, pair in fresh)
                out[-1] = replace(last, data=data, printed=last.printed + tuple(obs.printed[k] for k, _ in fresh))
            continue
        if obs.data not in seen.setdefault(key, []):
            seen[key].append(obs.data)
            out.append(obs)
    return out
