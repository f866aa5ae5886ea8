"""Perplexity and divergence against a hand computation; split any way, the result has the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.cli import main
from assay.engines.contract import Chunk
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.evaluate.evaluation import Evaluation, Mean, evaluate
from assay.evaluate.pieces import Scores, cut
from assay.evaluate.predictors import EngineSource, ServerLogprobs
from assay.evaluate.score import divergence, score
from assay.gguf import open_file
from assay.models import load
from assay.text import Tokenizer
from tests import tiny

IDS = [5, 9, 30, 31, 7, 90, 12, 40, 41, 42, 8]


def source(path: Path) -> EngineSource:
    return EngineSource(ReferenceEngine(load(open_file(path))))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("eval")
    return tiny.make(folder / "a.gguf"), tiny.make(folder / "b.gguf", type="Q4_0")


@pytest.fixture(scope="module")
def pair(files: tuple[Path, Path]) -> tuple[EngineSource, EngineSource]:
    return source(files[0]), source(files[1])


def probabilities(model: EngineSource, before: list[int]) -> np.ndarray:
    pages = np.zeros(1, np.int32)
    logits = model.engine.forward([Chunk(np.array(before, np.int32), 0, pages)])[0].logits[0]
    return np.exp(logits) / np.exp(logits).sum()


def test_by_hand(pair: tuple[EngineSource, EngineSource]) -> None:
    """Windows of 4 after BOS: of each, the last token is scored by what stands before it."""
    found = evaluate(cut(IDS, 4, bos=1), pair[1], pair[0])
    losses, divergences, same = [], [], []
    for part in ([1, 9, 30, 31], [1, 90, 12, 40]):  # the three tokens left over are dropped
        p, q = (probabilities(model, part[:3]) for model in pair)
        losses.append(-np.log(q[part[3]]))
        divergences.append(np.sum(p * np.log(p / q)))
        same.append(np.argmax(p) == np.argmax(q))
    assert found.n_tokens == 2
    assert found.nll.value == pytest.approx(np.mean(losses), rel=1e-9)
    assert found.perplexity.value == pytest.approx(np.exp(np.mean(losses)), rel=1e-9)
    assert found.nll.error == pytest.approx(np.std(losses, ddof=1) / np.sqrt(2), rel=1e-9)
    assert found.kl is not None
    assert found.kl.value == pytest.approx(np.mean(divergences), rel=1e-7)
    assert found.kl.value > 1e-6
    assert found.same_best is not None
    assert found.same_best.value == np.mean(same)


def test_a_model_against_itself_does_not_diverge(pair: tuple[EngineSource, EngineSource]) -> None:
    found = evaluate(cut(IDS, 8, bos=1), pair[0], pair[0])
    assert found.kl is not None
    assert abs(found.kl.value) < 1e-12
    assert found.same_best == Mean(1.0, 0.0)


def test_shared_out_any_way_the_bits_are_the_same(pair: tuple[EngineSource, EngineSource]) -> None:
    pieces = cut(list(range(3, 200)), 16, bos=1)
    whole = evaluate(pieces, pair[1], pair[0])
    parts = [Scores.from_dict(json.loads(json.dumps(score(p, pair[1], pair[0]).to_dict()))) for p in reversed(pieces)]
    again = Evaluation(parts, name=whole.name, base=whole.base)
    assert {**again.to_dict(), "seconds": 0} == {**whole.to_dict(), "seconds": 0}
    with pytest.raises(AssayError, match="missing"):
        Evaluation(parts[1:-1], name="", base=None)


def test_the_worst_token_stands_in_its_context(
    files: tuple[Path, Path], pair: tuple[EngineSource, EngineSource]
) -> None:
    tokenizer = Tokenizer.from_gguf(open_file(files[0]))
    ids = tokenizer.encode("hello world the word in on a hello world the in er")
    pieces = cut(ids, 8, tokenizer.bos)
    found = evaluate(pieces, pair[1], pair[0])
    worst = found.worst(pieces, tokenizer, 3)
    every = np.concatenate([part.kl for part in found.parts])
    assert [w.kl for w in worst] == sorted(every, reverse=True)[:3]
    assert all(tokenizer.decode([ids[w.at]]) == w.token for w in worst)


@given(st.integers(2, 40), st.integers(0, 2**32 - 1))
def test_what_a_server_tells_gives_no_more_than_the_divergence(width: int, seed: int) -> None:
    """Unlisted tokens count as one outcome, and joining outcomes never adds divergence."""
    rng = np.random.default_rng(seed)
    base, rows = rng.normal(0, 2, (2, 3, width))
    logp = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    listed = [rng.choice(width, rng.integers(1, width + 1), replace=False) for _ in range(3)]
    told = ServerLogprobs([{int(i): float(logp[n, i]) for i in ids} for n, ids in enumerate(listed)])
    for some, all_ in (
        (divergence(base, told), divergence(base, rows)),
        (divergence(told, base), divergence(rows, base)),
    ):
        assert (some <= all_ + 1e-9).all()
        assert (some >= -1e-12).all()
    everything = ServerLogprobs([{i: float(logp[n, i]) for i in range(width)} for n in range(3)])
    assert divergence(base, everything) == pytest.approx(divergence(base, rows), abs=1e-7)


@pytest.mark.parametrize(("ids", "window"), [([5], 4), ([], 4), ([1, 2, 3, 4], 3)])
def test_refused(ids: list[int], window: int) -> None:
    with pytest.raises(AssayError):
        cut(ids, window)


def test_two_vocabularies_have_no_divergence() -> None:
    with pytest.raises(AssayError, match="two vocabularies"):
        divergence(np.zeros((1, 4)), np.zeros((1, 5)))


def test_command(files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("hello world the word in on a hello world " * 20)
    page = tmp_path / "page.html"
    a, b = map(str, files)
    assert main(["eval", b, "--kl", a, "-f", str(text), "--window", "32", "--html", str(page), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    low, high = found["kl"]["interval"]
    assert 0 < low < found["kl"]["value"] < high
    assert found["base_perplexity"]["value"] > 1
    assert len(found["worst"]) == 5
    assert "<mark>" in page.read_text()
    assert main(["eval", a, "-f", str(text), "--chunks", "1", "--window", "32"]) == 0
    assert "perplexity" in capsys.readouterr().out
    assert main(["eval", "http://127.0.0.1:9", "-f", str(text)]) == 2
    assert "tokenizer" in capsys.readouterr().err
