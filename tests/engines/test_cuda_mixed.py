"""Precision mixed of the cuda engine: prompts in `tensor`, other tokens in `fast`, in any batch, cut and cache."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay import engines
from assay.engines.contract import PAGE, Chunk
from assay.engines.cpu import CpuEngine
from assay.engines.cuda import CudaEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.library.language_model import LanguageModel
from assay.models import Model, load
from assay.runtime import receipt_replay
from assay.runtime.opening import Opened, OpenOptions
from assay.runtime.params import GREEDY, SamplerParams
from assay.runtime.receipts import header_of, make_receipt
from assay.runtime.scheduler import Scheduler
from assay.runtime.sequence import Job, Sequence
from assay.text import Tokenizer
from tests import tiny
from tests.engines.on_cuda import device, pages
from tests.models import recurrent

IDS = np.random.default_rng(5).integers(259, 290, 200).astype(np.int32)
PROMPT = 51  # tokens of a prompt; one less is computed in `tensor`


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(tiny.make(tmp_path_factory.mktemp("mixed") / "tiny.gguf", n_layer=1, n_ctx=512, type="Q8_0")))


def engine(model: Model, precision: str = "mixed", **options: Any) -> CudaEngine:
    return CudaEngine(model, precision=precision, device=device(), **{"n_pages": 16, **options})


def chunk(start: int, end: int, first_page: int = 0, outputs: str = "all", slot: int = 0) -> Chunk:
    """Tokens of a sequence whose prompt is its first `PROMPT` tokens."""
    prompt = max(0, min(PROMPT - 1, end) - start)
    return Chunk(IDS[start:end], start, pages(first_page, 80), outputs, prompt=prompt, state_slot=slot)


def rows(engine: CudaEngine, *batch: Chunk) -> list[np.ndarray]:
    return [output.logits for output in engine.forward(batch)]


@pytest.mark.parametrize("type_name", ["Q4_K", "F16"])
def test_a_chunk_without_prompt_is_fast_and_a_prompt_is_tensor(tmp_path: Path, type_name: str) -> None:
    model = load(open_file(tiny.make(tmp_path / "m.gguf", type=type_name, n_layer=1, n_embd=256, n_ff=512)))
    fast, tensor, mixed = (engine(model, precision) for precision in ("fast", "tensor", "mixed"))
    for n in (1, 3, 40):
        part = Chunk(IDS[:n], 0, pages(0, n), "all")
        assert np.array_equal(rows(mixed, part)[0], rows(fast, part)[0]), n
    prompt = Chunk(IDS[:40], 0, pages(0, 41), "all", prompt=40)
    assert np.array_equal(rows(mixed, prompt)[0], rows(tensor, prompt)[0])
    assert not np.array_equal(rows(mixed, prompt)[0], rows(fast, prompt)[0])
    mixed.forward([prompt])  # the cache has the rows of `tensor`; the next token is computed in `fast`
    tensor.forward([prompt])
    after = Chunk(IDS[40:41], 40, pages(0, 41))
    assert not np.array_equal(rows(mixed, after)[0], rows(tensor, after)[0])


def test_the_bits_of_a_sequence_do_not_depend_on_cut_and_batch(model: Model) -> None:
    mixed = engine(model)
    (expected,) = rows(mixed, chunk(0, 70))
    cuts = (0, 3, 33, PROMPT - 1, PROMPT, PROMPT + 1, 70)
    for begin, end in pairwise(cuts):
        other = Chunk(IDS[60:63], 0, pages(8, 3), prompt=2)  # with the end of a prompt of another sequence
        found = rows(mixed, other, chunk(begin, end, 4))[1]
        assert np.array_equal(found, expected[begin:end]), (begin, end)
    last, none = rows(mixed, chunk(0, PROMPT, 4, "last"), chunk(0, PROMPT - 1, 8, "none"))
    assert np.array_equal(last, expected[PROMPT - 1 : PROMPT]) and not len(none)
    names = ["result_norm", "attn_out-0"]
    kept = mixed.forward([chunk(0, 70, 4)], [n for n in names if n in mixed.graph])[0]
    assert np.array_equal(kept.logits, expected) and all(len(v) == 70 for v in kept.nodes.values())


def test_nodes_of_a_whole_text_are_refused_where_it_has_two_arithmetics(model: Model) -> None:
    mixed = engine(model)
    scores = next(n.name for n in mixed.graph if n.op == "softmax" or "S" in mixed.graph.shapes[n.name])
    with pytest.raises(AssayError, match="mixed computes a prompt in two parts"):
        mixed.forward([chunk(0, PROMPT)], [scores])
    assert mixed.forward([chunk(0, PROMPT - 1)], [scores])[0].nodes[scores].size


def test_a_state_goes_on_from_the_prompt() -> None:
    calls = recurrent.calls("qwen35")
    ids = np.random.default_rng(3).integers(0, calls.model.hparams.n_vocab, 20).astype(np.int32)

    def part(begin: int, end: int, slot: int) -> Chunk:
        prompt = max(0, min(12, end) - begin)
        return Chunk(ids[begin:end], begin, pages(4 * slot, 20), "all", prompt=prompt, state_slot=slot)

    mixed = engine(calls.model)
    (expected,) = rows(mixed, part(0, 20, 0))
    for begin, end in ((0, 5), (5, 13), (13, 14), (14, 20)):
        assert np.array_equal(rows(mixed, part(begin, end, 1))[0], expected[begin:end]), (begin, end)


def run(scheduler: Scheduler, jobs: list[Job]) -> list[Sequence]:
    found = [scheduler.make(job, lambda update: None) for job in jobs]
    scheduler.add(found)
    while scheduler.busy:
        scheduler.step()
    scheduler.pages.check()
    return found


def jobs_of() -> list[Job]:
    start = tuple(int(i) for i in IDS[:40])
    params = [GREEDY, SamplerParams(temp=1.0, top_k=5, seed=3), SamplerParams(temp=0.8, top_p=0.9, top_k=0, seed=4)]
    return [Job((*start, 260 + i), p, PAGE, ignore_eos=True) for i, p in enumerate(params)]


def test_streams_depend_on_the_request_alone(model: Model) -> None:
    """Alone; together in few pages, preempted, in small chunks, from cached prefixes; resumed: the same tokens."""
    tokenizer, jobs = Tokenizer.from_gguf(model.file), jobs_of()
    alone = [run(Scheduler(engine(model), tokenizer), [job])[0].ids for job in jobs]
    together = Scheduler(engine(model, n_pages=6), tokenizer, running=3, chunk=7)
    found = run(together, jobs)
    assert [s.ids for s in found] == alone and sum(s.preempted for s in found)
    again = run(together, jobs[:1])[0]
    assert again.ids == alone[0] and again.cached >= PAGE
    # A further turn: its prompt has the answer, whose rows were computed in `fast` and are computed again.
    turn = Job((*alone[0], 270, 271), GREEDY, 8, ignore_eos=True)
    shared, fresh = run(together, [turn])[0], run(Scheduler(engine(model), tokenizer), [turn])[0]
    assert shared.ids == fresh.ids and PAGE <= shared.cached < len(jobs[0].ids)
    answered = tuple(alone[1][len(jobs[1].ids) :][:9])
    resumed = Job(jobs[1].ids, jobs[1].params, PAGE, ignore_eos=True, answered=answered)
    assert run(Scheduler(engine(model), tokenizer), [resumed])[0].ids == alone[1]


def test_numbers_of_a_text_are_those_of_fast(tmp_path: Path, on_device: None) -> None:
    """Logits, embeddings and traces; beside answers, whose pages they do not share."""
    path = tiny.make(tmp_path / "tiny.gguf", n_layer=1, n_ctx=512, type="Q8_0")
    text, found = "hello there, my friend " * 3, []
    for precision in (None, "fast"):
        with LanguageModel(opened(path, precision=precision)) as lm:
            answers = [lm.generate(text, max_tokens=4, temp=0).text]
            trace = {name: value.tobytes() for name, value in lm.trace(text).items()}
            found.append((lm.logits(text).tobytes(), lm.embed(text).tobytes(), trace))
            answers.append(lm.generate(text, max_tokens=4, temp=0).text)
        assert answers[0] == answers[1] and (precision or lm.engine.arithmetic.mixed)
    assert found[0] == found[1]


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has the cuda engine, on the device of these tests."""

    def make(model: Model, **options: Any) -> CudaEngine:
        options.pop("window_pages", None)
        return CudaEngine(model, device=device(), **options)

    monkeypatch.setitem(engines.ENGINES, "cuda", make)


