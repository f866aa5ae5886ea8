"""A server under honest and hostile traffic at once: do honest clients notice?

    python bench/soak.py --minutes 20              everything mixed; assertions at the end
    python bench/soak.py --attacks --seconds 60    each attack by itself: the table of docs/reference/security.md

Honest clients stream greedy answers and compare every letter with the answer they got alone. Hostile clients send
attacks that have brought servers down. At the end: no honest error, equal text, memory as after the second minute, all
pages free.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import random
import re
import socket
import statistics
import subprocess
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

from tests import tiny

PROMPTS = [f"hello world {word}" for word in ("a", "the", "in", "on", "er", "word1", "word2", "word3")]
TOKENS = 24


@dataclass
class Target:
    """A running server."""

    process: subprocess.Popen[str]
    host: str
    port: int

    @staticmethod
    def start(model: Path) -> Target:
        process = subprocess.Popen(
            [sys.executable, "-m", "assay", "serve", str(model), "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        host, port = url.removeprefix("http://").split(":")
        return Target(process, host, int(port))

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def post(self, path: str, body: Any, timeout: float = 60) -> tuple[int, bytes]:
        connection = self.connect(timeout)
        try:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", path, raw, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def memory(self) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) * 1024  # type: ignore[index]

    def metric(self, name: str) -> float:
        connection = self.connect(10)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(rf"{name}\b", line))

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


def ask(target: Target, prompt: str) -> tuple[str, float]:
    """The text of a streamed answer, and the seconds to its first token."""
    connection = target.connect(120)
    body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": True, "ignore_eos": True}
    started = time.monotonic()
    first = 0.0
    text = ""
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {reply.read(300)!r}")
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            first = first or time.monotonic() - started
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(str(event))
            text += "".join(choice["text"] for choice in event["choices"])
    finally:
        connection.close()
    return text, first


@dataclass
class Honest:
    """Clients that ask, wait a little, and ask again."""

    target: Target
    expected: dict[str, str]
    first: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def begin(self, n: int) -> Honest:
        self.threads = [threading.Thread(target=self._talk, args=(i,), daemon=True) for i in range(n)]
        for thread in self.threads:
            thread.start()
        return self

    def _talk(self, index: int) -> None:
        rng = random.Random(index)
        while not self.over.is_set():
            prompt = PROMPTS[rng.randrange(len(PROMPTS))]
            try:
                text, first = ask(self.target, prompt)
                self.first.append(first)
                if text != self.expected[prompt]:
                    self.errors.append(f"other text for {prompt!r}: {text!r}")
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")
            self.over.wait(0.05 + 0.1 * rng.random())

    def end(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(180)


# -- attacks: each does one thing once ---------------------------------------------------------------------------


def grammar(target: Target, rng: random.Random) -> None:
    schema = {"type": "integer", "multipleOf": 99_000_000 + rng.randrange(999_999)}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "a"}], "response_format": form, "max_tokens": 5}
    target.post("/v1/chat/completions", body)


def dropped(target: Target, rng: random.Random) -> None:
    with suppress(TimeoutError):
        target.post("/tokenize", {"content": rng.choice(("</s>", "<s>a")) * 60_000}, timeout=0.2)


def pieces(target: Target, rng: random.Random) -> None:
    target.post("/tokenize", {"content": "z" * rng.choice((8_000, 250_000, 2_000_000)), "with_pieces": True})


def unread(target: Target, rng: random.Random) -> None:
    body = json.dumps({"content": "z" * 250_000}).encode()
    head = (
        f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    with socket.create_connection((target.host, target.port), timeout=5) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        time.sleep(2)


def embeddings(target: Target, rng: random.Random) -> None:
    with suppress(TimeoutError):
        target.post("/v1/embeddings", {"input": [[300 + i % 15] * 4000 for i in range(60)]}, timeout=20)


def idle(target: Target, rng: random.Random) -> None:
    connections = [socket.create_connection((target.host, target.port), timeout=5) for _ in range(600)]
    for _ in range(10):
        connection = target.connect(5)
        connection.request("GET", "/health")
        if connection.getresponse().status != 200:
            raise RuntimeError("health is not answered")
        connection.close()
        time.sleep(0.5)
    for sock in connections:
        sock.close()


def nested(target: Target, rng: random.Random) -> None:
    target.post("/v1/completions", b'{"prompt": [' + b"[]," * 600_000 + b"[]]}")


def template(target: Target, rng: random.Random) -> None:
    body = {"messages": [{"role": "user", "content": "a" * 10_000}] * 20, "chat_template_kwargs": {"x": "y" * 100_000}}
    target.post("/apply-template", body)


def garbage(target: Target, rng: random.Random) -> None:
    with socket.create_connection((target.host, target.port), timeout=5) as connection:
        connection.sendall(rng.randbytes(rng.randrange(1, 4000)))
        with suppress(OSError):
            connection.recv(1000)


ATTACKS: dict[str, Callable[[Target, random.Random], None]] = {
    attack.__name__: attack
    for attack in (grammar, dropped, pieces, unread, embeddings, idle, nested, template, garbage)
}


def attacker(host: str, port: int, names: list[str], out: Any) -> None:
    """In a process of its own, so that what an attack costs its sender is not taken for what it costs the others."""
    rng, target = random.Random(7), Target(None, host, port)  # type: ignore[arg-type]
    while True:
        name = rng.choice(names)
        try:
            ATTACKS[name](target, rng)
            out.put("")
        except RuntimeError as error:
            out.put(f"{name}: {error}")
        except (OSError, http.client.HTTPException):
            out.put("")


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def measure(
    target: Target, expected: dict[str, str], seconds: float, clients: int, attacks: list[str]
) -> dict[str, Any]:
    spawn = multiprocessing.get_context("spawn")
    out = spawn.Queue()
    hostile = spawn.Process(target=attacker, args=(target.host, target.port, attacks, out), daemon=True)
    if attacks:
        hostile.start()
        out.get(timeout=120)
    honest = Honest(target, expected).begin(clients)
    time.sleep(seconds)
    honest.end()
    if attacks:
        hostile.kill()
        hostile.join()
    said = [out.get() for _ in range(out.qsize())]
    return {
        "first_p50": statistics.median(honest.first) if honest.first else None,
        "first_p99": quantile(honest.first, 0.99),
        "answers": len(honest.first),
        "errors": honest.errors[:3] + [error for error in said if error][:3],
        "attacks": len(said),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--attacks", action="store_true", help="each attack by itself, against the quiet server")
    parser.add_argument("--only", action="append", choices=[*ATTACKS], help="of the attacks; repeatable")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each attack")
    parser.add_argument("--clients", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        target = Target.start(tiny.make(Path(folder) / "soak.gguf", n_ctx=8192, n_layer=4, n_embd=128, n_ff=256))
        try:
            expected = {prompt: ask(target, prompt)[0] for prompt in PROMPTS}
            names = args.only or list(ATTACKS)
            return table(target, expected, args, names) if args.attacks else soak(target, expected, args, names)
        finally:
            code = target.end()
            print(f"the server ended with {code}")


def table(target: Target, expected: dict[str, str], args: argparse.Namespace, names: list[str]) -> int:
    """Time to first token, 99 of 100, beside each attack over that without one."""
    worst = 0.0
    for name in names:
        quiet = measure(target, expected, args.seconds, args.clients, [])
        busy = measure(target, expected, args.seconds, args.clients, [name])
        ratio = busy["first_p99"] / quiet["first_p99"]
        worst = max(worst, ratio)
        print(
            f"| {name} | {1e3 * quiet['first_p99']:.0f} ms | {1e3 * busy['first_p99']:.0f} ms | {ratio:.2f} | "
            f"{busy['answers']} | {len(busy['errors'])} |{' ' + str(busy['errors']) if busy['errors'] else ''}",
            flush=True,
        )
    return 0 if worst < 3 else 1


def soak(target: Target, expected: dict[str, str], args: argparse.Namespace, names: list[str]) -> int:
    begun = time.monotonic()
    base, problems, n = 0, list[str](), 0
    while time.monotonic() - begun < 60 * args.minutes:
        found = measure(target, expected, 20, args.clients, names)
        n += found["answers"]
        problems += found["errors"]
        if not base and time.monotonic() - begun > min(120, 12 * args.minutes):
            base = target.memory()
        print(f"{(time.monotonic() - begun) / 60:5.1f} min: {found}, {target.memory() >> 20} MiB", flush=True)
    time.sleep(15)
    growth = target.memory() / base if base else 1.0
    free, pages = target.metric("assay_pages_available"), target.metric("assay_pages")
    print(f"{n} honest answers, {len(problems)} errors {problems[:3]}; memory {growth:.3f} of the second minute's; "
          f"{free:.0f} of {pages:.0f} pages free")  # fmt: skip
    return 0 if not problems and growth <= 1.05 and free == pages else 1


if __name__ == "__main__":
    sys.exit(main())
