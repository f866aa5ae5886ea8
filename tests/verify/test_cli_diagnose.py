"""The verb diagnose: words, JSON, exit codes, tokens first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.cli import main
from assay.gguf import open_file
from assay.models import Model, load
from assay.text import Tokenizer
from tests import planting
from tests.synthetic import make_kquant


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_kquant(tmp_path_factory.mktemp("model") / "synthetic.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return load(open_file(path))


def _dump(path: Path, model: Model, folder: Path, *bugs: str, style: str = "full") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return planting.STYLES[style](planting.second(path, *bugs), folder, planting.TOKENS, planting.STEPS)


def test_json_has_the_promised_shape(
    path: Path, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = _dump(path, model, tmp_path, "scale-missing")
    page = tmp_path / "report.html"
    assert main(["diagnose", str(path), str(dump), "--json", "--html", str(page)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "fault"
    assert found["first_wrong"] == {"node": "kq_soft_max-0", "layer": 0}
    assert found["wrong_nodes"][0] == "kq_soft_max-0"
    cause = found["causes"][0]
    assert {"fault", "node", "confidence", "explains", "equivalent", "fix"} <= cause.keys()
    assert cause["fault"] == "scale-missing" and cause["explains"] > 0.999 and 0.9 < cause["confidence"] <= 1
    assert "sqrt" in cause["fix"]
    assert isinstance(found["next_observation"], str)
    assert page.read_text().startswith("<!doctype html>")


def test_words_for_a_tired_person(path: Path, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = _dump(path, model, tmp_path, "rope-type", "eps-floor-half")
    assert main(["diagnose", str(path), str(dump)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("fault: eps-floor-half and 1 more at attn_norm-0")
    assert "cause 2: rope-type (pairs (i, i + d/2))" in out
    assert "right: " in out and "docs/reference/faults.md#rope-type" in out


def test_healthy_is_exit_code_0(path: Path, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(path), str(_dump(path, model, tmp_path))]) == 0
    assert capsys.readouterr().out.startswith("healthy")


def test_user_faults_are_one_line(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last line is the error; only progress may precede it, and never a traceback."""
    for arguments, message in (
        ([str(path)], "no DUMP given and no --endpoint"),
        ([str(path), str(tmp_path / "none.jsonl")], "cannot be opened"),
        ([str(path), "x", "--endpoint", "http://localhost:1"], "leave DUMP out"),
        ([str(path), "--endpoint", "localhost"], "no scheme; write http://localhost"),
        ([str(path), "--endpoint", "http://127.0.0.1:9"], "no usable answer"),
    ):
        assert main(["diagnose", *arguments]) == 2
        out, err = capsys.readouterr()
        *progress, last = err.strip().splitlines()
        assert message in last and not out
        assert all(line.startswith("asking ") for line in progress), err


def test_tokens_come_first(path: Path, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A healthy engine on ids without BOS: the values are right, the ids are not."""
    tokenizer = Tokenizer.from_gguf(open_file(path))
    ids = tokenizer.encode("hello world")[1:]
    case = planting.second(path, tokens=ids, steps=(len(ids),))
    dump = planting.full(case, tmp_path, ids, (len(ids),))
    assert main(["diagnose", str(path), str(dump), "-p", "hello world", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [c["fault"] for c in found["causes"]] == ["bos-missing"]
    assert found["first_wrong"]["node"] == "inp_tokens"
