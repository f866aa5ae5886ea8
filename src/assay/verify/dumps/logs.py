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
    MOST,
    Group,
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
from assay.verify.dumps.said import ID_WORDS, LOGIT_WORDS, NOT_SIDES, Said, quoted_pairs, said_by
from assay.verify.dumps.tables import table_header, table_row
from assay.verify.dumps.words import LAYER, PERHAPS, ROW, Meaning, meaning, split_words

MOST_LINES = 2_000_000
MOST_BYTES = 1 << 27  # of a log
_ARRAY_LINES = 4096  # of one array printed over several lines
_ASIDE = 200  # lines with numbers that were not understood, kept for the message

_HEADING = re.compile(r"^\s*(?:#+\s|\*\*|[-\d.]+\s+\*\*)|[:：{=]\s*\**\s*$|^\s*[-=]{2,}.*[-=]{2,}\s*$")
_BOLD = re.compile(r"^\s*\**([A-Za-z][\w.+-]*)\**\s*(?:\([^)]*\))?\s*:?\s*$")


_VAGUE = {"norm", "rmsnorm", "out", "output", "proj", "result", "in", "input"}
_NOTHING = Meaning()


@dataclass(frozen=True)
class _Context:
    """What the lines below a heading speak of."""

    about: Meaning = _NOTHING
    words: tuple[str, ...] = ()  # of the heading that named it
    indent: int = 0  # of that heading: a line further out is no longer about it
    side: str = ""
    table: tuple[str, ...] = ()


def _text(path: Path) -> str:
    with open(path, "rb") as file:
        return file.read(MOST_BYTES).decode("utf-8", "replace")


def read_log(path: Path, patterns: Sequence[str] = (), text: str | None = None) -> Dump:
    """Observations from any text that people print or paste. Patterns of the caller's own are tried first."""
    own = [Pattern(p) for p in patterns]
    content = _text(path) if text is None else text
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
        if line.strip() and _indent(line) < context.indent:
            context = replace(context, about=_NOTHING, words=(), indent=0)
        matched = _by_pattern(own, line, context, where)
        if matched is not None:
            found += matched[0]
            tokens = tokens or matched[1]
            continue
        cut = pieces(line)
        if (header := table_header(line)) is not None:
            context = replace(context, table=header)
            continue
        said = table_row(context.table, line) or said_by(cut, sides)
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
    """The lines; an array printed over several of them is one, and so are numbers that stand below each other."""
    column: list[str] = []
    for number, line in _arrays(path, content):
        if _ALONE.fullmatch(line) and len(column) < _ARRAY_LINES:
            column.append(line.strip().rstrip(","))
            continue
        if column:
            yield number - 1, "[" + ", ".join(column) + "]"
            column = []
        yield number, line
    if column:
        yield number, "[" + ", ".join(column) + "]"


def _arrays(path: Path, content: str) -> Iterator[tuple[int, str]]:
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


_ARRAY_LINE = re.compile(r"[\[\](){}\s,;.…\u22ee\d+\-eEnaifINF|*]*+(?:\w{1,20}=[\w.:'\"<> ]{0,60}[\s,]*+)*+[\])}\s,]*+")
_OPENS = re.compile(r"[\[(]\s*+(?:[\[(]\s*+)*+(?:[-+.\d\u2212…]|nan|inf|$)")
_ALONE = re.compile(r"\s*+[-+]?(?:\d{1,40}\.\d{0,40}(?:[eE][-+]?\d{1,4})?),?\s*+|\s*+(?:\u22ee|\.{3}|…),?\s*+")


def _array_line(line: str) -> bool:
    return bool(_ARRAY_LINE.fullmatch(line)) and (any(c.isdigit() for c in line) or line.strip(" ,])}.…") == "")


def _opens_array(line: str) -> bool:
    places = {line.rfind("["), line.rfind("[["), line.rfind("[[[")} - {-1}
    return any(_OPENS.match(line, i) for i in places)


# -- what it means ---------------------------------------------------------------------------------------------


