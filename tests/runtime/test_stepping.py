"""The scheduler stepped by hand: no token changes and no page leaks when a step fails or a sequence is cancelled."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.engines.contract import Chunk, Output, PagedEngine
from assay.runtime.opening import Opened, OpenOptions, open_model
from assay.runtime.params import SamplerParams
from assay.runtime.scheduler import Scheduler, deliver
from assay.runtime.sequence import Job, Update
from tests import tiny


class Flaky:
    """An engine that breaks before or after computing, at the calls it is told to."""

    def __init__(self, inner: PagedEngine) -> None:
        self.inner, self.name, self.model, self.n_pages = inner, inner.name, inner.model, inner.n_pages
        self.copy_page, self.graph, self.windows = inner.copy_page, inner.graph, inner.windows
        self.spare_states, self.adapters, self.cache_bytes = inner.spare_states, inner.adapters, inner.cache_bytes
        self.arithmetic, self.top_values, self.decode_runner = inner.arithmetic, None, None  # all through `forward`
        self.faults: dict[int, tuple[type[BaseException], bool]] = {}
        self.calls = 0

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Any = None) -> list[Output]:
        fault, late = self.faults.get(self.calls, (None, False))
        self.calls += 1
        if fault and not late:
            raise fault
        outputs = self.inner.forward(batch, keep)
        if fault:
            raise fault
        return outputs


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    path: Path = tiny.make(tmp_path_factory.mktemp("stepping") / "tiny.gguf")
    return open_model(path, OpenOptions(ctx_size=256, cache_size=0))


@pytest.fixture(scope="module")
def engine(opened: Opened) -> PagedEngine:
    return opened.engine()


def run(scheduler: Scheduler, jobs: list[Job], leave: dict[int, int]) -> list[list[int]]:
    """The ids of each job; job i is cancelled after leave[i] tokens."""
    updates: list[list[Update]] = [[] for _ in jobs]

    def sink(i: int, update: Update) -> None:
        updates[i].append(update)

    sequences = [scheduler.make(job, partial(sink, i)) for i, job in enumerate(jobs)]
    scheduler.add(sequences)
    while scheduler.busy:
        with suppress(KeyboardInterrupt, RuntimeError, MemoryError):
            deliver(scheduler.step())
        scheduler.pages.check()
        scheduler.cancel([sequences[i] for i, n in leave.items() if len(updates[i]) >= n])
    deliver(scheduler.take_updates())
    assert all(found[-1].finish for found in updates)
    assert all(update.finish is None for found in updates for update in found[:-1])
    return [[update.choice.id for update in found if update.choice] for found in updates]


@given(
    lengths=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 30)), min_size=1, max_size=6),
    faults=st.dictionaries(
        st.integers(0, 40),
        st.tuples(st.sampled_from([KeyboardInterrupt, RuntimeError, MemoryError]), st.booleans()),
        max_size=6,
    ),
    leave=st.dictionaries(st.integers(0, 5), st.integers(1, 20), max_size=2),
    running=st.integers(1, 6),
    chunk=st.sampled_from([1, 16, 64, 512]),
)
@settings(max_examples=40)
def test_broken_steps_and_leavers_change_no_token(
    opened: Opened,
    engine: PagedEngine,
    lengths: list[tuple[int, int]],
    faults: dict[int, tuple[type[BaseException], bool]],
    leave: dict[int, int],
    running: int,
    chunk: int,
) -> None:
    jobs = [
        Job(tuple(5 + (i * 7 + j) % 200 for j in range(n)), SamplerParams(temp=1.4, seed=i), most, ignore_eos=True)
        for i, (n, most) in enumerate(lengths)
    ]
    leave = {i: n for i, n in leave.items() if i < len(jobs)}
    alone = [run(Scheduler(engine, opened.tokenizer), [job], {})[0] for job in jobs]
    flaky = Flaky(engine)
    flaky.faults = faults
    scheduler = Scheduler(flaky, opened.tokenizer, running=running, chunk=chunk)  # type: ignore[arg-type]
    together = run(scheduler, jobs, leave)
    for i, (ids, expected) in enumerate(zip(together, alone, strict=True)):
        assert ids == (expected[: len(ids)] if i in leave else expected)
        assert i not in leave or len(ids) >= min(leave[i], len(expected))
    assert scheduler.pages.available == scheduler.pages.n_pages
    assert not scheduler.running
    assert not scheduler.waiting
