"""The server under load, side by side with llama.cpp's: ratios, never bare times.

    python bench/serve.py MODEL [--seconds 60] [--streams 32] [--peer PYTHON [--peer-package llama_cpp]]

PYTHON is an interpreter that has xllamacpp, whose HTTP server batches continuously, or llama_cpp, whose does not.
Both servers run at the same time and get load in turn: rounds of one stream and of many, assay then peer. Other work on
the machine therefore affects both. The single stream uses the prompts of the many. An answer that differs between any
two rounds is an error, because then a token was lost or mixed up.

After that, the time to the first token of a prompt of 1,000 tokens, without and with its first 900 in the cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

BATCHING_PEER = """
import sys, xllamacpp as x
p = x.CommonParams()
p.model.path = sys.argv[1]
p.n_parallel, p.n_ctx, p.cont_batching, p.port = int(sys.argv[2]), 512 * int(sys.argv[2]), True, 0
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(sys.argv[3])
p.n_gpu_layers, p.verbosity = 0, -1
server = x.Server(p)
print(server.listening_address, flush=True)
sys.stdin.read()
"""
PLAIN_PEER = """
import socket, sys, uvicorn
from llama_cpp.server.app import create_app
from llama_cpp.server.settings import ModelSettings, ServerSettings
threads = int(sys.argv[3])
model = ModelSettings(model=sys.argv[1], n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)
app = create_app(server_settings=ServerSettings(interrupt_requests=False), model_settings=[model])
sock = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[sock])
"""
PEERS = {"xllamacpp": BATCHING_PEER, "llama_cpp": PLAIN_PEER}
SUBJECTS = ("rain", "bread", "trains", "the moon", "chess", "salt", "bees", "glass", "ink", "wolves", "tea", "maps",
            "snow", "clocks", "violins", "paper", "volcanoes", "sleep", "gold", "kites", "coral", "wheat", "lenses",
            "bridges", "spiders", "rubber", "islands", "mirrors", "coal", "olives", "tides", "locks")  # fmt: skip


@dataclass
class Tally:
    """The results of one round."""

    tokens: int = 0
    answers: int = 0
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


async def ask(url: str, body: dict[str, Any]) -> tuple[bytes, float]:
    """One streamed completion as it comes, and seconds to its first token. Raw HTTP, for clients cost time too."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body | {"stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
    started, first, received = time.perf_counter(), 0.0, b""
    while part := await reader.read(65536):
        received += part
        if not first and b"data: " in received:
            first = time.perf_counter() - started
    writer.close()
    return received, first


def read(received: bytes) -> tuple[str, int]:
    """An answer's text and tokens."""
    if not received.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in received:
        raise RuntimeError(received[:300].decode(errors="replace"))
    events = [json.loads(line[6:]) for line in received.split(b"\n") if line.startswith(b"data: {")]
    texts = [choice["text"] for event in events for choice in event.get("choices", ())]
    used = next((event["usage"] for event in reversed(events) if event.get("usage")), None)
    tokens = used["completion_tokens"] if used else len([t for t in texts if t])
    return "".join(texts), tokens


