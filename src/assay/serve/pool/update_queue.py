"""The bounded queue of updates from a backend to the coroutine of a request, with clean-up when either side ends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol
from weakref import WeakMethod

from assay.engines.contract import Arithmetic
from assay.runtime.prefix_store import PrefixStore
from assay.runtime.sequence import Job, Progress, Sink, Update
from assay.serve.api_errors import ApiError

# Finish reasons under OpenAI's names; others keep theirs.
REASONS = {"eos": "stop", "grammar": "stop", "context": "length"}


class Backend(Protocol):
    """Computes jobs: a worker thread of this process, or replicas. Sinks are called on the event loop."""

    @property
    def ready(self) -> bool:
        """Whether it can compute now."""
        ...

    @property
    def store(self) -> PrefixStore | None:
        """Its prefixes on disk, if --cache-dir is given."""
        ...

    def submit(self, jobs: Sequence[Job], sinks: Sequence[Sink]) -> Sequence[Progress]:
        """Submit all jobs or, if the queue is full, none."""
        ...

    def cancel(self, sequences: Sequence[Progress]) -> None:
        """End sequences and free their cache. Finished sequences are ignored."""
        ...

    def stop(self, error: Exception) -> None:
        """End all unfinished sequences with `error`."""
        ...

    async def end(self, error: Exception) -> None:
        """Stop, and free all memory."""
        ...

    def streams(self) -> list[Progress]:
        """The running sequences."""
        ...

    def arithmetic(self, sequence: Progress) -> Arithmetic | None:
        """Arithmetic that decides the bits of a sequence's logits; None if it is not known."""
        ...

    def rows(self) -> list[dict[str, Any]]:
        """The state of every worker or replica, one row each."""
        ...


class Reader:
    """The updates of one request's sequences. Use it as a context; leaving cancels unfinished sequences.

    Its sinks are called on the event loop. When `limit` updates are queued, the client is not reading: its sequences
    are cancelled, which bounds the memory that a client can take. `pause` is awaited before waiting for updates.
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
        self.worker = worker
        self._pause = pause
        self._queue: deque[tuple[int, Update]] = deque()
        self._news = asyncio.Event()
        self._limit = limit
        self._open = len(jobs)
        self.ends: list[str | None] = [None] * len(jobs)  # finish reason of each sequence, in the runtime's names
        # A sequence holds its sink. If the sink held this object, which holds the sequences, their memory would stay
        # until a garbage collection, which is rare: a trace has up to 256 MiB.
        put = WeakMethod(self._put)
        self.sequences = worker.submit(jobs, [partial(_put_if_read, put, i) for i in range(len(jobs))])

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
                    raise ApiError("internal_error", "cancelled: the client did not read the answer")
                if update.finish:
                    self._open -= 1
                    self.ends[index] = update.finish
                    update = update._replace(finish=REASONS.get(update.finish, update.finish))
                yield index, update

    def close(self) -> None:
        self.worker.cancel(self.sequences)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            self.close()


def _put_if_read(put: WeakMethod[Any], index: int, update: Update) -> None:
    if reading := put():
        reading(index, update)
