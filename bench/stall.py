"""Does any request hold up the others? The longest gap of `/health` and of an honest stream while each kind arrives.

    python bench/stall.py                      every kind of `fuzz/requests.py` and of the connections below: a table
    python bench/stall.py --only "a lens"      one kind; repeatable
    python bench/stall.py --seconds 10         for each kind, and as long without it (default 4)

One client asks for `/health` every 10 ms and reads a stream of tokens without end. Another sends requests of one kind,
two at a time. A gap is the time between two answers, or between two tokens. After each kind the server is measured
idle for as long, in the same run: the machine may do other work.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.soak import Target
from fuzz.requests import KINDS
from tests import tiny

PACE_S = 0.01
MOST_S, RATIO = 0.5, 3.0  # the longest gap allowed, and its ratio to that of an idle server
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


# -- what is not a request: connections that misbehave -------------------------------------------------------------


def _opened(target: Target) -> socket.socket:
    return socket.create_connection((target.host, target.port), timeout=10)


def slow_senders(target: Target, rng: random.Random) -> None:
    """Fifty connections that send a byte now and then."""
    connections = [_opened(target) for _ in range(50)]
    for byte in b"POST /tokenize HT":
        for connection in connections:
            with suppress(OSError):
                connection.sendall(bytes([byte]))
        time.sleep(0.02)
    for connection in connections:
        connection.close()


def floods_of_headers(target: Target, rng: random.Random) -> None:
    with _opened(target) as connection, suppress(OSError):
        connection.sendall(b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % i for i in range(20_000)))
        connection.recv(1000)
    with _opened(target) as connection, suppress(OSError):
        lines = b"".join(b"X-%d: a\r\n" % i for i in range(2_000))
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n")
        connection.recv(1000)


def half_closed(target: Target, rng: random.Random) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 500, "stream": True, "ignore_eos": True})
    with _opened(target) as connection, suppress(OSError):
        connection.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.05)


def unread_streams(target: Target, rng: random.Random) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 3000, "stream": True, "ignore_eos": True, "logprobs": 20})
    connections = []
    for _ in range(4):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((target.host, target.port))
        connection.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        connections.append(connection)
    time.sleep(1.0)
    for connection in connections:
        connection.close()


def pipelined(target: Target, rng: random.Random) -> None:
    with _opened(target) as connection, suppress(OSError):
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2_000)
        connection.settimeout(2)
        while connection.recv(65536):
            pass


def garbage(target: Target, rng: random.Random) -> None:
    with _opened(target) as connection, suppress(OSError):
        connection.sendall(rng.randbytes(4000))
        connection.recv(1000)


def many_small(target: Target, rng: random.Random) -> None:
    connection = target.connect(10)
    for _ in range(200):
        connection.request("POST", "/tokenize", b'{"content": "a"}', {"Content-Type": "application/json"})
        connection.getresponse().read()
    connection.close()


def new_connections(target: Target, rng: random.Random) -> None:
    connections = [_opened(target) for _ in range(300)]
    for connection in connections:
        connection.close()


CONNECTIONS: dict[str, Callable[[Target, random.Random], None]] = {
    function.__name__.replace("_", " "): function
    for function in (slow_senders, floods_of_headers, half_closed, unread_streams, pipelined, garbage, many_small,
                     new_connections)
}  # fmt: skip
EVERY = [*KINDS, *CONNECTIONS]


# -- who sends them ------------------------------------------------------------------------------------------------


def attacker(host: str, port: int, commands: Any, ready: Any) -> None:
    """In a process of its own. A command is the name of a kind, or "" to stop. Bodies are made before they are sent."""
    target = Target(None, host, port)  # type: ignore[arg-type]
    while True:
        name = commands.get()
        rng = random.Random(name)
        made = [KINDS[name](rng) for _ in range(4)] if name in KINDS else []
        over = threading.Event()
        threads = [threading.Thread(target=_send, args=(target, name, made, i, over), daemon=True) for i in range(2)]
        ready.put("")
        for thread in threads:
            thread.start()
        commands.get()
        over.set()
        for thread in threads:
            thread.join(30)
        ready.put("")


def _send(target: Target, name: str, made: list[tuple[str, bytes]], start: int, over: threading.Event) -> None:
    rng, i = random.Random(start), start
    while not over.is_set():
        try:
            if name in CONNECTIONS:
                CONNECTIONS[name](target, rng)
            else:
                _request(target, *made[i % len(made)])
        except (OSError, http.client.HTTPException):
            over.wait(0.05)
        i += 1


def _request(target: Target, path: str, body: bytes) -> None:
    connection = target.connect(20)
    try:
        method = "POST" if body else "GET"
        connection.request(method, path, body or None, {"Content-Type": "application/json"})
        connection.getresponse().read()
    finally:
        connection.close()


# -- who measures --------------------------------------------------------------------------------------------------


@dataclass
class Honest:
    """A client that asks for `/health` every 10 ms, and one that reads a stream. Each notes its longest gap."""

    target: Target
    health: float = 0.0
    stream: float = 0.0
    asked: float = 0.0  # time of the last answer of /health
    read: float = 0.0  # time of the last token; 0 before the first of a stream
    tokens: int = 0
    errors: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> None:
        for work in (self._ask, self._read):
            threading.Thread(target=self._guarded, args=(work,), daemon=True).start()
        while not (self.tokens and self.health):
            time.sleep(0.01)
        self.take()

    def take(self) -> tuple[float, float]:
        """The longest gaps since the last call, those that have not ended included."""
        now = time.monotonic()
        found = max(self.health, now - self.asked), max(self.stream, now - self.read if self.read else 0.0)
        self.health = self.stream = 0.0
        return found

    def _guarded(self, work: Callable[[], None]) -> None:
        while not self.over.is_set():
            try:
                work()
            except (OSError, http.client.HTTPException, RuntimeError) as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                self.over.wait(0.05)

    def _ask(self) -> None:
        connection = self.target.connect(60)
        self.asked = time.monotonic()
        while not self.over.is_set():
            connection.request("GET", "/health")
            reply = connection.getresponse()
            reply.read()
            if reply.status != 200:
                raise RuntimeError(f"/health: {reply.status}")
            now = time.monotonic()
            self.health, self.asked = max(self.health, now - self.asked), now
            time.sleep(PACE_S)

    def _read(self) -> None:
        connection = self.target.connect(60)
        body = {"prompt": "hello world", "max_tokens": 8000, "temperature": 0, "stream": True, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        self.read = 0.0
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {reply.read(300)!r}")
        for line in reply:
            if self.over.is_set():
                break
            if line.startswith(b"data: {"):
                if b'"error"' in line:
                    raise RuntimeError(line.decode()[:300])
                now = time.monotonic()
                self.stream, self.read = max(self.stream, now - self.read if self.read else 0.0), now
                self.tokens += 1
        self.read = 0.0
        connection.close()


@dataclass(frozen=True)
class Row:
    """The longest gaps in seconds, of the idle server and while one kind of request arrived."""

    kind: str
    idle: tuple[float, float]  # of /health, of the stream
    busy: tuple[float, float]

    def __str__(self) -> str:
        cells = [f"{1e3 * idle:.0f} ms | {1e3 * busy:.0f} ms" for idle, busy in zip(self.idle, self.busy, strict=True)]
        return f"| {self.kind} | {' | '.join(cells)} |"


def measure(target: Target, kinds: list[str], seconds: float, say: Callable[[str], None] = print) -> list[Row]:
    spawn = multiprocessing.get_context("spawn")
    commands, ready = spawn.Queue(), spawn.Queue()
    hostile = spawn.Process(target=attacker, args=(target.host, target.port, commands, ready), daemon=True)
    hostile.start()
    honest = Honest(target)
    honest.begin()
    rows = []
    try:
        for kind in kinds:
            commands.put(kind)
            ready.get(timeout=120)  # its bodies are made
            honest.take()
            time.sleep(seconds)
            busy = honest.take()
            commands.put("")
            ready.get(timeout=120)
            time.sleep(0.5)
            honest.take()
            time.sleep(seconds)
            rows.append(Row(kind, honest.take(), busy))
            say(str(rows[-1]))
    finally:
        honest.over.set()
        hostile.kill()
        hostile.join()
    if honest.errors:
        raise SystemExit(f"honest clients had {len(honest.errors)} errors: {honest.errors[:3]}")
    return rows


def summary(rows: list[Row]) -> tuple[str, bool]:
    """One line, and whether the longest gaps are short enough."""
    words, good = [], True
    for at, name in enumerate(("/health", "the stream")):
        idle, busy = max(row.idle[at] for row in rows), max(row.busy[at] for row in rows)
        usual = statistics.median(row.idle[at] for row in rows)
        good &= busy <= RATIO * idle and busy <= MOST_S
        words.append(f"{name}: {1e3 * busy:.0f} ms at most, {busy / idle:.2f} of the idle server's {1e3 * idle:.0f} ms "
                     f"(median {1e3 * usual:.0f} ms)")  # fmt: skip
    return "; ".join(words), good


def serve(folder: Path) -> Target:
    path = tiny.make(folder / "soak.gguf", n_ctx=8192, n_layer=4, n_embd=128, n_ff=256, metadata=tiny.ranking())
    return Target.start(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=EVERY, metavar="KIND", help="of the kinds; repeatable")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each kind, and idle after it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        target = serve(Path(folder))
        try:
            print("| kind | /health idle | busy | stream idle | busy |\n|---|---|---|---|---|")
            rows = measure(target, args.only or EVERY, args.seconds, lambda line: print(line, flush=True))
        finally:
            print(f"memory {target.memory() >> 20} MiB; the server ended with {target.end()}")
    words, good = summary(rows)
    print(words)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
