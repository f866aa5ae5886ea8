"""The passes of the cuda compiler without kernels: places in memory, tables of lowerings, launches that move with it.

The device here computes nothing, so that a program is compiled in milliseconds.
"""

from __future__ import annotations

import bisect
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.engines.contract import Chunk
from assay.engines.cuda import CudaEngine
from assay.engines.cuda.chain_maps import chain_maps
from assay.engines.cuda.device_values import Value
from assay.engines.cuda.lower import LOWERINGS
from assay.engines.cuda.lower_walk import WALK_LOWERINGS
from assay.engines.cuda.place import place
from assay.engines.cuda.step_list import Schedule
from assay.engines.cuda.steps import KernelStep, Map, NormRows, RowSums, Scan, TakeOutputRows, Work
from assay.engines.cuda.walk import NoWalk, WalkNeeds, WalkRun
from assay.engines.plan.batching import External
from tests.engines import bits
from tests.engines.on_cuda import pages

IDS = np.arange(3, 60, dtype=np.int32)
WORK = TakeOutputRows(Value(1), Value(1), 1)  # of steps whose places alone are looked at


class Recorder:
    """A device that hands out addresses from `start` on and runs nothing."""

    name, multiprocessors, shared_bytes, together = "recorder", 7, 227 << 10, True

    def __init__(self, start: int, gap: int) -> None:
        self.next, self.gap = start, gap
        self.begins: list[int] = []
        self.contents: dict[int, bytes] = {}

    def memory(self) -> tuple[int, int]:
        return 1 << 33, 1 << 33

    def alloc(self, size: int, what: str) -> int:
        self.begins.append(self.next)
        self.next += -(-size // 256) * 256 + self.gap
        return self.begins[-1]

    def upload(self, at: int, data: np.ndarray) -> None:
        self.contents[at] = data.tobytes()

    def pinned(self, size: int) -> np.ndarray:
        return np.zeros(size, np.uint8)

    def download(self, data: np.ndarray, at: int) -> None:
        data[...] = 0

    def capture(self, record: Any) -> Any:
        return Replay()

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: None

    def moved(self, data: bytes) -> list[Any]:
        """The bytes with each address as (number of its allocation, offset); tables of steps likewise."""
        words = np.frombuffer(data[: len(data) // 8 * 8], np.uint64).tolist()
        return [self._moved(w) if self.begins[0] <= w < self.next else w for w in words]

    def _moved(self, word: int) -> Any:
        i = bisect.bisect_right(self.begins, word) - 1
        content = self.contents.get(self.begins[i], b"")
        return i, word - self.begins[i], self.moved(content) if content and content != bytes(len(content)) else ()


class Replay:
    def __call__(self) -> None: ...
    def close(self) -> None: ...


def launches(model: Any, start: int, gap: int, precision: str) -> list[Any]:
    gpu: Any = Recorder(start, gap)
    engine, found = CudaEngine(model, n_pages=16, device=gpu, precision=precision), []
    one, two = Chunk(IDS[:1], 0, pages(0, 1)), Chunk(IDS[:1], 3, pages(2, 4))
    for batch in ([one], [one, two], [Chunk(IDS[:40], 0, pages(0, 40), "all")]):
        engine.forward(batch)
        program = next(reversed(engine._programs.values()))
        assert all(0 <= offset <= program.arena for _, offset in program.results)
        found.append([(n.kernel, n.grid, n.threads, n.shared, gpu.moved(bytes(n.args))) for n in program.launches])
        engine._forget_programs()
    return found


@pytest.mark.parametrize("precision", ["fast", "exact", "tensor"])
@pytest.mark.parametrize("name", ["arch llama", "arch gemma3", "arch deepseek2"])
def test_launches_depend_on_addresses_only(tmp_path: Path, name: str, precision: str) -> None:
    """Other addresses give the same launches with other addresses: nothing else of a program is left to chance."""
    model = bits.make(bits.CASES[name], tmp_path / "model.gguf")
    first, second = (launches(model, start, gap, precision) for start, gap in ((0x7F << 40, 256), (0x7E << 40, 4096)))
    assert first == second
    if (name, precision) == ("arch llama", "fast"):
        assert all(any(kernel.startswith("walk") for kernel, *_ in program) for program in first[:2])


def test_every_kind_of_work_has_one_lowering() -> None:
    assert {*LOWERINGS} | {*WALK_LOWERINGS} == {*get_args(Work)}
    assert {*LOWERINGS} & {*WALK_LOWERINGS} == {NormRows, RowSums, Scan}  # maps of a walk are chains


def test_operations_that_only_the_next_one_reads_are_one_step() -> None:
    """a -> b -> c -> d -> e: three at a time; a value that is read twice, or is a result, ends a chain."""

    def maps(op: str, kept: int = -1, twice: int = -1) -> list[list[str]]:
        values = [Value(4) for _ in range(6)]
        pairs = [*pairwise(values), *([(values[twice], Value(4))] if twice >= 0 else [])]
        steps = [
            KernelStep(str(i), Map(op, x, x, y, 1, 1, 1, 1), (x,), (y,), WalkNeeds()) for i, (x, y) in enumerate(pairs)
        ]
        results = ((External("", "tokens", 1), values[kept]),) if kept >= 0 else ()
        chained = chain_maps(Schedule(tuple(steps), results, {})).steps
        names = {y: str(i) for i, (_, y) in enumerate(pairs)}
        assert [step.reads for step in chained] == [(step.work.maps[0].x,) for step in chained]
        return [[names[m.out] for m in step.work.maps] for step in chained]

    assert maps("exp") == [["0", "1", "2"], ["3", "4"]]
    assert maps("slice") == [["0"], ["1"], ["2"], ["3"], ["4"]]
    assert maps("exp", kept=2) == [["0", "1"], ["2", "3", "4"]]
    assert maps("exp", twice=1) == [["0"], ["1", "2", "3"], ["4"], ["5"]]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_values_that_are_live_together_lie_apart(data: st.DataObject) -> None:
    """Results and resident values keep their bytes to the end; no other value uses the memory of a walk before it."""
    values: list[Value] = []
    steps = []
    for _ in range(data.draw(st.integers(1, 12))):
        reads = data.draw(st.lists(st.sampled_from(values), max_size=2, unique=True)) if values else []
        written = [Value(data.draw(st.integers(1, 1000)), resident=data.draw(st.booleans())) for _ in range(2)]
        steps.append(KernelStep("", WORK, tuple(reads), tuple(written)))
        values += written
    results = [v for v in values if data.draw(st.integers(0, 4)) == 0]
    begin = data.draw(st.integers(0, len(steps) - 1))
    run = WalkRun(begin, data.draw(st.integers(begin + 1, len(steps))), WalkNeeds())
    walks = [run] if data.draw(st.booleans()) else []
    external = tuple((External(str(i), "tokens", 1), v) for i, v in enumerate(results))
    try:
        found = place(Schedule(tuple(steps), external, {}), walks)
    except NoWalk:
        assert walks and any(v in results or v.resident for v in values)
        return
    uses = {v: [i for i, s in enumerate(steps) if v in s.values] for v in values}

    def life(v: Value) -> range:
        stays = v in results or v.resident
        begins, ends = (0 if v.resident else uses[v][0]), (len(steps) if stays else uses[v][-1])
        for walk in walks:  # all steps of a walk run at the same time
            if any(walk.begin <= i < walk.end for i in uses[v]):
                begins, ends = min(begins, walk.begin), max(ends, walk.end - 1)
        return range(0 if v in found.inside else begins, ends + 1)

    for i, a in enumerate(values):
        at, size = found.offsets[a], found.sizes[a]
        assert size >= a.size and at + size <= found.size and at % 256 == 0
        for b in values[:i]:
            together = max(life(a)[0], life(b)[0]) <= min(life(a)[-1], life(b)[-1])
            assert not together or at + size <= found.offsets[b] or found.offsets[b] + found.sizes[b] <= at
    for v in found.inside:
        memory = found.cleared[0]
        begins = found.offsets[memory]
        assert begins <= found.offsets[v] and found.offsets[v] + found.sizes[v] <= begins + found.sizes[memory]
