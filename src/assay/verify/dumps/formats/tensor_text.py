"""Reads the text that PyTorch prints of a tensor: nested brackets, or three values at either end of a long axis."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import product

_NUMBER = re.compile(r"(?>[-+]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][-+]?\d{1,6})?|-?nan|-?inf)")
_PARTS = re.compile(rf"{_NUMBER.pattern}|\.\.\.|[\[\]]")
_SHAPE = re.compile(r"(?:torch\.Size\()?\[([\d, ]{0,200})\]\)?")
SHOWN = 3  # values that PyTorch prints at each end of an axis of a large tensor


@dataclass(frozen=True)
class PrintedTensor:
    """Flat index and text of every printed number."""

    shape: tuple[int, ...]
    index: tuple[int, ...]
    texts: tuple[str, ...]

    @property
    def whole(self) -> bool:
        return len(self.texts) == math.prod(self.shape)


def shape_of_text(text: str) -> tuple[int, ...] | None:
    """`torch.Size([1, 5, 32])` as a shape."""
    m = _SHAPE.fullmatch(text.strip())
    return None if m is None else tuple(int(n) for n in m[1].replace(" ", "").split(",") if n)


def printed_tensor(text: str, shape: tuple[int, ...] | None = None) -> PrintedTensor | None:
    """The numbers of `tensor([[…]], dtype=…)` with their places; None where the text does not fit the shape."""
    text = text.partition("tensor(")[2] or text
    end = re.search(r",\s{0,40}(?:dtype|device|grad_fn|size|requires_grad)\s?=", text)
    parts = _PARTS.findall(text[: end.start()] if end else text)
    texts = [p for p in parts if p not in ("[", "]", "...")]
    cut = "..." in parts
    if shape is None:
        shape = None if cut else _nested(parts)
    if shape is None or not texts:
        return None
    axes = [_shown(n) if cut else range(n) for n in shape]
    if math.prod(len(a) for a in axes) != len(texts):
        return None
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    index = tuple(sum(i * s for i, s in zip(at, strides, strict=True)) for at in product(*axes))
    return PrintedTensor(shape, index, tuple(texts))


def _shown(n: int) -> list[int]:
    return [*range(n)] if n <= 2 * SHOWN else [*range(SHOWN), *range(n - SHOWN, n)]


def _nested(parts: list[str]) -> tuple[int, ...] | None:
    """The shape of evenly nested brackets."""
    depth, counts = 0, list[int]()
    for part in parts:
        if part == "[":
            depth += 1
            if depth > 8:
                return None
            counts += [0] * (depth - len(counts))
            counts[depth - 1] += 1
        elif part == "]":
            depth -= 1
            if depth < 0:
                return None
    leaves = sum(p not in ("[", "]") for p in parts)
    if depth or not counts:
        return () if leaves == 1 and not counts else None
    sizes = [b // a for a, b in zip(counts, [*counts[1:], leaves], strict=True) if a]
    return tuple(sizes) if math.prod(sizes) == leaves else None
