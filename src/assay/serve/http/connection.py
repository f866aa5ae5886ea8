"""Connections: a socket, and uvicorn with timeouts and an end of its own."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import Callable, Generator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from assay.errors import AssayError


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
