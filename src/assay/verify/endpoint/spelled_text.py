"""Answers of which only the text is known: which tokens were they?

A text can be cut into tokens in several ways, and a model does not always choose the tokenizer's way. A greedy server
of the claim generates the claim's best token at every place, or one that its rounding makes equally likely. So where
the text goes on with the claim's best token, that token is taken, and the rest of the text is cut again. The first
place where it does not is evidence: the server's token there begins the rest of the text, and the likeliest such token
is taken. All places behind it are left out, because their tokens begin anywhere. So are all places behind one
where another token that fits the text is about as likely as the best one. This helps the claim and no alternative, so
it can hide a difference and never makes one up.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from functools import lru_cache

import numpy as np

from assay.text import Tokenizer
from assay.text.vocab import SENTENCEPIECE
from assay.verify.endpoint.claimed_model import ClaimedModel
from assay.verify.endpoint.own_draws import Repeat
from assay.verify.endpoint.prompt_ids import without_space
from assay.verify.endpoint.served_text import Place, ServedText, spelled

MOST_PASSES = 12  # each computes the text once more
NEAR = 2.0  # nats: rounding may choose any token that is less likely than the best by no more than this


def respelled(text: ServedText, claimed: ClaimedModel, tokenizer: Tokenizer) -> ServedText:
    """The text with the ids that the claim prefers, as far as they are certain."""
    if text.spelling is None:
        return text
    said, found = text.spelling.said.encode(), text
    for _ in range(MOST_PASSES):
        ids = _with_a_better_token(found, said, claimed, tokenizer)
        if ids is None:
            break
        found = spelled(ids, text.n_prompt, text.chat, text.label, text.spelling)
    return _certain(found, said, claimed, tokenizer)


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


def _certain(text: ServedText, said: bytes, claimed: ClaimedModel, tokenizer: Tokenizer) -> ServedText:
    """The text up to the first place where its tokens are not certain.

    The continuation of the text is unknown, so a token that begins in the text may end behind it.
    """
    left, kept = said, list[Place]()
    for i, (place, row) in enumerate(zip(text.places, claimed.rows(text), strict=True)):
        best = int(np.argmax(row))
        piece = tokenizer.piece(best)
        if i == 0 and not said[:1].isspace():
            piece = piece.lstrip()
        if not piece or not left:
            break
        fitting = _fitting(tokenizer, left, bare=i == 0 and not said[:1].isspace())
        if not fitting:
            break
        if len(piece) > len(left) and piece.startswith(left):
            break
        if not left.startswith(piece):
            kept.append(replace(place, token=max(fitting, key=lambda token: float(row[token]))))
            break
        if place.token != best:
            break
        kept.append(place)
        if any(token != best and row[best] - row[token] < NEAR for token in fitting):
            break
        left = left[len(piece) :]
    ids = (*text.ids[: text.n_prompt], *(place.token for place in kept if place.token is not None))
    return replace(text, places=tuple(kept), ids=ids)


def spelled_repeats(first: ServedText, second: ServedText, claimed: ClaimedModel, tokenizer: Tokenizer) -> list[Repeat]:
    """Of a text that two seeds continued, known by their texts alone: does the second go on as the first does?

    The first is cut into the tokens that are likeliest for the claim. The chance of a token is that of all tokens with
    which the text could go on.
    """
    assert first.spelling is not None
    said, other = (text.spelling.said.encode() for text in (first, second) if text.spelling is not None)
    alike = next((i for i, (a, b) in enumerate(zip(said, other, strict=False)) if a != b), min(len(said), len(other)))
    text, found = first, list[Repeat]()
    for _ in range(MOST_PASSES):
        found, ids = _repeats(text, said, alike, claimed, tokenizer)
        if ids is None:
            break
        text = spelled(ids, first.n_prompt, first.chat, first.label, first.spelling)
    return found


def _repeats(
    text: ServedText, said: bytes, alike: int, claimed: ClaimedModel, tokenizer: Tokenizer
) -> tuple[list[Repeat], tuple[int, ...] | None]:
    """The repeats up to a token that is not the likeliest one, and the ids with the likeliest in its place."""
    at, found = 0, list[Repeat]()
    for i, (place, row) in enumerate(zip(text.places, claimed.rows(text, keep=False), strict=True)):
        left, bare = said[at:], i == 0 and not said[:1].isspace()
        fitting = _fitting(tokenizer, left, bare) if left else []
        seen = [token for token in fitting if not bare or tokenizer.piece(token).strip()]
        if not seen:
            break
        token = max(seen, key=lambda token: float(row[token]))
        piece = tokenizer.piece(token).lstrip() if bare else tokenizer.piece(token)
        if len(piece) > len(left):
            break
        if token != place.token:
            rest = left[len(piece) :].decode("utf-8", "replace")
            return found, (*text.ids[: place.row], token, *_cut(tokenizer, rest))
        at += len(piece)
        chance = float(np.log(np.exp(row[fitting].astype(np.float64)).sum()))
        found.append(Repeat(at <= alike, chance, float(row.max() - row[token])))
        if at > alike:
            break
    return found, None


def _fitting(tokenizer: Tokenizer, left: bytes, bare: bool) -> list[int]:
    """The tokens with which a text may begin; `bare`: white space in front of it was cut off."""
    found = _Pieces.of(tokenizer).fitting(left)
    return found + _Pieces.of(tokenizer).fitting(b" " + left) if bare else found


class _Pieces:
    """The texts of a vocabulary's tokens, sorted."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._sorted = sorted((tokenizer.piece(token), token) for token in range(tokenizer.n_vocab))
        self._tokens: dict[bytes, list[int]] = {}
        for piece, token in self._sorted:
            self._tokens.setdefault(piece, []).append(token)
        self._longest = max(map(len, self._tokens))

    @staticmethod
    @lru_cache(maxsize=2)
    def of(tokenizer: Tokenizer) -> _Pieces:
        return _Pieces(tokenizer)

    def fitting(self, left: bytes) -> list[int]:
        """Tokens that the text begins with, and those that begin with the whole text."""
        ends = range(1, min(len(left), self._longest) + 1)
        found = [token for end in ends for token in self._tokens.get(left[:end], ())]
        at = bisect_left(self._sorted, (left + b"\0", 0))
        while at < len(self._sorted) and self._sorted[at][0].startswith(left):
            found.append(self._sorted[at][1])
            at += 1
        return found


def _cut(tokenizer: Tokenizer, rest: str) -> list[int]:
    """The ids of a text in the middle of another."""
    if not rest:
        return []
    if tokenizer.vocab.model == SENTENCEPIECE:
        return without_space(tokenizer, rest)
    return list(tokenizer.encode(rest, add_special=False, parse_special=False))
