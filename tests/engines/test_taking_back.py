"""Drafted tokens are taken back from a state: the sequence goes on with the bits that it has without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from assay.engines.contract import Chunk, PagedEngine
from assay.engines.cpu import CpuEngine
from assay.engines.cuda import CudaEngine
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from tests.engines import on_cuda
from tests.engines.test_recurrent import ISAS, cpu, prompt, sequence
from tests.models import recurrent

# One of each kind of state: a window alone, delta rule, scans, KDA, both at once, token shift.
KINDS = ("lfm2", "qwen35", "mamba2", "falcon-h1", "kimi-linear", "mamba", "rwkv6", "rwkv7")


def cuda(calls: recurrent.Calls, **options: Any) -> PagedEngine:
    return CudaEngine(calls.model, device=on_cuda.device(), **{"precision": "exact", "n_pages": 16, **options})


def reference(calls: recurrent.Calls) -> PagedEngine:
    return ReferenceEngine(calls.model, n_pages=16)


def check_every_length(calls: recurrent.Calls, engine: PagedEngine) -> None:
    """Four tokens drafted after seven, of which each number is taken back: rows before and after are as without."""
    ids, other = prompt(calls, 20), prompt(calls, 16)[4:]
    plain = [*engine.forward([sequence(ids[:6], 0, 0)])[0].logits]
    plain += [engine.forward([sequence(ids[: at + 1], at, 0)])[0].logits[0] for at in range(6, len(ids))]
    beside = engine.forward([sequence(other, 0, 0)])[0].logits
    for kept in range(5):
        engine.forward([sequence(ids[:6], 0, 1)])
        wrong = np.concatenate([ids[: 7 + kept], (ids[7 + kept : 11] + 1) % calls.model.hparams.n_vocab])
        found = engine.forward([sequence(wrong, 6, 1, drafted=4), sequence(other, 0, 2)])
        assert np.array_equal(found[0].logits[: 1 + kept], plain[6 : 7 + kept])
        assert np.array_equal(found[1].logits, beside), "a drafting sequence has changed another one"
        engine.cut_state(1, 7 + kept)
        for at in range(7 + kept, len(ids)):
            assert np.array_equal(engine.forward([sequence(ids[: at + 1], at, 1)])[0].logits[0], plain[at]), at


@pytest.mark.parametrize("name", KINDS)
def test_cpu(name: str) -> None:
    calls = recurrent.calls(name)
    for isa in ISAS:
        check_every_length(calls, cpu(calls, isa=isa, precision="fast"))


@pytest.mark.parametrize("name", KINDS)
def test_cuda(name: str) -> None:
    calls = recurrent.calls(name)
    engine = cuda(calls)
    try:
        check_every_length(calls, engine)
    finally:
        engine.close()


@pytest.mark.parametrize("name", ["qwen35", "rwkv6"])
def test_reference(name: str) -> None:
    calls = recurrent.calls(name)
    check_every_length(calls, reference(calls))


@pytest.mark.parametrize("make", [cpu, cuda, reference])
def test_states_between_drafted_tokens_can_be_copied_and_shown(make: Callable[[recurrent.Calls], PagedEngine]) -> None:
    """A copy of the state after the second token goes on there, while the sequence goes on with all of them."""
    calls = recurrent.calls("qwen35")
    ids, engine = prompt(calls, 12), make(calls)
    shown = [node.name for node in calls.model.graph if node.op in ("state_before", "state_after")]
    plain = engine.forward([sequence(ids, 0, 0)], shown)[0]
    engine.forward([sequence(ids[:5], 0, 1)])
    before = engine.forward([sequence(ids[:5], 0, 2)], shown)[0]
    found = engine.forward([sequence(ids[:9], 5, 1, drafted=3)], shown)[0]
    assert all(
        np.array_equal(found.nodes[n], before.nodes[n.replace("_before-", "_l")]) for n in shown if "before" in n
    )
    engine.copy_state(1, 3, 7)
    assert engine.copy_page
    engine.copy_page(3, 9)
    engine.copy_page(4, 10)
    for slot, start in ((3, 7), (1, 9)):
        rest = engine.forward([sequence(ids, start, slot)], shown)[0]
        assert np.allclose(rest.logits, plain.logits[start:])
        assert all(np.allclose(rest.nodes[n], plain.nodes[n]) for n in shown if "before" not in n)
    engine.close()


@pytest.mark.parametrize("make", [cpu, cuda, reference])
def test_what_was_not_kept_is_refused(make: Callable[..., PagedEngine]) -> None:
    calls = recurrent.calls("mamba2")
    ids, engine = prompt(calls, 12), make(calls)
    with pytest.raises(AssayError, match=r"begins with a certain token .found 3 drafted of 3"):
        engine.forward([sequence(ids[:3], 0, 0, drafted=3)])
    engine.forward([sequence(ids[:9], 0, 0, drafted=2)])
    for length in (6, 10):
        with pytest.raises(AssayError, match=f"no state after {length} tokens is kept"):
            engine.cut_state(0, length)
    engine.cut_state(0, 8)
    engine.cut_state(0, 7)  # again, further
    engine.forward([sequence(ids[:10], 7, 0)])
    with pytest.raises(AssayError, match="no state after 8 tokens is kept"):  # only until the next step
        engine.cut_state(0, 8)
    engine.close()


@pytest.mark.parametrize("make", [cpu, cuda])
def test_spare_states_come_back(make: Callable[..., PagedEngine]) -> None:
    """Many steps with drafts, some of which fail, in an engine with few slots; a batch that needs more is refused."""
    calls = recurrent.calls("lfm2")
    ids, engine = prompt(calls, 30), make(calls, state_slots=4)
    assert engine.spare_states == 4
    engine.forward([sequence(ids[:6], 0, 0)])
    plain = engine.forward([sequence(ids, 0, 1)])[0].logits
    for _ in range(20):
        with pytest.raises(AssayError, match=r"too few for the drafted tokens .*found 4 spare states, expected 5"):
            engine.forward([sequence(ids[:11], 6, 0, drafted=4)])
        engine.forward([sequence(ids[:10], 6, 0, drafted=3)])
        engine.copy_state(0, 2, 8)
        engine.cut_state(0, 7)
        engine.copy_state(0, 3)
        engine.forward([sequence(ids[:6], 0, 0)])
    found = engine.forward([sequence(ids, 6, 0)])[0].logits
    assert np.array_equal(found, plain[6:])
    engine.close()


def test_a_batch_of_several_passes() -> None:
    """More tokens than the engine computes in one pass: sequences and their drafts are cut between passes."""
    calls = recurrent.calls("qwen35")
    engine = CpuEngine(calls.model, precision="exact", threads=1, n_pages=24 * 3)
    ids = prompt(calls, 62)
    plain = engine.forward([sequence(ids, 0, 0, outputs="all")])[0].logits
    chunks = [
        Chunk(ids[:60], 0, np.arange(2 * i, 2 * i + 2, dtype=np.int32), "all", state_slot=i, drafted=5 + i % 2)
        for i in range(18)
    ]
    for output in engine.forward(chunks):
        assert np.array_equal(output.logits, plain[:60])
    for i in range(18):
        engine.cut_state(i, 55 + i % 6)
    for i in range(18):
        further = Chunk(ids[55 + i % 6 :], 55 + i % 6, chunks[i].pages, "all", state_slot=i)
        assert np.array_equal(engine.forward([further])[0].logits, plain[55 + i % 6 :])
