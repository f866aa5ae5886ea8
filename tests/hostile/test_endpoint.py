"""`diagnose --endpoint` against servers that mean no good: every reply ends in a diagnosis or in one line, in time."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import load
from assay.text import Tokenizer
from assay.verify.endpoint import alternatives
from assay.verify.endpoint import wire as module
from assay.verify.endpoint.audit_findings import AuditOptions
from assay.verify.endpoint.blackbox import diagnose_endpoint
from assay.verify.endpoint.client import Client
from tests import tiny
from tests.verify.endpoint.test_blackbox import SHORT


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Reads a request's head, then does what it likes."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.2)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                continue
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    def one(connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(5)
                connection.recv(65536)
                answer(connection)
        except OSError:
            return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        thread.join()
        listener.close()


def http(body: bytes, head: bytes = b"HTTP/1.1 200 OK\r\n") -> bytes:
    return head + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body


def said(**choice: Any) -> bytes:
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}).encode()


def parallel(**lists: Any) -> bytes:
    return said(text="a", logprobs={"tokens": ["a"], "token_logprobs": [-1.0], **lists})


def content(*items: Any) -> bytes:
    return said(message={"content": "a"}, text="a", logprobs={"content": list(items)})


ESCAPE = "\x1b]0;owned\x07"
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"hello",
    "a list": b"[]",
    "a number": b"1",
    "choices is a number": b'{"choices": 5}',
    "choices is empty": b'{"choices": []}',
    "a choice is null": b'{"choices": [null]}',
    "a choice is a list": b'{"choices": [[1]]}',
    "usage is a list": b'{"choices": [{"text": "a"}], "usage": [1]}',
    "deep": b'{"choices":' + b"[" * 100_000,
    "deep and closed": b'{"choices":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "an integer of 5000 digits": b'{"choices": [{"text": "a", "x": ' + b"9" * 5000 + b"}]}",
    "not UTF-8": b'{"choices": [{"text": "\xff\xfe"}]}',
    "half a surrogate": b'{"choices": [{"text": "\\ud800", "logprobs": {"tokens": ["\\ud800"]}}]}',
    "tokens is a number": parallel(tokens=5),
    "tokens are objects": parallel(tokens=[{"a": 1}, [2], None, True]),
    "ids is text": parallel(ids="abc"),
    "ids are wrong": parallel(ids=[10**12]),
    "ids are negative": parallel(ids=[-5]),
    "ids are true": parallel(ids=[True]),
    "scores are text": parallel(token_logprobs=["x"]),
    "scores are NaN": parallel(token_logprobs=[float("nan")]),
    "scores are infinite": parallel(token_logprobs=[float("inf")]),
    "scores are 10^400": b'{"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [1' + b"0" * 400 + b"]}}]}",
    "top is a list": parallel(top_logprobs=[[1, 2]]),
    "top is a number": parallel(top_logprobs=3),
    "top is text": parallel(top_logprobs=["abc"]),
    "top of text": parallel(top_logprobs=[{"a": "b", "c": None}]),
    "content of numbers": content(1, 2, None),
    "content with lists": content({"token": ["a"], "id": {}, "logprob": []}),
    "content with a strange top": content({"token": "a", "logprob": -1, "top_logprobs": 5}),
    "content with ids outside": content({"token": "a", "id": 2**40, "logprob": -1}),
    "message is text": said(message="abc", logprobs={"content": [{"token": "a", "logprob": -1}]}),
    "finish is a list": said(text="a", finish_reason=[1], logprobs={"tokens": ["a"], "token_logprobs": [-1]}),
    "counts are text": b'{"choices": [{"text": "a"}], "usage": {"prompt_tokens": "x", "completion_tokens": "y"}}',
    "counts are infinite": b'{"choices": [{"logprobs": {"tokens": ["a"]}}], "usage": {"completion_tokens": 1e999}}',
    "a hundred thousand tokens": parallel(tokens=["a"] * 100_000, token_logprobs=[-1.0] * 100_000),
    "escapes": said(text=ESCAPE, logprobs={"tokens": [ESCAPE], "token_logprobs": [-1.0]}),
}
WIRES: dict[str, bytes] = {
    "closes at once": b"",
    "no status line": b"hello\r\n\r\n",
    "a status of text": b"HTTP/1.1 abc OK\r\n\r\n",
    "an endless header": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000,
    "a thousand headers": b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 1000 + b"\r\n",
    "a length that lies": b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{}",
    "a length of text": b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n{}",
    "a chunk that lies": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n{}",
    "a chunk of text": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n{}",
    "an error with escapes": http(ESCAPE.encode() * 100, b"HTTP/1.1 500 Oh\r\n"),
    "an error without a body": b"HTTP/1.1 500 Oh\r\nContent-Length: 100\r\n\r\n",
    "a redirect to itself": b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
    "a redirect to a file": b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
    "a redirect to nowhere": b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
}


# A server gives one answer to everything here: a dozen texts read it as a hundred do.
FEW = AuditOptions(prompts=SHORT.prompts, threads=1)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Tokenizer]:
    file = open_file(tiny.make(tmp_path_factory.mktemp("endpoint") / "a.gguf", n_layer=1, n_embd=32, n_ff=32))
    return load(file), Tokenizer.from_gguf(file)


@pytest.fixture(autouse=True)
def no_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested is the reading of answers, not the search for a cause that comes after."""
    monkeypatch.setattr(alternatives, "FAULTS", {})


