"""The cpu engine on a random model of every architecture: the definition at every node, and one set of bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from assay.engines.contract import PAGE, Array, Chunk, Output, pages_for
from assay.engines.cpu import CpuEngine
from assay.engines.plan.fuse import Single, fuse
from assay.engines.reference import ReferenceEngine, evaluate
from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.graph import Graph, GraphError, Trait
from assay.models import Model, load
from assay.models.catalogue import ARCHITECTURES
from tests.models import others

N = 150  # tokens: several pages, longer than every window of these files
ONE_EACH = (
    *filter(others.on_cpu, ARCHITECTURES),
    "deepseek2, whole",
    "gemma4, experts",
    "stablelm, one norm",
    "gemma-embedding, dense layers",
)


def made(name: str, folder: pytest.TempPathFactory) -> Iterator[Model]:
    path = folder.mktemp("arch") / "m.gguf"
    others.make(name, path)
    with open_file(path) as file:
        yield load(file)


@pytest.fixture(
    scope="module", params=[n for n, c in others.CASES.items() if c.row.sizes.n_layer < 9 and others.on_cpu(n)]
)
def any_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Every case: other sizes, keys and tensors than the usual ones too."""
    yield from made(request.param, tmp_path_factory)


@pytest.fixture(scope="module", params=ONE_EACH)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    yield from made(request.param, tmp_path_factory)


def ids_of(model: Model, count: int = N) -> Array:
    count = min(count, model.graph.max_positions or count)
    return np.random.default_rng(7).integers(0, model.hparams.n_vocab, count).astype(np.int32)


def chunk(ids: Array, start: int = 0, page: int = 0, **options: Any) -> Chunk:
    """Tokens start.. of a sequence whose cache begins at `page`."""
    pages = np.arange(page, page + pages_for(len(ids)), dtype=np.int32)
    return Chunk(ids[start:], start, pages, **{"outputs": "all", "state_slot": page, **options})


def nmse(found: Array, expected: Array) -> float:
    seen = np.isfinite(expected)  # what a group mask removes is -inf in both
    if not np.array_equal(np.isfinite(found), seen):
        return np.inf
    expected = np.where(seen, expected, 0.0)
    return float(np.sum((np.where(seen, found, 0.0) - expected) ** 2) / max(np.sum(expected**2), 1e-300))


def test_every_node_on_its_own_inputs(any_model: Model) -> None:
    """Exact mode: the definition, fed this engine's values of a node's inputs, gives this engine's value."""
    model, weights = any_model, Weights(any_model.file)
    steps = [chunk(ids_of(model, 40))]
    if not model.graph.max_positions:  # across the edge of llama4's chunks; keys and positions differ
        steps.append(chunk(ids_of(model, 9), positions=np.arange(8188, 8197, dtype=np.int32)))
    engine = CpuEngine(model, precision="exact", threads=2, n_pages=2)
    for step in steps:
        positions = step.all_positions().astype(np.int64)
        env: dict[str, Array] = {
            "inp_tokens": step.tokens.astype(np.int64),
            "inp_pos": positions,
            "inp_kpos": positions,
        }
        values = engine.forward([step], [n.name for n in model.graph])[0].nodes
        for node in model.graph:
            if node.has(Trait.SHOWS_STATE):  # not a function of values; test_recurrent.py judges it
                continue
            env[node.name] = values[node.name].astype(np.int64 if values[node.name].dtype.kind == "i" else np.float64)
            expected = evaluate(node, [env[name] for name in node.inputs], weights)
            assert env[node.name].shape == expected.shape, node.name
            if node.op in ("argsort", "topk"):
                assert np.array_equal(env[node.name], expected), node.name
            else:
                assert nmse(env[node.name], expected) < 1e-12, str(node)


def test_the_whole_is_the_reference(any_model: Model) -> None:
    ids = ids_of(any_model)
    expected = ReferenceEngine(any_model, n_pages=8).forward([chunk(ids)])[0].logits
    found = CpuEngine(any_model, precision="exact", threads=2, n_pages=8).forward([chunk(ids)])[0].logits
    # A rounding may send a token to another expert; without experts all agree.
    rows = [nmse(a, b) for a, b in zip(found, expected, strict=True)]
    assert np.median(rows) < 1e-9
    assert max(rows) < 1e-8 or any(n.op == "expert_linear" for n in any_model.graph)


