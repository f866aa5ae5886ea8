"""The cuda engine on models with a state: the cpu engine's bits at every node, in every kind of step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from assay.engines.contract import Chunk
from assay.engines.cpu import CpuEngine
from assay.engines.cuda import CudaEngine
from tests.engines import on_cuda
from tests.engines.test_recurrent import prompt, sequence
from tests.models import recurrent


@contextmanager
def engines(calls: recurrent.Calls, **options: Any) -> Iterator[tuple[CpuEngine, CudaEngine]]:
    options = {"n_pages": 16, **options}
    cuda = CudaEngine(calls.model, device=on_cuda.device(), **options)
    try:
        yield CpuEngine(calls.model, threads=1, **options), cuda
    finally:
        cuda.close()


@pytest.mark.parametrize("precision", ["fast", "exact"])
@pytest.mark.parametrize("name", recurrent.NAMES)
def test_every_node_has_the_cpu_engines_bits(name: str, precision: str) -> None:
    """A prompt with every node kept, states among them; the same without a trace; then token by token."""
    calls = recurrent.calls(name)
    graph, ids = calls.model.graph, prompt(calls, 11)
    with engines(calls, precision=precision) as (cpu, cuda):
        nodes = [node.name for node in graph]
        expected = cpu.forward([sequence(ids, 0, 0)], nodes)[0]
        found = cuda.forward([sequence(ids, 0, 0)], nodes)[0]
        assert not [n for n in nodes if not np.array_equal(found.nodes[n], expected.nodes[n], equal_nan=True)]
        assert np.array_equal(cuda.forward([sequence(ids, 0, 1)])[0].logits, expected.logits)
        if graph.whole:
            return
        cuda.forward([sequence(ids[:4], 0, 2)])
        for at in range(4, len(ids)):
            found = cuda.forward([sequence(ids[: at + 1], at, 2)])[0]
            assert np.array_equal(found.logits, expected.logits[at : at + 1]), at


def greedy(cpu: CpuEngine, ids: np.ndarray, slot: int, count: int) -> list[int]:
    """The tokens that follow, one forward pass each."""
    logits = cpu.forward([sequence(ids, 0, slot, outputs="last")])[0].logits
    found: list[int] = []
    for _ in range(count):
        found.append(int(np.argmax(logits[-1])))
        ids = np.append(ids, np.int32(found[-1]))
        logits = cpu.forward([sequence(ids, len(ids) - 1, slot, outputs="last")])[0].logits
    return found


@pytest.mark.parametrize("name", ["lfm2", "qwen35", "mamba", "rwkv7"])
def test_decode_runs_carry_the_state(name: str) -> None:
    """Several steps on the device without the host between them; then the sequences go on from the last state."""
    calls = recurrent.calls(name)
    texts = [prompt(calls, 9), prompt(calls, 14)[5:]]
    with engines(calls) as (cpu, cuda):
        follow = [greedy(cpu, ids, slot, 6) for slot, ids in enumerate(texts)]
        for slot, ids in enumerate(texts):
            cuda.forward([sequence(ids, 0, slot)])
        first = [np.append(ids, np.int32(tokens[0])) for ids, tokens in zip(texts, follow, strict=True)]
        batch = [
            Chunk(ids[-1:], len(ids) - 1, np.arange(3 * slot, 3 * slot + 3, dtype=np.int32), state_slot=slot)
            for slot, ids in enumerate(first)
        ]
        assert cuda.decode_runner is not None
        run = cuda.decode_runner.start(batch, [3, 3], 2)
        for slot in range(2):
            assert [int(run.results[slot][i].ids[0]) for i in range(4)] == follow[slot][1:5]
        for slot, ids in enumerate(texts):
            whole = np.append(ids, np.array(follow[slot][:5], np.int32))
            found = cuda.forward([sequence(whole, len(whole) - 1, slot)])[0].logits
            assert int(np.argmax(found[-1])) == follow[slot][5]


def test_copies_batches_and_failures() -> None:
    calls = recurrent.calls("qwen35")
    ids = prompt(calls, 20)
    with engines(calls) as (cpu, cuda):
        whole = cpu.forward([sequence(ids, 0, 0)])[0].logits
        cuda.forward([sequence(ids[:12], 0, 0), sequence(ids[:5], 0, 2)])
        cuda.copy_state(0, 1)
        cuda.copy_page(0, 3)

        def fail(_chunk: int, _name: str, _value: object) -> None:
            raise RuntimeError("no room")

        with pytest.raises(RuntimeError, match="no room"):
            cuda.forward([sequence(ids, 12, 1)], ["l_out-0"], fail)
        batch = [sequence(ids, 12, 0), sequence(ids, 5, 2), sequence(ids, 12, 1)]
        found = [output.logits for output in cuda.forward(batch)]
        for logits, start in zip(found, (12, 5, 12), strict=True):
            assert np.array_equal(logits, whole[start:])
