"""Cut a text into windows that are scored independently, and join their scores.

The rules are those of llama-perplexity, so that figures are comparable. The text is cut into full windows. The first
token of each is replaced by BOS if the file requires it. Only the second half of a window is scored, so every scored
token has at least half a window of context. The rest of the text is dropped.

A window depends only on its own tokens. Scores are stored per token and joined in window order before they are summed,
so the result has the same bits however windows were distributed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError

WINDOW = 512


@dataclass(frozen=True)
class TextWindow:
    """A window of a text. `tokens[first + 1:]` are scored."""

    index: int
    tokens: NDArray[np.int32]
    start: int  # index of the window in the tokens of the text
    first: int

    @property
    def scored(self) -> NDArray[np.int32]:
        return self.tokens[self.first + 1 :]


def cut(ids: Sequence[int], window: int = WINDOW, bos: int | None = None, most: int | None = None) -> list[TextWindow]:
    """The windows of a text, at most `most`. A text shorter than one window is one window."""
    if window < 4:
        raise AssayError(f"window of {window} tokens: too short (expected at least 4)")
    if len(ids) < 4:
        raise AssayError(f"text: {len(ids)} tokens, nothing to predict (expected at least 4); give a longer one")
    window = min(window, len(ids))
    count = len(ids) // window
    pieces = []
    for i in range(count if most is None else min(count, most)):
        tokens = np.array(ids[i * window : (i + 1) * window], np.int32)
        if bos is not None:
            tokens[0] = bos
        pieces.append(TextWindow(i, tokens, i * window, window // 2))
    return pieces


@dataclass(frozen=True)
class Scores:
    """The scores of one window, a number per scored token. Without a base, `base_nll`, `kl` and `base_best` are empty.

    nll        -ln p(token)                      base_nll   the same under the base
    kl         sum over the vocabulary of p_base ln(p_base / p)
    best       the most probable token           base_best  the base's
    p_best     its probability                   base_p_best
    """

    index: int
    start: int
    first: int
    nll: NDArray[np.float64]
    best: NDArray[np.int32]
    p_best: NDArray[np.float64]
    base_nll: NDArray[np.float64]
    kl: NDArray[np.float64]
    base_best: NDArray[np.int32]
    base_p_best: NDArray[np.float64]

    def to_dict(self) -> dict[str, object]:
        """As JSON data. JSON floats are written so that they are read back to the bit."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in values.items()}

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Scores:
        values: dict[str, Any] = {}
        for name in (f.name for f in fields(Scores)):
            kind = np.int32 if name in ("best", "base_best") else np.float64
            values[name] = np.array(found[name], kind) if isinstance(found[name], list) else found[name]
        return Scores(**values)


def joined(parts: Iterable[Scores]) -> list[Scores]:
    """Scores in the order of the text. Every window must occur exactly once."""
    found = sorted(parts, key=lambda s: s.index)
    if [s.index for s in found] != list(range(len(found))):
        raise AssayError(f"evaluation: windows are missing or duplicated (found {[s.index for s in found][:20]})")
    return found