def judged(parts: tuple[Any, Tokenizer], url: str) -> str:
    try:
        return diagnose_endpoint(parts[0], Client(url, parts[1]), options=FEW).verdict
    except AssayError as error:
        text = str(error)
        assert "\n" not in text and "\x1b" not in text and "\x07" not in text, repr(text)
        assert len(text) < 600
        return "refused"


@pytest.mark.parametrize("case", BODIES)
def test_any_answer_is_checked(parts: tuple[Any, Tokenizer], case: str) -> None:
    with server(lambda connection: connection.sendall(http(BODIES[case]))) as url:
        assert judged(parts, url) in ("refused", "fault", "unexplained", "undecided")


@pytest.mark.parametrize("case", WIRES)
def test_any_bytes_on_the_wire(parts: tuple[Any, Tokenizer], case: str) -> None:
    with server(lambda connection: connection.sendall(WIRES[case])) as url:
        assert judged(parts, url) == "refused"


def drip(connection: socket.socket, first: bytes) -> None:
    connection.sendall(first)
    for _ in range(600):
        connection.sendall(b" ")
        time.sleep(0.1)


@pytest.mark.parametrize("first", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{"])
def test_a_slow_drip_has_a_deadline(
    parts: tuple[Any, Tokenizer], first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte every tenth of a second resets every timeout of a socket; the answer as a whole has one of its own."""
    monkeypatch.setattr(module, "REPLY_S", 1.0)
    with server(lambda connection: drip(connection, first)) as url:
        started = time.monotonic()
        with pytest.raises(AssayError, match="no whole answer in time"):
            diagnose_endpoint(parts[0], Client(url, parts[1]))
        assert time.monotonic() - started < 20


def test_all_requests_together_have_a_deadline(parts: tuple[Any, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSION_S", 0.0)
    with (
        server(lambda connection: connection.sendall(http(b"{}"))) as url,
        pytest.raises(AssayError, match="in all"),
    ):
        Client(url, parts[1]).complete("a", n=1)


def test_an_endless_answer_is_cut_off(parts: tuple[Any, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REPLY", 1 << 16)

    def flood(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b" " * 65536)

    with server(flood) as url, pytest.raises(AssayError, match="longer than"):
        Client(url, parts[1]).complete("a", n=1)
