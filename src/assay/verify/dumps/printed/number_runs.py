"""Reads numbers outside brackets: a statistic, an element, a list side by side, token ids. `NUMBER_RULES` are rows."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from assay.verify.dumps.naming.layer_and_row import COUNTS, LAYER, LAYERS, MAYBE_ROW, NUMBERING, ROW
from assay.verify.dumps.naming.phrases import VALUES, all_known, meaning, split_words
from assay.verify.dumps.naming.statistic_names import statistic, without_statistic
from assay.verify.dumps.observation import STATISTICS
from assay.verify.dumps.printed.lexer import (
    ASSIGN,
    BAR,
    COMMA,
    DOTS,
    SLASH,
    Lexeme,
    Mark,
    Number,
    NumberList,
    Word,
    listed,
)
from assay.verify.dumps.printed.rule_rows import Rule, RuleTable
from assay.verify.dumps.printed.statements import Statement

TOKENS = {"tokens", "ids", "inputs", "prompt", "tokenized"}
EXPERTS = {"expert", "experts", "router", "routing", "moe"}  # their ids are no tokens
ID_WORDS = {"token", "id", "tok", "idx", "index", "candidate", "cand", "argmax"}
LOGIT_WORDS = {"logit", "score", "val", "value", "logprob", "prob"}
_POSITIVE = {"norm", "rms", "std", "var", "absmax", "absmean", "abssum", "squares"}
_ONE_NUMBER = (["l2"], ["nrm"], ["nrm2"], ["rmsq"])  # names of statistics that are no names of nodes
_PLUS_MINUS = Mark("±")


def run_from(lexemes: list[Lexeme], i: int, key: list[str], line: Statement) -> tuple[list[Lexeme], int]:
    """The numbers side by side from lexeme i, and the next place; only one behind a word such as `layer` or `max`."""
    first = lexemes[i]
    assert isinstance(first, Number)
    last = split_words(key[-1:])[-1:] if key else []
    if last and last[0] in LAYER | ROW | NUMBERING and first.whole:
        return [first], i + 1
    kind = statistic(key)
    beside = kind and line.items and line.items[-1].kind in STATISTICS and i and lexemes[i - 1] is ASSIGN
    assigned = bool(key) and lexemes[i - 1] is ASSIGN
    led = assigned and key[-1].lower() in ("rms", "l2") and _has_place(line.label[:-1])
    led = led or (assigned and key[-1].lower() == "norm" and _is_behind_a_number(line.label[:-1]))
    several = len(_several(key))
    if several == 2 and key[-1:] in _ONE_NUMBER and len(lexemes) > i + 2 and isinstance(lexemes[i + 2], Number):
        several = 1  # final norm |.| 3.5 0.5 0.25 …: the first word is the node's
    if (kind not in (None, "norm", "rms") or key[-1:] in _ONE_NUMBER or beside or led) and several < 2:
        return [first], i + 1  # max=2.5 norm=3.5 0.5 0.25 …
    run: list[Lexeme] = []
    while i < len(lexemes):
        piece = lexemes[i]
        if isinstance(piece, Number) or piece is DOTS:
            run.append(piece)
        elif not (
            (_between(piece) or (piece is BAR and _real(run, lexemes, i) and not _is_field(run, lexemes, i)))
            and i + 1 < len(lexemes)
            and (isinstance(lexemes[i + 1], Number) or lexemes[i + 1] is DOTS)
        ):
            break
        i += 1
    return run, i


def _is_behind_a_number(words: Sequence[str]) -> bool:
    """Whether the words end in a number and name a node: `attn_out L0 t3 norm=8.6 …`, not `attn norm=…`."""
    return bool(words) and words[-1][-1:].isdecimal() and meaning(words).role


def _fine(number: Number) -> bool:
    return len(number.text.partition(".")[2].partition("e")[0]) > 2


def _real(run: Sequence[Lexeme], lexemes: Sequence[Lexeme], i: int) -> bool:
    """Whether a bar separates two numbers with decimals, so that they are one list."""
    near = (run[-1], lexemes[i + 1]) if run and i + 1 < len(lexemes) else ()
    return bool(near) and all(isinstance(p, Number) and not p.whole for p in near)


def _is_field(run: Sequence[Lexeme], lexemes: Sequence[Lexeme], i: int) -> bool:
    """Whether the one number before lexeme i has a name of its own: `r=2.5 | 0.1, 0.2`."""
    named = len(run) == 1 and i > 1 and lexemes[i - 2] is ASSIGN
    return named and lexemes[i + 2 : i + 3] == [COMMA]  # `row 0: 0.1 | 0.2 | 0.3` is one list


def _between(piece: Lexeme) -> bool:
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


def _kind_ahead(key: Sequence[str], line: Statement) -> str:
    """The statistic that leads the words for the node: "rms embedding 1.5 rms final norm 2.5"."""
    kind = statistic(key[:1]) or ""
    rest = split_words(key[1:])
    if not kind or not rest or not all_known(rest) or statistic(key[1:2]) or not _has_place(key[1:]):
        return ""
    if line.label[-len(key) :] == list(key):
        del line.label[-len(key)]
    return kind


def name_open_statistics(line: Statement) -> None:
    """Give open numbers the statistic that stands before or among the words for the node: "rms attn_out: 1.5"."""
    first = line.label.index(VALUES) if VALUES in line.label else 0
    if not any(i.kind == "?" for i in line.items) or any(i.kind not in ("?", *STATISTICS) for i in line.items):
        return
    head = line.label[:first]
    named = [(i, kind) for i, word in enumerate(head) if (kind := statistic([word]))]
    if len(named) != 1:
        return
    (at, kind), rest = named[0], split_words([w for i, w in enumerate(head) if i != named[0][0]])
    after = split_words(head[at + 1 : at + 2])
    dull = kind == "norm" and head[at].lower() == "norm" and at > 0
    if dull or not rest or not all_known(rest) or (kind == "rms" and after[:1] in (["norm"], ["final"])):
        return
    word = line.label.pop(at)
    line.words_before_list = line.words_before_list - 1 if line.words_before_list is not None else None
    line.items = [
        replace(i, kind=kind, words=tuple(w for w in i.words if w != word)) if i.kind == "?" else i for i in line.items
    ]


def _has_place(words: Sequence[str]) -> bool:
    """Whether the words name a node, a layer or a row, so that only the statistic is open."""
    about = meaning(words)
    named = about.role or about.layer is not None or about.row is not None
    return named or bool(words and meaning([*words, "layer", "0"], generic=False).nodes)


def _element(line: Statement) -> int | None:
    """The index of a single value, by a word: "tid 3 layer 0 out = 1.5", "layer 0 y3=1.5"."""
    if line.element is not None:
        return line.element
    if line.label and (m := _VARIABLE.fullmatch(line.label[-1])):
        about = meaning(line.label[:-1])
        if about.layer is not None or about.role or line.layer_known:
            return int(m[1])
    for a, b in zip(line.label[line.value_start :], line.label[line.value_start + 1 :], strict=False):
        if a.lower() in _ELEMENT and b.isdecimal() and len(b) < 7:
            return int(b)
    return None


def _take_word(line: Statement, kind: str) -> None:
    """Remove the statistic from the label; the rest of its word stays."""
    for i in range(len(line.label) - 1, max(len(line.label) - 24, line.value_start) - 1, -1):
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


def zipped(numbers: Sequence[Number], key: Sequence[str], line: Statement) -> bool:
    """Add one statistic for each number, if as many statistics are named; whether that was so."""
    several = _several(key) if len(numbers) > 1 else []
    if len(several) < 2 or len(several) != len(numbers):
        return False
    for kind, n in zip(several, numbers, strict=True):
        line.add(kind, n, key)
    return True


def add_run(run: list[Lexeme], key: list[str], line: Statement, assigned: bool, apart: bool = False) -> None:
    """Add what a run of numbers says: statistics in order, one value of some kind, token ids, or a list."""
    numbers = [p for p in run if isinstance(p, Number)]
    if zipped(numbers, key, line):
        return
    if not assigned and key and len(numbers) > 2 and numbers[0].whole and all(_fine(n) for n in numbers[1:]):
        line.label.append(numbers[0].text)  # "residual 1 0.293 0.692 …": a number of the name
        run, numbers = run[1:], numbers[1:]
    if len(numbers) == 1:
        NUMBER_RULES.first(NumberSite(numbers[0], key, line, assigned, apart))
        return
    if all(n.whole or not math.isfinite(n.value) for n in numbers) and any(n.whole for n in numbers):
        numbers = [n for n in numbers if n.whole]  # "nan 0 inf 0" counts them
    values = listed([p for p in run if isinstance(p, Number) or p is DOTS])
    if not isinstance(values, NumberList):
        return
    if not all(n.whole for n in numbers):
        line.add("list", values, key)
    elif set(split_words(key)) & TOKENS and not (values.elided and len(numbers) == 2):  # "tokens 0..7" are no ids
        line.tokens = line.tokens or tuple(int(n.value) for n in numbers)


@dataclass
class NumberSite:
    """A number that stands alone: the words since the last value, the statement so far."""

    number: Number
    key: list[str]
    line: Statement
    assigned: bool  # `=` or `:` before it
    apart: bool  # and another one before its words: `layer 0 output: norm=1.5`

    @cached_property
    def words(self) -> list[str]:
        return split_words(self.key)

    @cached_property
    def last(self) -> str:
        return self.words[-1] if self.words else ""

    @cached_property
    def kind(self) -> str | None:
        """The statistic named by the words before the number."""
        one, key, line, words = self.number, self.key, self.line, self.words
        kind = statistic(key)
        if kind in ("max", "absmax") and words[-1:] == ["logit"] and line.token_id is not None:
            kind = None  # argmax=2 maxLogit=1.5
        named = [w for w in key[-4:] if w.lower() not in ("is", "was", "the", "and")]
        if not kind and len(named) == 2 and named[1].lower() in ("logit", "logits") and not one.whole:
            kind = statistic(named[:1])  # "the largest logit is 1.5"
        kind = kind or self._length_of_a_norm()
        kind = None if kind in _POSITIVE and one.value < 0 else kind
        if kind == "norm" and self.assigned and words[-2:-1] in (["output"], ["final"]):
            kind = kind if line.items or self.apart else None  # "output norm: 1.5", of a statistic of the heading
        if kind == "norm" and not self.assigned and key and not line.items and (key[-1].lower() == "l2" or one.whole):
            placed = line.layer_known or meaning(line.label[:-1]).layer is not None
            kind = kind if placed and not one.whole else None  # "L2" may be the third layer, "norm" a node
        return kind

    def _length_of_a_norm(self) -> str | None:
        """`attn_norm = 1.5`: a list would be of the node attn_norm, one number is the length of a vector."""
        named = self.assigned and not self.number.whole and split_words(self.key[-1:])[-1:] == ["norm"]
        if not named or self.words[-2:-1] in (["rms"], ["layer"]):
            return None
        before = self.line.label[self.line.value_start :][:-1][:24]
        return None if any(statistic([w]) for w in before) else "norm"


def _statistic(site: NumberSite) -> bool | None:
    count = site.number.whole and site.last in ("max", "total", "min", "norm", "of") and len(site.words) > 1
    if not site.kind or count:
        return None
    _take_word(site.line, site.kind)
    site.line.add(site.kind, site.number, site.key)
    return True


def _element_by_its_index(site: NumberSite) -> bool | None:
    logit = site.key and LOGIT_WORDS & set(site.words[-2:])
    at = None if site.number.whole or logit else _element(site.line)
    if at is None:
        return None
    site.line.add("at", ((at, site.number),), site.key)
    return True


def _logit_of_an_id(site: NumberSite) -> bool | None:
    count = site.number.whole and site.last not in LOGIT_WORDS
    if not LOGIT_WORDS & set(site.words[-2:]) or site.line.token_id is None or count:
        return None
    site.line.add("at", ((site.line.token_id, site.number),), site.key)
    return True


def _row_from_the_end(site: NumberSite) -> bool | None:
    if not site.number.whole or site.number.value >= 0:
        return None
    if site.last in ROW | MAYBE_ROW:
        site.line.row = int(site.number.value)
    return True


def _whole_number(site: NumberSite) -> bool | None:
    if not site.number.whole:
        return None
    named = [w for w in site.words[-2:] if w not in COUNTS]
    if site.last in ID_WORDS and not set(named) & LAYERS:
        site.line.token_id = int(site.number.value)
    site.line.label.append(site.number.text)
    return True


def _value_beside_an_id(site: NumberSite) -> bool | None:
    if site.line.token_id is None or site.words:
        return None
    site.line.add("at", ((site.line.token_id, site.number),), site.key)
    return True


def _statistic_before_the_node(site: NumberSite) -> bool | None:
    kind = "" if site.number.whole else _kind_before(site.line.label) or _kind_ahead(site.key, site.line)
    if not kind:
        return None
    site.line.add(kind, site.number, site.key)
    return True


def _statistic_left_open(site: NumberSite) -> bool | None:
    line, key = site.line, site.key
    again = line.items and line.items[-1].kind == "?" and key and meaning(key).role
    if not again and not (site.assigned and _has_place(key or line.label)):
        return None
    line.add("?", site.number, key)
    return True


NUMBER_RULES: RuleTable[NumberSite, bool] = RuleTable(
    "number",
    Rule("statistic", 80, "layer 0 out: rms=1.5 max=2.5\n", ("l_out-0 rms 1.5", "l_out-0 max 2.5"), _statistic),
    Rule("element by its index", 70, "layer 0 out tid 3 = 1.5\n", ("l_out-0 at 3:1.5",), _element_by_its_index),
    Rule("logit of an id", 60, "token id 5 logit 1.5\n", ("result_output at 5:1.5 numbers 5",), _logit_of_an_id),
    Rule("row from the end", 50, "layer 0 pos -1 rms=1.5\n", ("l_out-0 rms 1.5 row -1",), _row_from_the_end),
    Rule("whole number", 40, "layer 3 out: rms=1.5\n", ("l_out-3 rms 1.5",), _whole_number),
    Rule("value beside an id", 30, "logits id 5 | 1.5\n", ("result_output at 5:1.5 numbers 5",), _value_beside_an_id),
    Rule(
        "statistic before the node",
        20,
        "rms of the residual in layer 0: after attention 1.5, after mlp 2.5\n",
        ("ffn_inp-0|attn_out-0|kqv_out-0 rms 1.5", "ffn_out-0|l_out-0 rms 2.5"),
        _statistic_before_the_node,
    ),
    Rule(
        "statistic left open",
        10,
        "rms of every stage\nlayer 0 attn_out: 1.5\n",
        ("attn_out-0|kqv_out-0|ffn_inp-0 rms 1.5",),
        _statistic_left_open,
    ),
)
