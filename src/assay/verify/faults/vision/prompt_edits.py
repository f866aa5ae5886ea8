"""Mistakes of the prompt: the rows of a picture among tokens, their positions, their mask, their further parts.

A mistake is a record of choices (`PromptHabits`); `verify/pictures/prompt_trials.py` runs the language model with them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptHabits:
    """The choices by which an engine puts rows into a prompt. An empty one is the right choice."""

    scaled: bool = False  # rows are multiplied by the root of the width, as Gemma's tokens are
    other_mask: bool = False  # rows see each other where they must not, or back
    no_markers: bool = False
    advance: str = ""  # positions behind a picture: "tokens", "one"
    decoding: bool = False  # the prompt is right, and decode steps stand at the number of rows and tokens before them
    masked: bool = False  # those positions also decide what a token sees
    one_number: bool = False  # a position a row, for M-RoPE
    exchanged: bool = False  # y and x
    other_sections: bool = False  # contiguous for interleaved, or back
    late: bool = False  # deepstack's parts one layer later


RIGHT_PROMPT = PromptHabits()
PROMPT_PLANTS: dict[str, tuple[tuple[str, PromptHabits], ...]] = {
    "vis-lm-scale": (("rows are multiplied by √e", PromptHabits(scaled=True)),),
    "vis-lm-causal": (("the mask of image rows is the other way round", PromptHabits(other_mask=True)),),
    "vis-lm-markers": (("no tokens around the rows", PromptHabits(no_markers=True)),),
    "vis-lm-advance": (
        ("text goes on after as many positions as rows", PromptHabits(advance="tokens")),
        ("the answer goes on after as many positions as rows, the prompt is right", PromptHabits(decoding=True)),
    ),
    "vis-lm-advance-one": (
        ("text goes on after one position", PromptHabits(advance="one")),
        ("text goes on after one position, and does not see later rows", PromptHabits(advance="one", masked=True)),
    ),
    "vis-lm-positions-1d": (
        ("a position a row", PromptHabits(one_number=True, advance="tokens")),
        ("a position a row, text behind them right", PromptHabits(one_number=True)),
    ),
    "vis-lm-yx": (("y and x exchanged", PromptHabits(exchanged=True)),),
    "vis-lm-sections": (("sections the other way", PromptHabits(other_sections=True)),),
    "vis-lm-deepstack-late": (("parts one layer later", PromptHabits(late=True)),),
}
