"""What one printed line says: its words, and its items (lists, statistics by name, ids with logits), each with the
words that stand before it.

Nothing is decided here about nodes. Whole numbers that belong to no item stay among the words, in their place: a
layer's number, a token's row and a count look alike until the words around them are read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from assay.verify.dumps.brackets import (
    Item,
    assigned_pairs,
    axes_of,
    elements_from,
    is_count,
    layers_beside,
    lone_of,
    number_first,
    pairs_from,
    plain,
    quoted_pairs,
    ranked,
    vectors,
)
from assay.verify.dumps.lines import (
    ASSIGN,
    BAR,
    COMMA,
    DOTS,
    SLASH,
    Group,
    Mark,
    Number,
    Piece,
    Rows,
    Values,
    Word,
    listed,
)
from assay.verify.dumps.observation import STATISTICS
from assay.verify.dumps.places import COUNTS, LAYER, LAYERS, NUMBERING, PERHAPS, ROW
from assay.verify.dumps.statistics import STATISTIC_WORDS, statistic, without_statistic
from assay.verify.dumps.words import VALUES, all_known, meaning, split_words

_TOKENS = {"tokens", "ids", "inputs", "prompt", "tokenized"}
_SHAPE = {"shape", "dims", "dim", "ne", "size", "strides", "stride", "nb", "torch", "heads"}
ID_WORDS = {"token", "id", "tok", "idx", "index", "candidate", "cand", "argmax"}
LOGIT_WORDS = {"logit", "score", "val", "value", "logprob", "prob"}
TOP_WORDS = {"top", "best", "highest", "largest", "candidates", "argmax", "predictions"}
NOT_SIDES = {
    "first", "last", "values", "value", "data", "tensor", "array", "float", "stats", "shape", "top", "range", "result",
    "results", "differences", "actual", "wrong", "right", "expected", "note", "analysis", "conclusion", "head", "tail",
    "sample", "vals", "samples", "output", "input", "out", "vec", "buf", "debug", "info", "res", "ret", "ans", "tmp",
    "got", "act", "acts", "activations", "probe", "trace", "dump",
}  # fmt: skip
_TOP = {"logit", "logits", "top", "id", "ids", "best", "tokens", "candidates"}
_ARRAY_MAKERS = {"tensor", "array", "vec", "vector", "list", "float32", "ndarray", "parameter", "arr", "slice", "f32"}
_ENDS = (("embd",), ("result_norm",), ("result_output",))
_CUTS = {"prefix": False, "take": False, "head": False, "suffix": True, "tail": True}  # to the end of a row?
RECORD = {
    "name", "node", "tensor", "op", "stage", "what", "label", "activation", "tag", "site", "point", "key", "module",
    "where", "hook", "probe",
}  # fmt: skip
_LISTS_OF = {"values", "vals", "data", "sample"}
_ELEMENTS_OF = _LISTS_OF | {"out", "x", "h", "y", "v", "buf", "dst", "res", "arr", "vec"}
_POSITIVE = {"norm", "rms", "std", "var", "absmax", "absmean"}
_PLUS_MINUS = Mark("±")


@dataclass
class Said:
    """What one line said, as it is read."""

    label: list[str] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    tokens: tuple[int, ...] = ()
    before: int | None = None  # words before the first list
    layer: int | None = None
    row: int | None = None
    perhaps: int | None = None
    id: int | None = None  # of the token whose logit may follow
    side: str = ""
    since: int = 0  # words of the label before the last item
    around: tuple[str, ...] = ()  # words before the brackets that are open
    tail: bool = False
    inside: bool = False  # a layer: its number is known
    element: int | None = None  # x[3] after attention = …
    cut_row: int | None = None

    def add(self, kind: str, data: Any, key: Iterable[str] = ()) -> None:
        self._drop_variable(kind)
        words = (*self.around, *self.label[self.since :])
        self.items.append(Item(kind, data, words[-64:], tuple(key), self.cut_row, self.tail))
        if kind == "list" and self.before is None:
            self.before = len(self.label)
        self.label.append(VALUES)  # words on either side of it do not belong together
        self.since, self.tail = len(self.label), False

    def _drop_variable(self, kind: str) -> None:
        """`name="w1" v=[…]`, `V_proj values=[…]`, `attn_norm out[0]=…`: a variable beside the name of a node."""
        last = "".join(split_words(self.label[-1:])[-1:])
        if last not in (_ELEMENTS_OF if kind == "at" else _LISTS_OF | {"v"} if kind == "list" else ()):
            return
        rest = [w for w in self.label[: min(len(self.label) - 1, 48)] if w != VALUES]
        if last == "v" and kind == "list" and not {w.lower() for w in rest} & RECORD:
            return
        if rest and meaning([*rest, "layer", "0"], generic=False).nodes:
            self.label.pop()

    @property
    def empty(self) -> bool:
        return all(i.kind == "?" for i in self.items)


def said_by(cut: Sequence[Piece], sides: set[str], inside: bool = False) -> Said:
    """`inside`: the lines above told the layer, so that an index counts elements."""
    line = Said(inside=inside)
    cut = plain(cut)
    number, skip = number_first(cut)
    if number is not None:
        line.label += ["layer", str(number)]
    _walk(list(cut[skip:]), line, [])
    line.items = layers_beside(vectors(ranked(cut, line.items)))
    _tell(line)
    if line.label[:1] and line.label[0][:2] == "k_":  # [k_rmsnorm] layer 0 attn_norm: a kernel, no key
        named = meaning([*line.label[1:], "layer", "0"], generic=False).nodes
        line.label[0] = line.label[0][2:] if named and named != ("l_out-",) else line.label[0]
    side = _side(cut)
    if side and (side in sides or not meaning([side]).role):
        line.side = side
    return line


def _walk(cut: list[Piece], line: Said, key: list[str]) -> list[str]:
    """Take the pieces one after the other; `key` are the words since the last value or comma."""
    i = 0
    while i < len(cut):
        piece = cut[i]
        if isinstance(piece, Word):
            key.append(piece.text)
            line.label.append(piece.text)
        elif isinstance(piece, Number) and piece.text in ("null", "None") and _numbers(key):
            line.label.pop()  # "layer": null, of what belongs to none
            key = key[:-1]
        elif isinstance(piece, Number):
            pairs, past = pairs_from(cut, i)
            if pairs:
                ordered = [i for i, _ in pairs] == list(range(len(pairs))) and not set(split_words(line.label)) & _TOP
                line.add("at" if ordered and len(pairs) > 2 else "top", pairs, key)
                key, i = [], past
                continue
            if _leads(cut, i, key, line):
                i += 2
                continue
            run, i = _run(cut, i, key, line)
            if len(run) == 1 and is_count(cut, i - 1):
                continue  # "layer 1 of 3", "1/3"
            at = i - len(run)
            apart = at > 2 and cut[at - 3] is ASSIGN  # layer 0 output: norm=1.5
            _number_run(run, key, line, assigned=at > 0 and cut[at - 1] is ASSIGN, apart=apart)
            key = [*key, run[0].text] if len(run) == 1 and isinstance(run[0], Number) and _counts(key) else []
            continue
        elif isinstance(piece, Group) and line.label and (elements := elements_from(cut, i)):
            line.add("at", elements, key)
            key, i = [], i + 2 * len(elements)
            continue
        elif isinstance(piece, Group):
            before = len(line.items)
            key = _group(piece, cut[i + 1 : i + 5], key, line)
            if len(line.items) > before and line.items[-1].kind == "at" and len(cut) > i + 2:
                i += 2 if line.items[-1].data[0][1] is cut[i + 2] else 0  # x[3] = 0.5: the value is taken
        elif piece is COMMA or piece is BAR:
            key = key if _waits(key) else []
        elif piece.text == "@" and i + 1 < len(cut) and cut[i + 1] == Word("last"):
            line.row = -1
            i += 1
        elif piece.text == "@" and i + 2 == len(cut) and isinstance(cut[i + 1], Number) and "p" in line.label[:1]:
            i += 1  # p *s->x@4: how many
        elif piece.text == "@" and line.label:
            line.label.append("times")  # attn @ V
        elif piece is DOTS and line.items and line.items[-1].kind == "list" and _list_follows(cut, i):
            line.tail = True  # [1.5, 2.5] … [0.5, 0.25]
        elif piece.text == "+" and (line.label or isinstance(cut[i + 1 : i + 2][:1] and cut[i + 1], Word)):
            line.label.append("plus")  # x + attn(x)
        i += 1
    return key


def _list_follows(cut: Sequence[Piece], i: int) -> bool:
    rest = [p for p in cut[i + 1 : i + 3] if p != Mark("@")]  # @[1.5] ... @[2.5]
    return bool(rest) and isinstance(rest[0], Group)


def _numbers(key: Sequence[str]) -> bool:
    return bool(key) and bool(set(split_words(key[-1:])) & (LAYERS | ROW | PERHAPS))


def _leads(cut: Sequence[Piece], i: int, key: Sequence[str], line: Said) -> bool:
    """A layer's number at the head of a line of a table: `attn_out,0,0.5,0.25,…`."""
    first, rest = cut[i], cut[i + 1 : i + 6]
    if not (isinstance(first, Number) and first.whole and first.value >= 0 and len(rest) > 3 and rest[0] is COMMA):
        return False
    numbers = [p for p in rest[1:] if isinstance(p, Number)]
    if len(numbers) < 2 or any(n.whole for n in numbers) or line.items or not line.label:
        return False
    about = meaning(line.label)
    if not about.nodes or not about.nodes[0].endswith("-") or about.layer is not None or about.verbatim:
        return False
    line.label += ["layer", first.text]
    return True


