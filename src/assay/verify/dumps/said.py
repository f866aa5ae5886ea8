"""What one printed line says: words, statistics by name, lists, ids with logits, tokens, a layer, a row, an engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
from assay.verify.dumps.words import LAYER, PERHAPS, ROW, meaning, split_words

STATISTIC_WORDS = {
    "rms": "rms", "mean": "mean", "avg": "mean", "average": "mean", "mu": "mean", "min": "min", "minimum": "min",
    "max": "max", "maximum": "max", "sum": "sum", "total": "sum", "std": "std", "stddev": "std", "sd": "std",
    "sigma": "std", "var": "var", "variance": "var", "norm": "norm", "l2": "norm", "l2norm": "norm", "absmax": "absmax",
    "maxabs": "absmax", "amax": "absmax", "absmean": "absmean", "meanabs": "absmean",
    "μ": "mean", "µ": "mean", "σ": "std",
}  # fmt: skip
_TOKENS = {"tokens", "ids", "inputs", "prompt", "tokenized"}
_SHAPE = {"shape", "dims", "dim", "ne", "size", "strides", "stride", "nb", "torch", "heads"}
ID_WORDS, LOGIT_WORDS = {"token", "id", "tok", "idx", "index"}, {"logit", "score", "val", "value", "logprob", "prob"}
NOT_SIDES = {
    "first", "last", "values", "value", "data", "tensor", "array", "float", "stats", "shape", "top", "range", "result",
    "results", "differences", "actual", "wrong", "right", "expected", "note", "analysis", "conclusion", "head", "tail",
    "sample", "vals", "samples", "output", "input",
}  # fmt: skip
_ARRAY_MAKERS = {"tensor", "array", "vec", "vector", "list", "float32", "ndarray", "parameter", "arr", "slice", "f32"}


@dataclass
class Said:
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


def said_by(cut: Sequence[Piece], sides: set[str]) -> Said:
    line = Said([], [], [], [])
    line.layer, skip = _numbered(cut)
    _walk(list(cut[skip:]), line, [])
    side = _side(cut)
    if side and (side in sides or not meaning([side]).role):
        line.side = side
    return line


def _numbered(cut: Sequence[Piece]) -> tuple[int | None, int]:
    """A layer's number before the word: "[0] layer output", "0: block", "#0 layer"; and how many pieces that was."""
    at = 1 if cut and isinstance(cut[0], Mark) else 0
    first = cut[at] if len(cut) > at else None
    number = first
    if isinstance(first, Group):
        number = first.items[0] if len(first.items) == 1 else None
    if not isinstance(number, Number) or not number.whole:
        return None, 0
    rest = at + 1
    if len(cut) > rest and cut[rest] is ASSIGN:
        rest += 1
    elif isinstance(first, Number) and not at:
        return None, 0  # "12 layers loaded"
    word = cut[rest] if len(cut) > rest else None
    told = isinstance(word, Word) and set(split_words([word.text])) & LAYER
    return (int(number.value), rest) if told else (None, 0)


def _walk(cut: list[Piece], line: Said, key: list[str]) -> list[str]:
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
            after = tuple(cut[i + 1 : i + 3])
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
    if _statistic(key) not in (None, "norm", "rms") and "/" not in key[-1]:
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


def _number_run(run: list[Piece], key: list[str], line: Said, assigned: bool) -> None:
    numbers = [p for p in run if isinstance(p, Number)]
    several = [STATISTIC_WORDS.get(part.lower()) for part in key[-1].split("/")] if key else []
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
        elif LOGIT_WORDS & set(words[-2:]) and line.id is not None and not (one.whole and last not in LOGIT_WORDS):
            line.pairs.append(("at", ((line.id, one),)))
        elif last in ID_WORDS and one.whole:
            line.perhaps = int(one.value) if last in PERHAPS else line.perhaps
            line.id = int(one.value)
        elif last in ROW and one.whole:
            line.row = int(one.value)
        elif line.id is not None and not one.whole and not words:
            line.pairs.append(("at", ((line.id, one),)))
        elif one.whole:
            line.label.append(one.text)
        return
    if all(n.whole or not math.isfinite(n.value) for n in numbers) and any(n.whole for n in numbers):
        numbers = [n for n in numbers if n.whole]  # "nan 0 inf 0" counts them
    values = listed(run)
    if isinstance(values, Values):
        if all(n.whole for n in numbers):
            if set(words) & _TOKENS:
                line.tokens = line.tokens or tuple(int(n.value) for n in numbers)
        else:
            line.take(key, values)


def _group(group: Group, after: Sequence[Piece], key: list[str], line: Said) -> list[str]:
    """What a bracket says, given the words before it; the words that go on after it."""
    words = split_words(key)
    values = listed(group.items)
    index = group.numbers()
    if isinstance(values, Values) and len(group.items) == 1 and index and index[0].whole:
        value = after[1] if len(after) == 2 and after[0] is ASSIGN else None
        named = bool(key) and ("_" in key[-1] or (words and words[-1] in LAYER | {"hidden", "states"}))
        named = named or (line.layer is None and bool(set(words) & LAYER))  # "layer output [0]: ..."
        if isinstance(value, Number) and not value.whole and not named and not set(words) & _SHAPE:
            line.pairs.append(("at", ((int(index[0].value), value),)))
        elif named and not set(words) & _SHAPE:
            line.layer = int(index[0].value) if line.layer is None else line.layer
        elif set(words) & (_TOKENS | {"token", "bos"}):
            line.tokens = line.tokens or (int(index[0].value),)
        return key
    if any(n.text == "-1" for n in index) and all(n.whole for n in index) and after[:1] == (ASSIGN,):
        line.row = -1  # a slice: h[0, -1, :5]
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
    pairs = quoted_pairs(group)
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


def quoted_pairs(group: Group) -> tuple[tuple[int, Number], ...]:
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
        STATISTIC_WORDS.get(word)
        or STATISTIC_WORDS.get(word.replace("_", ""))
        or (
            STATISTIC_WORDS.get(joined)
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
        plain = not set(parts) & (NOT_SIDES | _TOKENS | LAYER | ROW | set(STATISTIC_WORDS) | _ARRAY_MAKERS)
        if plain and not flat[0].quoted:
            return word
    return ""
