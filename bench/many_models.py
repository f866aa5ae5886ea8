"""Eight models under a limit of three, clients that choose at random: errors, models in memory, memory held.

    python bench/many_models.py MODEL --seconds 600

The models are links to one file under eight names, each with an engine of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

MODELS, MOST, CLIENTS, TENTHS = 8, 3, 64, 10


def resident(pid: int) -> tuple[int, int]:
    """Resident MiB of a process: all, and without mapped files."""
    lines = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    found = {words[0]: int(words[1]) >> 10 for words in lines if words[0] in ("VmRSS:", "RssAnon:")}
    return found["VmRSS:"], found["RssAnon:"]


async def soak(url: str, pid: int, seconds: float) -> int:
    until, answers, errors, most, size = time.monotonic() + seconds, 0, list[str](), 0, 0
    memory: list[tuple[int, int]] = []

    async def client(number: int, http: httpx.AsyncClient) -> None:
        nonlocal answers
        chance = random.Random(number)
        while time.monotonic() < until:
            body = {"model": f"m{chance.randrange(MODELS)}", "prompt": "Once", "max_tokens": 4}
            reply = await http.post(f"{url}/v1/completions", json=body)
            answers += reply.status_code == 200
            if reply.status_code != 200:
                errors.append(reply.text[:200])

    async def watch(http: httpx.AsyncClient) -> None:
        nonlocal most, size
        while time.monotonic() < until:
            rows = (await http.get(f"{url}/v1/models")).json()["data"]
            most = max(most, sum(row["loaded"] for row in rows))
            sizes = [row["bytes"] for row in (await http.get(f"{url}/v1/status")).json()["models"] if row["loaded"]]
            size = max(size, *sizes, 0)
            memory.append(resident(pid))
            await asyncio.sleep(0.5)

    async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=CLIENTS + 4)) as http:
        await asyncio.gather(watch(http), *(client(i, http) for i in range(CLIENTS)))
    print(
        f"{seconds:.0f} s, {CLIENTS} clients, {MODELS} models, limit {MOST}: {answers} answers, {len(errors)} errors, "
        f"at most {most} loaded; weights and cache of {MOST} are {MOST * size >> 20} MiB"
    )
    for i in range(TENTHS):
        part = memory[i * len(memory) // TENTHS : (i + 1) * len(memory) // TENTHS] or memory
        every, own = zip(*part, strict=True)
        print(
            f"tenth {i + 1:2}: resident median {statistics.median(every):.0f}, at most {max(every)} MiB; "
            f"without mapped files median {statistics.median(own):.0f}, at most {max(own)} MiB"
        )
    for error in errors[:3]:
        print(error)
    return 1 if errors or most > MOST else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"m{i}.gguf" for i in range(MODELS)]
        for path in paths:
            path.symlink_to(args.model.resolve())
        command = [sys.executable, "-m", "assay", "serve", *map(str, paths), "--port", "0", "--json"]
        server = subprocess.Popen([*command, "--models-max", str(MOST)], stdout=subprocess.PIPE, text=True)
        assert server.stdout
        try:
            return asyncio.run(soak(json.loads(server.stdout.readline())["url"], server.pid, args.seconds))
        finally:
            server.terminate()
            server.wait(60)


if __name__ == "__main__":
    sys.exit(main())
