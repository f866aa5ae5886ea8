"""A replica dies at any token of a stream: the client receives the bytes that it would have received."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections import deque
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llguidance")
pytest.importorskip("httpx")

from assay.cluster.fleet import MOVES, Bounds, Fleet
from assay.cluster.launchers import LocalLauncher
from assay.cluster.replica_link import SILENT, RoutedStream
from assay.cluster.replicated_model import Cluster
from assay.runtime.sequence import Job, Update
from assay.runtime.sequence_errors import EngineFailed
from tests.cluster.harness import Threads, client_of, events, fleet_of, kill_after, plain
from tests.serve.conftest import TOOL_TEMPLATE
from tests.tiny import make

N = 40
ASK = [{"role": "user", "content": "hello the world, on and on in a word"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "tell",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "maxLength": 12},
                "n": {"type": "integer", "maximum": 9, "minimum": 0},
            },
            "required": ["text", "n"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
CHAT: dict[str, Any] = {"messages": ASK, "stream": True, "max_tokens": N, "seed": 7, "ignore_eos": True}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": CHAT | {"temperature": 0},
    "sampled": CHAT | {"temperature": 1.3, "top_k": 0, "repeat_penalty": 1.1, "stop": ["never so", "zzzz"]},
    "logprobs": CHAT | {"temperature": 1.0, "logprobs": True, "top_logprobs": 3},
    "schema": CHAT | {"temperature": 1.0, "max_tokens": 120, "ignore_eos": False,
                      "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    "tools": CHAT | {"temperature": 1.0, "max_tokens": 120, "ignore_eos": False,
                     "tools": [TOOL], "tool_choice": "required"},
}  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("cluster") / "m.gguf", n_ctx=512, template=TOOL_TEMPLATE)


async def whole(path: Path, kind: str) -> bytes:
    """The undisturbed stream, from one process."""
    async with client_of(path) as (client, _):
        return (await client.post("/v1/chat/completions", json=KINDS[kind])).content


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_token(path: Path, kind: str) -> None:
    async def main() -> None:
        expected = await whole(path, kind)
        last = events(expected)[-1]["choices"][0]["finish_reason"]
        assert last == {"schema": "stop", "tools": "tool_calls"}.get(kind, "length")
        launcher = Threads()
        async with client_of(path, Cluster(lambda: launcher, Bounds(2, 4))) as (client, entry):
            fleet: Any = entry.worker
            undisturbed, plainly = (
                (await client.post("/v1/chat/completions", json=KINDS[kind])).content,
                fleet._apply_update,
            )
            assert plain(undisturbed) == plain(expected), "through the router alone"
            moved = 0
            for cut in range(N):
                await fleet.wait_until_complete()
                fleet._apply_update = plainly

                def kill(stream: RoutedStream) -> None:
                    nonlocal moved
                    moved += 1
                    assert stream.link
                    fleet.mark_lost(stream.link, "killed by the test")

                kill_after(fleet, cut, kill) if cut else None
                request = asyncio.ensure_future(client.post("/v1/chat/completions", json=KINDS[kind]))
                if not cut:  # before its first token
                    while not (streams := [s for link in fleet.links for s in link.streams.values()]):
                        await asyncio.sleep(0)
                    kill(streams[0])
                got = (await request).content
                assert plain(got) == plain(expected), cut
            assert moved >= (N * 2 // 3 if kind in ("schema", "tools") else N)
            assert fleet.tally.moves == moved

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_process_dies(path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL is seen at once, SIGSTOP by its silence."""
    monkeypatch.setattr("assay.cluster.fleet.AGAIN_S", 1.0)

    async def main() -> None:
        expected = {kind: plain(await whole(path, kind)) for kind in KINDS}
        launcher = LocalLauncher()
        async with client_of(path, Cluster(lambda: launcher, Bounds(2, 2))) as (client, entry):
            fleet: Any = entry.worker
            await fleet.wait_until_complete()
            hit: list[RoutedStream] = []

            def kill(stream: RoutedStream) -> None:
                if not hit:
                    hit.append(stream)
                    handle: Any = stream.link.handle if stream.link else None
                    os.kill(handle.process.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)

            kill_after(fleet, 5, kill)
            replies = await asyncio.gather(
                *(client.post("/v1/chat/completions", json=request) for request in KINDS.values())
            )
            for kind, reply in zip(KINDS, replies, strict=True):
                assert plain(reply.content) == expected[kind], kind
            assert hit and fleet.tally.lost == 1 and fleet.tally.errors == 0
            await fleet.wait_until_complete()  # another one comes
            assert len(fleet.up) == 2

    asyncio.run(main())


def test_a_request_that_kills_is_not_moved_for_ever(path: Path) -> None:
    async def main() -> None:
        async with fleet_of(path, n=2) as fleet:
            over: asyncio.Future[Update] = asyncio.get_running_loop().create_future()
            deaths = 0

            def place(self: Fleet, stream: RoutedStream, avoid: Any = None, inner: Any = fleet.place) -> None:
                nonlocal deaths
                inner(stream, avoid)
                if stream.link:
                    deaths += 1
                    link = stream.link
                    asyncio.get_running_loop().call_soon(lambda: fleet.mark_lost(link, "poisoned"))

            fleet.place = place.__get__(fleet)  # type: ignore[method-assign]
            fleet.submit([Job((1, 5, 6), max_tokens=8)], [lambda u: over.set_result(u) if u.finish else None])
            update = await asyncio.wait_for(over, 30)
            assert isinstance(update.error, EngineFailed) and "not moved again" in str(update.error)
            assert deaths == MOVES + 1

    asyncio.run(main())


