"""Greedy steps submitted ahead: each reads its tokens where its predecessor left them, in the buffer `chosen`.

The host knows all words of a later step but the tokens, so it writes the words and copies the tokens on the device
before the pass. It reads the results of a step while the device computes later ones. Touch this module to change what
happens between two steps of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Chunk
from assay.engines.plan.batching import Step
from assay.engines.wgpu.adapter import Copy, Gpu
from assay.engines.wgpu.step_words import HEADER, RECORD

_ROW = 8  # bytes of a row of `chosen`: id and logit


@dataclass
class StepsAhead:
    """The steps of one run. `submit` runs a step with copies on the device before and after it."""

    gpu: Gpu
    batch: Sequence[Chunk]
    max_tokens: Sequence[int]
    cut: Callable[[Sequence[Chunk]], list[Step]]
    submit: Callable[[Step, Sequence[Copy], Sequence[Copy]], None]
    shared: Callable[[str], Any]
    _landing: dict[int, Any] = field(default_factory=dict)  # results by step, which the device copies to the host

    def __post_init__(self) -> None:
        size = _ROW * len(self.batch)
        self._picked = [self.gpu.buffer(size, "tokens of a run") for _ in range(2)]  # of even and of odd steps

    def active(self, i: int) -> list[int]:
        """The chunks that step i continues."""
        return [c for c, further in enumerate(self.max_tokens) if i <= further]

    def launch(self, i: int) -> None:
        here, before = self.active(i), self.active(i - 1) if i else []
        chunks = [_later(self.batch[c], i) for c in here]
        landing = self._landing[i] = self.gpu.landing(_ROW * len(here))
        first = 0
        for step in self.cut(chunks):
            count, words = len(step.pieces), self.shared("step")
            picked, last = self._picked[i % 2], self._picked[1 - i % 2]
            tokens = [
                Copy(last, _ROW * before.index(c), words, 4 * (HEADER + RECORD * row), 4)
                for row, c in enumerate(here[first : first + count] if i else ())
            ]
            results = Copy(self.shared("chosen"), 0, picked, _ROW * first, _ROW * count)
            out = replace(results, to=landing, to_byte=_ROW * first)
            self.submit(step, tokens, (results, out))
            first += count

    def wait(self, i: int) -> list[NDArray[np.float32]]:
        """For each chunk the largest logit of step i and its id; zeros for a chunk that has ended."""
        here = self.active(i)
        words = self.gpu.landed(self._landing.pop(i), 2 * len(here)).reshape(-1, 2)
        found = np.zeros((len(self.batch), 2), np.float32)
        found[here, 0], found[here, 1] = words[:, 1].view(np.float32), words[:, 0]
        return [found]


def _later(chunk: Chunk, i: int) -> Chunk:
    """The chunk's token i steps later."""
    positions = None if chunk.positions is None else chunk.positions + np.int32(i)
    return replace(chunk, start=chunk.start + i, positions=positions)
