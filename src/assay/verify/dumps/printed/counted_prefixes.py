"""Recognises the number of a layer by how it counts: `b00/q` … `b29/r2`, `[0] u` … `[2] mixer`, `l=0 s->xb`.

A prefix numbers the layers of a log under three conditions. Its numbers count up from 0 or 1 line by line, no line has
two of them, and the same words follow several of its numbers. The prefix is rewritten as `layer N`, so that all later
rules apply. So `L2 att` between `L1 att` and `L3 att` is a layer and no norm.

A number at the end of a name, `q_0`, `x1_0`, `q_1`, may be the layer, too. It is, if several names have all numbers
from 0 on and the numbers count up line by line.

Two bare numbers before a name, `3:0:q`, are a position and a layer, in the order in which they count: the layer begins
anew at each position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from assay.verify.dumps.naming.layer_and_row import LAYER, LAYERS, MAYBE_ROW, ROW

# Behind the number; the pointer of a structure says nothing: l=0 s->xb
_END = r"(?:/|\.(?!\d)|:{1,2}\s{0,3}|_|-|\s{1,3})(?:[a-z]{1,2}->)?(?=([A-Za-z][\w*+]{0,30}))"
_PREFIX = re.compile(r"(?<![\w.+\-=\[(/])([A-Za-z]{1,12})[_#=-]?(\d{1,3})" + _END)
_BRACKET = re.compile(r"^(\s{0,8})\[(\d{1,3})\]" + _END)
_PAIR = re.compile(
    r"^(\s{0,8})[\[(]?(\d{1,5})([:/|.,-])(?:(\d{1,4})|[A-Za-z]{1,5}|[-–])\3\s{0,3}[\])]?\s{0,3}(?=[A-Za-z])"
)
_FEWEST_PAIRS = 6
_SUFFIXED = re.compile(r"^(\s{0,8})([A-Za-z]\w{0,30}?)[_.](\d{1,3})(?=\s{0,24}[:=|\[(]|\s{1,24}\S)")
_FEWEST_NAMES = 3
_SHARED = 2  # words that must follow several numbers
_FEW = 3  # numbers from 0 on that may as well number values of a layer
_LONGEST = 400  # characters of a line, at whose beginning a prefix stands
_OTHERS = LAYERS | ROW | MAYBE_ROW | {
    "p", "x", "v", "y", "w", "e", "ex", "exp", "expert", "head", "h", "hd", "hq", "kv", "q", "k", "o", "call", "pass",
    "run", "iter", "batch", "seq", "sample", "beam", "prompt", "gen", "decode", "top", "line", "thread", "worker",
    "rank", "gpu", "cpu", "dev", "device", "id", "n", "i", "j", "dim", "norm", "rms", "int", "uint", "float", "bf",
    "fp", "f", "u", "utf", "sha", "version", "page", "slot", "chunk", "tile", "shard", "c",
}  # fmt: skip
_ARE_VALUES = {
    "x",
    "v",
    "y",
    "h",
    "q",
    "k",
    "o",
    "f",
    "u",
    "norm",
    "rms",
}  # before a layer's number, not before a row's


@dataclass
class _Prefix:
    """Numbers behind one word, and the words that follow them."""

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
        pairs = list(pairwise(self.numbers))
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
    lines = _suffixes_named(_pairs_named(lines))
    if not layers:
        return "\n".join(lines)

    def named(m: re.Match[str]) -> str:
        return f"layer {int(m[2])}: " if m[1].lower() in layers else m[0]

    out = []
    for line in lines:
        head = line[:_LONGEST]
        if "[" in layers:
            head = _BRACKET.sub(r"\1layer \2: ", head)
        out.append(_PREFIX.sub(named, head) + line[_LONGEST:])
    return "\n".join(out)


def _suffixes_named(lines: list[str]) -> list[str]:
    """The lines with `x1_0` as `layer 0 x1`."""
    found = [(i, m) for i, line in enumerate(lines) if (m := _SUFFIXED.match(line[:_LONGEST]))]
    found = [(i, m) for i, m in found if m[2].lower() not in _OTHERS - _ARE_VALUES]
    names: dict[str, set[int]] = {}
    for _, m in found:
        names.setdefault(m[2], set()).add(int(m[3]))
    several = {name for name, numbers in names.items() if numbers == set(range(len(numbers))) and len(numbers) > 1}
    numbers = [int(m[3]) for _, m in found if m[2] in several]
    counts = all(b in (a, a + 1, 0) for a, b in pairwise(numbers))
    falls = sum(b < a for a, b in pairwise(numbers))
    if len(several) < _FEWEST_NAMES or not counts or falls >= len(several):
        return lines
    lines = list(lines)
    for i, m in found:
        if m[2] in several:
            lines[i] = f"{m[1]}layer {m[3]} {m[2]}{lines[i][m.end() :]}"
    return lines


def _pairs_named(lines: list[str]) -> list[str]:
    """The lines with `3:0:q` as `pos 3 layer 0 q`, if such numbers stand before names all over the text."""
    found = [(i, m) for i, line in enumerate(lines) if (m := _PAIR.match(line[:_LONGEST]))]
    numbered = [(int(m[2]), int(m[4])) for _, m in found if m[4]]
    if len(numbered) < _FEWEST_PAIRS or not {0} < {layer for _, layer in numbered} or min(numbered)[0]:
        return lines
    pairs = pairwise(numbered)
    if not all((b[0] == a[0] and b[1] in (a[1], a[1] + 1)) or b in ((a[0] + 1, 0), (0, 0)) for a, b in pairs):
        return lines
    lines = list(lines)
    for i, m in found:
        layer = f"layer {m[4]} " if m[4] else ""
        lines[i] = f"{m[1]}pos {m[2]} {layer}{lines[i][m.end() :]}"
    return lines


def _prefixes(line: str) -> list[tuple[str, int, str]]:
    """Word, number and the word behind it, of each prefix in a line."""
    found = [(m[1].lower(), int(m[2]), m[3].lower()) for m in _PREFIX.finditer(line)]
    if m := _BRACKET.match(line):
        found.append(("[", int(m[2]), m[3].lower()))
    return [one for one in found if one[0] not in _OTHERS]
