"""Layers with a state in processes of their own: the bits of one process, cut anywhere, copied, and after a death."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.cluster.launchers import LocalLauncher
from assay.cluster.split import SplitEngine
from assay.engines.contract import Array, CacheLost, Chunk, pages_for
from assay.engines.cpu import CpuEngine
from assay.errors import AssayError
from assay.runtime.generate import Generator
from assay.runtime.opening import Opened, OpenOptions, open_model
from assay.runtime.params import GREEDY, SamplerParams
from tests.cluster.harness import Threads, spec_of
from tests.models import others

GOLDEN = Path(__file__).parents[1] / "data" / "arch" / "qwen35.gguf"
IDS = np.random.default_rng(5).integers(0, others.N_VOCAB, 100).astype(np.int32)
# Rows of the first layer are needed behind every border (rwkv7), windows alone, scans, KDA, two paths in one block.
KINDS = ("lfm2", "mamba2", "falcon-h1", "kimi-linear", "rwkv7")


def opened_at(path: Path, **options: Any) -> Opened:
    return open_model(path, OpenOptions(**{"engine": "cpu", "threads": 1, "cache_size": 1024, **options}))


def split_of(opened: Opened, stages: int, launcher: Any) -> SplitEngine:
    spec = spec_of(opened.file.path, state_slots=opened.options.state_slots) | {"split": stages, "token": "secret"}
    return SplitEngine(opened, spec, launcher)


@pytest.fixture(scope="module")
def opened() -> Opened:
    return opened_at(GOLDEN, state_slots=12)


@pytest.fixture(scope="module")
def split(opened: Opened) -> Iterator[SplitEngine]:
    """Three real processes."""
    engine = split_of(opened, 3, LocalLauncher())
    yield engine
    engine.close()


def whole_and_cut(engine: Any, slot: int, *cuts: int) -> Array:
    """Logits of 60 tokens in pieces that end at `cuts`, in the state slot and pages of one sequence."""
    ids, found, start = IDS[:60], [], 0
    pages = np.arange(2 * slot, 2 * slot + pages_for(len(ids)), dtype=np.int32)
    for end in (*cuts, len(ids)):
        chunk = Chunk(ids[start:end], start, pages, "all", state_slot=slot)
        found.append(engine.forward([chunk])[0].logits)
        start = end
    return np.concatenate(found)


def test_logits_are_those_of_one_process(opened: Opened, split: SplitEngine) -> None:
    """A prompt is cut into micro-batches, so a stage goes on from the state that the one before left."""
    one = opened.engine()
    assert split.state_slots == one.state_slots == 12
    assert split.memory.states == one.memory.states > 0
    expected = whole_and_cut(one, 0)
    for slot, cuts in ((0, ()), (1, (1, 2, 33)), (2, (59,)), (11, (31,))):
        assert np.array_equal(whole_and_cut(split, slot, *cuts), expected), cuts
    batch = [
        Chunk(IDS[i : i + 1 + 9 * i], 0, np.array([8 + 2 * i, 9 + 2 * i], np.int32), state_slot=11 - i)
        for i in range(5)
    ]
    keep = [n for n in one.graph.by_name if n.startswith(("cache_s_", "cache_r_"))] + ["l_out-0", "result_output"]
    assert len(keep) > 6
    for names in ((), tuple(keep)):
        for a, b in zip(one.forward(batch, names), split.forward(batch, names), strict=True):
            assert np.array_equal(a.logits, b.logits)
            assert list(b.nodes) == list(names) and all(np.array_equal(a.nodes[n], b.nodes[n]) for n in names)


def test_copied_states(opened: Opened, split: SplitEngine) -> None:
    """A copy goes on like the state that it was made of, and a later step of one does not change the other."""
    pages, expected = np.arange(2, dtype=np.int32), whole_and_cut(opened.engine(), 0)
    split.forward([Chunk(IDS[:40], 0, pages, state_slot=3)])
    split.copy_state(3, 7)
    split.forward([Chunk(IDS[70:75], 40, pages, state_slot=3)])
    found = split.forward([Chunk(IDS[40:60], 40, pages, "all", state_slot=7)])[0].logits
    assert np.array_equal(found, expected[40:])
    with pytest.raises(AssayError, match=r"cannot be cut or shifted .found a start of 45, expected 60"):
        split.forward([Chunk(IDS[:1], 45, pages, state_slot=7)])


def test_a_stage_dies_in_mid_stream(opened: Opened, split: SplitEngine) -> None:
    """Each stage once, in a stream with a reused prefix: the same tokens and log-probabilities."""
    lively = SamplerParams(temp=1.2, seed=3)
    prompt = [int(i) for i in IDS[:70]]

    def streams(engine: Any, deaths: dict[int, int]) -> list[Any]:
        generator, found = Generator(engine, opened.tokenizer, n_ctx=opened.n_ctx), []
        for ids in (prompt, [*prompt, 5, 6]):  # the second one goes on from a snapshot at 64
            generation = generator.generate(ids, lively, max_tokens=24, logprobs=2, ignore_eos=True)
            for i, _ in enumerate(generation):
                if len(found) and i in deaths:
                    split.stages[deaths[i]][2].kill()
            found.append(generation.result.logprobs)
        return found

    expected = streams(opened.engine(), {})
    assert streams(split, {}) == expected
    before = [handle for _, _, handle in split.stages]
    assert streams(split, {3: 0, 11: 1, 19: 2}) == expected
    assert all(old is not new for old, (_, _, new) in zip(before, split.stages, strict=True))


def test_a_dead_stage_loses_every_state(split: SplitEngine) -> None:
    """A sequence cannot go on after the loss: the head refuses it before any stage computes."""
    pages = np.arange(2, dtype=np.int32)
    split.forward([Chunk(IDS[:5], 0, pages, state_slot=1)])
    split.stages[1][2].kill()
    with pytest.raises(CacheLost, match="1 stages were started again"):
        split.forward([Chunk(IDS[5:6], 5, pages, state_slot=1)])
    with pytest.raises(AssayError, match="found a start of 5, expected 0"):
        split.forward([Chunk(IDS[5:6], 5, pages, state_slot=1)])


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_state(name: str, tmp_path: Path) -> None:
    """Stages as threads, which costs less: whole, cut, and greedy tokens of three sequences at once."""
    others.make(name, tmp_path / "m.gguf")
    opened = opened_at(tmp_path / "m.gguf", ctx_size=128, state_slots=8)
    one, split = opened.engine(), split_of(opened, 2, Threads())
    try:
        expected = whole_and_cut(one, 0)
        for slot, cuts in ((0, ()), (1, (1, 33))):
            assert np.array_equal(whole_and_cut(split, slot, *cuts), expected)
        found = []
        for engine in (one, split):
            generator = Generator(engine, opened.tokenizer, n_ctx=opened.n_ctx)
            generations = [
                generator.generate([int(i) for i in IDS[at : at + 40]], GREEDY, max_tokens=6, ignore_eos=True)
                for at in (0, 9, 0)
            ]
            found.append([[event.text for event in generation] for generation in generations])
        assert found[0] == found[1]
    finally:
        split.close()


def test_a_failed_step_loses_the_states_of_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second stage fails after the first has changed its states: these sequences are refused, others go on."""
    opened = opened_at(GOLDEN, state_slots=8)
    launcher = Threads()
    split = split_of(opened, 2, launcher)
    try:
        pages = np.arange(4, dtype=np.int32)
        both = [Chunk(IDS[:20], 0, pages[:2], state_slot=0), Chunk(IDS[:20], 0, pages[2:], state_slot=1)]
        split.forward(both)
        second: Any = launcher.started[1].service
        inner = second.engine.forward

        def fail(*_: Any) -> Any:
            raise AssayError("no memory")

        second.engine.forward = fail
        with pytest.raises(AssayError, match="no memory"):
            split.forward([Chunk(IDS[20:21], 20, pages[:2], state_slot=0)])
        second.engine.forward = inner
        with pytest.raises(AssayError, match="found a start of 20, expected 0"):
            split.forward([Chunk(IDS[20:21], 20, pages[:2], state_slot=0)])
        found = split.forward([Chunk(IDS[20:60], 20, pages[2:], "all", state_slot=1)])[0].logits
        assert np.array_equal(found, whole_and_cut(CpuEngine(opened.model, n_pages=4, threads=1), 0)[20:])
    finally:
        split.close()
