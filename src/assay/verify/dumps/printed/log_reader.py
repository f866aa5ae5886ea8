"""Reading printed text: any line with a word for a node and numbers, from whatever an engine prints.

A line says what it speaks of (a node, a layer, a token's row, whose engine) and gives numbers: a list, columns, rows of
a printed array, statistics by name, token ids with logits. What a line does not say is taken from its headings.
Tables have their own header. Lines with numbers that speak of no known node are kept, for the values to tell.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from assay.verify.dumps.naming.layer_and_row import LAYER, PERHAPS, ROW, layer_of, row_of
from assay.verify.dumps.naming.phrases import TIMES, VALUES, Meaning, meaning, split_words
from assay.verify.dumps.naming.statistic_names import statistic
from assay.verify.dumps.observation import STATISTICS, Dump, Observation
from assay.verify.dumps.print_rounding import half_units
from assay.verify.dumps.printed.brackets import Item, quoted_pairs
from assay.verify.dumps.printed.headings import VAGUE, Context, about, heading
from assay.verify.dumps.printed.json_documents import refolded
from assay.verify.dumps.printed.lexer import DOTS, Group, Number, Piece, Rows, Values, Word, listed, pieces
from assay.verify.dumps.printed.line_blocks import Block, blocks, numbers_of
from assay.verify.dumps.printed.line_parser import TOP_WORDS, said_by
from assay.verify.dumps.printed.number_runs import ID_WORDS, LOGIT_WORDS
from assay.verify.dumps.printed.patterns import Pattern
from assay.verify.dumps.printed.statements import Said
from assay.verify.dumps.printed.tables import Table, table_header, table_row

MOST_BYTES = 1 << 27  # of a log
_ASIDE = 200  # lines with numbers that were not understood, kept for the message
_UNREAD = 1 << 16  # numbers of such lines, kept for the values to tell
_VARIABLES = {"x", "h", "y", "v", "val", "vals", "values", "data", "buf", "first", "head"}
_ITEMS = 256  # of one line, beyond which they are all about one node
_TOP = TOP_WORDS | {"greatest", "id", "ids", "logit", "logits"}


def _text(path: Path) -> str:
    with open(path, "rb") as file:
        return file.read(MOST_BYTES).decode("utf-8", "replace")


def read_log(path: Path, patterns: Sequence[str] = (), text: str | None = None) -> Dump:
    """Observations from any text that people print or paste. Patterns of the caller's own are tried first."""
    own = [Pattern(p) for p in patterns]
    content = refolded(_text(path) if text is None else text)
    context, table = Context(), Table()
    sides: set[str] = set()
    tokens: tuple[int, ...] = ()
    found: list[Observation] = []
    unread: list[Observation] = []
    aside: list[tuple[str, str]] = []
    fenced = False
    titles: deque[str] = deque(maxlen=4)  # the last lines without values
    caption: tuple[str, Said] | None = None  # the last one, where it was not taken for a heading
    kept = nth = 0
    layer: int | None = None  # of the last row of a table
    for number, line, block in blocks(path, content):
        where = f"{path}: line {number}"
        fenced ^= line.lstrip().startswith("```")
        outer, context = context, Context(perhaps=context.perhaps) if _CELL.fullmatch(line) else context.at(line)
        matched = _by_pattern(own, line, context, where) if block is None else None
        if matched is not None:
            found += matched[0]
            tokens = tokens or matched[1]
            continue
        if block is None and (header := table_header(line)) is not None:
            table, nth, layer = replace(header, kind=_kind_of(titles)), 0, None
            continue
        timed = caption is not None and set(split_words(caption[1].label)) & TIMES  # "user  system elapsed"
        if block is not None:
            context = heading(caption[0], caption[1], context, sides, caption=True) if caption else context
            several = [] if timed else _of_block(block, context, len(tokens))
        elif rows := table_row(table, line, nth):
            several = rows
            nth += 1
            for cells in rows if "layer" in table.columns else ():
                layer = layer if cells.layer is None else cells.layer
                cells.layer = layer if "" in cells.label else cells.layer  # an empty cell: the one above
        else:
            several = [said_by(pieces(line), sides, inside=context.about.layer is not None)]
        new: list[Observation] = []
        if caption and block is None and not several[0].empty and _speechless(several[0]):
            several = [] if timed else several
            context = heading(caption[0], caption[1], context, sides, caption=True)
        for said in several:
            said.items = _best(_named_above(said.items, context, titles), context)
            tokens = tokens or said.tokens
            if not said.empty:
                new += _observations(said, context, where)
        found += [o for o in new if o.name]
        said = several[0] if several else Said()
        if any(o.name for o in new):
            caption = None
            last = next(o.name for o in reversed(new) if o.name)
            context = replace(context, fresh=False, before=last.rpartition("-")[0])
            if block is None and not table.columns:
                context = _below(said, context)
            _remember(line, new, context)
        else:
            if new and kept < _UNREAD:
                unread += new
                kept += sum(max(len(o.printed), 1) for o in new)
            if not said.empty and not said.tokens and len(aside) < _ASIDE:
                aside.append((where, line.strip()[:300]))
            if said.empty and line.strip(" -=+|"):
                titles.append(line[:400])
            # a comment in code is no heading
            if not (fenced and line.lstrip().startswith("#")) and not said.tokens and not new:
                before = context
                context = heading(line, said, context, sides)
                changed = context.scopes != before.scopes
                table = Table() if changed else table
                if context == before and _LETTER.search(line):
                    context = outer  # it said nothing: what was spoken of goes on below it
                if line.strip():
                    caption = None if changed else (line, said)
        if (len(said.label) > 12 or said.tokens) and (row := row_of(split_words(said.label), set())) is not None:
            context = replace(context, perhaps=row)  # prose, or beside the tokens
        sides |= {s for s in (said.side, context.side) if s}
    return Dump(
        path.stem, tokens, tuple(range(len(tokens))), (len(tokens),) if tokens else (), tuple(_together(found)),
        str(path), log=True, aside=tuple(a for _, a in aside), aside_at=tuple(w for w, _ in aside),
        unread=tuple(unread),
    )  # fmt: skip


