"""What people call the values of a model in plain words: "after block 3", "Layer 0 attention output", "final hidden".

A label is split into words and numbers; the first row of the table whose words all stand in it names the node. Where
a phrase may mean several nodes, all are given, the likeliest first: the values themselves decide which it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from assay.verify.dumps.naming.layer_and_row import LAYER, PERHAPS, ROW, layer_of, perhaps_of, row_of
from assay.verify.dumps.naming.other_languages import TONGUES, english

_MOST, _LONGEST = 64, 200  # words of a label, and letters of a word
VALUES = "\x00"  # among the words of a line: here stood values
_PARTS = re.compile(r"\x00|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_PATH = re.compile(r"[A-Za-z_]\w*(?:\.\w+){2,}")  # model.layers.0.mlp: translated by the table of names
_NODE = re.compile(r"([A-Za-z_][\w.]*)-(\d{1,4})")  # ffn_out-3: llama.cpp's own way
_HIDDEN = re.compile(r"hidden_states\.\d{1,4}")  # Hugging Face's list: the embedding, then the layers
_NO_WORD = re.compile(
    r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|0[xX][0-9a-fA-F]+$|[vV]\d+(?:\.\d+)*$"
)  # dates, addresses, versions
_FILE = re.compile(r"\.(?:[bB]?[fF]\d\d|float\d\d|bin|npy|raw|dat|txt|csv|tensor|pt)$")  # of a name that was a file's
_TYPE = re.compile(r"I?Q\d\w*|[bB]?[fF]\d\d")  # Q4_K_M, F16: no word for a value
# Lines that speak of a layer and are not about its values.
TIMES = {"elapsed", "took", "timings", "seconds", "latency"}
NOT_VALUES = {"weight", "weights", "took", "elapsed", "loading", "loaded", "load", "memory", "grad"}

_Q = "q qcur wq xq"
_K = "k kcur wk xk"
_V = "v vcur wv xv"
_ATT = "attn attention att selfattn mha sa gqa mhsa"
_FFN = "ffn mlp ff ffw ffwd feedforward feed fc"
_NORM = "norm xnorm rmsnorm layernorm ln normed normalized normalised"
_LAST_NORM = "outputnorm lnf normf rmsf finalrms rmsfinal rmslast rmsend resultnorm"
_OUT_NORM = "outnorm outrmsnorm lastnorm lastrmsnorm lastlayernorm lastln headnorm"
_NORM1 = "ln1 norm1 rmsnorm1 layernorm1 rms1 rmsatt rmsattn an"
_NORM2 = "ln2 norm2 rmsnorm2 layernorm2 rms2 rmsffn rmsmlp fn"
_TURN = "rope rotary rotated roped rot turned"
_BEFORE = "before pre prior unrotated unroped without no"
_END = "final last output out model result ln_f f end top"
_SUM_WORDS = "residual resid skip add addition"
_SUMMED = "residual resid skip add plus"
_ADDED = "residual resid skip add added plus residual2 residual3 res2 resid2 add2 stream"
_NOT_QKV = f"return returned values of out output hidden residual stream is {_FFN} gate up down"
# (nodes, words that must stand: one of each group, words that must not). `-` after a node: it belongs to a layer.
_TABLE: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (("result_norm",), ("final " + _LAST_NORM, f"{_NORM} {_LAST_NORM}"), ""),
    (("result_norm",), (_OUT_NORM,), f"{_ATT} {_FFN}"),
    (("result_norm",), ("lmhead unembed unembedding", _NORM), ""),
    (("kqv_out-",), ("softmax softmaxed probs soft", "v context ctx concat concatenated weighted"), ""),
    (("kqv_out-",), ("attend attended attends sdpa hookz ctx concat concatenated weighted",), "norm"),
    (("kqv_out-",), (_ATT + " a p", "times", _V), ""),
    (("kqv_out-", "attn_out-"), ("q", "k", "v"), "qkv"),
    (("kqv_out-",), ("before pre input", "wo oproj outproj outputprojection"), "norm"),
    (("kq_soft_max-",), ("softmax softmaxed probs probabilities soft",), "logits logit top"),
    (("kq_soft_max-",), (_ATT, "weights weight probability"), _NORM),
    (("kq-",), ("scores score qk kq qkt",), "logits"),
    (("result_output",), ("logits logit lmhead modelinghead unembed unembedding wcls vocab resultoutput",), _NORM),
    (("Qcur_proj-", "Qcur_biased-"), (_Q + " query queries", _TURN, _BEFORE), ""),
    (("Kcur_proj-", "Kcur_biased-"), (_K + " key keys", _TURN, _BEFORE), ""),
    (("Qcur-",), (_Q + " query queries", _TURN), ""),
    (("Qcur-",), ("qr",), ""),
    (("Kcur-",), ("kr",), ""),
    (("Kcur-",), (_K + " key keys", _TURN), ""),
    (("l_out-",), ("plus", _FFN + " down w2"), ""),
    (("ffn_inp-",), ("plus", _ATT + " wo oproj"), ""),
    (("Qcur_normed-",), (_Q, _NORM), ""),
    (("Kcur_normed-",), (_K, _NORM), ""),
    (("ffn_norm-", "attn_post_norm-"), ("post normafter", _ATT, _NORM), "in input pre"),
    (("ffn_norm-",), ("before pre", _FFN, _NORM), "after"),
    (("ffn_norm-",), (f"{_FFN} post second {_NORM2}", f"{_NORM} {_NORM2}"), "final"),
    (("attn_norm-",), (f"{_ATT} input pre in first inp before {_NORM1}", f"{_NORM} {_NORM1}"), "final"),
    (("Qcur_proj-", "Qcur_biased-", "Qcur-"), (_Q,), ""),
    (("Kcur_proj-", "Kcur_biased-", "Kcur-"), (_K,), ""),
    (("Vcur-",), (_V,), "values"),
    (("kqv_out-",), ("context kqv heads merged headoutput headoutputs headout",), ""),
    (("ffn_inp-",), ("inp", _FFN), ""),
    (("l_out-",), (_ADDED, _FFN + " residual2 residual3 res2 resid2 add2 down"), ""),
    (("ffn_inp-",), ("residual1 res1 resid1 add1 residmid midresid midlayer hmid",), ""),
    (("ffn_inp-",), ("first 1st", _SUM_WORDS), _FFN),
    (("l_out-",), ("second 2nd", _SUM_WORDS), _ATT),
    (("ffn_inp-",), ("mid middle", "residual resid stream hidden x h"), ""),
    (("Qcur_proj-", "Qcur_biased-", "Qcur-"), ("query queries",), _NOT_QKV),
    (("Kcur_proj-", "Kcur_biased-", "Kcur-"), ("key keys",), _NOT_QKV),
    (("Vcur-",), ("value",), _NOT_QKV),
    (("attn_out-",), ("oproj wo outproj",), _SUMMED),
    (("attn_out-",), ("o out output", "proj projection projected"), _SUMMED + " ffn mlp down up gate lm"),
    (("ffn_inp-", "attn_out-", "kqv_out-"),
     (_SUMMED + " after post mid added stream oproj wo", _ATT + " oproj wo"), "before"),
    (("attn_out-", "kqv_out-", "ffn_inp-"), (_ATT,), ""),
    (("ffn_gate-",), ("gate w1", "before pre no without", "silu swish gelu act activation"), ""),
    (("ffn_swiglu-", "ffn_geglu-"), ("swiglu geglu silu swish gelu actfn mlpact ffnact intermediate activated",), ""),
    (("ffn_swiglu-", "ffn_geglu-"), ("gated",), "out output down"),
    (("ffn_swiglu-", "ffn_geglu-"), ("gate w1", "up w3"), ""),
    (("ffn_swiglu-", "ffn_geglu-"), (_FFN, "hidden inner mid activation"),
     "out output after post down w1 w2 w3 gate up norm"),
    (("ffn_swiglu-", "ffn_geglu-"), ("input inp", "down w2 downproj"), ""),
    (("ffn_gate-",), ("gate w1",), ""),
    (("ffn_up-",), ("up w3",), ""),
    (("ffn_out-", "l_out-"), ("after post", _FFN), "down w2 out output"),
    (("ffn_out-",), (_FFN + " down w2",), ""),
    (("attn_norm-", "ffn_norm-"), (_NORM,), "final"),
    (("l_out-", "ffn_inp-"), ("residual resid",), "input pre before incoming post end stream"),
)  # fmt: skip
_AT_THE_ENDS: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (("l_out-last",), ("before pre", _END, _NORM), f"{_ATT} {_FFN} after"),
    (("result_norm",), (_END + " lnf", _NORM + " lnf"), ""),
    (("result_norm", "l_out-last"), ("final last", "hidden state states layer output"), "token row position embedding"),
    (("result_norm",), ("fnorm",), ""),
    (("embd",), ("embd embed embeds embedding embeddings emb wte embedded encoded lookup inpl",),
     "rope positional positionembedding posembedding posembeddings posemb posembed rotary rotated"),
    (("result_norm", "l_out-last"), ("hidden",), ""),
    (("result_norm",), (_NORM,), ""),
)  # fmt: skip
_NOT_YET = {"before", "pre", "without", "no", "w", "prior", "excluding", "minus"}
_SUM = {"residual", "resid", "skip", "add", "added", "addition", "connection"}
_INPUT = {"input", "before", "entering", "residpre", "preresid", "incoming"}
_OUTPUT = {
    "lout", "out", "output", "outputs", "after", "hidden", "residual", "resid", "x", "stream", "end", "done", "state",
    "finished", "leaving", "post", "result",
}  # fmt: skip
# Words that do not make a phrase say more than "layer 3".
_EMPTY = _OUTPUT | LAYER | {
    "token", "tok", "pos", "position", "row", "last", "first", "values", "value", "vals", "of", "the", "at", "for",
    "with", "shape", "tensor", "array", "idx", "index", "head", "tail", "data", "dim", "f", "i", "n", "states", "is",
    "prompt", "all", "this", "in", "id", "on", "and", "to", "by", "from",
}  # fmt: skip


def _compiled(
    table: Iterable[tuple[tuple[str, ...], tuple[str, ...], str]],
) -> tuple[tuple[tuple[str, ...], tuple[frozenset[str], ...], frozenset[str]], ...]:
    return tuple((nodes, tuple(frozenset(g.split()) for g in need), frozenset(no.split())) for nodes, need, no in table)


_IN_LAYERS, _ENDS = _compiled(_TABLE), _compiled(_AT_THE_ENDS)
_OF_HEADS = frozenset(f"{_Q} {_K} {_V} query queries key keys {_TURN} softmax scores".split())
_HOOKED = ROW | PERHAPS | {
    "output", "out", "tensor", "array", "hook", "hooked", "forward", "linear", "name", "node", "event", "act", "dim",
    "shape", "first", "head", "last", "tail", "values", "model", "dump", "trace", "activation", VALUES,
}  # fmt: skip
_HIDDEN_ALONE = (frozenset({"hidden"}),)  # of which layer, nobody says
_LOGITS = next(row for row in _IN_LAYERS if row[0] == ("result_output",))


@dataclass(frozen=True)
class Meaning:
    """What a label speaks of. `nodes` without a layer end in `-`; empty where no word for a node stood there."""

    nodes: tuple[str, ...] = ()
    layer: int | None = None
    row: int | None = None  # -1: the last token
    perhaps: int | None = None  # a row it may be
    verbatim: str = ""  # a name that is nobody's speech: a path, or llama.cpp's own. `nodes`, where it is unknown
    vague: bool = False  # a layer's output for want of a better word, while there were words that nobody knows
    bare: bool = False  # a layer's output because nothing but the layer was named

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
    text = _FILE.sub("", text if text.isascii() else english(text))
    parts = (part.lower() for part in _PARTS.findall(text.replace("RoPE", "rope")))
    return tuple(word for part in parts for word in TONGUES.get(part) or _unglued(part))


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
    """What the words of a line, in order, speak of. `generic`: a layer alone means its output."""
    return _meaning(tuple(text[:_LONGEST] for text in label[:_MOST]), generic)


@lru_cache(maxsize=2048)
def _meaning(label: tuple[str, ...], generic: bool) -> Meaning:
    words = split_words(label)
    layer, used = layer_of(words)
    found = _nodes(label, words, layer, used, generic)
    return replace(found, row=row_of(words, used), perhaps=perhaps_of(words, used))


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
    """ "before the residual add", "without residual": words for what is not yet there."""
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
    bag |= {a + b for a, b in pairwise(words)}  # "soft max", "l out", "lm head"
    bag -= _denied(words)
    if bag & NOT_VALUES and not bag & {"attention", "attn", "after"}:
        return Meaning((), layer)
    if layer is None and "output" in words and not {w for w in words if not w.isdecimal()} - _HOOKED:
        return Meaning(("result_output", "result_norm", "l_out-last"))
    if layer is None:
        inside = bag & _OF_A_LAYER and not bag & {"final", "lnf", "normf", "outputnorm"}
        for nodes, need, no in (_LOGITS, *_IN_LAYERS[:-1], *_ENDS) if inside else (_LOGITS, *_ENDS, *_IN_LAYERS):
            if all(bag & group for group in need) and not bag & no:
                return Meaning(nodes, vague=need == _HIDDEN_ALONE)
        return Meaning()
    if bag & _INPUT and not bag & _TELLING:
        return Meaning(("embd",) if layer == 0 else ("l_out-",), layer - 1 if layer else None)
    for nodes, need, no in _IN_LAYERS:
        if all(bag & group for group in need) and not bag & no:
            return Meaning(nodes, layer if nodes[0].endswith("-") else None)
    if not generic and not bag & _OUTPUT:
        return Meaning((), layer)
    unknown = has_unknown(words)
    return Meaning(("l_out-",), layer, vague=unknown and not bag & _OUTPUT, bare=not unknown)


def has_unknown(words: Iterable[str]) -> bool:
    """Whether there are words that neither name a node nor say nothing."""
    return any(w not in _EMPTY and not w.isdecimal() and w != VALUES for w in words)


def all_known(words: Sequence[str]) -> bool:
    """Whether every word may speak of a node or of a place, alone or with its neighbour."""
    return all(
        w.isdecimal() or {w, a + w, w + b} & _KNOWN
        for a, w, b in zip(["", *words], words, [*words[1:], ""], strict=False)
    )


_KNOWN = frozenset().union(_EMPTY, ROW, PERHAPS, *(g for _, need, _ in (*_IN_LAYERS, *_ENDS) for g in need))
_OF_A_LAYER = frozenset(f"{_ATT} {_FFN} gate down swiglu wo oproj w1 w2 w3 wq wk wv rope".split())
_TELLING = frozenset().union(*(g for _, need, _ in _IN_LAYERS for g in need)) - {
    "in", "input", "inp", "first", "1", "2", "second", "after", "post", "before", "pre", "hidden", "out", "output",
    "add", "residual", "resid", "stream", "mid", "prior", "without",
}  # fmt: skip
