"""What people call the values of a model in plain words: "after block 3", "Layer 0 attention output", "final hidden".

A label is split into words and numbers; the first row of the table whose words all stand in it names the node. Where
a phrase may mean several nodes, all are given, the likeliest first: the values themselves decide which it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_PATH = re.compile(r"[A-Za-z_]\w*(?:\.\w+){2,}")  # model.layers.0.mlp: translated by the table of names
_NODE = re.compile(r"([A-Za-z_]\w*)-(\d{1,4})")  # ffn_out-3: llama.cpp's own way

LAYER = {"layer", "layers", "block", "blocks", "blk", "l", "decoder", "h", "il", "lay", "transformer"}
ROW = {"row", "pos", "position", "t"}
PERHAPS = {"token", "tok"}  # "token 3" is the fourth row, or the id 3
_TYPE = re.compile(r"I?Q\d\w*|[bB]?[fF]\d\d")  # Q4_K_M, F16: no word for a value
_GENERIC = {"layer", "layers", "block", "blocks", "blk"}
# Lines that speak of a layer and are not about its values.
_NOT_VALUES = {"weight", "weights", "took", "elapsed", "loading", "loaded", "load", "memory", "grad"}

_Q = "q query queries qcur wq"
_K = "k key keys kcur wk"
_V = "v value vcur wv"
_ATT = "attn attention att self selfattn mha sa"
_FFN = "ffn mlp ff feedforward feed fc"
_NORM = "norm rmsnorm layernorm ln rms normed normalized normalised"
_TURN = "rope rotary rotated roped rot turned"
_END = "final last output out model result ln_f f end top"
# (nodes, words that must stand: one of each group, words that must not). `-` after a node: it belongs to a layer.
_TABLE: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (("result_norm",), ("final outputnorm lnf normf", _NORM + " outputnorm lnf normf"), ""),
    (("kq_soft_max-",), ("softmax softmaxed probs probabilities soft",), "logits logit top"),
    (("kq_soft_max-",), (_ATT, "weights weight probability"), ""),
    (("kq-",), ("scores score qk kq qkt",), "logits"),
    (("result_output",), ("logits logit lmhead lm unembed",), "norm"),
    (("Qcur-",), (_Q, _TURN), ""),
    (("Kcur-",), (_K, _TURN), ""),
    (("Qcur_normed-",), (_Q, _NORM), ""),
    (("Kcur_normed-",), (_K, _NORM), ""),
    (("ffn_norm-", "attn_post_norm-"), ("post", _ATT, _NORM), ""),
    (("ffn_norm-",), (_FFN + " post second 2 ln2 norm2", _NORM), "final"),
    (("attn_norm-",), (_ATT + " input pre in first inp 1 ln1 norm1", _NORM), "final"),
    (("Qcur_proj-", "Qcur_biased-", "Qcur-"), (_Q,), ""),
    (("Kcur_proj-", "Kcur_biased-", "Kcur-"), (_K,), ""),
    (("Vcur-",), (_V,), "values"),
    (("kqv_out-",), ("context ctx kqv heads concat merged",), ""),
    (("ffn_inp-",), ("inp", _FFN), ""),
    (("l_out-",), ("residual resid skip add residual2 residual3", _FFN + " residual2 residual3"), ""),
    (("ffn_inp-",), ("residual1",), ""),
    (("attn_out-",), ("oproj wo",), ""),
    (("attn_out-",), ("o", "proj projection"), ""),
    (("ffn_inp-", "attn_out-"), ("residual resid skip after post mid add", _ATT), ""),
    (("attn_out-", "kqv_out-", "ffn_inp-"), (_ATT,), ""),
    (("ffn_swiglu-", "ffn_geglu-"), ("swiglu geglu silu gelu activation act activated intermediate glu",), ""),
    (("ffn_gate-",), ("gate w1",), ""),
    (("ffn_up-",), ("up w3",), ""),
    (("ffn_out-",), (_FFN + " down w2",), ""),
)  # fmt: skip
_AT_THE_ENDS: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (("result_norm",), (_END + " lnf", _NORM + " lnf"), ""),
    (("result_norm", "l_out-last"), ("final last", "hidden state states layer output"), "token row position embedding"),
    (("embd",), ("embd embed embeds embedding embeddings emb wte embedded encoded",), "rope position positional pos"),
    (("result_norm", "l_out-last"), ("hidden",), ""),
    (("result_norm",), (_NORM,), ""),
)


def _compiled(
    table: Iterable[tuple[tuple[str, ...], tuple[str, ...], str]],
) -> tuple[tuple[tuple[str, ...], tuple[frozenset[str], ...], frozenset[str]], ...]:
    return tuple((nodes, tuple(frozenset(g.split()) for g in need), frozenset(no.split())) for nodes, need, no in table)


_IN_LAYERS, _ENDS = _compiled(_TABLE), _compiled(_AT_THE_ENDS)
_LOGITS = next(row for row in _IN_LAYERS if row[0] == ("result_output",))


@dataclass(frozen=True)
class Meaning:
    """What a label speaks of. `nodes` without a layer end in `-`; empty where no word for a node stood there."""

    nodes: tuple[str, ...] = ()
    layer: int | None = None
    row: int | None = None  # -1: the last token
    perhaps: int | None = None  # a row it may be
    verbatim: str = ""  # a name that is nobody's speech: a path, or llama.cpp's own

    @property
    def role(self) -> bool:
        return bool(self.nodes or self.verbatim)


def split_words(label: Sequence[str]) -> list[str]:
    """Words in lower case and numbers, cut at signs, at capitals and between letters and digits."""
    found: list[str] = []
    for text in label:
        if _TYPE.fullmatch(text):
            continue
        found += [part.lower() for part in _PARTS.findall(text[:200].replace("RoPE", "rope"))]
        if len(found) > 64:
            break
    return found[:64]


def meaning(label: Sequence[str], *, generic: bool = True) -> Meaning:
    """What the words of a line, in order, speak of. `generic`: a layer alone means its output."""
    words = split_words(label)
    layer, used = _layer(words)
    row, perhaps = _row(words, used, ROW), _row(words, used, PERHAPS)
    found = _nodes(label, words, layer, used, generic)
    return replace(found, row=row, perhaps=perhaps)


def _nodes(label: Sequence[str], words: list[str], layer: int | None, used: set[int], generic: bool) -> Meaning:
    for text in label:
        if _PATH.fullmatch(text) and any(p.isdecimal() for p in text.split(".")):
            return Meaning((), layer, verbatim=text)
        if (m := _NODE.fullmatch(text)) and m[1].lower() not in LAYER:
            return Meaning((), int(m[2]), verbatim=text)
    bag = {w for i, w in enumerate(words) if i not in used}
    bag |= {a + b for a, b in pairwise(words)}  # "soft max", "l out", "lm head"
    if bag & _NOT_VALUES and not bag & {"attention", "attn"}:
        return Meaning((), layer)
    if layer is None:
        for nodes, need, no in (_LOGITS, *_ENDS, *_IN_LAYERS):
            if all(bag & group for group in need) and not bag & no:
                return Meaning(nodes)
        return Meaning()
    if bag & {"input", "before", "entering"} and not bag & _TELLING:
        return Meaning(("embd",) if layer == 0 else ("l_out-",), layer - 1 if layer else None)
    for nodes, need, no in _IN_LAYERS:
        if all(bag & group for group in need) and not bag & no:
            return Meaning(nodes, layer if nodes[0].endswith("-") else None)
    if not generic and not bag & {"lout", "out", "output", "after", "hidden", "residual", "x", "出力"}:
        return Meaning((), layer)
    return Meaning(("l_out-",), layer)


_TELLING = frozenset().union(*(g for _, need, _ in _IN_LAYERS for g in need)) - {"in", "input", "inp"}


def _layer(words: Sequence[str]) -> tuple[int | None, set[int]]:
    """The layer's number: after a word for layers, else behind a name as in `ffn_out-3`."""
    for i, (a, b) in enumerate(pairwise(words)):
        if a in _GENERIC and b.isdecimal() and len(b) < 5:
            return int(b), {i + 1}
    for i, (a, b) in enumerate(pairwise(words)):
        if a in LAYER and b.isdecimal() and len(b) < 5:
            return int(b), {i, i + 1}
    return None, set()


def _row(words: Sequence[str], used: set[int], named: set[str]) -> int | None:
    for i, (a, b) in enumerate(pairwise(words)):
        if a in named and b.isdecimal() and len(b) < 7 and not {i, i + 1} & used:
            return int(b)
        if a in ("last", "final") and b in ROW | PERHAPS:
            return -1
        if a == "first" and b in ROW | PERHAPS:
            return 0
    return None