def _below(said: Said, context: Context) -> Context:
    """Values may tell the row of those below it: "pos 3: |emb|=1.5"; a sentence the layer: "In layer 0, …"."""
    own = meaning(said.label)
    if own.layer is not None and said.label[0].lower() in ("in", "at", "for", "inside"):
        return context.entering(replace(context.about, nodes=("l_out-",), layer=own.layer, bare=True), (), 0)
    return context if own.row is None or own.layer is not None else context.told(replace(context.about, row=own.row))


def _speechless(said: Said) -> bool:
    """Values without a word of what they are."""
    return all(
        w in (VALUES, "tensor", "array") or w.isdecimal() or w.lower() in ("dtype", "float32") for w in said.label
    )


def _named_above(items: list[Item], context: Context, titles: Sequence[str]) -> list[Item]:
    """Single numbers are the statistic that the heading names, or nothing."""
    if len(items) == 1 and items[0].kind == "list" and isinstance(items[0].data, Values):
        return _named_together(items[0], items[0].data, [*titles, " ".join(context.words)][-2:])
    if all(i.kind != "?" for i in items):
        return items
    kind = _kind_of([*titles, " ".join(context.words)])
    return [replace(i, kind=kind) if i.kind == "?" else i for i in items if i.kind != "?" or kind]


_CALLED = re.compile(r"\.(\w{1,12})\(")
_TOGETHER = re.compile(r"[\w.]{1,12}(?:\s?[/,|]\s?[\w.]{1,12}){1,7}")


def _named_together(item: Item, values: Values, titles: Sequence[str]) -> list[Item]:
    """As many numbers as the heading names statistics: "layer outputs, mean / std" above "layer 0: 0.1 / 1.2"."""
    for title in reversed(titles):
        calls = [k for name in _CALLED.findall(title[:400]) if (k := statistic([name]))]
        if len(calls) == len(values.all) > 1 and not values.cut:  # logits[-1].max(), logits[-1].min()
            return [replace(item, kind=k, data=n) for k, n in zip(calls, values.all, strict=True)]
        for m in _TOGETHER.finditer(title[:400]):
            kinds = [statistic([part]) for part in re.split(r"\s?[/,|]\s?", m[0])]
            while kinds and kinds[0] is None:
                kinds = kinds[1:]
            if len(kinds) > 1 and None not in kinds and len(kinds) == len(values.all) and not values.cut:
                return [replace(item, kind=str(k), data=n) for k, n in zip(kinds, values.all, strict=True)]
    return [item]


def _best(items: list[Item], context: Context) -> list[Item]:
    """Below "top 5 logits" two numbers are an id and its logit; three have a rank before them."""
    if len(items) != 1 or context.about.nodes != ("result_output",) or not set(split_words(context.words)) & TOP_WORDS:
        return items
    values = items[0].data
    if items[0].kind != "list" or not isinstance(values, Values) or values.last or not 1 < len(values.first) < 4:
        return items
    *whole, value = values.first
    if value.whole or not all(n.whole and n.value >= 0 for n in whole):
        return items
    return [replace(items[0], kind="top", data=((int(whole[-1].value), value),))]


