"""The figures of docs/reference/cluster.md: what happens to streams when replicas die, and what the router costs.

python bench/cluster.py demo                   # three local nodes, a stream, a kill, the same bytes
python bench/cluster.py kill                   # SIGKILL at every token of a 40-token stream, five kinds
python bench/cluster.py soak --minutes 5       # 32 streams, kills and cut links; network namespaces, so root
python bench/cluster.py first                  # what the router adds to the time to the first token
python bench/cluster.py scale --model M.gguf   # two replicas over one, a core each
python bench/cluster.py affinity               # prompt tokens computed with routing by prefix over without
python bench/cluster.py eval                   # over four processes (--cluster ADDRESS: Ray), killed half way, resumed
python bench/cluster.py split                  # three stages, each killed once in a stream
python bench/cluster.py audit                  # a weight's bit flipped in a replica's memory

Without --model a tiny model with random weights is used, because the cluster is measured and not the engine.
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

import numpy as np  # noqa: E402
from tests.cluster.harness import client_of, fleet_of, plain, spec_of  # noqa: E402
from tests.cluster.test_audit import flip, reader  # noqa: E402
from tests.cluster.test_failover import KINDS, N  # noqa: E402
from tests.serve.conftest import TOOL_TEMPLATE  # noqa: E402
from tests.tiny import make  # noqa: E402

from assay.cluster.fleet import Bounds, Fleet  # noqa: E402
from assay.cluster.launchers import LocalLauncher  # noqa: E402
from assay.cluster.replica_link import Link, RoutedStream  # noqa: E402
from assay.cluster.replicated_model import Cluster  # noqa: E402
from assay.cluster.split import SplitEngine  # noqa: E402
from assay.engines.contract import PAGE, Chunk, pages_for  # noqa: E402
from assay.gguf import open_file  # noqa: E402
from assay.models import load  # noqa: E402
from assay.runtime.generate import Generator  # noqa: E402
from assay.runtime.opening import OpenOptions, open_model  # noqa: E402
from assay.runtime.params import SamplerParams  # noqa: E402
from assay.runtime.sequence import Job, Update  # noqa: E402

OPTIONS = OpenOptions(engine="cpu", threads=1, cache_size=8192)
ROUTE = "/v1/chat/completions"


def say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


@asynccontextmanager
async def cluster(path: Path, launcher: LocalLauncher, n: int) -> AsyncIterator[tuple[Any, Fleet]]:
    """A client of a router with n replicas."""
    async with client_of(path, Cluster(lambda: launcher, Bounds(n, n)), OPTIONS) as (client, entry):
        fleet: Any = entry.worker
        await fleet.wait_until_complete()
        yield client, fleet


def kill_at(fleet: Fleet, token: int) -> list[RoutedStream]:
    """SIGKILL to the replica of the next stream that has so many tokens."""
    hit: list[RoutedStream] = []
    inner = type(fleet)._apply_update

    def news(stream: RoutedStream, found: Any, nodes: Any) -> None:
        inner(fleet, stream, found, nodes)
        if stream.generated >= token and not hit and not stream.finished and stream.link:
            hit.append(stream)
            stream.link.handle.kill()

    fleet._apply_update = news  # type: ignore[method-assign]
    return hit


async def demo(path: Path, args: argparse.Namespace) -> int:
    """The bytes of a stream from one process, and from a cluster that loses a node in its middle."""
    request = KINDS["sampled"] | {"max_tokens": 120}
    async with client_of(path, None, OPTIONS) as (client, _):
        whole = (await client.post(ROUTE, json=request)).content
    async with cluster(path, LocalLauncher(), 3) as (client, fleet):
        print("three nodes:", ", ".join(f"{row['replica']} ({row['state']})" for row in fleet.rows()))
        hit = kill_at(fleet, 40)
        got = (await client.post(ROUTE, json=request)).content
        silence = fleet.tally.silences[0][0] if fleet.tally.silences else 0.0
        same = plain(got) == plain(whole)
        print(f"a replica was killed after {hit[0].moved_at if hit else '?'} of 120 tokens; the stream moved")
        print(f"{len(got)} bytes, {'the same as' if same else 'OTHER than'} without a kill; silence {silence:.3f} s")
    return 0 if same and hit else 1


async def kill(path: Path, args: argparse.Namespace) -> int:
    """Every kind of stream, killed at every token; one that has ended before the token is not counted."""
    wrong, gaps = 0, []
    for kind, request in KINDS.items():
        async with client_of(path, None, OPTIONS) as (client, _):
            whole = plain((await client.post(ROUTE, json=request)).content)
        async with cluster(path, LocalLauncher(), 3) as (client, fleet):
            killed = same = 0
            for token in range(N):
                while len(fleet.up) < 2:  # one to kill, and one to go on
                    await asyncio.sleep(0.05)
                hit = kill_at(fleet, token)
                task = asyncio.ensure_future(client.post(ROUTE, json=request))
                if not token:
                    while not (link := next((link for link in fleet.links if link.streams), None)):
                        await asyncio.sleep(0)
                    hit.append(next(iter(link.streams.values())))
                    link.handle.kill()
                got = plain((await task).content)
                killed, same = killed + bool(hit), same + (bool(hit) and got == whole)
                wrong += got != whole
            say(what="kill", kind=kind, killed=killed, same=same)
            gaps += fleet.tally.silences
    say(what="kill", moves=len(gaps), **silence_of(gaps), load=round(os.getloadavg()[0], 1))
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
    """Streams of all kinds, replicas killed and links cut: nobody may notice. A fault is told with what came before."""
    rng = random.Random(1)
    requests = [request | {"seed": seed, "max_tokens": 250} for seed in range(6) for request in KINDS.values()]
    async with client_of(path, None, OPTIONS) as (client, _):
        whole = [plain((await client.post(ROUTE, json=request)).content) for request in requests]
    done = differing = 0
    start = time.monotonic()
    end = start + 60 * args.minutes
    events: list[str] = []

    def event(what: str) -> None:
        events.append(f"{time.monotonic() - start:.2f} {what}")

    with namespaces(4, args.delay) as nodes:
        async with cluster(path, LocalLauncher(nodes=nodes), 3) as (client, fleet):
            lose = fleet.lose

            def lost(link: Link, why: str) -> None:
                if link.state == "up":
                    event(f"{link.name} lost: {why}")
                lose(link, why)

            fleet.lose = lost  # type: ignore[method-assign]

            async def client_loop() -> None:
                nonlocal done, differing
                while time.monotonic() < end:
                    i, began = rng.randrange(len(requests)), time.monotonic() - start
                    reply = await client.post(ROUTE, json=requests[i])
                    got = plain(reply.content)
                    done += 1
                    if got != whole[i]:
                        differing += 1
                        tail = got[-300:].decode(errors="replace")
                        say(what="fault", status=reply.status_code, began=began, tail=tail, before=events[-6:])

            async def killer() -> None:
                while time.monotonic() < end:
                    await asyncio.sleep(10)
                    if fleet.up:
                        handle = rng.choice(fleet.up).handle
                        event(f"kill {handle.name}")
                        handle.kill()

            async def cutter() -> None:
                while time.monotonic() < end:
                    await asyncio.sleep(17)
                    if fleet.up:
                        handle = rng.choice(fleet.up).handle
                        event(f"cut {handle.name}")
                        link = f"as{handle.node.removeprefix('assay')}a"
                        subprocess.run(["ip", "link", "set", link, "down"], check=True)
                        await asyncio.sleep(3)
                        subprocess.run(["ip", "link", "set", link, "up"], check=True)

            await asyncio.gather(killer(), cutter(), *(client_loop() for _ in range(32)))
            kills, cuts = (sum(row.split()[1] == what for row in events) for what in ("kill", "cut"))
            say(
                what="soak", minutes=args.minutes, streams=32, requests=done, kills=kills, cuts=cuts,
                moves=fleet.tally.moves, lost=fleet.tally.lost, errors=fleet.tally.errors, differing=differing,
                **silence_of(fleet.tally.silences), load=round(os.getloadavg()[0], 1),
            )  # fmt: skip
            return 1 if differing or fleet.tally.errors else 0


def silence_of(gaps: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Around moves: without the time in which no replica was up and the next one's queue and prefill; and in all."""
    found = {}
    for name, i in (("silence", 1), ("in_all", 0)):
        rows = sorted(gap[i] for gap in gaps) or [0.0]
        for part in (50, 99, 100):
            found[f"{name}_p{part}_s"] = round(rows[min(len(rows) * part // 100, len(rows) - 1)], 3)
    return found


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

    async with client_of(path, None, OPTIONS) as (_, entry), cluster(path, LocalLauncher(), 1) as (_, fleet):
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
    """Tokens per second of two replicas over one, a core each and as many streams each; rounds in turn, medians.

    Where others use the cores too, the clock measures them. Seconds of CPU a token do not: beside the ratio stands the
    one that they give on two cores that do nothing else, of which the router takes its part."""
    job = Job((1, *range(5, 30)), max_tokens=48, ignore_eos=True)

    async def rate(fleet: Fleet) -> dict[str, float]:
        streams = 16 * len(fleet.up)
        done = [asyncio.get_running_loop().create_future() for _ in range(streams)]
        sinks = [lambda u, f=f: f.set_result(None) if u.finish else None for f in done]
        before, cpu, started = replicas(fleet), time.process_time(), time.perf_counter()
        fleet.submit([job] * streams, sinks)
        await asyncio.gather(*done)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        busy = replicas(fleet) - before
        n = streams * 48
        return {"tokens": n / seconds, "router": cpu / n, "replica": busy / n}

    def replicas(fleet: Fleet) -> float:
        """Seconds of CPU that they have taken."""
        stats = [Path(f"/proc/{link.handle.process.pid}/stat").read_text() for link in fleet.up]  # type: ignore[attr-defined]
        ticks = sum(int(n) for stat in stats for n in stat.rpartition(")")[2].split()[11:13])
        return ticks / os.sysconf("SC_CLK_TCK")

    cores = sorted(os.sched_getaffinity(0))
    one_core, two_cores = LocalLauncher(cpus=[[cores[0]]]), LocalLauncher(cpus=[[core] for core in cores[:2]])
    async with fleet_of(path, one_core, n=1, most=1) as one, fleet_of(path, two_cores, n=2, most=2) as two:
        rounds = [(await rate(one), await rate(two)) for _ in range(args.rounds + 1)][1:]

    def median(of: Any) -> float:
        return statistics.median(of(a, b) for a, b in rounds)

    one_s, two_s = median(lambda a, b: a["replica"]), median(lambda a, b: b["replica"])
    router_s = median(lambda a, b: b["router"])
    say(
        what="scale", ratio=round(median(lambda a, b: b["tokens"] / a["tokens"]), 3),
        by_cpu=round(2 * one_s / (two_s + router_s), 3), ms_of_cpu_a_token={
            "one": round(1000 * one_s, 3), "two": round(1000 * two_s, 3), "router": round(1000 * router_s, 3)},
        tokens_per_s=[[round(a["tokens"], 1), round(b["tokens"], 1)] for a, b in rounds],
        load=round(os.getloadavg()[0], 1),
    )  # fmt: skip
    return 0


async def affinity(path: Path, args: argparse.Namespace) -> int:
    """Eight conversations that share long beginnings, over three replicas: prompt tokens computed."""

    def in_turn(links: list[Link], names: list[str], n: int, state: list[int] = [0]) -> Link:  # noqa: B006
        state[0] += 1
        return links[state[0] % len(links)]

    async def computed(choose: Any) -> tuple[int, int]:
        async with fleet_of(path, LocalLauncher(), n=3, choose=choose, spec={"options": vars(OPTIONS)}) as fleet:
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


async def evaluation(path: Path, args: argparse.Namespace) -> int:
    """`assay eval` on one process, over four, and over four with all of it killed when half the results are there."""

    def command(*more: str) -> list[str]:
        text = ["-f", str(ROOT / "docs" / "reference" / "cluster.md"), "--window", "64", "--json"]
        return [sys.executable, "-m", "assay", "eval", str(path), *text, *more]

    def perplexity(*more: str) -> dict[str, Any]:
        done = subprocess.run(command(*more), check=True, capture_output=True, text=True)
        return {key: json.loads(done.stdout)[key] for key in ("perplexity", "nll", "windows")}

    one = perplexity()
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        four = perplexity("--cluster", args.cluster, "--results", a)
        tasks = len(list(Path(a).rglob("*.json")))
        process = subprocess.Popen(command("--cluster", args.cluster, "--results", b), stdout=subprocess.PIPE)
        while len(list(Path(b).rglob("*.json"))) < tasks // 2 and process.poll() is None:
            await asyncio.sleep(0.01)
        killed = process.poll() is None
        process.kill()
        process.communicate()
        left = len(list(Path(b).rglob("*.json")))
        resumed = perplexity("--cluster", args.cluster, "--results", b)
    same = one == four == resumed
    say(what="eval", **one, tasks=tasks, killed=killed, kept=left, same=same)
    return 0 if same and killed else 1


async def split(path: Path, args: argparse.Namespace) -> int:
    """Three stages: logits of a prompt, then streams of every kind while each stage is killed once."""
    opened = open_model(path, OPTIONS)
    spec = spec_of(path) | {"split": 3, "token": "secret"}
    ids = np.random.default_rng(5).integers(3, 300, 60).astype(np.int32)
    chunk = Chunk(ids, 0, np.arange(pages_for(len(ids)), dtype=np.int32), "all")
    staged = SplitEngine(opened, spec, LocalLauncher())
    try:
        logits = np.array_equal(opened.engine().forward([chunk])[0].logits, staged.forward([chunk])[0].logits)
        results = []
        for deaths in ({}, {5: 0, 17: 1, 30: 2}):
            generator = Generator(staged if deaths else opened.engine(), opened.tokenizer, n_ctx=opened.n_ctx)
            stream = generator.generate(
                ids[:9].tolist(), SamplerParams(temp=1.2, seed=3), max_tokens=N, logprobs=2, ignore_eos=True
            )
            for i, _ in enumerate(stream):
                if i in deaths:
                    staged.stages[deaths[i]][2].kill()
            results.append((stream.result.ids, stream.result.logprobs, stream.result.text))
    finally:
        staged.close()
    same = results[0] == results[1]
    say(what="split", stages=3, logits_equal=logits, stages_killed=3, stream_equal=same)
    return 0 if logits and same else 1


async def audit(path: Path, args: argparse.Namespace) -> int:
    """Three replicas, every answer audited; then one bit of one norm's weight flips in the memory of one of them."""
    file = open_file(path)
    name = "blk.1.ffn_norm.weight"
    weight, node = file.decode(name).astype("<f4").tobytes(), reader(load(file).graph, name)
    launcher = LocalLauncher()
    async with client_of(path, Cluster(lambda: launcher, Bounds(3, 3), audit=1.0), OPTIONS) as (client, entry):
        fleet: Any = entry.worker
        await fleet.wait_until_complete()
        auditor = fleet.finished.__self__

        async def ask(seed: int) -> None:
            await client.post(ROUTE, json=KINDS["sampled"] | {"seed": seed})
            await auditor.wait_until_idle()

        for seed in range(6):
            await ask(seed)
        healthy, sick = auditor.done, fleet.up[1]
        false = len(auditor.found)
        flip(sick.handle.process.pid, weight, 5, 6)
        while not auditor.found[false:] and auditor.done < healthy + 12:
            await ask(auditor.done)
        found = auditor.found[false:]
        right = bool(found) and found[0].replica == sick.name and found[0].first == node
        say(what="audit", healthy=healthy, false_alarms=false, answers_until_found=auditor.done - healthy,
            flipped_in=sick.name, weight=name, read_by=node, finding=str(found[0]) if found else None)  # fmt: skip
    return 0 if right and not false else 1


MODES = {"demo": demo, "kill": kill, "soak": soak, "first": first, "scale": scale, "affinity": affinity,
         "eval": evaluation, "split": split, "audit": audit}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=MODES)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--delay", type=float, default=0.2, help="milliseconds of the links in a soak")
    parser.add_argument("--repeat", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cluster", default="local:4", metavar="ADDRESS", help="for eval")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or make(Path(folder) / "m.gguf", n_ctx=512, n_layer=3, template=TOOL_TEMPLATE)
        return asyncio.run(MODES[args.what](path, args))


if __name__ == "__main__":
    sys.exit(main())
