"""Whatever a replica sends, its streams move to a healthy one and their clients notice nothing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llguidance")

from assay.cluster.fleet import Bounds, Fleet
from assay.cluster.frame_schema import AMOUNT, FRAMES, VERSIONS, checked, common_version
from assay.cluster.frames import ConnectionBroken, Frame
from assay.cluster.replica_link import Link
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import load
from assay.runtime.sequence import Job, Update
from tests.cluster.fake_replica import CASES, HARMLESS
from tests.cluster.harness import Thread, spec_of
from tests.tiny import make

TOKEN = "secret"


class Fake:
    """The handle of a fake replica in a process of its own."""

    def __init__(self, hello: dict[str, Any]) -> None:
        self.name, self.node, self.host = "fake", "here", "127.0.0.1"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.fake_replica"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self._say({"token": TOKEN, "hello": hello})
        self.port = int(self._line())

    def _say(self, value: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def greet(self, hello: dict[str, Any]) -> None:
        """Greet later connections in another way."""
        self._say(hello)
        assert self._line() == "ok\n"

    def alive(self) -> bool:
        return True

    def kill(self) -> None: ...


class Lender:
    """A launcher that lends replicas which outlive their fleets."""

    where = "here"

    def __init__(self, *handles: Any) -> None:
        self._handles = list(handles)

    def spawn(self, spec: Any) -> Any:
        if not self._handles:
            raise AssayError("no further replica")
        return self._handles.pop(0)

    def close(self) -> None: ...


class Lent:
    """A healthy replica that a fleet cannot kill."""

    def __init__(self, thread: Thread) -> None:
        self.name, self.node, self.host, self.port = "healthy", "here", thread.host, thread.port

    def alive(self) -> bool:
        return True

    def kill(self) -> None: ...


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("malformed") / "m.gguf", n_ctx=512)


@pytest.fixture(scope="module")
def healthy(path: Path) -> Iterator[Thread]:
    thread = Thread("healthy", {**spec_of(path), "kind": "replica", "token": TOKEN})
    yield thread
    thread.kill()


@pytest.fixture(scope="module")
def hello(healthy: Thread) -> dict[str, Any]:
    service: Any = healthy.service
    found = {"fingerprint": service.fingerprint, "engine": "cpu", "isa": "x", "pages": 9, "held": [], "stood_s": 0.0}
    return found | {"speaks": list(VERSIONS)}


@pytest.fixture(scope="module")
def fake(hello: dict[str, Any]) -> Iterator[Fake]:
    made = Fake(hello)
    yield made
    made.process.kill()
    made.process.communicate()


def choose_fake(links: list[Link], names: list[str], n: int) -> Link:
    return next((link for link in links if link.name == "fake"), links[0])


async def fleet_with(path: Path, *handles: Any) -> Fleet:
    spec = spec_of(path) | {"n_vocab": load(open_file(path)).hparams.n_vocab}
    fleet = Fleet(Lender(*handles), spec, token=TOKEN, bounds=Bounds(len(handles), 8), choose=choose_fake)
    await fleet.start()
    return fleet


async def answer(fleet: Fleet, case: str) -> tuple[Any, Update]:
    over: asyncio.Future[Update] = asyncio.get_running_loop().create_future()
    job = Job((1, 5, 6), max_tokens=12, ignore_eos=True, owner=("case", case))
    (stream,) = fleet.submit([job], [lambda u: over.set_result(u) if u.finish and not over.done() else None])
    return stream, await asyncio.wait_for(over, 20)


@pytest.fixture(scope="module")
def expected(path: Path, healthy: Thread) -> list[int]:
    async def main() -> list[int]:
        fleet = await fleet_with(path, Lent(healthy))
        stream, update = await answer(fleet, "")
        assert update.finish == "length"
        await fleet.end(AssayError("the end"))
        return list(stream.ids)

    return asyncio.run(main())


@pytest.mark.parametrize("case", CASES)
def test_its_streams_move(path: Path, healthy: Thread, fake: Fake, expected: list[int], case: str) -> None:
    async def main() -> None:
        fleet = await fleet_with(path, fake, Lent(healthy))
        await fleet.wait_until_complete()
        stream, update = await answer(fleet, case)
        assert update.finish == "length", update
        begun = "twice" in case or "order" in case  # its first token came in good order
        assert stream.moves == 1 and (begun or stream.ids == expected)
        assert fleet.tally.lost == 1 and [link.name for link in fleet.up] == ["healthy"]
        await fleet.end(AssayError("the end"))

    asyncio.run(main())


@pytest.mark.parametrize("case", HARMLESS)
def test_late_frames_and_new_fields_are_ignored(path: Path, fake: Fake, case: str) -> None:
    async def main() -> None:
        fleet = await fleet_with(path, fake)
        job = Job((1, 5, 6), max_tokens=12, owner=("case", case))
        (stream,) = fleet.submit([job], [lambda update: None])
        await asyncio.sleep(0.2)
        assert fleet.tally.lost == 0 and not stream.moves and len(fleet.up) == 1
        await fleet.end(AssayError("the end"))

    asyncio.run(main())


@pytest.mark.parametrize("name", [*FRAMES["replica to router"]["hello"].must, "speaks"])
def test_a_malformed_hello(path: Path, healthy: Thread, fake: Fake, hello: dict[str, Any], name: str) -> None:
    """The replica is never used, and the healthy one answers."""

    async def main() -> None:
        fleet = await fleet_with(path, fake, Lent(healthy))
        stream, update = await answer(fleet, "")
        assert update.finish == "length" and not stream.moves
        await fleet.end(AssayError("the end"))

    for wrong in (7, [None], {"a": []}, "x", -1.5):
        kind = (FRAMES["replica to router"]["hello"].must | FRAMES["replica to router"]["hello"].may)[name]
        if not kind.fits(wrong):
            fake.greet(hello | {name: wrong})
            asyncio.run(main())
            break
    fake.greet(hello)


@pytest.mark.parametrize(
    ("speaks", "version"),
    [(None, 1), ([1, 1], 1), ([2, 2], 2), ([1, 9], 3), ([2, 2**40], 3), ([4, 5], None), ([0, 0], None)],
)
def test_versions_are_negotiated(
    path: Path, healthy: Thread, fake: Fake, hello: dict[str, Any], speaks: Any, version: int | None
) -> None:
    greeting = hello | {"speaks": speaks}
    if speaks is None:
        del greeting["speaks"]
    if version:
        assert common_version(greeting, "r") == version

    async def main() -> None:
        fleet = await fleet_with(path, fake)
        assert [link.version for link in fleet.up] == [version]
        await fleet.end(AssayError("the end"))

    async def refused() -> None:
        with pytest.raises(AssayError, match=r"fake: speaks another version of assay's frames \(found . to ., "):
            await fleet_with(path, fake)
        fleet = await fleet_with(path, fake, Lent(healthy))
        assert (await answer(fleet, ""))[1].finish == "length"
        await fleet.end(AssayError("the end"))

    fake.greet(greeting)
    asyncio.run(main() if version else refused())
    fake.greet(hello)


def test_an_older_router_understands_a_newer_replica(path: Path, healthy: Thread) -> None:
    """It names no version, so the replica speaks the first one: no index beside a token."""
    from assay.cluster import jobs
    from assay.cluster.frames import connect

    async def main() -> list[dict[str, Any]]:
        channel = await connect("127.0.0.1", healthy.port, TOKEN)
        assert (await channel.receive()).op == "hello"
        head, arrays = jobs.from_job(Job((1, 5, 6), max_tokens=3, ignore_eos=True), 1)
        channel.send({"op": "submit", "id": 4, "job": head}, arrays)
        found: list[dict[str, Any]] = []
        while not found or "finish" not in found[-1]:
            found += (await channel.receive()).head.get("updates", [])
        channel.close()
        return found

    assert all("at" not in update for update in asyncio.run(main()))


@pytest.mark.parametrize("way", FRAMES)
def test_every_row_of_the_table_refuses_what_it_does_not_name(way: str) -> None:
    for op, fields in FRAMES[way].items():
        for name in fields.must:
            with pytest.raises(ConnectionBroken, match=f"frame {op}: field {next(iter(fields.must))} is missing"):
                checked(Frame({"op": op}), way)
            wrong: Any = object()
            with pytest.raises(ConnectionBroken, match=r"is wrong|is missing"):
                checked(Frame({"op": op, name: wrong}), way)
    with pytest.raises(ConnectionBroken, match="not a frame that may come now"):
        checked(Frame({"op": "nonsense"}), way)


@pytest.mark.parametrize(
    "head", [{"op": "submit"}, {"op": "submit", "id": 1, "job": {}}, {"op": "cancel", "ids": "x"}, {"op": "x"}, {}]
)
def test_a_replica_survives_a_malformed_frame_of_a_router(healthy: Thread, head: dict[str, Any]) -> None:
    from assay.cluster.frames import connect

    async def main() -> None:
        channel = await connect("127.0.0.1", healthy.port, TOKEN)
        channel.send(head)
        with pytest.raises(ConnectionBroken):
            while True:
                frame = await asyncio.wait_for(channel.receive(), 10)
                if frame.op == "news":  # not a job: an answer that is an error, and no broken connection
                    raise ConnectionBroken(str(frame.head))
        again = await connect("127.0.0.1", healthy.port, TOKEN)
        assert (await again.receive()).op == "hello"
        again.close()
        channel.close()

    asyncio.run(main())


def test_a_number_beyond_the_floats_is_no_amount() -> None:
    """JSON has whole numbers of any size; adding one to a time would overflow in the router."""
    assert AMOUNT.fits(1.5) and AMOUNT.fits(0)
    assert not any(AMOUNT.fits(value) for value in (10**400, float("inf"), float("nan"), -1))
