"""Names of statistics: `rms`, `abs_max`, `probeSum`, `x.mean()`, `L2-norm`, `σ`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from assay.verify.dumps.naming.phrases import split_words

STATISTIC_WORDS = {
    "rms": "rms", "rootmeansquare": "rms", "rmsq": "rms",
    "mean": "mean", "avg": "mean", "average": "mean", "mu": "mean",
    "min": "min", "mn": "min", "mx": "max", "minimum": "min", "lo": "min", "lowest": "min", "amin": "min",
    "max": "max", "maximum": "max", "largest": "max", "biggest": "max", "highest": "max",
    "smallest": "min", "hi": "max", "sum": "sum", "total": "sum", "checksum": "sum",
    "chksum": "sum", "std": "std", "stddev": "std", "stdev": "std", "sd": "std", "sigma": "std",
    "standarddeviation": "std", "var": "var", "variance": "var",
    "norm": "norm", "norms": "norm", "l2norms": "norm", "l2": "norm", "l2norm": "norm", "norm2": "norm",
    "2norm": "norm", "nrm": "norm", "nrm2": "norm",
    "absmax": "absmax", "maxabs": "absmax", "amax": "absmax", "linf": "absmax", "maxmagnitude": "absmax",
    "largestmagnitude": "absmax",
    "absmean": "absmean", "meanabs": "absmean", "absavg": "absmean", "avgabs": "absmean",
    "sumsq": "squares", "sqsum": "squares", "sumsquares": "squares", "sumofsquares": "squares", "ssq": "squares",
    "ss": "squares", "normsq": "squares", "l2sq": "squares", "norm2sq": "squares", "sumsqr": "squares",
    "abssum": "abssum", "sumabs": "abssum", "l1norm": "abssum", "asum": "abssum",
    "μ": "mean", "µ": "mean", "σ": "std",
}  # fmt: skip
# With one of these before it, `norm` is a statistic; else it is a node: attn_norm, final_norm.
_NORM_OF = {
    "l", "2", "x", "h", "y", "hidden", "resid", "residual", "vec", "vector", "state", "abs", "linalg", "frob", "fro",
    "act",
}  # fmt: skip
_NODES = {"attn", "attention", "ffn", "mlp", "final", "rms", "layer", "input", "pre", "post", "q", "k"}
_NOT_NEGATIVE = {"norm", "rms", "std", "absmax", "absmean", "abssum"}
TRAILING = {"is", "was", "x", "h", "of", "value", "val", "elements", "item", "tolist", "numpy", "float", "cpu"}
_JOINED = {k for k in STATISTIC_WORDS if k not in ("mean", "max", "min", "norm", "rms", "sum", "total")}


def statistic(key: Sequence[str]) -> str | None:
    """The statistic that the last of these words names."""
    return _statistic(tuple(text[:200] for text in key[-3:])) if key else None


@lru_cache(maxsize=4096)
def _statistic(key: tuple[str, ...]) -> str | None:
    if len(key) > 1 and key[-1].lower() in TRAILING:
        return statistic(key[:-1])  # "its RMS is 1.5", "sum x = 3.5"
    if key == ("root", "mean", "square"):
        return "rms"
    if len(key) > 1:  # "L2 norm", "max abs", "std dev", x.abs().max()
        two = "".join(split_words([key[-2].rpartition(".")[2], key[-1]]))
        if two in _JOINED:
            return STATISTIC_WORDS[two]
    word = "sum" if key[-1] == "Σ" else key[-1].lower().strip("_")  # its small letter σ is the deviation
    if word == "norm" and len(key) > 1 and set(split_words(key[-2:-1])[-1:]) & _NODES:
        return None  # "after attn norm"
    found = STATISTIC_WORDS.get(word) or STATISTIC_WORDS.get(word.replace("_", "").replace("-", ""))
    if found:
        return found
    parts = split_words(key[-1:])
    if parts != [word] and len(parts) == 1:  # of another language
        return STATISTIC_WORDS.get(parts[0])
    if len(parts) < 2 or parts[-2:] == ["soft", "max"]:
        return None
    if "".join(parts[-2:]) in _JOINED:
        return STATISTIC_WORDS["".join(parts[-2:])]
    if parts[-1] == "norm" and parts[-2] not in _NORM_OF:
        return None
    return STATISTIC_WORDS.get(parts[-1])


_OF_EACH = re.compile(r"\b(?:per|each|every|by)(?: (?:the|prompt|input))? (?:token|tok|position|pos|row)s?\b")


def statistic_of_each_token(words: Sequence[str]) -> str:
    """The statistic that the words give for each token: "norms per token", "rms at each position"."""
    each = _OF_EACH.search(" ".join(words))
    if each is None:
        return ""
    before = len(each.string[: each.start()].split())
    for part in (words[:before], words[before:]):
        several = [statistic(part[i : i + 2]) or statistic(part[i : i + 1]) for i in range(len(part))]
        found = {k for i, k in enumerate(several) if k and not (i and several[i - 1] == f"abs{k}")}  # abs max
        if found:
            return next(iter(found)) if len(found) == 1 and found <= _NOT_NEGATIVE else ""
    return ""


def without_statistic(parts: Sequence[str]) -> list[str]:
    """The parts of a word but for those at its end that name a statistic: `attn_norm_l2` is of `attn_norm`."""
    for n in (3, 2, 1):
        if "".join(parts[-n:]) in STATISTIC_WORDS and len(parts) >= n:
            return list(parts[:-n])
    return list(parts)
