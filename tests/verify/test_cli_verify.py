"""trace, diff and check on the command line: results, exit codes, the JSON that others build on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.cli import main
from assay.models import Model
from assay.verify.dumps.observation import Dump
from tests import tiny
from tests.verify.conftest import TOKENS, changed

IDS = ",".join(map(str, TOKENS))


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(a) for a in args])
    out, err = capsys.readouterr()
    return code, out, err


def dump_file(dump: Dump, path: Path) -> Path:
    np.savez(path, tokens=TOKENS, **{o.name: o.array().astype(np.float32) for o in dump.observations})  # type: ignore[arg-type]
    return path


def test_trace_then_diff(model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "t.safetensors"
    code, text, _ = run(capsys, "trace", model.file.path, "--tokens", IDS, "--decode", 2, "-o", out, "--json")
    told = json.loads(text)
    assert code == 0 and told["nodes"] == len(model.graph) and told["steps"] == [4, 1, 1] and told["tokens"] == TOKENS
    code, text, _ = run(capsys, "diff", model.file.path, out, "--json")
    told = json.loads(text)
    assert code == 0 and told["verdict"] == "same" and told["first_wrong"] is None and told["unmatched"] == []
    assert {"name", "nmse", "cosine", "verdict", "own", "explained_by"} <= set(told["nodes"][0])
    assert run(capsys, "diff", out, out)[0] == 0  # the trace names its model


def test_trace_as_an_archive(model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "t.npz"
    assert run(capsys, "trace", model.file.path, "--tokens", IDS, "--decode", 2, "-o", out)[0] == 0
    with np.load(out) as arrays:
        assert arrays["tokens"].tolist() == TOKENS and arrays["steps"].tolist() == [4, 1, 1]
        assert arrays["l_out-1"].shape == (len(TOKENS), model.hparams.n_embd)
    assert [p.name for p in tmp_path.iterdir()] == ["t.npz"]
    code, text, _ = run(capsys, "diff", model.file.path, out, "--json")
    assert code == 0 and json.loads(text)["verdict"] == "same" and json.loads(text)["unmatched"] == []


def test_what_was_read_of_a_log_is_said_first(
    model: Model, truth: Dump, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"layer {i}: {np.asarray(truth.values(f'l_out-{i}'))[-1, :5].tolist()}" for i in range(2)]
    log = tmp_path / "run.log"
    log.write_text("\n".join(lines))
    for verb in ("diff", "diagnose"):
        code, _, err = run(capsys, verb, model.file.path, log, "--tokens", IDS)
        assert code == 0
        assert err.splitlines()[0] == f"read {log}: l_out-0 … l_out-1 (2 nodes): last row, 5 values each"


def test_trace_summary_and_nodes(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "trace", model.file.path, "-p", "hello", "--nodes", "l_out|result", "--summary")
    lines = [json.loads(line) for line in text.splitlines()]
    assert code == 0 and lines[0]["assay_dump"] == 1
    assert [x["name"] for x in lines[1:]] == ["l_out-0", "l_out-1", "result_norm", "result_output"]


def test_diff_finds_the_node(model: Model, truth: Dump, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def double(value: np.ndarray) -> None:
        value[2] *= 2

    path = dump_file(changed(truth, "ffn_out-0", double), tmp_path / "d.npz")
    code, text, _ = run(capsys, "diff", model.file.path, path, "--json")
    told = json.loads(text)
    assert code == 1 and told["verdict"] == "wrong" and told["first_wrong"] == "ffn_out-0" == told["at_fault"][0]
    node = next(n for n in told["nodes"] if n["name"] == "ffn_out-0")
    assert node["own"] is True and node["at"][0] == 2
    code, text, _ = run(capsys, "diff", model.file.path, path)
    assert code == 1 and text.startswith(f"wrong: ffn_out-0 is the first wrong node of {path}")
    assert "ffn_out-0 = linear(ffn_swiglu-0, blk.0.ffn_down.weight)" in text


def test_a_printed_number_is_not_shown_as_an_element(
    model: Model, truth: Dump, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rms = float(np.sqrt(np.mean(np.square(np.asarray(truth.values("l_out-0"))[2]))))
    path = tmp_path / "rms.jsonl"
    header = {"assay_dump": 1, "tokens": list(map(int, TOKENS))}
    path.write_text("\n".join(map(json.dumps, (header, {"name": "l_out-0", "row": 2, "rms": 3 * rms}))))
    for verb, before in (("diff", "  "), ("diagnose", "seen      ")):
        code, text, _ = run(capsys, verb, model.file.path, path)
        assert code == 1 and f"{before}the rms of row 2: found {3 * rms:.5g}"[:-1] in text and "at [" not in text, text
    node = json.loads(run(capsys, "diff", model.file.path, path, "--json")[1])["nodes"][0]
    assert node["at"] == [] and node["place"] == "the rms of row 2"


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_diff_of_an_engine(model: Model, capsys: pytest.CaptureFixture[str], engine: str) -> None:
    from assay import engines

    if engine not in engines.ENGINES:
        pytest.skip("the cpu engine is not built")
    other = "cpu" if engine == "reference" else "reference"
    if other not in engines.ENGINES:
        pytest.skip("the cpu engine is not built")
    code, text, _ = run(
        capsys, "diff", f"{model.file.path}@{engine}", f"{model.file.path}@{other}", "--tokens", IDS, "--decode", 3
    )
    assert code == 0 and "wrong" not in text


def test_check(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(
        capsys, "check", model.file.path, "--engine", "reference", "--precision", "f32", "--lengths", "1,34"
    )
    assert code == 0 and text.count("pass ") == 7 and "FAIL" not in text
    assert "34 tokens, the last 4 through the cache: same" in text


def test_two_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (tiny.make(tmp_path / f"{kind}.gguf", type=kind) for kind in ("F32", "Q8_0"))
    code, text, _ = run(capsys, "diff", a, b, "--json", "--window", 64)
    told = json.loads(text)
    assert code == 0 and told["logits"]["kl_mean"] > 0 and told["logits"]["same_best"] > 0.9
    types = {w["name"]: w["types"] for w in told["weights"]}
    assert types["blk.0.attn_q.weight"] == ["F32", "Q8_0"]
    by_name = {n["name"]: n["nmse"] for n in told["nodes"]}
    assert 0 < by_name["attn_norm-0"] < 1e-3 and 0 < by_name["result_output"] < 1e-2
    code, text, _ = run(capsys, "diff", a, a, "--json", "--window", 64)
    same = json.loads(text)
    assert same["logits"]["kl_top"] == 0 and max(w["nmse"] for w in same["weights"]) == 0
    code, text, _ = run(capsys, "diff", a, b, "--window", 64)
    assert "KL divergence" in text and "same best token" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("trace", "MODEL", "--tokens", "1"), "no file named"),
        (("trace", "MODEL", "--tokens", "1", "--decode", "1", "-o", "x"), "must leave at least one"),
        (("trace", "MODEL", "--tokens", "1", "--nodes", "zzz", "-o", "x"), "matches none"),
        (("trace", "MODEL", "--tokens", "1", "--nodes", "(", "-o", "x"), "not a regular expression"),
        (("trace", "MODEL", "--tokens", "1", "-p", "x", "-o", "x"), "not both"),
        (("trace", "MODEL", "--tokens", "1", "-o", "x.jsonl"), "as .safetensors or .npz (found .jsonl)"),
        (("trace", "MODEL", "--tokens", "1", "-o", "/no/such/place"), "cannot be written"),
        (("trace", "MODEL", "--tokens", "1", "--engine", "nobody", "-o", "x"), "engine nobody: not available"),
        (("diff", "MODEL", "nothing.npz"), "cannot be opened"),
        (("diff", "MODEL", "MODEL@nobody"), "no engine"),
        (("diff", "MODEL@reference", "MODEL@reference"), "both are the definition"),
        (("check", "MODEL", "--lengths", "0"), "expected at least 1 (found 0)"),
    ],
)
def test_faults_are_one_line(
    model: Model, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, *(a.replace("MODEL", str(model.file.path)) for a in args))
    assert code == 2 and not out and message in err and err.count("\n") == 1, err


def test_two_dumps_without_a_model(truth: Dump, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def double(value: np.ndarray) -> None:
        value *= 2

    a, b = dump_file(truth, tmp_path / "a.npz"), dump_file(changed(truth, "l_out-0", double), tmp_path / "b.npz")
    assert run(capsys, "diff", a, a)[0] == 0
    code, text, _ = run(capsys, "diff", a, b, "--json")
    told = json.loads(text)
    assert code == 1 and told["first_wrong"] == "l_out-0" and "give --model" in told["notes"][0]


# -- the page -------------------------------------------------------------------------------------------------------


def page_data(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert isinstance(data, dict)
    return data


def test_diff_and_check_write_the_page_of_diagnose(
    model: Model, truth: Dump, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def double(value: np.ndarray) -> None:
        value[2] *= 2

    dump = dump_file(changed(truth, "ffn_out-0", double), tmp_path / "d.npz")
    pages = {verb: tmp_path / f"{verb}.html" for verb in ("diagnose", "diff", "check")}
    assert run(capsys, "diagnose", model.file.path, dump, "--html", pages["diagnose"])[0] == 1
    assert run(capsys, "diff", model.file.path, dump, "--html", pages["diff"])[0] == 1
    checked = "check", model.file.path, "--engine", "reference", "--lengths", 2, "--html", pages["check"]
    assert run(capsys, *checked)[0] == 0
    diagnosed, diffed, passed = (page_data(pages[verb]) for verb in ("diagnose", "diff", "check"))
    assert diffed["verdict"] == "wrong" and diffed["first"] == "ffn_out-0"
    assert diffed["nodes"] == diagnosed["nodes"] and diffed["roles"] == diagnosed["roles"]
    assert passed.keys() == diffed.keys() and passed["verdict"] == "same" and passed["first"] is None
    assert {n["name"] for n in passed["nodes"]} == {n.name for n in model.graph}
    templates = {
        re.sub(r"<title>.*?</title>|id=\"data\">.*?</script>", "", p.read_text(), flags=re.S) for p in pages.values()
    }
    assert len(templates) == 1
