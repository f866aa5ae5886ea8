"""Tests that any engine must pass: one function for each rule of `assay.engines.contract`.

An outside package runs them on its own engine with pytest:

    from assay.engines import contract_tests

    @pytest.mark.parametrize("rule", contract_tests.RULES)
    def test_contract(rule, tmp_path):
        model = contract_tests.example_model(tmp_path / "m.gguf")
        contract_tests.RULES[rule](lambda **options: MyEngine(model, **options))

The factory takes `n_pages` and returns a new engine on the same model each time. A rule raises AssertionError if the
engine breaks it. A rule about a capability does nothing for an engine that does not offer the capability.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import MAX_TOP_VALUES, PAGE, Array, Chunk, Engine, PagedEngine, pages_for
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from assay.graph.names import split
from assay.models import Model, load
from assay.models.catalogue import ARCHITECTURES, metadata, tensor_shapes

Factory = Callable[..., PagedEngine]
N_PAGES = 16
_ERROR = re.compile(r"(chunk \d+ of the batch|node \S+|engine \w+): \S.*")


def example_model(path: Path, architecture: str = "", seed: int = 1) -> Model:
    """Write a tiny model with random weights in float32, and open it; by default the catalogue's first architecture."""
    row = ARCHITECTURES[architecture or next(iter(ARCHITECTURES))]
    rng = np.random.default_rng(seed)
    tensors = []
    for name, shape in tensor_shapes(row).items():
        x = rng.standard_normal(shape).astype(np.float32)
        x = 1 + 0.2 * x if "norm" in name else x if "embd" in name else x * np.float32(1.7 / np.sqrt(shape[-1]))
        tensors.append(Tensor(name, shape, by_name("F32"), x))
    write(path, metadata(row), tensors)
    return load(open_file(path))


def _tokens(engine: Engine, n: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, engine.model.hparams.n_vocab, n).astype(np.int32)


def _table(first: int, n_tokens: int) -> NDArray[np.int32]:
    return np.arange(first, first + pages_for(n_tokens), dtype=np.int32)


def _logits(engine: Engine, chunks: Iterable[Chunk]) -> list[Array]:
    return [output.logits for output in engine.forward(list(chunks))]


def _check_equal(engine: Engine, found: Array, expected: Array, what: str) -> None:
    """Equal bits if the engine's arithmetic is steady, else equal within rounding."""
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
    if engine.arithmetic.steady:
        assert np.array_equal(found, expected), f"{what}: other bits, although the arithmetic is steady"
    else:
        scale = float(np.abs(expected).max())
        assert np.allclose(found, expected, rtol=1e-3, atol=1e-4 * scale), f"{what}: other values"


# --- what every engine must do


def describes_itself(make: Factory) -> None:
    """It states its name, graph, size and arithmetic, and returns values of the type that it states."""
    engine = make(n_pages=N_PAGES)
    assert engine.name and engine.n_pages == N_PAGES and engine.graph.output in engine.graph
    assert engine.arithmetic.precision and engine.arithmetic.kv_type and engine.arithmetic.version > 0
    assert engine.arithmetic == make(n_pages=1).arithmetic
    assert min(engine.memory.weights, engine.memory.buffers, engine.memory.page, engine.memory.windows) >= 0
    logits = _logits(engine, [Chunk(_tokens(engine, 3), 0, _table(0, 3))])[0]
    assert logits.dtype == engine.dtype and engine.dtype.kind == "f" and engine.dtype.itemsize >= 4


def computes_the_graph(make: Factory) -> None:
    """Its logits are those of the reference engine, within the noise of quantised activations."""
    engine = make(n_pages=N_PAGES)
    chunk = Chunk(_tokens(engine, 40), 0, _table(0, 40), "all")
    found = _logits(engine, [chunk])[0].astype(np.float64)
    expected = ReferenceEngine(engine.model, n_pages=N_PAGES, graph=engine.graph).forward([chunk])[0].logits
    error = np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))
    assert error < 0.05, f"the logits differ from the reference by {error:.3g} of their RMS"


def returns_the_requested_rows(make: Factory) -> None:
    """`outputs` selects all rows, the last row, or no row."""
    engine = make(n_pages=N_PAGES)
    tokens, table = _tokens(engine, 9), _table(0, 9)
    rows, last, none = (_logits(engine, [Chunk(tokens, 0, table, o)])[0] for o in ("all", "last", "none"))
    assert len(rows) == 9 and len(none) == 0
    _check_equal(engine, last, rows[-1:], "the last row")


def ignores_the_rest_of_the_batch(make: Factory) -> None:
    """A sequence gives the same logits alone and beside others, in prompts and in decode steps."""
    engine, other = make(n_pages=N_PAGES), make(n_pages=N_PAGES)
    lengths = (40, 1, 17)
    chunks = [Chunk(_tokens(engine, n, n), 0, _table(4 * i, n + 1), "all") for i, n in enumerate(lengths)]
    together = _logits(engine, chunks)
    for i, chunk in enumerate(chunks):
        _check_equal(engine, together[i], _logits(other, [chunk])[0], f"sequence {i} of the batch")
    steps = [Chunk(_tokens(engine, 1, 7 + n), n, c.pages) for n, c in zip(lengths, chunks, strict=True)]
    for found, step in zip(_logits(engine, steps), steps, strict=True):
        _check_equal(engine, found, _logits(other, [step])[0], "a decode step")


