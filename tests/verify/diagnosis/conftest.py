"""The synthetic model of every block type, opened once; diagnoses of healthy engines, made once."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.engines.reference import ReferenceEngine
from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.tracing import take_trace
from tests import planting
from tests.synthetic import make_kquant
from tests.verify.conftest import NODES, TOKENS


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_kquant(tmp_path_factory.mktemp("model") / "synthetic.gguf")


@pytest.fixture(scope="session")
def model(path: Path) -> Model:
    return load(open_file(path))


@pytest.fixture(scope="session")
def weights(model: Model) -> Weights:
    return planting.weights_of(model.file)


@pytest.fixture(scope="session")
def truth(model: Model) -> Dump:
    """A run of this folder's model. The outer fixture of this name is made once, of the model that is asked first."""
    return take_trace(ReferenceEngine(model), TOKENS, nodes=NODES)


Diagnosed = Callable[[str, str], dict[str, Any]]


@pytest.fixture(scope="session")
def healthy(model: Model, run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Diagnosed:
    """The diagnosis of the second engine without a fault, by its arithmetic and the style of its dump.

    Tests in several files ask about the same cases. Each is diagnosed once: the answer is kept in a file that all
    workers read, and a worker that needs it waits for the one that computes it.
    """
    folder = run_folder / "healthy"
    folder.mkdir(exist_ok=True)

    def diagnosed(arithmetic: str, style: str) -> dict[str, Any]:
        answer = folder / f"{arithmetic}-{style}.json"
        with answer.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not answer.exists():
                case = planting.second(model.file.path, arithmetic=arithmetic)
                dump = planting.dump(case, style, model, tmp_path_factory.mktemp("healthy"))
                found = diagnose(model, dump, weights=planting.weights_of(model.file))
                answer.write_text(json.dumps({"alarm": not found, **found.to_dict()}, default=str))
        known: dict[str, Any] = json.loads(answer.read_text())
        return known

    return diagnosed
