"""Thread pools for slow work outside the event loop, one for each kind of work, so that no kind delays another.

A place in the queue is held until the work has really ended, even if the client has disconnected meanwhile. A client
that repeatedly disconnects can therefore not start more work than others. Work that has not begun is dropped when its
client disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from assay.serve.api_errors import ApiError

T = TypeVar("T")

# Threads for each kind. Templates and grammars are processed in other processes, so their threads only wait.
POOLS = {"text": 4, "large": 1, "template": 4, "grammar": 4, "lens": 1}
WAITING = 64  # callers that may wait for one kind


class Threads:
    """The thread pools of one server."""

    def __init__(self) -> None:
        self._pools = {
            kind: ThreadPoolExecutor(size, thread_name_prefix=f"assay-{kind}") for kind, size in POOLS.items()
        }
        self._waiting = dict.fromkeys(POOLS, 0)

    async def run(self, kind: str, work: Callable[[], T]) -> T:
        """Run `work` in the pool of its kind, and return its result."""
        if self._waiting[kind] >= WAITING:
            raise ApiError(
                "rate_limit_exceeded",
                f"{self._waiting[kind]} requests of this kind ({kind}) are waiting already; try again later",
                headers={"Retry-After": "5"},
            )
        self._waiting[kind] += 1
        future = self._pools[kind].submit(work)
        try:
            return await asyncio.wrap_future(future)
        finally:
            if future.done():
                self._waiting[kind] -= 1
            else:  # the caller was cancelled, but the work still runs
                loop = asyncio.get_running_loop()
                future.add_done_callback(lambda _: self._work_ended(loop, kind))

    def _work_ended(self, loop: asyncio.AbstractEventLoop, kind: str) -> None:
        def decrement() -> None:
            self._waiting[kind] -= 1

        with suppress(RuntimeError):  # the event loop was closed meanwhile
            loop.call_soon_threadsafe(decrement)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


class Turn:
    """A lock with a bounded queue: one holder, at most `line` waiting, and further callers are refused."""

    def __init__(self, line: int = 4) -> None:
        self._lock = asyncio.Lock()
        self._line = line
        self._waiting = 0

    async def __aenter__(self) -> None:
        if self._waiting >= self._line:
            raise ApiError("rate_limit_exceeded", "too many requests are waiting for this already; try again later",
                           headers={"Retry-After": "30"})  # fmt: skip
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