def test_who_travels_with_a_killer_does_not_pay_for_it(path: Path) -> None:
    """All are lost together, again and again before their first token; one is the cause."""

    async def main() -> None:
        async with fleet_of(path, n=2) as fleet:
            fleet._choose = lambda links, names, n: links[0]
            job = Job((1, 5, 6), max_tokens=8, ignore_eos=True)
            poison = Job((1, 9, 9), max_tokens=8)
            inner = fleet.place

            def place(stream: RoutedStream, avoid: Any = None) -> None:
                inner(stream, avoid)
                if stream.job is poison and (link := stream.link):
                    asyncio.get_running_loop().call_soon(lambda: fleet.mark_lost(link, "poisoned"))

            fleet.place = place  # type: ignore[method-assign]
            over: list[asyncio.Future[Update]] = [asyncio.get_running_loop().create_future() for _ in range(6)]
            sinks = [lambda u, f=f: f.set_result(u) if u.finish else None for f in over]
            killer, *others = fleet.submit([poison, *[job] * 5], sinks)
            updates = await asyncio.wait_for(asyncio.gather(*over), 60)
            assert [update.finish for update in updates] == ["error", *["length"] * 5]
            assert killer.moves == MOVES + 1 and fleet.tally.lost == MOVES + 1
            assert max(stream.moves for stream in others) >= MOVES, "they did travel with it"
            assert len({tuple(stream.ids) for stream in others}) == 1

    asyncio.run(main())


def test_who_came_when_it_was_silent_already_is_not_blamed(path: Path) -> None:
    """Two replicas fall silent together: no stream moves from one to the other. A stream that was sent to a silent
    replica is not blamed for its loss."""

    async def main() -> None:
        async with fleet_of(path, n=3) as fleet:
            first, second, third = fleet.up
            fleet._choose = lambda links, names, n: links[0]
            over: asyncio.Future[Update] = asyncio.get_running_loop().create_future()
            job = Job((1, 5, 6), max_tokens=8)
            (stream,) = fleet.submit([job], [lambda u: over.set_result(u) if u.finish else None])
            first.silent = second.silent = SILENT + 1
            fleet.mark_lost(first, "silent")
            assert stream.link is third and stream.blamed == [first]
            late = RoutedStream(job, lambda update: None)
            second.send(late, 999, [])
            fleet.mark_lost(second, "silent")
            assert late.moves == 1 and not late.blamed
            assert (await asyncio.wait_for(over, 30)).finish

    asyncio.run(main())


@pytest.mark.parametrize("stood", [False, True], ids=["cut", "hung"])
def test_a_cut_is_told_from_a_hang_by_the_replica_itself(path: Path, stood: bool) -> None:
    """A replica falls silent and reconnects. If it reports no stall, the network was cut, and no stream is blamed."""
    times = 2 * MOVES

    async def main() -> None:
        launcher = Threads()
        async with fleet_of(path, launcher, n=1) as fleet:
            replica: Any = launcher.started[0].service
            replica._stood = deque([(math.inf, 1.0)] if stood else [], maxlen=int(stood))
            inner = fleet.place

            def place(stream: RoutedStream, avoid: Any = None) -> None:
                inner(stream, avoid)
                if (link := stream.link) and fleet.tally.lost < times:
                    link.silent = SILENT + 1
                    fleet.mark_lost(link, "silent")

            fleet.place = place  # type: ignore[method-assign]
            over: asyncio.Future[Update] = asyncio.get_running_loop().create_future()
            fleet.submit([Job((1, 5, 6), max_tokens=8)], [lambda u: over.set_result(u) if u.finish else None])
            update = await asyncio.wait_for(over, 60)
            assert (update.finish == "error") == stood
            assert fleet.tally.lost == (MOVES + 1 if stood else times)

    asyncio.run(main())


def test_streams_move_only_among_equals(path: Path, tmp_path: Path) -> None:
    """A replica with other weights does not go on with a stream; one with the same does when it comes."""

    async def main() -> None:
        other = make(tmp_path / "other.gguf", seed=2, n_ctx=512)
        launcher = Threads()
        async with fleet_of(path, launcher, n=1) as fleet:
            first = fleet.up[0]
            fleet.spec = {**fleet.spec, "path": str(other)}
            fleet.add_replica()
            while len(fleet.up) < 2:
                await asyncio.sleep(0.01)
            stranger = next(link for link in fleet.up if link is not first)
            assert stranger.fingerprint != first.fingerprint
            fleet.spec = {**fleet.spec, "path": str(path)}
            over: asyncio.Future[Update] = asyncio.get_running_loop().create_future()
            fleet._choose = lambda links, names, n: first if first in links else links[0]
            job = Job((1, 5, 6), max_tokens=30, ignore_eos=True)
            kill_after(fleet, 9, lambda stream: fleet.mark_lost(first, "killed"))
            first.handle.kill = lambda: None  # type: ignore[method-assign]
            first.handle.alive = lambda: False  # type: ignore[method-assign]
            (stream,) = fleet.submit([job], [lambda u: over.set_result(u) if u.finish else None])
            assert (await asyncio.wait_for(over, 60)).finish == "length"
            assert stream.moves == 1 and not stranger.streams and stranger.beat.get("tokens", 0) == 0

    asyncio.run(main())
