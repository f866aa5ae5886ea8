"""Perplexity against a hand computation, and its limits."""

from __future__ import annotations

import numpy as np
import pytest

from assay.engines.base import Chunk
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import load
from assay.runtime.evaluate import evaluate
from tests import tiny


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> ReferenceEngine:
    return ReferenceEngine(load(open_file(tiny.make(tmp_path_factory.mktemp("eval") / "tiny.gguf"))))


def test_by_hand(engine: ReferenceEngine) -> None:
    ids = [5, 9, 30, 31, 7, 90, 12]
    losses = []
    for part in ([1, 5, 9, 30], [1, 31, 7, 90], [1, 12]):  # windows of 4, each after BOS
        for n in range(1, len(part)):
            logits = engine.forward([Chunk(np.array(part[:n], np.int32), 0, np.zeros(1, np.int32))])[0].logits[0]
            losses.append(-np.log(np.exp(logits[part[n]]) / np.exp(logits).sum()))
    found = evaluate(engine, ids, window=4, bos=1)
    assert found.n_tokens == len(losses) == 7
    assert found.nll == pytest.approx(np.mean(losses), rel=1e-9)
    assert found.perplexity == pytest.approx(np.exp(np.mean(losses)), rel=1e-9)
    assert found.error == pytest.approx(np.std(losses, ddof=1) / np.sqrt(7), rel=1e-9)


@pytest.mark.parametrize(("ids", "window"), [([5], 4), ([], 4), ([1, 2, 3], 1), ([1, 2, 3], 10**9)])
def test_refused(engine: ReferenceEngine, ids: list[int], window: int) -> None:
    with pytest.raises(AssayError):
        evaluate(engine, ids, window)
