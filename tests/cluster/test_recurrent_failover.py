"""Streams of a model with a state survive the death of their replica: the successor computes the state again, and
every token and log-probability is the one that the stream would have had."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llguidance")

from assay.cluster.fleet import Fleet
from assay.cluster.launchers import LocalLauncher
from assay.cluster.replica_link import RoutedStream
from assay.runtime.params import GREEDY, SamplerParams
from assay.runtime.sequence import Job
from tests.cluster.harness import Threads, fleet_of, kill_after, spec_of

GOLDEN = Path(__file__).parents[1] / "data" / "arch" / "qwen35.gguf"
IDS = tuple(int(i) for i in np.random.default_rng(5).integers(0, 96, 100))
N = 40
LIVELY = SamplerParams(temp=1.2, seed=3)
Answer = list[tuple[int, float | None]]


def answer_of(job: Job, fleet: Fleet) -> tuple[RoutedStream, asyncio.Future[Answer]]:
    """Submit a job. The future gets the tokens and their log-probabilities when the stream ends."""
    done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    found: Answer = []

    def sink(update: Any) -> None:
        if update.choice:
            found.append((update.choice.id, update.choice.logprob))
        if update.error and not done.done():
            done.set_exception(update.error)
        elif update.finish and not done.done():
            done.set_result(found)

    (stream,) = fleet.submit([job], [sink])
    return stream, done


def lose(fleet: Fleet, stream: RoutedStream) -> None:
    assert stream.link
    fleet.mark_lost(stream.link, "killed by the test")


def job_of(start: int, end: int, params: SamplerParams = LIVELY, **more: Any) -> Job:
    return Job(IDS[start:end], params, **{"max_tokens": N, "logprobs": 0, "ignore_eos": True, **more})


async def expected_of(*jobs: Job) -> list[Answer]:
    """Each job alone in a fleet of one replica, which nothing disturbs and whose cache is large."""
    async with fleet_of(GOLDEN, Threads(), n=1) as fleet:
        return [await asyncio.wait_for(answer_of(job, fleet)[1], 60) for job in jobs]


def test_killed_at_every_token() -> None:
    """The replica dies after token 1, 2, … 39 of forty. Prompts of 30 to 69 tokens, so that the successor begins from
    nothing, or from a snapshot of an earlier stream."""

    async def main() -> None:
        jobs = [job_of(0, 30 + cut) for cut in range(1, N)]
        expected = await expected_of(*jobs)
        async with fleet_of(GOLDEN, Threads(), n=2, most=4) as fleet:
            plainly = fleet._apply_update
            for cut, (job, answer) in enumerate(zip(jobs, expected, strict=True), 1):
                await fleet.wait_until_complete()
                fleet._apply_update = plainly  # type: ignore[method-assign]
                kill_after(fleet, cut, lambda stream: lose(fleet, stream))
                stream, done = answer_of(job, fleet)
                assert await asyncio.wait_for(done, 60) == answer, cut
                assert stream.moves == 1 and len(answer) == N

    asyncio.run(main())


def test_choices_that_are_preempted_and_failed_over() -> None:
    """Two choices of one prompt and four other streams in caches that hold one or two, of which one replica dies."""

    async def main() -> None:
        jobs = [job_of(0, 70, SamplerParams(temp=1.2, seed=i)) for i in range(2)]
        jobs += [job_of(30, 80), job_of(3, 53, GREEDY), job_of(10, 60), job_of(40, 92)]
        expected = await expected_of(*jobs)
        small = {"spec": spec_of(GOLDEN, cache_size=160, ctx_size=128, state_slots=4)}
        launcher = Threads()
        async with fleet_of(GOLDEN, launcher, n=2, most=4, **small) as fleet:
            killed: list[RoutedStream] = []

            def kill(stream: RoutedStream) -> None:
                if not killed:
                    killed.append(stream)
                    lose(fleet, stream)

            kill_after(fleet, 11, kill)
            streams, dones = zip(*(answer_of(job, fleet) for job in jobs), strict=True)
            assert await asyncio.wait_for(asyncio.gather(*dones), 120) == expected
            assert killed and sum(stream.moves for stream in streams) >= 1
            replicas: list[Any] = [thread.service for thread in launcher.started]
            assert sum(replica.scheduler.meter.totals["preempted"] for replica in replicas) > 0

    asyncio.run(main())


def test_a_process_dies() -> None:
    """Two real replicas, of which one is killed by the system while it decodes."""

    async def main() -> None:
        jobs = [job_of(0, 60), job_of(20, 75, GREEDY)]
        expected = await expected_of(*jobs)
        async with fleet_of(GOLDEN, LocalLauncher(), n=2, most=2) as fleet:
            hit: list[RoutedStream] = []

            def kill(stream: RoutedStream) -> None:
                if not hit and stream.link:
                    hit.append(stream)
                    handle: Any = stream.link.handle
                    os.kill(handle.process.pid, signal.SIGKILL)

            kill_after(fleet, 9, kill)
            dones = [answer_of(job, fleet)[1] for job in jobs]
            assert await asyncio.wait_for(asyncio.gather(*dones), 120) == expected
            assert hit and hit[0].moves == 1 and fleet.tally.errors == 0

    asyncio.run(main())
