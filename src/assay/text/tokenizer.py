"""The tokenizer: text to ids and back, from the metadata of a GGUF file."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.text.pair_merging import CHAR_TO_BYTE, SPACE, ByteLevelBPE, Encoder, PlainBPE, ScoredMerges
from assay.text.pretokenize import PreTokenizer
from assay.text.special import SpecialTokens
from assay.text.unigram import Unigram
from assay.text.vocab import NAMELESS, NoVocabulary, TokenKind, Vocab, nameless_vocab, read_vocab
from assay.text.wordpiece import WordPiece, readable
from assay.text.world import World, unescaped


class Tokenizer:
    """`encode`, `decode`, and the special ids. Parts of the metadata are read on first use."""

    def __init__(self, file: GGUFFile, vocab: Vocab) -> None:
        self._file = file
        self.vocab = vocab
        self._special = SpecialTokens(vocab)
        self._pieces: dict[int, bytes] = {}
        self._texts: tuple[dict[int, str | None], ...] = ({}, {})  # caches, without and with hidden tokens

    @classmethod
    def from_gguf(cls, file: GGUFFile, *, nameless: int = 0) -> Tokenizer:
        """The tokenizer of a file. Raises AssayError if its metadata is wrong or of an unknown kind.

        If the file has no usable vocabulary and `nameless` is a number of tokens, the tokenizer has ids without text:
        ids pass through, and encoding a text raises the reason.
        """
        try:
            return cls(file, read_vocab(file))
        except NoVocabulary as error:
            if not nameless:
                raise
            return cls(file, nameless_vocab(nameless, str(error)))

    @property
    def path(self) -> Path:
        """The file that the vocabulary was read from."""
        return self._file.path

    @property
    def n_vocab(self) -> int:
        return len(self.vocab.tokens)

    @property
    def bos(self) -> int | None:
        return self.vocab.special.get("bos")

    @property
    def eos(self) -> int | None:
        return self.vocab.special.get("eos")

    @property
    def eot(self) -> int | None:
        return self.vocab.special.get("eot")

    @property
    def eog(self) -> frozenset[int]:
        """All ids that end a generation."""
        return self.vocab.eog

    @property
    def add_bos(self) -> bool:
        """Whether `encode` adds BOS: the file requires it and the vocabulary has one."""
        return self.vocab.add_bos and self.bos is not None

    @property
    def add_eos(self) -> bool:
        return self.vocab.add_eos and self.eos is not None

    @property
    def is_word_piece(self) -> bool:
        """Whether it is BERT's: one SEP parts two texts, where others have two."""
        return self.vocab.model == "bert"

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """The ids that `add_special` puts before and after a text."""
        first = [self.bos] if self.add_bos and self.bos is not None else []
        last = [self.eos] if self.add_eos and self.eos is not None else []
        if self.is_word_piece:  # regardless of the flags
            roles = self.vocab.special
            first, last = ([roles[role]] if role in roles else [] for role in ("bos", "sep"))
        return first, last

    @property
    def closing(self) -> int | None:
        """The id that `encode` puts after a text: EOS if the file requires it, SEP for WordPiece."""
        return self.frame[1][0] if self.frame[1] else None

    @cached_property
    def _encoder(self) -> Encoder:
        pre = self.vocab.pre
        if pre is not None:
            return (ByteLevelBPE if pre.byte_encode else PlainBPE)(self._file, self.vocab, pre)
        if self.is_word_piece:
            return WordPiece(self.vocab)
        if self.vocab.model == "t5":
            return Unigram(self._file, self.vocab)
        if self.vocab.model == "rwkv":
            return World(self.vocab)
        return ScoredMerges(self.vocab)

    def metadata_strings(self, key: str) -> list[str]:
        """An array of texts of the file's metadata."""
        found: list[str] = self._file.get_array(key, kind=str)
        return found

    def with_pre(self, pre: PreTokenizer) -> Tokenizer:
        """The tokenizer with another pre-tokenizer, to simulate an engine that uses a wrong one."""
        assert isinstance(self._encoder, ByteLevelBPE)
        other = Tokenizer(self._file, replace(self.vocab, pre=pre))
        other.__dict__["_encoder"] = self._encoder.with_pre(pre)
        return other

    def with_rule(self, name: str, value: bool) -> Tokenizer:
        """The tokenizer with another normalisation rule (a field of `Vocab`)."""
        changes: dict[str, Any] = {name: value}
        return Tokenizer(self._file, replace(self.vocab, **changes))

    def encode(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Ids of a text. Bytes need not be UTF-8; they are tokenized as llama.cpp would.

        `add_special` adds BOS and EOS if the file requires them. `parse_special` recognises control tokens in
        the text; user-defined tokens are always recognised.
        """
        if self.vocab.model == NAMELESS:
            raise AssayError(self.vocab.notes[0])
        text, valid = _as_text(text)
        prefix = self.vocab.model == "llama" and self.vocab.add_space_prefix
        first, last = self.frame if add_special else ([], [])
        ids = list(first)
        after_special = True
        for fragment in self._special.split(text, parse_special):
            if isinstance(fragment, int):
                ids.append(fragment)
                after_special = True
                continue
            if prefix and after_special:
                fragment = " " + fragment
            after_special = False
            if valid:
                ids += self._encoder.encode(fragment)
            else:
                ids += self._encoder.encode_bytes(fragment.encode("utf-8", "surrogateescape"))
        return ids + last

    def fragments(self, text: str) -> list[str | int]:
        """The text split at its special tokens."""
        return self._special.split(text, True)

    def piece(self, token: int) -> bytes:
        """The bytes of a token, which may be a part of a UTF-8 character."""
        found = self._pieces.get(token)
        if found is None:
            self._check(token)
            found = self._pieces[token] = self._make_piece(token)
        return found

    def text(self, token: int, special: bool) -> str | None:
        """The piece as text; empty for a hidden token unless `special`; None if it is a part of a character."""
        try:
            return self._texts[special][token]
        except KeyError:
            piece = self.piece(token) if special or not self.is_hidden(token) else b""
            try:
                found: str | None = piece.decode()
            except UnicodeDecodeError:
                found = None
            self._texts[special][token] = found
            return found

    def _make_piece(self, token: int) -> bytes:
        text, kind = self.vocab.tokens[token], self.vocab.kinds[token]
        if kind & TokenKind.SPECIAL:
            return text.encode()
        if kind & TokenKind.NORMAL:
            if self.vocab.model == "rwkv":
                return unescaped(text)
            if self.vocab.pre is None or not self.vocab.pre.byte_encode:
                return text.replace(SPACE, " ").encode()
            return b"".join(bytes([CHAR_TO_BYTE[c]]) if c in CHAR_TO_BYTE else c.encode() for c in text)
        if kind & TokenKind.BYTE:
            return _byte_token(text)
        return b""

    def show(self, token: int) -> str:
        """The piece in quotes, for display: `' Hello'`, or `b'\\xf0'` for a part of a character."""
        piece = self.piece(token)
        try:
            return repr(piece.decode())
        except UnicodeDecodeError:
            return repr(piece)

    def is_hidden(self, token: int) -> bool:
        """Control and unknown tokens, which `special=False` leaves out."""
        self._check(token)
        return bool(self.vocab.kinds[token] & TokenKind.HIDDEN)

    def is_special(self, token: int) -> bool:
        """Control, unknown and user-defined tokens."""
        self._check(token)
        return bool(self.vocab.kinds[token] & TokenKind.SPECIAL)

    def decode(self, ids: Iterable[int], *, special: bool = True) -> str:
        """The text of ids. The leading space of a SentencePiece vocabulary stays. Bytes that are not UTF-8 become
        U+FFFD. `special=False` hides control tokens. WordPiece does not keep spaces, so they are put by its usual
        rules."""
        text = b"".join(self.piece(i) for i in ids if special or not self.is_hidden(i)).decode("utf-8", "replace")
        return readable(text) if self.vocab.model == "bert" else text

    def detokenizer(self, *, special: bool = True) -> Detokenizer:
        return Detokenizer(self, special=special)

    def _check(self, token: int) -> None:
        if not 0 <= token < self.n_vocab:
            raise AssayError(f"token {token}: outside the vocabulary (expected 0 to {self.n_vocab - 1})")


class Detokenizer:
    """Streaming decoder: ids one by one to text. A character is held back until its last byte."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._whole = True  # no character is incomplete

    def push(self, token: int) -> str:
        """The complete characters so far; empty while one is incomplete."""
        if self._whole and (text := self._tokenizer.text(token, self._special)) is not None:
            return text
        if not self._special and self._tokenizer.is_hidden(token):
            return ""
        text = self._decoder.decode(self._tokenizer.piece(token))
        self._whole = not self._decoder.getstate()[0]
        return text

    def flush(self) -> str:
        """The rest at the end: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)


def _as_text(text: str | bytes) -> tuple[str, bool]:
    """The text as str, and whether it is valid Unicode. If not, wrong bytes are surrogate escapes."""
    data = text if isinstance(text, bytes) else None
    if data is None:
        assert isinstance(text, str)
        try:
            text.encode()
            return text, True
        except UnicodeEncodeError:
            data = text.encode("utf-8", "surrogatepass")
    try:
        return data.decode(), True
    except UnicodeDecodeError:
        return data.decode("utf-8", "surrogateescape"), False


def _byte_token(text: str) -> bytes:
    """The byte of a token `<0xHH>`."""
    try:
        return bytes([int(text[3:5], 16)])
    except ValueError:
        return text.encode()
