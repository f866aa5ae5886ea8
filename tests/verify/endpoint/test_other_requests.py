"""Servers that answer a prompt otherwise after or beside another request: `diagnose --endpoint` says so and why."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from assay.engines.reference import ReferenceEngine
from assay.gguf import open_file
from assay.models import Model, load
from assay.text import Tokenizer
from assay.verify.endpoint.blackbox import _allowed, diagnose_endpoint
from assay.verify.endpoint.client import Client
from assay.verify.endpoint.other_requests import LONGER, OTHER, OddCompany, company
from assay.verify.endpoint.simulated import SimulatedServer
from tests.verify.conformance.test_between_requests import Keeps, Mixes, Pads
from tests.verify.endpoint.batching_server import PAGES, batching, with_words
from tests.waiting import wait_until

KINDS = ("qwen35", "mamba2")  # one with attention beside its states, one without


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("batching")
    return {name: load(open_file(with_words(name, folder / f"{name}.gguf"))) for name in KINDS}


def asked(model: Model, make: type[ReferenceEngine]) -> OddCompany | None:
    """The probe alone; the other probes of `diagnose_endpoint` would take most of the time."""
    tokenizer, server = Tokenizer.from_gguf(model.file), SimulatedServer(model)
    with batching(make(model, n_pages=8 * PAGES), tokenizer) as url:
        client = Client(url, tokenizer)
        return company(server, client, _allowed(model, client), lambda text: None, [])


def test_the_two_longer_prompts_have_the_same_number_of_tokens(models: dict[str, Model]) -> None:
    tokenizer = Tokenizer.from_gguf(models["qwen35"].file)
    assert len(tokenizer.encode(LONGER)) == len(tokenizer.encode(OTHER)) == 32 < PAGES * 32 - 8


@pytest.mark.parametrize("name", KINDS)
def test_a_right_server_passes(name: str, models: dict[str, Model]) -> None:
    assert asked(models[name], ReferenceEngine) is None


@pytest.mark.parametrize("name", KINDS)
def test_a_state_that_is_not_cleared(name: str, models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.engines.reference._PagedCache", Keeps)
    found = asked(models[name], ReferenceEngine)
    assert found and found.situation == "request after another"
    assert found.cause.fault == "st-leak" and found.certain, found


@pytest.mark.parametrize("name", KINDS)
def test_padding(name: str, models: dict[str, Model]) -> None:
    found = asked(models[name], Pads)
    assert found and found.situation == "request beside another"
    assert found.cause.fault == "st-pad-enters" and "length" in found.cause.how, found
    assert not found.certain, "decaying padding and positions may look alike"


@pytest.mark.parametrize("name", KINDS)
def test_a_neighbours_state(name: str, models: dict[str, Model]) -> None:
    found = asked(models[name], Mixes)
    assert found and found.situation == "request beside another"
    assert found.cause.fault == "st-leak" and "words" in found.cause.how, found


def test_diagnose_names_the_leak(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """All probes: the answers that the leak spoils are not explained by anything else."""
    monkeypatch.setattr("assay.engines.reference._PagedCache", Keeps)
    model = models["qwen35"]
    tokenizer = Tokenizer.from_gguf(model.file)
    with batching(ReferenceEngine(model, n_pages=8 * PAGES), tokenizer) as url:
        found = diagnose_endpoint(model, Client(url, tokenizer))
    assert found.first_wrong == "request after another" and [c.fault for c in found.causes] == ["st-leak"]


@pytest.mark.slow
def test_the_real_server_passes(models: dict[str, Model]) -> None:
    """`assay serve` and `assay diagnose --endpoint`, each in a process of its own."""
    path = str(models["qwen35"].file.path)
    serve = [sys.executable, "-m", "assay", "serve", path, "--port", "0", "--engine", "cpu", "--threads", "1"]
    with subprocess.Popen(serve, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        url = server.stderr.readline().split(" at ")[1].split(" ")[0]
        command = [sys.executable, "-m", "assay", "diagnose", path, "--endpoint", url, "--json"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        server.terminate()
    assert found.returncode == 0, found.stdout + found.stderr
    assert json.loads(found.stdout)["verdict"] == "healthy"


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health") as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


@pytest.mark.skipif(shutil.which("llama-server") is None, reason="llama.cpp's server is not installed")
def test_llamacpps_server_passes(models: dict[str, Model], tmp_path: Path) -> None:
    model, port = models["qwen35"], 18431
    command = ["llama-server", "-m", str(model.file.path), "--port", str(port), "-np", "4", "--no-webui"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: _healthy(url))
            assert diagnose_endpoint(model, Client(url, Tokenizer.from_gguf(model.file))).verdict == "healthy"
        finally:
            server.terminate()
