"""Pictures before a fleet: replicas encode them, and a stream that moves has the bytes that it would have had."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llguidance")
pytest.importorskip("httpx")
pytest.importorskip("PIL")

from assay.cluster import jobs, picture_frames
from assay.cluster.audit import Auditor
from assay.cluster.fleet import Bounds
from assay.cluster.frames import ConnectionBroken, unpack
from assay.cluster.frames import pack as pack_frame
from assay.cluster.launchers import LocalLauncher
from assay.cluster.replica_link import PICTURES, RoutedStream
from assay.cluster.replicated_model import Cluster
from assay.errors import AssayError
from assay.gguf import open_file
from assay.runtime.image_places import place_images
from assay.runtime.opening import Opened, OpenOptions
from assay.runtime.pictured_prompt import PictureReader
from assay.runtime.sequence import Job
from assay.vision.rows import ImageRows
from tests.cluster.harness import Threads, client_of, kill_after, plain
from tests.library.test_pictures import picture
from tests.picture_prompts import FOLDER

OPTIONS = OpenOptions(engine="cpu", threads=1, ctx_size=128, cache_size=1024, template="chatml")
N = 12


def model_in(folder: Path, name: str) -> Path:
    shutil.copy(FOLDER / f"{name}-mmproj.gguf", folder / "mmproj.gguf")
    return Path(shutil.copy(FOLDER / f"{name}-text.gguf", folder / "eye.gguf"))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_in(tmp_path_factory.mktemp("gemma"), "gemma3")


def asking(*seeds: int, **more: Any) -> dict[str, Any]:
    urls = ["data:;base64," + base64.b64encode(picture(seed)).decode() for seed in seeds]
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    said = [{"role": "user", "content": [{"type": "text", "text": "a"}, *parts, {"type": "text", "text": "b"}]}]
    settings = {"stream": True, "max_tokens": N, "seed": 7, "temperature": 1.3, "logprobs": True, "ignore_eos": True}
    return {"messages": said, **settings, **more}


async def answer(client: Any, body: dict[str, Any]) -> bytes:
    reply = await client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return plain(reply.content)


def test_killed_at_every_token(gemma: Path) -> None:
    """Two pictures, sampled with log-probabilities: the bytes of one process that has no replicas."""

    async def main() -> None:
        async with client_of(gemma, options=OPTIONS) as (client, _):
            expected = await answer(client, asking(1, 2))
            assert expected != await answer(client, asking(1, 3)), "the answer depends on the pictures"
        launcher = Threads()
        async with client_of(gemma, Cluster(lambda: launcher, Bounds(2, 4)), OPTIONS) as (client, entry):
            fleet: Any = entry.worker
            assert await answer(client, asking(1, 2)) == expected, "through the router alone"
            plainly, moved = fleet._apply_update, list[RoutedStream]()
            for cut in range(1, N):
                await fleet.wait_until_complete()
                fleet._apply_update = plainly

                def lose(stream: RoutedStream) -> None:
                    moved.append(stream)
                    assert stream.link
                    fleet.mark_lost(stream.link, "killed by the test")

                kill_after(fleet, cut, lose)
                assert await answer(client, asking(1, 2)) == expected, cut
            assert len(moved) == N - 1 and fleet.tally.errors == 0
            assert entry.pictures.projector._engines == [], "the router runs no tower"

    asyncio.run(main())


@pytest.mark.parametrize("name", ["gemma3", "qwen3vl"])
def test_a_process_dies_in_mid_stream(name: str, tmp_path: Path) -> None:
    """Real processes, one of them killed by the system. qwen3vl: positions of three numbers, and deepstack."""
    path, options, long = model_in(tmp_path, name), replace(OPTIONS, ctx_size=256), {"max_tokens": 150}

    async def main() -> None:
        async with client_of(path, options=options) as (client, _):
            expected = [await answer(client, asking(seed, **long)) for seed in (1, 2)]
        async with client_of(path, Cluster(LocalLauncher, Bounds(2, 2)), options) as (client, entry):
            fleet: Any = entry.worker
            await fleet.wait_until_complete()
            hit: list[RoutedStream] = []

            def kill(stream: RoutedStream) -> None:
                if not hit and stream.link:
                    hit.append(stream)
                    handle: Any = stream.link.handle
                    os.kill(handle.process.pid, signal.SIGKILL)

            kill_after(fleet, 3, kill)
            assert await asyncio.gather(*(answer(client, asking(seed, **long)) for seed in (1, 2))) == expected
            assert hit and hit[0].moves == 1 and fleet.tally.errors == 0

    asyncio.run(main())


def test_choices_traces_and_audits(gemma: Path) -> None:
    """Every job of a prompt with a picture has it: several choices, a trace, and the second run of an audit."""

    async def main() -> None:
        body = asking(1, stream=False, n=3)
        trace = {"messages": body["messages"], "nodes": ["l_out-0"]}
        async with client_of(gemma, options=OPTIONS, chunk=128) as (client, _):
            one = (await client.post("/v1/chat/completions", json=body)).json()
            alone = (await client.post("/v1/trace", json=trace)).json()
        async with client_of(gemma, Cluster(Threads, Bounds(2, 2), audit=1.0), OPTIONS, 128) as (client, entry):
            fleet: Any = entry.worker
            await fleet.wait_until_complete()
            auditor: Auditor = fleet.finished.__self__
            many = (await client.post("/v1/chat/completions", json=body)).json()
            assert many["choices"] == one["choices"] and many["usage"] == one["usage"]
            assert (await client.post("/v1/trace", json=trace)).json()["nodes"] == alone["nodes"]
            await auditor.wait_until_idle()
            assert auditor.done == 3 and not auditor.found

    asyncio.run(main())


def test_a_fleet_in_stages_says_that_it_takes_no_pictures(gemma: Path) -> None:
    async def main() -> None:
        async with client_of(gemma, Cluster(Threads, Bounds(1, 1), split=2), OPTIONS) as (client, _):
            refused = await client.post("/v1/chat/completions", json=asking(1))
            assert refused.status_code == 400 and "its layers are split" in refused.json()["error"]["message"]

    asyncio.run(main())


def reader_of(path: Path, *, runs: bool) -> PictureReader:
    return PictureReader(Opened(open_file(path), OPTIONS).pictures.projector, runs=runs)


def job_with(path: Path, *seeds: int) -> Job:
    router = reader_of(path, runs=False)
    pieces: list[list[int] | ImageRows] = [[5]]
    for seed in seeds:
        pieces += [piece for piece in router.read(picture(seed)).pieces if isinstance(piece, ImageRows)] + [[6, 7]]
    ids, images = place_images(pieces)
    return Job(ids, max_tokens=3, images=images)


def test_pictures_cross_the_wire(gemma: Path) -> None:
    """The replica has the rows, the ids and the digests that a process without replicas has."""
    job = job_with(gemma, 1, 2, 1)
    sent = unpack(pack_frame(*jobs.from_job(job, 1)))
    none: Any = None
    replica = reader_of(gemma, runs=True)
    found = jobs.to_job(sent.head, sent.arrays, none, replica)
    assert found.ids == job.ids and min(found.ids) < 0
    for seed, placed, wanted in zip((1, 2, 1), found.images, job.images, strict=True):
        own = next(p for p in replica.read(picture(seed)).pieces if isinstance(p, ImageRows))
        assert placed.start == wanted.start and placed.image.digest == own.digest and placed.image.grid == own.grid
        np.testing.assert_array_equal(placed.image.rows, own.rows)
    assert found.images[0].image is found.images[2].image, "one picture is encoded once"


def test_malformed_pictures_are_one_error(gemma: Path) -> None:
    job = job_with(gemma, 1, 2)
    head, arrays = jobs.from_job(job, 1)
    replica = reader_of(gemma, runs=True)
    first, second = head["images"]
    pixels = arrays["image/0"]
    none: Any = None
    for images in (
        None, 3, {}, [3], [{}], [first | {"at": -1}], [first | {"at": True}], [first | {"at": 1 << 60}],
        [first | {"at": len(job.ids) - 1}], [second, first], [first, first], [first | {"digest": 5}], [first] * 3,
    ):  # fmt: skip
        with pytest.raises(ConnectionBroken, match="not a job"):
            jobs.to_job(head | {"images": images}, arrays, none, replica)
    for array in (pixels[:-1], pixels[:, :, :1], pixels.astype(np.float32), pixels[0], pixels[:0], pixels[None]):
        with pytest.raises(AssayError, match="picture"):
            jobs.to_job(head, arrays | {"image/0": array}, none, replica)
    assert replica.projector._engines == [], "nothing was computed for these"
    with pytest.raises(AssayError, match="another one than the router's"):
        jobs.to_job(head | {"images": [first | {"digest": second["digest"]}, second]}, arrays, none, replica)
    with pytest.raises(AssayError, match="no mmproj file"):
        jobs.to_job(head, arrays, none)


def test_what_cannot_be_sent_is_refused_by_the_router(gemma: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_with(gemma, 1)
    own = next(p for p in reader_of(gemma, runs=True).read(picture(1)).pieces if isinstance(p, ImageRows))
    with pytest.raises(AssayError, match="encoded in this process"):
        jobs.from_job(replace(job, images=(replace(job.images[0], image=own),)), 1)

    async def main() -> None:
        async with client_of(gemma, Cluster(Threads, Bounds(1, 1)), OPTIONS) as (client, entry):
            fleet: Any = entry.worker
            assert fleet.links[0].takes(job) and fleet.links[0].version == PICTURES
            fleet.links[0].version = PICTURES - 1
            assert not fleet.links[0].takes(job) and fleet.links[0].takes(replace(job, images=()))
            fleet.links[0].version = PICTURES
            monkeypatch.setattr(picture_frames, "MAX_BYTES", 100)
            refused = await client.post("/v1/chat/completions", json=asking(1, stream=False))
            assert refused.status_code == 400 and "too many pixels" in refused.json()["error"]["message"]

    asyncio.run(main())


def test_another_mmproj_file_is_another_fingerprint(gemma: Path, tmp_path: Path) -> None:
    """A stream never moves to a replica whose tower has other weights; and each host uses its own copy."""
    other = tmp_path / "other.gguf"
    data = bytearray((FOLDER / "gemma3-mmproj.gguf").read_bytes())
    data[-5] ^= 1
    other.write_bytes(data)
    text: Path = shutil.copy(gemma, tmp_path / "eye.gguf")

    async def tower(mmproj: Path | None, model: Path) -> Any:
        options = replace(OPTIONS, mmproj=None if mmproj is None else str(mmproj))
        async with client_of(model, Cluster(Threads, Bounds(1, 1)), options) as (_, entry):
            fleet: Any = entry.worker
            return fleet.links[0].fingerprint.get("tower")

    async def main() -> None:
        beside = await tower(None, gemma)
        assert beside and await tower(other, gemma) != beside
        assert await tower(None, text) is None, "no mmproj file lies there"

    asyncio.run(main())