def ignores_how_a_prompt_is_cut(make: Factory) -> None:
    """A prompt gives the same logits in one chunk, in several, and token by token, also across pages."""
    tokens = _tokens(make(n_pages=1), PAGE + 9)
    whole: Array | None = None
    for cuts in ([], [1], [PAGE - 1, PAGE, PAGE + 1], list(range(1, len(tokens)))):
        engine = make(n_pages=N_PAGES)
        table = _table(0, len(tokens))
        bounds = [0, *cuts, len(tokens)]
        parts = [_logits(engine, [Chunk(tokens[a:b], a, table, "all")])[0] for a, b in pairwise(bounds)]
        found = np.concatenate(parts)
        whole = found if whole is None else whole
        _check_equal(engine, found, whole, f"a prompt cut at {cuts}")


def finds_positions_by_the_page_table(make: Factory) -> None:
    """Pages may be in any order, and sequences with a common prefix may name the same pages."""
    engine = make(n_pages=N_PAGES)
    tokens = _tokens(engine, 2 * PAGE + 5)
    expected = _logits(engine, [Chunk(tokens, 0, _table(0, len(tokens)))])[0]
    scattered = np.array([9, 4, 12], np.int32)
    engine.forward([Chunk(tokens[: PAGE + 3], 0, scattered, "none")])
    rest = Chunk(tokens[PAGE + 3 :], PAGE + 3, scattered)
    _check_equal(engine, _logits(engine, [rest])[0], expected, "scattered pages")
    shared = np.array([9, 14, 15], np.int32)  # the first page is the other sequence's
    _check_equal(engine, _logits(engine, [Chunk(tokens[PAGE:], PAGE, shared)])[0], expected, "a shared page")


def keeps_nodes(make: Factory) -> None:
    """Every node outside `cannot_keep` can be kept; keeping changes no logit, and `emit` passes the same values."""
    engine = make(n_pages=N_PAGES)
    chunks = [Chunk(_tokens(engine, 5), 0, _table(0, 5), "all"), Chunk(_tokens(engine, 2, 1), 0, _table(1, 2))]
    plain = _logits(engine, chunks)
    keep = [node.name for node in engine.graph if split(node.name)[0] not in engine.cannot_keep]
    outputs = engine.forward(chunks, keep)
    emitted: dict[tuple[int, str], Array] = {}

    def emit(i: int, name: str, value: Array) -> None:
        emitted[i, name] = value

    left = engine.forward(chunks, keep[::-1], emit)
    for i, output in enumerate(outputs):
        _check_equal(engine, output.logits, plain[i], "logits beside kept nodes")
        assert set(output.nodes) == set(keep) and not left[i].nodes
        assert [name for at, name in emitted if at == i] == keep, "emit must follow the order of the graph"
        for name, value in output.nodes.items():
            _check_equal(engine, emitted[i, name], value, f"{name} passed to emit")
        for name in (n for n in keep if engine.graph.shapes[n][0] == "T"):
            assert len(output.nodes[name]) == chunks[i].n_tokens, f"{name} must have a row for every token"


def refuses_bad_chunks(make: Factory) -> None:
    """A bad chunk raises AssayError that names it, and leaves the cache as it was."""
    engine = make(n_pages=4)
    tokens, table = _tokens(engine, 6), _table(0, 7)
    good = Chunk(tokens, 0, table)
    engine.forward([good])
    step = Chunk(tokens[:1], 6, table)
    expected = _logits(engine, [step])[0]
    n_vocab = engine.model.hparams.n_vocab
    bad: list[tuple[Chunk, tuple[str, ...]]] = [
        (replace(good, tokens=np.array([], np.int32)), ()),
        (replace(good, tokens=tokens.astype(np.float32)), ()),
        (replace(good, tokens=np.array([n_vocab], np.int32)), ()),
        (replace(good, tokens=np.array([-1], np.int32)), ()),
        (replace(good, pages=np.array([4], np.int32)), ()),
        (replace(good, pages=np.array([-1], np.int32)), ()),
        (replace(good, pages=np.array([], np.int32)), ()),
        (replace(good, start=-1), ()),
        (replace(good, start=PAGE), ()),
        (replace(good, outputs="first"), ()),
        (replace(good, positions=np.arange(3, dtype=np.int32)), ()),
        (replace(good, rows={"l_out-0": np.zeros((6, 4), engine.dtype)}), ()),
        (good, ("no_such_node",)),
    ]
    for chunk, keep in bad:
        try:
            engine.forward([step, chunk], keep)
        except AssayError as error:
            assert _ERROR.fullmatch(str(error)), f"not in the grammar of errors: {error}"
        else:
            raise AssertionError(f"accepted {chunk} {keep}")
    _check_equal(engine, _logits(engine, [step])[0], expected, "a step after refused ones")


