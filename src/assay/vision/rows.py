"""Input of the language model for a picture: rows of numbers, and the text between them.

Plain data. `encode.py` makes it, the prompt side reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ImageRows:
    """The rows of one image chunk: a picture, a tile or an overview.

    `rows` is [n, t], with deepstack [n, (1 + parts) * t]: the embedding, then what is added after layer 0, 1, ….
    `grid` is (columns, rows) in tokens, for models whose positions have several numbers (M-RoPE); else None.
    `digest` names the chunk in the prefix cache: a hash of the mmproj file and of the preprocessed pixels.
    `sees_itself`: the rows attend to each other both ways (gemma3, gemma4); else they are causal like text.
    `pixels` are the bytes [row, column, RGB] for the tower, where another process runs it; `rows` are zeros then.
    """

    rows: NDArray[np.float32]
    grid: tuple[int, int] | None
    digest: bytes
    sees_itself: bool
    pixels: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class ImagePrompt:
    """A picture in the prompt: marker text, to be tokenised with special tokens, and rows, in order."""

    pieces: tuple[str | ImageRows, ...]

    @property
    def tokens(self) -> int:
        """The rows of all chunks; the markers come on top."""
        return sum(len(piece.rows) for piece in self.pieces if isinstance(piece, ImageRows))
