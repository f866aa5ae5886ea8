"""Turns a statement into observations: the node, row and kind of each of its values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from assay.verify.dumps.naming.layer_and_row import LAYER, MAYBE_ROW, ROW, head_of, layer_of
from assay.verify.dumps.naming.phrases import VALUES, Meaning, meaning, names_state, split_words
from assay.verify.dumps.naming.statistic_names import statistic_of_each_token
from assay.verify.dumps.observation import STATISTICS, Observation
from assay.verify.dumps.print_rounding import half_units
from assay.verify.dumps.printed.bracket_rules import TOP_WORDS
from assay.verify.dumps.printed.brackets import Quantity
from assay.verify.dumps.printed.headings import HeadingStack
from assay.verify.dumps.printed.lexer import NumberList, NumberRows
from assay.verify.dumps.printed.number_runs import EXPERTS, ID_WORDS, LOGIT_WORDS
from assay.verify.dumps.printed.statements import Statement
from assay.verify.dumps.printed.subjects import VAGUE, subject_of

_VARIABLES = {"x", "h", "y", "v", "val", "vals", "values", "data", "buf", "first", "head"}
_SQUARES = {"var": "std", "squares": "norm"}  # squares of statistics
_PLACES = ROW | {"head"}
_ITEMS = 256  # values of one line; with more, all are about one node
_ELEMENTS = {"first", "last", "values", "vals", "head", "tail", "elements"}  # such a list shows values of a row
_LETTER_LAYER = re.compile(r"[lL]\d{1,3}")
_NUMBERED = re.compile(r"[xhyv]_?\d{1,5}")


def observations_of(statement: Statement, context: HeadingStack, where: str) -> list[Observation]:
    """The observations of a statement; their name is empty if no word names a node."""
    statement = _without_l2(statement, context)
    line = subject_of(statement, context)
    words = split_words(statement.label)
    named = line.role and "result_output" not in line.nodes and not line.bare
    if set(words[:2]) & TOP_WORDS and not meaning(statement.label).role:
        named = False  # "top: 261=15.7, 262=12.4" below a layer
    if statement.items and all(i.kind in ("at", "top") for i in statement.items) and not named:
        out = layer_of(words)[0] is not None and not set(words) & (TOP_WORDS | LOGIT_WORDS)  # tok=7 L0 block_out [0]=…
        ids = not out and any(w in ID_WORDS or w in LOGIT_WORDS or w == "top" for w in words)
        experts = statement.layer is not None or bool(set(words) & EXPERTS)  # 5:0.894,4:0.105 in a layer's row
        if (ids or any(i.kind == "top" for i in statement.items)) and not (experts and not set(words) & LOGIT_WORDS):
            ids = any(i == line.possible_row for item in statement.items for i, _ in item.data)
            possible_row = context.possible_row if ids else line.possible_row  # "token 450" was the id
            line = replace(
                line, nodes=("result_output",), verbatim="", layer=None, vague=False, possible_row=possible_row
            )
    if names_state(words):
        line = Meaning(layer=line.layer)  # what a recurrent layer keeps is no value of a token
    side = statement.side or context.side
    silent = all(word == VALUES for word in statement.label)  # numbers below their heading
    template, integers = _template(context.words if silent else statement.label)
    if not silent and all(word == VALUES or word.isdecimal() or word in _PLACES for word in statement.label):
        template = f"{_template(context.words)[0]} {template}".strip()  # rows below a heading that names their node
    if _over_heads({*words}) or (not meaning(statement.label).nodes and _over_heads({*split_words(context.words)})):
        return []  # no node holds the mean of the heads' weights
    head = _head(words, context)
    above = context.of_each_token.kind if context.of_each_token else ""
    said = statistic_of_each_token(words) or ("" if set(words) & _ELEMENTS else above)
    found: list[Observation] = []
    for item, mine in zip(statement.items, _each(statement, line, context), strict=True):
        mine = _weights(item, mine)
        names = _names(mine) or ("",)
        common: dict[str, Any] = {
            "others": names[1:], "foreign": side or names[0] or where, "side": side, "where": where,
            "possible_row": mine.possible_row, "vague": mine.vague, "template": template, "integers": integers,
            "layer": mine.layer, "head": head, "of_each_token": _of_each_token(item, said),
            "unnumbered": mine.layer is None and names[0].endswith("-0") and not mine.verbatim,
        }  # fmt: skip
        if mine.verbatim:
            common |= {"others": (), "fallbacks": names[1:]}
        found += _of_item(item, names[0], mine.row, common)
    return found


def _without_l2(statement: Statement, context: HeadingStack) -> Statement:
    """The statement without `l2` before a list, where the line or its heading names the layer: it is no layer 2."""
    label = statement.label
    at = {i for i, (word, then) in enumerate(pairwise(label)) if word.lower() == "l2" and then == VALUES}
    rest = [word for i, word in enumerate(label) if i not in at]
    if not at or any(_LETTER_LAYER.fullmatch(word) for word in rest):
        return statement
    own = statement.layer is not None or meaning(rest).layer is not None
    below = context.subject.layer is not None and label[:1] == ["l2"]
    if not own and not below:
        return statement
    before = statement.words_before_list
    return replace(
        statement,
        label=rest,
        words_before_list=None if before is None else before - sum(i < before for i in at),
        items=[replace(i, words=_cut(i.words)) for i in statement.items],
    )


def _of_each_token(item: Quantity, said: str) -> str:
    """The statistic of a list with a number for each token: by the words, or by the list's own key: `l2=[1.5, 2.5]`."""
    if item.kind != "list" or not isinstance(item.data, NumberList):
        return ""
    key = [w.lower() for w in item.key[-1:]]
    return "norm" if key in (["l2"], ["norms"], ["l2norm"], ["l2_norm"]) else "rms" if key == ["rms"] else said


