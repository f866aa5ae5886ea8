"""Finds the node that a label names in plain words: "after block 3", "Layer 0 attention output", "final hidden".

A label is split into words and numbers. The rows of `node_words.py` name the node, `layer_and_row.py` finds the layer
and the token's row. If a phrase may mean several nodes, all are returned, the likeliest first; the values decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from assay.verify.dumps.naming.layer_and_row import (
    LAYER,
    MAYBE_ROW,
    ROW,
    layer_of,
    possible_row_of,
    row_of,
    without_row,
)
from assay.verify.dumps.naming.node_words import (
    ATT_WORDS,
    ENDS,
    FFN_WORDS,
    IN_LAYERS,
    K_WORDS,
    LOGITS,
    Q_WORDS,
    TURN_WORDS,
    V_WORDS,
)
from assay.verify.dumps.naming.other_languages import TRANSLATIONS, to_english

_MOST, _LONGEST = 64, 200  # words of a label, and letters of a word
VALUES = "\x00"  # stands among the words of a line in place of values
_PARTS = re.compile(r"\x00|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_PATH = re.compile(r"[A-Za-z_]\w*(?:\.\w+){2,}")  # model.layers.0.mlp: translated by the table of names
_NODE = re.compile(r"([A-Za-z_][\w.]*)-(\d{1,4})")  # ffn_out-3: llama.cpp's own way
_HIDDEN = re.compile(r"hidden_states\.\d{1,4}")  # Hugging Face's list: the embedding, then the layers
_NO_WORD = re.compile(
    r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|0[xX][0-9a-fA-F]+$|[vV]\d+(?:\.\d+)*$"
)  # dates, addresses, versions
_FILE = re.compile(r"\.(?:[bB]?[fF]\d\d|float\d\d|bin|npy|raw|dat|txt|csv|tensor|pt)$")  # endings of file names
_TYPE = re.compile(r"I?Q\d\w*|[bB]?[fF]\d\d")  # Q4_K_M, F16: no word for a value
# Words of lines that mention a layer but show no activations.
TIMES = {"elapsed", "took", "timings", "seconds", "latency"}
NOT_VALUES = {"weight", "weights", "took", "elapsed", "loading", "loaded", "load", "memory", "grad"}
_ROUTING, _MATRICES = (
    {"expert", "experts", "router", "routing", "mixing", "combine"},
    {"gate", "up", "down", "w1", "w2", "w3", "matrix"},
)

_NOT_YET = {"before", "pre", "without", "no", "w", "prior", "excluding", "minus"}
_SUM = {"residual", "resid", "skip", "add", "added", "addition", "connection"}
_INPUT = {"input", "before", "entering", "residpre", "preresid", "incoming"}
_OUTPUT = {
    "lout", "out", "output", "outputs", "after", "hidden", "residual", "resid", "x", "stream", "end", "done", "state",
    "finished", "leaving", "post", "result",
}  # fmt: skip
# Words that add nothing to a phrase such as "layer 3".
_EMPTY = _OUTPUT | LAYER | {
    "token", "tok", "pos", "position", "row", "last", "first", "values", "value", "vals", "of", "the", "at", "for",
    "with", "shape", "tensor", "array", "idx", "index", "head", "tail", "data", "dim", "f", "i", "n", "states", "is",
    "prompt", "all", "this", "in", "id", "on", "and", "to", "by", "from",
}  # fmt: skip


_OF_HEADS = frozenset(f"{Q_WORDS} {K_WORDS} {V_WORDS} query queries key keys {TURN_WORDS} softmax scores".split())
_HOOKED = ROW | MAYBE_ROW | {
    "output", "out", "tensor", "array", "hook", "hooked", "forward", "linear", "name", "node", "event", "act", "dim",
    "shape", "first", "head", "last", "tail", "values", "model", "dump", "trace", "activation", VALUES,
}  # fmt: skip
_HIDDEN_ALONE = (frozenset({"hidden"}),)  # without a layer


@dataclass(frozen=True)
class Meaning:
    """The meaning of a label. Names in `nodes` end in `-` if they need a layer; empty if no word names a node."""

    nodes: tuple[str, ...] = ()
    layer: int | None = None
    row: int | None = None  # -1 is the last token.
    possible_row: int | None = None  # A row it may be.
    verbatim: str = ""  # A module path or llama.cpp's name, taken as it is. `nodes` hold its words' meaning.
    vague: bool = False  # Taken for the layer's output, although some words are unknown.
    bare: bool = False  # Taken for the layer's output, because only the layer is named.

    @property
    def role(self) -> bool:
        return bool(self.nodes or self.verbatim)


def split_words(label: Sequence[str]) -> list[str]:
    """Words in lower case and numbers, cut at signs, at capitals and between letters and digits."""
    found: list[str] = []
    for text in label:
        found += _split(text[:_LONGEST])
        if len(found) > _MOST:
            break
    return found[:_MOST]


@lru_cache(maxsize=4096)
def _split(text: str) -> tuple[str, ...]:
    if _TYPE.fullmatch(text) or _NO_WORD.match(text):
        return ()
    text = _FILE.sub("", text if text.isascii() else to_english(text))
    parts = (part.lower() for part in _PARTS.findall(text.replace("RoPE", "rope")))
    return tuple(word for part in parts for word in TRANSLATIONS.get(part) or _unglued(part))


# Words of a node that people write as one: `attnnorm`, `ffnout`, `qrope`.
_HEADS = (
    "attn att attention ffn mlp ff final out output input pre post gate up down layer block blk tok token resid"
    " residual res hidden wo norm embd emb"
)
_TAILS = "norm out output rope rot proj inp input ctx emb embd embed mid post pre act gate up down resid"
_LETTER_TAILS = "proj rope rot roped rotated norm out pre"
_GLUED = {a + b: (a, b) for a in _HEADS.split() for b in _TAILS.split()}
_GLUED |= {a + b: (a, b) for a in "qkvoxh" for b in _LETTER_TAILS.split()}


def _unglued(word: str) -> tuple[str, ...]:
    return (word,) if word in _KNOWN else _GLUED.get(word, (word,))


def meaning(label: Sequence[str], *, generic: bool = True) -> Meaning:
    """The meaning of the words of a line. `generic`: a layer alone means its output."""
    return _meaning(tuple(text[:_LONGEST] for text in label[:_MOST]), generic)


@lru_cache(maxsize=2048)
def _meaning(label: tuple[str, ...], generic: bool) -> Meaning:
    words = split_words(label)
    layer, used = layer_of(words)
    found = _nodes(label, words, layer, used, generic)
    return replace(found, row=row_of(words, used), possible_row=possible_row_of(words, used))


def _nodes(label: Sequence[str], words: list[str], layer: int | None, used: set[int], generic: bool) -> Meaning:
    plain = _by_words(words, layer, used, generic)
    for text in label:
        if text.endswith((".weight", ".bias")):
            return Meaning((), layer)
        if _PATH.fullmatch(text) and (numbers := [p for p in text.split(".") if p.isdecimal()]):
            if layer is None and len(numbers) == 1 and len(numbers[0]) < 5:
                layer = int(numbers[0])
                plain = _by_words([w for w in words if w != numbers[0]], layer, set(), generic)  # resid.0.mid
            beside = [w for t in label if t != text for w in split_words([t])]
            if layer is not None and set(beside) & _OF_HEADS and _by_words(beside, layer, set(), False).nodes:
                return replace(plain, layer=layer)  # layers.0.self_attn queries after rope
            return replace(plain, layer=layer, verbatim=text)
        if _HIDDEN.fullmatch(text):
            return replace(plain, layer=None, nodes=(), verbatim=text)
        if (m := _NODE.fullmatch(text)) and m[1].lower() not in LAYER and _is_role(m[1]):
            inside = _by_words(split_words([m[1]]), int(m[2]), set(), False)
            return replace(inside, layer=int(m[2]), verbatim=text)
    return plain


def _denied(words: Sequence[str]) -> set[str]:
    """Words that are negated: "before the residual add", "without residual"."""
    for i, word in enumerate(words):
        if word in _NOT_YET:
            ahead = [w for w in words[i + 1 : i + 4] if w in _SUM or w == "the"]
            if ahead and set(ahead) & _SUM:
                return {word, *_SUM}
    return set()


def _is_role(name: str) -> bool:
    return bool(_by_words(split_words([name]), 0, set(), False).nodes) or name in ("kq", "kqv", "norm", "kqv_wo")


def _by_words(words: list[str], layer: int | None, used: set[int], generic: bool) -> Meaning:
    bag = {w for i, w in enumerate(words) if i not in used}
    bag |= {a + b for a, b in pairwise(without_row(words))}  # "soft max", "l out", "lm head"
    bag -= _denied(words)
    shares = bag & {"attention", "attn", "after"} or (bag & _ROUTING and not bag & _MATRICES)
    if bag & NOT_VALUES and not shares:
        return Meaning((), layer)
    if layer is None and "output" in words and not {w for w in words if not w.isdecimal()} - _HOOKED:
        return Meaning(("result_output", "result_norm", "l_out-last"))
    if layer is None:
        inside = bag & _OF_A_LAYER and not bag & {"final", "lnf", "normf", "outputnorm"}
        for row in (LOGITS, *IN_LAYERS[:-1], *ENDS) if inside else (LOGITS, *ENDS, *IN_LAYERS):
            if row.applies(bag):
                return Meaning(row.nodes, vague=row.groups == _HIDDEN_ALONE)
        return Meaning()
    if bag & _INPUT and not bag & _TELLING:
        return Meaning(("embd",) if layer == 0 else ("l_out-",), layer - 1 if layer else None)
    for row in IN_LAYERS:
        if row.applies(bag):
            return Meaning(row.nodes, layer if row.nodes[0].endswith("-") else None)
    if not generic and not bag & _OUTPUT:
        return Meaning((), layer)
    unknown = has_unknown(words)
    return Meaning(("l_out-",), layer, vague=unknown and not bag & _OUTPUT, bare=not unknown)


def has_unknown(words: Iterable[str]) -> bool:
    """Whether some word is neither empty nor known to name a node."""
    return any(w not in _EMPTY and not w.isdecimal() and w != VALUES for w in words)


def names_state(words: Sequence[str]) -> bool:
    """Whether the words name what a recurrent layer keeps between steps: "conv_state", "ssm state", "wkv state"."""
    return bool({*words} & _KEPT) and any(map(_KEEPER.fullmatch, words))


_KEPT = {"state", "states", "cache", "ring", "memory", "buffer"}
_KEEPER = re.compile("conv|ssm|wkv|scan|delta|recurrent|shift|rnn|gdn|kda|mamba|deltanet")  # words for a layer


def all_known(words: Sequence[str]) -> bool:
    """Whether every word, alone or with its neighbour, can name a node or a place."""
    return all(
        w.isdecimal() or {w, a + w, w + b} & _KNOWN
        for a, w, b in zip(["", *words], words, [*words[1:], ""], strict=False)
    )


_KNOWN = frozenset().union(_EMPTY, ROW, MAYBE_ROW, *(g for row in (*IN_LAYERS, *ENDS) for g in row.groups))
_OF_A_LAYER = frozenset(f"{ATT_WORDS} {FFN_WORDS} gate down swiglu wo oproj w1 w2 w3 wq wk wv rope".split())
_TELLING = frozenset().union(*(g for row in IN_LAYERS for g in row.groups)) - {
    "in", "input", "inp", "first", "1", "2", "second", "after", "post", "before", "pre", "hidden", "out", "output",
    "add", "residual", "resid", "stream", "mid", "prior", "without",
}  # fmt: skip
