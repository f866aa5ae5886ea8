"""Split special tokens out of a text, before any other tokenization.

The longest token is searched first, over the whole text, then the next in the remaining text. This is llama.cpp's
order. It differs from leftmost-first matching if two tokens overlap.

A vocabulary has thousands of special tokens, and an untrusted text may contain all of them. So the text is not searched
once per token. One pass finds the positions at which a token can start and looks up the matches; then the longest
matches are placed first. The time is linear in the text and the matches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from assay.text.vocab import TokenKind, Vocab

Fragment = str | int
_WHITE = " \t\n\v\f\r"
_PREFIX = 3


class SpecialTokens:
    """Finds the special tokens of a vocabulary in texts."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab

    @cached_property
    def _ranks(self) -> dict[str, tuple[int, int, int]]:
        """Rank, id and kind of each token. The longest in bytes come first; of equals, the lowest id."""
        kinds = np.frombuffer(self._vocab.kinds, np.uint8)
        found = np.flatnonzero(kinds & TokenKind.SPECIAL).tolist()
        rows = sorted(((self._vocab.tokens[i], i) for i in found), key=lambda row: -len(row[0].encode()))
        ranks: dict[str, tuple[int, int, int]] = {}
        for rank, (token, token_id) in enumerate(rows):
            if token:
                ranks.setdefault(token, (rank, token_id, self._vocab.kinds[token_id]))
        return ranks

    @cached_property
    def _lengths(self) -> dict[str, list[int]]:
        """The lengths of the tokens that start with these characters."""
        lengths: dict[str, set[int]] = {}
        for token in self._ranks:
            lengths.setdefault(token[:_PREFIX], set()).add(len(token))
        return {prefix: sorted(found) for prefix, found in lengths.items()}

    @cached_property
    def _starts(self) -> re.Pattern[str]:
        """The first characters of tokens."""
        return re.compile(f"[{re.escape(''.join(sorted({prefix[0] for prefix in self._lengths})))}]")

    def split(self, text: str, parse_special: bool) -> list[Fragment]:
        """Texts and token ids in order. Control and unknown tokens stay text unless `parse_special`."""
        if not text or not any(prefix in text for prefix in self._lengths):
            return [text] if text else []
        taken = bytearray(len(text))
        places: dict[tuple[int, int, int], list[tuple[int, str]]] = {}  # matches by rank, each in text order
        for rank, at, token in self._occurrences(text, parse_special):
            places.setdefault(rank, []).append((at, token))
        cuts = [
            _mark_match(text, taken, at, len(token), *rank[1:])
            for rank in sorted(places)
            for at, token in places[rank]
            if taken.find(1, at, at + len(token)) < 0
        ]
        fragments: list[Fragment] = []
        start = 0
        for before, after, token_id in sorted(cuts):
            if before > start:
                fragments.append(text[start:before])
            fragments.append(token_id)
            start = after
        if start < len(text):
            fragments.append(text[start:])
        return fragments

    def _occurrences(self, text: str, parse_special: bool) -> Iterator[tuple[tuple[int, int, int], int, str]]:
        """Every token at every position, including overlaps."""
        for match in self._starts.finditer(text):
            at = match.start()
            for size in range(1, _PREFIX + 1):
                for length in self._lengths.get(text[at : at + size], ()):
                    token = text[at : at + length]
                    rank = self._ranks.get(token)
                    if rank is not None and len(token) == length and (parse_special or not rank[2] & TokenKind.HIDDEN):
                        yield rank, at, token


def _mark_match(text: str, taken: bytearray, at: int, length: int, token_id: int, kind: int) -> tuple[int, int, int]:
    """Mark the characters of a match, and the white space that its kind strips. Returns start, end and id."""
    before, after = at, at + length
    while kind & TokenKind.LSTRIP and before and text[before - 1] in _WHITE and not taken[before - 1]:
        before -= 1
    while kind & TokenKind.RSTRIP and after < len(text) and text[after] in _WHITE and not taken[after]:
        after += 1
    taken[before:after] = b"\1" * (after - before)
    return before, after, token_id
