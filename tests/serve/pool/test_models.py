"""The models in memory: what each is expected to need, in the type its cache really has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from assay.errors import AssayError
from assay.runtime.opening import OpenOptions
from assay.runtime.sequence_errors import GrammarError
from assay.serve.api_errors import ApiError
from assay.serve.limits import ServerLimits
from assay.serve.pool.meter import Metrics
from assay.serve.pool.models import LocalWorker, ModelPool, ServedModel
from tests.tiny import make


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("pool") / "tiny.gguf", n_ctx=512, n_head=2)  # heads wide enough for q8_0


@pytest.mark.parametrize("options", [{}, {"kv_type": "f32"}, {"kv_type": "q8_0"}, {"precision": "exact"}])
def test_what_is_expected_is_what_the_engine_takes(path: Path, options: dict[str, str]) -> None:
    entry = ServedModel("tiny", path, OpenOptions(**options), ServerLimits())
    expected = entry.bytes

    async def page() -> int:
        here = await entry.load(ServerLimits(), Metrics(CollectorRegistry()))
        assert isinstance(here, LocalWorker)
        await here.end(ApiError("shutting_down", "the test is over"))
        return here._worker.scheduler.engine.memory.page

    page_bytes = asyncio.run(page())
    weights = sum(t.nbytes for t in entry.file.tensors.values())
    assert entry.bytes == weights + entry.n_pages * page_bytes
    assert expected == pytest.approx(entry.bytes, rel=0.02)


def test_a_wider_cache_needs_more(path: Path) -> None:
    def cache(**options: str) -> int:
        entry = ServedModel("tiny", path, OpenOptions(**options), ServerLimits())
        return entry.bytes - sum(t.nbytes for t in entry.file.tensors.values())

    assert cache(kv_type="f32") == pytest.approx(2 * cache(), rel=0.02)
    assert cache(precision="exact") == cache(kv_type="f32")
    assert cache(engine="reference") == pytest.approx(4 * cache(), rel=0.02)
    assert cache(kv_type="q8_0") == pytest.approx(8.5 / 16 * cache(), rel=0.02)


def test_a_budget_that_halves_would_fit_is_refused_to_floats(path: Path) -> None:
    metrics = Metrics(CollectorRegistry())
    halves, floats = (ServedModel("tiny", path, OpenOptions(kv_type=kind), ServerLimits()) for kind in ("f16", "f32"))
    between = (halves.bytes + floats.bytes) // 2
    ModelPool([halves], ServerLimits(), metrics, between)
    with pytest.raises(AssayError, match="more than the memory for models"):
        ModelPool([floats], ServerLimits(), metrics, between)


def test_a_server_bounds_grammars(path: Path) -> None:
    entry = ServedModel("tiny", path, OpenOptions(), ServerLimits(schema=100))
    with pytest.raises(GrammarError, match="too long"):
        entry.grammars.schema({"enum": ["x" * 100]})
