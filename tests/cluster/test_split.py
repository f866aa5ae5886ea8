"""Layers in processes of their own: the bits of one machine, and a dead stage built again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.cluster.launchers import LocalLauncher
from assay.cluster.split import SplitEngine, _balanced, cuts, micro_batches
from assay.engines.contract import CacheLost, Chunk, pages_for
from assay.errors import AssayError
from assay.runtime.generate import Generator
from assay.runtime.opening import Opened, OpenOptions, open_model
from assay.runtime.params import SamplerParams
from tests.cluster.harness import Threads, fleet_of, spec_of
from tests.tiny import make

IDS = np.random.default_rng(5).integers(3, 300, 60).astype(np.int32)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    path = make(tmp_path_factory.mktemp("split") / "m.gguf", type="Q8_0", n_layer=4, bias=True, n_ctx=256)
    return open_model(path, OpenOptions(engine="cpu", threads=1, cache_size=1024))


@pytest.fixture(scope="module")
def split(opened: Opened) -> Iterator[SplitEngine]:
    spec = spec_of(opened.file.path) | {"split": 3, "token": "secret"}
    engine = SplitEngine(opened, spec, LocalLauncher())
    yield engine
    engine.close()


def test_logits_are_those_of_one_process(opened: Opened, split: SplitEngine) -> None:
    one = opened.engine()
    assert one.arithmetic == split.arithmetic
    pages = np.arange(pages_for(len(IDS)), dtype=np.int32)
    for size in (len(IDS), 17, 1):
        for at in range(0, len(IDS), size) if size > 1 else range(3):
            chunk = Chunk(IDS[at : at + size], at, pages, "all")
            a, b = one.forward([chunk])[0].logits, split.forward([chunk])[0].logits
            assert a.dtype == b.dtype and np.array_equal(a, b), (size, at)
    batch = [Chunk(IDS[i : i + 1 + 9 * i], 0, np.array([8 + 2 * i, 9 + 2 * i], np.int32)) for i in range(5)]
    keep = ("l_out-0", "kqv_out-2", "result_norm", "result_output")
    for names in ((), keep):
        for a, b in zip(one.forward(batch, names), split.forward(batch, names), strict=True):
            assert np.array_equal(a.logits, b.logits)
            assert list(b.nodes) == list(names) and all(np.array_equal(a.nodes[n], b.nodes[n]) for n in names)


def test_a_stage_dies_in_mid_stream(opened: Opened, split: SplitEngine) -> None:
    """At three places of a stream, each stage once: the same tokens and log-probabilities."""
    prompt, lively = opened.tokenizer.encode("hello the world"), SamplerParams(temp=1.2, seed=3)

    def stream(engine: Any, deaths: dict[int, int]) -> tuple[list[Any], str]:
        generation = Generator(engine, opened.tokenizer, n_ctx=opened.n_ctx).generate(
            prompt, lively, max_tokens=40, logprobs=2, ignore_eos=True
        )
        for i, _ in enumerate(generation):
            if i in deaths:
                split.stages[deaths[i]][2].kill()
        return generation.result.logprobs or [], generation.result.text

    expected = stream(opened.engine(), {})
    assert stream(split, {}) == expected
    before = [handle for _, _, handle in split.stages]
    assert stream(split, {5: 0, 17: 1, 30: 2}) == expected
    assert all(old is not new for old, (_, _, new) in zip(before, split.stages, strict=True))


def test_a_stage_says_that_the_cache_is_lost(opened: Opened, split: SplitEngine) -> None:
    split.stages[1][2].kill()
    with pytest.raises(CacheLost, match="1 stages were started again"):
        split.forward([Chunk(IDS[:3], 0, np.array([0], np.int32))])


def test_an_unexpected_error_of_a_stage_reaches_the_head(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stage answers the head, although its work comes from the stage before."""
    threads = Threads()
    split = SplitEngine(opened, spec_of(opened.file.path) | {"split": 2, "token": "secret"}, threads)
    chunk = Chunk(IDS[:3], 0, np.array([0], np.int32))
    found: list[Any] = []

    def compute(*given: Any) -> Any:
        raise TypeError("rows are read-only")

    def forward() -> None:
        try:
            found.append(split.forward([chunk])[0].logits)
        except AssayError as error:
            found.append(str(error))

    def one() -> Any:
        thread = threading.Thread(target=forward, daemon=True)  # it may never end
        thread.start()
        thread.join(30)
        return found.pop() if found else None

    right = one()
    with monkeypatch.context() as planted:
        planted.setattr(threads.started[1].service, "_compute", compute)
        assert "TypeError: rows are read-only" in str(one())
    assert np.array_equal(one(), right)
    split.close()


