"""The two encoders: text without special tokens in, ids out.

Both cut the text into pieces that cannot influence one another and remember each piece's ids, so English runs
at the speed of a dictionary. For byte-level BPE the pieces are the words of the pre-tokenizer. A
SentencePiece-style vocabulary has no words: there the text is cut only where no token of the vocabulary spans
the cut, so that no merge could ever cross it and the ids are the same as without the cut.

The `tokenizers` and `sentencepiece` libraries are not used, for they are not exact here: neither ranks equal
scores by position, nor keeps white space, bytes that are not UTF-8 and tokens without a merge as llama.cpp does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from itertools import chain
from typing import Protocol

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.text.merge import merge
from assay.text.pretokenize import PreTokenizer
from assay.text.vocab import MERGES, Vocab

SPACE = "\u2581"  # SentencePiece's visible space
_CACHED_LENGTH = 64
_CACHED_PIECES = 1 << 18
_CUT_FURTHER = 64
_ESCAPE = 0xDC00  # a byte outside UTF-8 travels as this surrogate plus the byte


class Encoder(Protocol):
    """Ids of a text, or of bytes that are not UTF-8."""

    def encode(self, text: str) -> list[int]: ...
    def encode_bytes(self, data: bytes) -> list[int]: ...


class _Remembered(dict[str, tuple[int, ...]]):
    """Ids per piece, computed when first asked for; long pieces are not kept, and the whole stays bounded."""

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
        return list(chain.from_iterable(map(self.__getitem__, pieces)))


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for every byte: itself where printable, else U+0100 upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(rest)) for b in range(256)]


BYTE_TO_CHAR = _byte_alphabet()
CHAR_TO_BYTE = {c: b for b, c in enumerate(BYTE_TO_CHAR)}
_TRANSLATE = dict(enumerate(BYTE_TO_CHAR))


def decode_leniently(data: bytes) -> str:
    """Code points of bytes that are not UTF-8, as llama.cpp sees them.

    Overlong forms and surrogates are taken at their value; any other wrong byte is U+FFFD by itself.
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


class ByteLevelBPE:
    """`gpt2`: words, then merges by rank."""

    def __init__(self, file: GGUFFile, vocab: Vocab, pre: PreTokenizer) -> None:
        self._ids = vocab.ids
        self._pre = pre
        self._merges = _read_merges(file, vocab)
        self._words = _Remembered(self._word if pre.byte_encode else self._plain_word)

    def encode(self, text: str) -> list[int]:
        if not self._pre.byte_encode:
            text = text.replace(" ", SPACE)
        return self._words.of(self._pre.split(text))

    def encode_bytes(self, data: bytes) -> list[int]:
        return self.encode(decode_leniently(data))

    @cached_property
    def _ranks(self) -> dict[str, float]:
        ranks = dict(zip(self._merges, range(len(self._merges)), strict=True))
        if len(ranks) != len(self._merges):  # of a pair listed twice the first counts
            ranks = {}
            for rank, pair in enumerate(self._merges):
                ranks.setdefault(pair, rank)
        return ranks  # type: ignore[return-value]  # int for float, which Mapping allows and dict does not

    def _word(self, word: str) -> tuple[int, ...]:
        text = word.encode("utf-8", "surrogatepass").decode("latin-1").translate(_TRANSLATE)
        if self._pre.ignore_merges and text in self._ids:
            return (self._ids[text],)
        ids: list[int] = []
        for part in merge(list(text), self._ranks, " "):
            found = self._ids.get(part)
            if found is not None:
                ids.append(found)
            else:  # a merge made what is no token: what llama.cpp saves of it are its ASCII characters
                ids.extend(self._ids[c] for c in part if c.isascii() and c in self._ids)
        return tuple(ids)

    def _plain_word(self, word: str) -> tuple[int, ...]:
        if self._pre.newline_words and word in self._ids and not word.strip("\n"):
            return (self._ids[word],)
        ids: list[int] = []
        for part in merge(list(word), self._ranks, " "):
            found = self._ids.get(part)
            if found is not None:
                ids.append(found)
            else:
                names = (f"<0x{b:02X}>" for b in part.encode("utf-8", "surrogatepass"))
                ids.extend(self._ids[name] for name in names if name in self._ids)
        return tuple(ids)


