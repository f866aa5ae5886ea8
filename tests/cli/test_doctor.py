"""`assay doctor`: the facts of this machine, the check of its bits, and what it says when bits are wrong."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from assay import _native
from assay.engines import ENGINES, missing_reasons
from assay.engines.wgpu.adapter import gpu
from assay.library import machine_report, self_check
from assay.system import extras
from assay.version import __version__
from tests.cli.conftest import Assay


@pytest.fixture(autouse=True)
def no_adapter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU in software takes seconds, so that one test alone asks for it."""
    if "adapter" not in request.node.name:
        monkeypatch.setenv("ASSAY_ADAPTER", "none of them")


def test_the_whole_report_on_this_machine(here: Assay) -> None:
    done = here("doctor")
    assert done.returncode == 0, done.stdout
    assert "  WebGPU: none: " in done.stdout and ("ASSAY_ADAPTER=" in done.stdout)
    for part in (__version__, "used: ", "reference  runs here", "cpu        runs here", "the same bits on every",
                 "not installed: ", "all bits are as recorded"):  # fmt: skip
        assert part in done.stdout
    for isa in _native.isas():
        assert f"cpu, {isa}" in done.stdout


def test_the_object_has_every_part(here: Assay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "RECORDED", {key: self_check.RECORDED[key] for key in [("Q8_0", "fast")]})
    found = json.loads(here("doctor", "--json").stdout)
    assert found["passed"] is True
    assert found["machine"]["assay"] == __version__
    assert found["instruction_sets"] == {"found": _native.isas(), "used": _native.Pool(1).isa, "why": None}
    assert [check["engine"] for check in found["checks"]][: len(_native.isas())] == [
        f"cpu, {i}" for i in _native.isas()
    ]
    assert {engine["name"] for engine in found["engines"]} >= {"reference", "cpu", "cuda"}
    assert {"cuda", "llamacpp", "transformers"} <= {extra["name"] for extra in found["extras"]}


@pytest.mark.slow
@pytest.mark.skipif("wgpu" not in ENGINES, reason="wgpu or a Vulkan driver is not installed")
def test_the_tier_of_the_adapter(here: Assay) -> None:
    """A GPU is named with its tier, also one in software, which runs one model alone."""
    checks = {check["engine"]: check for check in json.loads(here("doctor", "--json").stdout)["checks"]}
    name = gpu().name
    (found,) = (check for engine, check in checks.items() if engine.startswith(f"wgpu, {name}, tier "))
    assert json.loads(here("doctor", "--no-check", "--json").stdout)["webgpu"]["adapters"][0] == name
    assert found["passed"] and found["cases"] == (1 if gpu().software else len(self_check.RECORDED))


def test_the_record_belongs_to_this_arithmetic() -> None:
    assert self_check.ARITHMETIC == _native.ARITHMETIC


def test_other_bits_are_a_difference(here: Assay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        self_check, "RECORDED", {("Q8_0", "fast"): "0" * 16, ("Q4_K", "exact"): self_check.RECORDED["Q4_K", "exact"]}
    )
    done = here("doctor")
    assert done.returncode == 1
    assert "DIFFERENT: Q8_0 fast" in done.stdout
    assert "Q4_K" not in done.stdout
    assert "this machine computes other bits than assay defines" in done.stdout
    found = json.loads(here("doctor", "--json").stdout)
    assert found["passed"] is False
    assert found["checks"][0]["wrong"] == ["Q8_0 fast"]


def test_facts_alone(here: Assay, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "x.gguf").write_bytes(bytes(5000))
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    monkeypatch.setenv("ASSAY_ISA", "zork")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    done = here("doctor", "--no-check")
    assert done.returncode == 0
    assert "models of assay" in done.stdout and "5.0 kB" in done.stdout
    assert "ASSAY_ISA=zork" in done.stdout and "HF_TOKEN=set" in done.stdout
    assert "secret" not in done.stdout
    assert "self-check" not in done.stdout
    found = machine_report.instruction_sets()
    assert found["used"] is None and "zork" in found["why"]


def test_no_driver_is_a_fact() -> None:
    found = machine_report.gpus("libno-such-driver.so.1")
    assert found["devices"] == []
    assert "there is no NVIDIA driver" in found["why"]


def test_every_engine_and_every_extra_is_listed() -> None:
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {engine["name"] for engine in machine_report.engine_facts()} >= set(missing_reasons())
    assert extras.names() == sorted(set(declared["optional-dependencies"]) - {"test", "lint"})
