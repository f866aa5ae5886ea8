"""A small model that guesses for a large one: greedy, a few tokens ahead, on an engine of its own.

Its cache holds only tokens that are certain; guessed ones are computed behind them and written over by what really
came. So a wrong guess leaves nothing to undo.
"""

from __future__ import annotations

import numpy as np

from assay.engines.contract import Chunk, PagedEngine
from assay.errors import AssayError
from assay.runtime.pages import Lease, OutOfPages, Pages
from assay.runtime.sequence import Sequence
from assay.text import Tokenizer

_CHUNK = 512  # tokens of a prompt at a time


def check_vocabularies(draft: Tokenizer, model: Tokenizer, name: str) -> None:
    """Guesses are ids, so both must mean the same by them."""
    if draft.n_vocab != model.n_vocab:
        raise AssayError(
            f"--draft {name}: another vocabulary (found {draft.n_vocab} tokens, expected {model.n_vocab}); "
            "use a smaller model of the same family"
        )
    for token in range(model.n_vocab):
        if draft.piece(token) != model.piece(token):
            raise AssayError(
                f"--draft {name}: another vocabulary (token {token} is {draft.piece(token)!r:.40}, expected "
                f"{model.piece(token)!r:.40}); use a smaller model of the same family"
            )


class DraftModel:
    """Follows every sequence that it is asked about."""

    def __init__(self, engine: PagedEngine) -> None:
        if not engine.graph.state.cuttable:
            raise AssayError("--draft: this model keeps state that tokens cannot be taken back from; use another model")
        self.engine = engine
        self._pages = Pages.of(engine)
        self._leases: dict[Sequence, Lease] = {}

    def guess(self, wanted: dict[Sequence, int]) -> dict[Sequence, list[int]]:
        """So many tokens after each sequence; fewer, or none, where its cache has no room."""
        going: dict[Sequence, list[int]] = {}
        for sequence, n in wanted.items():
            try:
                going[sequence] = [self._catch_up(sequence, n)]
            except OutOfPages:
                self.forget(sequence)
        for i in range(1, max(wanted.values(), default=0)):
            now = [sequence for sequence in going if wanted[sequence] > i]
            chunks = [self._chunk(s, going[s][-1:], len(s.ids) + i - 1) for s in now]
            for sequence, output in zip(now, self.engine.forward(chunks) if chunks else [], strict=True):
                going[sequence].append(int(output.logits[-1].argmax()))
        return going

    def _catch_up(self, sequence: Sequence, n: int) -> int:
        """Compute what is certain, and give the first guess; room for the others is reserved."""
        lease = self._leases.get(sequence)
        if lease is None:
            lease = self._leases[sequence] = self._pages.open(sequence.ids)
        while True:
            ids = sequence.ids[lease.length : lease.length + _CHUNK]
            last = lease.length + len(ids) == len(sequence.ids)
            self._pages.reserve(lease, len(ids) + n)
            output = self.engine.forward([self._chunk(sequence, ids, lease.length, "last" if last else "none")])[0]
            self._pages.commit(lease, ids)
            if last:
                self._pages.reserve(lease, n)
                return int(output.logits[-1].argmax())

    def _chunk(self, sequence: Sequence, ids: list[int], start: int, outputs: str = "last") -> Chunk:
        lease = self._leases[sequence]
        return Chunk(np.array(ids, dtype=np.int32), start, lease.pages, outputs, windows=lease.windows)

    def forget(self, sequence: Sequence) -> None:
        if lease := self._leases.pop(sequence, None):
            self._pages.close(lease)

    def close(self) -> None:
        self.engine.close()
