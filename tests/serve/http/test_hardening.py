"""What strangers send: keys, hosts, sizes, times, nonsense, and an OpenAPI document that tells the truth."""

from __future__ import annotations

import ipaddress
import json
import os
import random
import socket
import string
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.errors import AssayError
from assay.serve.api_errors import KINDS
from assay.serve.http.connection import is_loopback, listen
from tests import forked
from tests.serve.conftest import Server, Start
from tests.tiny import make
from tests.waiting import wait_until

ASK = [{"role": "user", "content": "hello"}]


def post(server: Server, path: str, body: Any = None, **kwargs: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=60, **kwargs)


def code(response: httpx.Response) -> tuple[int, str]:
    error = response.json()["error"]
    if isinstance(error, str) or response.json().get("type") == "error":  # as Ollama's and Anthropic's clients read it
        return response.status_code, next(name for name, kind in KINDS.items() if kind.status == response.status_code)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == KINDS[error["code"]].type
    assert response.status_code == KINDS[error["code"]].status
    return response.status_code, error["code"]


# --- who may ask


def test_a_key_guards_every_route_but_health(start: Start, tiny: Path) -> None:
    server = start([("tiny", tiny)], key="s3cret")
    with httpx.Client(base_url=server.url) as client:
        document = client.get("/openapi.json", headers={"Authorization": "Bearer s3cret"}).json()
        for path, methods in (document["paths"] | {"/": {"get": {}}, "/nowhere": {"get": {}}}).items():
            for method in methods:
                for header in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "s3cret"}):
                    answer = client.request(method, path, headers=header)
                    if path == "/health":
                        assert answer.status_code == 200
                    else:
                        assert code(answer) == (401, "invalid_api_key")
    good = {"Authorization": "Bearer s3cret"}
    assert post(server, "/tokenize", {"content": "hello"}, headers=good).status_code == 200
    assert httpx.get(f"{server.url}/", auth=("anyone", "s3cret")).status_code == 200  # as a browser asks


def test_only_this_machines_name_is_answered(server: Server) -> None:
    assert code(httpx.get(f"{server.url}/v1/models", headers={"Host": "evil.example"})) == (403, "forbidden_host")
    for host in ("localhost:1", "127.0.0.1", "[::1]:8080"):
        assert httpx.get(f"{server.url}/v1/models", headers={"Host": host}).status_code == 200


LOOPBACKS = ("127.0.0.1", "127.1", "0x7f000001", "2130706433", "localhost", "localhost.", "127.8.8.8",
             "::1", "0:0:0:0:0:0:0:1", "[::1]", "::ffff:127.0.0.1")  # fmt: skip


@pytest.mark.parametrize("host", LOOPBACKS)
def test_loopback_in_every_spelling(host: str) -> None:
    """What the socket binds to decides, not how it was written."""
    assert is_loopback(host)
    try:
        with listen(host, 0) as bound:
            found = ipaddress.ip_address(bound.getsockname()[0])
    except AssayError:
        pytest.skip("this machine has no IPv6")
    assert (getattr(found, "ipv4_mapped", None) or found).is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "no.such.host.invalid", "a" * 300, "\0", "fe80::1"])
def test_what_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["127.1", "::ffff:127.0.0.1"])
def test_a_loopback_server_checks_the_host_however_it_was_spelled(start: Start, tiny: Path, host: str) -> None:
    server = start([("tiny", tiny)], host=host)
    url = f"http://127.0.0.1:{server.url.rsplit(':', 1)[1]}/v1/models"
    assert code(httpx.get(url, headers={"Host": "evil.example"})) == (403, "forbidden_host")
    for name in (*LOOPBACKS[:6], "[::1]", "127.1:8080", "LOCALHOST.:1"):
        assert httpx.get(url, headers={"Host": name}).status_code == 200, name
    for name in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "1.2.3.4.5", "0x7f.example"):
        assert httpx.get(url, headers={"Host": name}).status_code == 403, name


@pytest.mark.parametrize("port", [65536, 99999, 2**31, -1])
def test_a_port_that_is_no_port(port: int) -> None:
    with pytest.raises(AssayError, match=rf"found {port}, expected 0 to 65535"):
        listen("127.0.0.1", port)


def test_a_server_for_everyone_without_a_key_warns(tiny: Path) -> None:
    for extra, warned in ((["--host", "0.0.0.0"], True), (["--host", "0.0.0.0", "--api-key", "k"], False)):
        command = [sys.executable, "-m", "assay", "serve", str(tiny), "--port", "0", "--json", *extra]
        process = forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
        assert process.stdout and process.stderr
        process.stdout.readline()
        process.terminate()
        said = process.stderr.read()
        assert process.wait(60) == 0
        assert ("every machine that reaches this port may use the server" in said) == warned, said