def _cut(words: tuple[str, ...]) -> tuple[str, ...]:
    return words[:-1] if words[-1:] and words[-1].lower() == "l2" else words


def _over_heads(words: set[str]) -> bool:
    """Whether the values are averages over attention heads."""
    return bool(words & {"average", "averages", "averaged", "avg"}) and bool(words & {"head", "heads"})


def _head(words: list[str], context: HeadingStack) -> int | None:
    """The attention head that the line names, or the heading above it."""
    own = head_of(words, layer_of(words)[1])
    placed = context.subject.layer is not None and not context.subject.bare
    above = split_words(context.words) if own is None and placed else []
    return own if own is not None else head_of(above, layer_of(above)[1])


def _weights(item: Quantity, mine: Meaning) -> Meaning:
    """Values of attention that are shares of one are its weights, whatever the words call them."""
    values = item.data
    if item.kind != "list" or not mine.nodes or mine.nodes[0] not in _OF_ATTENTION or mine.verbatim:
        return mine
    rows = [values] if isinstance(values, NumberList) else [*values.first, *values.last]
    shares = all(map(_shares, rows)) or (item.outer is not None and all(0 <= n.value <= 1 for r in rows for n in r.all))
    return replace(mine, nodes=("kq_soft_max-",), vague=False) if rows and shares else mine


def _shares(values: NumberList) -> bool:
    """Whether the numbers are at least 0 and add up to 1, within what was printed."""
    numbers = values.all
    if values.elided or len(numbers) < 2 or any(not 0 <= n.value <= 1 for n in numbers):
        return False
    return abs(sum(n.value for n in numbers) - 1) <= 1e-4 + sum(n.half for n in numbers)


_OF_ATTENTION = ("attn_out-", "kqv_out-", "kq-")
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


def _each(statement: Statement, line: Meaning, context: HeadingStack) -> list[Meaning]:
    """The meaning of every value: the line's, unless the words between the values name several nodes or rows."""
    if not 1 < len(statement.items) <= _ITEMS:
        return [line] * len(statement.items)
    number = [] if line.layer is None else ["layer", str(line.layer)]
    own = [
        replace(meaning([*words, *number], generic=False), layer=layer_of(split_words(words))[0])
        for item in statement.items
        for words in [[w for w in item.words if item.kind != "at" or not _NUMBERED.fullmatch(w)]]  # x0=1.5 x1=2.5
    ]
    own = [_without_id(item, m) for item, m in zip(statement.items, own, strict=True)]
    several = len({m.nodes for m in own if m.nodes}) > 1
    layers = len({m.layer for m in own} - {None}) > 1
    rows = len({m.row if m.row is not None else m.possible_row for m in own} - {None}) > 1
    found: list[Meaning] = []
    now = line
    later = next((i for i, m in enumerate(own) if m.row is not None), 0)
    shown = statement.items[:later]
    apart = later > 0 and own[later].row == line.row and all(i.kind in STATISTICS or i.kind == "list" for i in shown)
    if apart and statement.items[later].kind == "list":  # sum=1.5 l2=2.5 last_tok=[…]: the sums may be of all rows
        now = replace(line, row=statement.row)
    for i, (item, m) in enumerate(zip(statement.items, own, strict=True)):
        now = replace(now, row=line.row) if apart and i == later else now
        beside = item.kind in STATISTICS and any(i.kind == "list" for i in statement.items[: len(found)])
        dull = VAGUE if beside else _VARIABLES  # out=[...] outNorm=1.5; rms=1.5 x=[...]
        dull = dull | VAGUE if item.kind == "at" else dull  # attn_norm out[0]=1.5 out[1]=2.5
        if found and found[-1].nodes[:1] and found[-1].nodes[0].startswith(("Qcur", "Kcur")):
            dull = dull - {"v"}  # k=[...] v=[...]
        alone = len({f.nodes for f in found}) < 2  # att 0.1 | ffn 0.2 | x 0.3
        if several and m.nodes and not ((beside or (found and alone)) and set(split_words(item.words)) <= dull):
            now = replace(now, nodes=m.nodes, verbatim=m.verbatim, vague=False, bare=False)
        if layers and m.layer is not None and not several:
            now = replace(now, layer=m.layer)
        before = found[-1].nodes[0] if found and found[-1].nodes else ""
        if before in ("attn_out-", "ffn_out-") and {"residual", "added"} <= set(split_words(item.words)):
            now = replace(now, nodes=("ffn_inp-" if before == "attn_out-" else "l_out-",))  # "and once it is added: …"
        if rows and (m.row is not None or m.possible_row is not None):
            now = replace(now, row=m.row, possible_row=m.possible_row)
        found.append(now)
    if several and not own[0].nodes and line.nodes == own[-1].nodes:
        return [replace(line, nodes=context.subject.nodes or line.nodes) if m is line else m for m in found]
    return found


