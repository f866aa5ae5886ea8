"""A bounded queue of updates from a worker's thread to a request handler, and the clean-up when either side ends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from assay.runtime.sequence import Job, Progress, Sink, Update
from assay.serve.api_errors import ApiError

# OpenAI's names for reasons why an answer ended; other reasons keep their names.
REASONS = {"eos": "stop", "grammar": "stop", "context": "length"}


class Computes(Protocol):
    """Computes jobs: a worker's thread here, or replicas on other machines. Sinks are called on the event loop."""

    @property
    def ready(self) -> bool:
        """Whether jobs can be computed now."""
        ...

    def submit(self, jobs: Sequence[Job], sinks: Sequence[Sink]) -> Sequence[Progress]:
        """Submit all jobs, or none if the queue has no room for them."""
        ...

    def cancel(self, sequences: Sequence[Progress]) -> None:
        """End sequences and free their pages. Finished ones are ignored."""
        ...

    def stop(self, error: Exception) -> None:
        """End all unfinished sequences with `error`."""
        ...

    async def end(self, error: Exception) -> None:
        """Stop, and free all memory."""
        ...

    def streams(self) -> list[Progress]:
        """The sequences that are being computed."""
        ...

    def who(self) -> list[dict[str, Any]]:
        """A row of status for each worker or replica."""
        ...


class Reader:
    """The updates of one request's sequences. Use it as a context manager: leaving it cancels unfinished sequences.

    Its sinks are called on the event loop. If `limit` updates wait, the client does not read fast enough. Its sequences
    are then cancelled, which bounds the memory that a client can take. `pause` is awaited before waiting for updates.
    """

    def __init__(
        self,
        worker: Computes,
        jobs: Sequence[Job],
        limit: int,
        owner: tuple[str, str],
        pause: Callable[[], Awaitable[None]],
    ) -> None:
        jobs = [replace(job, owner=owner) for job in jobs]
        self._worker = worker
        self._pause = pause
        self._queue: deque[tuple[int, Update]] = deque()
        self._arrived = asyncio.Event()
        self._limit = limit
        self._open = len(jobs)
        self.ends: list[str | None] = [None] * len(jobs)  # why each ended, in the runtime's names
        self.sequences = worker.submit(jobs, [partial(self._put, i) for i in range(len(jobs))])

    def _put(self, index: int, update: Update) -> None:
        self._queue.append((index, update))
        self._arrived.set()
        if len(self._queue) == self._limit:
            self.close()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Update]]:
        """Yield (index of the sequence, update) until all have finished; the first error is raised."""
        while self._open:
            if not self._queue:
                await self._pause()
            await self._arrived.wait()
            self._arrived.clear()
            while self._queue:
                index, update = self._queue.popleft()
                if update.error:
                    raise update.error
                if update.finish == "cancelled":
                    raise ApiError("internal_error", "cancelled: the answer was not read")
                if update.finish:
                    self._open -= 1
                    self.ends[index] = update.finish
                    update = update._replace(finish=REASONS.get(update.finish, update.finish))
                yield index, update

    def close(self) -> None:
        self._worker.cancel(self.sequences)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            self.close()
