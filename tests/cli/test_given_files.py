"""Files that strangers give: text in the encodings of Windows, and files that are not what a verb expects."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.cli.conftest import Assay
from tests.cli.test_cli import fault

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
# A file given as a model: its bytes, what it is, and a word of what to do.
NOT_MODELS = [
    (POINTER, "a Git LFS pointer", "git lfs pull"),
    (b"\n<!DOCTYPE html>\n<html>", "a web page", "download the file itself"),
    (b"<?xml version='1.0'?><Error>", "an XML document", "download the file again"),
    (struct.pack("<Q", 40) + b'{"a":{"dtype":"F32"' + bytes(40), "a safetensors file", "assay convert"),
    (b"PK\3\4" + bytes(40) + b"archive/data.pkl", "a PyTorch checkpoint", "assay convert"),
    (b"PK\3\4" + bytes(40) + b"m.gguf", "a zip archive", "unpack it"),
    (b"\x80\2}q\0.", "a pickle", "safetensors"),
    (b"\x08\x09\x12\x07pytorch\x1a\x05", "an ONNX model", "safetensors"),
    (b'{"architectures": ["LlamaForCausalLM"]}', "the configuration of a model", "assay convert"),
    (b'{"metadata": {"total_size": 5}, "weight_map": {}}', "the index of a safetensors model", "assay convert"),
    (b"# a comment\nFROM ./m.gguf\nSYSTEM hi\n", "an Ollama Modelfile", "FROM"),
    (b"Entry not found", "a text that begins 'Entry not found'", "name the .gguf file"),
    ("layer 0".encode("utf-16"), "a text that begins 'layer 0'", "name the .gguf file"),
    (bytes(1000), "a file of zeros", "download it again"),
    (b"lmgg" + bytes(40), "a GGML file", "GGUF"),
]


@pytest.mark.parametrize(("data", "name", "advice"), NOT_MODELS, ids=[name for _, name, _ in NOT_MODELS])
def test_what_is_no_model_is_named(here: Assay, tmp_path: Path, data: bytes, name: str, advice: str) -> None:
    path = tmp_path / "given.gguf"
    path.write_bytes(data)
    line = fault(here("run", path, "-p", "x"))
    assert f"given.gguf: not a GGUF file; it is {name}" in line
    assert advice in line


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig"])
def test_prompts_and_grammars_of_windows(here: Assay, model: Path, tmp_path: Path, encoding: str) -> None:
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    prompt, grammar = tmp_path / "prompt.txt", tmp_path / "g.gbnf"
    prompt.write_bytes(mark + "hello there".encode(encoding))
    grammar.write_bytes(mark + 'root ::= "yes"'.encode(encoding))
    line = ("run", model, "--raw", "--temp", "0", "-n", "4")
    assert here(*line, "-f", prompt).stdout == here(*line, "-p", "hello there").stdout
    assert here(*line, "-f", "-", stdin=prompt.read_bytes()).stdout == here(*line, "-p", "hello there").stdout
    assert here(*line, "-p", "x", "--grammar-file", grammar).stdout.strip() == "yes"


def test_presets_of_windows(here: Assay, tmp_path: Path) -> None:
    from assay.runtime.presets import read

    path = tmp_path / "presets.toml"
    path.write_text('[brief]\r\nmodel = "smollm2"\r\nsystem = "Answer briefly."\r\n', "utf-16")
    assert [preset.system for preset in read(path)] == ["Answer briefly."]


def test_lines_of_a_batch_in_utf_16(here: Assay, model: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text('{"prompt": "a", "id": 1}\n"b"\n', "utf-16")
    done = here("run", model, "--raw", "-n", "1", "--batch", path, "-o", out)
    assert done.returncode == 0, done.stderr
    assert len(out.read_text().splitlines()) == 2


def test_a_wrong_batch_does_not_cost_the_old_answers(here: Assay, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("the answers of yesterday\n")
    for given in (model, tmp_path / "nope.jsonl"):
        fault(here("run", model, "--batch", given, "-o", out))
        assert out.read_text() == "the answers of yesterday\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("run", "{model}", "-f", "{model}"), "a prompt"),
        (("run", "{model}", "-p", "x", "--grammar-file", "{model}"), "a grammar"),
        (("run", "{model}", "-p", "x", "--template", "{model}"), "a chat template"),
        (("run", "{model}", "--batch", "{model}"), "JSON lines"),
        (("eval", "{model}", "-f", "{model}"), "a text file"),
        (("diagnose", "{model}", "{model}"), "a log or a dump"),
    ],
)
def test_a_model_where_a_text_is_expected(here: Assay, model: Path, words: tuple[str, ...], expected: str) -> None:
    line = fault(here(*(word.replace("{model}", str(model)) for word in words)))
    assert f"is a GGUF model (expected {expected})" in line


def test_a_picture_is_no_importance_matrix(here: Assay, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.imatrix"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    line = fault(here("quantize", model, tmp_path / "o.gguf", "Q4_K_M", "--imatrix", path))
    assert "is a PNG picture (expected an importance matrix)" in line


def test_folders_say_what_they_hold(here: Assay, model: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "it holds a Hugging Face model: assay convert" in fault(here("run", tmp_path, "-p", "x"))
    assert "is a GGUF model already" in fault(here("convert", model, tmp_path / "o.gguf"))


def test_a_log_and_its_model_in_either_order(here: Assay, model: Path, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("no numbers here\n")
    swapped, typed = here("diagnose", log, model), here("diagnose", model, log)
    assert swapped.returncode == typed.returncode == 2
    assert swapped.stderr == typed.stderr and "engine.log" in swapped.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("quantize {model} - Q8_0", "-: this is not written to standard output; name a file"),
        ("quantize {model} no/o.gguf Q8_0", "no/o.gguf: cannot be written (no such file or directory)"),
        ("quantize {model} file/o.gguf Q8_0", "file/o.gguf: cannot be written (not a directory)"),
        ("imatrix {model} -f file -o no/i.gguf", "no/i.gguf: cannot be written"),
        ("trace {model} -p hello -o no/t.npz", "no/t.npz: cannot be written"),
        ("kit {model} -o file", "file: is not a folder; name a new one"),
        ("export-web {model} -o file", "file: is not a folder; name a new one"),
        ("diagnose {model} log -p hello --html no/r.html", "no/r.html: cannot be written"),
        ("diff {model} log -p hello --html folder", "folder: is a directory; name a file"),
        ("convert folder no/o.gguf", "no/o.gguf: cannot be written"),
        ("convert owner/name o.gguf", "owner/name: no such folder; download a repository first"),
        ("diagnose {model} log --map no.json", "no.json: cannot be read (no such file or directory)"),
        ("serve {model} --port 0 --cache-dir file", "file: is not a folder; name a new one"),
        ("serve {model} --port 0 --receipts folder", "folder: cannot be read (is a directory)"),
        ("serve {model} {model} --port 0", "give each its own --alias"),
        ("serve {model} --host no.such.host.invalid", "no.such.host.invalid:8080: cannot listen there"),
    ],
)
def test_a_place_that_cannot_be_used_is_named_before_the_work(
    here: Assay, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("hello the world " * 50)
    (tmp_path / "log").write_text("ffn_out-0: rms=nan\n")
    given = [word.replace("{model}", str(model)) for word in words.split()]
    assert said in fault(here(*given))


@pytest.mark.parametrize("words", [("pull", ""), ("run", "", "hello"), ("inspect", "")])
def test_an_empty_name_is_not_the_default_model(here: Assay, words: tuple[str, ...]) -> None:
    """As of a variable of the shell that is not set."""
    assert "the name of the model is empty" in fault(here(*words))


@pytest.mark.parametrize("verb", ["diagnose", "diff"])
def test_a_dump_on_standard_input(here: Assay, model: Path, verb: str) -> None:
    found = here(verb, model, "-", "-p", "hello", stdin="ffn_out-0: rms=nan\n")
    assert found.returncode == 1 and found.stdout.startswith("wrong: ffn_out-0 holds NaN"), found.stderr
    assert "standard input: is empty" in fault(here(verb, model, "-", "-p", "hello", stdin=""))


def test_watching_nothing_ends(here: Assay, model: Path) -> None:
    done = here("watch", model, "-p", "hello", "--", "no-such-engine")
    assert done.returncode == 2 and "no-such-engine: no such program" in done.stderr