def test_a_receipt_names_the_arithmetic_and_is_replayed_in_it(model: Model, on_device: None) -> None:
    made = engine(model)
    job = Job(tuple(int(i) for i in IDS[:20]), GREEDY, 6, ignore_eos=True, receipt=True)
    (sequence,) = run(Scheduler(made, Tokenizer.from_gguf(model.file)), [job])
    header = header_of(model.file.sha256, made.arithmetic, job.params, sequence.seed, job.ids, constrained=False)
    assert header["arithmetic"][:2] == ["cuda", "mixed"]
    receipt = make_receipt(header, job.ids, sequence.ids[20:], sequence.row_digests)

    assert receipt_replay.replay(receipt, model, engine="cuda").reason == "all 6 tokens: the same bits"
    assert receipt_replay.replay(receipt, model, engine="cuda", positions=2, seed=1)


@pytest.mark.parametrize("name", ["cuda", "auto"])
def test_requests_are_answered_in_mixed_unless_a_precision_is_asked_for(
    model: Model, on_device: None, name: str
) -> None:
    def precision_of(**options: Any) -> str:
        with closing(engines.create(name, model, n_pages=16, **options)) as made:
            assert isinstance(made, CudaEngine)
            return made.arithmetic.precision

    assert precision_of(answering=True) == "mixed"
    assert precision_of() == "fast"  # instruments compare bits
    assert precision_of(answering=True, precision="fast") == "fast"
    assert precision_of(answering=True, precision="exact") == "exact"