def _counts(key: list[str]) -> bool:
    """Words that are followed by how many: "first 5 values"."""
    return bool(key) and key[-1].lower() in ("first", "last", "top")


def _waits(key: list[str]) -> bool:
    """Words that go on behind a comma: "first 5 values, last row: [...]", "min, max = …"."""
    return any(w.lower() in ("first", "last", "values", "vals", "head") or statistic([w]) for w in key[-8:])


def _run(cut: list[Piece], i: int, key: list[str], line: Said) -> tuple[list[Piece], int]:
    """Numbers side by side, with commas or dots between them; one after a word that takes one."""
    first = cut[i]
    assert isinstance(first, Number)
    last = split_words(key[-1:])[-1:] if key else []
    if last and last[0] in LAYER | ROW | NUMBERING and first.whole:
        return [first], i + 1
    kind = statistic(key)
    beside = kind and line.items and line.items[-1].kind in STATISTICS and i and cut[i - 1] is ASSIGN
    if (kind not in (None, "norm", "rms") or key[-1:] in (["l2"], ["nrm2"]) or beside) and len(_several(key)) < 2:
        return [first], i + 1  # max=2.5 norm=3.5 0.5 0.25 …
    run: list[Piece] = []
    while i < len(cut):
        piece = cut[i]
        if isinstance(piece, Number) or piece is DOTS:
            run.append(piece)
        elif not (
            (_between(piece) or (piece is BAR and _real(run, cut, i)))
            and i + 1 < len(cut)
            and (isinstance(cut[i + 1], Number) or cut[i + 1] is DOTS)
        ):
            break
        i += 1
    return run, i


