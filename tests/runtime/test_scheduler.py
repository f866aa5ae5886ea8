"""The scheduler on a worker's thread: the same tokens in any batch, nothing lost, no sequence stalled, all freed."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from assay import engines
from assay.engines.contract import PAGE, Chunk, Engine, Output
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import load
from assay.runtime.generate import Generator
from assay.runtime.params import GREEDY, SamplerParams
from assay.runtime.scheduler import Scheduler
from assay.runtime.sequence import Job, Update
from assay.runtime.sequence import Sequence as Running
from assay.runtime.sequence_errors import DeadlinePassed, EngineFailed, QueueFull
from assay.runtime.worker import Worker
from assay.text import Tokenizer
from tests.waiting import wait_until

LONG = 40


class Recorder:
    """An engine that notes what each step was, and waits when told to."""

    def __init__(self, inner: Engine) -> None:
        self.inner, self.name, self.model, self.n_pages = inner, inner.name, inner.model, inner.n_pages
        self.graph, self.windows, self.spare_states = inner.graph, inner.windows, inner.spare_states
        self.top_values = self.decode_runner = None  # every step comes through `forward`
        self.adapters, self.arithmetic = inner.adapters, inner.arithmetic
        self.steps: list[list[tuple[int, int]]] = []  # (start, tokens) of each chunk
        self.gate = threading.Event()
        self.gate.set()
        self.fail: Exception | None = None

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = ()) -> list[Output]:
        self.gate.wait(60)
        if self.fail:
            fault, self.fail = self.fail, None
            raise fault
        self.steps.append([(chunk.start, len(chunk.tokens)) for chunk in batch])
        return self.inner.forward(batch, keep)

    def copy_page(self, *pages: int) -> None:
        self.inner.copy_page(*pages)

    def close(self) -> None:
        self.inner.close()


class Collector:
    """A sink for each job, and what came to it."""

    def __init__(self, worker: Worker, jobs: Sequence[Job]) -> None:
        self.updates: list[list[Update]] = [[] for _ in jobs]
        self.done = [threading.Event() for _ in jobs]
        self.sequences: list[Running] = worker.submit(jobs, [self._sink(i) for i in range(len(jobs))])

    def _sink(self, i: int):  # type: ignore[no-untyped-def]
        def sink(update: Update) -> None:
            self.updates[i].append(update)
            if update.finish:
                self.done[i].set()

        return sink

    def wait(self) -> Collector:
        assert all(event.wait(120) for event in self.done)
        return self

    @property
    def ids(self) -> list[list[int]]:
        return [[u.choice.id for u in updates if u.choice] for updates in self.updates]

    @property
    def ends(self) -> list[str | None]:
        return [updates[-1].finish for updates in self.updates]


class Bench:
    """A model, and schedulers over it with caches of any size."""

    def __init__(self, path: Path) -> None:
        self.file = open_file(path)
        self.model = load(self.file)
        self.tokenizer = Tokenizer.from_gguf(self.file)
        self.workers: list[Worker] = []

    def engine(self, n_pages: int = 128) -> Recorder:
        return Recorder(engines.create(engines.default_name(), self.model, n_pages=n_pages))

    def worker(self, n_pages: int = 128, *, waiting: int = 256, **limits: int) -> Worker:
        worker = Worker(Scheduler(self.engine(n_pages), self.tokenizer, **limits), waiting=waiting)
        self.workers.append(worker)
        return worker

    def alone(self, jobs: Sequence[Job]) -> list[list[int]]:
        """What each job gives by itself, through the plain generation loop."""
        generator = Generator(self.engine(), self.tokenizer)
        return [
            generator.generate(j.ids, j.params, max_tokens=j.max_tokens, ignore_eos=j.ignore_eos).run().ids
            for j in jobs
        ]

    def prompts(self, n: int, words: int = 6) -> list[tuple[int, ...]]:
        rng = np.random.default_rng(7)
        return [tuple(int(t) for t in rng.integers(259, 290, words + i % 5)) for i in range(n)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny import make

    return make(tmp_path_factory.mktemp("scheduler") / "tiny.gguf", n_ctx=1024, type="Q8_0")


@pytest.fixture
def bench(model: Path) -> Iterator[Bench]:
    bench = Bench(model)
    yield bench
    for worker in bench.workers:
        worker.stop(AssayError("the test is over"))
        worker.join()
        worker.scheduler.pages.check()
        assert worker.load == (0, 0)
        assert worker.scheduler.pages.available == worker.scheduler.pages.n_pages
        worker.scheduler.engine.close()


def test_greedy_is_the_same_alone_and_among_32(bench: Bench) -> None:
    jobs = [Job(ids, GREEDY, LONG) for ids in bench.prompts(33)]
    worker = bench.worker(running=33)
    together = Collector(worker, jobs).wait()
    assert together.ids == bench.alone(jobs)
    assert isinstance(worker.scheduler.engine, Recorder)
    assert max(len(step) for step in worker.scheduler.engine.steps) == 33  # they did share steps


def test_preemption_loses_nothing(bench: Bench) -> None:
    """Six sequences of three pages in a cache of eight: drawn with seeds, they give what each gives alone."""
    prompts = bench.prompts(6, 20)
    jobs = [Job(ids, SamplerParams(temp=1.0, seed=i), 2 * PAGE, ignore_eos=True) for i, ids in enumerate(prompts)]
    worker = bench.worker(n_pages=8, running=6)
    together = Collector(worker, jobs).wait()
    assert sum(s.preempted for s in together.sequences) > 0
    assert together.ids == bench.alone(jobs)


def test_the_oldest_is_never_preempted(bench: Bench) -> None:
    jobs = [Job(ids, GREEDY, 3 * PAGE, ignore_eos=True) for ids in bench.prompts(5, 8)]
    worker = bench.worker(n_pages=9, running=5)
    together = Collector(worker, jobs).wait()
    assert together.sequences[0].preempted == 0
    assert together.ends == ["length"] * 5


def test_a_long_prompt_stalls_nobody(bench: Bench) -> None:
    """While 600 prompt tokens go through in chunks, each decoding sequence has a token in every step."""
    worker = bench.worker(n_pages=128, chunk=64)
    engine = worker.scheduler.engine
    assert isinstance(engine, Recorder)
    short = Collector(worker, [Job(ids, GREEDY, 100, ignore_eos=True) for ids in bench.prompts(3)])
    wait_until(lambda: all(len(u) > 2 for u in short.updates))
    before = len(engine.steps)
    long = Collector(worker, [Job(tuple([260] * 600), GREEDY, 1)]).wait()
    during = [step for step in engine.steps[before:] if any(n > 1 for _, n in step)]
    short.wait()
    assert len(during) >= 600 // 64
    assert all(sum(n for _, n in step if n > 1) <= 64 for step in during)
    assert all(sum(n == 1 for _, n in step) == 3 for step in during[:-1])
    assert long.ends == ["length"]


def test_prefixes_are_computed_once(bench: Bench) -> None:
    shared = tuple([265, 270, 275, 280] * 24)  # three pages
    worker = bench.worker()
    engine = worker.scheduler.engine
    assert isinstance(engine, Recorder)
    first = Collector(worker, [Job((*shared, 261), GREEDY, 4)]).wait()
    engine.steps.clear()
    second = Collector(worker, [Job((*shared, 262), GREEDY, 4)]).wait()
    assert first.sequences[0].cached == 0
    assert second.sequences[0].cached == 96
    assert engine.steps[0] == [(96, 1)]


def test_a_prefix_may_end_inside_a_page(bench: Bench) -> None:
    """The page of a common start is copied, and the tokens are those of a sequence that computed it all."""
    shared = tuple([265, 270, 275] * 5)
    jobs = [Job((*shared, *rest), GREEDY, 2 * PAGE, ignore_eos=True) for rest in ((261,), (262, 263), (261,))]
    worker = bench.worker()
    found = [Collector(worker, [job]).wait() for job in jobs]
    assert [f.sequences[0].cached for f in found] == [0, 15, 15]
    assert [f.ids[0] for f in found] == bench.alone(jobs)
    fresh = bench.worker()
    assert Collector(fresh, jobs[1:2]).wait().ids[0] == found[1].ids[0]


def test_prompts_that_begin_alike_wait_for_the_first(bench: Bench) -> None:
    """Twenty tokens in common, within a page: those that start together wait a step and begin with a copy of it."""
    shared = tuple([265, 270, 275, 280] * 5)
    jobs = [Job((*shared, *[300 + i, 261 + i] * 10), GREEDY, 8, ignore_eos=True) for i in range(4)]
    worker = bench.worker()
    engine = worker.scheduler.engine
    assert isinstance(engine, Recorder)
    engine.gate.clear()
    together = Collector(worker, jobs)
    engine.gate.set()
    together.wait()
    assert [s.cached for s in together.sequences] == [0, 20, 20, 20]
    assert together.ids == bench.alone(jobs)


def test_choices_that_start_together_share_their_prompt(bench: Bench) -> None:
    """n = 4: the second to fourth wait one step and then find the prompt in the cache."""
    worker = bench.worker()
    engine = worker.scheduler.engine
    assert isinstance(engine, Recorder)
    engine.gate.clear()
    jobs = [Job(tuple([266, 271] * 50), SamplerParams(seed=i), 8) for i in range(4)]
    together = Collector(worker, jobs)
    engine.gate.set()
    together.wait()
    assert [s.cached for s in together.sequences] == [0, 96, 96, 96]


def test_the_queue_is_bounded_and_fair(bench: Bench) -> None:
    worker = bench.worker(running=1, waiting=2)
    engine = worker.scheduler.engine
    assert isinstance(engine, Recorder)
    engine.gate.clear()
    jobs = [Job(ids, GREEDY, 3, ignore_eos=True) for ids in bench.prompts(4)]
    waiting = [Collector(worker, [job]) for job in jobs[:3]]
    with pytest.raises(QueueFull) as refused:
        worker.submit(jobs[3:], [lambda update: None])
    assert refused.value.retry_after >= 1
    engine.gate.set()
    ends = [w.wait().sequences[0].times.last for w in waiting]
    assert ends == sorted(ends)  # first come, first served
    Collector(worker, jobs[3:]).wait()


def test_a_cancelled_sequence_frees_its_pages(bench: Bench) -> None:
    worker = bench.worker()
    running = Collector(worker, [Job((261, 262), GREEDY, 10_000, ignore_eos=True)])
    wait_until(lambda: len(running.updates[0]) > 3)
    worker.cancel(running.sequences)
    running.wait()
    assert running.ends == ["cancelled"]
    wait_until(lambda: worker.load == (0, 0))
    assert worker.scheduler.pages.available == worker.scheduler.pages.n_pages


def test_one_that_waits_can_be_cancelled_too(bench: Bench) -> None:
    worker = bench.worker(running=1)
    first = Collector(worker, [Job((261, 262), GREEDY, 400, ignore_eos=True)])
    second = Collector(worker, [Job((263, 262), GREEDY, 400)])
    worker.cancel(second.sequences)
    second.wait()
    assert second.ends == ["cancelled"]
    assert second.ids == [[]]
    worker.cancel(first.sequences)


def test_a_deadline_ends_with_an_error(bench: Bench) -> None:
    worker = bench.worker()
    late = Collector(worker, [Job((261, 262), GREEDY, 10**6, ignore_eos=True, deadline=time.monotonic() + 0.2)])
    error = late.wait().updates[0][-1].error
    assert isinstance(error, DeadlinePassed)


def test_a_failing_engine_gives_errors_and_goes_on(bench: Bench) -> None:
    worker = bench.worker()
    engine = worker.scheduler.engine
    assert isinstance(engine, Recorder)
    engine.fail = RuntimeError("a kernel fell over")
    job = Job((261, 262), GREEDY, 5, ignore_eos=True)
    broken = Collector(worker, [job]).wait()
    assert isinstance(broken.updates[0][-1].error, EngineFailed)
    assert Collector(worker, [job]).wait().ends == ["length"]


def test_stopping_answers_everybody(bench: Bench) -> None:
    worker = bench.worker(running=2)
    jobs = [Job(ids, GREEDY, 10**6, ignore_eos=True) for ids in bench.prompts(5)]
    all_of_them = Collector(worker, jobs)
    enough = AssayError("enough")
    worker.stop(enough)
    all_of_them.wait()
    assert {u[-1].error for u in all_of_them.updates} == {enough}
    with pytest.raises(AssayError, match="enough"):
        worker.submit(jobs[:1], [lambda update: None])


def test_prompt_logprobs_do_not_depend_on_chunks_or_cache(bench: Bench) -> None:
    ids = tuple(int(t) for t in np.random.default_rng(3).integers(259, 290, 100))
    scores = []
    for chunk in (16, 128):
        worker = bench.worker(chunk=chunk)
        for _ in range(2):
            found = Collector(worker, [Job(ids, GREEDY, 1, prompt_logprobs=2)]).wait().sequences[0]
            assert [c.id for c in found.prompt_choices] == list(ids[1:])
            scores.append(found.prompt_choices)
    assert all(other == scores[0] for other in scores)


def test_a_probe_gives_every_row_of_its_nodes(bench: Bench) -> None:
    worker = bench.worker(chunk=32)
    ids = tuple([261, 262, 263] * 30)
    probe = Collector(worker, [Job(ids, keep=("result_norm",))]).wait().sequences[0]
    rows = np.concatenate(probe.nodes["result_norm"])
    assert rows.shape == (90, bench.model.hparams.n_embd)


def test_stop_strings_and_the_context_end_a_sequence(bench: Bench) -> None:
    worker = bench.worker(n_pages=4)  # a context of 128
    free = Collector(worker, [Job((261, 262), GREEDY, 10**6, ignore_eos=True)]).wait()
    assert free.ends == ["context"]
    assert len(free.ids[0]) == 128 - 2 + 1  # the last token needs no place
    text = "".join(u.text for u in free.updates[0])
    stop = text[10:13]
    stopped = Collector(worker, [Job((261, 262), GREEDY, 10**6, stop=(stop,), ignore_eos=True)]).wait()
    assert stopped.ends == ["stop"]
    assert "".join(u.text for u in stopped.updates[0]) == text[: text.index(stop)]