def _without_id(item: Quantity, mine: Meaning) -> Meaning:
    """The meaning without a row that is the id of the logit: "token 13 (1.519)"."""
    ids = {i for i, _ in item.data} if item.kind in ("at", "top") else set()
    return replace(mine, possible_row=None) if mine.possible_row in ids else mine


def _of_item(item: Quantity, name: str, row: int | None, common: dict[str, Any]) -> Iterator[Observation]:
    row = item.row if item.row is not None else row
    if item.kind == "top" and name and name != "result_output":
        item = replace(item, kind="at")  # q: 0:1.5 1:2.5

    def observe(kind: str, data: Any, printed: Sequence[float], row: int | None) -> Observation:
        rows = None if row is None else (row, row + 1)
        return Observation(name, kind, data, rows, printed=tuple(printed), outer=item.outer, **common)

    if item.kind == "list":
        yield from _of_list(item, row, observe)
    elif item.kind in ("at", "top"):
        yield observe(item.kind, tuple((i, n.value) for i, n in item.data), [n.half for _, n in item.data], row)
    elif item.kind in _SQUARES and item.data.value >= 0:
        root, half = math.sqrt(item.data.value), item.data.half
        yield observe(_SQUARES[item.kind], root, [half / (2 * root) if root else math.sqrt(half)], row)
    elif item.kind in STATISTICS:
        yield observe(item.kind, item.data.value, [item.data.half], row)


def _of_list(item: Quantity, row: int | None, observe: Any) -> Iterator[Observation]:
    values = item.data
    if isinstance(values, NumberList):
        values = NumberRows((values,))
        single = True
    else:
        single = len(values.first) == 1 and not values.last
    back = len(values.last)
    tail = item.from_end or _is_tail(item.key)
    for at, line in (*enumerate(values.first), *((i - back, v) for i, v in enumerate(values.last))):
        mine = row if single else at
        first, last = (line.last, line.first) if tail and not line.last else (line.first, line.last)
        for kind, part in (("first", first), ("last", last)):
            if part:
                yield observe(kind, tuple(n.value for n in part), half_units(part), mine)


def _is_tail(key: Sequence[str]) -> bool:
    """Whether the words mean the end of a row: "last 5 values", "tail". "last row" and "last token" name a row."""
    words = split_words(key)
    for before, a, b in zip(["", *words], words, [*words[1:], ""], strict=False):
        if a in ("tail", "ends", "ending", "trailing") or (
            a == "last"
            and b not in ROW | MAYBE_ROW | LAYER | {"hidden", "prompt", "input", "one", "norm", "rmsnorm"}
            and (before not in ROW | MAYBE_ROW or b.isdecimal())
        ):
            return True
    return False


def _names(mine: Meaning) -> tuple[str, ...]:
    """Node names, with the number of their layer; `last` stands for the last layer."""
    names = tuple(
        f"{node}{0 if mine.layer is None else mine.layer}" if node.endswith("-") else node for node in mine.nodes
    )
    return (mine.verbatim, *names) if mine.verbatim else names


def joined(found: list[Observation]) -> list[Observation]:
    """Single values of one row become one observation; a repeated statement counts once."""
    out: list[Observation] = []
    seen: dict[tuple[Any, ...], list[Any]] = {}
    places: dict[tuple[Any, ...], int] = {}
    for obs in found:
        key = (obs.name, obs.kind, obs.rows, obs.side, obs.possible_row, obs.outer, obs.head)
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
