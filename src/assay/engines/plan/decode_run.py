"""Decode runs on the device: several decode steps are queued before the host reads the first result.

A decode step leaves its most probable token on the device, so the host can launch the following step without reading a
result. `StepQueue` decides how many steps are launched
ahead of the one that is read. The other classes are the capabilities of `assay.engines.contract` over such a queue.
Change this module to change queueing; the kernels and tables of a step belong to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Chunk, Output, TopK

Rows = NDArray[np.float32]


class StepQueue:
    """Steps of one run. `launch(i)` queues step i on the device, `wait(i)` waits for its results and copies them."""

    def __init__(self, launch: Callable[[int], None], wait: Callable[[int], list[Rows]], limit: int, depth: int):
        self.limit, self.launched = limit, 0  # steps that the run may have, and that it has launched so far
        self._launch, self._wait, self._depth = launch, wait, depth
        self._read: list[list[Rows]] = []
        self._fill()

    def _fill(self) -> None:
        """Launch steps up to the queue depth. The depth ramps up, so that an early arrival waits behind few steps."""
        read = len(self._read)
        while self.launched < min(self.limit, read + 1 + min(self._depth, 2 + read)):
            self._launch(self.launched)
            self.launched += 1

    def results(self, i: int) -> list[Rows]:
        """The results of step i; waits for the device if they are not there yet."""
        while i >= len(self._read):
            self._fill()
            self._read.append(self._wait(len(self._read)))
        return self._read[i]

    def stop(self) -> None:
        """Launch no further steps."""
        self.limit = self.launched

    def drain(self) -> None:
        """Stop, and read every launched step: the next program overwrites the tables and the buffer of results."""
        self.stop()
        for i in range(self.limit):
            self.results(i)


class _SequenceResults(Sequence[TopK]):
    """The top values of one sequence, a step each. The length shrinks when the run is stopped."""

    def __init__(self, run: DeviceRun, sequence: int, limit: int) -> None:
        self._run, self._sequence, self._limit = run, sequence, limit

    def __len__(self) -> int:
        return min(self._limit, self._run.queue.limit)

    def __getitem__(self, i: Any) -> Any:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self._run.step(i)[self._sequence]


class DeviceRun:
    """A `DecodeRun` over a queue of steps. A step returns the k largest logits of each sequence, then their ids, then
    the bits of the row's hash if it was asked for."""

    def __init__(self, queue: StepQueue, max_tokens: Sequence[int], k: int) -> None:
        self.queue, self._k = queue, k
        self._steps: list[list[TopK]] = []
        self.results = [_SequenceResults(self, i, 1 + n) for i, n in enumerate(max_tokens)]
        self.step(0)

    def step(self, i: int) -> list[TopK]:
        """The top values of step i, one entry per sequence."""
        while i >= len(self._steps):
            found = self.queue.results(len(self._steps))[0].reshape(len(self.results), -1)
            logits, ids, hashes = np.split(found, (self._k, 2 * self._k), axis=1)
            digests = (row.tobytes() or None for row in hashes)
            self._steps.append(list(map(TopK, ids.astype(np.int64), logits, digests)))
        return self._steps[i]

    def stop(self) -> None:
        self.queue.stop()


@dataclass
class DeviceDecodeRunner:
    """The `decode_runner` of an engine whose `start_run` launches a run."""

    start_run: Callable[[Sequence[Chunk], Sequence[int], int], DeviceRun]
    max_sequences: int
    on_launch: Callable[[], None] | None = None

    def start(self, batch: Sequence[Chunk], max_tokens: Sequence[int], queue_depth: int) -> DeviceRun:
        return self.start_run(batch, max_tokens, queue_depth)


@dataclass
class DeviceTopValues:
    """The `top_values` of an engine whose `forward_top` runs a step."""

    forward_top: Callable[[Sequence[Chunk], int], list[Output]]
    digests: bool = False

    def forward(self, batch: Sequence[Chunk], k: int) -> list[Output]:
        return self.forward_top(batch, k)