def _real(run: Sequence[Piece], cut: Sequence[Piece], i: int) -> bool:
    """Whether a bar stands between two numbers with decimals: they are one list."""
    near = (run[-1], cut[i + 1]) if run and i + 1 < len(cut) else ()
    return bool(near) and all(isinstance(p, Number) and not p.whole for p in near)


def _between(piece: Piece) -> bool:
    return piece is COMMA or piece is SLASH or piece == _PLUS_MINUS or piece == Word("and")


def _several(key: Sequence[str]) -> list[str]:
    """The statistics that the last words name, one after the other: "min/max/mean", "mean ± std"."""
    found: list[str] = []
    for word in reversed(key[-9:]):
        parts = [statistic([part]) for part in word.split("/")] if "/" in word else [statistic([word])]
        if not all(parts):
            break
        found = [p for p in parts if p] + found
    return found


def _number_run(run: list[Piece], key: list[str], line: Said, assigned: bool, apart: bool = False) -> None:
    numbers = [p for p in run if isinstance(p, Number)]
    if _zip(numbers, key, line):
        return
    words = split_words(key)
    last = words[-1] if words else ""
    one = numbers[0]
    if len(numbers) == 1:
        kind = statistic(key)
        kind = None if kind in _POSITIVE and one.value < 0 else kind
        if kind in ("max", "absmax") and words[-1:] == ["logit"] and line.id is not None:
            kind = None  # argmax=2 maxLogit=1.5
        said = [w for w in key[-4:] if w.lower() not in ("is", "was", "the", "and")]
        if not kind and len(said) == 2 and said[1].lower() in ("logit", "logits") and not one.whole:
            kind = statistic(said[:1])  # "the largest logit is 1.5"
        if (
            not kind
            and assigned
            and not one.whole
            and words[-1:] == ["norm"]
            and words[-2:-1] not in (["rms"], ["layer"])
        ):
            kind = "norm"  # of a list a node, of one number its length
        if kind == "norm" and assigned and words[-2:-1] in (["output"], ["final"]) and not line.items and not apart:
            kind = None  # "output norm: 1.5", of a statistic that the heading names
        if kind == "norm" and not assigned and key and not line.items and (key[-1].lower() == "l2" or one.whole):
            placed = line.inside or meaning(line.label[:-1]).layer is not None
            kind = kind if placed and not one.whole else None  # "L2" may be the third layer, "norm" a node
        if kind and not (one.whole and last in ("max", "total", "min", "norm", "of") and len(words) > 1):
            _take_word(line, kind)
            line.add(kind, one, key)
        elif not one.whole and not (key and LOGIT_WORDS & set(words[-2:])) and (at := _element(line)) is not None:
            line.add("at", ((at, one),), key)
        elif LOGIT_WORDS & set(words[-2:]) and line.id is not None and not (one.whole and last not in LOGIT_WORDS):
            line.add("at", ((line.id, one),), key)
        elif one.whole and one.value < 0:
            if last in ROW | PERHAPS:
                line.row = int(one.value)
        elif one.whole:
            named = [w for w in words[-2:] if w not in COUNTS]
            if last in ID_WORDS and not set(named) & LAYERS:
                line.id = int(one.value)
            line.label.append(one.text)
        elif line.id is not None and not words:
            line.add("at", ((line.id, one),), key)
        elif not one.whole and (kind := _kind_before(line.label) or _kind_ahead(key, line)):
            line.add(kind, one, key)
        elif (assigned and _has_place(key or line.label)) or (
            line.items and line.items[-1].kind == "?" and key and meaning(key).role
        ):  # after attn: 4.02 (attn contribution 5.11)
            line.add("?", one, key)
        return
    if all(n.whole or not math.isfinite(n.value) for n in numbers) and any(n.whole for n in numbers):
        numbers = [n for n in numbers if n.whole]  # "nan 0 inf 0" counts them
    values = listed([p for p in run if isinstance(p, Number) or p is DOTS])
    if isinstance(values, Values):
        if all(n.whole for n in numbers):
            if set(words) & _TOKENS and not (values.cut and len(numbers) == 2):  # "tokens 0..7" are no ids
                line.tokens = line.tokens or tuple(int(n.value) for n in numbers)
        else:
            line.add("list", values, key)


