"""Layers that run elsewhere: the parts of a graph, one after the other, give the bits of the whole."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from assay.engines.contract import Chunk, Output, PagedEngine, pages_for
from assay.engines.cpu import CpuEngine
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from tests import tiny

IDS = np.random.default_rng(5).integers(3, 300, 60).astype(np.int32)
ENGINES: dict[str, Callable[..., PagedEngine]] = {
    "reference": lambda model, **kw: ReferenceEngine(model, n_pages=8, **kw),
    "cpu": lambda model, **kw: CpuEngine(model, n_pages=8, threads=2, **kw),
    "cpu exact": lambda model, **kw: CpuEngine(model, n_pages=8, threads=2, precision="exact", **kw),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("parts") / "m.gguf"
    return load(open_file(tiny.make(path, type="Q8_0", n_layer=4, bias=True, n_ctx=256)))


class Chain:
    """Engines of successive parts; each passes on what it was given and what it computed."""

    def __init__(self, make: Callable[..., PagedEngine], model: Model, cuts: tuple[int, ...]) -> None:
        self.stages = [make(model, graph=model.graph.part(a, b)) for a, b in pairwise(cuts)]

    def forward(self, chunks: list[Chunk], keep: tuple[str, ...] = ()) -> list[Output]:
        values: list[dict[str, np.ndarray]] = [{} for _ in chunks]
        kept: list[dict[str, np.ndarray]] = [{} for _ in chunks]
        outputs: list[Output] = []
        for i, stage in enumerate(self.stages):
            last = i == len(self.stages) - 1
            batch = [
                Chunk(
                    c.tokens if i == 0 else c.tokens[:0], c.start, c.pages, c.outputs if last else "all", c.positions,
                    {name: v[name] for name in stage.graph.given},
                )
                for c, v in zip(chunks, values, strict=True)
            ]  # fmt: skip
            outputs = stage.forward(batch, [name for name in keep if name in stage.graph])
            for v, k, output in zip(values, kept, outputs, strict=True):
                v[stage.graph.output] = output.logits
                k |= output.nodes
        return [Output(o.logits, k) for o, k in zip(outputs, kept, strict=True)]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("cuts", [(0, 4), (0, 1, 4), (0, 3, 4), (0, 1, 2, 3, 4)])
def test_parts_give_the_bits_of_the_whole(model: Model, name: str, cuts: tuple[int, ...]) -> None:
    make: Any = ENGINES[name]
    pages = np.arange(pages_for(len(IDS)), dtype=np.int32)
    for size in (len(IDS), 17, 1):
        engine, chain = make(model), Chain(make, model, cuts)
        for at in range(0, len(IDS), size) if size > 1 else range(3):
            chunk = Chunk(IDS[at : at + size], at, pages, "all")
            whole, parts = engine.forward([chunk])[0], chain.forward([chunk])[0]
            assert np.array_equal(whole.logits, parts.logits), (size, at)
            assert whole.logits.dtype == parts.logits.dtype


@pytest.mark.parametrize("name", ENGINES)
def test_parts_of_batches_and_traces(model: Model, name: str) -> None:
    """Several sequences, positions of their own, only the last rows asked for, nodes kept on both sides of the cut."""
    make: Any = ENGINES[name]
    keep = ("l_out-1", "kqv_out-2", "kq_soft_max-0", "result_norm")
    batch = [
        Chunk(IDS[:33], 0, np.array([5, 1], np.int32), "last"),
        Chunk(IDS[40:45], 0, np.array([2], np.int32), "none"),
        Chunk(IDS[:9], 0, np.array([3], np.int32), "all", np.arange(4, 13, dtype=np.int32)),
    ]
    whole, parts = make(model).forward(batch, keep), Chain(make, model, (0, 2, 4)).forward(batch, keep)
    for a, b in zip(whole, parts, strict=True):
        assert np.array_equal(a.logits, b.logits)
        assert a.nodes.keys() == b.nodes.keys() == set(keep)
        assert all(np.array_equal(a.nodes[n], b.nodes[n]) for n in keep)


@pytest.mark.parametrize("name", ENGINES)
def test_rows_that_do_not_fit(model: Model, name: str) -> None:
    make: Any = ENGINES[name]
    engine = make(model, graph=model.graph.part(1, 3))
    rows = np.zeros((3, 64), engine.dtype)
    none, pages = IDS[:0], np.zeros(1, np.int32)

    def run(tokens: np.ndarray = none, **given: np.ndarray) -> Output:
        return engine.forward(
            [Chunk(tokens, 0, pages, "all", None, {k.replace("_0", "-0"): v for k, v in given.items()})]
        )[0]

    assert run(l_out_0=rows).logits.shape == (3, 64)
    assert run(IDS[:3], l_out_0=rows).logits.shape == (3, 64)
    for tokens, given, message in (
        (IDS[:3], {}, "found none, expected l_out-0"),
        (none, {"l_out_0": rows, "more": rows}, "found l_out-0, more, expected l_out-0"),
        (none, {"l_out_0": rows[:, :5]}, r"rows of l_out-0 do not fit \(found .*\(3, 5\), expected .*\(3, 64\)"),
        (none, {"l_out_0": rows.astype(np.float16)}, "found float16"),
        (none, {"l_out_0": rows[:0]}, "non-empty"),
        (IDS[:2], {"l_out_0": rows}, "tokens and rows differ in number"),
        (np.array([5, 6, 900], np.int32), {"l_out_0": rows}, "found 900"),
    ):
        with pytest.raises(AssayError, match=message):
            run(tokens, **given)
    with pytest.raises(AssayError, match="found l_out-0, expected none"):
        make(model).forward([Chunk(IDS[:3], 0, pages, "all", None, {"l_out-0": rows})])
