"""Time that `assay serve --cache-dir` saves, and a check that damage to the folder changes no bit.

    python bench/cache_dir.py first MODEL --tokens 20000     first token of a prompt: computed, then after a restart
    python bench/cache_dir.py kill MODEL --times 200         kill -9 at random points of writing; same bits each time
    python bench/cache_dir.py crash MODEL --times 200        the same without HTTP; then damage to every file

`first` and `kill` start real servers and kill them with SIGKILL. Answers are compared by text and log-probabilities.
`crash` forks processes that answer and write, kills them likewise, and compares hashes of all logits. It is cheap.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.runtime.opening import OpenOptions, open_model
from assay.runtime.params import GREEDY
from assay.runtime.scheduler import Scheduler
from assay.runtime.sequence import Job

CTX = 1024


class Server:
    """A server process over one model. `cache` None: without a cache folder."""

    def __init__(self, model: str, folder: Path | None, ctx: int) -> None:
        command = [sys.executable, "-m", "assay", "serve", model, "--port", "0", "--json", "--ctx-size", str(ctx)]
        command += ["--cache-dir", str(folder)] if folder else []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout
        self.url = json.loads(self.process.stdout.readline())["url"]

    def complete(self, ids: list[int]) -> tuple[float, dict[str, Any]]:
        """Seconds of a request for one token, and the answer."""
        body = {"prompt": ids, "n_predict": 1, "temperature": 0, "n_probs": 5, "timeout": 600}
        asked = urllib.request.Request(
            f"{self.url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        began = time.monotonic()
        with urllib.request.urlopen(asked) as reply:
            found = json.load(reply)
        return time.monotonic() - began, found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def bits(answer: dict[str, Any]) -> Any:
    return answer["content"], answer["completion_probabilities"]


def entries(folder: Path) -> int:
    return sum(1 for _ in folder.glob("??/*"))


def first(model: str, tokens: int, folder: Path) -> int:
    chance = random.Random(1)
    ids = [chance.randrange(3, 500) for _ in range(tokens)]
    server = Server(model, folder, tokens + 64)
    computed, answer = server.complete(ids)
    while entries(folder) < (tokens - 1) // 32:
        time.sleep(0.1)
    server.kill()
    server = Server(model, folder, tokens + 64)
    restored, again = server.complete(ids)
    server.kill()
    size = sum(path.stat().st_size for path in folder.glob("??/*"))
    same = bits(answer) == bits(again)
    print(
        f"{model}, {tokens} tokens: computed {computed:.2f} s, after a restart {restored:.3f} s "
        f"({again['timings']['cache_n']} tokens from {size / 1e6:,.0f} MB): {computed / restored:.1f} times as fast, "
        f"{'same bits' if same else 'OTHER BITS'}"
    )
    return 0 if same else 1


def kill(model: str, times: int, seed: int, folder: Path) -> int:
    """Servers that are killed while they write; each answers a prompt that another has begun first."""
    ctx, chance = 1024, random.Random(seed)
    prompts = [[chance.randrange(3, 500) for _ in range(300)] for _ in range(8)]
    plain = Server(model, None, ctx)
    right = [bits(plain.complete(ids)[1]) for ids in prompts]
    plain.kill()
    wrong = reused = 0
    for i in range(times):
        if i % 25 == 24:
            shutil.rmtree(folder)  # else everything is saved soon
        server = Server(model, folder, ctx)
        for k in chance.sample(range(len(prompts)), 2):
            answer = server.complete(prompts[k])[1]
            reused += answer["timings"]["cache_n"] > 0
            wrong += bits(answer) != right[k]
        time.sleep(chance.random() * 0.02)
        server.kill()
    print(f"{model}: killed {times} times, {2 * times} answers, {reused} with a prefix from disk, {wrong} wrong")
    return 1 if wrong else 0


def child(model: str, folder: Path | None, prompts: list[tuple[int, ...]], out: int) -> None:
    """Write a line when the model is open, and for each answer: its tokens from disk and the hashes of its logits."""
    options = OpenOptions(
        engine="cpu", threads=1, lookahead=False, ctx_size=CTX, cache_dir=str(folder) if folder else None
    )
    opened = open_model(model, options)
    scheduler = Scheduler(opened.engine(), opened.tokenizer, n_ctx=CTX, folder=opened.folder())
    os.write(out, b"\n")
    for ids in prompts:
        sequence = scheduler.make(Job(ids, GREEDY, 3, ignore_eos=True, receipt=True), lambda update: None)
        scheduler.add([sequence])
        while scheduler.busy:
            scheduler.step()
        found = [sequence.cached, [digest.hex() for digest in sequence.row_digests]]
        os.write(out, (json.dumps(found) + "\n").encode())
    scheduler.close()


def forked(
    model: str,
    folder: Path | None,
    prompts: list[tuple[int, ...]],
    seconds: float = 300,
    ended: Callable[[float], None] = lambda seconds: None,
) -> list[Any] | None:
    """The answers of a child until it ended, or was killed so long after it had opened the model; None if it failed."""
    read, write = os.pipe()
    if not (pid := os.fork()):
        status = 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it names each damaged entry
        try:
            child(model, folder, prompts, write)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    text = os.read(read, 1)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and select.select([read], [], [], left)[0]:
        if not (more := os.read(read, 65536)):
            break
        text += more
    ended(time.monotonic() - until + seconds)
    os.kill(pid, signal.SIGKILL)
    os.close(read)
    status = os.waitpid(pid, 0)[1]
    failed = os.WIFEXITED(status) and os.WEXITSTATUS(status)
    return None if failed else [json.loads(line) for line in text.split(b"\n")[1:-1]]


DAMAGE: dict[str, Callable[[Path, random.Random], object]] = {
    "one bit": lambda path, chance: flip(path, chance),
    "cut": lambda path, chance: os.truncate(path, chance.randrange(path.stat().st_size)),
    "empty": lambda path, chance: os.truncate(path, 0),
    "longer": lambda path, chance: path.write_bytes(path.read_bytes() + chance.randbytes(9)),
    "noise": lambda path, chance: path.write_bytes(chance.randbytes(path.stat().st_size)),
    "missing": lambda path, chance: path.unlink(),
}


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def timed(model: str, folder: Path, prompts: list[tuple[int, ...]]) -> float:
    """Seconds in which a child answers and writes, after it has opened the model: the longest of three."""
    found = []
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        forked(model, folder, prompts, ended=found.append)
    return max(found)


def crash(model: str, times: int, seed: int, folder: Path) -> int:
    chance = random.Random(seed)
    prompts = [tuple(chance.randrange(3, 250) for _ in range(300)) for _ in range(8)]
    right = [row[1] for row in forked(model, None, prompts) or ()]
    whole = timed(model, folder, prompts[:2])
    counts, bad = Counter[str](), 0

    def check(chosen: list[int], found: list[Any] | None) -> None:
        nonlocal bad
        counts["failed"] += found is None
        for k, (cached, digests) in zip(chosen, found or (), strict=False):
            counts["answers"] += 1
            counts["reused"] += cached > 0
            counts["wrong"] += digests != right[k]
        bad = max(bad, counts["failed"], counts["wrong"])

    for i in range(times):
        if i % 10 == 0:
            shutil.rmtree(folder, ignore_errors=True)  # else everything is saved soon
        chosen = chance.sample(range(len(prompts)), 2)
        check(chosen, forked(model, folder, [prompts[k] for k in chosen], chance.random() * whole))
    print(f"{model}: killed at {times} points of {whole:.2f} s: {dict(counts)}", flush=True)
    shutil.rmtree(folder)
    forked(model, folder, prompts)
    files = sorted((path for path in folder.glob("??/*") if path.is_file()), key=lambda path: path.stat().st_mtime_ns)
    pages = len(files) // len(prompts)
    for name, damage in DAMAGE.items():
        counts.clear()
        for page in range(pages):  # one of each prompt: an entry behind a damaged one is not read
            for path in files[page::pages]:
                damage(path, chance)
            check(list(range(len(prompts))), forked(model, folder, prompts))
        print(f"{model}: {name}, one file of a prompt at a time, {len(files)} files: {dict(counts)}", flush=True)
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["first", "kill", "crash"])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2, help="prompts and moments of kill")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.what == "first":
            return first(args.model, args.tokens, Path(folder) / "cache")
        if args.what == "crash":
            return crash(args.model, args.times, args.seed, Path(folder) / "cache")
        return kill(args.model, args.times, args.seed, Path(folder) / "cache")


if __name__ == "__main__":
    sys.exit(main())
