"""One hostile client beside honest ones: it is refused or waits, they do not notice, and the server lives."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

from assay.serve.http.connection import GRACE  # noqa: E402
from tests import tiny  # noqa: E402
from tests.serve.conftest import Server, Start, start, start_server  # noqa: E402, F401

SCHEMA = {"type": "integer", "multipleOf": 99999989}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tiny.make(tmp_path_factory.mktemp("serve") / "tiny.gguf", n_ctx=8192)
    found = start_server([("tiny", path)])
    yield found
    assert found.end() == 0


def honest(server: Server, text: str = "hello") -> float:
    """Seconds that an ordinary request takes; it must be answered."""
    started = time.monotonic()
    body = {"prompt": text, "max_tokens": 4, "temperature": 0}
    found = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert found.status_code == 200, found.text
    return time.monotonic() - started


def drop(server: Server, path: str, body: dict[str, Any], after: float) -> None:
    """Send a request and go away."""
    with pytest.raises(httpx.TimeoutException):
        httpx.post(f"{server.url}{path}", json=body, timeout=after)


def with_schema(server: Server, schema: dict[str, Any], timeout: float = 30) -> Any:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "a"}], "response_format": form, "max_tokens": 5}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=timeout)


def test_a_schema_whose_compilation_never_ends(server: Server) -> None:
    """It is refused, nothing of it goes on, and neither other grammars nor memory notice."""
    before = server.memory()
    found = with_schema(server, SCHEMA)
    assert found.status_code == 400 and found.json()["error"]["code"] == "invalid_grammar", found.text
    started = time.monotonic()
    assert with_schema(server, SCHEMA).status_code == 400
    assert time.monotonic() - started < 1.5, "what was refused once is refused at once"
    threads = [
        threading.Thread(target=with_schema, args=(server, {"type": "integer", "multipleOf": 99999000 + i}))
        for i in (11, 13, 17)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    assert with_schema(server, {"type": "boolean"}).status_code == 200
    honest(server)
    for thread in threads:
        thread.join()
    time.sleep(1)
    assert server.memory() - before < 200 << 20
    assert with_schema(server, {"type": "object", "properties": {"a": {"type": "integer"}}}).status_code == 200


def test_slow_schemas_do_not_starve_json_mode(server: Server) -> None:
    """Twelve slow schemas of one client: JSON mode and new schemas of all clients are answered before they are."""
    with_schema(server, {"type": "integer"})
    slow = [
        threading.Thread(target=with_schema, args=(server, {"type": "integer", "multipleOf": 98_000_000 + i}, 120))
        for i in range(12)
    ]
    for thread in slow:
        thread.start()
    time.sleep(0.5)
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5}
    forms = [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["x", "y"]}}},
    ]
    for address in ("127.0.0.2", "127.0.0.1"):  # another client, then the same one
        with httpx.Client(transport=httpx.HTTPTransport(local_address=address), timeout=60) as client:
            for form in forms:
                found = client.post(f"{server.url}/v1/chat/completions", json=body | {"response_format": form})
                assert found.status_code == 200, found.text
        waiting = sum(thread.is_alive() for thread in slow)
        assert waiting >= 6, f"{12 - waiting} of 12 slow ones were answered before"
    for thread in slow:
        thread.join()


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"anyOf": [{"$ref": "#/x"}]},
        {"type": "string", "pattern": "(" * 5000},
        {"type": "string", "pattern": "a{1000}{1000}{1000}"},
        {"type": "array", "minItems": 10**9},
        {"allOf": [{"type": "string"}] * 3000},
        {"type": "nonsense"},
        {"enum": []},
    ],
)
def test_schemas_that_do_not_compile_are_the_clients_fault(server: Server, schema: dict[str, Any]) -> None:
    found = with_schema(server, schema)
    assert found.status_code in (200, 400), found.text


def test_dropped_requests_hold_up_nobody(server: Server) -> None:
    """Seven texts of special tokens, each dropped at once: the eighth client's text is cut and answered."""
    for _ in range(7):
        drop(server, "/v1/completions", {"prompt": "</s>" * 60_000, "max_tokens": 1}, 0.05)
        drop(server, "/tokenize", {"content": "</s>" * 60_000}, 0.05)
        with suppress(httpx.TimeoutException):  # refused, or dropped before that
            httpx.post(f"{server.url}/tokenize", json={"content": "</s>" * 500_000}, timeout=1)
    assert honest(server) < 20
    found = httpx.post(f"{server.url}/tokenize", json={"content": "hello"}, timeout=20)
    assert found.status_code == 200


