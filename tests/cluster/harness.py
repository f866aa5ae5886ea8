"""Clusters for the tests: replicas as threads of this process (quick) or as processes, and a server before them."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from assay.cluster import service
from assay.cluster.fleet import Bounds, Fleet
from assay.cluster.launchers import LocalLauncher
from assay.cluster.replica_link import RoutedStream
from assay.cluster.replicated_model import Cluster, ReplicatedModel
from assay.runtime.opening import OpenOptions
from assay.serve import app
from assay.serve.api.server_state import State
from assay.serve.api_errors import ApiError
from assay.serve.limits import ServerLimits
from assay.serve.pool.meter import Metrics
from assay.serve.pool.models import ModelPool, ServedModel


class Thread:
    """A replica in a thread of this process. To kill it is to cut every connection to it, for good."""

    def __init__(self, name: str, spec: Mapping[str, Any]) -> None:
        self.name, self.node, self.host, self.port = name, f"node of {name}", "127.0.0.1", 0
        self.service = service.make(spec, LocalLauncher())
        self._token = spec["token"]
        self._listens, self._dead = threading.Event(), False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        self._listens.wait()

    async def _main(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()

        def ready(host: str, port: int) -> None:
            self.port = port
            self._listens.set()

        await service.run(self.service, self._token, self.host, ready, self._ended)

    def alive(self) -> bool:
        return not self._dead

    def kill(self) -> None:
        if not self._dead:
            self._dead = True
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(30)


class Threads:
    """The launcher of such replicas."""

    where = "threads"

    def __init__(self) -> None:
        self._numbers = count()
        self.started: list[Thread] = []

    def spawn(self, spec: Mapping[str, Any]) -> Thread:
        self.started.append(Thread(f"{spec['kind']}-{next(self._numbers)}", spec))
        return self.started[-1]

    def close(self) -> None:
        for thread in self.started:
            thread.kill()


def spec_of(path: Path, **options: Any) -> dict[str, Any]:
    given = {"engine": "cpu", "threads": 1, "cache_size": 2048} | options
    return {"path": str(path), "name": "", "options": given, "running": 32, "chunk": 32, "split": 0}


@asynccontextmanager
async def fleet_of(path: Path, launcher: Any = None, **given: Any) -> AsyncIterator[Fleet]:
    """A fleet with all its replicas up."""
    bounds = given.pop("bounds", None) or Bounds(given.pop("n", 2), given.pop("most", 8))
    spec = spec_of(path) | given.pop("spec", {})
    fleet = Fleet(launcher or Threads(), spec, token="secret", bounds=bounds, **given)
    await fleet.start()
    await fleet.wait_until_complete()
    try:
        yield fleet
    finally:
        await fleet.end(ApiError("shutting_down", "the end"))


@asynccontextmanager
async def client_of(
    path: Path, cluster: Cluster | None = None, options: OpenOptions | None = None, chunk: int = 32
) -> AsyncIterator[tuple[httpx.AsyncClient, ServedModel]]:
    """The server's own application over a model that is computed here or elsewhere, and a client of it."""
    limits, registry = ServerLimits(chunk=chunk), CollectorRegistry()
    options = options or OpenOptions(engine="cpu", threads=1, cache_size=2048)
    given = ("m", path, options, limits)
    entry = ReplicatedModel(*given, cluster=cluster) if cluster else ServedModel(*given)
    models = ModelPool([entry], limits, Metrics(registry), 1 << 40)
    state = State(models, limits, registry, models._metrics, None, True)
    transport = httpx.ASGITransport(app.create(state))
    async with models.use(entry):
        pass
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://router", timeout=120) as client:
            yield client, entry
    finally:
        await models.close()
        state.threads.close()


def plain(body: bytes) -> bytes:
    """A stream without what is a request's own: its id, its time, its events' names, the ids of its calls."""
    body = re.sub(rb"(?m)^id: [0-9a-f]{32}-[0-9a-f]+-[0-9a-f]+-", b"id: ", body)
    text = re.sub(rb'"(chatcmpl|cmpl)-[0-9a-f]{32}"', b'"ID"', body)
    text = re.sub(rb'"created":\d+', b'"created":0', text)
    return re.sub(rb'"call_[0-9a-f]{24}"', b'"CALL"', text)


def events(body: bytes) -> list[dict[str, Any]]:
    rows = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    assert rows[-1] == "[DONE]"
    return [json.loads(row) for row in rows[:-1]]


def kill_after(fleet: Fleet, tokens: int, kill: Callable[[RoutedStream], None]) -> None:
    """Have `kill` called when a stream has that many tokens, before anything else happens."""
    inner = fleet._apply_update

    def news(stream: RoutedStream, found: Mapping[str, Any], nodes: Any) -> None:
        inner(stream, found, nodes)
        if stream.generated == tokens and not stream.moves and not stream.finished:
            kill(stream)

    fleet._apply_update = news  # type: ignore[method-assign]
