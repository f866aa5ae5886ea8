"""Thread pools for slow work off the event loop, one pool per kind, so that kinds do not delay each other.

Waiting work is taken from each client in turn. A slot is held until the work has ended, even if its client
disconnected: otherwise disconnecting clients could start unbounded work. Work that has not started is dropped with its
client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

from assay.serve.api_errors import ApiError
from assay.system.fair_queue import CLIENT, FairQueue

T = TypeVar("T")

# Threads per kind. Rendering and compiling run in other processes, so their threads only wait.
POOLS = {
    "parse": 2,
    "text": 4,
    "large": 1,
    "template": 16,
    "grammar": 16,
    "lens": 1,
    "reply": 2,
    "disk": 2,
    "fetch": 4,
    "picture": 1,
}
WAITING = 64  # queue depth per kind


class Gate:
    """At most `size` holders and `line` waiting. They enter in fair turns; a request without a place gets an error.

    All methods run on the event loop.
    """

    def __init__(self, kind: str, size: int, line: int) -> None:
        self._kind = kind
        self._free = size
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue(line)

    async def __aenter__(self) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        lost = self._waiting.put(CLIENT.get(), turn)
        if lost is not None and not lost.done():
            lost.set_exception(self._full())
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.discard(CLIENT.get(), turn)
            if turn.done() and not turn.cancelled() and turn.exception() is None:  # the turn had come
                self.leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Free a place, and give it to the request whose turn it is."""
        self._free += 1
        while self._free and (turn := self._waiting.take()) is not None:
            if not turn.done():
                self._free -= 1
                turn.set_result(None)

    def _full(self) -> ApiError:
        return ApiError(
            "rate_limit_exceeded",
            f"{len(self._waiting)} requests of this kind ({self._kind}) are already waiting; try again later",
            headers={"Retry-After": "5"},
        )


class Threads:
    """The pools of one server. Its methods are called on the event loop."""

    def __init__(self) -> None:
        self._gates = {kind: Gate(kind, size, WAITING) for kind, size in POOLS.items()}
        self._pools = {
            kind: ThreadPoolExecutor(size, thread_name_prefix=f"assay-{kind}") for kind, size in POOLS.items()
        }

    async def run(self, kind: str, work: Callable[[], T]) -> T:
        """Run `work` in a thread of its kind and return its result."""
        gate = self._gates[kind]
        await gate.__aenter__()
        future = self._pools[kind].submit(copy_context().run, work)
        try:
            return await asyncio.wrap_future(future)
        finally:
            if future.done():
                gate.leave()
            else:  # the client is gone, but the work still runs
                loop = asyncio.get_running_loop()
                future.add_done_callback(lambda _: _call_soon(loop, gate.leave))

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the server has shut down
        loop.call_soon_threadsafe(function)
