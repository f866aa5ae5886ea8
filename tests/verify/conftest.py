"""Models, runs and dumps for the tests of verification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines.reference import Hooks, ReferenceEngine
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.tracing import take_trace
from assay.verify.judge.arithmetic import round_to
from tests import tiny

TOKENS = [1, 300, 297, 12, 300, 77]
NODES = "^(?!cache_)"  # the nodes that engines dump: no caches


@pytest.fixture(autouse=True)
def own_cache(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise and hashes are cached for the run and all its workers, not in the user's home. An entry's name has the
    model's digest and the tokens in it, so tests of the same model compute its noise once."""
    monkeypatch.setenv("ASSAY_HOME", str(run_folder / "assay-home"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Two layers of 64 in Q8_0, grouped queries, embeddings of a trained model's size."""
    return load(open_file(tiny.make(tmp_path_factory.mktemp("verify") / "tiny.gguf", type="Q8_0")))


@pytest.fixture(scope="session")
def truth(model: Model) -> Dump:
    return take_trace(ReferenceEngine(model), TOKENS, nodes=NODES)


def run_in(model: Model, kind: str, **options: Any) -> Dump:
    """A healthy engine whose every result, weight and cached value is in `kind`, summing in float64."""
    hooks = Hooks(result=lambda _node, value: round_to(value, kind) if value.dtype.kind == "f" else value)
    engine = ReferenceEngine(model, hooks=hooks)
    for name in model.file.tensors:
        engine.weights._kept[name] = round_to(model.file.decode(name).astype(np.float64), kind)
    return take_trace(engine, TOKENS, nodes=NODES, **options)


def changed(dump: Dump, name: str, change: Callable[[np.ndarray], None]) -> Dump:
    """The dump with one node's values changed in place, and nothing after it."""
    value = np.array(dump.values(name))
    change(value)
    return replace(dump, observations=tuple(replace(o, data=value) if o.name == name else o for o in dump.observations))


def path_of(model: Model) -> Path:
    return model.file.path
