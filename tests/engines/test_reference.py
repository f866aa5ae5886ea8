"""The reference engine against llama.cpp's recorded values and against itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from assay.engines.contract import PAGE, Chunk, pages_for
from assay.engines.reference import Hooks, ReferenceEngine, interpret
from assay.engines.reference.weights import Weights
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import load


def chunk(ids: list[int], start: int = 0, *, outputs: str = "all", page: int = 0) -> Chunk:
    """Tokens start.. of a sequence whose cache begins at `page`."""
    pages = np.arange(page, page + pages_for(len(ids)), dtype=np.int32)
    return Chunk(np.array(ids[start:], np.int32), start, pages, outputs)


def nmse(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(np.sum((a - b) ** 2) / np.sum(b**2))


@pytest.fixture(scope="module")
def stories(shared_dir: Path) -> ReferenceEngine:
    return ReferenceEngine(load(open_file(shared_dir / "data/models/stories260K-f32.gguf")))


@pytest.mark.parametrize(("model", "steps"), [("stories260K-f32", 64), ("stories15M-q8_0", 16)])
def test_stories_greedy(shared_dir: Path, model: str, steps: int) -> None:
    golden = json.loads((shared_dir / "data/golden/stories_greedy_f32_numpy.json").read_text())
    record = golden[model.rsplit("-", 1)[0]]
    engine = ReferenceEngine(load(open_file(shared_dir / f"data/models/{model}.gguf")))
    ids, done = list(record["prompt_ids"]), 0
    for expected in record["greedy_ids"][:steps]:
        logits = engine.forward([chunk(ids, done, outputs="last")])[0].logits
        done = len(ids)
        ids.append(int(np.argmax(logits[-1])))
        assert ids[-1] == expected


@pytest.fixture(scope="module")
def smollm2_engine(smollm2: Path) -> Iterator[ReferenceEngine]:
    """Decoded once; every test begins a sequence of its own."""
    with open_file(smollm2) as file:
        yield ReferenceEngine(load(file))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["raw", "chat"])
def test_smollm2_greedy(shared_dir: Path, smollm2_engine: ReferenceEngine, kind: str) -> None:
    """Fed the recorded ids: the same best token where the gap allows, the five best logits within 2e-3."""
    engine = smollm2_engine
    for record in json.loads((shared_dir / "data/golden/smollm2_greedy.json").read_text())[kind]:
        ids = record["prompt_ids"] + record["greedy_ids"]
        logits = engine.forward([chunk(ids[:-1])])[0].logits
        for step, expected in enumerate(record["steps"]):
            row = logits[len(record["prompt_ids"]) - 1 + step]
            assert np.abs(row[expected["top"]] - expected["logits"]).max() < 2e-3
            if expected["logits"][0] - expected["logits"][1] > 0.01:
                assert int(np.argmax(row)) == expected["top"][0]


@pytest.mark.slow
def test_smollm2_nodes(shared_dir: Path, smollm2_engine: ReferenceEngine) -> None:
    """llama.cpp's value at every node of the same name, to the rounding of its float32."""
    golden = np.load(shared_dir / "data/golden/trace_llamacpp_smollm2.npz")
    engine = smollm2_engine
    names = [name for name in golden.files if name in engine.graph]
    assert set(golden.files) - set(names) == {"tokens", "node_1073", "node_1074"}  # unnamed in llama.cpp
    nodes = engine.forward([chunk(golden["tokens"].tolist())], keep=names)[0].nodes
    for name in names:
        assert nodes[name].shape == golden[name].shape, name
        if name.startswith("kq-"):  # scores that the mask removes are not part of the contract
            seen = np.tril(np.ones(golden[name].shape[1:], bool))
            assert nmse(golden[name][:, seen], nodes[name][:, seen]) < 1e-9, name
        else:
            assert nmse(golden[name], nodes[name]) < 1e-9, name


TEXT = [1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421, 395, 317, 426, 338, 401, 396, 267] * 2


def test_decode_equals_prefill(stories: ReferenceEngine) -> None:
    whole = stories.forward([chunk(TEXT)])[0].logits
    for sizes in ([1] * len(TEXT), [7, 7, 7, 7, 7, 5], [33, 7]):
        start, rows = 0, []
        for size in sizes:
            end = start + size
            rows.append(stories.forward([chunk(TEXT[:end], start, page=4)])[0].logits)
            start = end
        assert np.abs(np.concatenate(rows) - whole).max() < 1e-10


