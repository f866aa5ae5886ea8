"""Every way through the runtime gives the same bits on a model with a state: chunks of every size, prefixes reused at
every length, preemption at every token. Failover is in tests/cluster/test_recurrent_failover.py.

Then leaks are planted in the allocator and in the engine, and the probes find them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from assay.engines.cpu import CpuEngine
from assay.engines.plan.state_places import StatePlaces
from assay.runtime.cache_slots import StateSlots
from assay.runtime.params import GREEDY
from assay.runtime.scheduler import Scheduler
from assay.runtime.sequence import Job, Sequence, Update
from assay.text import Tokenizer
from assay.verify.conformance.between_requests import PAGES, in_company
from tests.models import recurrent

CALLS = recurrent.calls("qwen35")
IDS = tuple(int(i) for i in np.random.default_rng(8).integers(0, CALLS.model.hparams.n_vocab, 120))
TOKENIZER = Tokenizer.from_gguf(CALLS.model.file, nameless=CALLS.model.hparams.n_vocab)
N = 40  # tokens that are cut in every place
Answer = list[tuple[int, float | None]]


@pytest.fixture(scope="module")
def engine() -> CpuEngine:
    return CpuEngine(CALLS.model, n_pages=64, threads=1, state_slots=12)


class Run:
    """A scheduler on an engine that others have used before: its slots hold old states."""

    def __init__(self, engine: CpuEngine, **limits: Any) -> None:
        self.scheduler = Scheduler(engine, TOKENIZER, n_ctx=128, **limits)

    def add(self, ids: tuple[int, ...], n: int = 6) -> tuple[Sequence, Answer]:
        found: Answer = []

        def sink(update: Update) -> None:
            assert update.error is None, update.error
            if update.choice:
                found.append((update.choice.id, update.choice.logprob))

        sequence = self.scheduler.make(Job(ids, GREEDY, n, logprobs=0, ignore_eos=True), sink)
        self.scheduler.add([sequence])
        return sequence, found

    def step(self) -> None:
        for sequence, update in self.scheduler.step():
            sequence.sink(update)
        self.scheduler.pages.check()

    def answer(self, ids: tuple[int, ...], n: int = 6) -> tuple[Sequence, Answer]:
        sequence, found = self.add(ids, n)
        while self.scheduler.busy:
            self.step()
        return sequence, found


def test_chunks_of_every_size(engine: CpuEngine) -> None:
    """A prompt of 40 tokens, computed 1, 2, … 40 at a time, beside another one of 50."""
    expected = Run(engine).answer(IDS[:N])[1]
    for size in range(1, N + 1):
        run = Run(engine, chunk=size)
        _, other = run.add(IDS[50:100])
        assert run.answer(IDS[:N])[1] == expected, size
        assert len(other) == 6


def test_prefixes_of_every_length(engine: CpuEngine) -> None:
    """Prompts that share 1, 2, … 40 tokens after the first page with one before them go on at a page end."""
    reused = set()
    for shared in range(1, N + 1):
        ids = (*IDS[: 32 + shared], *IDS[90:110])
        expected = Run(engine).answer(ids)[1]
        run = Run(engine)
        run.answer(IDS[:80])
        run.answer((*IDS[: 32 + shared], 1, 2, 3))  # leaves a snapshot where prompts part
        sequence, found = run.answer(ids)
        assert found == expected, shared
        reused.add(sequence.cached)
    assert reused == {32, 64}


def test_preempted_at_every_token(engine: CpuEngine) -> None:
    """After token 1, 2, … 39 of an answer the sequence loses its pages and its state, and another one takes them."""
    expected = Run(engine).answer(IDS[:30], N)[1]
    resumed = set()
    for cut in range(1, N):
        run = Run(engine)
        sequence, found = run.add(IDS[:30], N)
        while len(found) < cut:
            run.step()
        run.scheduler._planner.preempt(sequence, {})
        run.add(IDS[60:100])
        while run.scheduler.busy:
            run.step()
        assert run.scheduler.pages.states
        resumed.add(run.scheduler.pages.states.use.reused)
        assert found == expected and sequence.preempted == 1, cut
    assert resumed == {0, 1}, "some are computed again from the start, some go on from a snapshot"


# --- planted leaks


def test_a_slot_that_is_not_cleared_is_found(engine: CpuEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the engine: a sequence begins with what its slot held. `assay check`'s probe says so."""
    plain = StatePlaces.read_and_written

    def never_begins(self: StatePlaces, *args: Any) -> Any:
        rows = plain(self, *args)
        for row in rows:
            if row[3]:  # tokens, place to read, place to write, whether the sequence begins
                row[1], row[3] = self.place[0], 0  # what slot 0 holds
        return rows

    fresh = CpuEngine(CALLS.model, n_pages=PAGES, threads=1)
    assert all(row.passed for row in in_company(fresh, CALLS.model, IDS[:40]))
    monkeypatch.setattr(StatePlaces, "read_and_written", never_begins)
    leaky = CpuEngine(CALLS.model, n_pages=PAGES, threads=1)
    failed = [row.detail for row in in_company(leaky, CALLS.model, IDS[:40]) if not row.passed]
    assert failed and "differs from cache_r_before-0 on, in the prompt" in failed[0]


def test_a_snapshot_of_another_sequence_is_found(engine: CpuEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the allocator: a prefix goes on from the newest snapshot, which another prompt of its length left.

    No length gives it away. The probe does: the prompt alone and after the other one have different answers.
    """
    expected = Run(engine).answer(IDS[:40])[1]

    def newest(self: StateSlots, page: int | None = None) -> int:
        return plain(self, page if page is None else list(self._snapshots)[-1])

    plain = StateSlots.start

    def asked_after_another() -> Answer:
        run = Run(engine)
        run.answer(IDS[:40], 1)
        run.answer(IDS[60:100], 1)
        sequence, found = run.answer(IDS[:40])
        assert sequence.cached == 32
        return found

    assert asked_after_another() == expected
    monkeypatch.setattr(StateSlots, "start", newest)
    assert asked_after_another() != expected
