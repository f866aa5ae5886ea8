"""Recognises the number of a layer by how it counts: `b00/q` … `b29/r2`, `[0] u` … `[2] mixer`, `l=0 s->xb`.

A prefix numbers the layers of a log, if its numbers count up from 0 or 1 line by line, if no line has two of them, and
if the same words follow several of its numbers. The prefix is rewritten as `layer N`, so that all later rules apply.
So `L2 att` between `L1 att` and `L3 att` is a layer and no norm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from assay.verify.dumps.naming.layer_and_row import LAYER, LAYERS, MAYBE_ROW, ROW

# Behind the number; the pointer of a structure says nothing: l=0 s->xb
_END = r"(?:/|\.(?!\d)|:{1,2}\s{0,3}|_|-|\s{1,3})(?:[a-z]{1,2}->)?(?=([A-Za-z][\w*+]{0,30}))"
_PREFIX = re.compile(r"(?<![\w.+\-=\[(/])([A-Za-z]{1,12})[_#=-]?(\d{1,3})" + _END)
_BRACKET = re.compile(r"^(\s{0,8})\[(\d{1,3})\]" + _END)
_SHARED = 2  # words that must follow several numbers
_FEW = 3  # numbers from 0 on that may as well number values of a layer
_LONGEST = 400  # characters of a line, at whose beginning a prefix stands
_OTHERS = LAYERS | ROW | MAYBE_ROW | {
    "p", "x", "v", "y", "w", "e", "ex", "exp", "expert", "head", "h", "hd", "hq", "kv", "q", "k", "o", "call", "pass",
    "run", "iter", "batch", "seq", "sample", "beam", "prompt", "gen", "decode", "top", "line", "thread", "worker",
    "rank", "gpu", "cpu", "dev", "device", "id", "n", "i", "j", "dim", "norm", "rms", "int", "uint", "float", "bf",
    "fp", "f", "u", "utf", "sha", "version", "page", "slot", "chunk", "tile", "shard", "c",
}  # fmt: skip


@dataclass
class _Prefix:
    """What the lines say about one word before numbers."""

    word: str
    numbers: list[int] = field(default_factory=list)
    followers: dict[int, set[str]] = field(default_factory=dict)
    twice: bool = False  # a line has two of its numbers

    @property
    def counts(self) -> bool:
        """Whether the numbers count up from 0 or 1; each call of the engine may begin anew."""
        first = min(self.numbers)
        if self.twice or first > 1 or self.numbers[0] != first or len(self.followers) < 2:
            return False
        pairs = list(zip(self.numbers, self.numbers[1:], strict=False))
        if not all(b in (a, a + 1, first) for a, b in pairs):
            return False
        if any(b < a for a, b in pairs) and max(self.numbers) < _FEW and not any(a == b for a, b in pairs):
            return False  # r1 and r2 by turns
        often: dict[str, int] = {}
        for words in self.followers.values():
            for word in words:
                often[word] = often.get(word, 0) + 1
        return sum(n > 1 for n in often.values()) >= (1 if self.word in LAYER else _SHARED)


def with_layers_named(text: str) -> str:
    """The text with the writer's prefix of layers as `layer N`."""
    lines = text.split("\n")
    found: dict[str, _Prefix] = {}
    for line in lines:
        here: dict[str, set[int]] = {}
        for word, number, follower in _prefixes(line[:_LONGEST]):
            prefix = found.setdefault(word, _Prefix(word))
            here.setdefault(word, set()).add(number)
            prefix.followers.setdefault(number, set()).add(follower)
        for word, numbers in here.items():
            found[word].twice |= len(numbers) > 1
            found[word].numbers.append(min(numbers))
    layers = {word for word, prefix in found.items() if prefix.counts}
    if not layers:
        return text

    def named(m: re.Match[str]) -> str:
        return f"layer {int(m[2])}: " if m[1].lower() in layers else m[0]

    out = []
    for line in lines:
        head = line[:_LONGEST]
        if "[" in layers:
            head = _BRACKET.sub(r"\1layer \2: ", head)
        out.append(_PREFIX.sub(named, head) + line[_LONGEST:])
    return "\n".join(out)


def _prefixes(line: str) -> list[tuple[str, int, str]]:
    """Word, number and the word behind it, of each prefix in a line."""
    found = [(m[1].lower(), int(m[2]), m[3].lower()) for m in _PREFIX.finditer(line)]
    if m := _BRACKET.match(line):
        found.append(("[", int(m[2]), m[3].lower()))
    return [one for one in found if one[0] not in _OTHERS]
