"""Encoders that merge pairs: from text without special tokens to ids.

They cut the text into pieces that cannot influence each other and cache the ids of each piece, so most text costs one
dictionary lookup per word. For byte-level BPE the pieces are the words of the pre-tokenizer. A SentencePiece-style
vocabulary has no words. Its text is cut only where no token spans the cut: no merge can cross it, so the ids do not
change.

No library is used. `sentencepiece` needs a model that GGUF does not carry. `tokenizers` cannot rank equal scores by
position, splits words by its own Unicode tables and rejects bytes that are not UTF-8. For merging one word it would be
exact, but building it from a file takes longer than most prompts take here (bench/tokenizing.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from functools import cached_property
from itertools import chain, pairwise
from typing import Protocol

import numpy as np

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.text.merge import merge
from assay.text.pretokenize import LONG, PreTokenizer
from assay.text.vocab import MERGES, Vocab

SPACE = "\u2581"  # SentencePiece's visible space
_CACHED_LENGTH = 64
_CACHED_PIECES = 1 << 18
_AT_ONCE = 8192  # pieces looked up in one call
_CUT_FURTHER = 64
_ESCAPE = 0xDC00  # a byte that is not UTF-8 is represented by this surrogate plus the byte


class Encoder(Protocol):
    """Ids of a text, or of bytes that are not UTF-8."""

    def encode(self, text: str) -> list[int]: ...
    def encode_bytes(self, data: bytes) -> list[int]: ...


class Remembered(dict[str, tuple[int, ...]]):
    """A bounded cache of the ids of pieces. Long pieces are not cached."""

    def __init__(self, compute: Callable[[str], tuple[int, ...]]) -> None:
        self._compute = compute

    def __missing__(self, piece: str) -> tuple[int, ...]:
        ids = self._compute(piece)
        if len(piece) <= _CACHED_LENGTH:
            if len(self) >= _CACHED_PIECES:
                self.clear()
            self[piece] = ids
        return ids

    def of(self, pieces: list[str]) -> list[int]:
        ids: list[int] = []
        for start in range(0, len(pieces), _AT_ONCE):  # other threads run between two slices
            ids += chain.from_iterable(map(self.__getitem__, pieces[start : start + _AT_ONCE]))
        return ids


def _byte_alphabet() -> list[str]:
    """GPT-2's printable character for every byte: the byte itself if printable, else U+0100 upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(rest)) for b in range(256)]


BYTE_TO_CHAR = _byte_alphabet()
CHAR_TO_BYTE = {c: b for b, c in enumerate(BYTE_TO_CHAR)}
_TRANSLATE = dict(enumerate(BYTE_TO_CHAR))


def decode_leniently(data: bytes) -> str:
    """Code points of bytes that are not UTF-8, as llama.cpp decodes them.

    Overlong forms and surrogates keep their value. Any other wrong byte becomes U+FFFD.
    """
    out, i = [], 0
    while i < len(data):
        lead = data[i]
        n = 1 if lead < 0x80 else 2 if 0xC0 <= lead < 0xE0 else 3 if lead < 0xF0 else 4 if lead < 0xF8 else 0
        tail = data[i + 1 : i + n]
        if lead < 0x80:
            code = lead
        elif lead < 0xC0 or n == 0 or len(tail) < n - 1 or any(b & 0xC0 != 0x80 for b in tail):
            code, n = 0xFFFD, 1
        else:
            code = lead & (0x7F >> n)
            for b in tail:
                code = code << 6 | b & 0x3F
            if code > 0x10FFFF:
                code, n = 0xFFFD, 1
        out.append(chr(code))
        i += n
    return "".join(out)


class SafeCuts:
    """Positions at which a text can be cut without changing any merge: between two characters that no token contains.

    A merge makes a token, so no merge can join text across such a position.
    """

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens

    @cached_property
    def words(self) -> Callable[[str], list[str]]:
        """Cut before a space that follows another character, unless a token contains that pair, and around newlines,
        unless a token contains a newline with other text."""
        spaced = [text for text in self._tokens if SPACE in text]
        joined = {a for text in spaced for a, b in pairwise(text) if b == SPACE} - {SPACE}
        newline = "" if any("\n" in text and len(text) > 1 for text in self._tokens) else "\n"
        word = f"[^{SPACE}{newline}]"
        glue = f"(?:(?<=[{re.escape(''.join(sorted(joined)))}]){SPACE}+{word}*)*" if joined else ""
        rest = f"|{newline}" if newline else ""
        pattern = re.compile(f"{SPACE}*{word}+{glue}|{SPACE}+{rest}")

        def cut(text: str) -> list[str]:
            return pattern.findall(text) if len(text) <= LONG else [match[0] for match in pattern.finditer(text)]

        return cut

    @cached_property
    def _neighbours(self) -> frozenset[str]:
        return frozenset(text[i : i + 2] for text in self._tokens for i in range(len(text) - 1))

    def further(self, piece: str) -> list[str]:
        """All safe cuts, for a long piece of a language without spaces."""
        if len(piece) <= _CUT_FURTHER:
            return [piece]
        neighbours = self._neighbours
        cuts = [0, *(i for i in range(1, len(piece)) if piece[i - 1 : i + 1] not in neighbours), len(piece)]
        return [piece[a:b] for a, b in pairwise(cuts)]


