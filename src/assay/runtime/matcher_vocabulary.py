"""The vocabulary of a model as llguidance needs it: the bytes of every token, and the model's own tokenizer."""

from __future__ import annotations

from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any

from assay.gguf import open_file
from assay.text import Tokenizer


class MatcherVocabulary:
    """The tokenizer interface of llguidance."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        self._tokenizer = tokenizer
        self.n_vocab = n_vocab
        known = tokenizer.n_vocab
        self.tokens = [tokenizer.piece(i) if i < known else b"" for i in range(n_vocab)]
        self._bytes = {piece: i for i, piece in enumerate(self.tokens) if len(piece) == 1}
        self.special_token_ids = [i for i in range(known) if tokenizer.is_special(i)]
        self.bos_token_id = tokenizer.bos
        self.eos_token_id = tokenizer.eot if tokenizer.eot is not None else tokenizer.eos

    @classmethod
    def of_file(cls, path: str, n_vocab: int) -> MatcherVocabulary:
        """The vocabulary of a model file. The file is closed afterwards."""
        file = open_file(Path(path))
        tokenizer = Tokenizer.from_gguf(file, nameless=n_vocab)
        found = cls(tokenizer, n_vocab)
        found(b"a")  # reads everything that encoding needs
        file.close()
        return found

    @property
    def ends(self) -> list[int]:
        """All tokens that end an answer, the usual one first."""
        return sorted(self._tokenizer.eog, key=lambda token: token != self.eos_token_id)

    @property
    def digest(self) -> str:
        """Two vocabularies with the same digest have the same tokens and the same ends."""
        state = blake2b(digest_size=16)
        for token in self.tokens:
            state.update(len(token).to_bytes(4, "little") + token)
        state.update(repr((self.ends, self.special_token_ids, self.bos_token_id)).encode())
        return state.hexdigest()

    def wrapped(self) -> Any:
        """The tokenizer object of llguidance."""
        ll = import_module("llguidance")
        return ll.LLTokenizer(ll.TokenizerWrapper(self), n_vocab=self.n_vocab, eos_token=self.ends)

    def __call__(self, text: bytes | str) -> list[int]:
        """Encode a text that stands inside another: after a byte that merges with nothing, so that no space is added.

        A text that a SentencePiece vocabulary would change (U+2581, its space) is encoded as single bytes.
        """
        data = text.encode() if isinstance(text, str) else text
        before, whole = self._encode(b"\x02"), self._encode(b"\x02" + data)
        ids = whole[len(before) :] if whole[: len(before)] == before else self._encode(data)
        if b"".join(self.tokens[i] for i in ids) != data and all(bytes([b]) in self._bytes for b in data):
            return [self._bytes[bytes([b])] for b in data]
        return ids

    def _encode(self, data: bytes) -> list[int]:
        return self._tokenizer.encode(data, add_special=False, parse_special=False)