def _kind_of(titles: Sequence[str]) -> str:
    """The statistic that the last of these lines name."""
    for title in reversed(titles):
        words = [p.text for p in pieces(title) if isinstance(p, Word)]
        told = (k for i in range(len(words)) for n in (2, 1) if (k := statistic(words[i : i + n])))
        if kind := next(told, ""):
            return kind
    return ""


_NUMBERED = re.compile(r"[xhyv]_?\d{1,5}")
_CELL = re.compile(r"\s*In \[\d{0,5}\]:\s*")  # of a notebook: what was above is over
_LETTER = re.compile(r"[^\W\d_]")
_PUT = re.compile(
    r"\s*(?:(?:\w{0,12}[Bb]lock|[Ll]ayer|[Ll])\s?\d{1,4}\s{1,4})?([A-Za-z_]\w{0,15})\s{0,16}(?:<-|:?=|\+=)\s{0,8}[A-Za-z(]"
)


_PUT_BEHIND = re.compile(r"(?:->|→|=>)\s{0,4}([A-Za-z_]\w{0,15})\s{1,40}(?:[-+]?\.?\d|[\[(:=])")


def _remember(line: str, new: Sequence[Observation], context: Context) -> None:
    """`xb2 <- wo * xb`: what was put into a variable is what a sum with it adds."""
    if (m := _PUT.match(line) or _PUT_BEHIND.search(line[:400])) and len(context.sums) < 64:
        context.sums[m[1]] = new[0].name.rpartition("-")[0]


# -- what it means ---------------------------------------------------------------------------------------------


def _observations(said: Said, context: Context, where: str) -> list[Observation]:
    """What the line says; of a node called "" where no word named one."""
    line = about(said, context)
    words = split_words(said.label)
    if said.items and all(i.kind in ("at", "top") for i in said.items) and not (
        line.role and "result_output" not in line.nodes and not line.bare
    ):  # fmt: skip
        out = layer_of(words)[0] is not None and not set(words) & (TOP_WORDS | LOGIT_WORDS)  # tok=7 L0 block_out [0]=…
        ids = not out and any(w in ID_WORDS or w in LOGIT_WORDS or w == "top" for w in words)
        if ids or any(i.kind == "top" for i in said.items):
            ids = any(i == line.perhaps for item in said.items for i, _ in item.data)
            perhaps = context.perhaps if ids else line.perhaps  # "token 450" was the id
            line = replace(line, nodes=("result_output",), verbatim="", layer=None, vague=False, perhaps=perhaps)
    side = said.side or context.side
    template, integers = _template(said.label)
    found: list[Observation] = []
    for item, mine in zip(said.items, _each(said, line, context), strict=True):
        names = _names(mine) or ("",)
        common: dict[str, Any] = {
            "others": names[1:], "foreign": side or names[0] or where, "side": side, "where": where,
            "perhaps": mine.perhaps, "vague": mine.vague, "template": template, "integers": integers,
            "layer": mine.layer, "unnumbered": mine.layer is None and names[0].endswith("-0") and not mine.verbatim,
        }  # fmt: skip
        if mine.verbatim:
            common |= {"others": (), "otherwise": names[1:]}
        found += _of_item(item, names[0], mine.row, common)
    return found


_IN_NAME = re.compile(r"[A-Za-z_][\w.]*-\d{1,4}")  # ffn_out-3


