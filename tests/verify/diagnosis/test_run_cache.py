"""Cached runs give the same diagnoses as computed ones."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis import run_cache
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.diagnosis.run_cache import RunCache, run_cache_of
from tests import planting, tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Two layers of 64: whether a run was kept or computed does not depend on its size."""
    return load(open_file(tiny.make(tmp_path_factory.mktemp("model") / "tiny.gguf", type="Q8_0")))


@pytest.mark.parametrize("style", ["last", pytest.param("logits", marks=pytest.mark.slow)])
def test_another_dump_of_the_same_tokens(model: Model, tmp_path: Path, style: str) -> None:
    weights, bugs = Weights(model.file), ("gqa-modulo", "rope-type")
    for bug in bugs:
        case = planting.second(model.file.path, bug)
        dump = planting.dump(case, style, model, tmp_path / bug)
        found = diagnose(model, dump, weights=weights)
        assert found.causes[0].fault == bug
        if bug == bugs[-1]:  # with the cached runs of the case before
            assert found.to_dict() == diagnose(model, dump, weights=Weights(model.file)).to_dict()


@pytest.mark.slow
def test_composed_runs_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake that no row names in a word, in logits: the grammar's runs are computed for the first dump alone."""
    model = load(open_file(tiny.make(tmp_path / "tiny.gguf", type="Q8_0", n_layer=1)))
    dump = planting.dump(planting.second(model.file.path, "softmax-unfilled"), "logits", model, tmp_path / "dump")
    found, missed = [], list[int]()
    recall = RunCache.recall

    def counted(self: RunCache, key: Hashable) -> dict[str, NDArray[Any]] | None:
        value = recall(self, key)
        missed[-1] += value is None
        return value

    monkeypatch.setattr(RunCache, "recall", counted)
    weights = Weights(model.file)
    for _ in range(2):
        missed.append(0)
        found.append(diagnose(model, dump, weights=weights).to_dict())
    assert missed[0] > 1000 and missed[1] == 0
    assert found[0] == found[1] and found[0]["causes"][0]["fault"] == "softmax-unfilled"


def test_other_tokens_are_other_runs(model: Model, tmp_path: Path) -> None:
    weights, tokens = Weights(model.file), tuple(reversed(planting.TOKENS))
    for i, fed in enumerate((planting.TOKENS, tokens)):
        case = planting.second(model.file.path, "gqa-modulo", tokens=fed)
        dump = planting.dump(case, "last", model, tmp_path / str(i), fed)
        assert diagnose(model, dump, weights=weights).causes[0].fault == "gqa-modulo"


def test_what_is_kept_is_bounded_and_read_only(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_cache, "ROOM", 2000)
    monkeypatch.setattr(run_cache, "LARGEST", 800)
    kept, value = RunCache(model.graph), np.arange(50.0)
    for i in range(10):
        kept.keep(i, {"x": value})
    kept.keep("large", {"x": np.zeros(101)})
    assert [kept.recall(i) is not None for i in (*range(10), "large")] == [False] * 5 + [True] * 5 + [False]
    found = kept.recall(9)
    assert found is not None and not found["x"].flags.writeable
    value[0] = 1.0
    assert found["x"][0] == 0.0


def test_a_cache_belongs_to_its_weights_and_graph(model: Model) -> None:
    one, other = Weights(model.file), Weights(model.file)
    assert run_cache_of(one, model.graph) is run_cache_of(one, model.graph)
    assert run_cache_of(one, model.graph) is not run_cache_of(other, model.graph)
