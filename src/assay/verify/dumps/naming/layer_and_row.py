"""Finds the layer's number and the token's row among the words of a line, in the ways that people write them.

"layer 3", "layer_idx=3", `layers[3]`, "L3", "3rd block"; "last token", "pos 7", `token=last`, "last prompt position".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

LAYERS = {"layer", "layers", "block", "blocks", "blk", "lyr", "lay", "decoderlayer", "transformerblock"}
LAYER = LAYERS | {"l", "decoder", "dec", "h", "il", "transformer", "depth"}
ROW = {"row", "pos", "position", "t", "timestep"}
MAYBE_ROW = {"token", "tok", "step"}  # "token 3" is the fourth row, or the id 3
# Words between "layer" and its number; words before it that make it a count.
NUMBERING = {"idx", "index", "id", "no", "nr", "num", "number", "nummer", "i", "n", "ix"}
COUNTS = {"n", "num", "total", "nr", "max", "count", "of"}
_STRONG = {"idx", "index", "number", "num", "no", "nr"}
_ORDINAL = {"st", "nd", "rd", "th"}
_ROWS = ROW | MAYBE_ROW | {"tokens", "positions"}
_OF_THE_PROMPT = {"prompt", "input", "context", "sequence", "seq", "fed", "prefill", "real", "valid"}
_HEAD = {"head", "h", "hd", "kv", "kvhead"}
_GROUP, _SHARED = {"g", "grp", "group"}, {"k", "v", "key", "keys", "value", "values", "kv"}  # heads that queries share
_PER_HEAD = {"scores", "weights", "probs", "softmax"}
_LAST = {"last", "final"}


_BESIDE = {"sum", "mean", "rms", "std", "min", "max", "absmax"}  # heads of other columns


def layer_of(words: Sequence[str]) -> tuple[int | None, set[int]]:
    """The layer's number, and the places of the words that name it."""
    for named in (LAYERS, {"il"}, LAYER):
        for i, word in enumerate(words):
            if word not in named or (i and words[i - 1] in COUNTS and word.endswith("s")):
                continue
            at = i + 1
            while named is LAYERS and at < len(words) and words[at] in NUMBERING and at < i + 3:
                at += 1
            if named is LAYERS and words[at : at + 1] in (["output"], ["out"]) and words[at + 2 : at + 3] != ["values"]:
                at += 1  # "layer output 3:"
            if at < len(words) and words[at].isdecimal() and len(words[at]) < 5:
                if i and words[i - 1] in ("n", "num", "total", "max"):
                    continue
                if word == "l" and words[at] == "2" and LAYERS.intersection(words) and _BESIDE.intersection(words):
                    continue  # layer  node  sum  l2: heads of columns
                if (
                    word == "l"
                    and words[at] == "2"
                    and words[at + 1 : at + 2] in (["norm"], ["norms"])
                    and not (
                        words[at + 2 : at + 3] and words[at + 2].isdecimal()  # l2 norm1: the third layer
                    )
                ):
                    continue
                return int(words[at]), set(range(i + (named is LAYERS), at + 1))
            for j in range(at, min(at + 3, len(words) - 1)):  # LayerTrace(index=0
                if named is LAYERS and words[j] in _STRONG and words[j + 1].isdecimal() and len(words[j + 1]) < 5:
                    return int(words[j + 1]), {j, j + 1}
            if named is LAYERS and i and words[i - 1] == "first" and words[at : at + 1] not in (["norm"], ["ln"]):
                return 0, {i - 1}  # "in the first layer"
            if named is LAYERS and i > 1 and words[i - 1] in _ORDINAL and words[i - 2].isdecimal():
                return int(words[i - 2]), {i - 2, i - 1}
    return None, set()


def row_of(words: Sequence[str], used: set[int]) -> int | None:
    """The token's row, if the words name it for certain; -1 is the last."""
    for i, (a, b) in enumerate(pairwise(words)):
        if a in ROW and b.isdecimal() and len(b) < (4 if a == "t" else 7) and not {i, i + 1} & used:
            return int(b)
        if a in ROW | MAYBE_ROW and b in _STRONG and (c := words[i + 2 : i + 3]) and c[0].isdecimal():
            return int(c[0][:7])
        if b in _ROWS and a in _LAST and not "".join(words[i + 2 : i + 3]).isdecimal():
            return -1  # and not "norm_final pos=3"
        if b in _OF_THE_PROMPT and a in _LAST and i + 2 < len(words) and words[i + 2] in _ROWS:
            return -1
        if a in ROW | MAYBE_ROW and b == "last" and not (i + 2 < len(words) and _goes_on(words[i + 2])):
            return -1
        if a == "first" and b in _ROWS - {"tokens", "positions"}:
            return 0
    if any(
        words[i : i + 2] == ["last", "of"] and words[i + 3 : i + 4] in (["tokens"], ["positions"])
        for i in range(len(words))
    ):
        return -1  # "last of 8 tokens"
    if "last" in words and "one" in words and set(words) & _ROWS:  # "8 tokens, showing the last one"
        return -1 if words[words.index("last") + 1 :][:1] == ["one"] else None
    return None


def _goes_on(word: str) -> bool:
    return word.isdecimal() or word in ("few", "elements", "dims")


def without_row(words: Sequence[str]) -> list[str]:
    """The words without those that say which values are shown: "last token", "first 4"."""
    ends = {i for i, word in enumerate(words[:-1]) if word in ("last", "first") and _shown(words[i + 1])}
    return [word for i, word in enumerate(words) if i not in ends and i - 1 not in ends]


def _shown(word: str) -> bool:
    return word.isdecimal() or word in ("token", "tok", "row", "position", "pos", "values", "vals", "elements")


def possible_row_of(words: Sequence[str], used: set[int]) -> int | None:
    """A row it may be: "token 3" is the fourth row, or the id 3."""
    for i, (a, b) in enumerate(pairwise(words)):
        if a in MAYBE_ROW | {"p", "past"} and b.isdecimal() and len(b) < 7 and not {i, i + 1} & used:
            return int(b)
    return None


def head_of(words: Sequence[str], used: set[int]) -> int | None:
    """The attention head that the words name: "head 3", "L0 H4", `kv=2`, "scores 0", `K[g1]`."""
    for i, (a, b) in enumerate(pairwise(words)):
        if {i, i + 1} & used or not b.isdecimal() or len(b) > 3 or (i and words[i - 1] in COUNTS):
            continue
        if a in _HEAD or (a in _PER_HEAD and words[i + 2 : i + 3] != ["of"]):
            return int(b)
        if a in _GROUP and words[max(i - 1, 0)] in _SHARED:
            return int(b)
    return None


def of_each_layer(words: Sequence[str]) -> bool:
    """Whether the words name layers without a number, so that the lines below may count them."""
    return bool(set(words) & (LAYERS | {"depth"})) and layer_of(words)[0] is None
