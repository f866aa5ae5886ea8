"""A process that listens for frames: what replicas and stages have in common.

`run` is given what to start as plain data, so that a subprocess, a Ray actor and a test start the same thing.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from assay.cluster.frames import Channel, ConnectionBroken, accept
from assay.cluster.launchers import Launcher

log = logging.getLogger("assay.cluster")
STRANGERS = 64  # connections at once that have not shown the token yet
SWITCH_S = 0.0005  # that the event loop waits for the scheduler's Python


class Service(Protocol):
    """Somebody to talk to."""

    async def attend(self, channel: Channel) -> None:
        """One connection, from its first frame to its end."""
        ...

    def close(self) -> None: ...


def make(spec: Mapping[str, Any], launcher: Launcher) -> Service:
    """What the specification names. Slow: weights are loaded."""
    if spec["kind"] == "stage":
        from assay.cluster.stage import StageService

        return StageService(spec)
    from assay.cluster.replica import Replica

    return Replica(spec, launcher)


async def run(
    service: Service, token: str, host: str, ready: Callable[[str, int], None], ended: asyncio.Event | None = None
) -> None:
    """Listen until `ended`."""
    sys.setswitchinterval(SWITCH_S)
    strangers = 0

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal strangers
        channel: Channel | None = None
        if strangers >= STRANGERS:
            writer.transport.abort()
            return
        strangers += 1
        try:
            channel = await accept(reader, writer, token)
        except ConnectionBroken as error:
            log.info("%s", error)
        finally:
            strangers -= 1
        try:
            if channel is not None:
                await service.attend(channel)
        except ConnectionBroken as error:
            log.info("%s", error)
        except asyncio.CancelledError:
            pass  # the process ends
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(meet, host, 0)
    async with server:
        ready(*server.sockets[0].getsockname()[:2])
        with suppress(asyncio.CancelledError):
            await (ended or asyncio.Event()).wait()
    service.close()