def test_two_megabytes_to_tokenize_are_refused(server: Server) -> None:
    for extra in ({}, {"with_pieces": True}):
        found = httpx.post(f"{server.url}/tokenize", json={"content": "z" * 2_090_000} | extra, timeout=30)
        assert found.status_code == 400 and found.json()["error"]["param"] == "content"


def test_pieces_are_bounded_and_built_beside_the_loop(server: Server) -> None:
    before = server.memory()
    found = httpx.post(f"{server.url}/tokenize", json={"content": "z" * 200_000, "with_pieces": True}, timeout=60)
    assert found.status_code == 400 and found.json()["error"]["param"] == "with_pieces"
    found = httpx.post(f"{server.url}/tokenize", json={"content": "z" * 8_000, "with_pieces": True}, timeout=60)
    assert found.status_code == 200 and len(found.json()["pieces"]) >= 8_000
    tokens = [300] * 262_145
    found = httpx.post(f"{server.url}/detokenize", json={"tokens": tokens}, timeout=30)
    assert found.status_code == 400
    assert server.memory() - before < 300 << 20


def test_scores_of_prompts_are_bounded(server: Server) -> None:
    body = {"prompt": [[300] * 4000] * 8, "max_tokens": 0, "echo": True, "logprobs": 20}
    found = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30)
    assert found.status_code == 400 and found.json()["error"]["param"] == "echo"


def test_a_million_empty_arrays(server: Server) -> None:
    for body in (b"[" + b"[]," * 690_000 + b"[]]", b'{"prompt": [' + b"[]," * 600_000 + b"[]]}"):
        started = time.monotonic()
        found = httpx.post(
            f"{server.url}/v1/completions", content=body, headers={"Content-Type": "application/json"}, timeout=60
        )
        assert found.status_code == 400
        assert time.monotonic() - started < 8
    brackets = "[{" * 100_000  # in a text they are letters
    found = httpx.post(f"{server.url}/tokenize", json={"content": brackets}, timeout=60)
    assert found.status_code == 200


def test_a_reader_that_does_not_read_a_plain_reply(start: Start, tmp_path: Path) -> None:  # noqa: F811
    """Whatever the reply, who takes nothing of it is dropped, and its memory with it."""
    path = tiny.make(tmp_path / "tiny.gguf", n_ctx=8192)
    server = start([("tiny", path)], limits={"stall_s": 1.0})
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({"content": "z" * 250_000}).encode()
    head = f"POST /tokenize HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    sockets = []
    for _ in range(8):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.sendall(head.encode() + body)
        sockets.append(connection)
    deadline = time.monotonic() + 40
    dropped: set[int] = set()
    while len(dropped) < len(sockets) and time.monotonic() < deadline:
        time.sleep(0.5)
        for i, connection in enumerate(sockets):
            if i not in dropped and _reset(connection):
                dropped.add(i)
    assert len(dropped) == len(sockets)
    assert httpx.get(f"{server.url}/health", timeout=5).status_code == 200
    honest(server)


def _reset(connection: socket.socket) -> bool:
    """Whether the other side has given the connection up, told without reading from it."""
    try:
        connection.sendall(b"x")
        time.sleep(0.05)
        connection.sendall(b"x")
    except OSError:
        return True
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


def test_a_connection_in_use_outlives_new_ones(start: Start, tmp_path: Path) -> None:  # noqa: F811
    """A client that asks again and again over one connection is not idle, however old its connection is."""
    path = tiny.make(tmp_path / "tiny.gguf")
    server = start([("tiny", path)], limits={"connections": 8, "spare": 300})
    address = server.url.removeprefix("http://").split(":")
    there = (address[0], int(address[1]))
    honest = http.client.HTTPConnection(*there, timeout=20)
    honest.request("GET", "/health")
    honest.getresponse().read()
    first = honest.sock
    held = []
    try:
        until = time.monotonic() + 1.5 * GRACE
        while time.monotonic() < until:
            time.sleep(GRACE / 10)
            honest.request("GET", "/health")
            assert honest.getresponse().read()
        for _ in range(12):
            held.append(socket.create_connection(there))
            time.sleep(0.02)
        for _ in range(3):
            honest.request("GET", "/health")
            assert honest.getresponse().read()
        assert honest.sock is first
    finally:
        honest.close()
        for connection in held:
            connection.close()


