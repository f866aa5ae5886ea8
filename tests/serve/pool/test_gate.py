"""Places for slow work: clients enter in turn, a flood is refused, and nothing is lost when a client leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any

import pytest

from assay.serve.api_errors import ApiError
from assay.serve.pool.threads import Gate, Threads
from assay.system.fair_queue import CLIENT


def start(client: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task of a client."""
    context = copy_context()
    context.run(CLIENT.set, client)
    return asyncio.get_running_loop().create_task(work, context=context)


def test_clients_enter_in_turn() -> None:
    entered: list[str] = []

    async def visit(gate: Gate, name: str) -> None:
        async with gate:
            entered.append(name)
            await asyncio.sleep(0)

    async def main() -> None:
        gate = Gate("test", 1, 10)
        tasks = [start(name[0], visit(gate, name)) for name in ("a1", "a2", "a3", "a4", "b1", "c1")]
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert entered == ["a1", "a2", "b1", "c1", "a3", "a4"]


def test_a_flood_is_refused_and_another_client_is_not() -> None:
    async def visit(gate: Gate) -> None:
        async with gate:
            await asyncio.sleep(0.01)

    async def main() -> list[Any]:
        gate = Gate("test", 1, 2)
        flood = [start("a", visit(gate)) for _ in range(5)]
        await asyncio.sleep(0)
        other = start("b", visit(gate))
        return await asyncio.gather(*flood, other, return_exceptions=True)

    *flood, other = asyncio.run(main())
    assert other is None
    refused = [found for found in flood if isinstance(found, ApiError)]
    assert len(refused) == 3 and {error.code for error in refused} == {"rate_limit_exceeded"}


def test_a_client_that_leaves_takes_no_place_along() -> None:
    """It is cancelled while it waits, and in the very moment in which its turn has come."""

    async def main() -> None:
        gate = Gate("test", 1, 10)
        await gate.__aenter__()
        waiting, lucky = (start("a", gate.__aenter__()) for _ in range(2))
        await asyncio.sleep(0)
        waiting.cancel()
        gate.leave()  # the turn of the first would be now
        lucky.cancel()
        await asyncio.gather(waiting, lucky, return_exceptions=True)
        await asyncio.wait_for(gate.__aenter__(), 5)

    asyncio.run(main())


def test_a_thread_is_taken_until_its_work_has_ended() -> None:
    """Also when its client has left: otherwise a client could start work without end."""

    async def main() -> None:
        threads, go, n = Threads(), threading.Event(), 0

        def work() -> None:
            nonlocal n
            n += 1
            go.wait(30)

        tasks = [asyncio.ensure_future(threads.run("large", work)) for _ in range(3)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        later = asyncio.ensure_future(threads.run("large", lambda: "done"))
        await asyncio.sleep(0.05)
        assert n == 1 and not later.done()
        go.set()
        assert await asyncio.wait_for(later, 30) == "done"
        threads.close()

    asyncio.run(main())


def test_work_knows_its_client() -> None:
    async def main() -> str:
        threads = Threads()
        CLIENT.set("10.0.0.1")
        return await threads.run("text", CLIENT.get)

    assert asyncio.run(main()) == "10.0.0.1"


def test_an_unknown_kind_is_an_error_of_the_caller() -> None:
    with pytest.raises(KeyError):
        asyncio.run(Threads().run("nonsense", lambda: None))
