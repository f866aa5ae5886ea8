"""Texts to ask a server about: ordinary requests of several kinds, drawn from a seed.

No text is fixed, so a server cannot recognise an audit by its words. The same seed gives the same texts, so an audit
can be repeated. Texts end in the middle of a thought, where a model has something to predict.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

_PLACES = ("Lisbon", "Norway", "the Alps", "Kyoto", "Chicago", "the Baltic Sea", "Nairobi", "Peru", "Vienna", "Quebec")
_THINGS = ("a bridge", "bread", "a violin", "rain", "a library", "coffee", "a bicycle", "glass", "a garden", "salt")
_PEOPLE = ("the engineer", "my neighbour", "a young doctor", "the teacher", "an old sailor", "the committee", "Maria")
_DONE = ("measured", "repaired", "forgot about", "described", "paid for", "drew", "asked about", "looked for")
_WHEN = ("In the spring", "After the war", "Last Tuesday", "Around noon", "For many years", "During the storm")
_WHY = ("because the price had risen", "since nobody else was there", "although it was late", "as the rules require")
_NAMES = ("total", "count", "price", "index", "buffer", "limit", "weight", "offset")
_ASKS = (
    "Write a short note about {thing} in {place}.", "What should I know about {thing}?",
    "Explain to a child how {thing} is made.", "Give me three facts about {place}.",
    "Is it a good idea to visit {place} in winter?", "Summarise the history of {place} in two sentences.",
)  # fmt: skip


def _prose(draw: random.Random) -> str:
    lines = []
    for _ in range(draw.randint(2, 3)):
        lines.append(
            f"{draw.choice(_WHEN)}, {draw.choice(_PEOPLE)} {draw.choice(_DONE)} {draw.choice(_THINGS)} near "
            f"{draw.choice(_PLACES)} {draw.choice(_WHY)}."
        )
    return " ".join(lines) + f" {draw.choice(_WHEN)}, {draw.choice(_PEOPLE)}"


def _facts(draw: random.Random) -> str:
    first, second = draw.sample(_PLACES, 2)
    return f"{first} is known for {draw.choice(_THINGS)}, and {second} is known for {draw.choice(_THINGS)}. People in"


def _code(draw: random.Random) -> str:
    a, b, c = draw.sample(_NAMES, 3)
    return (
        f"def update_{a}({a}, {b}):\n    {c} = {draw.randint(2, 99)}\n    for i in range({b}):\n"
        f"        if {a} > {c}:\n            {a} -="
    )


def _table(draw: random.Random) -> str:
    rows = [f"| {draw.choice(_PLACES)} | {draw.randint(10, 900)} | {draw.randint(1, 60)} % |" for _ in range(3)]
    return "| place | visitors | share |\n|---|---|---|\n" + "\n".join(rows) + "\n| "


def _letter(draw: random.Random) -> str:
    return (
        f"Dear {draw.choice(_NAMES)} team,\n\nthank you for your message of {draw.randint(2, 28)} May about "
        f"{draw.choice(_THINGS)}. {draw.choice(_PEOPLE).capitalize()} {draw.choice(_DONE)} it in "
        f"{draw.choice(_PLACES)}, {draw.choice(_WHY)}. We would like to"
    )


KINDS: Sequence[Callable[[random.Random], str]] = (_prose, _facts, _code, _letter, _table)


def texts(seed: int, n: int) -> list[str]:
    """`n` beginnings of texts, the kinds in turn."""
    draw = random.Random(f"texts {seed}")
    return [KINDS[i % len(KINDS)](draw) for i in range(n)]


def questions(seed: int, n: int) -> list[str]:
    """`n` messages of a user."""
    draw = random.Random(f"questions {seed}")
    return [draw.choice(_ASKS).format(thing=draw.choice(_THINGS), place=draw.choice(_PLACES)) for _ in range(n)]
