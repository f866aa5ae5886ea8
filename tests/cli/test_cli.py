"""The command as a whole: help, exit codes, and one line for every kind of bad input."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from assay.cli import VERBS, main, overview, parse, verb_parser, verbs
from assay.version import __version__
from tests import tiny
from tests.cli.conftest import Assay, environment


def fault(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a fault."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("assay: ")
    return lines[0]


# --- help


def test_the_overview_names_every_verb_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    assert page.strip() == overview()
    assert verbs()
    assert all(f"\n  {verb} " in page for verb in verbs())


@pytest.mark.parametrize("verb", verbs())
def test_every_help_page_ends_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    page = capsys.readouterr().out
    examples = page[page.rindex("example:") :].strip().splitlines()[1:]
    assert examples
    assert any(f"assay {verb}" in line for line in examples)
    assert main(["help", verb]) == 0
    assert capsys.readouterr().out == page


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_has_json_and_a_one_line_help(verb: str) -> None:
    parser = verb_parser(verb)
    assert "--json" in parser.format_help()
    assert parser.description
    assert "\n" not in parser.description


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    heavy = {"numpy", "jinja2", "tokenizers", "huggingface_hub", "starlette", "torch"}
    code = (
        "import sys; from assay.cli import main\n"
        "for args in sys.argv[1:]: main(args.split())\n"
        f"print(sorted({heavy!r} & set(sys.modules)), file=sys.stderr)"
    )
    pages = ["--help", "--version", *(f"{verb} --help" for verb in verbs())]
    done = subprocess.run([sys.executable, "-c", code, *pages], env=environment(), capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


def test_a_run_imports_nothing_it_does_not_need(model: Path) -> None:
    code = (
        "import sys; from assay.cli import main\n"
        "main(['run', sys.argv[1], '--raw', '-p', 'hi', '-n', '1'])\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, model], env=environment(), capture_output=True, text=True)
    loaded = set(done.stderr.split())
    assert "numpy" in loaded
    assert not {"huggingface_hub", "jinja2", "starlette", "torch", "assay.cli.chat"} & loaded
    assert not {"importlib.metadata", "urllib.request", "http.client", "tarfile", "zipfile"} & loaded


@pytest.mark.parametrize("line", ["run nope.gguf -p x", "tokenize -m nope.gguf x", "run no/such/file -p x"])
def test_a_model_that_is_not_there_is_refused_before_numpy_is_imported(line: str) -> None:
    code = "import sys; from assay.cli import main; print(main(sys.argv[1:]), 'numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, *line.split()], env=environment(), capture_output=True, text=True
    )
    assert done.stdout == "2 False\n", done.stderr


def test_version_and_nothing(assay: Assay) -> None:
    assert assay("--version").stdout == f"assay {__version__}\n"
    nothing = assay()
    assert nothing.returncode == 2
    assert "usage" in nothing.stdout


def test_the_table_is_the_design() -> None:
    names = (
        "run chat serve ps list pull show rm inspect tokenize embed trace diff check diagnose watch bisect kit "
        "bench eval quantize completion"
    )
    assert set(names.split()) <= set(VERBS)


# --- bad arguments


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["zork"], "zork: no such verb; there are run"),
        (["sreve"], "sreve: no such verb; did you mean `assay serve`?"),
        (["models"], "models: no such verb; did you mean `assay list`?"),
        (["stop", "smollm2"], "stop: no such verb; a model runs only while a command runs"),
        (["help", "zork"], "zork: no such verb"),
        (["model.gguf"], "did you mean `assay run` before it?"),
        (["run", "--zork"], "unrecognized arguments: --zork; see `assay run --help`"),
        (["run", "--tempp", "0"], "unrecognized arguments: --tempp; did you mean --temp?"),
        (["run", "--lora-scaled", "a.gguf", "-p", "x"], "--lora-scaled: no such option; give --lora FILE=SCALE"),
        (["quantize", "a.gguf", "b.gguf"], "give either a TYPE such as Q4_K_M"),
        (["quantize", "a.gguf", "b.gguf", "Q4_0", "--type", "Q4_0"], "the type is given twice"),
        (["tokenize", "-m", "smollm2"], "no text after the model"),
        (["run", "smolm2", "x"], "smolm2: no such model; did you mean smollm2, smollm3 or"),
        (["run", "llama3.2:7b", "x"], "llama3.2:7b: no such model; did you mean llama3.2"),
        (["run", "owner/repo:Q4_0", "x"], "did you mean hf:owner/repo:Q4_0?"),
        (["run", "https://example.org/m.gguf", "x"], "only addresses of the hub are downloaded"),
        (["run", "Qwen/Qwen3-8B", "x"], "did you mean hf:Qwen/Qwen3-8B or qwen3?"),
        (["search", "zork"], "zork: no known model has that in its name or description; near: "),
        (["run", "a", "-m", "b", "-p", "c"], "a: a second prompt"),
        (["inspect", "a", "-m", "b"], "the model is given twice"),
        (["rm", "zork"], "zork: is not here"),
        (["ps", "--url", "http://127.0.0.1:1"], "no server answers there"),
        (["run", "-n", "many", "-p", "x"], "expected a whole number (found 'many')"),
        (["run", "-n", "-2", "-p", "x"], "expected at least -1"),
        (["run", "--temp", "nan", "-p", "x"], "expected a finite number"),
        (["run", "-p", "x", "-f", "y"], "not allowed with argument"),
        (["run", "-p"], "expected one argument"),
        (["run", "--ids", "1,x"], "expected token ids such as 1,2,3"),
        (["run", "-p", "x", "--logit-bias", "7"], "expected ID+VALUE"),
        (["run", "nope.gguf", "-p", "x"], "nope.gguf: no such file"),
        (["run", "hf:nope", "-p", "x"], "expected hf:owner/repo"),
        (["run", "ollama:../x", "-p", "x"], "not a model name"),
        (["pull", "nope"], "nope: no such model; did you mean "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_arguments(args: list[str], message: str, assay: Assay) -> None:
    assert message in fault(assay(*args))


# --- what people type who come from elsewhere


_NEEDED = {"imatrix": ["-f", "a.txt", "-o", "b.gguf"], "tokenize": ["-p", "x"], "serve": ["--port", "0"]}


@pytest.mark.parametrize(
    "verb",
    [
        "run",
        "chat",
        "serve",
        "pull",
        "show",
        "inspect",
        "tokenize",
        "embed",
        "trace",
        "check",
        "diagnose",
        "kit",
        "bench",
        "eval",
        "imatrix",
    ],
)
def test_the_model_may_stand_alone_or_behind_m(verb: str) -> None:
    """Ollama's MODEL behind the verb, and llama.cpp's `-m MODEL` before other options."""
    for words in (["m.gguf"], ["-m", "m.gguf"]):
        found = vars(parse(verb, [*words, *_NEEDED.get(verb, [])]))
        named = [found.get("model"), *(found.get("words") or []), *(found.get("models") or [])]
        assert "m.gguf" in named or ["m.gguf"] in named


def test_habits_of_llama_cpp_and_ollama(assay: Assay, model: Path, tmp_path: Path) -> None:
    done = assay("run", "-m", model, "-p", "hello", "-n", "1", "-ngl", "99", "-fa", "on", "-st", "--temp", "0")
    assert done.returncode == 0
    assert "-ngl: ignored" in done.stderr and "-st: ignored" in done.stderr
    out = tmp_path / "q.gguf"
    assert assay("quantize", model, out, "Q8_0").returncode == 0
    assert out.stat().st_size < model.stat().st_size
    same = assay("tokenize", model, "hello").stdout
    assert (
        assay("tokenize", "-m", model, "-p", "hello").stdout == same == assay("tokenize", "-m", model, "hello").stdout
    )


# --- bad files


def test_a_directory(assay: Assay, tmp_path: Path) -> None:
    assert "is a directory" in fault(assay("run", tmp_path, "-p", "x"))


def test_a_file_without_permission(assay: Assay, model: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    closed = tmp_path / "closed.gguf"
    closed.write_bytes(model.read_bytes())
    closed.chmod(0)
    assert "ermission" in fault(assay("run", closed, "-p", "x"))


def test_wrong_magic(assay: Assay, tmp_path: Path) -> None:
    path = tmp_path / "wrong.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    assert "wrong.gguf" in fault(assay("run", path, "-p", "x"))
    path.write_bytes(b"")
    assert "wrong.gguf" in fault(assay("run", path, "-p", "x"))


@pytest.mark.parametrize("share", [0.001, 0.05, 0.5, 0.999])
def test_truncated(assay: Assay, model: Path, tmp_path: Path, share: float) -> None:
    path = tmp_path / "short.gguf"
    data = model.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert "short.gguf" in fault(assay("run", path, "-p", "x"))


def test_unknown_architecture(assay: Assay, tmp_path: Path) -> None:
    path = tiny.make(tmp_path / "m.gguf", metadata={"general.architecture": "zork"})
    assert "unknown architecture 'zork'" in fault(assay("run", path, "-p", "x"))


def test_unknown_tensor_type(assay: Assay, model: Path, tmp_path: Path) -> None:
    data = bytearray(model.read_bytes())
    name = b"output_norm.weight"
    at = data.index(name) + len(name) + 4 + 8  # its dimensions, then the type
    data[at : at + 4] = struct.pack("<I", 999)
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    assert "999" in fault(assay("run", path, "-p", "x"))


def test_a_damaged_hyper_parameter(assay: Assay, tmp_path: Path) -> None:
    path = tiny.make(tmp_path / "m.gguf", metadata={"llama.attention.head_count": 0})
    assert "llama.attention.head_count" in fault(assay("run", path, "-p", "x"))


# --- bad text


def test_a_prompt_over_the_context(assay: Assay, model: Path) -> None:
    line = fault(assay("run", model, "-p", "x" * 1000))
    assert "do not fit the context of 256" in line
    assert "--ctx-size: expected 0 to 67108864" in fault(assay("run", model, "-p", "x", "-c", str(10**15)))
    assert "do not fit the context of 64" in fault(assay("run", model, "-p", "x" * 100, "-c", "64"))


def test_text_that_is_no_utf8(assay: Assay, model: Path, tmp_path: Path) -> None:
    assert "not valid UTF-8" in fault(assay("run", model, "-p", b"caf\xe9"))
    assert "byte 0xe9 at offset 3" in fault(assay("run", model, "-f", "-", stdin=b"caf\xe9"))
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"\xfe")
    assert f"{path}: not valid UTF-8" in fault(assay("run", model, "-f", path))
    assert "not valid UTF-8" in fault(assay("run", model, "--system", b"\x80", "-p", "x"))


def test_a_missing_prompt_file(assay: Assay, model: Path, tmp_path: Path) -> None:
    assert "nope.txt: No such file" in fault(assay("run", model, "-f", tmp_path / "nope.txt"))
    assert "Is a directory" in fault(assay("run", model, "-f", tmp_path))


def test_a_cache_that_cannot_be_written(assay: Assay, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.touch()
    line = fault(assay("pull", "smollm2", ASSAY_HOME=str(blocker)))
    assert "set ASSAY_HOME" in line


# --- pipes


def test_a_reader_who_leaves_is_not_an_error(model: Path) -> None:
    """`assay … | head -c 1`: no traceback, no complaint."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "assay", "run", model, "--raw", "-p", "hi", "-n", "60", "--ignore-eos"],
        stdout=writer,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    os.close(writer)
    os.close(reader)
    _, errors = process.communicate(timeout=60)
    assert errors == b""
    assert process.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written(model: Path) -> None:
    for args in (["run", model, "--raw", "-p", "hi", "-n", "3"], ["pull", "--list"]):
        with open("/dev/full", "w") as full:
            command = [sys.executable, "-m", "assay", *args]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment(), text=True)
        assert (done.returncode, done.stderr) == (2, "assay: No space left on device\n")


def test_a_closed_output(model: Path) -> None:
    command = 'exec "$@" >&-'
    args = [sys.executable, "-m", "assay", "run", str(model), "--raw", "-p", "hi", "-n", "3"]
    done = subprocess.run(["sh", "-c", command, "sh", *args], capture_output=True, env=environment(), text=True)
    assert "Traceback" not in done.stderr


def test_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.cli import pull

    def broken(_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(pull, "run", broken)
    with pytest.raises(ZeroDivisionError):
        main(["pull", "--list"])


def test_interrupted_before_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.cli import pull

    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(pull, "run", interrupted)
    assert main(["pull", "--list"]) == 130
