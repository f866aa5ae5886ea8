"""The cuda engine under the scheduler and the server: the cpu engine's tokens; a fault ends requests and no more."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.engines.contract import MAX_TOP_VALUES, PAGE, Chunk, DecodeRun, TopK
from assay.engines.cpu import CpuEngine
from assay.engines.cuda import CudaEngine
from assay.engines.cuda.device import DeviceError, Launch
from assay.engines.cuda.shim import Shim
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from assay.runtime.generate import Generator
from assay.runtime.params import GREEDY, SamplerParams
from assay.runtime.receipts import row_digest
from assay.runtime.sampler import sample, sample_from_top, top_k_needed
from assay.runtime.scheduler import Scheduler, deliver
from assay.runtime.sequence import Job
from assay.runtime.sequence_errors import EngineFailed
from assay.runtime.worker import Worker
from assay.text import Tokenizer
from tests import forked, tiny
from tests.engines.on_cuda import ON_GPU, device, pages
from tests.runtime.test_scheduler import Collector

IDS = np.random.default_rng(5).integers(259, 290, 200).astype(np.int32)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("cuda") / "tiny.gguf", n_ctx=512, type="Q8_0")


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return load(open_file(path))


@pytest.fixture
def work() -> Iterator[list[Worker]]:
    """Workers that end with the test, with every page free again."""
    started: list[Worker] = []
    yield started
    for worker in started:
        worker.stop(AssayError("the test is over"))
        worker.join()
        worker.scheduler.pages.check()
        assert worker.scheduler.pages.available == worker.scheduler.pages.n_pages
        worker.scheduler.close()


def jobs_of() -> list[Job]:
    """Greedy and drawn, with a common start that ends inside a page; together more than eight pages hold."""
    start = tuple(int(i) for i in IDS[:20])
    params = [GREEDY, SamplerParams(temp=1.0, top_k=5, seed=3), SamplerParams(temp=0.8, top_p=0.9, top_k=0, seed=4)]
    return [Job((*start, 260 + i), p, 2 * PAGE, ignore_eos=True) for i, p in enumerate(params * 2)]


def test_the_scheduler_gets_the_cpu_engines_tokens(model: Model, work: list[Worker]) -> None:
    """Preempted, from cached prefixes and copied pages, with top values in place of rows: the same tokens."""
    tokenizer, jobs = Tokenizer.from_gguf(model.file), jobs_of()
    alone = Generator(CpuEngine(model, threads=1, n_pages=64), tokenizer)
    expected = [alone.generate(j.ids, j.params, max_tokens=j.max_tokens, ignore_eos=True).run().ids for j in jobs]
    worker = Worker(Scheduler(CudaEngine(model, n_pages=8, device=device()), tokenizer, running=6))
    work.append(worker)
    found = Collector(worker, jobs).wait()
    assert found.ids == expected and sum(s.preempted for s in found.sequences) > 0
    again = Collector(worker, jobs[2:3]).wait()
    assert again.ids == expected[2:3] and again.sequences[0].cached > 0


def test_rows_are_hashed_on_the_device(model: Model) -> None:
    """A receipt of the card is that of the cpu. The rows stay on the device: in steps, and in decode runs."""
    tokenizer = Tokenizer.from_gguf(model.file)
    jobs = [
        Job(tuple(IDS[:5]), params, 12, ignore_eos=True, receipt=True) for params in (GREEDY, SamplerParams(seed=3))
    ]
    for chosen in ([jobs[0]], jobs):
        found = []
        for engine in (CpuEngine(model, n_pages=64, threads=1), CudaEngine(model, n_pages=64, device=device())):
            scheduler = Scheduler(engine, tokenizer, n_ctx=512, running=2)
            sequences = [scheduler.make(job, lambda update: None) for job in chosen]
            scheduler.add(sequences)
            while not all(s.finished for s in sequences):
                deliver(scheduler.step())
            found.append([(s.ids, s.row_digests) for s in sequences])
            engine.close()
        assert all(len(digests) == 12 for _, digests in found[1]) and found[0] == found[1]


@pytest.mark.parametrize("k", [1, 5, MAX_TOP_VALUES])
def test_top_values_are_the_largest_of_the_row(model: Model, k: int) -> None:
    engine = CudaEngine(model, n_pages=8, device=device())
    batch = [Chunk(IDS[i : i + 1], 0, pages(i, 1)) for i in range(3)]
    rows = [o.logits[0] for o in engine.forward(batch)]
    assert engine.top_values
    outputs = engine.top_values.forward(batch, k)
    for row, output in zip(rows, outputs, strict=True):
        assert output.top is not None and not len(output.logits)
        order = np.argsort(-row, kind="stable")[: len(output.top.ids)]
        assert len(order) >= k
        assert np.array_equal(output.top.ids, order) and np.array_equal(output.top.logits, row[order])
    prompt = engine.top_values.forward([Chunk(IDS[:2], 0, pages(3, 2)), batch[1]], k)  # not a decode step: whole rows
    assert [len(o.logits) for o in prompt] == [1, 1] and prompt[0].top is None
    assert np.array_equal(prompt[1].logits[0], rows[1])


def test_a_decode_run_continues_as_the_host_would(model: Model) -> None:
    """Over the edge of a page, sequences with different numbers of tokens left; then its cache is as if each token had
    come from the host."""
    engine, other = (CudaEngine(model, n_pages=16, device=device()) for _ in range(2))
    lengths, left = (PAGE - 2, 5, 1), (5, 0, 3)
    tables = [pages(4 * i, 2 * PAGE) for i in range(3)]
    for e in (engine, other):
        e.forward([Chunk(IDS[:n], 0, t, "none") for n, t in zip(lengths, tables, strict=True)])
    batch = [Chunk(IDS[n : n + 1], n, t) for n, t in zip(lengths, tables, strict=True)]
    assert engine.decode_runner
    run = engine.decode_runner.start(batch, left, 1)
    for n, t, m, results in zip(lengths, tables, left, run.results, strict=True):
        assert len(results) == 1 + m
        token, rows = int(IDS[n]), []
        for i in range(m + 1):
            rows.append(other.forward([Chunk(np.array([token], np.int32), n + i, t)])[0].logits[0])
            token = int(rows[-1].argmax())
        assert [int(top.ids[0]) for top in results] == [int(r.argmax()) for r in rows]
        assert [float(top.logits[0]) for top in results] == [float(r.max()) for r in rows]
        last = [e.forward([Chunk(np.array([token], np.int32), n + m + 1, t)])[0].logits[0] for e in (engine, other)]
        assert np.array_equal(*last)


def test_a_decode_run_stops_when_it_is_told(model: Model) -> None:
    """Launched steps still give results, and the next step finds the cache as it should be, read or not."""
    engine = CudaEngine(model, n_pages=8, device=device())
    table = pages(0, 3 * PAGE)

    def start(depth: int) -> DecodeRun:
        engine.forward([Chunk(IDS[:5], 0, table, "none")])
        assert engine.decode_runner
        return engine.decode_runner.start([Chunk(IDS[5:6], 5, table)], [12], depth)

    def ids(run: DecodeRun) -> list[int]:
        return [int(top.ids[0]) for top in run.results[0]]

    whole = ids(start(12))
    assert len(whole) == 13
    short = start(2)
    assert int(short.results[0][1].ids[0]) == whole[1]
    short.stop()
    assert 2 < len(short.results[0]) < 13
    assert ids(short) == whole[: len(short.results[0])]
    unread = start(12)
    assert engine.top_values
    last = engine.top_values.forward([Chunk(np.array(whole[1:2], np.int32), 7, table)], 1)[0].top
    assert last is not None and int(last.ids[0]) == whole[2]
    assert ids(unread) == whole[: len(unread.results[0])]


def test_a_decode_run_refuses_what_it_cannot_run(model: Model) -> None:
    engine = CudaEngine(model, n_pages=8, device=device())
    assert engine.decode_runner
    with pytest.raises(AssayError, match=r"page table is too short .*expected room for positions up to 40"):
        engine.decode_runner.start([Chunk(IDS[:1], 0, pages(0, 1))], [39], 1)
    with pytest.raises(AssayError, match="a decode run takes one token of each sequence"):
        engine.decode_runner.start([Chunk(IDS[:2], 0, pages(0, 2))], [1], 1)


def test_greedy_streams_in_decode_runs_end_where_they_should(
    model: Model, work: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop strings, lengths and the end of the context inside a run of tokens; a probe comes in between."""
    monkeypatch.setattr("assay.runtime.step_planner._MAX_QUEUE_SECONDS", 1e9)  # the shim is slow
    tokenizer = Tokenizer.from_gguf(model.file)
    alone = Generator(CpuEngine(model, threads=1, n_pages=64), tokenizer)
    start = tuple(int(i) for i in IDS[:20])
    text = alone.generate(start, GREEDY, max_tokens=40, ignore_eos=True).run().text
    jobs = [
        Job(start, GREEDY, 40, ignore_eos=True),
        Job((*start, 260), GREEDY, 23, ignore_eos=True),
        Job(start, GREEDY, 40, stop=(text[len(text) // 2 :][:3],), ignore_eos=True),
    ]
    expected = [
        alone.generate(j.ids, j.params, max_tokens=j.max_tokens, stop=j.stop, ignore_eos=True).run().ids for j in jobs
    ]
    engine = CudaEngine(model, n_pages=16, device=device())
    assert engine.decode_runner
    longest, start = [], engine.decode_runner.start

    def watched(batch: Sequence[Chunk], max_tokens: Sequence[int], queue_depth: int) -> DecodeRun:
        longest.append(max(max_tokens))
        return start(batch, max_tokens, queue_depth)

    monkeypatch.setattr(engine.decode_runner, "start", watched)
    worker = Worker(Scheduler(engine, tokenizer, running=4))
    work.append(worker)
    assert Collector(worker, jobs).wait().ids == expected and max(longest) > 3


FLOATS = st.sampled_from([0.0, -0.0, 1.0, 1.0, -1.0, 2.5, -np.inf, 3e38, 1e-40])


@settings(max_examples=25, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=1100), st.integers(0, 3))
def test_ties_zeros_and_infinities_stand_as_numpy_sorts_them(values: list[float], odd: int) -> None:
    """The kernels alone, on rows of any length; a NaN shows first."""
    from assay.engines.cuda import structs

    row = np.array(values, np.float32)
    if odd == 3:
        row[len(row) // 2] = np.nan
    gpu, k, n = device(), 7, -(-len(row) // 512)
    x, lists, sums, out = (gpu.alloc(size, "") for size in (row.nbytes, 8 * n * k, 16 * n, 8 * k + 16))
    gpu.upload(x, row)
    args = structs.BestArgs(x, lists, sums, out, width=len(row), n_lists=n, k=k)
    gpu.launch(Launch("best_lists", (-(-n // 8), 1, 1), 256, args), False)
    gpu.launch(Launch("best_of_lists", (1, 1, 1), 32, args, 4 * n), False)
    found = np.empty(2 * k + 4, np.float32)
    gpu.download(found, out)
    gpu.sync()
    found, digest = found[: 2 * k], found[2 * k :].tobytes()
    assert digest == row_digest(row), "the hash of a receipt, as the host computes it"
    order = np.argsort(-row + 0.0, kind="stable")[:k]
    if odd == 3:
        assert np.isnan(found[0]) and found[k] == len(row) // 2
    else:
        assert np.array_equal(found[k:][: len(order)], order) and np.array_equal(found[: len(order)], row[order])
        assert (found[k:][len(order) :] == -1).all()
    gpu.close()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.7, 1.0]),
    st.integers(0, MAX_TOP_VALUES),
    st.floats(0.1, 1),
    st.floats(0, 0.3),
)
def test_a_choice_from_the_top_values_is_the_choice_from_the_row(
    seed: int, temp: float, top_k: int, top_p: float, min_p: float
) -> None:
    rng = np.random.default_rng(seed)
    row = np.round(rng.normal(0, 2, 300), 1).astype(np.float32)  # with ties
    params = SamplerParams(temp=temp, top_k=top_k, top_p=top_p, min_p=min_p, seed=1)
    if k := top_k_needed(params):
        order = np.argsort(-row, kind="stable")[: 1 if k == 1 else MAX_TOP_VALUES]
        top = TopK(order, row[order])
        expected = sample(row, [], params, np.random.default_rng(seed)).id
        assert sample_from_top(top, params, np.random.default_rng(seed)) == expected


def test_broken_rows_are_not_drawn_from() -> None:
    with pytest.raises(AssayError, match="NaN or infinite, the first at id 4"):
        sample_from_top(TopK(np.array([4]), np.array([np.nan], np.float32)), GREEDY, np.random.default_rng(1))
    with pytest.raises(AssayError, match="every one is -inf"):
        sample_from_top(TopK(np.array([0]), np.array([-np.inf], np.float32)), GREEDY, np.random.default_rng(1))


# -- faults: the shim refuses what a GPU would -------------------------------------------------------------------------


class Fragile(Shim):
    """A device whose memory ends, or that is lost at a launch."""

    def __init__(self) -> None:
        super().__init__()
        self.allocations = self.launches = -1  # that still succeed; -1: all

    def alloc(self, size: int, what: str) -> int:
        if self.allocations == 0:
            raise DeviceError(f"engine cuda: no memory for {what} ({size >> 20} MB, 0 MB free on {self.name})")
        self.allocations -= self.allocations > 0
        return super().alloc(size, what)

    def launch(self, launch: Launch, early: bool) -> None:
        if self.launches == 0:
            raise DeviceError(f"engine cuda: {launch.kernel}: the driver says CUDA_ERROR_DEVICE_UNAVAILABLE")
        self.launches -= self.launches > 0
        super().launch(launch, early)


@pytest.mark.skipif(ON_GPU, reason="memory of the host stands in for a GPU's")
def test_memory_that_ends_while_loading_leaves_nothing_behind(model: Model) -> None:
    """At every allocation in turn: one line that says what there was no memory for, and all of it is given back."""
    whole = Fragile()
    whole.allocations = 10**6
    CudaEngine(model, n_pages=8, device=whole).close()
    needed = 10**6 - whole.allocations
    assert needed > 10 and not whole.held
    for n in range(needed):
        gpu = Fragile()
        gpu.allocations = n
        with pytest.raises(AssayError, match="no memory for"):
            CudaEngine(model, n_pages=8, device=gpu)
        assert not gpu.held


@pytest.mark.skipif(ON_GPU, reason="memory of the host stands in for a GPU's")
def test_faults_end_the_requests_and_the_next_one_is_served(model: Model, work: list[Worker]) -> None:
    """Buffers that do not fit a longer prompt, and a launch that fails at any place of a step."""
    tokenizer, gpu = Tokenizer.from_gguf(model.file), Fragile()
    worker = Worker(Scheduler(CudaEngine(model, n_pages=16, device=gpu), tokenizer))
    work.append(worker)
    short, long = (Job(tuple(int(i) for i in IDS[:n]), GREEDY, 4, ignore_eos=True) for n in (9, 150))
    expected = Collector(worker, [short]).wait().ids
    for fault in ({"allocations": 0}, {"launches": 0}, {"launches": 7}):
        for name, value in fault.items():
            setattr(gpu, name, value)
        failed = Collector(worker, [long]).wait()
        assert isinstance(failed.updates[0][-1].error, EngineFailed)
        assert "engine cuda" in str(failed.updates[0][-1].error)
        gpu.allocations = gpu.launches = -1
        assert Collector(worker, [short]).wait().ids == expected
    assert Collector(worker, [long]).wait().ends == ["length"]


SERVE = """
import asyncio, sys
from pathlib import Path
from assay import engines
from assay.engines.cuda import CudaEngine
from assay.runtime.opening import OpenOptions
from assay.serve.server import Config, run
from tests.engines.on_cuda import device
engines.ENGINES["cuda"] = lambda model, **options: CudaEngine(model, device=device(), **options)
config = Config(models=[("tiny", Path(sys.argv[1]))], port=0, options=OpenOptions(engine=sys.argv[2], precision="fast"))
asyncio.run(run(config, lambda url: print(url, flush=True)))
"""


def ask(url: str, prompts: Sequence[str]) -> list[str]:
    httpx = pytest.importorskip("httpx", reason="httpx is not installed: the extra `serve` is not tested")
    body = {"model": "tiny", "prompt": list(prompts), "max_tokens": 12, "temperature": 0.7, "top_k": 20, "seed": 5}
    reply = httpx.post(f"{url}/v1/completions", content=json.dumps(body), timeout=120)
    assert reply.status_code == 200, reply.text
    return [choice["text"] for choice in reply.json()["choices"]]


def test_the_server_gives_the_same_text_on_either_engine(path: Path) -> None:
    found = []
    for engine in ("cpu", "cuda"):
        process = forked.Popen([sys.executable, "-c", SERVE, str(path), engine], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout
            url = process.stdout.readline().strip()
            found.append([ask(url, ["hello world", "the in on"]), ask(url, ["hello world a"])])
        finally:
            process.terminate()
            assert process.wait(60) == 0
    assert found[0] == found[1]
