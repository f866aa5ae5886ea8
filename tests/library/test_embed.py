"""Vectors of texts: equal to llama.cpp's and transformers', whatever shares the step and however a text was cut."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import assay
from assay.cli import main
from assay.engines.reference import functions
from assay.errors import AssayError
from tests import tiny
from tests.models import embeddings, golden, others

POOLED = [name for name, case in others.CASES.items() if "pooling_type" in case.row.keys]
ENCODERS = ("bert", "nomic-bert", "gemma-embedding")


def unit(vector: np.ndarray) -> np.ndarray:
    return vector.ravel() / np.linalg.norm(vector)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("embed") / "model.gguf"


def looked_up(x: np.ndarray) -> np.ndarray:
    """llama.cpp's GELU: a table from half to half. It moves a tiny model's vectors by 2e-4, and it is not ours."""
    inside = functions.gelu_tanh(x.astype(np.float16).astype(np.float64)).astype(np.float16)
    return np.where(np.abs(x) < 10, inside, np.maximum(x, 0)).astype(x.dtype)


@pytest.fixture
def gelu_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(functions.ACTIVATIONS, "gelu_tanh", looked_up)


@pytest.mark.parametrize("name", POOLED)
def test_vectors_are_llama_cpps(name: str, path: Path, gelu_table: None) -> None:
    others.make(name, path)
    with assay.load(path, "reference") as model:
        found = model.embed(others.IDS)
    np.testing.assert_allclose(found, unit(np.load(others.GOLDEN)[name]), atol=1e-4)


@pytest.mark.parametrize("name", POOLED)
def test_vectors_of_the_cpu_engine_are_llama_cpps(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a float32 cache on both sides: the definition's to 1e-6, and llama.cpp's but for what its table moves."""
    others.make(name, path)
    with assay.load(path, precision="exact") as model:
        found = model.embed(others.IDS)
    with assay.load(path, "reference") as model:
        defined = model.embed(others.IDS)
        monkeypatch.setitem(functions.ACTIVATIONS, "gelu_tanh", looked_up)
        moved = model.embed(others.IDS) - defined
    np.testing.assert_allclose(found, defined, atol=1e-6)
    np.testing.assert_allclose(found + moved, unit(np.load(others.GOLDEN)[name]), atol=1e-4)


@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_of_the_golden_files_are_llama_cpps(name: str, gelu_table: None) -> None:
    recorded = golden.golden(name)
    with assay.load(golden.path(name), "reference") as model:
        found = model.embed(recorded.tokens)
    np.testing.assert_allclose(found, unit(recorded.values["result_embd_pooled"]), atol=1e-4)


@pytest.mark.parametrize("name", embeddings.CASES)
def test_vectors_are_those_of_transformers(name: str, path: Path) -> None:
    """Recorded: `python tests/models/embeddings.py`."""
    others.make(name, path)
    with assay.load(path, precision="exact") as model:
        found = model.embed(embeddings.TEXTS)
    np.testing.assert_allclose(found, np.load(embeddings.RECORD)[name], atol=1e-4)


@pytest.mark.parametrize("name", [*ENCODERS, "gemma-embedding, dense layers", "qwen3, pooling last", "qwen3"])
def test_a_text_is_embedded_alone_beside_others_and_in_pieces_alike(name: str, path: Path) -> None:
    """Bit for bit: short texts share steps, long ones are run whole or, where the model is causal, chunk by chunk."""
    others.make(name, path)
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, others.N_VOCAB, n).tolist() for n in (1, 2, 7, 33, 150, 20, 300, 5)]
    with assay.load(path) as model:
        together = model.embed(texts)
        alone = [model.embed(text) for text in texts]
        np.testing.assert_array_equal(together, alone)
        model.generator.scheduler.chunk = 16
        np.testing.assert_array_equal(model.embed(texts), alone)
        np.testing.assert_allclose(np.linalg.norm(alone, axis=1), 1, rtol=1e-6)


def test_dimensions_and_pooling(path: Path) -> None:
    others.make("bert", path)  # pools by the mean
    with assay.load(path) as model:
        whole = model.embed([1, 2, 3])
        np.testing.assert_allclose(model.embed([1, 2, 3], dimensions=8), unit(whole[:8]), rtol=1e-5)
        rows = model.trace([1, 2, 3])["result_embd"]
        for pooling, row in (("first", rows[0]), ("last", rows[-1]), ("mean", rows.mean(axis=0))):
            np.testing.assert_allclose(model.embed([1, 2, 3], pooling=pooling), unit(row), atol=1e-6)
        for dimensions in (0, 73):
            with pytest.raises(AssayError, match="dimensions: must be 1 to 72"):
                model.embed([1], dimensions=dimensions)
        with pytest.raises(AssayError, match="pooling: must be mean, first, last"):
            model.embed([1], pooling="max")
    others.make("gemma-embedding, dense layers", path)
    with assay.load(path) as model, pytest.raises(AssayError, match="projects its pooled row"):
        model.embed([1], pooling="last")


def test_an_encoder_generates_nothing(path: Path) -> None:
    others.make("bert", path)
    with assay.load(path) as model:
        for ask in (lambda: model.generate([1, 2]), lambda: model.logits([1, 2])):
            with pytest.raises(AssayError, match="is an encoder, which embeds text and cannot generate it"):
                ask()


def test_the_command_line(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.make(path)
    (tmp_path / "lines.txt").write_text("hello\n\nthe world\n")
    given = ["embed", str(path), "-p", "a", "-f", str(tmp_path / "lines.txt"), "--ids", "5,6"]
    assert main([*given, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    vectors = np.array(said["embeddings"], np.float32)
    assert vectors.shape == (4, 64) and said["pooling"] == "mean" and len(said["tokens"]) == 4
    assert main(given) == 0
    printed = [[float(value) for value in line.split()] for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_array_equal(np.array(printed, np.float32), vectors)
    for name in ("v.npy", "v.json"):
        assert main([*given, "-o", str(tmp_path / name)]) == 0 and "4 vectors of 64" in capsys.readouterr().out
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), vectors)
    assert json.loads((tmp_path / "v.json").read_text())["embeddings"] == said["embeddings"]
    wrong = {
        "no text": ["embed", str(path)],
        "-o: must end in": [*given, "-o", "v.txt"],
        "dimensions: must be": [*given, "--dimensions", "65"],
        "not in the vocabulary": ["embed", str(path), "--ids", "99999"],
        "has no tokens": ["embed", str(path), "--ids", ""],
    }
    for message, arguments in wrong.items():
        assert main(arguments) == 2 and message in capsys.readouterr().err
