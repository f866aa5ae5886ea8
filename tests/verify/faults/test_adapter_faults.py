"""Faults of LoRA adapters: made by changed matrices of a model without adapters, named by `diagnose --lora`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from assay.cli import main
from assay.engines.reference import ReferenceEngine
from assay.gguf import open_file
from assay.models import Model, load
from assay.models.adapters import Adapter, open_adapter, with_adapters
from assay.verify.faults import FAULTS, Context, Stage, planted
from tests.engines.test_adapters import ALPHA, make_adapter
from tests.engines.test_adapters import chunk as whole_chunk
from tests.tiny import make

IDS = (1, 290, 265, 271, 260, 288)
SCALE, RANK = 0.75, 6
Delta = Callable[[str], np.ndarray]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Every layer, and gate and up, of one shape; q is square."""
    return load(open_file(make(tmp_path_factory.mktemp("lora") / "tiny.gguf", type="F16", n_layer=3, n_head_kv=4)))


@pytest.fixture(scope="module")
def adapter(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Adapter:
    return open_adapter(make_adapter(tmp_path_factory.mktemp("adapter") / "a.gguf", model, rank=RANK), model, SCALE)


def other_name(name: str, pattern: str, to: str) -> str:
    return re.sub(pattern, to, name)


# What a faulty engine adds to a matrix; `right(name)` is s alpha / r B A.
WRONG: dict[str, Callable[[str, Delta], np.ndarray]] = {
    "lora-scale": lambda name, right: right(name) * RANK / ALPHA,
    "lora-twice": lambda name, right: 2 * right(name),
    "lora-ignored": lambda name, right: 0 * right(name),
    "lora-a-b-swapped": lambda name, right: right(name).T if "attn_q" in name or "attn_out" in name else right(name),
    "lora-wrong-layer": lambda name, right: right(other_name(name, r"blk\.\d", "blk.0")),
    "lora-wrong-projection": lambda name, right: right(
        name.replace("gate", "*").replace("up", "gate").replace("*", "up")
    ),
}


def values_of(model: Model, adapter: Adapter, fault: str) -> dict[str, np.ndarray]:
    """Every node of an engine that merges the adapter into its matrices, with a mistake."""

    def right(name: str) -> np.ndarray:
        a, b = (adapter.file.decode(f"{name}.lora_{part}").astype(np.float64) for part in "ab")
        return np.asarray(SCALE * ALPHA / RANK * (b @ a))

    engine = ReferenceEngine(model)
    for name in adapter.pairs:
        added = WRONG[fault](name, right) if fault else right(name)
        engine.weights._kept[name] = engine.weights[name] + added
    names = [node.name for node in model.graph if "S" not in model.graph.shapes[node.name]]
    return dict(engine.forward([whole_chunk(IDS)], names)[0].nodes)


@pytest.mark.parametrize("fault", ["", *WRONG])
def test_the_fault_is_named(
    model: Model, adapter: Adapter, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {name: value.astype(np.float32) for name, value in values_of(model, adapter, fault).items()}
    np.savez(tmp_path / "dump.npz", tokens=np.array(IDS), **values)  # type: ignore[arg-type]
    command = ["diagnose", str(model.file.path), str(tmp_path / "dump.npz"), "--lora", f"{adapter.file.path}={SCALE}"]
    code = main([*command, "--json"])
    found = json.loads(capsys.readouterr().out)
    if not fault:
        assert (code, found["verdict"]) == (0, "healthy")
        return
    assert code == 1
    assert found["causes"][0]["fault"] == fault, [cause["fault"] for cause in found["causes"]]
    assert found["causes"][0]["right"]


def test_every_edit_changes_the_graph_of_an_adapted_model(model: Model, adapter: Adapter) -> None:
    context = Context(with_adapters(model, [adapter]))
    faults = [fault for fault in FAULTS.values() if fault.stage == Stage.ADAPTER]
    assert {fault.id for fault in faults} == set(WRONG)
    for fault in faults:
        for variant in fault.variants:
            assert planted(context, variant).touched, f"{fault.id}: {variant.label}"
            assert not planted(Context(model), variant).touched


def test_lora_is_refused_where_it_cannot_be_judged(
    model: Model, adapter: Adapter, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["diagnose", str(model.file.path), "--lora", str(adapter.file.path)]
    assert main([*given, "--endpoint", "http://127.0.0.1:9"]) == 2
    assert "--lora: judges a dump" in capsys.readouterr().err
