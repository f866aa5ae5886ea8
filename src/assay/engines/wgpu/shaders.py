"""WGSL sources: a kernel's file with its includes, for a variant and a tier.

A kernel is a file of the folder `shaders`. Three directives, each on a line of its own, make its variants:

    //#include NAME     the text of another file. `arithmetic` is the arithmetic of the tier; the variant's word
                        `codes=nibbles` makes `codes` the file codes_nibbles.wgsl
    //#if WORD          the lines up to //#end, if the variant has the word
    EXPRESSION          the variant's `expression`

`Par` in a kernel's file names its numbers, and its bindings name its buffers, so that callers pass both by name.
Touch this module when kernels need a further directive; touch the folder to change what a kernel computes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TIERS = {  # by number: how a tier computes a fused multiply-add, as shown to users
    0: "fma() of the device",
    1: "error-free transformation",
    2: "integers only",
}
_FOLDER = Path(__file__).parent / "shaders"
_ARITHMETIC = "//#include arithmetic"


@dataclass(frozen=True)
class Kernel:
    """A kernel's file and the words of its variant."""

    name: str
    words: frozenset[str] = frozenset()
    expression: str = ""
    fixed: tuple[tuple[str, int], ...] = ()  # numbers that are constants of the code; `Par` has them all the same

    def source(self, tier: int) -> str:
        """The WGSL of this variant."""
        return self.template.replace(_ARITHMETIC, arithmetic(tier))

    @property
    def template(self) -> str:
        """The WGSL of this variant, without the arithmetic of a tier."""
        return _template(self.name, self.words, self.expression, self.fixed)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The fields of `Par` in order, after the zero that the compiler must not know."""
        found = re.search(r"struct Par \{(.*?)\}", _text(self.name), re.S)
        assert found, self.name
        return tuple(re.findall(r"(\w+) :", found[1]))[1:]

    @property
    def bindings(self) -> dict[str, bool]:
        """The buffers after `par`, by name in order of their binding: whether the kernel writes it."""
        return _bindings(self.template)


def arithmetic(tier: int) -> str:
    """The arithmetic of a tier, which every kernel that computes floats includes."""
    return "fn zero() -> u32 { return par.zero; }\n" + _text("integers") + _text(f"tier{tier}")


@cache
def _text(name: str) -> str:
    return (_FOLDER / f"{name}.wgsl").read_text()


@cache  # asked for at every dispatch of every recording
def _template(name: str, words: frozenset[str], expression: str, fixed: tuple[tuple[str, int], ...]) -> str:
    chosen = dict(word.split("=") for word in words if "=" in word)
    text = "\n".join(_lines(name, words, chosen)) + "\n"
    values = dict(fixed)
    text = re.sub(r"par\.(\w+)", lambda m: f"{values[m[1]]}u" if m[1] in values else m[0], text)
    return text.replace("EXPRESSION", expression)


@cache
def _bindings(template: str) -> dict[str, bool]:
    found = re.findall(r"@binding\((\d+)\) var<storage, (read\w*)> (\w+)", template)
    return {name: access == "read_write" for _, access, name in sorted(found, key=lambda f: int(f[0]))[1:]}


def _lines(name: str, words: frozenset[str], chosen: dict[str, str]) -> Iterator[str]:
    open_if: list[bool] = []
    for line in _text(name).splitlines():
        directive, _, rest = line.partition(" ")
        if directive == "//#if":
            open_if.append(rest in words)
        elif directive == "//#end":
            open_if.pop()
        elif not all(open_if):
            continue
        elif directive == "//#include" and line != _ARITHMETIC:
            yield from _lines(f"{rest}_{chosen[rest]}" if rest in chosen else rest, words, chosen)
        else:
            yield line