def _read_merges(file: GGUFFile, vocab: Vocab) -> list[str]:
    if MERGES not in file.metadata and vocab.pre_name == "kimi-k2":
        return []
    merges: list[str] = file.get_array(MERGES, kind=str)
    for i, pair in enumerate(merges):
        if " " not in pair[1:-1]:
            raise AssayError(
                f"{file.path.name}: {MERGES}: entry {i} is not a pair (found {pair!r:.60}, expected two parts with "
                "a space between them); convert the model again"
            )
    return merges


class ScoredMerges:
    """`llama`: merge the pair that makes the token with the highest score; bytes for what is no token."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._ids = vocab.ids
        self._pieces = _Remembered(self._piece)

    def encode(self, text: str) -> list[int]:
        return self._pieces.of(self._cut(text.replace(" ", SPACE)))

    def encode_bytes(self, data: bytes) -> list[int]:
        return self._pieces.of(self._cut(_symbols(data.replace(b" ", SPACE.encode()))))

    @cached_property
    def _ranks(self) -> dict[str, float]:
        scores = self._vocab.scores
        values = [0.0] * len(self._ids) if scores is None else (-scores).tolist()
        return dict(zip(self._vocab.tokens, values, strict=True))

    @cached_property
    def _cut(self) -> Callable[[str], list[str]]:
        """Cut before a space that follows another character, unless some token holds just that pair, and
        around newlines unless a token holds one beside something else."""
        tokens = self._vocab.tokens
        joined = {text[i - 1] for text in tokens if SPACE in text for i in _places(text) if i} - {SPACE}
        newline = "" if any("\n" in text and len(text) > 1 for text in tokens) else "\n"
        word = f"[^{SPACE}{newline}]"
        glue = f"(?:(?<=[{re.escape(''.join(sorted(joined)))}]){SPACE}+{word}*)*" if joined else ""
        rest = f"|{newline}" if newline else ""
        return re.compile(f"{SPACE}*{word}+{glue}|{SPACE}+{rest}", re.DOTALL).findall

    @cached_property
    def _neighbours(self) -> frozenset[str]:
        """Every two characters that stand together in some token."""
        return frozenset(text[i : i + 2] for text in self._vocab.tokens for i in range(len(text) - 1))

    def _piece(self, piece: str) -> tuple[int, ...]:
        if len(piece) <= _CUT_FURTHER:
            return tuple(self._ids_of(merge(list(piece), self._ranks, "")))
        ids: list[int] = []
        start, neighbours = 0, self._neighbours
        for end in range(1, len(piece) + 1):
            if end == len(piece) or piece[end - 1 : end + 1] not in neighbours:
                ids += self._ids_of(merge(list(piece[start:end]), self._ranks, ""))
                start = end
        return tuple(ids)

    def _ids_of(self, parts: list[str]) -> list[int]:
        ids: list[int] = []
        for part in parts:
            found = self._ids.get(part)
            if found is not None:
                ids.append(found)
                continue
            code = ord(part[0])
            raw = bytes([code - _ESCAPE]) if _ESCAPE <= code < _ESCAPE + 256 else part.encode()
            ids.extend(map(self._byte, raw))
        return ids

    def _byte(self, byte: int) -> int:
        found = self._ids.get(f"<0x{byte:02X}>", self._ids.get(chr(byte)) if byte < 128 else None)
        if found is None:
            found = self._vocab.special.get("unk")
        if found is None:
            raise AssayError(
                f"tokenizer.ggml.tokens: no token for byte 0x{byte:02X} and no unknown token; "
                "this vocabulary cannot hold the text"
            )
        return found


def _places(text: str) -> list[int]:
    return [i for i, c in enumerate(text) if c == SPACE]


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
