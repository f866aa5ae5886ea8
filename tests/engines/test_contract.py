"""What every engine of the table says of itself and does alike."""

from __future__ import annotations

import numpy as np
import pytest

from assay import _native
from assay.engines import ENGINES, create
from assay.engines.contract import PAGE, Array, Chunk, PagedEngine, pages_for
from assay.engines.plan.batching import in_turns
from assay.engines.plan.cache import KV_TYPES, page_bytes
from assay.gguf import open_file
from assay.models import Model, load
from tests import tiny

IDS = np.random.default_rng(5).integers(3, 300, 40).astype(np.int32)
CHUNKS = [Chunk(IDS, 0, np.arange(2, dtype=np.int32), "all"), Chunk(IDS[:7], 0, np.array([3], np.int32))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(tiny.make(tmp_path_factory.mktemp("contract") / "m.gguf", n_expert=4, n_embd=128)))


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, model: Model) -> PagedEngine:
    return create(request.param, model, n_pages=8)


def test_says_what_it_is(engine: PagedEngine, model: Model) -> None:
    assert engine.name in ENGINES and engine.graph is model.graph and engine.cannot_keep == ()
    logits = engine.forward(CHUNKS)[0].logits
    assert logits.dtype == engine.dtype
    assert engine.arithmetic.precision and engine.arithmetic.kv_type and engine.arithmetic.version > 0
    assert engine.arithmetic == create(engine.name, model, n_pages=2).arithmetic
    assert min(engine.memory.weights, engine.memory.buffers, engine.memory.page) >= 0


def test_handed_over_is_what_is_kept(engine: PagedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little memory: many runs of the same step, each node once, in the order of the graph, same bits."""
    keep = [n.name for n in engine.graph]
    collected = engine.forward(CHUNKS, keep)
    monkeypatch.setattr("assay.engines.plan.batching.MEMORY", 100_000)
    assert len(list(in_turns(engine.graph, keep, CHUNKS))) > 3
    seen: list[tuple[int, str, Array]] = []
    left = engine.forward(CHUNKS, keep[::-1], lambda i, name, value: seen.append((i, name, value)))
    for i, output in enumerate(collected):
        assert list(output.nodes) == keep == [name for at, name, _ in seen if at == i]
        assert all(np.array_equal(value, output.nodes[name]) for at, name, value in seen if at == i)
        assert np.array_equal(left[i].logits, output.logits) and not left[i].nodes


def test_one_page_size() -> None:
    assert PAGE == _native.PAGE
    assert [pages_for(n) for n in (0, 1, PAGE, PAGE + 1)] == [0, 1, 1, 2]


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_bytes_of_a_page_are_known_beforehand(model: Model, kv_type: str) -> None:
    """Heads of 32 need no padding: what is promised is what is taken."""
    assert create("cpu", model, n_pages=1, kv_type=kv_type).memory.page == page_bytes(model.graph, kv_type)


def test_precision_and_cache_are_part_of_the_arithmetic(model: Model) -> None:
    told = {
        create("cpu", model, n_pages=1, **options).arithmetic
        for options in ({}, {"precision": "exact"}, {"kv_type": "q8_0"}, {"kv_type": "f32"})
    }
    told |= {create("reference", model, precision=p).arithmetic for p in ("f64", "f32")}
    assert len(told) == 6
