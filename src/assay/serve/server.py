"""Running it: a socket, uvicorn with timeouts of its own, and an orderly end.

SIGTERM or SIGINT: not ready, no new connections, running requests finish until the deadline, what is left then
gets an error, exit code 0. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from prometheus_client import CollectorRegistry

from assay.errors import AssayError
from assay.runtime.opening import OpenOptions
from assay.serve import app
from assay.serve.api.state import State
from assay.serve.api_errors import ApiError
from assay.serve.http.connection import AT_ONCE, Protocol, Server, allow_files, is_loopback, listen
from assay.serve.limits import ServerLimits
from assay.serve.pool.meter import Metrics
from assay.serve.pool.models import Make, ModelPool, ServedModel, open_models
from assay.system import machine

SWITCH_S = 0.0001  # that a thread waits for another's Python: a long text must not slow every step of the engine


@dataclass(frozen=True)
class Config:
    """What `assay serve` was asked for."""

    models: Sequence[tuple[str, Path]]
    host: str = "127.0.0.1"
    port: int = 8080
    key: str | None = None
    cors: tuple[str, ...] = ()  # origins of pages elsewhere that may call
    memory: int | None = None  # bytes for models; None: three quarters of the machine's
    options: OpenOptions = field(default_factory=OpenOptions)
    limits: ServerLimits = field(default_factory=ServerLimits)
    make: Make = ServedModel  # of each model, what the server has of it: computed here, or elsewhere


async def run(config: Config, ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve until told to end. `ready` hears the address when the first model is loaded."""
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()  # modules live as long as the server: no collection, which stops every thread, need look at them
    try:
        await _run(config, ready)
    finally:
        gc.unfreeze()


async def _run(config: Config, ready: Callable[[str], None]) -> None:
    limits = config.limits
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    entries = open_models(config.models, config.options, limits, config.make)
    memory = config.memory or machine.memory() * 3 // 4
    models = ModelPool(entries, limits, metrics, memory)
    # A page on the web can make a browser call a server on loopback under another name: unless a key protects it,
    # or everybody may call it anyway, the name must be this machine's.
    any_host = config.key is not None or not is_loopback(config.host)
    state = State(models, limits, registry, metrics, config.key, any_host, config.cors)
    sock = listen(config.host, config.port)
    host, port = sock.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    settings = uvicorn.Config(
        app.create(state), http=Protocol, ws="none", lifespan="off", log_level="error", access_log=False,
        server_header=False, timeout_keep_alive=int(limits.idle_s), h11_max_incomplete_event_size=limits.headers,
        timeout_graceful_shutdown=int(limits.drain_s) + 5, backlog=AT_ONCE,
    )  # fmt: skip
    settings.limits, settings.present = limits, {}  # type: ignore[attr-defined]
    allow_files(limits.connections + limits.spare + 256)
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
        state.threads.close()
        sock.close()
    if loading.done() and not loading.cancelled() and (error := loading.exception()):
        raise error


async def _load_first(models: ModelPool, server: Server) -> None:
    try:
        async with models.use(models.default):
            pass
    except ApiError as error:
        server.should_exit = True
        raise AssayError(error.message) from None
    except Exception:
        server.should_exit = True
        raise


async def _drain(models: ModelPool, limits: ServerLimits) -> None:
    """New work is refused at once; what runs has until the deadline."""
    error = ApiError("shutting_down", "the server is shutting down", headers={"Retry-After": "10"})
    models.closing = error
    await asyncio.sleep(limits.drain_s)
    models.abort(error)