def _template(label: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    """The words with `#` for whole numbers that stand alone or number a layer, and these numbers."""
    words: list[str] = []
    alone: set[int] = set()
    for text in label:
        parts = split_words([text]) if text != VALUES else []
        words += parts
        if text.isdecimal() or (_IN_NAME.fullmatch(text) and parts[-1:] and parts[-1].isdecimal()):
            alone.add(len(words) - 1)
    holes = alone | layer_of(words)[1]
    found = tuple(int(w) for i, w in enumerate(words) if i in holes and w.isdecimal() and len(w) < 10)
    return " ".join("#" if i in holes and w.isdecimal() else w for i, w in enumerate(words[:64])), found


def _each(said: Said, line: Meaning, context: Context) -> list[Meaning]:
    """The meaning of every item: the line's, unless the items have words of their own for several nodes or rows."""
    if not 1 < len(said.items) <= _ITEMS:
        return [line] * len(said.items)
    number = [] if line.layer is None else ["layer", str(line.layer)]
    own = [
        replace(meaning([*words, *number], generic=False), layer=layer_of(split_words(words))[0])
        for item in said.items
        for words in [[w for w in item.words if item.kind != "at" or not _NUMBERED.fullmatch(w)]]  # x0=1.5 x1=2.5
    ]
    several = len({m.nodes for m in own if m.nodes}) > 1
    layers = len({m.layer for m in own} - {None}) > 1
    rows = len({m.row if m.row is not None else m.perhaps for m in own} - {None}) > 1
    found: list[Meaning] = []
    now = line
    for item, m in zip(said.items, own, strict=True):
        beside = item.kind in STATISTICS and any(i.kind == "list" for i in said.items[: len(found)])
        dull = VAGUE if beside else _VARIABLES  # out=[...] outNorm=1.5; rms=1.5 x=[...]
        dull = dull | VAGUE if item.kind == "at" else dull  # attn_norm out[0]=1.5 out[1]=2.5
        alone = len({f.nodes for f in found}) < 2  # att 0.1 | ffn 0.2 | x 0.3
        if several and m.nodes and not ((beside or (found and alone)) and set(split_words(item.words)) <= dull):
            now = replace(now, nodes=m.nodes, verbatim=m.verbatim, vague=False, bare=False)
        if layers and m.layer is not None and not several:
            now = replace(now, layer=m.layer)
        before = found[-1].nodes[0] if found and found[-1].nodes else ""
        if before in ("attn_out-", "ffn_out-") and {"residual", "added"} <= set(split_words(item.words)):
            now = replace(now, nodes=("ffn_inp-" if before == "attn_out-" else "l_out-",))  # "and once it is added: …"
        if rows and (m.row is not None or m.perhaps is not None):
            now = replace(now, row=m.row, perhaps=m.perhaps)
        found.append(now)
    if several and not own[0].nodes and line.nodes == own[-1].nodes:
        return [replace(line, nodes=context.about.nodes or line.nodes) if m is line else m for m in found]
    return found


def _of_item(item: Item, name: str, row: int | None, common: dict[str, Any]) -> Iterator[Observation]:
    row = item.row if item.row is not None else row
    if item.kind == "top" and name and name != "result_output":
        item = replace(item, kind="at")  # q: 0:1.5 1:2.5

    def observe(kind: str, data: Any, printed: Sequence[float], row: int | None) -> Observation:
        return Observation(name, kind, data, None if row is None else (row, row + 1), printed=tuple(printed), **common)

    if item.kind == "list":
        yield from _of_list(item, row, observe)
    elif item.kind in ("at", "top"):
        yield observe(item.kind, tuple((i, n.value) for i, n in item.data), [n.half for _, n in item.data], row)
    elif item.kind == "var" and item.data.value >= 0:
        root, half = math.sqrt(item.data.value), item.data.half
        yield observe("std", root, [half / (2 * root) if root else math.sqrt(half)], row)
    elif item.kind in STATISTICS:
        yield observe(item.kind, item.data.value, [item.data.half], row)


def _of_list(item: Item, row: int | None, observe: Any) -> Iterator[Observation]:
    values = item.data
    if isinstance(values, Values):
        values = Rows((values,))
        single = True
    else:
        single = len(values.first) == 1 and not values.last
    back = len(values.last)
    tail = item.tail or _is_tail(item.key)
    for at, line in (*enumerate(values.first), *((i - back, v) for i, v in enumerate(values.last))):
        mine = row if single else at
        first, last = (line.last, line.first) if tail and not line.last else (line.first, line.last)
        for kind, part in (("first", first), ("last", last)):
            if part:
                yield observe(kind, tuple(n.value for n in part), half_units(part), mine)


def _is_tail(key: Sequence[str]) -> bool:
    """ "last 5 values", "tail": the end of a row. "last row" and "last token" are rows."""
    words = split_words(key)
    for before, a, b in zip(["", *words], words, [*words[1:], ""], strict=False):
        if a in ("tail", "ends", "ending", "trailing") or (
            a == "last"
            and b not in ROW | PERHAPS | LAYER | {"hidden", "prompt", "input", "one", "norm", "rmsnorm"}
            and (before not in ROW | PERHAPS or b.isdecimal())
        ):
            return True
    return False


def _names(mine: Meaning) -> tuple[str, ...]:
    """Node names; those of a layer with its number. `last` stands for the number of the last one."""
    names = tuple(
        f"{node}{0 if mine.layer is None else mine.layer}" if node.endswith("-") else node for node in mine.nodes
    )
    return (mine.verbatim, *names) if mine.verbatim else names


# -- numbers below each other ----------------------------------------------------------------------------------


def _of_block(block: Block, context: Context, n_tokens: int) -> list[Said]:
    """What lines of numbers say, under their heading."""
    rows = [numbers_of(row) for row in block.rows]
    if block.index:
        return _indexed(block.index, rows, context)
    widths = {len(row) for row in rows}
    apart = len(widths) == 1 and widths != {1} and len(rows) > 1 and not block.wrapped
    items: list[Piece]
    if apart and (len(rows) == n_tokens or (len(rows) > 4 and len(rows[0]) < 6 and not n_tokens)):
        items = [Group("[", tuple(row)) for row in rows]
    else:
        items = []
        for text in (t for texts in block.rows for t in texts):
            items += numbers_of((text,)) or [DOTS]
    said = Said()
    values = listed(items)
    if values is not None:
        said.add("list", values)
    return [said]


def _indexed(index: Sequence[int], rows: Sequence[Sequence[Number]], context: Context) -> list[Said]:
    """One number a line with an index: elements, best logits, or a statistic of every layer. Or rows with a number."""
    words = split_words(context.words)
    kind = next((k for w in context.words if (k := statistic([w])) and k != "norm"), None)
    logits = context.about.nodes == ("result_output",)
    if any(len(row) != 1 for row in rows) or (context.each and kind and not logits):
        several = []
        for i, row in zip(index, rows, strict=True):
            said = Said(layer=i) if context.each or context.about.layer is None else Said(row=i)
            if kind and len(row) == 1:
                said.add(kind, row[0])
            elif row:
                said.add("list", Values(tuple(row)))
            several.append(said)
        return several
    counted = list(index) == list(range(index[0], index[0] + len(index)))
    base = 1 if counted and index[0] == 1 and not logits else 0
    said = Said()
    falls = all(a[0].value >= b[0].value for a, b in pairwise(rows))
    best = logits and (not counted or (falls and bool(set(words) & _TOP)))
    said.add("top" if best or not (counted or context.about.role) else "at",
             tuple((i - base, row[0]) for i, row in zip(index, rows, strict=True)))  # fmt: skip
    return [said]


# -- the caller's own patterns ---------------------------------------------------------------------------------


def _by_pattern(
    own: Sequence[Pattern], line: str, context: Context, where: str
) -> tuple[list[Observation], tuple[int, ...]] | None:
    """What the first pattern that fits makes of the line."""
    for pattern in own:
        holes = pattern.match(line)
        if holes is None:
            continue
        said = Said()
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
                for n in Group("[", pieces(holes[kind])).numbers():
                    said.add(kind, n)
        for kind in ("first", "last"):
            if kind in holes and isinstance(values := listed(pieces(holes[kind])), Values):
                said.add("list", values, [kind])
        if "top" in holes:
            said.add("top", quoted_pairs(Group("[", pieces(holes["top"]))))
        for i, v in (("id", "logit"), ("index", "value")):
            if i in holes and v in holes:
                (n,) = Group("[", pieces(holes[v])).numbers()
                said.add("at", ((int(holes[i]), n),))
                said.label.append("logit" if i == "id" else "")
        new = [o for o in _observations(said, context, where) if o.name]
        if new:
            return new, ()
    return None


def _together(found: list[Observation]) -> list[Observation]:
    """Single values of one row become one observation; a repeated statement counts once."""
    out: list[Observation] = []
    seen: dict[tuple[Any, ...], list[Any]] = {}
    places: dict[tuple[Any, ...], int] = {}
    for obs in found:
        key = (obs.name, obs.kind, obs.rows, obs.side, obs.perhaps)
        if obs.kind == "at" and key in places:
            last = out[places[key]]
            have = dict(last.data)
            if all(have.get(i, v) == v for i, v in obs.data):
                fresh = [(k, pair) for k, pair in enumerate(obs.data) if pair[0] not in have]
                if fresh:
                    data = last.data + tuple(pair for _, pair in fresh)
                    printed = last.printed + tuple(obs.printed[k] for k, _ in fresh)
                    out[places[key]] = replace(last, data=data, printed=printed)
                continue
        if obs.data not in seen.setdefault(key, []):
            seen[key].append(obs.data)
            places[key] = len(out)
            out.append(obs)
    return out
