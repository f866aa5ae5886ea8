"""Does a request read what the request before it left in the server's cache?

A text is asked for right after another one of which a single token was generated, so the ids that a cache may hold are
known. Equal requests may differ by honest noise. So nothing is concluded from a difference: the answers must be those
that the other request's keys predict.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from assay.verify.endpoint.alternatives import Alternative
from assay.verify.endpoint.asking import Interviewer
from assay.verify.endpoint.claimed_model import ClaimedModel
from assay.verify.endpoint.served_text import ServedText, place_losses

PAIRS = 4  # each gives a block at least, and a name needs that many blocks
WORDS = "a request reads the keys of the request before it"


def ask_in_pairs(
    interviewer: Interviewer, claimed: ClaimedModel, texts: Sequence[str], n: int
) -> tuple[list[ServedText], Alternative]:
    """Every second text, asked for after the text before it; and the alternative that the first one's keys are read."""
    served: list[ServedText] = []
    prompts: dict[tuple[int, ...], tuple[int, ...]] = {}
    for other, text in zip(texts[0 : 2 * PAIRS : 2], texts[1 : 2 * PAIRS : 2], strict=False):
        held = interviewer.left_by(other)
        found = interviewer.text(text, n)
        if not found.places:
            continue
        served.append(found)
        prompts[found.ids[: found.n_prompt]] = min(
            ((*ids, *found.ids[: found.n_prompt]) for ids in held), key=lambda ids: _loss(claimed, found, ids)
        )
    return served, Alternative("left over", WORDS, "requests", prompts=prompts, fault="kv-stale-request")


def _loss(claimed: ClaimedModel, text: ServedText, prompt: tuple[int, ...]) -> float:
    """The mean loss at the text's places if `prompt` was read in the place of the text's own."""
    shift = len(prompt) - text.n_prompt
    ids = (*prompt, *text.ids[text.n_prompt :])
    rows = claimed.at(ids, [place.row + shift for place in text.places])
    return float(np.nanmean(place_losses(text, rows)))