def request(i: int, n: int) -> dict[str, Any]:
    subject = SUBJECTS[i % len(SUBJECTS)]
    prompt = f"Here is a short and careful explanation, number {i}, of where {subject} comes from and why it matters."
    return {
        "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


async def load(url: str, prompts: list[list[int]], seconds: float, n: int, known: dict[int, str]) -> Tally:
    """One client for each list of prompts sends them one after the other for `seconds`. Requests that run at the end
    are finished and counted, and the clock runs until then. Answers are compared afterwards."""
    tally, end = Tally(), time.perf_counter() + seconds
    answers: list[tuple[int, bytes]] = []

    async def client(mine: list[int]) -> None:
        while time.perf_counter() < end:
            i = mine[0]
            mine.append(mine.pop(0))
            try:
                answers.append((i, (await ask(url, request(i, n)))[0]))
            except OSError as error:
                tally.errors.append(str(error))

    started = time.perf_counter()
    await asyncio.gather(*(client(mine) for mine in prompts))
    tally.seconds = time.perf_counter() - started
    for i, answer in answers:
        try:
            text, tokens = read(answer)
        except (RuntimeError, ValueError) as error:
            tally.errors.append(str(error))
            continue
        tally.tokens += tokens
        tally.answers += 1
        if text != known.setdefault(i, text):
            tally.errors.append(f"prompt {i}: the answer is not the one it got before")
    return tally


@contextmanager
def serve(command: list[str]) -> Iterator[str]:
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout
        line = process.stdout.readline().strip()
        yield json.loads(line)["url"] if line.startswith("{") else line
    finally:
        process.terminate()
        process.wait(60)


async def first_token(url: str, rounds: int) -> list[tuple[float, float]]:
    """Seconds to the first token of 1,000 tokens, nothing cached and 900 cached."""
    found = []
    for i in range(rounds):
        start = [1000 + i * 1000 + j for j in range(900)]
        body = {"max_tokens": 1, "temperature": 0}
        _, cold = await ask(url, body | {"prompt": [*start, *range(20000 + i * 200, 20100 + i * 200)]})
        _, warm = await ask(url, body | {"prompt": [*start, *range(20100 + i * 200, 20200 + i * 200)]})
        found.append((cold, warm))
    return found


async def measure(args: argparse.Namespace, ours: str, theirs: str | None) -> dict[str, Any]:
    rounds = max(1, round(args.seconds / 15))
    part = args.seconds / rounds
    known: dict[str, dict[int, str]] = {"assay": {}, "peer": {}}
    alone = {name: [list(range(args.streams))] for name in known}
    rows: list[dict[str, float]] = []
    errors: list[str] = []
    different = 0
    for _ in range(rounds):
        row: dict[str, float] = {}
        for name, url in (("assay", ours), ("peer", theirs)):
            if url is None:
                continue
            one = await load(url, alone[name], part / 3, args.tokens, known[name])
            many = await load(url, [[i] for i in range(args.streams)], part, args.tokens, known[name])
            errors += one.errors + many.errors if name == "assay" else []
            different += len(one.errors + many.errors) if name == "peer" else 0
            row |= {f"{name}_one": one.rate, f"{name}_many": many.rate, f"{name}_answers": many.answers}
        rows.append(row)
        print(json.dumps({key: round(value, 1) for key, value in row.items()}), file=sys.stderr)
    times = await first_token(ours, 3)

    def ratio(over: str, under: str) -> float | None:
        found = [row[over] / row[under] for row in rows if row.get(under)]
        return round(statistics.median(found), 2) if found else None

    return {
        "machine": f"{os.cpu_count()} cores {platform.machine()}, load {os.getloadavg()[0]:.1f}",
        "date": time.strftime("%Y-%m-%d"),
        "streams": args.streams,
        "answers": sum(int(row["assay_answers"]) for row in rows),
        "errors": len(errors),
        "first_errors": errors[:3],
        "peer_errors_or_differences": different,
        "many_over_one": ratio("assay_many", "assay_one"),
        "assay_over_peer": ratio("assay_many", "peer_many"),
        "assay_over_peer_one": ratio("assay_one", "peer_one"),
        "tokens_per_second": round(statistics.median(row["assay_many"] for row in rows), 1),
        "first_token_cached_over_uncached": round(statistics.median(w / c for c, w in times), 3),
        "first_token_s": [[round(c, 3), round(w, 3)] for c, w in times],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--engine", help="as for `assay serve`")
    parser.add_argument("--precision", help="as for `assay serve`")
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--peer-package", choices=PEERS, default="xllamacpp")
    args = parser.parse_args()
    own = [sys.executable, "-m", "assay", "serve", args.model, "--port", "0", "--json", "-t", str(args.threads)]
    own += ["--parallel", str(args.streams), *(("--engine", args.engine) if args.engine else ())]
    own += ["--precision", args.precision] if args.precision else []
    with serve(own) as ours:
        if args.peer:
            with serve(
                [args.peer, "-c", PEERS[args.peer_package], args.model, str(args.streams), str(args.threads)]
            ) as theirs:
                result = asyncio.run(measure(args, ours, theirs))
        else:
            result = asyncio.run(measure(args, ours, None))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