def test_batch_and_shared_prefix(stories: ReferenceEngine) -> None:
    """Sequences of a batch do not see each other, and one page may serve two of them."""
    a, b = TEXT, [*TEXT[:PAGE], 5, 9, 20]
    alone = [stories.forward([chunk(ids, page=8)])[0].logits[-1] for ids in (a, b)]
    stories.forward([chunk(TEXT[:PAGE], outputs="none")])
    batch = [
        Chunk(np.array(a[PAGE:], np.int32), PAGE, np.array([0, 1], np.int32)),
        Chunk(np.array(b[PAGE:], np.int32), PAGE, np.array([0, 2], np.int32)),
    ]
    for out, expected in zip(stories.forward(batch), alone, strict=True):
        assert np.abs(out.logits[-1] - expected).max() < 1e-10
    stories.copy_page(0, 12)  # far behind what was used so far
    copied = Chunk(np.array(a[PAGE - 5 :], np.int32), PAGE - 5, np.array([12, 13], np.int32))
    assert np.abs(stories.forward([copied])[0].logits[-1] - alone[0]).max() < 1e-10


def test_shifted_positions_change_nothing(stories: ReferenceEngine) -> None:
    """RoPE is relative: a constant added to every position leaves the logits."""
    plain = chunk(TEXT)
    moved = Chunk(plain.tokens, 0, plain.pages, "all", np.arange(11, 11 + len(TEXT), dtype=np.int32))
    a, b = (stories.forward([c])[0].logits for c in (plain, moved))
    assert np.abs(a - b).max() < 1e-9


def test_float32_is_near_and_not_equal(shared_dir: Path, stories: ReferenceEngine) -> None:
    single = ReferenceEngine(stories.model, np.float32)
    a = single.forward([chunk(TEXT)])[0].logits
    assert a.dtype == np.float32
    assert 0 < nmse(a, stories.forward([chunk(TEXT)])[0].logits) < 1e-10


def test_tight_budget_changes_nothing(stories: ReferenceEngine) -> None:
    """Weights decoded again at each use are the same weights."""
    frugal = ReferenceEngine(stories.model, budget=0)
    assert np.array_equal(frugal.forward([chunk(TEXT)])[0].logits, stories.forward([chunk(TEXT)])[0].logits)


def test_kept_nodes_given_values_and_hooks(stories: ReferenceEngine) -> None:
    graph, weights = stories.graph, Weights(stories.model.file)
    kept = stories.forward([chunk(TEXT)], keep=[n.name for n in graph])[0]
    assert set(kept.nodes) == {n.name for n in graph}
    # From a value in the middle, the rest follows.
    inputs = {"inp_pos": np.arange(len(TEXT)), "inp_kpos": np.arange(len(TEXT))}
    env = {**inputs, "l_out-1": kept.nodes["l_out-1"]}
    again = interpret(graph, weights, env, ["result_output", "l_out-1"])
    assert np.array_equal(again["result_output"], kept.nodes["result_output"])
    # A hook sees every operand and may change results.
    seen: list[str] = []
    hooks = Hooks(operand=lambda n, i, x: (seen.append(n.name), x)[1], result=lambda n, x: x * (n.op != "linear"))
    zero = interpret(graph, weights, env, ["result_output"], hooks=hooks)["result_output"]
    assert not zero.any() and "Qcur-2" in seen


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Chunk(np.array([], np.int32), 0, np.zeros(1, np.int32)), "non-empty row of integers"),
        (Chunk(np.array([512], np.int32), 0, np.zeros(1, np.int32)), "found 512, expected 0 to 511"),
        (Chunk(np.array([-1], np.int32), 0, np.zeros(1, np.int32)), "found -1, expected 0 to 511"),
        (Chunk(np.ones(33, np.int32), 0, np.zeros(1, np.int32)), "expected room for positions up to 33"),
        (Chunk(np.array([1], np.int32), 0, np.array([10**6], np.int32)), "page outside the cache"),
        (Chunk(np.array([1], np.int32), 0, np.zeros(1, np.int32), "some"), "outputs must be last, all or none"),
    ],
)
def test_bad_requests_are_refused(stories: ReferenceEngine, bad: Chunk, message: str) -> None:
    with pytest.raises(AssayError, match=message):
        stories.forward([bad])
    with pytest.raises(AssayError, match="not in the graph"):
        stories.forward([chunk([1])], keep=["Qcur-99"])
