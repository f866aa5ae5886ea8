"""Layers with a window keep only the pages that they see, and neither a bit nor a token changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from assay.engines.contract import PAGE, Chunk
from assay.engines.cpu import CpuEngine
from assay.engines.plan.state_layout import page_bytes
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from assay.runtime.opening import Opened, OpenOptions
from assay.runtime.params import GREEDY
from assay.runtime.scheduler import Scheduler
from assay.runtime.sequence import Job, Update
from assay.text import Tokenizer
from tests.models import others
from tests.tiny import make

WINDOW, SLOTS = 40, 5  # positions seen; pages of all sequences together
PROMPT = tuple(int(t) for t in np.random.default_rng(3).integers(259, 290, 700))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The first and third layer see 40 back, the second everything."""
    pattern = {"gemma3.attention.sliding_window_pattern": [True, False, True]}
    path = make(
        tmp_path_factory.mktemp("windows") / "tiny.gguf",
        window=WINDOW,
        n_layer=3,
        n_ctx=1024,
        type="Q8_0",
        metadata=pattern,
    )
    yield load(open_file(path))


def scheduler(model: Model, slots: int | None = SLOTS, n_pages: int = 64, **limits: int) -> Scheduler:
    engine = CpuEngine(model, threads=2, n_pages=n_pages, window_pages=slots and (lambda _: slots))
    assert engine.windows == ({WINDOW: slots} if slots else {})
    return Scheduler(engine, Tokenizer.from_gguf(model.file), **limits)


def generate(scheduler: Scheduler, jobs: list[Job]) -> list[list[int]]:
    """The tokens of each; the pages are checked after every step."""
    found: list[list[int]] = [[] for _ in jobs]

    def sink(i: int) -> object:
        def told(update: Update) -> None:
            assert update.error is None, update.error
            if update.choice:
                found[i].append(update.choice.id)

        return told

    scheduler.add([scheduler.make(job, sink(i)) for i, job in enumerate(jobs)])  # type: ignore[arg-type]
    while scheduler.busy:
        for sequence, update in scheduler.step():
            sequence.sink(update)
        scheduler.pages.check()
    return found


def jobs(*lengths: int, tokens: int = 60) -> list[Job]:
    return [Job(PROMPT[:n], GREEDY, tokens, ignore_eos=True) for n in lengths]


def test_a_long_text_holds_few_pages_of_its_windowed_layers(model: Model) -> None:
    """A prompt of 700 tokens and 60 more: 24 pages in layers that see all, 5 in layers that see 40."""
    plain, bounded = scheduler(model, None), scheduler(model)
    assert generate(bounded, jobs(700)) == generate(plain, jobs(700))
    (window,) = bounded.pages.windows
    assert (window.positions, window.n_slots) == (WINDOW, SLOTS)
    memory, whole = bounded.engine.memory, plain.engine.memory
    assert memory.page == page_bytes(model.graph, "f16", 0)
    assert memory.windows == SLOTS * page_bytes(model.graph, "f16", WINDOW)
    assert memory.page + memory.windows // SLOTS == whole.page


@pytest.mark.parametrize("name", ["tiny", "gpt-oss", "gemma2", "gemma4"])
def test_logits_are_the_same_bits(model: Model, name: str, tmp_path: Path) -> None:
    """Through the engine: slots of evicted pages have been reused and hold other numbers."""
    if name != "tiny":
        others.make(name, tmp_path / name)
        model = load(open_file(tmp_path / name))
    (window,) = model.graph.state.windows
    engine, plain = (CpuEngine(model, threads=2, n_pages=16, window_pages=w) for w in (lambda _: SLOTS, None))
    ids = np.array(PROMPT[:400], np.int32) % model.hparams.n_vocab
    table = np.full(len(ids) // PAGE + 1, -1, np.int32)
    pages = np.arange(len(table), dtype=np.int32)
    for start in range(0, len(ids), 50):
        part = ids[start : start + 50]
        first, last = max(0, start - window + 1) // PAGE, (start + len(part) - 1) // PAGE
        table[:first] = -1
        table[first : last + 1] = pages[first : last + 1] % SLOTS
        got, want = (
            e.forward([Chunk(part, start, pages, "all", windows=w)])[0].logits
            for e, w in ((engine, {window: table.copy()}), (plain, {}))
        )
        assert np.array_equal(got, want)


def test_prefixes_preemption_and_company_change_no_token(model: Model) -> None:
    asked = jobs(300, 310, 120, 64, 300, 299, 33, 1)
    alone = [generate(scheduler(model, None), [job])[0] for job in asked]
    for slots, n_pages in ((SLOTS, 64), (9, 20), (14, 64)):
        crowded = scheduler(model, slots, n_pages, chunk=64)
        for _ in range(2):  # the second time prefixes are found
            assert generate(crowded, asked) == alone
        assert generate(crowded, asked[:1]) == alone[:1]


def test_a_prefix_is_found_where_its_window_is(model: Model) -> None:
    """After 360 tokens, the last pages have their slots; slots of the middle were reused for the end."""
    for slots, length, cached in ((SLOTS, 200, 0), (SLOTS, 300, 300), (16, 200, 200), (16, 300, 300)):
        held = scheduler(model, slots)
        generate(held, jobs(300))
        again = held.make(Job((*PROMPT[:length], *PROMPT[:9]), GREEDY, 1), lambda _: None)
        held.add([again])
        held.step()
        assert again.cached == cached


def test_scores_of_evicted_keys_are_refused(model: Model) -> None:
    engine = scheduler(model).engine
    pages = np.arange(3, dtype=np.int32)
    gone = {WINDOW: np.array([-1, 1, 2], np.int32)}
    with pytest.raises(AssayError, match="keys outside the window were evicted"):
        engine.forward([Chunk(np.array([5], np.int32), 80, pages, windows=gone)], keep=["kq_soft_max-0"])
    with pytest.raises(ValueError, match="page outside the cache"):  # a page that is seen
        engine.forward([Chunk(np.array([5], np.int32), 70, pages, windows=gone)])
    with pytest.raises(AssayError, match="window of 40"):
        engine.forward([Chunk(np.array([5], np.int32), 300, np.arange(10, dtype=np.int32))])


def test_windows_of_a_model_and_what_is_opened(model: Model, tmp_path: Path) -> None:
    assert model.graph.state.windows == (WINDOW,)
    opened = Opened(model.file, OpenOptions(engine="cpu", ctx_size=20000))
    assert opened.engine(scheduled=True).windows == {WINDOW: 512}
    assert opened.engine().windows == {}
    assert Opened(model.file, OpenOptions(engine="cpu")).engine(scheduled=True).windows == {}
    whole = load(open_file(make(tmp_path / "whole.gguf")))
    assert whole.graph.state.windows == ()
