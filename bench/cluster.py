"""The figures of docs/cluster.md: what happens to streams when replicas die, and what the router costs.

python bench/cluster.py demo                   # three local nodes, a stream, a kill, the same bytes
python bench/cluster.py kill                   # SIGKILL at every token of a 40-token stream, five kinds
python bench/cluster.py soak --minutes 5       # 32 streams, kills and cut links; network namespaces, so root
python bench/cluster.py first                  # what the router adds to the time to the first token
python bench/cluster.py scale --model M.gguf   # two replicas over one, a core each
python bench/cluster.py affinity               # prompt tokens computed with routing by prefix over without

Without --model a tiny model with random weights is used: what is measured is the cluster, not the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.cluster.harness import client_of, fleet_of, plain  # noqa: E402
from tests.cluster.test_failover import KINDS, N  # noqa: E402
from tests.serve.conftest import TOOL_TEMPLATE  # noqa: E402
from tests.tiny import make  # noqa: E402

from assay.cluster.entry import Cluster  # noqa: E402
from assay.cluster.fleet import Bounds, Fleet  # noqa: E402
from assay.cluster.link import Link, Stream  # noqa: E402
from assay.cluster.places import Here  # noqa: E402
from assay.engines.base import PAGE  # noqa: E402
from assay.runtime.opening import Options  # noqa: E402
from assay.runtime.sequence import Job, Update  # noqa: E402

OPTIONS = Options(engine="cpu", threads=1, cache_size=8192)
ROUTE = "/v1/chat/completions"


def say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


@asynccontextmanager
async def cluster(path: Path, places: Here, n: int) -> AsyncIterator[tuple[Any, Fleet]]:
    """A client of a router with n replicas."""
    async with client_of(path, Cluster(lambda: places, Bounds(n, n)), OPTIONS) as (client, entry):
        fleet: Any = entry.worker
        await fleet.settled()
        yield client, fleet


def kill_at(fleet: Fleet, token: int) -> list[Stream]:
    """SIGKILL to the replica of the next stream that has so many tokens."""
    hit: list[Stream] = []
    inner = type(fleet)._news

    def news(stream: Stream, found: Any, nodes: Any) -> None:
        inner(fleet, stream, found, nodes)
        if stream.generated >= token and not hit and not stream.finished and stream.link:
            hit.append(stream)
            stream.link.handle.kill()

    fleet._news = news  # type: ignore[method-assign]
    return hit


async def demo(path: Path, args: argparse.Namespace) -> int:
    """The bytes of a stream from one process, and from a cluster that loses a node in its middle."""
    request = KINDS["sampled"] | {"max_tokens": 120}
    async with client_of(path, None, OPTIONS) as (client, _):
        whole = (await client.post(ROUTE, json=request)).content
    async with cluster(path, Here(), 3) as (client, fleet):
        print("three nodes:", ", ".join(f"{row['replica']} ({row['state']})" for row in fleet.who()))
        hit = kill_at(fleet, 40)
        got = (await client.post(ROUTE, json=request)).content
        silence = fleet.tally.silences[0][0] if fleet.tally.silences else 0.0
        same = plain(got) == plain(whole)
        print(f"a replica was killed after {hit[0].moved_at if hit else '?'} of 120 tokens; the stream moved")
        print(f"{len(got)} bytes, {'the same as' if same else 'OTHER than'} without a kill; silence {silence:.3f} s")
    return 0 if same and hit else 1


async def kill(path: Path, args: argparse.Namespace) -> int:
    """Every kind of stream, killed at every token; one that has ended before the token is not counted."""
    wrong = 0
    for kind, request in KINDS.items():
        async with client_of(path, None, OPTIONS) as (client, _):
            whole = plain((await client.post(ROUTE, json=request)).content)
        async with cluster(path, Here(), 3) as (client, fleet):
            killed = same = 0
            for token in range(N):
                while not fleet.up:
                    await asyncio.sleep(0.05)
                hit = kill_at(fleet, token) if token else kill_at(fleet, 0)
                task = asyncio.ensure_future(client.post(ROUTE, json=request))
                if not token:
                    while not (link := next((link for link in fleet.links if link.streams), None)):
                        await asyncio.sleep(0)
                    hit.append(next(iter(link.streams.values())))
                    link.handle.kill()
                got = plain((await task).content)
                killed, same = killed + bool(hit), same + (bool(hit) and got == whole)
                wrong += got != whole
            longest = max((gap for _, gap in fleet.tally.silences), default=0.0)
            say(what="kill", kind=kind, killed=killed, same=same, longest_silence_s=round(longest, 3))
    return 1 if wrong else 0


@contextmanager
def namespaces(n: int, delay_ms: float) -> Iterator[list[tuple[str, Sequence[str], str]]]:
    """Nodes in network namespaces of their own, a link each, with some delay and loss."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    nodes = []
    try:
        for i in range(n):
            name, here, there = f"assay{i}", f"as{i}a", f"as{i}b"
            ip("netns", "add", name)
            ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
            ip("addr", "add", f"10.213.{i}.1/24", "dev", here)
            ip("link", "set", here, "up")
            ip("-n", name, "addr", "add", f"10.213.{i}.2/24", "dev", there)
            ip("-n", name, "link", "set", there, "up")
            ip("-n", name, "link", "set", "lo", "up")
            netem = ["netem", "delay", f"{delay_ms}ms", "loss", "0.1%"]
            subprocess.run(["tc", "qdisc", "add", "dev", here, "root", *netem], capture_output=True)
            nodes.append((name, ("ip", "netns", "exec", name), f"10.213.{i}.2"))
        yield nodes
    finally:
        for i in range(n):
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", f"assay{i}")