def test_it_listens_on_loopback_by_default(server: Server) -> None:
    assert server.url.startswith("http://127.0.0.1:")


def test_every_response_carries_the_security_headers(server: Server) -> None:
    for path in ("/", "/health", "/nowhere"):
        headers = httpx.get(f"{server.url}{path}").headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


# --- what may be asked


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": ASK * 1025}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages.0.content.0.text",
        ),
        (
            "/v1/chat/completions",
            {"messages": ASK, "response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}},
            "response_format.json_schema.schema",
        ),
        ("/v1/chat/completions", {"messages": ASK, "response_format": {"type": "zork"}}, "response_format.type"),
        ("/v1/chat/completions", {"messages": ASK, "n": 0}, "n"),
        ("/v1/chat/completions", {"messages": ASK, "n": 17}, "n"),
        ("/v1/chat/completions", {"messages": ASK, "max_tokens": 0}, "max_tokens"),
        ("/v1/chat/completions", {"messages": ASK, "temperature": -1}, "temperature"),
        ("/v1/chat/completions", {"messages": ASK, "temperature": "hot"}, "temperature"),
        ("/v1/chat/completions", {"messages": ASK, "stream": "true"}, "stream"),
        ("/v1/chat/completions", {"messages": ASK, "top_logprobs": 21}, "top_logprobs"),
        ("/v1/chat/completions", {"messages": ASK, "stop": ["a"] * 17}, "stop"),
        ("/v1/chat/completions", {"messages": ASK, "stop": ["a" * 300]}, "stop.0"),
        ("/v1/chat/completions", {"messages": ASK, "logit_bias": {"99999": 1}}, "logit_bias"),
        ("/v1/chat/completions", {"messages": ASK, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": [1, 99999]}, "prompt"),
        ("/v1/completions", {"prompt": ["a"] * 65}, "prompt"),
        ("/v1/completions", {"prompt": ["a"] * 10, "n": 16}, "n"),
        ("/v1/completions", {"prompt": "a", "best_of": 3}, "best_of"),
        ("/v1/completions", {"prompt": "a", "n": 16, "logprobs": 20, "max_tokens": 5000}, "max_tokens"),
        ("/v1/chat/completions", {"messages": ASK, "n": 16, "logprobs": True, "max_tokens": 20_000}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ("/v1/embeddings", {"input": "a", "dimensions": 65}, "dimensions"),
        ("/v1/trace", {"prompt": "a", "tokens": [1]}, "prompt"),
        ("/v1/trace", {"prompt": "a", "nodes": ["nothing-*"]}, "nodes"),
        ("/detokenize", {"tokens": [99999]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0"),
    ],
)
def test_a_wrong_field_is_named(server: Server, path: str, body: dict[str, Any], param: str) -> None:
    answer = post(server, path, body)
    assert code(answer)[0] == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"content": NaN}', b'{"content": "a", "x": 1e999}',
        b"[" * 100_000, b'{"a":' * 50_000, b'{"content": "\\ud800"}', b'{"content": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
def test_a_body_that_is_no_request(server: Server, body: bytes) -> None:
    answer = httpx.post(f"{server.url}/tokenize", content=body, headers={"Content-Type": "application/json"})
    assert code(answer)[0] == 400


def test_bodies_must_be_json_and_small(start: Start, tiny: Path) -> None:
    server = start([("tiny", tiny)], limits={"body": 10_000})
    for headers in (
        {"Content-Type": "text/plain"},
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        answer = httpx.post(f"{server.url}/tokenize", content=b'{"content":"a"}', headers=headers)
        assert code(answer) == (415, "unsupported_media_type")
    assert httpx.post(f"{server.url}/tokenize", content=b'{"content":"a"}').status_code == 200  # curl -d
    kind = {"Content-Type": "application/json"}
    assert code(httpx.post(f"{server.url}/tokenize", content=b"x" * 10_001, headers=kind)) == (413, "body_too_large")

    def endless() -> Any:
        for _ in range(100):
            yield b'{"content": "' + b"a" * 1000

    answer = httpx.post(f"{server.url}/tokenize", content=endless(), headers=kind)  # without a length
    assert code(answer) == (413, "body_too_large")


@pytest.mark.parametrize(
    "extra",
    [
        {"grammar": "root ::= ("},
        {"grammar": "start: /(/"},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "http://127.0.0.1:1/x"}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "file:///etc/passwd"}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["a" * 1000] * 100}}}},
    ],
)
def test_a_grammar_that_does_not_compile(server: Server, extra: dict[str, Any]) -> None:
    answer = post(server, "/v1/chat/completions", {"messages": ASK} | extra)
    assert code(answer) == (400, "invalid_grammar")
    assert "root:" not in answer.text  # nothing of a file


