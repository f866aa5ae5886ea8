"""Attention with every mask: windows, chunks, both directions, sinks and slopes, fused or one operation at a time.

The definition is the reference; what is tried here is longer than a block of keys, so that blocks are merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from assay.engines.contract import Chunk, pages_for
from assay.engines.cpu import CpuEngine
from assay.engines.plan.fuse import Attention, fuse
from assay.engines.reference import ReferenceEngine
from assay.gguf import open_file
from assay.graph import Graph, Node
from assay.models import Model, load
from tests.models import others

IDS = np.random.default_rng(2).integers(0, others.N_VOCAB, 600).astype(np.int32)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Model]]:
    """One with sinks, one whose keys and values are one row, one without a cache."""
    folder, found = tmp_path_factory.mktemp("masks"), {}
    for name in ("gpt-oss", "deepseek2", "nomic-bert"):
        others.make(name, folder / name)
        found[name] = load(open_file(folder / name))
    yield found
    for model in found.values():
        model.file.close()


def changed(graph: Graph, attrs: dict[str, Any], sinks: bool, loose: bool) -> Graph:
    """Other masks; without the sinks; with a second reader of the scores, which must then exist."""

    def change(node: Node) -> Node | list[Node] | None:
        if node.op == "kq" and loose:
            return [node, Node(f"same{node.name}", "scale", (node.name,), (), {"factor": 1.0})]
        if node.op != "attn_softmax":
            return None
        inputs = (f"same{node.inputs[0]}", *node.inputs[1:]) if loose else node.inputs
        return replace(node.with_attrs(**attrs), inputs=inputs, weights=node.weights if sinks else ())

    return graph.rewrite(change).check()


@pytest.mark.parametrize("seed", range(30))
def test_masks(models: dict[str, Model], seed: int) -> None:
    rng = np.random.default_rng(seed)

    def draw(*options: Any) -> Any:
        return options[rng.integers(len(options))]

    model = models[draw(*sorted(models))]
    cached = any(n.op == "cache" for n in model.graph)
    attrs = {
        "window": draw(0, 1, 2, 7, 30, 257, 300),
        "chunk": draw(0, 0, 5, 32, 100, 256),
        "max_bias": draw(0.0, 8.0),
        "causal": cached or draw(True, False),
    }
    loose, n = draw(True, False), draw(1, 33, 270, 530)
    graph = changed(model.graph, attrs, draw(True, False), loose)
    assert any(isinstance(g, Attention) for g in fuse(graph).groups) != loose
    # Keys out of order: the mask goes by the positions they were written with.
    positions = draw(None, rng.permutation(n).astype(np.int32) + 3)
    pages = np.arange(pages_for(n), dtype=np.int32)
    whole = Chunk(IDS[:n], 0, pages, "all", positions)
    attention = [node.name for node in graph if node.op == "kqv"][:1]
    expected = ReferenceEngine(model, graph=graph, n_pages=20).forward([whole], attention)[0].nodes[attention[0]]
    engine = CpuEngine(model, graph=graph, precision="exact", threads=2, n_pages=20)
    found = engine.forward([whole], attention)[0].nodes[attention[0]]
    assert np.isfinite(expected).all()  # a query sees itself, whatever the mask
    assert np.sum((found - expected) ** 2) <= 1e-10 * np.sum(expected**2), attrs
    if graph.whole or positions is not None:
        return
    logits = engine.forward([whole])[0].logits
    cut = int(rng.integers(n))
    if cut:
        engine.forward([Chunk(IDS[:cut], 0, pages, "none")])
    rest = engine.forward([Chunk(IDS[cut:n], cut, pages, "all")])[0].logits
    assert np.array_equal(rest, logits[cut:])
