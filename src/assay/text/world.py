"""`rwkv`: RWKV's World vocabulary, which covers the bytes of a text by the longest tokens from the left.

A token is a sequence of bytes. The file writes it as a text with Python's escapes: `\\n`, `\\x80`, `\\\\`.
"""

from __future__ import annotations

import re

from assay.errors import AssayError
from assay.text.vocab import TOKENS, TokenKind, Vocab

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r"}


def unescaped(text: str) -> bytes:
    """The bytes of a token: escapes are one byte each, other characters are UTF-8."""
    found, at = b"", 0
    for escape in _ESCAPE.finditer(text):
        found += text[at : escape.start()].encode()
        body = escape[1]
        found += bytes([int(body[1:], 16)]) if len(body) == 3 else _LETTERS.get(body, body).encode()
        at = escape.end()
    return found + text[at:].encode()


class World:
    """The longest token at every place. Tokens are found by their first two bytes, then by length."""

    def __init__(self, vocab: Vocab) -> None:
        self._ids = {unescaped(text): i for i, text in enumerate(vocab.tokens) if vocab.kinds[i] & TokenKind.NORMAL}
        lengths: dict[bytes, set[int]] = {}
        for token in self._ids:
            lengths.setdefault(token[:2], set()).add(len(token))
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items() if start}
        self._unknown = vocab.special.get("unk")

    def encode(self, text: str) -> list[int]:
        return self.encode_bytes(text.encode())

    def encode_bytes(self, data: bytes) -> list[int]:
        ids, at = [], 0
        while at < len(data):
            token, at = self._longest(data, at)
            ids.append(token)
        return ids

    def _longest(self, data: bytes, at: int) -> tuple[int, int]:
        """The longest token at a place, and where it ends. A byte that no token begins with is unknown."""
        for start in (data[at : at + 2], data[at : at + 1]):
            for length in self._lengths.get(start, ()):
                found = self._ids.get(data[at : at + length])
                if found is not None and at + length <= len(data):
                    return found, at + length
        if self._unknown is None:
            raise AssayError(
                f"{TOKENS}: no token begins with the byte {data[at]:#04x}, and there is no unknown token; "
                "this vocabulary cannot encode the text"
            )
        return self._unknown, at + 1