def test_scores_are_never_stored(model: Model) -> None:
    """Attention is one pass in every architecture, and nothing is copied out of a cache."""
    plan = fuse(model.graph)
    single = [g.node for g in plan.groups if isinstance(g, Single)]
    assert not [n.name for n in single if n.op in ("kq", "attn_softmax", "kqv", "softcap") and "kq" in n.name]
    assert not [n.name for n in single if plan.domains[n.name] == "keys" and n.op != "cache"]


@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_same_bits(model: Model, precision: str) -> None:
    """Threads, other sequences, how the prompt is cut, a prefix in the cache, a trace: the logits do not change."""
    ids = ids_of(model)
    make: dict[str, Any] = {"precision": precision, "n_pages": 16}
    engine = CpuEngine(model, threads=2, **make)
    base = engine.forward([chunk(ids)])[0].logits
    assert np.array_equal(CpuEngine(model, threads=1, **make).forward([chunk(ids)])[0].logits, base)
    others = [chunk(ids[7:60], page=6, outputs="last"), chunk(ids[:3], page=9, outputs="none")]
    assert np.array_equal(engine.forward([others[0], chunk(ids), others[1]])[1].logits, base)
    names = [n.name for n in model.graph][::3]
    assert np.array_equal(engine.forward([chunk(ids)], names)[0].logits, base)
    last = engine.forward([chunk(ids, outputs="last")])[0].logits
    assert np.array_equal(last, base[-1:])
    if model.graph.whole:
        return
    for sizes in ([1] * 40, [7, 33, 1, 60, len(ids)], [PAGE, PAGE + 1]):
        start, rows = 0, []
        for size in sizes:
            end = min(len(ids), start + size)
            if end > start:
                rows.append(engine.forward([chunk(ids[:end], start, page=10)])[0].logits)
            start = end
        found = np.concatenate(rows)
        assert np.array_equal(found, base[: len(found)]), sizes
    if engine.state_slots:  # the state at the cut is needed, too
        engine.forward([chunk(ids[:20], outputs="none")])
        engine.copy_state(0, 15)
        engine.forward([chunk(ids[7:30])])  # the copy is no view
    else:
        engine.copy_page(0, 15)
    pages = np.array([0 if engine.state_slots else 15, *range(1, pages_for(len(ids)))], np.int32)
    if engine.state_slots:
        engine.forward([chunk(ids[:20], outputs="none", state_slot=1)])  # the same rows in the pages
    again = engine.forward([Chunk(ids[20:], 20, pages, "all", state_slot=15)])[0].logits
    assert np.array_equal(again, base[20:])


def test_traced_values_are_the_ones_used(model: Model) -> None:
    """Kept alone or with all others, for a whole prompt or for pieces: the same values."""
    ids = ids_of(model, 50)
    engine = CpuEngine(model, threads=2, n_pages=8)
    names = [n.name for n in model.graph]
    together: Output = engine.forward([chunk(ids)], names)[0]
    for name in names[:: max(1, len(names) // 8)]:
        alone = engine.forward([chunk(ids, outputs="none")], [name])[0].nodes[name]
        assert np.array_equal(alone, together.nodes[name]), name


def halves(graph: Graph) -> tuple[Graph, Graph]:
    """The first cut from the middle on that no keys cross (gemma4's last layers use those of earlier ones)."""
    end = len(graph.layers)
    for cut in sorted(range(1, end), key=lambda at: abs(2 * at - end)):
        try:
            return graph.part(0, cut), graph.part(cut, end)
        except GraphError as error:
            assert "cut elsewhere" in str(error)
    raise AssertionError("no cut is possible")


def test_layers_may_run_elsewhere(model: Model) -> None:
    """Two parts of the graph, one after the other."""
    ids = ids_of(model, 40)
    base = CpuEngine(model, threads=2, n_pages=2).forward([chunk(ids)])[0].logits
    first, second = halves(model.graph)
    keep = [name for name in second.given if name != first.output]
    out = CpuEngine(model, threads=2, n_pages=2, graph=first).forward([chunk(ids)], keep)[0]
    rows = {name: out.logits if name == first.output else out.nodes[name] for name in second.given}
    found = CpuEngine(model, threads=2, n_pages=2, graph=second).forward([chunk(ids, rows=rows)])[0].logits
    assert np.array_equal(found, base)
