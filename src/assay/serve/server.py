"""Run the server: bind a socket, run uvicorn with assay's timeouts, shut down gracefully.

On SIGTERM or SIGINT the server reports that it is not ready and accepts no new connections. Running requests may finish
until the drain deadline; the others then get an error, and the exit code is 0. A second signal exits at once.
"""

from __future__ import annotations

import asyncio
import gc
import math
import ssl
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry

from assay.errors import AssayError
from assay.runtime import hub
from assay.runtime.opening import OpenOptions
from assay.runtime.presets import Preset
from assay.runtime.receipts import Signer
from assay.serve import app
from assay.serve.api.browser_plans import BrowserPlans
from assay.serve.api.server_state import State
from assay.serve.api_errors import ApiError
from assay.serve.http.connection import AT_ONCE, Protocol, Server, allow_files, is_loopback, listen
from assay.serve.limits import ServerLimits
from assay.serve.pool.meter import Metrics
from assay.serve.pool.models import Make, ModelPool, Offer, ServedModel, open_models, states_line
from assay.system import machine

SWITCH_S = 0.0001  # interpreter switch interval: a thread that parses a long text must not delay engine steps


@dataclass(frozen=True)
class Config:
    """The configuration of `assay serve`."""

    models: Sequence[tuple[str, Path]]
    host: str = "127.0.0.1"
    port: int = 8080
    key: str | None = None
    cors: tuple[str, ...] = ()  # origins of other web pages that may call
    memory: int | None = None  # bytes for loaded models; None: three quarters of the machine's memory
    options: OpenOptions = field(default_factory=OpenOptions)
    limits: ServerLimits = field(default_factory=ServerLimits)
    browser: bool = False  # whether clients may run the models in their browser, which gives them the weights
    receipts: Path | None = None  # the file of the key that signs a receipt for every answer
    strict_model: bool = False  # whether a single model answers under its own name only
    reasoning_budget: int | None = None  # tokens of reasoning of a request that sets no limit
    tls: tuple[Path, Path] | None = None  # the files of the certificate and its key
    offers: Sequence[Offer] = ()  # further models, opened with the first request that names them
    presets: Sequence[Preset] = ()  # of the offers, those that clients have made
    most: int | None = None  # models in memory at once
    idle_s: float = math.inf  # seconds after which an unused model is unloaded
    media_urls: bool = False  # whether pictures are fetched from URLs that clients name
    manage: bool = False  # whether clients without a key may pull, make and delete models
    report: Callable[[str], None] = lambda line: None  # takes lines for the terminal: memory of states, the end
    make: Make = ServedModel  # makes a model of the server: computed in this process, or by replicas