_VARIABLE = re.compile(r"(?:x|y|v|e|d|z|o|c|ch|val|dim|out|elem)_?(\d{1,5})", re.IGNORECASE)
_ELEMENT = {
    "gid",
    "tid",
    "lane",
    "thread",
    "i",
    "j",
    "elem",
    "element",
    "dim",
    "ch",
    "channel",
    "col",
    "column",
    "item",
}


def _kind_before(label: Sequence[str]) -> str:
    """The statistic of all single numbers of a line: "rms of the residual: after attention 1.5, after mlp 2.5"."""
    of = [i for i, word in enumerate(label[1:], 1) if word == "of"]
    return next((k for i in of if (k := statistic(label[i - 1 : i]))), "")


def _kind_ahead(key: Sequence[str], line: Said) -> str:
    """The statistic that leads the words for the node: "rms embedding 1.5 rms final norm 2.5"."""
    kind = statistic(key[:1]) or ""
    rest = split_words(key[1:])
    if not kind or not rest or not all_known(rest) or statistic(key[1:2]) or not _has_place(key[1:]):
        return ""
    if line.label[-len(key) :] == list(key):
        del line.label[-len(key)]
    return kind


def _tell(line: Said) -> None:
    """Single numbers whose statistic stands before or amid the words for the node: "rms attn_out: 1.5"."""
    first = line.label.index(VALUES) if VALUES in line.label else 0
    if not any(i.kind == "?" for i in line.items) or any(i.kind not in ("?", *STATISTICS) for i in line.items):
        return
    head = line.label[:first]
    told = [(i, kind) for i, word in enumerate(head) if (kind := statistic([word]))]
    if len(told) != 1:
        return
    (at, kind), rest = told[0], split_words([w for i, w in enumerate(head) if i != told[0][0]])
    after = split_words(head[at + 1 : at + 2])
    dull = kind == "norm" and head[at].lower() == "norm" and at > 0
    if dull or not rest or not all_known(rest) or (kind == "rms" and after[:1] in (["norm"], ["final"])):
        return
    word = line.label.pop(at)
    line.before = line.before - 1 if line.before is not None else None
    line.items = [
        replace(i, kind=kind, words=tuple(w for w in i.words if w != word)) if i.kind == "?" else i for i in line.items
    ]


