"""Connections: the listening socket, and uvicorn with additional timeouts and a graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import re
import signal
import socket
from collections.abc import Callable, Generator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from assay.errors import AssayError
from assay.serve.limits import ServerLimits

log = logging.getLogger("assay.serve")
_END = re.compile(rb"\n\r?\n")  # of the headers
GRACE = 1.0  # seconds in which a connection is not evicted after it was made or a response ended
AT_ONCE = 16  # connections accepted before the event loop runs other tasks


class Protocol(H11Protocol):
    """uvicorn's protocol with timeouts: for the headers of a request, for a client that does not read its response,
    and for idle connections when new ones need their place."""

    _due: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._used = self.loop.time()
        # Bytes that the kernel does not take at once count as unread. With TLS, asyncio takes an empty buffer for full
        # if the limit is 0.
        transport.set_write_buffer_limits(high=1 if transport.get_extra_info("sslcontext") else 0)
        self._make_room()
        self._watch()

    def _make_room(self) -> None:
        """Evict an idle connection when there are too many, unless it was used so lately that a request may follow.
        If none can be evicted and the spare ones are in use, refuse the new connection."""
        limits: ServerLimits = self.config.limits  # type: ignore[attr-defined]
        present: dict[Protocol, None] = self.config.present  # type: ignore[attr-defined]
        if len(present) >= limits.connections:
            late = self.loop.time() - GRACE
            idle = next((p for p in present if p._idle_since < late), None)
            if idle is not None:
                idle.transport.abort()
                present.pop(idle, None)
            elif len(present) >= limits.connections + limits.spare:
                self.transport.abort()
                return
        present[self] = None

    @property
    def _idle_since(self) -> float:
        """The time since which the connection is idle; infinity while a request runs."""
        return self._used if self.cycle is None or self.cycle.response_complete else math.inf

    def pause_writing(self) -> None:
        super().pause_writing()
        limits: ServerLimits = self.config.limits  # type: ignore[attr-defined]
        self._stalled = self.loop.call_later(limits.stall_s, self._give_up)

    def _give_up(self) -> None:
        log.info("dropped a client that did not read its response")
        self.transport.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unstall()

    def _unstall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def handle_events(self) -> None:
        """Check the headers before they are parsed: h11 limits only those that have not arrived as a whole."""
        if self.conn.their_state is h11.IDLE:
            limits: ServerLimits = self.config.limits  # type: ignore[attr-defined]
            data, _ = self.conn.trailing_data
            found = _END.search(data)
            end = found.start() if found else len(data)
            if end > limits.headers or data.count(b"\n", 0, end) > limits.header_lines:
                self._unwatch()
                self.send_400_response("the headers are too long, or too many")
                return
        super().handle_events()

    def on_response_complete(self) -> None:
        self._used = self.loop.time()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._unstall()
        self.config.present.pop(self, None)  # type: ignore[attr-defined]
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Run the header timeout before the first request; between two requests uvicorn's keep-alive timeout runs."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
        elif self._due is None and self.timeout_keep_alive_task is None:
            limits: ServerLimits = self.config.limits  # type: ignore[attr-defined]
            self._due = self.loop.call_later(limits.header_s, self.transport.close)

    def _unwatch(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


class Server(uvicorn.Server):
    """uvicorn's server with assay's shutdown."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(1024)  # backlog of the kernel; the loop accepts AT_ONCE at a time

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
            self.should_exit = True
            self._on_exit()


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. An error is one line with the reason."""
    if not 0 <= port <= 65535:  # the system would take the lowest 16 bits
        raise AssayError(f"{host}: no such port (found {port}, expected 0 to 65535); choose another port")
    try:
        kind, *_, address = _addresses(host, port)[0]
        found = socket.socket(kind, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except (OSError, UnicodeError, ValueError) as error:  # the last two: a name that is no name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise AssayError(f"{host}:{port}: cannot listen there ({reason}); choose another address or port") from None
    return found


def allow_files(wanted: int) -> None:
    """Raise the limit of open files to the number of connections, as far as the system allows."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard > 0 else wanted, hard))
    except (ImportError, ValueError, OSError):
        return


def _addresses(host: str, port: int) -> list[Any]:
    """The addresses of a host, which is a name, also with the dot at its end, or an address, also in brackets."""
    name = host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host.removesuffix(".")
    return socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)


def is_loopback(host: str) -> bool:
    """Whether a server on this host is reached from this machine only. The system reads the name, as in `listen`:
    127.1, 0x7f000001, ::ffff:127.0.0.1 and localhost. are loopback, too."""
    try:
        found = [ipaddress.ip_address(address[4][0].partition("%")[0]) for address in _addresses(host, 0)]
    except (OSError, UnicodeError, ValueError):
        return False
    return bool(found) and all((getattr(ip, "ipv4_mapped", None) or ip).is_loopback for ip in found)