def test_grammars_that_take_long_end(server: Server) -> None:
    """Whatever they ask for, an answer comes: an error, or a text that fits."""
    nasty = [
        "start: /" + "(a|b|ab)*" * 60 + "c{1,500}/",
        "start: (" + "A " * 2000 + ")+\nA: /[a-z]{1,900}/",
        "root ::= " + "(" * 500 + '"a"' + ")*" * 500,
    ]
    for grammar in nasty:
        answer = post(server, "/v1/chat/completions", {"messages": ASK, "grammar": grammar, "max_tokens": 4})
        assert answer.status_code in (200, 400, 500)
    assert post(server, "/tokenize", {"content": "hello"}).status_code == 200


def test_a_hostile_template_is_cut_off(start: Start, tmp_path: Path) -> None:
    loop = "{% for a in range(10**9) %}{% for b in range(10**9) %}{% endfor %}{% endfor %}"
    server = start([("loop", make(tmp_path / "loop.gguf", template=loop))], limits={"template_s": 0.5})
    answer = post(server, "/v1/chat/completions", {"messages": ASK})
    assert code(answer) == (400, "invalid_prompt")
    assert post(server, "/v1/completions", {"prompt": "hello", "max_tokens": 2}).status_code == 200


def test_deadlines(start: Start, tmp_path: Path) -> None:
    path = make(tmp_path / "slow.gguf", n_ctx=8192, n_layer=8)
    server = start([("slow", path)], options={"engine": "reference"})
    body = {"prompt": "hello", "max_tokens": 8000, "ignore_eos": True, "timeout": 1}
    assert code(post(server, "/v1/completions", body)) == (504, "deadline_exceeded")
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body | {"stream": True}, timeout=60) as answer:
        events = [line for line in answer.iter_lines() if line]
    assert json.loads(events[-2][6:])["error"]["code"] == "deadline_exceeded"
    assert events[-1] == "data: [DONE]"


