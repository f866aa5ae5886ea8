"""`t5`: the unigram tokenizer, which takes the segmentation of a text with the highest sum of scores.

The text is normalised (`assay.text.charsmap`), its spaces become U+2581, and the best segmentation is found from left
to right (Viterbi). A character without a token is unknown, and costs ten more than the worst token; adjacent unknowns
are one token. The text is first cut where no token spans the cut, because the best segmentation of the whole is that
of its parts. The ids of parts are cached. Scores are summed in double precision from the start of a part.
"""

from __future__ import annotations

import re
from itertools import groupby

import numpy as np

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.text.charsmap import Charsmap
from assay.text.pair_merging import SPACE, Remembered, SafeCuts
from assay.text.vocab import SCORES, TOKENS, TokenKind, Vocab

MAX_LENGTH = 256  # longest token in characters: keeps the time linear in the text
_PENALTY = 10.0
_WRONG_BYTE = re.compile("[\ud800-\udfff]")


class Unigram:
    """Ids by the best sum of scores."""

    def __init__(self, file: GGUFFile, vocab: Vocab) -> None:
        if vocab.scores is None:
            raise AssayError(
                f"{file.path.name}: {SCORES}: missing, but a unigram vocabulary needs them; convert the model again"
            )
        kinds = np.frombuffer(vocab.kinds, np.uint8)
        usable = np.flatnonzero(kinds & (TokenKind.NORMAL | TokenKind.USER | TokenKind.UNUSED)).tolist()
        scores = np.where(kinds & TokenKind.USER, 0.0, vocab.scores.astype(np.float64)).tolist()
        self._tokens = {vocab.tokens[i]: (scores[i], i) for i in usable}
        longest = max(map(len, self._tokens), default=0)
        if longest > MAX_LENGTH:
            raise AssayError(
                f"{TOKENS}: a token is too long for a unigram vocabulary (found {longest} characters, at most "
                f"{MAX_LENGTH})"
            )
        self._longest: dict[str, int] = {}  # by first character
        for text in self._tokens:
            self._longest[text[0]] = max(self._longest.get(text[0], 0), len(text))
        normal = vocab.scores[(kinds & TokenKind.NORMAL) != 0]
        # In single precision, as in llama.cpp and SentencePiece.
        self._unknown_score = float(np.float32(normal.min()) - np.float32(_PENALTY)) if len(normal) else -_PENALTY
        self._unknown = vocab.special.get("unk")
        self._vocab = vocab
        self._charsmap = Charsmap.from_gguf(file)
        self._cuts = SafeCuts(list(self._tokens))
        self._pieces = Remembered(self._piece)

    def encode(self, text: str) -> list[int]:
        pieces = self._cuts.words(self._normalised(text))
        ids = self._pieces.of([part for piece in pieces for part in self._cuts.further(piece)])
        if self._unknown not in ids:
            return ids
        runs = ((token, len(list(run))) for token, run in groupby(ids))
        return [i for token, n in runs for i in [token] * (1 if token == self._unknown else n)]

    def encode_bytes(self, data: bytes) -> list[int]:
        return self.encode(data.decode("utf-8", "surrogateescape"))

    def _normalised(self, text: str) -> str:
        if self._charsmap is not None:
            text = self._charsmap.normalise(text)
        if _WRONG_BYTE.search(text):  # bytes that are not UTF-8 are not normalised
            text = _WRONG_BYTE.sub("\ufffd", text)
        if self._vocab.remove_extra_whitespaces:
            return "".join([SPACE + word for word in text.split(" ") if word])
        if self._vocab.add_space_prefix and (bare := text.lstrip(" ")):
            text = text[: len(text) - len(bare)] + " " + bare
        return text.replace(" ", SPACE)

    def _piece(self, piece: str) -> tuple[int, ...]:
        tokens, longest = self._tokens, self._longest
        n = len(piece)
        best = [0.0] + [-np.inf] * n
        back: list[tuple[int, int]] = [(0, 0)] * (n + 1)  # start and id of the best token that ends here
        for start in range(n):
            so_far, alone = best[start], False
            for end in range(start + 1, min(start + longest.get(piece[start], 0), n) + 1):
                found = tokens.get(piece[start:end])
                if found is not None:
                    alone |= end == start + 1
                    score = so_far + found[0]
                    if score > best[end]:
                        best[end], back[end] = score, (start, found[1])
            if not alone and so_far + self._unknown_score > best[start + 1]:
                best[start + 1], back[start + 1] = so_far + self._unknown_score, (start, self._unknown_id())
        ids, at = [], n
        while at:
            at, token = back[at]
            ids.append(token)
        return tuple(reversed(ids))

    def _unknown_id(self) -> int:
        if self._unknown is None:
            raise AssayError(
                f"{TOKENS}: the text has a character without a token, and there is no unknown token; "
                "this vocabulary cannot encode the text"
            )
        return self._unknown
