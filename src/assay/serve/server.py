"""Running it: a socket, uvicorn with timeouts of its own, and an orderly end.

SIGTERM or SIGINT: not ready, no new connections, running requests finish until the deadline, what is left then
gets an error, exit code 0. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry
from uvicorn.protocols.http.h11_impl import H11Protocol

from assay.errors import AssayError
from assay.serve import app
from assay.serve.errors import ApiError
from assay.serve.limits import Limits
from assay.serve.meter import Metrics
from assay.serve.models import Models, Options, open_models
from assay.serve.state import State

log = logging.getLogger("assay.serve")


@dataclass(frozen=True)
class Config:
    """What `assay serve` was asked for."""

    models: Sequence[tuple[str, Path]]
    host: str = "127.0.0.1"
    port: int = 8080
    key: str | None = None
    memory: int | None = None  # bytes for models; None: three quarters of the machine's
    options: Options = field(default_factory=Options)
    limits: Limits = field(default_factory=Limits)


class Protocol(H11Protocol):
    """uvicorn's, and it does not wait for ever for the end of a request's headers."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """A clock runs while there is no request; between two requests uvicorn's own does."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
        elif self._due is None and self.timeout_keep_alive_task is None:
            self._due = self.loop.call_later(self.config.header_s, self.transport.close)  # type: ignore[attr-defined]

    def _unwatch(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


class Server(uvicorn.Server):
    """uvicorn's, with an end of its own."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread
                loop.add_signal_handler(number, self._ask_to_end)
        try:
            yield
        finally:
            for number in signals:
                with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                    loop.remove_signal_handler(number)

    def _ask_to_end(self) -> None:
        if self.should_exit:
            self.force_exit = True
        else:
            self._on_exit()
            self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, or one line that says why not."""
    try:
        kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        found = socket.socket(kind, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        raise AssayError(f"{host}:{port}: cannot listen there ({error.strerror or error}); choose another") from None
    return found


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def run(config: Config, ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve until told to end. `ready` hears the address when the first model is loaded."""
    limits = config.limits
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    entries = open_models(config.models, config.options, limits)
    memory = config.memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
    models = Models(entries, limits, metrics, memory)
    # A page on the web can make a browser call a server on loopback under another name: unless a key protects it,
    # or everybody may call it anyway, the name must be this machine's.
    any_host = config.key is not None or not is_loopback(config.host)
    state = State(models, limits, registry, metrics, config.key, any_host)
    sock = listen(config.host, config.port)
    host, port = sock.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    settings = uvicorn.Config(
        app.create(state), http=Protocol, ws="none", lifespan="off", log_level="error", access_log=False,
        server_header=False, timeout_keep_alive=int(limits.idle_s), h11_max_incomplete_event_size=limits.headers,
        limit_concurrency=limits.connections, timeout_graceful_shutdown=int(limits.drain_s) + 5, backlog=1024,
    )  # fmt: skip
    settings.header_s = limits.header_s  # type: ignore[attr-defined]
    ending: list[asyncio.Task[None]] = []
    server = Server(settings, lambda: ending.append(asyncio.ensure_future(_drain(models, limits))))
    loading = asyncio.ensure_future(_load_first(models, server))
    loading.add_done_callback(lambda task: ready(url) if not task.cancelled() and not task.exception() else None)
    try:
        await server.serve(sockets=[sock])
    finally:
        loading.cancel()
        for task in ending:
            task.cancel()
        await models.close()
        sock.close()
    if loading.done() and not loading.cancelled() and (error := loading.exception()):
        raise error


async def _load_first(models: Models, server: Server) -> None:
    try:
        async with models.use(models.default):
            pass
    except ApiError as error:
        server.should_exit = True
        raise AssayError(error.message) from None
    except Exception:
        server.should_exit = True
        raise


async def _drain(models: Models, limits: Limits) -> None:
    """New work is refused at once; what runs has until the deadline."""
    error = ApiError("shutting_down", "the server is shutting down", headers={"Retry-After": "10"})
    models.closing = error
    await asyncio.sleep(limits.drain_s)
    models.abort(error)