def _has_place(words: Sequence[str]) -> bool:
    """Words that say of what a single number is, and leave open which statistic."""
    about = meaning(words)
    told = about.role or about.layer is not None or about.row is not None
    return told or bool(words and meaning([*words, "layer", "0"], generic=False).nodes)


def _element(line: Said) -> int | None:
    """The index of a single value, by a word: "tid 3 layer 0 out = 1.5", "layer 0 y3=1.5"."""
    if line.element is not None:
        return line.element
    if line.label and (m := _VARIABLE.fullmatch(line.label[-1])):
        about = meaning(line.label[:-1])
        if about.layer is not None or about.role or line.inside:
            return int(m[1])
    for a, b in zip(line.label[line.since :], line.label[line.since + 1 :], strict=False):
        if a.lower() in _ELEMENT and b.isdecimal() and len(b) < 7:
            return int(b)
    return None


def _take_word(line: Said, kind: str) -> None:
    """A word was the statistic's: what else stands in the same word stays."""
    for i in range(len(line.label) - 1, max(len(line.label) - 24, line.since) - 1, -1):
        if (
            not statistic([line.label[i]])
            and not line.label[i].lower().endswith("norm")
            and not (line.label[i].lower() == "dev" and kind == "std")
        ):
            continue
        parts = without_statistic(split_words([line.label[i]]))
        before = i - 1 if i and line.label[i - 1].lower() in ("abs", "l2", "max", "mean", "avg", "std") else i
        line.label[before : i + 1] = parts
        return


def _zip(numbers: Sequence[Number], key: Sequence[str], line: Said) -> bool:
    """As many statistics named as numbers follow."""
    several = _several(key) if len(numbers) > 1 else []
    if len(several) < 2 or len(several) != len(numbers):
        return False
    for kind, n in zip(several, numbers, strict=True):
        line.add(kind, n, key)
    return True


def _slice(group: Group, key: Sequence[str], line: Said) -> bool:
    """Whether a bracket is a slice or an index that tells a row or an end: `[0, -1, :5]`, `[-4:]`, `[end]`."""
    axes = axes_of(group)
    if axes is None:
        return False
    lone = [lone_of(axis) for axis in axes]
    named = split_words(key[-1:])[-1:]
    first = axes[-1][0] if axes[-1] else None
    if lone[-1] is None and isinstance(first, Number) and first.value < 0:
        line.tail = True
    at = [n for n in lone if n is not None]
    if at and not (len(axes) == 1 and named and named[0] in LAYERS | {"states"}):
        if min(at) < 0 or len(axes) > 2:
            line.cut_row = line.row = min(at) if min(at) < 0 else at[-1]
        elif lone[-1] is None:
            line.perhaps = at[0]
    return True