@pytest.mark.parametrize("name", ["cuda", "auto"])
def test_a_model_that_fits_in_fast_alone_is_answered_in_fast(
    model: Model, on_device: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    check = CudaEngine._check_room

    def room(self: CudaEngine, weights: int) -> None:
        check(self, weights + (self._prompts is not None) * (1 << 50))

    monkeypatch.setattr(CudaEngine, "_check_room", room)
    with closing(engines.create(name, model, n_pages=16, answering=True)) as made:
        assert isinstance(made, CudaEngine) and made.arithmetic.precision == "fast"
    with pytest.raises(AssayError, match="does not fit"):
        engines.create("cuda", model, n_pages=16, answering=True, precision="mixed")


def opened(path: Path, **options: Any) -> Opened:
    return Opened(open_file(path), OpenOptions(engine="cuda", ctx_size=256, cache_size=0, **options))


def test_what_answers_and_what_compares(tmp_path: Path, on_device: None) -> None:
    path = tiny.make(tmp_path / "tiny.gguf", n_layer=1, n_ctx=512, type="Q8_0")

    def precision_of(found: Opened, **options: Any) -> str:
        with closing(found.engine(**options)) as made:
            return made.arithmetic.precision

    assert precision_of(opened(path), scheduled=True) == "mixed"
    assert precision_of(opened(path)) == precision_of(opened(path), scheduled=True, answering=False) == "fast"
    assert precision_of(opened(path, precision="exact"), scheduled=True) == "exact"
    assert precision_of(opened(path, portable=True), scheduled=True) == "fast"  # a server with receipts
    assert precision_of(opened(path, portable=True, precision="mixed"), scheduled=True) == "mixed"
    tower = tmp_path / "mmproj-tiny.gguf"  # a picture is not cut into two arithmetics
    tower.touch()
    assert precision_of(opened(path, mmproj=str(tower)), scheduled=True) == "fast"


def test_the_cpu_engine_says_that_it_cannot_replay_mixed(model: Model) -> None:
    made = engine(model)
    job = Job(tuple(int(i) for i in IDS[:20]), GREEDY, 2, ignore_eos=True, receipt=True)
    (sequence,) = run(Scheduler(made, Tokenizer.from_gguf(model.file)), [job])
    header = header_of(model.file.sha256, made.arithmetic, job.params, sequence.seed, job.ids, constrained=False)
    receipt = make_receipt(header, job.ids, sequence.ids[20:], sequence.row_digests)
    with pytest.raises(
        AssayError,
        match=r"its arithmetic is not the cpu engine.s .found cuda mixed, expected fast or exact.; use --engine cuda",
    ):
        receipt_replay.replay(receipt, model, engine="cpu")


def test_the_cpu_engine_refuses_mixed(model: Model) -> None:
    with pytest.raises(AssayError, match="mixed"):
        CpuEngine(model, precision="mixed", threads=1)


def test_a_last_step_of_one_token_is_the_last_token(model: Model) -> None:
    """A chunk that is one token longer than a step: the step of one token goes on inside the chunk."""
    fast, long = engine(model, "fast"), Chunk(IDS[:9], 0, pages(0, 9))
    (expected,) = rows(fast, long)
    fast._step = 8
    assert np.array_equal(rows(fast, long)[0], expected)