def test_health_is_answered_among_idle_connections(start: Start, tmp_path: Path) -> None:  # noqa: F811
    path = tiny.make(tmp_path / "tiny.gguf", n_ctx=512)
    server = start([("tiny", path)], limits={"connections": 64, "spare": 300})
    host, port = server.url.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(200)]
    for _ in range(3):
        assert httpx.get(f"{server.url}/health", timeout=5).status_code == 200
        honest(server)
    half = [socket.create_connection((host, int(port))) for _ in range(100)]
    for connection in half:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                           b"Content-Length: 100\r\n\r\n{")  # fmt: skip
    time.sleep(0.5)
    assert httpx.get(f"{server.url}/health", timeout=5).status_code == 200
    for connection in (*idle, *half):
        connection.close()
    time.sleep(0.5)
    honest(server)


def test_a_large_request_leaves_room_for_a_small_one(start: Start, tmp_path: Path) -> None:  # noqa: F811
    """Sixty long texts to embed, in one request: a short one beside them does not wait for them."""
    path = tiny.make(tmp_path / "tiny.gguf", n_ctx=8192, n_layer=6, n_embd=256, n_ff=512)
    server = start([("tiny", path)])
    alone = min(honest(server) for _ in range(2))
    body = {"input": [[300 + i % 15] * 4000 for i in range(60)]}
    ended: list[float] = []

    def large() -> None:
        try:
            httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=300)
            ended.append(time.monotonic())
        except httpx.HTTPError:  # the server is killed at the end
            return

    thread = threading.Thread(target=large)
    thread.start()
    time.sleep(1.0)
    waits = [honest(server, f"a{i}") for i in range(3)]
    assert not ended, "the large request must still be running for this to mean anything"
    server.process.kill()  # the rest of it proves nothing more
    thread.join(timeout=0)
    assert max(waits) < max(3.0, 30 * alone), (waits, alone)


def test_a_killed_helper_is_replaced(server: Server) -> None:
    """The processes of the boxes are killed under load; requests go on."""
    import subprocess

    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    for _ in range(3):
        assert httpx.post(f"{server.url}/v1/chat/completions", json=chat, timeout=30).status_code == 200
        assert with_schema(server, {"type": "boolean"}).status_code == 200
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(server.process.pid)], capture_output=True, text=True
        ).stdout.split()
        assert children
        for pid in children:
            subprocess.run(["kill", "-9", pid])


class _Health:
    """The longest time between two answers of /health while the block runs."""

    def __init__(self, server: Server) -> None:
        self._url, self.longest, self._over = f"{server.url}/health", 0.0, threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._over.is_set():
                begun = time.monotonic()
                assert client.get(self._url).status_code == 200
                self.longest = max(self.longest, time.monotonic() - begun)
                time.sleep(0.005)

    def __enter__(self) -> _Health:
        self._thread.start()
        time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def test_traces_stall_nobody_and_few_are_in_memory(start: Start, tmp_path: Path) -> None:  # noqa: F811
    """Patterns are matched beside the event loop. Of six traces of 100 MB two are in memory at once, and then none."""
    path = tiny.make(tmp_path / "wide.gguf", n_layer=40, n_ff=1024)
    server = start([("wide", path)])
    body: dict[str, Any] = {"tokens": [300] * 128, "nodes": ["*"], "first": 0}
    assert httpx.post(f"{server.url}/v1/trace", json=body, timeout=60).status_code == 200
    many = [f"*[!{i}]*[!{i % 7}]*[!x]*put" for i in range(100, 356)]  # the last of 803 nodes
    with _Health(server) as health:
        found = httpx.post(f"{server.url}/v1/trace", json=body | {"tokens": [300], "nodes": many}, timeout=60)
    assert found.status_code == 200, found.text
    assert health.longest < 0.5
    before, most = server.memory(), 0
    threads = [
        threading.Thread(target=httpx.post, args=(f"{server.url}/v1/trace",), kwargs={"json": body, "timeout": 120})
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most = max(most, server.memory() - before)
        time.sleep(0.02)
    assert most < 400 << 20
    time.sleep(1.5)  # the engine returns memory when it is idle
    assert server.memory() - before < 80 << 20
