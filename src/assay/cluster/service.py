"""A process that listens for frames: the part that replicas and stages have in common.

A specification is plain data, so a subprocess, a Ray actor and a test can all start the same service from it.
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
UNPROVEN = 64  # open connections that have not proved the token yet
SWITCH_S = 0.0005  # interpreter switch interval: bounds how long the event loop waits for the scheduler's thread


class Service(Protocol):
    """A replica or a stage, as the listening socket sees it."""

    async def attend(self, channel: Channel) -> None:
        """Serve one connection, from its first frame to its end."""
        ...

    def close(self) -> None: ...


def make(spec: Mapping[str, Any], launcher: Launcher) -> Service:
    """The service that the specification names. Slow, because weights are loaded.

    A replica whose layers are split starts its stages with `launcher`.
    """
    if spec["kind"] == "stage":
        from assay.cluster.stage import StageService

        return StageService(spec)
    from assay.cluster.replica import Replica

    return Replica(spec, launcher)


async def run(
    service: Service, token: str, host: str, ready: Callable[[str, int], None], ended: asyncio.Event | None = None
) -> None:
    """Listen until `ended` is set. `ready` is called with the address once the socket listens."""
    sys.setswitchinterval(SWITCH_S)
    unproven = 0

    async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal unproven
        channel: Channel | None = None
        if unproven >= UNPROVEN:
            writer.transport.abort()
            return
        unproven += 1
        try:
            channel = await accept(reader, writer, token)
        except ConnectionBroken as error:
            log.info("%s", error)
        finally:
            unproven -= 1
        try:
            if channel is not None:
                await service.attend(channel)
        except ConnectionBroken as error:
            log.info("%s", error)
        except asyncio.CancelledError:
            pass  # the process is ending
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve_connection, host, 0)
    async with server:
        ready(*server.sockets[0].getsockname()[:2])
        with suppress(asyncio.CancelledError):
            await (ended or asyncio.Event()).wait()
    service.close()
