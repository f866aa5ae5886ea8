"""The file of llama-perplexity: read as it is written, and the same divergence as it would print."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.cli import main
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.evaluate.evaluation import evaluate
from assay.evaluate.logits_file import LogitsFile, is_logits_file
from assay.evaluate.pieces import TextWindow, cut
from assay.evaluate.predictors import EngineSource
from assay.evaluate.score import log_softmax
from assay.gguf import open_file
from assay.models import load
from tests import tiny

N_CTX = 16


def stored(logits: np.ndarray) -> tuple[bytes, np.ndarray]:
    """A row as llama-perplexity writes it, and the log-probabilities it reads back."""
    top = logits.max()
    least = max(logits.min(), top - 16)
    total = np.log(np.exp((logits - top).astype(np.float64)).sum())
    scale = np.float32((top - least) / 65535)
    floor = np.float32(least - top - total)
    steps = np.where(logits > least, np.rint((logits - least) / scale) if scale else 0, 0).astype(np.uint16)
    padded = np.append(steps, np.zeros(len(steps) % 2, np.uint16))
    return struct.pack("<ff", scale, floor) + padded.tobytes(), scale * steps.astype(np.float32) + floor


def write(path: Path, model: EngineSource, tokens: list[int], bos: int) -> list[np.ndarray]:
    n_chunk = len(tokens) // N_CTX
    rows, out = [], b"_logits_" + struct.pack("<Iii", N_CTX, model.n_vocab, n_chunk)
    out += np.array(tokens[: n_chunk * N_CTX], np.int32).tobytes()
    for piece in cut(tokens, N_CTX, bos):
        for row in np.asarray(model.rows(piece), np.float32):
            data, logp = stored(row)
            out += data
            rows.append(logp)
    path.write_bytes(out)
    return rows


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("kld")
    return tiny.make(folder / "a.gguf"), tiny.make(folder / "b.gguf", type="Q4_0")


def test_the_divergence_is_llama_perplexity_s(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, judged = (EngineSource(ReferenceEngine(load(open_file(path)))) for path in files)
    tokens = list(range(5, 5 + 2 * N_CTX))
    path = tmp_path / "base.kld"
    rows = write(path, base, tokens, bos=1)
    assert is_logits_file(path) and not is_logits_file(files[0]) and not is_logits_file(tmp_path)
    file = LogitsFile(path)
    pieces = file.pieces(bos=1)
    assert [p.tokens.tolist() for p in pieces] == [p.tokens.tolist() for p in cut(tokens, N_CTX, 1)]
    found = evaluate(pieces, judged, file)
    expected = []
    for logp, row in zip(rows, np.concatenate([np.asarray(judged.rows(p)) for p in pieces]), strict=True):
        other = log_softmax(row[None])[0]
        kept = logp > -16
        expected.append(np.sum(np.exp(logp[kept].astype(np.float64)) * (logp[kept] - other[kept])))
    assert found.kl is not None
    assert found.kl.value == pytest.approx(np.mean(expected), rel=1e-6)
    direct = evaluate(pieces, judged, base)
    assert direct.kl is not None
    assert found.kl.value == pytest.approx(direct.kl.value, rel=1e-2, abs=1e-6)  # 16 bits of each log-probability
    assert main(["eval", str(files[1]), "--kl", str(path), "--engine", "reference", "--worst", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kl"]["value"] == pytest.approx(found.kl.value, rel=1e-9)
    assert main(["eval", str(files[1]), "--kl", str(path), "-f", str(path)]) == 2
    assert "has its own tokens" in capsys.readouterr().err


@given(st.lists(st.floats(-40, 20, width=32), min_size=2, max_size=33))
def test_rows_are_read_as_they_are_written(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    row, expected = stored(np.array(values, np.float32))
    path = tmp_path_factory.getbasetemp() / "one.kld"
    tokens = np.zeros(4, np.int32).tobytes()
    path.write_bytes(b"_logits_" + struct.pack("<Iii", 4, len(values), 1) + tokens + row)
    found = LogitsFile(path).rows(TextWindow(0, np.zeros(4, np.int32), 0, 2))
    assert (found.logp[0] == expected.astype(np.float32)).all()


@pytest.mark.parametrize("size", [8, 15, 20, 40, 100])
def test_a_damaged_file_is_refused(files: tuple[Path, Path], tmp_path: Path, size: int) -> None:
    path = tmp_path / "base.kld"
    path.write_bytes((b"_logits_" + struct.pack("<Iii", N_CTX, 320, 2) + bytes(200))[:size])
    with pytest.raises(AssayError, match="incomplete"):
        LogitsFile(path)


def test_a_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "base.kld"
    tokens = np.array([0, 1, 9, 0], np.int32).tobytes()
    path.write_bytes(b"_logits_" + struct.pack("<Iii", 4, 4, 1) + tokens + bytes(16))
    with pytest.raises(AssayError, match="outside the vocabulary"):
        LogitsFile(path).pieces(None)