class ByteLevelBPE:
    """`gpt2`: words, then merges by rank."""

    def __init__(self, file: GGUFFile, vocab: Vocab, pre: PreTokenizer) -> None:
        self._ids = vocab.ids
        self._pre = pre
        self._merges = _read_merges(file, vocab)
        self._words = Remembered(self._word)

    def encode(self, text: str) -> list[int]:
        return self._words.of(self._pre.split(text))

    def encode_bytes(self, data: bytes) -> list[int]:
        return self.encode(decode_leniently(data))

    def with_pre(self, pre: PreTokenizer) -> ByteLevelBPE:
        """The same merges with another pre-tokenizer."""
        other = copy(self)
        other._pre = pre
        other._words = Remembered(other._word)
        return other

    @cached_property
    def _ranks(self) -> dict[str, int]:
        """Ranks of the merges. For a pair listed twice, the first counts."""
        pairs = self._merges
        return dict(zip(reversed(pairs), range(len(pairs) - 1, -1, -1), strict=True))

    def _word(self, word: str) -> tuple[int, ...]:
        text = word.encode("utf-8", "surrogatepass").decode("latin-1").translate(_TRANSLATE)
        if self._pre.ignore_merges and text in self._ids:
            return (self._ids[text],)
        parts = merge(list(text), self._ranks, " ")
        try:
            return tuple([self._ids[part] for part in parts])
        except KeyError:
            return tuple(chain.from_iterable(map(self._rescued, parts)))

    def _rescued(self, part: str) -> list[int]:
        """If a merged part is not a token, llama.cpp keeps its ASCII characters and drops the rest."""
        if part in self._ids:
            return [self._ids[part]]
        return [self._ids[c] for c in part if c.isascii() and c in self._ids]


class PlainBPE(ByteLevelBPE):
    """`gemma4`: merges by rank on plain UTF-8, with U+2581 for the space and byte tokens for the rest.

    Its words are whole lines, which are cut at safe positions.
    """

    def encode(self, text: str) -> list[int]:
        lines = self._pre.split(text.replace(" ", SPACE))
        return self._words.of([piece for line in lines for piece in self._cuts.words(line)])

    @cached_property
    def _cuts(self) -> SafeCuts:
        made = (pair.replace(" ", "", 1) for pair in self._merges)
        return SafeCuts([*self._ids, *(text for text in made if text not in self._ids)])

    def _word(self, word: str) -> tuple[int, ...]:
        if self._pre.newline_words and word in self._ids and not word.strip("\n"):
            return (self._ids[word],)
        pieces = self._cuts.further(word)
        parts = chain.from_iterable(merge(list(piece), self._ranks, " ") for piece in pieces)
        return tuple(chain.from_iterable(map(self._rescued, parts)))

    def _rescued(self, part: str) -> list[int]:
        if part in self._ids:
            return [self._ids[part]]
        names = (f"<0x{b:02X}>" for b in part.encode("utf-8", "surrogatepass"))
        return [self._ids[name] for name in names if name in self._ids]


def _read_merges(file: GGUFFile, vocab: Vocab) -> list[str]:
    if MERGES not in file.metadata and vocab.pre_name == "kimi-k2":
        return []
    merges: list[str] = file.get_array(MERGES, kind=str)
    wrong = next((pair for pair in merges if " " not in pair[1:-1]), None)
    if wrong is not None:
        raise AssayError(
            f"{file.path.name}: {MERGES}: entry {merges.index(wrong)} is not a pair (found {wrong!r:.60}, expected "
            "two parts with a space between them); convert the model again"
        )
    return merges


class ScoredMerges:
    """`llama`: merge the pair that makes the token with the highest score; byte tokens for other text."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._ids = vocab.ids
        self._cuts = SafeCuts(vocab.tokens)
        self._pieces = Remembered(self._piece)

    def encode(self, text: str) -> list[int]:
        return self._pieces.of(self._cuts.words(text.replace(" ", SPACE)))

    def encode_bytes(self, data: bytes) -> list[int]:
        return self._pieces.of(self._cuts.words(_symbols(data.replace(b" ", SPACE.encode()))))

    @cached_property
    def _ranks(self) -> dict[str, int]:
        """The rank of a pair is that of the token it makes: 0 for the highest score, equal for equal scores."""
        scores = self._vocab.scores
        if scores is None:
            return dict.fromkeys(self._vocab.tokens, 0)
        ranks = np.unique(-scores, return_inverse=True)[1]
        return dict(zip(self._vocab.tokens, ranks.tolist(), strict=True))

    def _piece(self, piece: str) -> tuple[int, ...]:
        parts = [part for cut in self._cuts.further(piece) for part in merge(list(cut), self._ranks, "")]
        try:
            return tuple([self._ids[part] for part in parts])
        except KeyError:
            return tuple(chain.from_iterable(map(self._part, parts)))

    def _part(self, part: str) -> list[int]:
        """The id of a token, or the byte tokens of a character that has none."""
        if part in self._ids:
            return [self._ids[part]]
        code = ord(part)
        raw = bytes([code - _ESCAPE]) if _ESCAPE <= code < _ESCAPE + 256 else part.encode()
        return [self._byte(byte) for byte in raw]

    def _byte(self, byte: int) -> int:
        found = self._ids.get(f"<0x{byte:02X}>", self._ids.get(chr(byte)) if byte < 128 else None)
        if found is None:
            found = self._vocab.special.get("unk")
        if found is None:
            raise AssayError(
                f"tokenizer.ggml.tokens: no token for byte 0x{byte:02X} and no unknown token; "
                "this vocabulary cannot encode the text"
            )
        return found


def _symbols(data: bytes) -> str:
    """One character per symbol that is UTF-8; a symbol that is not (its length is what its first byte
    announces) becomes one escape per byte, which no token contains."""
    out, i = [], 0
    while i < len(data):
        n = (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4)[data[i] >> 4]
        symbol = data[i : i + n]
        try:
            out.append(symbol.decode())
        except UnicodeDecodeError:
            out.extend(chr(_ESCAPE + b) for b in symbol)
        i += n
    return "".join(out)
