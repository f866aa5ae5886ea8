"""What one printed line says: its words, and its items (lists, statistics by name, ids with logits), each with the
words that stand before it.

Nothing is decided here about nodes. Whole numbers that belong to no item stay among the words, in their place: a
layer's number, a token's row and a count look alike until the words around them are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from assay.verify.dumps.naming.layer_and_row import LAYER, LAYERS, PERHAPS, ROW
from assay.verify.dumps.naming.phrases import meaning, split_words
from assay.verify.dumps.naming.statistic_names import STATISTIC_WORDS, statistic
from assay.verify.dumps.printed.brackets import (
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
from assay.verify.dumps.printed.lexer import (
    ASSIGN,
    BAR,
    COMMA,
    DOTS,
    Group,
    Mark,
    Number,
    Piece,
    Rows,
    Values,
    Word,
    listed,
)
from assay.verify.dumps.printed.number_runs import TOKENS, run_from, take_run, tell, zipped
from assay.verify.dumps.printed.statements import RECORD, Said

_SHAPE = {"shape", "dims", "dim", "ne", "size", "strides", "stride", "nb", "torch", "heads"}
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


def said_by(cut: Sequence[Piece], sides: set[str], inside: bool = False) -> Said:
    """`inside`: the lines above told the layer, so that an index counts elements."""
    line = Said(inside=inside)
    cut = plain(cut)
    number, skip = number_first(cut)
    if number is not None:
        line.label += ["layer", str(number)]
    _walk(list(cut[skip:]), line, [])
    line.items = layers_beside(vectors(ranked(cut, line.items)))
    tell(line)
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
        if isinstance(piece, Word) and piece.text.lower() in RECORD and _assigns_word(cut, i):
            line.record = True  # name="attn_out"
        elif isinstance(piece, Word):
            key.append(piece.text)
            line.label.append(piece.text)
        elif isinstance(piece, Number) and piece.text in ("null", "None") and _numbers(key):
            line.label.pop()  # "layer": null, of what belongs to none
            key = key[:-1]
        elif isinstance(piece, Number):
            pairs, past = pairs_from(cut, i)
            if pairs:
                line.add("at" if _elements(pairs, line) else "top", pairs, key)
                key, i = [], past
                continue
            if _leads(cut, i, key, line):
                i += 2
                continue
            run, i = run_from(cut, i, key, line)
            if len(run) == 1 and is_count(cut, i - 1):
                continue  # "layer 1 of 3", "1/3"
            at = i - len(run)
            apart = at > 2 and cut[at - 3] is ASSIGN  # layer 0 output: norm=1.5
            take_run(run, key, line, assigned=at > 0 and cut[at - 1] is ASSIGN, apart=apart)
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


def _assigns_word(cut: Sequence[Piece], i: int) -> bool:
    return i + 2 < len(cut) and cut[i + 1] is ASSIGN and isinstance(cut[i + 2], Word)


def _elements(pairs: Sequence[tuple[int, Number]], line: Said) -> bool:
    """Whether `0:1.5 1:2.5` are elements of a row, rather than ids with their logits, of which the best come first."""
    ordered = [i for i, _ in pairs] == list(range(len(pairs)))
    falls = all(a.value >= b.value for (_, a), (_, b) in pairwise(pairs))
    best = bool(set(split_words(line.label)) & _TOP)
    return ordered and not (best and falls) and (len(pairs) > 2 or line.inside or meaning(line.label).layer is not None)


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
        if listed_after and not named and key and not set(words) & (_SHAPE | TOKENS):  # q(0) = [...]
            about = meaning([key[-1], "layer", "0"], generic=False)
            named = bool(about.nodes) and not placed
        counts = bool(set(words) & LAYERS) and not (line.around and isinstance(value, Number))
        last = line.items[-1] if line.items else None
        again = len(after) > 3 and after[2] == Word(key[-1] if key else "") and isinstance(after[3], Group)
        again = again or (len(after) > 3 and isinstance(after[2], Group) and after[3] is ASSIGN)  # [0]=1.5 [1]=2.5
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
        elif set(words) & (TOKENS | {"token", "bos"}):
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
            if set(words) & (TOKENS | {"token", "input"}) and not set(words) & _SHAPE and not looked:
                line.tokens = line.tokens or tuple(int(n.value) for n in values.all)
            return key
        if "range" in words[-2:] and len(values.all) == 2:
            line.add("min", values.all[0])
            line.add("max", values.all[1])
        elif _is_pair(values) and set(split_words(line.label)) & TOP_WORDS:
            line.add("top", ((int(values.first[0].value), values.first[1]),), key)  # candidates [2, 9.5] [13, 8.1]
        elif not zipped(values.all, key, line):
            line.add("list", values, key)
        return []
    if isinstance(values, Rows):
        every = values.first + values.last
        if all(len(r.all) == 2 and r.all[0].whole for r in every) and not all(r.whole for r in every):
            line.add("top", tuple((int(r.all[0].value), r.all[1]) for r in every), key)
        elif all(r.whole for r in every):
            if set(words) & (TOKENS | {"token", "input"}) and len(every) == 1:
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
        plain = not set(parts) & (NOT_SIDES | TOKENS | LAYER | ROW | PERHAPS | set(STATISTIC_WORDS) | _ARRAY_MAKERS)
        if plain and not flat[0].quoted and len(word) > 2:
            return word
    return ""