def _group(group: Group, after: Sequence[Piece], key: list[str], line: Said) -> list[str]:
    """What a bracket says, given the words before it; the words that go on after it."""
    words = split_words(key)
    values = listed(group.items)
    index = group.numbers()
    if group.bracket == "(" and key and statistic(key) and _options(group):
        return key  # .std(correction=0)
    if isinstance(values, Values) and len(group.items) == 1 and index and index[0].whole and index[0].value >= 0:
        value = after[1] if len(after) > 1 and after[0] is ASSIGN else None
        listed_after = isinstance(value, Group) or sum(isinstance(p, Number) for p in after[1:4]) > 1
        if not line.label and not isinstance(value, Number):
            line.label.append(index[0].text)  # [0] attn: …
            if isinstance((*after, None)[0] if len(after) == 1 else value if len(after) == 2 else None, Group):
                line.perhaps = int(index[0].value)  # [0] [1.5, 2.5]
            return key
        if group.bracket == "(" and key and key[-1].lower().endswith("array"):
            return key  # Float32Array(6) […]
        if group.bracket == "(" and words and words[-1] in _CUTS:
            line.tail = line.tail or _CUTS[words[-1]]  # x.prefix(5): how many
            return key
        if key and key[-1].lower().endswith("hidden_states") and line.label[-1:] == key[-1:]:
            line.label[-1] = f"hidden_states.{index[0].text}"
            return key
        led = len(line.label) == 2 and line.label[0].isdecimal()  # 2.layer_out (16): its layer was said
        placed = line.inside or led or meaning(line.label).layer is not None or meaning(line.label).nodes in _ENDS
        named = (
            bool(key) and not placed and ("_" in key[-1] or (words[-1:] and words[-1] in LAYER | {"hidden", "states"}))
        )
        if listed_after and not named and key and not set(words) & (_SHAPE | _TOKENS):  # q(0) = [...]
            about = meaning([key[-1], "layer", "0"], generic=False)
            named = bool(about.nodes) and not placed
        counts = bool(set(words) & LAYERS) and not (line.around and isinstance(value, Number))
        last = line.items[-1] if line.items else None
        again = len(after) > 3 and after[2] == Word(key[-1] if key else "") and isinstance(after[3], Group)
        again = again or (last is not None and last.kind == "at" and key[-1:] == list(last.words[-1:]))
        named = named and not (again and isinstance(value, Number) and not value.whole)  # v_out[0]=1.5 v_out[1]=2.5
        named = named or (
            counts and not (again or led or (line.inside and value is not None)) and meaning(line.label).layer is None
        )  # "layer output [0]: ..."
        element = isinstance(value, Number) and not value.whole and not listed_after and not named
        if element and isinstance(value, Number) and not set(words[-2:]) & _SHAPE:
            line.add("at", ((int(index[0].value), value),), key)
        elif named and not set(words) & _SHAPE:
            if meaning(line.label).layer is None:
                line.label += ["layer", index[0].text]
        elif words[-1:] in (["token"], ["tok"]) and "bos" not in words:
            line.label.append(index[0].text)
        elif set(words) & (_TOKENS | {"token", "bos"}):
            line.tokens = line.tokens or (int(index[0].value),)
        elif value is None and words[-1:] and words[-1] in ("x", "h", "y", "v"):
            line.element = int(index[0].value)
        elif listed_after and not led:
            line.label.append(index[0].text)  # xnorm(0) = …: nobody knows yet what it counts
        return key
    if key and group.bracket == "[" and DOTS in group.items and 0 < len(index) < 3 and all(n.whole for n in index):
        return key  # x[0..<5], x[..8]
    if key and _slice(group, key, line):
        return key
    if isinstance(values, Values) and not (group.bracket == "(" and len(values.all) == 1 and not values.whole):
        if values.whole:
            looked = group.bracket == "(" and meaning(key).nodes == ("embd",)  # wte[ids] (8, 16)
            if set(words) & (_TOKENS | {"token", "input"}) and not set(words) & _SHAPE and not looked:
                line.tokens = line.tokens or tuple(int(n.value) for n in values.all)
            return key
        if "range" in words[-2:] and len(values.all) == 2:
            line.add("min", values.all[0])
            line.add("max", values.all[1])
        elif _is_pair(values) and set(split_words(line.label)) & TOP_WORDS:
            line.add("top", ((int(values.first[0].value), values.first[1]),), key)  # candidates [2, 9.5] [13, 8.1]
        elif not _zip(values.all, key, line):
            line.add("list", values, key)
        return []
    if isinstance(values, Rows):
        every = values.first + values.last
        if all(len(r.all) == 2 and r.all[0].whole for r in every) and not all(r.whole for r in every):
            line.add("top", tuple((int(r.all[0].value), r.all[1]) for r in every), key)
        elif all(r.whole for r in every):
            if set(words) & (_TOKENS | {"token", "input"}) and len(every) == 1:
                line.tokens = line.tokens or tuple(int(n.value) for n in every[0].all)
        else:
            line.add("list", values, key)
        return []
    pairs = quoted_pairs(group) or assigned_pairs(group.items)
    if pairs:
        line.add("top", pairs, key)
        return []
    inner = list(group.items)
    if [p.text.lower() for p in inner if isinstance(p, Word)] in (["last"], ["final"]) and len(inner) == 1:
        if words[-1:] == ["norm"] and inner[0] != Word("last"):
            line.label.append("final")  # norm (final)
        else:
            line.row = -1
        return key
    if group.bracket == "(" and all(isinstance(p, Word) for p in inner):
        line.label += [p.text for p in inner if isinstance(p, Word)]
        alone = len(inner) == 1 and statistic([*key[-1:], line.label[-1]])  # attn_out (rms): 1.5
        return [*key, line.label[-1]] if alone else key
    if any(isinstance(p, Word) and p.text.lower() in ("id", "token") for p in inner) and len(inner) == 2:
        number = inner[1]
        if isinstance(number, Number) and number.whole and "bos" in words:
            line.tokens = line.tokens or (int(number.value),)
            return key
    if len(inner) == 3 and inner[1] is COMMA:  # cache["resid_post", 0]
        texts = [p.text for p in inner if isinstance(p, Word)]
        whole = [p.text for p in inner if isinstance(p, Number) and p.whole]
        if len(texts) == len(whole) == 1 and meaning([*texts, "layer", "0"], generic=False).nodes:
            count = group.bracket == "(" and not any(isinstance(p, Word) and p.quoted for p in inner)  # head(x, 5)
            known = group.bracket == "(" and (line.inside or meaning(line.label).layer is not None)
            line.label += texts if known or count else [*texts, "layer", *whole]
            return key
    around, row = line.around, line.cut_row
    line.around = (*around, *line.label[line.since :][-8:]) if len(around) < 24 else around
    line.since = len(line.label) if _several_items(inner) else line.since
    rest = _walk(inner, line, list(key))
    line.around, line.cut_row = around, row
    return list(key) if after and isinstance(after[0], Number) and statistic(key) else rest  # rms{layer="0"} 1.5


def _options(group: Group) -> bool:
    named = {p.text.lower() for p in group.items if isinstance(p, Word)}
    return bool(named) and named <= {"correction", "dim", "axis", "p", "ord", "keepdim", "keepdims", "ddof", "unbiased"}


def _is_pair(values: Values) -> bool:
    return len(values.first) == 2 and not values.last and values.first[0].whole and not values.first[1].whole


def _several_items(inner: Sequence[Piece]) -> bool:
    return sum(1 for p in inner if p is ASSIGN) > 1


def _side(cut: Sequence[Piece]) -> str:
    """Whose values: a single name before a colon and a list."""
    flat = [p for p in cut if not (isinstance(p, Mark) and p.text == "*")]
    if len(flat) >= 3 and isinstance(flat[0], Word) and flat[1] is ASSIGN and isinstance(flat[2], Group):
        word = flat[0].text
        parts = split_words([word])
        plain = not set(parts) & (NOT_SIDES | _TOKENS | LAYER | ROW | PERHAPS | set(STATISTIC_WORDS) | _ARRAY_MAKERS)
        if plain and not flat[0].quoted and len(word) > 2:
            return word
    return ""
