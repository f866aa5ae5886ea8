"""`assay list`, `show`, `rm` and `completion`, on a home of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.cli import verbs
from tests.cli.conftest import Assay


@pytest.fixture
def stores(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of each kind: fetched by assay, in the hub's cache, in Ollama's store."""
    own = tmp_path / "home" / "models" / "hf" / "owner" / "mine"
    snapshot = tmp_path / "hub" / "models--owner--theirs" / "snapshots" / ("a" * 40)
    blob = tmp_path / "ollama" / "blobs" / f"sha256-{'b' * 64}"
    manifest = tmp_path / "ollama" / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "1b"
    for path in (own / "m-Q8_0.gguf", snapshot / "t.gguf", blob):
        path.parent.mkdir(parents=True)
        shutil.copy(model, path)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("a" * 40)
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'b' * 64}",
             "size": model.stat().st_size}  # fmt: skip
    manifest.write_text(json.dumps({"layers": [layer]}))
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return own / "m-Q8_0.gguf"


def test_all_models_of_the_machine_are_listed_and_can_be_run(here: Assay, stores: Path) -> None:
    found = json.loads(here("list", "--json").stdout)["models"]
    assert [(m["name"], m["owner"]) for m in found] == [
        ("hf:owner/mine:m-Q8_0.gguf", "assay"),
        ("hf:owner/theirs:t.gguf", "huggingface_hub"),
        ("ollama:tiny:1b", "ollama"),
    ]
    lines = here("list").stdout.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "MODIFIED", "KEPT", "BY"]
    assert "\x1b" not in lines[0]
    for model in found:
        assert here("run", model["name"], "hi", "--raw", "-n", "1", "--temp", "0").returncode == 0


def test_only_what_assay_fetched_is_deleted(here: Assay, stores: Path) -> None:
    assert "belongs to ollama; `ollama rm tiny:1b` deletes it" in here("rm", "ollama:tiny:1b").stderr
    assert "belongs to huggingface_hub" in here("rm", "hf:owner/theirs").stderr
    done = here("rm", "hf:owner/mine")
    assert done.returncode == 0
    assert done.stdout.startswith("deleted hf:owner/mine:m-Q8_0.gguf; ")
    assert not stores.exists()
    assert len(json.loads(here("list", "--json").stdout)["models"]) == 2


def test_nothing_here_says_what_to_do(here: Assay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASSAY_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(tmp_path))
    assert here("list").stdout == "no models on this machine; `assay pull smollm2` downloads one\n"


def test_show_is_one_screen(here: Assay, model: Path, base_model: Path) -> None:
    text = here("show", model).stdout
    assert "architecture  llama" in text
    assert "template      in the file" in text
    assert len(text.splitlines()) < 20
    assert (
        here("show", model, "--template").stdout == json.loads(here("show", model, "--json").stdout)["template"] + "\n"
    )
    assert "none: use --raw" in here("show", base_model).stdout


def test_show_of_a_model_that_is_not_here_downloads_nothing(here: Assay, stores: Path) -> None:
    text = here("show", "qwen3:4b").stdout
    assert "hf:Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q4_K_M.gguf" in text
    assert "no; `assay pull qwen3:4b` downloads it" in text
    assert json.loads(here("show", "qwen3:4b", "--json").stdout)["here"] is False
    assert "not on this machine" in here("show", "qwen3", "--template").stderr


def test_search_lists_names_with_sizes_and_what_is_here(here: Assay, stores: Path) -> None:
    file = stores.parents[2] / "Qwen" / "Qwen3-0.6B-GGUF" / "Qwen3-0.6B-Q8_0.gguf"
    file.parent.mkdir(parents=True)
    shutil.copy(stores, file)
    lines = here("search", "qwen3", "0.6b").stdout.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "PARAMETERS", "HERE", "ABOUT"]
    assert lines[1].split()[:5] == ["qwen3:0.6b", "640", "MB", "0.6B", "here"]
    assert json.loads(here("search", "qwen3", "0.6b", "--json").stdout)["models"][0]["here"] is True
    assert here("run", "qwen3:0.6b", "hi", "--raw", "-n", "1", "--temp", "0").returncode == 0
    assert "qwen3:0.6b" in here("list").stdout
    assert here("rm", "qwen3:0.6b").stdout.startswith("deleted qwen3:0.6b; ")
    assert not file.exists()


def test_an_architecture_without_a_builder_is_said(
    here: Assay, stores: Path, hide_architecture: Callable[[str], object]
) -> None:
    hide_architecture("gpt-oss")
    assert {m["supported"] for m in json.loads(here("search", "gpt-oss", "--json").stdout)["models"]} == {False}
    assert "architecture gpt-oss: not supported" in here("search", "gpt-oss").stdout
    assert "its architecture is not supported yet" in here("show", "gpt-oss").stdout
    done = here("run", "gpt-oss", "hi")
    assert done.returncode == 2
    assert "gpt-oss: its architecture gpt-oss is not supported yet; models of a similar kind: " in done.stderr


def test_a_model_larger_than_the_memory_is_said(here: Assay, stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.system.machine.memory", lambda: 6 * 10**9)
    done = here("run", "llama3.3", "hi")
    assert done.returncode == 2  # offline
    first = done.stderr.splitlines()[0]
    assert "llama3.3: 43 GB of weights, and the memory of this machine has 6 GB: it will be slow or fail" in first
    assert "smaller: llama2, llama3.2, llama3.2:1b" in first


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_its_shell_takes(here: Assay, shell: str, tmp_path: Path) -> None:
    script = here("completion", shell).stdout
    assert all(verb in script for verb in verbs())
    assert "top-k" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its script is not run")
    path = tmp_path / "script"
    path.write_text(script)
    assert subprocess.run([shell, "-n", str(path)], capture_output=True).returncode == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_verbs_options_and_models(here: Assay, tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text(here("completion", "bash").stdout)

    def complete(*words: str) -> list[str]:
        typed = " ".join(f"'{word}'" for word in words)
        code = f'source {path}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _assay; echo "${{COMPREPLY[@]}}"'
        return subprocess.run(["bash", "-c", code], capture_output=True, text=True, cwd=tmp_path).stdout.split()

    assert complete("assay", "qu") == ["quantize"]
    assert complete("assay", "run", "--top-") == ["--top-k", "--top-p", "--top-n-sigma", "--top-nsigma"]
    assert complete("assay", "run", "smo") == ["smollm2", "smollm3"]
