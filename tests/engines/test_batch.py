"""Cutting a batch: every token once and in order, whatever the limit; results in the batch's order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from assay.engines.contract import PAGE, Chunk, pages_for
from assay.engines.plan.batching import External, Results, Step, steps, whole
from assay.graph import Graph, Node


@st.composite
def batches(draw: st.DrawFn) -> list[Chunk]:
    found, page = [], 0
    for _ in range(draw(st.integers(1, 4))):
        n, start = draw(st.integers(1, 40)), draw(st.integers(0, 40))
        pages = np.arange(page, page + pages_for(start + n), dtype=np.int32)
        page += len(pages)
        tokens = np.array(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)), np.int32)
        positions = np.arange(7, 7 + n, dtype=np.int32) if draw(st.booleans()) else None
        found.append(Chunk(tokens, start, pages, draw(st.sampled_from(["last", "all", "none"])), positions))
    return found


@given(batches(), st.integers(1, 50))
def test_steps_cover_the_batch(batch: list[Chunk], limit: int) -> None:
    cut = steps(batch, limit)
    assert all(step.n_tokens <= limit for step in cut)
    assert all(step.n_tokens == limit for step in cut[:-1])
    for read in (Step.tokens, Step.positions):
        assert np.array_equal(np.concatenate([read(s) for s in cut]), read(whole(batch)[0]))
    assert sum(s.n_outputs for s in cut) == sum(c.n_outputs for c in batch)
    for step in cut:
        pages = step.pages()
        for piece, (n, slot, at, length, outputs) in zip(step.pieces, step.table(), strict=True):
            assert n == piece.end - piece.begin and slot == piece.chunk.start + piece.begin
            assert np.array_equal(pages[at : at + length], piece.chunk.pages) and length * PAGE >= slot + n
            assert outputs == {"none": 0, "all": n, "last": int(piece.end == piece.chunk.n_tokens)}[piece.chunk.outputs]


WIDTH = 3
GRAPH = Graph(
    (Node("embd", "embed", ("inp_tokens",), ("E",)), Node("result_output", "scale", ("embd",), (), {"factor": 1.0})),
    {"E": (10, WIDTH)},
)


@given(batches(), st.integers(1, 50), st.booleans())
def test_results_come_back_in_order(batch: list[Chunk], limit: int, kept: bool) -> None:
    """An engine that writes the token and the position of each row: they arrive where they belong."""
    externals = [External("result_output", "tokens" if kept else "outputs", WIDTH), External("embd", "tokens", WIDTH)]
    results = Results(externals, batch)
    for step in steps(batch, limit):
        logits, embd = (array.reshape(-1, WIDTH) for array in results.take(step))
        rows = np.stack([step.tokens(), step.positions(), np.full(step.n_tokens, 5)], 1).astype(np.float32)
        embd[: step.n_tokens] = rows
        ends = np.cumsum([p.end - p.begin for p in step.pieces])
        asked = np.concatenate([np.arange(end - p.n_outputs, end) for p, end in zip(step.pieces, ends, strict=True)])
        logits[: step.n_tokens if kept else step.n_outputs] = rows if kept else rows[asked]
    outputs = results.outputs(GRAPH, {"embd"}, {})
    for chunk, output in zip(batch, outputs, strict=True):
        expected = np.stack([chunk.tokens, chunk.all_positions()], 1)
        assert np.array_equal(output.nodes["embd"][:, :2], expected)
        assert np.array_equal(output.logits[:, :2], expected[chunk.n_tokens - chunk.n_outputs :])
