"""`assay ci`: real engines as commands, right and wrong; the report; the action and the template."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from assay import cli
from assay.errors import AssayError
from assay.library.engine_ci import check_models, comment, read_config
from tests import tiny

ROOT = Path(__file__).parents[2]
ENGINE = f"""\
import sys
sys.path.insert(0, {str(ROOT)!r})
import numpy as np
from tests.second_engine import Engine
path, ids, out, *bugs = sys.argv[1:]
tokens = [int(t) for t in ids.split(",")]
np.savez(out, tokens=tokens, **Engine(path, bugs=bugs[:1], arithmetic=(bugs + ["", "f32"])[1]).run(tokens))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ci")
    tiny.make(folder / "model.gguf", n_embd=32, n_ff=32)
    (folder / "engine.py").write_text(ENGINE)
    return folder


def configured(place: Path, extra: str = "", words: str = "", model: str = "tokens = [1, 260, 270, 12, 265]") -> Path:
    path = place / "assay.toml"
    path.write_text(
        f"[engine]\ncommand = '{sys.executable} engine.py {{model}} {{tokens}} {{dump}} {words}'\ndump = 'out.npz'\n"
        f"{extra}\n[[model]]\npath = 'model.gguf'\n{model}\n"
    )
    return path


def test_a_right_engine_passes(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = configured(place, "arithmetic = 'f32'", model="prompt = 'hello world'")
    assert cli.main(["ci", str(path), "--report", str(tmp_path / "r")]) == 0
    said = capsys.readouterr()
    assert "1 model right" in said.out and "pass  model.gguf: right" in said.err
    report = json.loads((tmp_path / "r" / "report.json").read_text())
    assert report["passed"] and report["models"][0]["first_wrong"] is None
    assert "<html" in (tmp_path / "r" / "model.gguf.html").read_text()


def test_a_wrong_engine_fails_at_its_first_wrong_node(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configured(place, words="scale-missing")
    assert cli.main(["ci", str(path), "--report", str(tmp_path), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)["models"][0]
    assert told["cause"] == "scale-missing" and told["first_wrong"].endswith("-0")
    text = (tmp_path / "comment.md").read_text()
    assert "1 of 1 model wrong" in text and "scale-missing" in text and "<details>" in text


def test_an_arithmetic_that_is_not_allowed_fails(place: Path) -> None:
    path = configured(place, "arithmetic = ['f32']\ndiagnose = false", words="none bf16")
    (result,) = check_models(read_config(path))
    assert not result.passed and "right only in bf16, which is not allowed" in result.words
    (result,) = check_models(read_config(configured(place, "arithmetic = ['bf16']", words="none bf16")))
    assert result.passed and "noise of bf16" in result.words


def test_an_engine_that_gives_nothing(place: Path) -> None:
    (place / "out.npz").unlink(missing_ok=True)
    path = configured(place)
    path.write_text(path.read_text().replace("engine.py", "missing.py"))
    (result,) = check_models(read_config(path))
    assert not result.passed and "not written by" in result.detail and "No such file" in result.detail
    assert "no verdict" in comment(read_config(path), [result])
    path.write_text(path.read_text().replace("missing.py", '-c "import time; time.sleep(60)"'))
    path.write_text(path.read_text().replace("dump = ", "timeout = 0.05\ndump = "))
    (result,) = check_models(read_config(path))
    assert not result.passed and "still runs after 0.05 seconds" in result.detail


BAD: dict[str, tuple[str, str]] = {
    "no TOML": ("[engine", "not valid TOML"),
    "no command": ("[engine]\n", r"\[engine\] command: missing"),
    "no model": ("[engine]\ncommand = 'x'\n", "model.*: missing"),
    "unknown key": ("[engine]\ncommand = 'x'\ncomand = 1\n[[model]]\npath = 'm'\n", "unknown key 'comand'"),
    "no tokens": ("[engine]\ncommand = 'x'\n[[model]]\npath = 'm'\n", "tokens or prompt: missing"),
    "tokens": ("[engine]\ncommand = 'x'\n[[model]]\npath = 'm'\ntokens = ['a']\n", "list of token ids"),
    "arithmetic": ("[engine]\ncommand = 'x'\narithmetic = 'f8'\n[[model]]\npath = 'm'\ntokens = [1]\n", "expected any"),
    "timeout": ("[engine]\ncommand = 'x'\ntimeout = 0\n[[model]]\npath = 'm'\ntokens = [1]\n", "seconds above 0"),
    "quotes": ("[engine]\ncommand = '''x \"'''\n[[model]]\npath = 'm'\ntokens = [1]\n", "not a command line"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(tmp_path: Path, case: str) -> None:
    text, message = BAD[case]
    (tmp_path / "assay.toml").write_text(text)
    with pytest.raises(AssayError, match=message):
        read_config(tmp_path / "assay.toml")


def test_a_comment_cannot_be_broken_by_names(place: Path) -> None:
    path = configured(place, "name = 'a|b<script>'\ndiagnose = false", "scale-missing")
    results = list(check_models(read_config(path)))
    text = comment(read_config(path), results)
    assert r"a\|b\<script\>" in text.splitlines()[0]


def test_the_template_runs(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    shutil.copytree(ROOT / "examples" / "engine-ci", tmp_path / "t")
    shutil.copy(place / "model.gguf", tmp_path / "t" / "model.gguf")
    path = tmp_path / "t" / "assay.toml"
    path.write_text(path.read_text().replace('"python engine.py', f'"{sys.executable} engine.py'))
    (result,) = check_models(read_config(path))
    assert result.passed, result.detail


def test_the_action_is_pinned_and_calls_the_command() -> None:
    yaml = pytest.importorskip("yaml")
    action: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    steps = action["runs"]["steps"]
    assert all(re.search(r"@[0-9a-f]{40}$", step["uses"]) for step in steps if "uses" in step)
    scripts = "\n".join(step.get("run", "") for step in steps)
    assert 'assay" ci "$FILE" --report "$REPORT"' in scripts and "${{" not in scripts
    workflow = yaml.safe_load((ROOT / "examples/engine-ci/.github/workflows/assay.yml").read_text())
    used = [s["uses"] for s in workflow["jobs"]["numbers"]["steps"] if "uses" in s]
    assert all(re.search(r"@([0-9a-f]{40}|COMMIT)$", name) for name in used)
