"""Kits and checks of every kind of graph that an architecture has: written, answered in float32, passed.

The probes are token ids: the files have no words.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from assay.cli import main
from assay.engines.reference import ReferenceEngine
from assay.gguf import open_file
from assay.models import load
from assay.text import Tokenizer
from assay.verify.conformance.grade import expected, score_kit
from assay.verify.conformance.vectors import write_kit
from assay.verify.dumps.tracing import take_trace
from tests.models import others

QUICK = ("bert", "deepseek2", "gpt2")  # an encoder, groups of experts with MLA, learned positions


def answered(kit: Path, path: Path, results: Path) -> None:
    """The probes that are one step, by the reference in float32, and every operation."""
    manifest = json.loads((kit / "manifest.json").read_text())
    for section in ("probes", "ops"):
        (results / section).mkdir(parents=True)
    for item in manifest["ops"]:
        expected(kit, item["output"]).tofile(results / "ops" / f"{item['op']}.bin")
    engine = ReferenceEngine(load(open_file(path)), np.float32)
    for probe in manifest["probes"]:
        if len(probe["steps"]) > 1:
            continue
        names = "|".join(f"^{node['name']}$" for node in probe["nodes"])
        trace = take_trace(engine, probe["tokens"], nodes=names, positions=probe["positions"])
        values = {obs.name: obs.array() for obs in trace.observations}
        np.savez(results / "probes" / f"{probe['id']}.npz", tokens=np.array(probe["tokens"]), **values)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in others.KINDS])
def test_a_kit_of_every_architecture(name: str, tmp_path: Path) -> None:
    others.make(name, tmp_path / "model.gguf")
    model = load(open_file(tmp_path / "model.gguf"))
    tokenizer = Tokenizer.from_gguf(model.file, nameless=model.hparams.n_vocab)
    manifest = write_kit(model, tokenizer, tmp_path / "kit")
    stepped = [probe for probe in manifest["probes"] if len(probe["steps"]) > 1]
    assert bool(stepped) != model.graph.whole
    limits = [x for p in manifest["probes"] for node in p["nodes"] for x in node["nmse"].values()]
    assert np.isfinite(limits).all()
    answered(tmp_path / "kit", tmp_path / "model.gguf", tmp_path / "results")
    score = score_kit(tmp_path / "kit", tmp_path / "results")
    assert not [g for g in score.grades if g.verdict == "wrong"]
    assert sum(g.section == "probes" and g.passed for g in score.grades) > 20


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in others.KINDS])
def test_the_cpu_engine_passes_its_check(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not others.on_cpu(name):
        pytest.skip("the cpu engine has no kernel for an operation of this architecture")
    others.make(name, tmp_path / "model.gguf")
    assert main(["check", str(tmp_path / "model.gguf"), "--lengths", "1,9"]) == 0, capsys.readouterr().out
