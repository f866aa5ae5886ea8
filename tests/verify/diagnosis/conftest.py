"""The synthetic model of every block type, opened once."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load
from tests.synthetic import make_kquant


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_kquant(tmp_path_factory.mktemp("model") / "synthetic.gguf")


@pytest.fixture(scope="session")
def model(path: Path) -> Model:
    return load(open_file(path))


@pytest.fixture(scope="session")
def weights(model: Model) -> Weights:
    return Weights(model.file)
