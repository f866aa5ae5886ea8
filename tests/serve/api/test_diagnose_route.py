"""`/v1/diagnose`: a dump in the body or uploaded, progress as events, limits on memory, tokens and size."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import assay
from tests.serve.conftest import Server, start_server
from tests.tiny import make
from tests.waiting import wait_until

KIND = "application/vnd.assay.upload"
IDS = [1, 300, 301, 302, 303]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("diagnose") / "tiny.gguf", n_ctx=4096)


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[Server]:
    found = start_server([("tiny", model)], limits={"upload": 4 << 20, "examine_memory": 3 << 30})
    yield found
    assert found.end() == 0


@pytest.fixture(scope="module")
def dump(model: Path) -> bytes:
    """Right values: a search for a fault would take long, and is tested elsewhere."""
    with assay.load(model) as loaded:
        trace = loaded.trace(IDS)
        arrays = {name: np.asarray(trace[name]) for name in trace if name.startswith(("embd", "l_out", "attn_norm"))}
    out = io.BytesIO()
    np.savez(out, tokens=np.array(IDS), **arrays)
    return out.getvalue()


def upload(server: Server, request: dict[str, Any], content: bytes, **headers: str) -> httpx.Response:
    body = json.dumps(request).encode() + b"\n" + content
    return httpx.post(f"{server.url}/v1/diagnose", content=body, headers={"Content-Type": KIND, **headers}, timeout=120)


def told(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["message"]


def events(answer: httpx.Response) -> list[tuple[str, Any]]:
    found = []
    for block in answer.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def test_an_upload_is_diagnosed_as_the_same_bytes_in_a_body(served: Server, dump: bytes) -> None:
    import base64

    uploaded = upload(served, {"name": "values.npz"}, dump)
    assert uploaded.status_code == 200, uploaded.text
    body = {"name": "values.npz", "data": base64.b64encode(dump).decode()}
    given = httpx.post(f"{served.url}/v1/diagnose", json=body, timeout=120)
    assert given.json() == uploaded.json()
    assert {node["name"] for node in uploaded.json()["nodes"]} >= {"embd", "l_out-1"}


def test_events_end_with_the_result(served: Server, dump: bytes) -> None:
    plain = upload(served, {"name": "a.npz"}, dump).json()
    answer = upload(served, {"name": "a.npz"}, dump, Accept="text/event-stream")
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events(answer)
    assert {kind for kind, _ in found[:-1]} == {"progress"} and all(
        {"label", "done", "total", "unit"} == set(step) for _, step in found[:-1]
    )
    assert found[-1] == ("result", plain)


def test_an_error_is_an_event_too(served: Server) -> None:
    found = events(upload(served, {"name": "a.npz"}, b"no archive", Accept="text/event-stream"))
    assert found[-1][0] == "error" and found[-1][1]["error"]["code"] == "invalid_value"
    assert "/tmp" not in json.dumps(found)


@pytest.mark.parametrize("prompt", ["a\0b", "-x --help \x1b[2J \ufffe"])
def test_odd_prompts_are_answered(served: Server, dump: bytes, prompt: str) -> None:
    answer = upload(served, {"name": "a.npz", "prompt": prompt}, dump)
    assert answer.status_code in (200, 400), answer.text


@pytest.mark.parametrize(
    "request_",
    [
        {"text": "a\0b: rms=1", "name": "a\0.log"}, {"text": "\0"}, {"text": "x", "name": "../../etc/passwd"},
        {"text": "x", "name": "a.exe"}, {"data": "!"}, {"data": "YQ==", "text": "x"}, {}, {"text": ""},
        {"data": "\0"}, {"text": "{", "model": "\0"},
    ],
)  # fmt: skip
def test_odd_requests_are_refused_in_one_line(served: Server, request_: dict[str, Any]) -> None:
    answer = httpx.post(f"{served.url}/v1/diagnose", json=request_, timeout=60)
    status, message = told(answer)
    assert status in (400, 404) and "\n" not in message and "/tmp" not in message


@pytest.mark.parametrize("body", [b"", b"no json\n", b"{}", b"[" * 1000 + b"\n", b"\xff\n", b'{"text": "x"}\nrest',
                                  b'{"name": 5}\n', b" " * 600_000])  # fmt: skip
def test_an_upload_without_its_line(served: Server, body: bytes) -> None:
    answer = httpx.post(f"{served.url}/v1/diagnose", content=body, headers={"Content-Type": KIND}, timeout=60)
    assert told(answer)[0] == 400


def test_an_upload_that_is_too_large(served: Server) -> None:
    status, message = told(upload(served, {}, b"x" * (5 << 20)))
    assert status == 413 and "at most 4 MiB" in message
    wait_until(lambda: left_behind() == set(), 30)  # the server removes its folder after it has answered


def test_only_this_route_takes_uploads(served: Server) -> None:
    answer = httpx.post(f"{served.url}/tokenize", content=b"{}\n", headers={"Content-Type": KIND})
    assert answer.status_code == 415


def test_many_tokens_are_refused_with_the_number(served: Server) -> None:
    line = json.dumps({"assay_dump": 1, "engine": "x", "tokens": [300] * 1500})
    row = json.dumps({"name": "l_out-0", "row": -1, "rms": 1.0})
    status, message = told(upload(served, {"name": "a.jsonl"}, f"{line}\n{row}\n".encode()))
    assert status == 400 and "found 1500, at most 1024" in message
    line = json.dumps({"assay_dump": 1, "engine": "x", "tokens": [300]})
    given = {"name": "a.jsonl", "prompt": "a b " * 2000}
    status, message = told(upload(served, given, f"{line}\n{row}\n".encode()))
    assert status == 400 and "the prompt has too many tokens" in message


def test_memory_is_limited(model: Path, dump: bytes, tmp_path: Path) -> None:
    """The process that diagnoses gets so little that it fails; it says so, and does not print a traceback."""
    path = tmp_path / "a.npz"
    path.write_bytes(dump)
    job = {"model": str(model), "dump": str(path), "prompt": None, "memory": 1 << 30, "tokens": 1024}
    done = subprocess.run(
        [sys.executable, "-m", "assay.library.diagnose_process"], input=json.dumps(job), capture_output=True, text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr  # its engine alone reserves a GiB
    assert "needs more than 1024 MiB" in json.loads(done.stdout.splitlines()[-1])["error"]


def test_the_prompt_is_not_on_a_command_line(served: Server, dump: bytes) -> None:
    secret = "hunter2 is the word"
    seen: list[bytes] = []

    def look() -> None:
        deadline = time.monotonic() + 60
        while not over.is_set() and time.monotonic() < deadline:
            for place in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    found = place.read_bytes()
                except OSError:
                    continue
                if b"diagnose_process" in found:
                    seen.append(found)
            time.sleep(0.02)

    over = threading.Event()
    thread = threading.Thread(target=look)
    thread.start()
    answer = upload(served, {"name": "a.npz", "prompt": secret}, dump)
    over.set()
    thread.join()
    assert answer.status_code == 200, answer.text
    assert seen and not any(secret.encode() in line for line in seen)


def left_behind() -> set[str]:
    """Folders of uploads that hold a file."""
    import tempfile

    return {p.name for p in Path(tempfile.gettempdir()).glob("assay-*") if (p / "upload").exists()}


def test_a_client_that_leaves_takes_its_process_along(served: Server, dump: bytes) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    body = b'{"name": "a.npz"}\n' + dump
    head = f"POST /v1/diagnose HTTP/1.1\r\nHost: {host}\r\nContent-Type: {KIND}\r\nContent-Length: {len(body)}\r\n\r\n"

    def children() -> int:
        done = subprocess.run(["ps", "-o", "args=", "--ppid", str(served.process.pid)], capture_output=True, text=True)
        return done.stdout.count("diagnose_process")

    for cut in (len(body), 100):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head.encode() + body[:cut])
            time.sleep(0.3)
        wait_until(lambda: children() == 0 and left_behind() == set(), 30)
    assert upload(served, {"name": "a.npz"}, dump).status_code == 200
