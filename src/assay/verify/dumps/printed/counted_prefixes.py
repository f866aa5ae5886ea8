"""Recognises the number of a layer behind a word of the writer's own: `b00/q`, `b00/r1`, …, `b29/r2`.

A prefix numbers the layers of a log, if its numbers count up from 0 or 1 line by line, if no line has two of them, and
if several other words follow it. The prefix is rewritten as `layer N`, so that all later rules apply.
"""

from __future__ import annotations

import re

from assay.verify.dumps.naming.layer_and_row import LAYER, LAYERS, MAYBE_ROW, ROW

_PREFIX = re.compile(r"(?<![\w.+-])([A-Za-z]{1,12})[_#-]?(\d{1,3})\]?(?:/|\.(?!\d)|:{1,2}|_|-|\s{1,3})(?=([A-Za-z]\w{0,30}))")
_LEAST = 4  # different numbers
_LONGEST = 400  # characters of a line, at whose beginning a prefix stands
_OTHERS = LAYER | LAYERS | ROW | MAYBE_ROW | {
    "p", "x", "v", "y", "w", "e", "ex", "exp", "expert", "head", "hd", "hq", "kv", "q", "k", "o", "call", "pass", "run",
    "iter", "batch", "seq", "sample", "beam", "prompt", "gen", "decode", "top", "line", "thread", "worker", "rank",
    "gpu", "cpu", "dev", "device", "id", "n", "i", "j", "dim", "norm", "rms", "int", "uint", "float", "bf", "fp", "f",
    "u", "utf", "sha", "version", "page", "slot", "chunk", "tile", "shard",
}  # fmt: skip


def with_layers_named(text: str) -> str:
    """The text with the writer's prefix of layers as `layer N`."""
    lines = text.split("\n")
    counted: dict[str, list[int]] = {}
    followers: dict[str, set[str]] = {}
    broken: set[str] = set()
    for line in lines:
        here: dict[str, set[int]] = {}
        for m in _PREFIX.finditer(line[:_LONGEST]):
            word = m[1].lower()
            if word not in _OTHERS:
                here.setdefault(word, set()).add(int(m[2]))
                followers.setdefault(word, set()).add(m[3].lower())
        for word, numbers in here.items():
            if len(numbers) > 1:
                broken.add(word)
            counted.setdefault(word, []).append(min(numbers))
    found = {w for w, numbers in counted.items() if w not in broken and len(followers[w]) > 1 and _counts(numbers)}
    if not found:
        return text

    def named(m: re.Match[str]) -> str:
        return f"layer {int(m[2])} " if m[1].lower() in found else m[0]

    return "\n".join(_PREFIX.sub(named, line[:_LONGEST]) + line[_LONGEST:] for line in lines)


def _counts(numbers: list[int]) -> bool:
    """Whether they count up from 0 or 1 without a gap; each call of the engine may begin anew."""
    first = numbers[0]
    if first > 1 or len(set(numbers)) < _LEAST:
        return False
    return all(b in (a, a + 1, first) for a, b in zip(numbers, numbers[1:], strict=False))
