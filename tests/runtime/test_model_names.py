"""Names that people type: the table itself, how a name is found, and what an unknown one is told."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from assay.errors import AssayError
from assay.models.catalogue import ARCHITECTURES
from assay.runtime import hf, hub, ollama_store
from assay.runtime.local import models, remove
from assay.runtime.model_names import find_name, named_models, search_names, suggestions
from assay.runtime.registry_models import CATALOGUE
from tests.runtime.test_hub import MODEL, Hub, made_store
from tests.runtime.test_hub import hugging as hugging  # a fixture

# --- the table


def test_the_table_is_large_and_well_formed() -> None:
    table = named_models()
    assert sum(model.is_supported for model in table) >= 60
    assert len({model.name for model in table}) == len(table)
    assert len({model.architecture for model in table} & set(ARCHITECTURES)) >= 20
    families = {model.family for model in table}
    assert all(sum(m.is_default for m in table if m.family == family) == 1 for family in families)
    for model in table:
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", model.family), model
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", model.tag), model
        assert model.about and model.licence and model.parameters
        assert 10**7 < model.size < 10**11
        if model.package:
            assert abs(CATALOGUE[model.package].size - model.size) < 0.05 * model.size
        else:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+", model.repository), model
            assert model.file.endswith(".gguf")
            assert hf.choose(model.source, [model.file], model.file)  # the name of the file chooses it


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("qwen3", "qwen3"), ("qwen3:8b", "qwen3"), ("qwen3:latest", "qwen3"), ("Qwen3:4B", "qwen3:4b"),
        ("qwen2.5", "qwen2.5"), ("qwen2.5:0.5b", "qwen2.5:0.5b"), ("qwen2.5-coder:1.5b", "qwen2.5-coder:1.5b"),
        ("llama3.2", "llama3.2"), ("llama3.2:1b", "llama3.2:1b"), ("llama-3.2-1b", "llama3.2:1b"),
        ("Llama-3.2-1B-Instruct", "llama3.2:1b"), ("llama3.1:8b", "llama3.1"), ("gemma3", "gemma3"),
        ("gemma3:270m", "gemma3:270m"), ("gemma-3-4b-it", "gemma3"), ("phi4", "phi4"), ("phi-4", "phi4"),
        ("mistral", "mistral"), ("gpt-oss", "gpt-oss"), ("gpt-oss:120b", "gpt-oss:120b"),
        ("deepseek-r1", "deepseek-r1"), ("deepseek-r1:1.5b", "deepseek-r1:1.5b"), ("smollm2", "smollm2"),
        ("smollm2:135m", "smollm2"), ("smollm2:360m", "smollm2:360m"), ("tinyllama", "tinyllama"),
        ("nomic-embed-text", "nomic-embed-text"), ("library/mistral", "mistral"), ("glm-4:9b", "glm4"),
    ],
)  # fmt: skip
def test_what_people_type(typed: str, name: str) -> None:
    found = find_name(typed)
    assert found is not None
    assert found.name == name
    assert found.is_supported


@pytest.mark.parametrize(
    "typed", ["", "-", "./qwen3", "qwen3.gguf", "qwen3/x", "zork", "qwen3:9b", "hf:a/b", "a b", "q\n"]
)
def test_what_is_no_name(typed: str) -> None:
    assert find_name(typed) is None


def test_a_quantisation_behind_the_tag_chooses_another_file() -> None:
    found = find_name("llama3.2:1b-instruct-q8_0")
    assert found is not None
    assert found.source == "hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0"


@pytest.mark.parametrize(
    ("typed", "among"),
    [
        ("smolm2", "smollm2"), ("lama3.2", "llama3.2"), ("qwen3:9b", "qwen3"), ("gema3", "gemma3"),
        ("mistal", "mistral"), ("phi5", "phi4"), ("deepseek", "deepseek-r1"), ("gptoss", "gpt-oss"),
        ("llama", "llama3.2"), ("qwen", "qwen3"), ("zork", ""),
    ],
)  # fmt: skip
def test_an_unknown_name_gets_three_suggestions_that_run(typed: str, among: str) -> None:
    found = suggestions(typed)
    assert len(found) == len(set(found)) == 3
    assert not among or among in found
    for name in found:
        model = find_name(name)
        assert model is not None and model.is_supported


def test_search_finds_by_name_purpose_and_licence() -> None:
    assert {model.family for model in search_names(["qwen3", "coder"])} == {"qwen3-coder"}
    assert {"qwen2.5-coder", "devstral", "starcoder2"} <= {model.family for model in search_names(["code"])}
    assert {"bge", "nomic-embed-text", "embeddinggemma"} <= {model.family for model in search_names(["embedding"])}
    assert all("mit" in model.licence.lower() for model in search_names(["phi", "mit"]))
    assert search_names(["zork"]) == []
    assert search_names([]) == list(named_models())


# --- from a name to a file


@pytest.fixture
def qwen(hugging: type[Hub]) -> Iterator[type[Hub]]:
    """The hub of `hugging`, with the file of qwen3:0.6b."""
    row = {"type": "file", "path": "Qwen3-0.6B-Q8_0.gguf", "size": len(MODEL),
           "lfs": {"oid": hashlib.sha256(MODEL).hexdigest()}}  # fmt: skip
    hugging.listing = [row]
    yield hugging


def test_a_name_is_fetched_once_and_then_found_without_the_hub(
    qwen: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hub.resolve("qwen3:0.6b")
    assert path.read_bytes() == MODEL
    assert "/api/models/Qwen/Qwen3-0.6B-GGUF/tree/main" in qwen.seen[0][0]
    seen = len(qwen.seen)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub.resolve("qwen3:0.6b") == hub.resolve("Qwen3-0.6B") == path
    assert len(qwen.seen) == seen
    assert [(m.name, m.source) for m in models()] == [("qwen3:0.6b", "hf:Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf")]
    remove("qwen3:0.6b")
    assert not path.exists()


def test_a_renamed_file_is_found_by_its_quantisation(qwen: type[Hub]) -> None:
    qwen.listing = [{**qwen.listing[0], "path": "renamed-q8_0.gguf"}]
    assert hub.resolve("qwen3:0.6b").name == "renamed-q8_0.gguf"


def test_a_file_that_the_disk_cannot_hold_is_refused_before_the_download(qwen: type[Hub]) -> None:
    qwen.listing = [{**qwen.listing[0], "size": 1 << 43}]
    with pytest.raises(AssayError, match=r"needs 8796\.1 GB, and .* GB free; free some, or set ASSAY_HOME"):
        hub.resolve("qwen3:0.6b")
    assert len(qwen.seen) == 1


def test_an_address_of_the_hub_is_a_model(qwen: type[Hub]) -> None:
    file = "Qwen3-0.6B-Q8_0.gguf"
    for text in ("hf.co/o/r", "hf.co/o/r:Q8_0", f"https://huggingface.co/o/r/resolve/main/{file}?download=true",
                 f"huggingface.co/o/r/blob/main/{file}", "https://huggingface.co/o/r/tree/main"):  # fmt: skip
        assert hub.resolve(text).name == file


def test_a_name_wins_over_a_file_and_a_spelling_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("qwen3", "qwen-3"):
        Path(name).write_bytes(MODEL)
    assert hub.resolve("./qwen3") == Path("./qwen3")
    assert hub.resolve("qwen-3") == Path("qwen-3")
    with pytest.raises(AssayError, match="qwen3 is hf:Qwen/Qwen3-8B-GGUF"):
        hub.resolve("qwen3")


# --- what is said when it fails


def test_an_unreachable_hub_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as closed:
        port = closed.server_address[1]
    for name in ("HF_HUB_CACHE", "ASSAY_HOME", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(tmp_path))
    for name, value in {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "no_proxy": "*", "HF_HUB_OFFLINE": ""}.items():
        monkeypatch.setenv(name, value)
    for name in ("hf:owner/repo", "qwen2.5:0.5b"):
        with pytest.raises(AssayError) as caught:
            hub.resolve(name)
        text = str(caught.value)
        assert text.startswith(name)
        for part in (f"127.0.0.1:{port} cannot be reached (Connection refused)", "HTTPS_PROXY", "HF_ENDPOINT",
                     "assay run ./file.gguf"):  # fmt: skip
            assert part in text
        assert "Errno" not in text
    made_store(tmp_path, "library/qwen2.5", "0.5b")
    assert ollama_store.names("qwen2.5:0.5b")
    with pytest.raises(AssayError, match=r"Ollama has it on this machine: ollama:qwen2\.5:0\.5b"):
        hub.resolve("qwen2.5:0.5b")


def test_a_repository_that_is_not_there(hugging: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Hub) -> None:
        self.send_error(404)

    monkeypatch.setattr(hugging, "do_GET", missing)
    with pytest.raises(
        AssayError, match=r"hf:owner/repo: not on this machine, and 127.0.0.1:\d+ has no such repository"
    ):
        hub.resolve("hf:owner/repo")


def test_an_architecture_that_is_not_supported_says_so(hide_architecture: Callable[[str], object]) -> None:
    hide_architecture("qwen3")
    assert find_name("qwen3:0.6b") in [model for model in named_models() if not model.is_supported]
    named = [model for model in named_models() if not model.is_supported]
    for model in named:
        with pytest.raises(AssayError, match=f"its architecture {model.architecture} is not supported yet") as caught:
            hub.resolve(model.name)
        others = re.search(r"of a similar kind: (.*);", str(caught.value))
        assert others and len(others[1].split(", ")) == 3
