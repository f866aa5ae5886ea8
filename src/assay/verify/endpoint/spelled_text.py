"""Answers of which only the text is known: which tokens were they?

A text can be cut into tokens in several ways, and a model does not always choose the tokenizer's way. A greedy server
of the claim generates the claim's best token at every place. So where the text goes on with the claim's best token,
that token is taken, and the rest of the text is cut again. This helps the claim and no alternative, so it can hide a
difference and never makes one up.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from assay.text import Tokenizer
from assay.text.vocab import SENTENCEPIECE
from assay.verify.endpoint.claimed_model import ClaimedModel
from assay.verify.endpoint.prompt_ids import without_space
from assay.verify.endpoint.served_text import Place, ServedText, spelled

MOST_PASSES = 12  # each computes the text once more


def respelled(text: ServedText, claimed: ClaimedModel, tokenizer: Tokenizer) -> ServedText | None:
    """The text with the ids that the claim prefers; None if the server counts another number of tokens."""
    if text.spelling is None:
        return text
    said, found = text.spelling.said.encode(), text
    for _ in range(MOST_PASSES):
        ids = _with_a_better_token(found, said, claimed, tokenizer)
        if ids is None:
            break
        found = spelled(ids, text.n_prompt, text.chat, text.label, text.spelling)
    if text.spelling.cut:
        found = _trimmed(found, said, claimed, tokenizer)
    counts = text.spelling.counts
    return found if not counts or len(found.places) in counts else None


def _with_a_better_token(
    text: ServedText, said: bytes, claimed: ClaimedModel, tokenizer: Tokenizer
) -> tuple[int, ...] | None:
    """The ids with the first token replaced that is not the claim's best, though the text goes on with that one."""
    left, bare = said, not said[:1].isspace()  # servers cut white space off an answer's beginning
    for i, (place, row) in enumerate(zip(text.places, claimed.rows(text), strict=True)):
        assert place.token is not None
        best = int(np.argmax(row))
        own, better = tokenizer.piece(place.token), tokenizer.piece(best)
        if i == 0 and bare:
            own, better = own.lstrip(), better.lstrip()
        if best != place.token and better and left.startswith(better):
            return (*text.ids[: place.row], best, *_cut(tokenizer, left[len(better) :].decode("utf-8", "replace")))
        left = left[len(own) :]
    return None


def _trimmed(text: ServedText, said: bytes, claimed: ClaimedModel, tokenizer: Tokenizer) -> ServedText:
    """The text without its last token, and without all tokens from which on the claim's best may be a longer one.

    What follows the text is unknown, so a token that begins in it may end behind it.
    """
    left, kept = said, list[Place]()
    for place, row in zip(text.places[:-1], claimed.rows(text)[:-1], strict=True):
        assert place.token is not None
        if tokenizer.piece(int(np.argmax(row))).startswith(left):
            break
        kept.append(place)
        left = left[len(tokenizer.piece(place.token)) :]
    return replace(text, places=tuple(kept), ids=text.ids[: text.n_prompt + len(kept)])


def _cut(tokenizer: Tokenizer, rest: str) -> list[int]:
    """The ids of a text in the middle of another."""
    if not rest:
        return []
    if tokenizer.vocab.model == SENTENCEPIECE:
        return without_space(tokenizer, rest)
    return list(tokenizer.encode(rest, add_special=False, parse_special=False))