async def run(config: Config, ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve until a signal. `ready` is called with the address when the first model is loaded."""
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()  # modules are never freed: exclude them from collections, which stop every thread
    try:
        await _run(config, ready)
    finally:
        gc.unfreeze()


async def _run(config: Config, ready: Callable[[str], None]) -> None:
    limits, entries, state = _state(config)
    secured = _secured(config.tls) if config.tls else {}
    sock = listen(config.host, config.port)
    url = _address(*sock.getsockname()[:2], secure=bool(secured))
    settings = uvicorn.Config(
        app.create(state), http=Protocol, ws="none", lifespan="off", log_level="error", access_log=False,
        server_header=False, timeout_keep_alive=int(limits.idle_s), h11_max_incomplete_event_size=limits.headers,
        timeout_graceful_shutdown=int(limits.drain_s) + 5, backlog=AT_ONCE, **secured,
    )  # fmt: skip
    settings.limits, settings.present = limits, {}  # type: ignore[attr-defined]
    allow_files(limits.connections + limits.spare + 256)
    ending: list[asyncio.Task[None]] = []

    def end() -> None:
        ending.append(asyncio.ensure_future(_drain(state.models, limits)))
        with suppress(OSError, ValueError):  # the terminal may be gone
            config.report(f"ending; requests that run now may take {limits.drain_s:g} s more")

    server = Server(settings, end)
    loading = asyncio.ensure_future(_load_first(state.models, server) if entries else asyncio.sleep(0))
    sleeping = asyncio.ensure_future(state.models.unload_idle())

    def loaded(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not task.exception():
            ready(url)
            for line in (*map(states_line, entries), *(entry.draft_choice for entry in entries)):
                if line:
                    config.report(line)

    loading.add_done_callback(loaded)
    try:
        await server.serve(sockets=[sock])
    finally:
        for task in (loading, sleeping, *ending):
            task.cancel()
        await state.models.close()
        if state.plans:
            await state.plans.close()
        state.threads.close()
        sock.close()
    if loading.done() and not loading.cancelled() and (error := loading.exception()):
        raise error


def _state(config: Config) -> tuple[ServerLimits, list[ServedModel], State]:
    """The limits, the models that are named at the start, and what the routes share."""
    limits = config.limits
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    entries = open_models(config.models, config.options, limits, config.make)
    if any(entry.sees for entry in entries):
        body = max(limits.body, limits.picture_body)
        limits = replace(limits, body=body, bodies=max(limits.bodies, 4 * body))
    models = ModelPool(
        entries, limits, metrics, config.memory or machine.memory() * 3 // 4,
        offers=config.offers, open_offer=lambda offer: _opened(config, models, offer), most=config.most,
        idle_s=config.idle_s,
    )  # fmt: skip
    models.strict = config.strict_model
    # DNS rebinding: a web page can make a browser call a loopback server under another host name. So the Host header
    # must name this machine, unless a key protects the server or any client may call it.
    any_host = config.key is not None or not is_loopback(config.host)
    signer = Signer.of_file(config.receipts) if config.receipts is not None else None
    state = State(models, limits, registry, metrics, config.key, any_host, config.cors, config.host, signer=signer)
    state.reasoning_budget = config.reasoning_budget
    state.media_urls = config.media_urls
    state.plans = BrowserPlans(limits) if config.browser else None
    state.manage = config.manage or config.key is not None
    state.presets = {preset.name: preset for preset in config.presets}
    return limits, entries, state


def _address(host: str, port: int, *, secure: bool) -> str:
    scheme = "https" if secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _secured(tls: tuple[Path, Path]) -> dict[str, Any]:
    """The options of uvicorn for TLS. A wrong file is refused before the server listens."""
    certificate, key = tls
    for option, path in (("--tls-cert", certificate), ("--tls-key", key)):
        if not path.is_file():
            raise AssayError(f"{option} {path}: no such file; give a PEM file")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise AssayError(
            f"--tls-cert {certificate}: cannot be used with {key} ({error}); give the certificate's chain and its key "
            "without a passphrase, as PEM files"
        ) from None
    return {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}


def _opened(config: Config, pool: ModelPool, offer: Offer) -> ServedModel:
    """Open an offered model. Names of one file share an engine if their options are the same."""
    preset = offer.preset
    path = hub.resolve(offer.model) if isinstance(offer.model, str) else offer.model
    options = config.options
    if preset:
        options = replace(
            options,
            draft=preset.draft or options.draft,
            ctx_size=options.ctx_size if preset.ctx_size is None else preset.ctx_size,
            lora=preset.lora or options.lora,
        )
    for entry in list(pool.entries.values()):
        if entry.base is entry and entry.file.path == path and entry.options == options:
            return entry.under(offer.name, preset)
    made = config.make(offer.name, path, options, config.limits)
    if preset:
        made.apply(preset)
    return made


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
    """Refuse new work, and wait for running requests until the deadline."""
    error = ApiError("shutting_down", "the server is shutting down", headers={"Retry-After": "10"})
    models.closing = error
    await asyncio.sleep(limits.drain_s)
    models.abort(error)
