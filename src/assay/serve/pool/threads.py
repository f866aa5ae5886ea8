"""Work off the event loop, in pools apart: what one kind of request costs is never waited for by another kind.

A slot is held until the work has really ended, whether or not anybody still waits for it: a client that goes away does
not make room for the next of its kind. What has not begun is dropped with its client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from assay.serve.api_errors import ApiError

T = TypeVar("T")

# Threads of each kind. Rendering and compiling happen in other processes: their threads only wait.
POOLS = {"text": 4, "large": 1, "template": 4, "grammar": 4, "lens": 1}
WAITING = 64  # callers of one kind that may wait


class Threads:
    """The pools of one server."""

    def __init__(self) -> None:
        self._pools = {
            kind: ThreadPoolExecutor(size, thread_name_prefix=f"assay-{kind}") for kind, size in POOLS.items()
        }
        self._waiting = dict.fromkeys(POOLS, 0)

    async def run(self, kind: str, work: Callable[[], T]) -> T:
        """What `work` gives, when its turn has come."""
        if self._waiting[kind] >= WAITING:
            raise ApiError(
                "rate_limit_exceeded",
                f"{self._waiting[kind]} requests of this kind ({kind}) wait already; try again later",
                headers={"Retry-After": "5"},
            )
        self._waiting[kind] += 1
        future = self._pools[kind].submit(work)
        try:
            return await asyncio.wrap_future(future)
        finally:
            if future.done():
                self._waiting[kind] -= 1
            else:  # nobody waits, but it still runs
                loop = asyncio.get_running_loop()
                future.add_done_callback(lambda _: self._left(loop, kind))

    def _left(self, loop: asyncio.AbstractEventLoop, kind: str) -> None:
        def one_less() -> None:
            self._waiting[kind] -= 1

        with suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(one_less)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


class Turn:
    """One at a time, some in line, others told to come back."""

    def __init__(self, line: int = 4) -> None:
        self._lock = asyncio.Lock()
        self._line = line
        self._waiting = 0

    async def __aenter__(self) -> None:
        if self._waiting >= self._line:
            raise ApiError("rate_limit_exceeded", "others wait for this already; try again later",
                           headers={"Retry-After": "30"})  # fmt: skip
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