async def soak(path: Path, args: argparse.Namespace) -> int:
    """Streams of all kinds, replicas killed and links cut: nobody may notice."""
    rng = random.Random(1)
    requests = [
        request | {"seed": seed, "max_tokens": 250} for seed in range(6) for kind, request in KINDS.items()
        if kind in ("greedy", "sampled", "logprobs", "schema", "tools")
    ]  # fmt: skip
    async with client_of(path, None, OPTIONS) as (client, _):
        whole = [plain((await client.post(ROUTE, json=request)).content) for request in requests]
    done = differing = kills = cuts = 0
    faults: list[str] = []
    end = time.monotonic() + 60 * args.minutes
    with namespaces(4, args.delay) as nodes:
        async with cluster(path, Here(nodes=nodes), 3) as (client, fleet):

            async def client_loop() -> None:
                nonlocal done, differing
                while time.monotonic() < end:
                    i = rng.randrange(len(requests))
                    got = plain((await client.post(ROUTE, json=requests[i])).content)
                    done += 1
                    differing += got != whole[i]
                    if got != whole[i]:
                        faults.append(got[-200:].decode(errors="replace"))

            async def killer() -> None:
                nonlocal kills
                while time.monotonic() < end:
                    await asyncio.sleep(10)
                    if fleet.up:
                        kills += 1
                        rng.choice(fleet.up).handle.kill()

            async def cutter() -> None:
                nonlocal cuts
                while time.monotonic() < end:
                    await asyncio.sleep(17)
                    if fleet.up:
                        cuts += 1
                        link = f"as{rng.choice(fleet.up).handle.node.removeprefix('assay')}a"
                        subprocess.run(["ip", "link", "set", link, "down"], check=True)
                        await asyncio.sleep(3)
                        subprocess.run(["ip", "link", "set", link, "up"], check=True)

            await asyncio.gather(killer(), cutter(), *(client_loop() for _ in range(32)))
            totals, silences = (sorted(gap[i] for gap in fleet.tally.silences) or [0.0] for i in (0, 1))
            say(
                what="soak", minutes=args.minutes, streams=32, requests=done, kills=kills, cuts=cuts,
                moves=fleet.tally.moves, lost=fleet.tally.lost, errors=fleet.tally.errors, differing=differing,
                silence_p50_s=round(silences[len(silences) // 2], 3),
                silence_p99_s=round(silences[min(len(silences) * 99 // 100, len(silences) - 1)], 3),
                silence_max_s=round(silences[-1], 3),
                with_prefill_p99_s=round(totals[min(len(totals) * 99 // 100, len(totals) - 1)], 3),
                load=os.getloadavg()[0], faults=faults[:3],
            )  # fmt: skip
            return 1 if differing or fleet.tally.errors else 0


async def first(path: Path, args: argparse.Namespace) -> int:
    """Time to the first token over the API's own path: with the router and without, in turn."""
    job = Job((1, *range(5, 30)), max_tokens=1)

    async def one(computes: Any) -> float:
        over: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        started = time.perf_counter()

        def sink(update: Update) -> None:
            if not over.done():
                over.set_result(time.perf_counter() - started)

        computes.submit([job], [sink])
        return await over

    async with client_of(path, None, OPTIONS) as (_, entry), cluster(path, Here(), 1) as (_, fleet):
        rows: dict[str, list[float]] = {"alone": [], "router": []}
        for _ in range(args.repeat):
            rows["alone"].append(await one(entry.worker))
            rows["router"].append(await one(fleet))
            await asyncio.sleep(0.002)
    median = {name: 1000 * statistics.median(values[10:]) for name, values in rows.items()}
    added = 1000 * statistics.median(b - a for a, b in zip(rows["alone"][10:], rows["router"][10:], strict=True))
    say(
        what="first", alone_ms=round(median["alone"], 3), router_ms=round(median["router"], 3), added_ms=round(added, 3)
    )
    return 0


async def scale(path: Path, args: argparse.Namespace) -> int:
    """Tokens per second of two replicas over one, a core each; rounds in turn, the median of the ratios."""
    job = Job((1, *range(5, 30)), max_tokens=48, ignore_eos=True)

    async def rate(fleet: Fleet) -> float:
        done = [asyncio.get_running_loop().create_future() for _ in range(16)]
        sinks = [lambda u, f=f: f.set_result(None) if u.finish else None for f in done]
        started = time.perf_counter()
        fleet.submit([job] * 16, sinks)
        await asyncio.gather(*done)
        return 16 * 48 / (time.perf_counter() - started)

    cores = sorted(os.sched_getaffinity(0))
    ratios, rates = [], []
    one_core, two_cores = Here(cpus=[[cores[0]]]), Here(cpus=[[core] for core in cores[:2]])
    async with fleet_of(path, one_core, n=1, most=1) as one, fleet_of(path, two_cores, n=2, most=2) as two:
        for _ in range(args.rounds):
            a, b = await rate(one), await rate(two)
            ratios.append(b / a)
            rates.append((round(a, 1), round(b, 1)))
    say(what="scale", ratio=round(statistics.median(ratios), 3), rounds=rates, load=os.getloadavg()[0])
    return 0


async def affinity(path: Path, args: argparse.Namespace) -> int:
    """Eight conversations that share long beginnings, over three replicas: prompt tokens computed."""

    def in_turn(links: list[Link], names: list[str], n: int, state: list[int] = [0]) -> Link:  # noqa: B006
        state[0] += 1
        return links[state[0] % len(links)]

    async def computed(choose: Any) -> tuple[int, int]:
        async with fleet_of(path, Here(), n=3, choose=choose, spec={"options": vars(OPTIONS)}) as fleet:
            asked = 0
            for turn in range(6):
                over = []
                for family in range(8):
                    ids = (1, *[family + 5] * (6 * PAGE + turn * PAGE), 40 + turn)
                    asked += len(ids)
                    done = asyncio.get_running_loop().create_future()
                    fleet.submit(
                        [Job(ids, max_tokens=2, ignore_eos=True)],
                        [lambda u, f=done: f.set_result(None) if u.finish else None],
                    )
                    over.append(done)
                await asyncio.gather(*over)
                await asyncio.sleep(0.3)
            return sum(int(link.beat["step_tokens"]) for link in fleet.up), asked

    with_, asked = await computed(None)
    without, _ = await computed(in_turn)
    say(
        what="affinity",
        prompt_tokens=asked,
        computed_with=with_,
        computed_without=without,
        ratio=round(with_ / without, 3),
    )
    return 0


MODES = {"demo": demo, "kill": kill, "soak": soak, "first": first, "scale": scale, "affinity": affinity}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=MODES)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--delay", type=float, default=0.2, help="milliseconds of the links in a soak")
    parser.add_argument("--repeat", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or make(Path(folder) / "m.gguf", n_ctx=512, template=TOOL_TEMPLATE)
        return asyncio.run(MODES[args.what](path, args))


if __name__ == "__main__":
    sys.exit(main())