@pytest.mark.slow
def test_a_slow_sender_is_cut_off(start: Start, tiny: Path) -> None:
    server = start([("tiny", tiny)], limits={"header_s": 0.5, "body_s": 0.5, "idle_s": 1})
    host, port = server.url.removeprefix("http://").split(":")
    for sent in (b"", b"GET /health HT", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"):  # no end of the headers
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(sent)
            connection.settimeout(30)
            assert connection.recv(1000) == b""
    head = (
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    with socket.create_connection((host, int(port))) as connection:  # no end of the body
        connection.sendall(head)
        connection.settimeout(30)
        assert b" 408 " in connection.recv(10_000)
    with socket.create_connection((host, int(port))) as connection:  # nothing after a first request
        connection.settimeout(30)
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while b"ok" not in received:
            received += connection.recv(1000)
        assert connection.recv(1000) == b""
    with socket.create_connection((host, int(port))) as connection:  # headers without end
        connection.settimeout(30)
        connection.sendall(b"GET /health HTTP/1.1\r\nX: " + b"a" * 100_000)
        assert b" 400 " in connection.recv(10_000)


@pytest.mark.parametrize("headers", [b"X: a\r\n" * 200, b"X: " + b"a" * 40_000 + b"\r\n", b"X: a\n" * 20_000])
@pytest.mark.parametrize(
    "before", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"], ids=["first", "pipelined"]
)
def test_headers_that_arrive_at_once_are_limited_too(server: Server, headers: bytes, before: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.settimeout(30)
        connection.sendall(before + b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n")
        received = b""
        while part := connection.recv(10_000):
            received += part
    assert received.count(b"HTTP/1.1 200") == bool(before) and b"HTTP/1.1 400" in received, received


def test_a_client_may_send_a_hundred_headers(server: Server) -> None:
    headers = {f"X-{i}": "a" * 200 for i in range(100)}
    assert httpx.get(f"{server.url}/health", headers=headers).status_code == 200


@pytest.mark.slow
def test_a_reader_that_does_not_read_is_dropped(start: Start, tmp_path: Path) -> None:
    """Its buffer fills, its sequence ends, and its pages are free again."""
    path = make(tmp_path / "long.gguf", n_ctx=32768)
    server = start([("long", path)], limits={"buffer": 64, "stall_s": 1.0}, options={"ctx_size": 32768})
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({
        "prompt": "hello", "max_tokens": 30000, "ignore_eos": True, "stream": True, "logprobs": 20,
    }).encode()  # fmt: skip
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.sendall(head.encode() + body)
        wait_until(lambda: metric(server, "assay_sequences_total", reason="cancelled") == 1, 120)
    assert metric(server, "assay_running") == 0
    assert metric(server, "assay_generated_tokens_total") < 30000


def metric(server: Server, name: str, **labels: str) -> float:
    for line in httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines():
        if line.startswith(name + "{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


# --- 200 strangers


@pytest.mark.slow
def test_200_malformed_and_oversize_requests(start: Start, tiny: Path) -> None:
    server = start([("tiny", tiny)])
    rng = random.Random(1)
    paths = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/trace", "/tokenize", "/apply-template"]
    host, port = server.url.removeprefix("http://").split(":")
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for i in range(200):
            path, kind = rng.choice(paths), i % 5
            if kind == 0:  # bytes
                body = bytes(rng.randrange(256) for _ in range(rng.randrange(2000)))
                answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
            elif kind == 1:  # too large
                answer = client.post(
                    path, content=b"{" + b" " * (3 << 20), headers={"Content-Type": "application/json"}
                )
            elif kind == 2:  # JSON of the wrong shape
                answer = client.post(path, json=_nonsense(rng, 3))
            elif kind == 3:  # the right keys with the wrong values
                keys = ["messages", "prompt", "input", "content", "n", "stop", "tools", "max_tokens", "logit_bias"]
                answer = client.post(path, json={key: _nonsense(rng, 2) for key in keys})
            else:  # not even HTTP
                with socket.create_connection((host, int(port))) as connection:
                    connection.sendall(bytes(rng.randrange(256) for _ in range(200)) + b"\r\n\r\n")
                    connection.settimeout(30)
                    assert connection.recv(10_000)[:12] in (b"HTTP/1.1 400", b"")
                continue
            if answer.status_code != 200:  # chance may find a request that is right
                assert code(answer)[0] in (400, 413, 415), (path, answer.text[:200])
        assert client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 3}).status_code == 200


def _nonsense(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(7 if depth else 5)
    if kind == 0:
        return "".join(rng.choice(string.printable) for _ in range(rng.randrange(20)))
    if kind == 1:
        return rng.choice([-1, 0, 2**40, -(2**70), 1.5])
    if kind in (2, 3):
        return rng.choice([None, True, False])
    if kind == 4:
        return []
    if kind == 5:
        return [_nonsense(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    return {str(rng.randrange(5)): _nonsense(rng, depth - 1) for _ in range(rng.randrange(1, 4))}


# --- starting and failing


def assay(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [sys.executable, "-m", "assay", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ,
    )


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_is_one_line_and_exit_code_2(tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny.read_bytes()[:5000])
    for arguments in (
        [str(broken)],
        [str(tiny), "--engine", "abacus"],
        [str(tiny), "--models-memory", "1K"],
        [str(tiny), str(tiny)],
    ):
        done = assay(*arguments, "--port", "0")
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("assay: ")
        assert len(done.stderr.strip().splitlines()) == 1


def test_a_port_that_is_taken(server: Server, tiny: Path) -> None:
    done = assay(str(tiny), "--port", server.url.rsplit(":", 1)[1])
    assert done.returncode == 2
    assert "cannot listen" in done.stderr


def test_the_command_line(tiny: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "assay", "serve", str(tiny), "--port", "0", "--json"],
        stdout=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    try:
        assert process.stdout
        said = json.loads(process.stdout.readline())
        assert said["models"] == ["tiny"]
        assert httpx.get(f"{said['url']}/ready").status_code == 200
    finally:
        process.terminate()
    assert process.wait(60) == 0


# --- several models


def test_models_are_loaded_on_demand_within_a_budget(start: Start, tmp_path: Path) -> None:
    paths = [(name, make(tmp_path / f"{name}.gguf", seed=i)) for i, name in enumerate("abc")]
    server = start(paths, memory=18 << 20, options={"cache_size": 32768})  # each has 8 MiB of cache

    def loaded() -> set[str]:
        return {m["id"] for m in httpx.get(f"{server.url}/v1/models").json()["data"] if m["loaded"]}

    def ask(name: str) -> str:
        answer = post(server, "/v1/completions", {"model": name, "prompt": "hello", "max_tokens": 8, "temperature": 0})
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text

    assert loaded() == {"a"}
    first = {name: ask(name) for name in "ab"}
    assert loaded() == {"a", "b"}
    time.sleep(0.01)
    ask("a")
    first["c"] = ask("c")  # b has been idle the longest
    assert loaded() == {"a", "c"}
    assert {name: ask(name) for name in "abc"} == first
    assert metric_of(server, "assay_models_loaded") == 2


def metric_of(server: Server, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))


def test_a_text_that_cannot_fit_is_not_even_tokenized(server: Server) -> None:
    answer = post(server, "/v1/completions", {"prompt": "a" * 1_000_000})
    assert code(answer) == (400, "context_length_exceeded")
    assert "1000000 characters" in answer.json()["error"]["message"]
    assert (
        code(post(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 1_000_000}]}))[0]
        == 400
    )
