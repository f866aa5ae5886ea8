"""Thread pools for slow work off the event loop, one pool per kind, so that kinds do not delay each other.

A slot is held until the work has ended, even if its client disconnected: otherwise disconnecting clients could start
unbounded work. Work that has not started is dropped with its client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from assay.serve.api_errors import ApiError

T = TypeVar("T")

# Threads per kind. Rendering and compiling run in other processes, so their threads only wait.
POOLS = {"text": 4, "large": 1, "template": 4, "grammar": 4, "lens": 1}
WAITING = 64  # queue depth per kind


class Threads:
    """The pools of one server."""

    def __init__(self) -> None:
        self._pools = {
            kind: ThreadPoolExecutor(size, thread_name_prefix=f"assay-{kind}") for kind, size in POOLS.items()
        }
        self._waiting = dict.fromkeys(POOLS, 0)

    async def run(self, kind: str, work: Callable[[], T]) -> T:
        """Run `work` in a thread of its kind and return its result."""
        if self._waiting[kind] >= WAITING:
            raise ApiError(
                "rate_limit_exceeded",
                f"{self._waiting[kind]} requests of this kind ({kind}) are already waiting; try again later",
                headers={"Retry-After": "5"},
            )
        self._waiting[kind] += 1
        future = self._pools[kind].submit(work)
        try:
            return await asyncio.wrap_future(future)
        finally:
            if future.done():
                self._waiting[kind] -= 1
            else:  # the client is gone, but the work still runs
                loop = asyncio.get_running_loop()
                future.add_done_callback(lambda _: self._left(loop, kind))

    def _left(self, loop: asyncio.AbstractEventLoop, kind: str) -> None:
        def decrement() -> None:
            self._waiting[kind] -= 1

        with suppress(RuntimeError):  # the server has shut down
            loop.call_soon_threadsafe(decrement)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


class Turn:
    """A lock with a bounded queue: one holder, some waiting, the others get an error."""

    def __init__(self, line: int = 4) -> None:
        self._lock = asyncio.Lock()
        self._line = line
        self._waiting = 0

    async def __aenter__(self) -> None:
        if self._waiting >= self._line:
            raise ApiError("rate_limit_exceeded", "other requests are already waiting for this; try again later",
                           headers={"Retry-After": "30"})  # fmt: skip
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
