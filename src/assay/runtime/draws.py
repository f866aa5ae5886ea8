"""Random numbers as a function of (seed, position): Philox4x64-10, counter-based.

    key = (seed, 0), counter = (position, 0, 0, 0): four words of 64 bits for each token of a sequence

`position` is the token's index in the whole sequence, prompt included. There is no state: a
stream that was interrupted continues with the same draws, in another process or on another machine. The
constants and rounds are those of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); NumPy's
`Philox` gives the same words.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

_WORD = (1 << 64) - 1
_MULTIPLY = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_ROUNDS = 10
SEEDS = 1 << 64  # a seed is one word of 64 bits


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """The four random words of a counter."""
    k0, k1 = key
    a, b, c, d = counter
    for _ in range(_ROUNDS):
        x, y = a * _MULTIPLY[0], c * _MULTIPLY[1]
        a, b, c, d = (y >> 64) ^ b ^ k0, y & _WORD, (x >> 64) ^ d ^ k1, x & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return a, b, c, d


def fresh_seed() -> int:
    """A random seed."""
    return secrets.randbits(64)


def seed_of(seed: int | None, index: int) -> int | None:
    """The seed of answer `index` of a request for several: each answer is the one that its seed gives alone."""
    return None if seed is None else (seed + index) % SEEDS


class Draws:
    """At most four random numbers in [0, 1) for one token, computed on the first call."""

    def __init__(self, seed: int, position: int) -> None:
        self._seed, self._position = seed, position
        self._words: Iterator[int] | None = None

    def random(self) -> float:
        if self._words is None:
            self._words = iter(philox((self._seed, 0), (self._position, 0, 0, 0)))
        return (next(self._words) >> 11) / (1 << 53)
