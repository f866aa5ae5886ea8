"""The contract of an engine: its rules on every engine here and on a skeleton, and facts about the table's engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay import _native
from assay.engines import ENGINES, contract_tests, create, default_kv_type, engine_class
from assay.engines.contract import PAGE, Array, Chunk, Output, PagedEngine, pages_for
from assay.engines.cuda import CudaEngine
from assay.engines.plan.batching import in_turns
from assay.engines.plan.state_layout import KV_TYPES, page_bytes
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from assay.runtime.generate import Generator
from assay.runtime.opening import Opened, OpenOptions
from assay.runtime.params import GREEDY
from tests import tiny

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin-engine" / "assay_example_engine.py"


def example_engine() -> type[Any]:
    """The engine of the example package: the contract's rules and no capability."""
    spec = spec_from_file_location("assay_example_engine", EXAMPLE)
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found: type[Any] = module.SkeletonEngine
    return found


Skeleton = example_engine()


def make_cuda(model: Model, n_pages: int) -> PagedEngine:
    from tests.engines.on_cuda import device  # skips the test if the shim cannot be compiled

    return CudaEngine(model, device=device(), n_pages=n_pages)


def make_wgpu(model: Model, n_pages: int) -> PagedEngine:
    if "wgpu" not in ENGINES:
        pytest.skip("wgpu or a Vulkan driver is not installed")
    return create("wgpu", model, n_pages=n_pages)


MAKERS: dict[str, Callable[..., PagedEngine]] = {
    "skeleton": Skeleton,
    "cuda": make_cuda,
    "wgpu": make_wgpu,
    **{name: partial(create, name) for name in ("reference", "cpu")},
}


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return contract_tests.example_model(tmp_path_factory.mktemp("contract") / "example.gguf")


def marked(names: Iterable[str]) -> list[Any]:
    """Names as parameters. On a GPU in software the wgpu engine is slow."""
    return [pytest.param(name, marks=pytest.mark.slow) if name == "wgpu" else name for name in names]


@pytest.mark.parametrize("rule", contract_tests.RULES)
@pytest.mark.parametrize("name", marked(MAKERS))
def test_the_contract(name: str, rule: str, example: Model) -> None:
    contract_tests.RULES[rule](partial(MAKERS[name], example))


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("computes_the_graph", lambda o: Output(1.2 * o.logits, o.nodes)),
        ("returns_the_requested_rows", lambda o: Output(o.logits[-1:], o.nodes)),
        ("keeps_nodes", lambda o: Output(o.logits, dict(list(o.nodes.items())[1:]))),
    ],
)
def test_the_contracts_tests_find_broken_engines(
    rule: str, broken: Callable[[Output], Output], example: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Skeleton._chunk
    monkeypatch.setattr(Skeleton, "_chunk", lambda *args: broken(whole(*args)))
    with pytest.raises(AssertionError):
        contract_tests.RULES[rule](partial(Skeleton, example))


def test_a_skeleton_generates_the_references_text(model: Model) -> None:
    """The scheduler needs no capability: pages are shared whole, and every row of logits is read."""
    tokenizer = Opened(model.file, OpenOptions(engine="reference")).tokenizer
    texts = []
    for engine in (Skeleton(model, 8), create("reference", model, n_pages=8)):
        generator = Generator(engine, tokenizer)
        texts.append(
            [g.result.ids for g in generator.together(generator.generate([5 + i, 9], GREEDY, max_tokens=6)
             for i in range(3))]
        )  # fmt: skip
    assert texts[0] == texts[1]


def test_engines_state_their_modes_and_windows() -> None:
    assert engine_class("cpu").separate_windows and not engine_class("reference").separate_windows
    kinds = [default_kv_type(*asked) for asked in (("cpu", None), ("cpu", "exact"), ("reference", None))]
    assert kinds == ["f16", "f32", "f64"]
    with pytest.raises(AssayError, match="engine abacus: not available here; there are reference, cpu"):
        engine_class("abacus")


IDS = np.random.default_rng(5).integers(3, 300, 40).astype(np.int32)
CHUNKS = [Chunk(IDS, 0, np.arange(2, dtype=np.int32), "all"), Chunk(IDS[:7], 0, np.array([3], np.int32))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(tiny.make(tmp_path_factory.mktemp("contract") / "m.gguf", n_expert=4, n_embd=128)))


@pytest.fixture(params=marked(ENGINES))
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
    monkeypatch.setattr("assay.engines.plan.batching.MEMORY", 300_000)
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