def _observations(said: Said, context: _Context, where: str) -> Iterator[Observation]:
    about = _about(said, context)
    if said.pairs and not (about.role and "result_output" not in about.nodes):
        ids = any(w in ID_WORDS or w in LOGIT_WORDS or w == "top" for w in split_words(said.label)) or any(
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


def _about(said: Said, context: _Context) -> Meaning:
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
        inside = _inside(label, context)
        if inside.nodes and nodes not in (("result_output",), ("embd",)):
            nodes, layer = inside.nodes, above.layer
    row = said.row if said.row is not None else own.row if own.row is not None else above.row
    perhaps = said.perhaps if said.perhaps is not None else own.perhaps
    return Meaning(nodes, layer, row, above.perhaps if perhaps is None else perhaps, verbatim)


def _inside(label: Sequence[str], context: _Context) -> Meaning:
    """What the words mean inside the layer of the heading above, with its words where they are too few themselves."""
    number = ("layer", str(context.about.layer))
    found = meaning([*label, *number], generic=False)
    if not found.nodes or found.nodes == ("l_out-",) or set(split_words(label)) <= _VAGUE:
        found = meaning([*context.words, *label, *number], generic=False)  # "norm:" below "attn:"
    return found


def _names(about: Meaning) -> tuple[str, ...]:
    """Node names; those of a layer with its number. `last` stands for the number of the last one."""
    if about.verbatim:
        return (about.verbatim,)
    return tuple(
        f"{node}{0 if about.layer is None else about.layer}" if node.endswith("-") else node for node in about.nodes
    )


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _heading(line: str, said: Said, context: _Context, sides: set[str]) -> _Context:
    """A line that speaks of a node, a layer, a position or an engine, and gives no values, is about those below it."""
    marked = bool(_HEADING.search(line))
    own = meaning(said.label) if len(said.label) <= 12 else Meaning()
    if said.layer is not None and own.layer is None:
        own = replace(meaning([*said.label, "layer", str(said.layer)]), row=own.row)
    row = said.row if said.row is not None else own.row
    short = len(said.label) <= (4 if row is None else 10)
    perhaps = said.perhaps if said.perhaps is not None else own.perhaps
    if not marked and not (short and (own.role or own.layer is not None or row is not None or perhaps is not None)):
        return context
    if line.lstrip().startswith("#"):
        context = replace(context, side="", about=replace(context.about, row=None), table=())
    if own.role or own.layer is not None:
        above = context.about
        if own.layer is None and above.layer is not None and own.nodes not in (("result_output",), ("embd",)):
            inside = _inside(said.label, context)  # "attn:" below "block 0:"
            own = inside if inside.nodes and _indent(line) > 0 else own
        own = replace(own, row=above.row if row is None else row, perhaps=above.perhaps if perhaps is None else perhaps)
        context = replace(context, about=own, words=tuple(said.label), indent=_indent(line), table=())
        m = re.search(r"\bfrom\s{1,8}([A-Za-z][\w.+-]{0,60})", line)
        if m and m[1].lower() not in NOT_SIDES:
            context = replace(context, side=m[1])
    elif row is not None or perhaps is not None:
        context = replace(context, about=replace(context.about, row=row, perhaps=perhaps))
    elif marked and (m := _BOLD.match(line)) and m[1].lower() not in NOT_SIDES:
        context = replace(context, side=m[1])
    if marked and (named := {s for s in sides if s in line}):
        context = replace(context, side=max(named, key=len))
    return context


# -- the caller's own patterns ---------------------------------------------------------------------------------


def _by_pattern(
    own: Sequence[Pattern], line: str, context: _Context, where: str
) -> tuple[list[Observation], tuple[int, ...]] | None:
    """What the first pattern that fits makes of the line."""
    for pattern in own:
        holes = pattern.match(line)
        if holes is None:
            continue
        said = Said([], [], [], [])
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
            said.pairs.append(("top", quoted_pairs(wrapped)))
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
