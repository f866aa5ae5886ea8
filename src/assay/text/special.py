"""Cutting special tokens out of a text before anything else happens to it.

The longest token goes first, over the whole text; then the next, over what is left between the finds. That is
llama.cpp's order, and it differs from the first match from the left where two tokens overlap.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from assay.text.vocab import Kind, Vocab

Fragment = str | int
_WHITE = " \t\n\v\f\r"
_PREFIX = 3


class SpecialTokens:
    """The special tokens of a vocabulary, ready to be found."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab

    @cached_property
    def _by_length(self) -> list[tuple[str, int, int]]:
        kinds = np.frombuffer(self._vocab.kinds, np.uint8)
        found = np.flatnonzero(kinds & Kind.SPECIAL).tolist()
        rows = [(self._vocab.tokens[i], i, self._vocab.kinds[i]) for i in found]
        return sorted(rows, key=lambda row: -len(row[0].encode()))

    @cached_property
    def _prefixes(self) -> frozenset[str]:
        return frozenset(text[:_PREFIX] for text, _, _ in self._by_length)

    def split(self, text: str, parse_special: bool) -> list[Fragment]:
        """Texts and token ids in order. Control and unknown tokens stay text unless `parse_special`."""
        if not text:
            return []
        near = {prefix for prefix in self._prefixes if prefix in text}
        fragments: list[Fragment] = [text]
        for token, token_id, kind in self._by_length if near else ():
            if token[:_PREFIX] not in near or (not parse_special and kind & Kind.HIDDEN) or token not in text:
                continue
            parts: list[Fragment] = []
            for fragment in fragments:
                if isinstance(fragment, str) and token in fragment:
                    parts.extend(_cut(fragment, token, token_id, kind))
                else:
                    parts.append(fragment)
            fragments = parts
        return fragments


def _cut(text: str, token: str, token_id: int, kind: int) -> list[Fragment]:
    out: list[Fragment] = []
    while (at := text.find(token)) >= 0:
        left, text = text[:at], text[at + len(token) :]
        if kind & Kind.LSTRIP:
            left = left.rstrip(_WHITE)
        if kind & Kind.RSTRIP:
            text = text.lstrip(_WHITE)
        if left:
            out.append(left)
        out.append(token_id)
    if text:
        out.append(text)
    return out
