"""The file that `llama-perplexity --kl-divergence-base FILE` writes: a base model's predictions, and their tokens.

    "_logits_"  n_ctx u32  n_vocab i32  n_chunk i32  tokens i32[n_chunk, n_ctx]
    then per scored token: scale f32, least f32, u16[n_vocab], and one more u16 if n_vocab is odd

ln p = scale * u16 + least. A value more than 16 below the best is stored as `least`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from assay.errors import AssayError
from assay.evaluate.pieces import TextWindow, cut
from assay.evaluate.predictors import Stored

MAGIC = b"_logits_"
HEAD = len(MAGIC) + 12


def is_logits_file(path: str | Path) -> bool:
    path = Path(path)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


class LogitsFile:
    """A source with stored predictions. The file also has the windows, so no text is needed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = self.path.name
        with self.path.open("rb") as file:
            head = np.frombuffer(file.read(HEAD)[len(MAGIC) :].ljust(12, b"\0"), "<i4")
        self.n_ctx, self.n_vocab, self.n_chunk = map(int, head)
        self.n_scored = self.n_ctx - 1 - self.n_ctx // 2
        self.width = 4 + self.n_vocab + self.n_vocab % 2  # u16 values per row
        size = self.path.stat().st_size
        if min(self.n_ctx - 3, self.n_vocab, self.n_chunk) <= 0 or size != self._at(self.n_chunk):
            raise AssayError(
                f"{self.path}: incomplete (found {size} bytes; expected {self._at(self.n_chunk)} for {self.n_chunk} "
                f"windows of {self.n_ctx} tokens and a vocabulary of {self.n_vocab}); write it again"
                " with llama-perplexity"
            )

    def _at(self, chunk: int) -> int:
        return HEAD + 4 * self.n_ctx * self.n_chunk + 2 * chunk * self.n_scored * self.width

    def pieces(self, bos: int | None, most: int | None = None) -> list[TextWindow]:
        tokens = np.fromfile(self.path, "<i4", self.n_ctx * self.n_chunk, offset=HEAD)
        if not ((tokens >= 0) & (tokens < self.n_vocab)).all():
            raise AssayError(f"{self.path}: a token outside the vocabulary of {self.n_vocab}")
        return cut(tokens.tolist(), self.n_ctx, bos, most)

    def rows(self, piece: TextWindow) -> Stored:
        flat = np.fromfile(self.path, "<u2", self.n_scored * self.width, offset=self._at(piece.index))
        rows = flat.reshape(self.n_scored, self.width)
        scale, least = rows[:, :4].copy().view("<f4").T[:, :, None]
        return Stored(scale * rows[:, 4 : 4 + self.n_vocab].astype(np.float32) + least)
