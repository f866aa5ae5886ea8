"""Eight models under a limit of three, clients that choose at random: errors, models in memory, memory held.

    python bench/many_models.py MODEL --seconds 600

The models are links to one file under eight names, each with an engine of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

MODELS, MOST, CLIENTS = 8, 3, 64


def resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


async def soak(url: str, pid: int, seconds: float) -> int:
    until, answers, errors, most = time.monotonic() + seconds, 0, list[str](), 0
    memory: list[int] = []

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
        nonlocal most
        while time.monotonic() < until:
            rows = (await http.get(f"{url}/v1/models")).json()["data"]
            most = max(most, sum(row["loaded"] for row in rows))
            memory.append(resident(pid))
            await asyncio.sleep(0.5)

    async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=CLIENTS + 4)) as http:
        await asyncio.gather(watch(http), *(client(i, http) for i in range(CLIENTS)))
    half = len(memory) // 2
    print(
        f"{seconds:.0f} s, {CLIENTS} clients, {MODELS} models, limit {MOST}: {answers} answers, {len(errors)} errors, "
        f"at most {most} loaded, resident at most {max(memory[:half]) >> 20} MiB in the first half and "
        f"{max(memory[half:]) >> 20} MiB in the second"
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
