"""`bert`: WordPiece, which covers each word by the longest tokens from the left.

The text is normalised character by character (accents and control characters removed, lower case). It is cut at white
space and around punctuation. Each word, with U+2581 in front, is covered by tokens, the longest first. A word that
cannot be covered becomes one unknown token.

The ids are those of llama.cpp. It differs from BERT's own tokenizer in two cases. A decomposed character keeps only its
first part: the whole letter in Latin, but only the first consonant of a Korean syllable. And a word of more than 100
characters is cut like any other.
"""

from __future__ import annotations

import re
import unicodedata

from assay.errors import AssayError
from assay.text.pair_merging import SPACE, Remembered, decode_leniently
from assay.text.pretokenize import category, is_white
from assay.text.vocab import TOKENS, Vocab

MAX_LENGTH = 256  # longest token in characters: keeps the time linear in the text
_IDEOGRAPHS = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class _Normalise(dict[int, str]):
    """A `str.translate` table that is filled on demand: normalised characters, spaces for white space, and spaces
    around punctuation."""

    def __init__(self, *, lowercase: bool, strip_accents: bool) -> None:
        self._lowercase, self._strip_accents = lowercase, strip_accents

    def __missing__(self, code: int) -> str:
        result = self[code] = self._normalised(code)
        return result

    def _normalised(self, code: int) -> str:
        character = unicodedata.normalize("NFD", chr(code))[0] if self._strip_accents else chr(code)
        if is_white(character):
            return " "
        kind = category(ord(character))
        if kind == "C" or character == "\ufffd" or (kind == "M" and self._strip_accents):
            return ""
        shown = character.lower()[0] if self._lowercase else character
        alone = kind == "P" or (kind == "S" and character.isascii()) or _is_ideograph(ord(character))
        return f" {shown} " if alone else shown


def _is_ideograph(code: int) -> bool:
    return any(first <= code <= last for first, last in _IDEOGRAPHS)


def readable(text: str) -> str:
    """Words joined with the usual spaces, by llama.cpp's rules, without a leading space."""
    text = re.sub(r" ([?!.,])", r"\1", text.removeprefix(" "))
    return re.sub(r" ('(?:s|m|re|ve))", r"\1", text.replace(" ' ", "'"))


class WordPiece:
    """The ids of words, cached."""

    def __init__(self, vocab: Vocab) -> None:
        longest = max(map(len, vocab.tokens))
        if longest > MAX_LENGTH:
            raise AssayError(
                f"{TOKENS}: a token is too long for WordPiece (found {longest} characters, at most {MAX_LENGTH})"
            )
        self._ids = vocab.ids
        self._lengths = sorted({len(text) for text in vocab.tokens}, reverse=True)
        self._unknown = vocab.special.get("unk")
        self._table = _Normalise(lowercase=vocab.lowercase, strip_accents=vocab.strip_accents)
        self._words = Remembered(self._word)

    def encode(self, text: str) -> list[int]:
        return self._words.of([word for word in text.translate(self._table).split(" ") if word])

    def encode_bytes(self, data: bytes) -> list[int]:
        return self.encode(decode_leniently(data))

    def _word(self, word: str) -> tuple[int, ...]:
        text, at, ids = SPACE + word, 0, []
        while at < len(text):
            for length in self._lengths:
                token = self._ids.get(text[at : at + length])
                if token is not None and at + length <= len(text):
                    ids.append(token)
                    at += length
                    break
            else:
                return (self._unknown_id(),)
        return tuple(ids)

    def _unknown_id(self) -> int:
        if self._unknown is None:
            raise AssayError(
                f"{TOKENS}: the text has a word that tokens cannot cover, and there is no unknown token; "
                "this vocabulary cannot encode the text"
            )
        return self._unknown
