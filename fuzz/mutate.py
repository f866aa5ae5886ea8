"""Changes to bytes, texts and JSON values that keep most of their structure."""

from __future__ import annotations

import random
import struct
from typing import Any

NUMBERS = (
    0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 128, 255, 256, 1023, 4096, 65535, 65536, 2**20, 2**24,
    2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
WORDS = (
    "", " ", "\0", "\x1b[2J", "\x07", "\r", "\n", "a", "A" * 300, "é", "日", "\ud800", "\u202e", "../x", "/etc",
    "¹", "٣", "NaN", "-0", "1e999", "null", "{}", "[]", "%s", "{{", "<|end|>", "</s>", "tokens", "l_out-0", "🙂",
    "0x41", "'", '"',
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.5, -1.0, 1e-45, 1e38, 1e308, float("inf"), float("-inf"), float("nan"))

MOST_LEAVES = 20_000  # of a JSON value, after its lists were repeated


def number(rng: random.Random) -> int:
    value = rng.choice(NUMBERS) + rng.choice((-1, 0, 0, 0, 1))
    return -value if rng.random() < 0.1 else value


def data(rng: random.Random, raw: bytes) -> bytes:
    """A few changes: bits, whole numbers of any width, runs cut out, doubled, filled or swapped."""
    out = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        if not out:
            return bytes(out)
        at = rng.randrange(len(out))
        span = rng.choice((1, 2, 4, 8, 32, 200))
        match rng.randrange(7):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                width = rng.choice("BHIQ")
                size = struct.calcsize(width)
                packed = struct.pack("<" + width, number(rng) % 256**size)
                out[at : at + size] = packed
            case 2:
                del out[at : at + span]
            case 3:
                out[at:at] = out[at : at + span]
            case 4:
                out[at : at + span] = bytes([rng.choice((0, 255, 32, 0x7B))]) * span
            case 5:
                other = rng.randrange(len(out))
                out[at : at + span], out[other : other + span] = out[other : other + span], out[at : at + span]
            case _:
                out = out[: at if rng.random() < 0.3 else len(out)]
    return bytes(out)


def text(rng: random.Random, source: str) -> str:
    """A few changes: words put in, runs cut out, repeated or moved."""
    out = source
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        span = rng.choice((1, 3, 10, 60))
        match rng.randrange(5):
            case 0:
                out = out[:at] + rng.choice(WORDS) + out[at:]
            case 1:
                out = out[:at] + out[at + span :]
            case 2:
                out = out[:at] + out[at : at + span] * rng.choice((2, 3, 50)) + out[at + span :]
            case 3:
                out = out[:at] + str(rng.choice((number(rng), rng.choice(FLOATS)))) + out[at:]
            case _:
                out = out[:at] + rng.choice("[](){}<>,;:=|\"'`#*-.…\\") * rng.choice((1, 2, 30)) + out[at:]
    return out


def leaf(rng: random.Random) -> Any:
    kind = rng.randrange(7)
    if kind == 0:
        return number(rng)
    if kind == 1:
        return rng.choice(FLOATS)
    if kind == 2:
        return rng.choice(WORDS)
    if kind == 3:
        return rng.choice((None, True, False))
    if kind == 4:
        return [leaf(rng) for _ in range(rng.randrange(4))] if rng.random() < 0.5 else []
    if kind == 5:
        return {rng.choice(WORDS): rng.choice(NUMBERS)}
    return 10 ** rng.choice((9, 20, 400))


def _leaves(source: Any) -> int:
    inner = source.values() if isinstance(source, dict) else source if isinstance(source, list) else None
    return 1 if inner is None else 1 + sum(map(_leaves, inner))


def value(rng: random.Random, source: Any, share: float = 0.15) -> Any:
    """A JSON value with some of its parts replaced, dropped or added."""
    if rng.random() < share / 3:
        return leaf(rng)
    if isinstance(source, dict):
        out = {k: value(rng, v, share) for k, v in source.items() if rng.random() > share / 4}
        if rng.random() < share / 3:
            out[rng.choice(WORDS)] = leaf(rng)
        return out
    if isinstance(source, list):
        items = [value(rng, item, share) for item in source if rng.random() > share / 4]
        times = rng.choice((1, 1, 1, 1, 1, 2, 40))  # nested lists are repeated at every level, so their size is bounded
        return items * times if _leaves(items) * times <= MOST_LEAVES else items
    if isinstance(source, str) and rng.random() < share:
        return text(rng, source)
    return leaf(rng) if rng.random() < share else source