@pytest.mark.slow
def test_a_replica_in_stages(opened: Opened) -> None:
    """Behind the router a replica in stages is like any other: streams move between it and a whole one."""

    async def main() -> None:
        async with fleet_of(opened.file.path, LocalLauncher(), n=1, spec={"split": 2}) as fleet:
            fleet.spec = {**fleet.spec, "split": 0}
            fleet.add_replica()
            while len(fleet.up) < 2:
                await asyncio.sleep(0.05)
            a, b = fleet.up
            assert {a.hello["engine"], b.hello["engine"]} == {"split", "cpu"} and a.fingerprint == b.fingerprint

    asyncio.run(main())


def test_cuts(opened: Opened) -> None:
    assert cuts(opened.model, 2) in ([0, 2, 4], [0, 1, 4], [0, 3, 4])
    assert cuts(opened.model, 4) == [0, 1, 2, 3, 4]
    assert cuts(opened.model, str(1 << 40)) == [0, 4]
    with pytest.raises(AssayError, match="must be 1 to 4"):
        cuts(opened.model, 5)
    with pytest.raises(AssayError, match="a single layer takes"):
        cuts(opened.model, "10")


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.data())
def test_the_largest_part_is_as_small_as_it_can_be(sizes: list[int], data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(sizes)))
    found = _balanced(sizes, n)
    assert found[0] == 0 and found[-1] == len(sizes) and len(found) == n + 1 and found == sorted(set(found))

    def least(start: int, parts: int) -> int:
        if parts == 1:
            return sum(sizes[start:])
        ends = range(start + 1, len(sizes) - parts + 2)
        return min(max(sum(sizes[start:end]), least(end, parts - 1)) for end in ends)

    assert max(sum(sizes[a:b]) for a, b in pairwise(found)) == least(0, n)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=6), st.integers(1, 4), st.booleans())
def test_micro_batches_are_the_batch(lengths: list[int], n: int, cut: bool) -> None:
    """Every token once and in order, no sequence twice in a piece, and the rows that were asked for."""
    pages = np.arange(4, dtype=np.int32)
    batch = [Chunk(np.arange(k, dtype=np.int32), 7, pages, "last") for k in lengths]
    groups = micro_batches(batch, n, cut=cut)
    for i, chunk in enumerate(batch):
        mine = [c for group in groups for place, c in group if place == i]
        assert np.array_equal(np.concatenate([c.tokens for c in mine]), chunk.tokens)
        assert [c.start for c in mine] == [7 + sum(len(c.tokens) for c in mine[:k]) for k in range(len(mine))]
        assert [c.outputs for c in mine] == ["none"] * (len(mine) - 1) + ["last"]
    assert all(len({place for place, _ in group}) == len(group) for group in groups)


def test_an_impossible_split_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "m.gguf", n_layer=2)
    opened = open_model(path, OpenOptions(engine="cpu", threads=1))
    with pytest.raises(AssayError, match="--split"):
        SplitEngine(opened, spec_of(path) | {"split": 3, "token": "t"}, LocalLauncher())
