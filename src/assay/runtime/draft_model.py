"""A small model that drafts tokens for a large one, on an engine of its own.

It decodes greedily. Its cache holds only tokens that are certain. Drafted tokens are computed behind them and are
overwritten by the tokens that the large model really drew, so a rejected draft needs no clean-up. State of a fixed size
cannot be overwritten: drafted tokens change a copy of it, in a second slot.
"""

from __future__ import annotations

import numpy as np

from assay.engines.contract import Chunk, PagedEngine
from assay.errors import AssayError
from assay.runtime.pages import Lease, OutOfPages, Pages
from assay.runtime.sequence import Sequence
from assay.runtime.speculation import Drafter
from assay.text import Tokenizer

_CHUNK = 512  # prompt tokens computed at a time


def check_vocabularies(draft: Tokenizer, model: Tokenizer, name: str) -> None:
    """Refuse a draft model with another vocabulary: a draft is a list of ids, which must mean the same to both."""
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


class DraftModel(Drafter):
    """The `Drafter` over an engine. It holds pages for every sequence that it was asked about."""

    def __init__(self, engine: PagedEngine) -> None:
        self.engine = engine
        self._pages = Pages.of(engine)
        self._leases: dict[Sequence, Lease] = {}

    def draft(self, wanted: dict[Sequence, int]) -> dict[Sequence, list[int]]:
        """Up to `wanted[sequence]` tokens after each sequence. A sequence without room in the cache gets none."""
        drafts: dict[Sequence, list[int]] = {}
        for sequence, n in wanted.items():
            try:
                drafts[sequence] = [self._catch_up(sequence, n)]
            except OutOfPages:
                self.forget(sequence)
        for i in range(1, max(wanted.values(), default=0)):
            going = [sequence for sequence in drafts if wanted[sequence] > i and self._can_guess(sequence, i)]
            chunks = [self._chunk(s, drafts[s][-1:], len(s.ids) + i - 1, guess=True) for s in going]
            for sequence, output in zip(going, self.engine.forward(chunks) if chunks else [], strict=True):
                drafts[sequence].append(int(output.logits[-1].argmax()))
        return drafts

    def _catch_up(self, sequence: Sequence, n: int) -> int:
        """Compute the tokens that are certain, reserve room for n drafted ones, and return the first of these."""
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

    def _can_guess(self, sequence: Sequence, i: int) -> bool:
        """Whether drafted tokens may change state: that is a copy of the sequence's own, made before the first."""
        if not self._pages.states:
            return True
        lease = self._leases[sequence]
        return (self._pages.guess(lease) if i == 1 else lease.guess_slot) >= 0

    def _chunk(
        self, sequence: Sequence, ids: list[int], start: int, outputs: str = "last", *, guess: bool = False
    ) -> Chunk:
        lease = self._leases[sequence]
        slot = max(lease.guess_slot if guess else lease.state_slot, 0)
        return Chunk(np.array(ids, np.int32), start, lease.pages, outputs, windows=lease.windows, state_slot=slot)

    def forget(self, sequence: Sequence) -> None:
        if lease := self._leases.pop(sequence, None):
            self._pages.close(lease)

    def close(self) -> None:
        self.engine.close()
