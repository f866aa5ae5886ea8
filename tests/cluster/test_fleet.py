"""The router: where streams go, how many replicas there are, and who is shown."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("llguidance")

from assay import cli
from assay.cluster.affinity import ReplicaLoad, cost
from assay.cluster.fleet import Bounds
from assay.cluster.replica_link import Link, RoutedStream
from assay.cluster.replicated_model import Cluster
from assay.engines.contract import PAGE
from assay.errors import AssayError
from assay.runtime.pages import Pages
from assay.runtime.prefix_keys import page_names
from assay.runtime.sequence import Job, Update
from assay.runtime.sequence_errors import DeadlinePassed, QueueFull
from tests.cluster.harness import Threads, client_of, events, fleet_of
from tests.serve.conftest import TOOL_TEMPLATE
from tests.tiny import make

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 24}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("fleet") / "m.gguf", n_ctx=512, template=TOOL_TEMPLATE)


def follow() -> tuple[Any, asyncio.Future[Update]]:
    over: asyncio.Future[Update] = asyncio.get_running_loop().create_future()
    return lambda update: over.set_result(update) if update.finish and not over.done() else None, over


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 1), min_size=3, max_size=9)), max_size=30))
def test_what_a_cache_says_it_holds_is_what_it_finds(steps: list[tuple[bool, list[int]]]) -> None:
    """The names that come and go spell the prefix tree, whatever is computed and evicted."""
    pages, held = Pages(4, page_size=2), set[str]()
    pages.watch = lambda name, here: held.add(name) if here else held.discard(name)
    for keep, tokens in steps:
        lease = pages.open(tokens)
        if pages.available * 2 >= len(tokens) - lease.length:
            pages.reserve(lease, len(tokens) - lease.length)
            pages.commit(lease, tokens[lease.length :])
        pages.close(lease)
        if not keep:
            pages.clear()
        for _, other in steps:
            names = page_names(other, 2)
            found = next((i for i, name in enumerate(names) if name not in held), len(names))
            assert pages.match(other) == 2 * found


def test_cost_counts_what_has_to_be_computed() -> None:
    a, b = ReplicaLoad(), ReplicaLoad()
    names = page_names(list(range(4 * PAGE)))
    a.changed(dict.fromkeys(names[:2], True))
    assert cost(a, names, 4 * PAGE, 0) == 2 * PAGE < cost(b, names, 4 * PAGE, 0) == 4 * PAGE
    owed = b.send(names, 4 * PAGE)  # sent and not yet begun: a second prompt with these pages goes there too
    assert owed == 4 * PAGE and b.found(names) == 3 * PAGE
    b.began(names, owed)
    assert b.owed == 0 and b.found(names) == 0, "only what it says itself is held"
    a.changed({names[0]: False})
    assert a.found(names) == 0


def test_streams_with_a_common_beginning_go_together(path: Path) -> None:
    """Half as many prompt tokens are computed as where streams are dealt out in turn."""

    async def computed(choose: Any) -> int:
        async with fleet_of(path, n=2, choose=choose) as fleet:
            for turn in range(4):
                over = []
                for family in (5, 6, 7):
                    ids = (1, *[family] * (4 * PAGE), turn + 10)
                    sink, done = follow()
                    fleet.submit([Job(ids, max_tokens=2, ignore_eos=True)], [sink])
                    over.append(done)
                    await asyncio.sleep(0.03)
                await asyncio.gather(*over)
                await asyncio.sleep(0.25)  # a beat
            return sum(int(link.beat["step_tokens"]) for link in fleet.up)

    turns = 0

    def in_turn(links: list[Link], names: list[str], n: int) -> Link:
        nonlocal turns
        turns += 1
        return links[turns % len(links)]

    with_affinity, without = asyncio.run(computed(None)), asyncio.run(computed(in_turn))
    assert with_affinity <= 0.6 * without, (with_affinity, without)


def test_draining_moves_what_does_not_end(path: Path) -> None:
    async def main() -> None:
        async with fleet_of(path, bounds=Bounds(2, 2, drain_s=0.05)) as fleet:
            job = Job((1, 5, 6), max_tokens=400, ignore_eos=True)
            sinks = [follow() for _ in range(4)]
            streams = fleet.submit([job] * 4, [sink for sink, _ in sinks])
            while not all(stream.generated for stream in streams):
                await asyncio.sleep(0.01)
            link = streams[0].link
            assert link
            leaving = set(link.streams.values())
            fleet.replace(link)
            assert {update.finish for update in await asyncio.gather(*(done for _, done in sinks))} == {"length"}
            assert {stream.ids[3:] == streams[0].ids[3:] for stream in streams} == {True}
            assert all(stream.moves == (stream in leaving) for stream in streams) and fleet.tally.lost == 0
            await fleet.wait_until_complete()
            assert link.state == "gone" and link not in fleet.links

    asyncio.run(main())


def test_replicas_come_when_streams_wait_and_go_when_they_do_not(path: Path) -> None:
    async def main() -> None:
        bounds = Bounds(1, 3, up_s=0.05, down_s=0.5, drain_s=1)
        async with fleet_of(path, bounds=bounds, spec={"running": 1}, waiting=64) as fleet:
            sinks = [follow() for _ in range(24)]
            fleet.submit([Job((1, 5, 6), max_tokens=200, ignore_eos=True)] * 24, [sink for sink, _ in sinks])
            most = shared = 1
            while not all(done.done() for _, done in sinks):
                most = max(most, len(fleet.up))
                shared = max(shared, sum(bool(link.decoding) for link in fleet.up))
                await asyncio.sleep(0.02)
            assert most > 1 and shared > 1, "who comes takes from those who wait"
            end = time.monotonic() + 30
            while len(fleet.links) > 1:
                assert time.monotonic() < end, "no replica was stopped"
                await asyncio.sleep(0.05)

    asyncio.run(main())


def test_no_room_and_no_time(path: Path) -> None:
    async def main() -> None:
        async with fleet_of(path, n=1, waiting=2, spec={"running": 1}) as fleet:
            jobs = [Job((1, 5, 6), max_tokens=300, ignore_eos=True)] * 3
            sinks = [follow() for _ in range(3)]
            fleet.submit(jobs, [sink for sink, _ in sinks])
            with pytest.raises(QueueFull):
                fleet.submit(jobs[:1], [sinks[0][0]])
            fleet.bounds = Bounds(0, 0)
            link = fleet.up[0]
            late = RoutedStream(Job((1, 5, 6), max_tokens=3, deadline=time.monotonic() + 0.2), (sink := follow())[0])
            link.handle.kill()
            fleet.mark_lost(link, "gone for good")
            fleet.place(late)
            update = await asyncio.wait_for(sink[1], 10)
            assert isinstance(update.error, DeadlinePassed)

    asyncio.run(main())


def test_a_fleet_that_cannot_start_says_why(path: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with fleet_of(tmp_path / "absent.gguf"):
            pass

    with pytest.raises(AssayError, match=r"absent\.gguf"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--host", "0.0.0.0"], "give --api-key-file or --insecure-cluster"),
        (["--audit", "0.5"], "give --replicas 2 or more"),
        (["--cluster", "local:2", "--replicas", "3"], "and so does --replicas"),
        (["--cluster", "local:none"], "expected local:N"),
    ],
)
def test_what_a_router_refuses(path: Path, given: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", str(path), "--cluster", "local", "--port", "0", *given]) == 2
    assert words in capsys.readouterr().err


def test_a_second_router_takes_over_by_last_event_id(path: Path) -> None:
    """The first events from one router, the rest from another: together the bytes of one. No seed was given."""

    async def main() -> None:
        for request in (CHAT | {"temperature": 1.2}, CHAT | {"temperature": 1.2, "logprobs": True}):
            async with client_of(path, Cluster(Threads, Bounds(1, 1))) as (client, _):
                first = {"Last-Event-ID": ""}
                whole = (await client.post("/v1/chat/completions", json=request, headers=first)).content
                blocks = whole.split(b"\n\n")
                ids = [block.split(b"\n")[0].removeprefix(b"id: ").decode() for block in blocks[:-2]]
                assert len(events(whole)) == len(ids) and len(set(ids)) == len(ids)
            async with client_of(path) as (other, _):
                for seen in (1, 7, len(ids)):
                    headers = {"Last-Event-ID": ids[seen - 1]}
                    rest = (await other.post("/v1/chat/completions", json=request, headers=headers)).content
                    assert b"\n\n".join(blocks[:seen]) + b"\n\n" + rest == whole, seen
                headers = {"Last-Event-ID": "nonsense"}
                assert events((await other.post("/v1/chat/completions", json=request, headers=headers)).content)

    asyncio.run(main())


def test_every_replica_is_shown(path: Path) -> None:
    async def main() -> None:
        async with client_of(path, Cluster(Threads, Bounds(2, 2))) as (client, entry):
            await entry.worker.wait_until_complete()  # type: ignore[union-attr]
            await client.post("/v1/chat/completions", json=CHAT)
            await asyncio.sleep(0.3)
            rows = sorted((await client.get("/v1/replicas")).json()["data"], key=lambda row: row["replica"])
            assert [row["replica"] for row in rows] == ["replica-0", "replica-1"]
            assert {row["state"] for row in rows} == {"up"} and len({row["fingerprint"] for row in rows}) == 1
            assert sum(row["tokens"] for row in rows) >= 1
            text = (await client.get("/metrics")).text
            for i in range(2):
                who = f'{{model="m",node="node of replica-{i}",replica="replica-{i}"}}'
                assert f"assay_replica_up{who} 1.0" in text
            assert 'assay_cluster_moves_total{model="m"} 0.0' in text
            (body,) = [(await client.post("/v1/embeddings", json={"input": "hello"})).json()]
            assert len(body["data"][0]["embedding"]) == 64
            trace = (await client.post("/v1/trace", json={"prompt": "hello", "nodes": ["l_out-*"]})).json()
            assert [node["name"] for node in trace["nodes"]] == ["l_out-0", "l_out-1"]
            scored = {"prompt": "hello the world", "echo": True, "logprobs": 2, "max_tokens": 3, "temperature": 0}
            async with client_of(path) as (one, _):
                a, b = [(await c.post("/v1/completions", json=scored)).json()["choices"] for c in (client, one)]
            assert a == b
        async with client_of(path) as (client, _):
            (row,) = (await client.get("/v1/replicas")).json()["data"]
            assert row["replica"] == "this process"

    asyncio.run(main())