def closes_twice(make: Factory) -> None:
    """`close` can be called again. The engine is not used after it, and says so or computes as usual."""
    engine = make(n_pages=2)
    chunk = Chunk(_tokens(engine, 3), 0, _table(0, 3))
    engine.forward([chunk])
    engine.close()
    engine.close()
    try:
        engine.forward([chunk])
    except AssayError as error:
        assert _ERROR.fullmatch(str(error)), f"not in the grammar of errors: {error}"


# --- what an engine does that offers a capability


def copies_pages(make: Factory) -> None:
    """Capability `copy_page`: the copy has all values of the page, and the page keeps them."""
    engine = make(n_pages=N_PAGES)
    if engine.copy_page is None:
        return
    tokens = _tokens(engine, PAGE + 1)
    engine.forward([Chunk(tokens[:-1], 0, _table(0, PAGE), "none")])
    engine.copy_page(0, 5)
    tables = [np.array([first, 8 + first], np.int32) for first in (0, 5)]
    one, two = (_logits(engine, [Chunk(tokens[-1:], PAGE, table)])[0] for table in tables)
    _check_equal(engine, two, one, "a copied page")


def gives_its_cache_as_bytes(make: Factory) -> None:
    """Capability `cache_bytes`: written to another engine, a page and a state continue the sequence with equal bits."""
    engine, other = make(n_pages=N_PAGES), make(n_pages=N_PAGES)
    if engine.cache_bytes is None or other.cache_bytes is None:
        return
    assert engine.cache_bytes.layout == other.cache_bytes.layout
    tokens = _tokens(engine, PAGE + 1)
    engine.forward([Chunk(tokens[:-1], 0, _table(0, PAGE), "none")])
    other.cache_bytes.write_page(5, engine.cache_bytes.read_page(0))
    if engine.graph.state.per_sequence:
        other.cache_bytes.write_state(0, engine.cache_bytes.read_state(0), PAGE)
    one, two = (
        _logits(e, [Chunk(tokens[-1:], PAGE, np.array([first, 8 + first], np.int32))])[0]
        for e, first in ((engine, 0), (other, 5))
    )
    assert np.array_equal(one, two), "a page that was written back: its bits differ"


def returns_top_values(make: Factory) -> None:
    """Capability `top_values`: at least the k largest logits, in order; or whole rows."""
    engine = make(n_pages=N_PAGES)
    if engine.top_values is None:
        return
    batch = [Chunk(_tokens(engine, 1, i), 0, _table(i, 1)) for i in range(3)]
    rows = _logits(engine, batch)
    for k in (1, 5, MAX_TOP_VALUES):
        for row, output in zip(rows, engine.top_values.forward(batch, k), strict=True):
            if output.top is None:
                assert np.array_equal(output.logits, row)
                continue
            order = np.argsort(-row[0], kind="stable")[: len(output.top.ids)]
            assert not len(output.logits) and len(order) >= min(k, row.shape[1])
            assert np.array_equal(output.top.ids, order) and np.array_equal(output.top.logits, row[0][order])


def continues_decoding(make: Factory) -> None:
    """Capability `decode_runner`: the tokens of single greedy steps; it can be stopped, and leaves the same cache."""
    engine, other = make(n_pages=N_PAGES), make(n_pages=N_PAGES)
    if engine.decode_runner is None:
        return
    lengths, further = (PAGE - 2, 5), (5, 3)
    tables = [_table(4 * i, 2 * PAGE) for i in range(2)]
    for e in (engine, other):
        e.forward([Chunk(_tokens(e, n), 0, t, "none") for n, t in zip(lengths, tables, strict=True)])
    batch = [Chunk(_tokens(engine, 1, n), n, t) for n, t in zip(lengths, tables, strict=True)]
    run = engine.decode_runner.start(batch, further, 2)
    for chunk, n, results in zip(batch, further, run.results, strict=True):
        found = [int(top.ids[0]) for top in results]
        token, expected = int(chunk.tokens[0]), []
        for i in range(n + 1):
            row = _logits(other, [replace(chunk, tokens=np.array([token], np.int32), start=chunk.start + i)])[0][0]
            expected.append(token := int(row.argmax()))
        assert found == expected
        last = replace(chunk, tokens=np.array([token], np.int32), start=chunk.start + n + 1)
        _check_equal(engine, _logits(engine, [last])[0], _logits(other, [last])[0], "the step after a run")
    run = engine.decode_runner.start(batch, further, 1)
    run.stop()
    assert all(1 <= len(results) <= 1 + n for results, n in zip(run.results, further, strict=True))


RULES: dict[str, Callable[[Factory], Any]] = {
    rule.__name__: rule
    for rule in (
        describes_itself, computes_the_graph, returns_the_requested_rows, ignores_the_rest_of_the_batch,
        ignores_how_a_prompt_is_cut, finds_positions_by_the_page_table, keeps_nodes, refuses_bad_chunks, closes_twice,
        copies_pages, gives_its_cache_as_bytes, returns_top_values, continues_decoding,
    )
}  # fmt: skip
