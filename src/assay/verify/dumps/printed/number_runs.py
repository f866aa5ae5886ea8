"""Single numbers and numbers side by side: which statistic of what, which element, a list, token ids."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from assay.verify.dumps.naming.layer_and_row import COUNTS, LAYER, LAYERS, NUMBERING, PERHAPS, ROW
from assay.verify.dumps.naming.phrases import VALUES, all_known, meaning, split_words
from assay.verify.dumps.naming.statistic_names import statistic, without_statistic
from assay.verify.dumps.observation import STATISTICS
from assay.verify.dumps.printed.lexer import ASSIGN, BAR, COMMA, DOTS, SLASH, Mark, Number, Piece, Values, Word, listed
from assay.verify.dumps.printed.statements import Said

TOKENS = {"tokens", "ids", "inputs", "prompt", "tokenized"}
ID_WORDS = {"token", "id", "tok", "idx", "index", "candidate", "cand", "argmax"}
LOGIT_WORDS = {"logit", "score", "val", "value", "logprob", "prob"}
_POSITIVE = {"norm", "rms", "std", "var", "absmax", "absmean"}
_PLUS_MINUS = Mark("±")


def run_from(cut: list[Piece], i: int, key: list[str], line: Said) -> tuple[list[Piece], int]:
    """Numbers side by side, with commas or dots between them; one after a word that takes one."""
    first = cut[i]
    assert isinstance(first, Number)
    last = split_words(key[-1:])[-1:] if key else []
    if last and last[0] in LAYER | ROW | NUMBERING and first.whole:
        return [first], i + 1
    kind = statistic(key)
    beside = kind and line.items and line.items[-1].kind in STATISTICS and i and cut[i - 1] is ASSIGN
    led = bool(key) and key[-1].lower() == "rms" and cut[i - 1] is ASSIGN and _has_place(line.label[:-1])
    if (kind not in (None, "norm", "rms") or key[-1:] in (["l2"], ["nrm2"]) or beside or led) and len(
        _several(key)
    ) < 2:
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


def _fine(number: Number) -> bool:
    return len(number.text.partition(".")[2].partition("e")[0]) > 2


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


def take_run(run: list[Piece], key: list[str], line: Said, assigned: bool, apart: bool = False) -> None:
    numbers = [p for p in run if isinstance(p, Number)]
    if zipped(numbers, key, line):
        return
    if not assigned and key and len(numbers) > 2 and numbers[0].whole and all(_fine(n) for n in numbers[1:]):
        line.label.append(numbers[0].text)  # "residual 1 0.293 0.692 …": a number of the name
        run, numbers = run[1:], numbers[1:]
    words = split_words(key)
    last = words[-1] if words else ""
    one = numbers[0]
    if len(numbers) == 1:
        kind = statistic(key)
        if kind in ("max", "absmax") and words[-1:] == ["logit"] and line.id is not None:
            kind = None  # argmax=2 maxLogit=1.5
        said = [w for w in key[-4:] if w.lower() not in ("is", "was", "the", "and")]
        if not kind and len(said) == 2 and said[1].lower() in ("logit", "logits") and not one.whole:
            kind = statistic(said[:1])  # "the largest logit is 1.5"
        if (
            not kind
            and assigned
            and not one.whole
            and split_words(key[-1:])[-1:] == ["norm"]
            and words[-2:-1] not in (["rms"], ["layer"])
            and not any(statistic([w]) for w in line.label[line.since :][:-1][:24])
        ):
            kind = "norm"  # of a list a node, of one number its length
        kind = None if kind in _POSITIVE and one.value < 0 else kind
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
            if set(words) & TOKENS and not (values.cut and len(numbers) == 2):  # "tokens 0..7" are no ids
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


def tell(line: Said) -> None:
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


def zipped(numbers: Sequence[Number], key: Sequence[str], line: Said) -> bool:
    """As many statistics named as numbers follow."""
    several = _several(key) if len(numbers) > 1 else []
    if len(several) < 2 or len(several) != len(numbers):
        return False
    for kind, n in zip(several, numbers, strict=True):
        line.add(kind, n, key)
    return True
