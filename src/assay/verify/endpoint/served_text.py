"""Evidence: texts that a server continued, and how far a prediction is from what it said at every place.

A *place* is a point in a sequence of known ids where the server showed a distribution, a token that it chose, or both.
The loss of a prediction at a place is

    with log-probabilities   the mean squared difference over the tokens that the server listed, in nats squared
    with tokens alone        the squared gap between the prediction's best token and the token that was chosen

A *block* is a few neighbouring places. Errors of neighbours are alike, so a block is one observation, not several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
BLOCK = 4  # places
MOST = 6.0  # nats: a larger difference counts as this one, so that one token does not outweigh a text
UNLIKELY = -14.0  # log-probabilities below are left out: float16 and rounding dominate them


@dataclass(frozen=True)
class Place:
    """After `row` tokens were read: the server's log-probabilities by id, and the token it chose."""

    row: int
    scores: Mapping[int, float]
    token: int | None


@dataclass(frozen=True)
class Spelling:
    """An answer of which the server showed the text alone: its ids are a guess."""

    said: str


@dataclass(frozen=True)
class ServedText:
    """A sequence of ids as the auditor believes they were fed, and the places where the server showed something."""

    ids: tuple[int, ...]
    n_prompt: int
    places: tuple[Place, ...]
    chat: bool = False
    label: str = ""
    spelling: Spelling | None = None

    @property
    def first_row(self) -> int:
        return self.places[0].row if self.places else len(self.ids)


def spelled(ids: Sequence[int], n_prompt: int, chat: bool, label: str, spelling: Spelling) -> ServedText:
    """A text whose answer is known by its tokens alone."""
    places = tuple(Place(row, {}, ids[row]) for row in range(n_prompt, len(ids)))
    return ServedText(tuple(ids), n_prompt, places, chat, label, spelling)


def log_softmax_rows(logits: Array) -> Array:
    """ln p of every token, in float64."""
    z = logits.astype(np.float64)
    z -= z.max(axis=-1, keepdims=True)
    z -= np.log(np.exp(z).sum(axis=-1, keepdims=True))
    return np.asarray(z)


def place_losses(text: ServedText, rows: Array) -> list[float]:
    """The loss at every place, of predicted log-probabilities (one row a place); NaN where a place shows nothing."""
    found = []
    for place, row in zip(text.places, rows, strict=True):
        ids = [i for i, value in place.scores.items() if value > UNLIKELY and i < len(row)]
        if len(ids) > 1:
            seen = np.array([place.scores[i] for i in ids])
            gap = np.minimum(np.abs(row[ids] - seen), MOST)
            found.append(float(np.mean(gap**2)) if np.isfinite(gap).all() else MOST**2)
        elif place.token is not None and place.token < len(row):
            gap_of_best = float(row.max() - row[place.token])
            found.append(min(gap_of_best, MOST) ** 2 if np.isfinite(gap_of_best) else MOST**2)
        else:
            found.append(float("nan"))
    return found


def row_gaps(text: ServedText, rows: Array, others: Array) -> list[float]:
    """The mean squared difference of two predictions at every place, over the tokens that the server listed.

    Without a list it is taken over the 5 best tokens of the first prediction.
    """
    found = []
    for place, a, b in zip(text.places, rows, others, strict=True):
        ids = [i for i, value in place.scores.items() if value > UNLIKELY and i < len(a)]
        chosen = ids if len(ids) > 1 else np.argsort(-a)[:5].tolist()
        gap = np.minimum(np.abs(a[chosen] - b[chosen]), MOST)
        found.append(float(np.mean(gap**2)) if np.isfinite(gap).all() else float("nan"))
    return found


def in_blocks(values: Sequence[float], size: int = BLOCK) -> list[float]:
    """The means of blocks of neighbours; NaN is left out, and a block of nothing else is NaN."""
    found = []
    for start in range(0, len(values), size):
        block = np.asarray(values[start : start + size], float)
        known = block[~np.isnan(block)]
        found.append(float(known.mean()) if len(known) else float("nan"))
    return found


def differences(first: ServedText, second: ServedText) -> list[float]:
    """Differences of log-probabilities of two equal requests, as long as they continue alike."""
    found: list[float] = []
    for a, b in zip(first.places, second.places, strict=False):
        found += [a.scores[i] - b.scores[i] for i in a.scores if i in b.scores]
        if a.token != b.token:
            break
    return found
