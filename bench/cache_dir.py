"""What `assay serve --cache-dir` saves, and that nothing which happens to it changes a bit.

    python bench/cache_dir.py first MODEL --tokens 20000     first token of a prompt: computed, then after a restart
    python bench/cache_dir.py kill MODEL --times 200         kill -9 at random points of writing; same bits each time

Both start real servers and kill them with SIGKILL. Answers are compared by text and log-probabilities.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any


class Server:
    """A server process over one model, with a cache folder unless it is None."""

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


def kill(model: str, times: int, folder: Path) -> int:
    """Servers that are killed while they write; each answers a prompt that another has begun first."""
    ctx, chance = 1024, random.Random(2)
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["first", "kill"])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--times", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.what == "first":
            return first(args.model, args.tokens, Path(folder) / "cache")
        return kill(args.model, args.times, Path(folder) / "cache")


if __name__ == "__main__":
    sys.exit(main())
