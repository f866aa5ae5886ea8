"""From the worker's thread to a request's coroutine: a bounded queue, and the clean-up when either side ends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from assay.runtime.sequence import Job, Progress, Sink, Update
from assay.serve.api_errors import ApiError

# How OpenAI's clients call the ends of an answer; the others keep their names.
REASONS = {"eos": "stop", "grammar": "stop", "context": "length"}


class Backend(Protocol):
    """Whoever turns jobs into updates: a worker's thread, or replicas elsewhere. Sinks are called on the event loop."""

    @property
    def ready(self) -> bool:
        """Whether anybody can compute now."""
        ...

    def submit(self, jobs: Sequence[Job], sinks: Sequence[Sink]) -> Sequence[Progress]:
        """All of them or, when the queue has no room, none."""
        ...

    def cancel(self, sequences: Sequence[Progress]) -> None:
        """Free what they hold. Finished ones are left alone."""
        ...

    def stop(self, error: Exception) -> None:
        """End everything that is not finished with `error`."""
        ...

    async def end(self, error: Exception) -> None:
        """Stop, and let go of all memory."""
        ...

    def streams(self) -> list[Progress]:
        """What is being computed."""
        ...

    def who(self) -> list[dict[str, Any]]:
        """Everybody who computes, a row each."""
        ...


class Reader:
    """The updates of one request's sequences. Use it as a context: leaving cancels what is not finished.

    Its sinks are called on the event loop. When more than `limit` updates wait, the client does not read: its
    sequences are cancelled, so what it can make the server hold is bounded. `pause` is awaited before updates are.
    """

    def __init__(
        self,
        worker: Backend,
        jobs: Sequence[Job],
        limit: int,
        owner: tuple[str, str],
        pause: Callable[[], Awaitable[None]],
    ) -> None:
        jobs = [replace(job, owner=owner) for job in jobs]
        self._worker = worker
        self._pause = pause
        self._queue: deque[tuple[int, Update]] = deque()
        self._news = asyncio.Event()
        self._limit = limit
        self._open = len(jobs)
        self.ends: list[str | None] = [None] * len(jobs)  # how each ended, in the runtime's words
        self.sequences = worker.submit(jobs, [partial(self._put, i) for i in range(len(jobs))])

    def _put(self, index: int, update: Update) -> None:
        self._queue.append((index, update))
        self._news.set()
        if len(self._queue) == self._limit:
            self.close()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Update]]:
        """(sequence, update) until every sequence has finished; the first error is raised."""
        while self._open:
            if not self._queue:
                await self._pause()
            await self._news.wait()
            self._news.clear()
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
