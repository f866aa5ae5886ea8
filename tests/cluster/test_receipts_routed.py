"""Receipts through the router: a stream that moves to another replica has the hashes of one that does not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("llguidance")
pytest.importorskip("cryptography")

from assay.cluster.fleet import Fleet
from assay.cluster.replica_link import RoutedStream
from assay.runtime.params import SamplerParams
from assay.runtime.receipt_replay import replay
from assay.runtime.receipts import Signer, header_of, make_receipt
from assay.runtime.sequence import Job, Update
from tests.cluster.harness import client_of, fleet_of, kill_after
from tests.tiny import make

JOB = Job((1, 5, 6, 9), SamplerParams(temp=0.9, top_k=20, seed=7), 12, ignore_eos=True, receipt=True)


def test_a_stream_that_moves_has_the_same_receipt(tmp_path: Path) -> None:
    path = make(tmp_path / "m.gguf", n_ctx=512)

    async def main() -> None:
        async with fleet_of(path, n=2) as fleet, client_of(path) as (_, entry):
            whole = await _stream(fleet, JOB)

            def kill(stream: RoutedStream) -> None:
                assert stream.link
                fleet.mark_lost(stream.link, "killed by the test")

            kill_after(fleet, 5, kill)
            moved = await _stream(fleet, JOB)
            assert moved.moves == 1
            assert moved.ids == whole.ids and moved.row_digests == whole.row_digests and len(whole.row_digests) == 12
            arithmetic = fleet.arithmetic(moved)
            assert arithmetic is not None
            header = header_of(entry.file.sha256, arithmetic, JOB.params, moved.seed, JOB.ids, constrained=False)
            receipt = make_receipt(header, JOB.ids, moved.ids[len(JOB.ids) :], moved.row_digests, Signer(bytes(32)))
            assert replay(receipt, entry.model, threads=1)
            plain = await _stream(fleet, replace(JOB, receipt=False))
            assert plain.ids == whole.ids and not plain.row_digests, "only where a receipt was asked for"

    asyncio.run(main())


async def _stream(fleet: Fleet, job: Job) -> RoutedStream:
    over: asyncio.Future[Update] = asyncio.get_running_loop().create_future()
    (stream,) = fleet.submit([job], [lambda update: over.set_result(update) if update.finish else None])
    assert (await asyncio.wait_for(over, 30)).finish == "length"
    return stream
