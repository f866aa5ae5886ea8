"""Rows of pictures beside tokens: llama.cpp's goldens, and the same bits however a prompt is cut, batched or traced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from assay.engines.contract import Chunk, PagedEngine, PictureRows
from assay.engines.cpu import CpuEngine
from assay.engines.cuda import CudaEngine
from assay.engines.plan import batching
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.models import Model
from tests.picture_prompts import ALL, HERE, chunk, golden, model_of, nmse, path_of, prompt

ENGINES: dict[str, Callable[[Model], PagedEngine]] = {
    "reference": ReferenceEngine,
    "cpu": lambda model: CpuEngine(model, threads=1, precision="exact", n_pages=16),
}


def run(engine: PagedEngine, *chunks: Chunk) -> list[np.ndarray]:
    return [output.logits for output in engine.forward(chunks)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ALL)
def test_the_logits_of_a_prompt_with_its_picture(name: str, engine: str) -> None:
    path_of(name)
    found = run(ENGINES[engine](model_of(name)), chunk(model_of(name), *prompt(name)))[0][0]
    assert nmse(found, golden(name)[1]) < (1e-10 if engine == "reference" else 1e-11)


@pytest.mark.parametrize("name", HERE)
def test_the_cut_of_a_prompt_changes_no_bit(name: str) -> None:
    """Cuts between pictures and text; inside a picture too, where its rows are causal."""
    model, (ids, images) = model_of(name), prompt(name)
    engine = ENGINES["cpu"](model)
    whole = run(engine, chunk(model, ids, images))[0]
    first = images[0]
    cuts = [first.start, first.end] if first.image.sees_itself else [2, first.start + 5, first.end - 1, first.end + 2]
    start = 0
    for end in (*cuts, len(ids)):
        found = run(engine, chunk(model, ids, images, start, end, page=4))[0]
        start = end
    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("name", HERE)
def test_a_batch_changes_no_bit_of_text_or_pictures(name: str) -> None:
    model, (ids, images) = model_of(name), prompt(name)
    engine = ENGINES["cpu"](model)
    text = Chunk(np.array([257, 97, 98, 99], np.int32), 0, np.arange(4, 5, dtype=np.int32), "all")
    picture = chunk(model, ids, images)
    alone = [run(engine, text)[0], run(engine, picture)[0]]
    for found, wanted in zip(run(engine, text, picture), alone, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["gemma3", "qwen3vl"])
def test_a_trace_keeps_the_bits(name: str) -> None:
    """Scores kept one operation at a time and in the fused pass, with and without pictures."""
    model, (ids, images) = model_of(name), prompt(name)
    cpu, exact = ENGINES["cpu"](model), ReferenceEngine(model)
    picture = chunk(model, ids, images, outputs="all")
    keep = ["kq_soft_max-0", "kqv_out-1", "Qcur-0", "l_out-1"]
    traced, defined = cpu.forward([picture], keep)[0], exact.forward([picture], keep)[0]
    np.testing.assert_array_equal(traced.logits, cpu.forward([picture])[0].logits)
    for node in keep:
        assert nmse(traced.nodes[node], defined.nodes[node]) < 1e-10
    seen = traced.nodes["kq_soft_max-0"][0, images[0].start] > 0  # what the first row of the picture sees
    both_ways = images[0].image.sees_itself
    assert (
        seen[: images[0].start + 1].all() and seen[images[0].end - 1] == both_ways and not seen[images[0].end :].any()
    )


def test_a_window_hides_only_what_lies_behind() -> None:
    """Rows of a picture see all later rows of it, and earlier keys up to the window."""
    model, (ids, images) = model_of("gemma3"), prompt("gemma3")
    graph = model.graph.rewrite(
        lambda n: replace(n, attrs={**n.attrs, "window": 3}) if n.op == "attn_softmax" else None
    )
    cpu = CpuEngine(model, threads=1, precision="exact", n_pages=16, graph=graph)
    exact = ReferenceEngine(model, graph=graph)
    picture, first = chunk(model, ids, images, outputs="all"), images[0]
    found = [engine.forward([picture], ["kq_soft_max-0"])[0] for engine in (cpu, exact)]
    assert nmse(found[0].logits, found[1].logits) < 1e-10
    for row in range(first.start, first.end):
        seen = np.flatnonzero(found[1].nodes["kq_soft_max-0"][0, row])
        assert (seen[0], seen[-1]) == (row - 2, first.end - 1)


def test_text_positions_turn_as_plain_ones() -> None:
    """Text after a picture in M-RoPE: t = y = x gives the bits of one position."""
    model = model_of("qwen3vl")
    engine = ENGINES["cpu"](model)
    plain = Chunk(np.arange(97, 109, dtype=np.int32), 0, np.arange(1, dtype=np.int32), "all")
    positions = np.arange(12, dtype=np.int32)[:, None].repeat(3, 1)
    given = PictureRows(np.empty(0, np.int32), np.empty((0, 48), np.float32), positions=positions)
    np.testing.assert_array_equal(run(engine, replace(plain, pictures=given))[0], run(engine, plain)[0])


def test_steps_of_an_engine_cut_beside_pictures() -> None:
    model, (ids, images) = model_of("gemma3"), prompt("gemma3")
    picture = chunk(model, ids, images)  # 4 tokens, 9 rows that see each other, 4 tokens
    pieces = [[(p.begin, p.end) for p in step.pieces] for step in batching.steps([picture, picture], limit=6)]
    assert pieces == [[(0, 4)], [(4, 13)], [(13, 17), (0, 2)], [(2, 4)], [(4, 13)], [(13, 17)]]


def test_what_does_not_fit_is_refused() -> None:
    model, (ids, images) = model_of("gemma3"), prompt("gemma3")
    engine, fine = ENGINES["cpu"](model), chunk(model, ids, images)
    assert fine.pictures and fine.pictures.last is not None
    wrong = {
        "rows of a picture do not fit": replace(fine.pictures, rows=fine.pictures.rows[:, :16]),
        "places of given rows": replace(fine.pictures, at=fine.pictures.at[::-1].copy()),
        "M-RoPE": replace(fine.pictures, positions=np.zeros((len(ids), 3), np.int32)),
        "no slot beyond": replace(fine.pictures, last=fine.pictures.last + 99),
    }
    for message, given in wrong.items():
        with pytest.raises(AssayError, match=message):
            engine.forward([replace(fine, pictures=given)])
    engine.pictures = ()
    with pytest.raises(AssayError, match="takes no pictures"):
        engine.forward([fine])


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "qwen2vl", "qwen3vl", "idefics3", "llava", "pixtral"])
def test_the_cuda_engine_takes_rows_with_the_bits_of_the_cpu(name: str) -> None:
    from tests.engines.on_cuda import device  # skips the test if the shim cannot be compiled

    path_of(name)
    model, (ids, images) = model_of(name), prompt(name)
    cuda, cpu = CudaEngine(model, precision="exact", device=device(), n_pages=16), ENGINES["cpu"](model)
    text = Chunk(np.array([257, 97, 98, 99], np.int32), 0, np.arange(8, 9, dtype=np.int32), "last")
    cut = images[0].start + (-1 if images[0].image.sees_itself else 3)
    for engine in (cuda, cpu):
        assert engine.forward([chunk(model, ids, images, 0, cut)])
    rest = chunk(model, ids, images, cut)
    for found, wanted in zip(run(cuda, rest, text), run(cpu, rest, text), strict=True):
        np.testing.assert_array_equal(found, wanted)
    ids = (*ids, 120)  # one token behind the pictures: a decode step
    behind = chunk(model, ids, images, len(ids) - 1)
    np.testing.assert_array_equal(run(cuda, behind)[0], run(cpu, behind)[0])


def test_a_trace_on_cuda_shows_what_the_rows_of_a_picture_see() -> None:
    """Gemma's rows see each other both ways, with a window that hides only what lies behind."""
    from tests.engines.on_cuda import device

    model, (ids, images) = model_of("gemma3"), prompt("gemma3")
    graph = model.graph.rewrite(
        lambda n: replace(n, attrs={**n.attrs, "window": 3}) if n.op == "attn_softmax" else None
    )
    cuda = CudaEngine(model, precision="exact", device=device(), n_pages=16, graph=graph)
    cpu = CpuEngine(model, threads=1, precision="exact", n_pages=16, graph=graph)
    picture = chunk(model, ids, images, outputs="all")
    found, wanted = (engine.forward([picture], ["kq_soft_max-0", "l_out-1"])[0] for engine in (cuda, cpu))
    np.testing.assert_array_equal(found.logits, wanted.logits)
    for name, value in wanted.nodes.items():
        np.testing.assert_array_equal(found.nodes[name], value)
