"""The verb and its answers: words, JSON, exit codes, tokens first, other feeds, small faults, the black box."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.cli import main
from assay.engines.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load
from assay.text import Tokenizer
from assay.verify.diagnosis.answer import text
from assay.verify.diagnosis.diagnose import diagnose
from assay.verify.diagnosis.relations import describe
from assay.verify.endpoint.blackbox import diagnose_endpoint
from assay.verify.endpoint.client import Client
from tests import planting
from tests.second_engine import Engine
from tests.synthetic import make_kquant
from tests.verify.endpoint.faulty_server import serving


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_kquant(tmp_path_factory.mktemp("model") / "synthetic.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return load(open_file(path))


@pytest.fixture(scope="module")
def weights(model: Model) -> Weights:
    return Weights(model.file)


def _dump(path: Path, model: Model, folder: Path, *bugs: str, style: str = "full") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return planting.STYLES[style](planting.second(path, *bugs), folder, planting.TOKENS, planting.STEPS)


# -- the command ----------------------------------------------------------------------------------------------------


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
    assert "right: " in out and "docs/faults.md#rope-type" in out


def test_healthy_is_exit_code_0(path: Path, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(path), str(_dump(path, model, tmp_path))]) == 0
    assert capsys.readouterr().out.startswith("healthy")


def test_user_faults_are_one_line(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        [str(path)],
        [str(path), str(tmp_path / "none.jsonl")],
        [str(path), "x", "--endpoint", "http://localhost:1"],
        [str(path), "--endpoint", "localhost"],
        [str(path), "--endpoint", "http://127.0.0.1:9"],
    ):
        assert main(["diagnose", *arguments]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()[-1:]) == 1


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


# -- the search --------------------------------------------------------------------------------------------------------


def test_decode_kernels_are_told_from_prefill(path: Path, model: Model, weights: Weights, tmp_path: Path) -> None:
    """A norm without its weight in the decode steps only is a split path, with the mistake named beside it."""
    right, wrong = planting.second(path), planting.second(path, "norm-no-weight")
    parts = []
    for i, part in enumerate(right.parts):
        engine = Engine(path)
        engine.run(list(planting.TOKENS), planting.STEPS)
        parts.append(dict(part) if i == 0 else {**part, "attn_norm-0": wrong.parts[i]["attn_norm-0"]})
    found = diagnose(model, planting.dump(replace(right, parts=tuple(parts)), "full", model, tmp_path), weights=weights)
    assert found.causes[0].fault == "path-split"
    assert "norm-no-weight" in found.causes[0].equivalent
    assert found.causes[0].node == "attn_norm-0"


@pytest.mark.parametrize(
    ("fault", "tokens", "rows"),
    [
        ("kv-refeed", [*planting.TOKENS[:6], planting.TOKENS[5], *planting.TOKENS[6:]], [*range(6), 7, 8]),
        ("gen-double-first", [*planting.TOKENS[:7], *planting.TOKENS[6:]], [*range(7), 8]),
        ("kv-stale-request", [*planting.TOKENS, *planting.TOKENS], list(range(8, 16))),
        ("bos-double", [1, *planting.TOKENS], list(range(1, 9))),
    ],
)
def test_other_feeds(
    path: Path, model: Model, weights: Weights, tmp_path: Path, fault: str, tokens: list[int], rows: list[int]
) -> None:
    trace = Engine(path).run(tokens, (len(tokens),))
    logits, start, parts = trace["result_output"][rows], 0, []
    for n in planting.STEPS:
        parts.append({"result_output": logits[start : start + n]})
        start += n
    case = planting.Case(fault, (fault,), tuple(parts))
    found = diagnose(model, planting.dump(case, "logits", model, tmp_path), weights=weights)
    assert planting.grade(found, (fault,)) == "right", found.to_json()


def test_ties_name_what_would_split_them(path: Path, model: Model, weights: Weights, tmp_path: Path) -> None:
    """Gate and up exchanged, or SiLU on the wrong one: the same layer outputs; ffn_up or ffn_gate tells."""
    case = planting.second(path, "ffn-gate-up-weights")
    found = diagnose(model, planting.dump(case, "layers", model, tmp_path), weights=weights)
    assert {"ffn-gate-up-weights", "ffn-silu-on-up"} == {found.causes[0].fault, *found.causes[0].equivalent}
    assert found.causes[0].confidence <= 0.5
    assert "ffn_up-0" in found.next_observation or "ffn_gate-0" in found.next_observation


def test_unexplained_says_what_can_be_said(path: Path, model: Model, weights: Weights, tmp_path: Path) -> None:
    case = planting.second(path, "x-act-shifted")
    found = diagnose(model, planting.dump(case, "full", model, tmp_path), weights=weights)
    assert found.verdict == "unexplained" and not found.causes
    assert "another order" in found.relations[0].text
    assert "ffn_swiglu-0" in text(found, model)


@pytest.mark.slow
def test_unexplained_layers_say_what_to_dump(path: Path, model: Model, weights: Weights, tmp_path: Path) -> None:
    case = planting.second(path, "x-act-shifted")
    found = diagnose(model, planting.dump(case, "layers", model, tmp_path), weights=weights)
    assert found.verdict == "unexplained" and found.next_observation.startswith("dump ")


def test_small_faults_are_not_excused(path: Path, model: Model, weights: Weights, tmp_path: Path) -> None:
    """eps 1e-6 for 1e-5 is within the noise of coarse arithmetic, but explains everything to the last bit."""
    case = planting.second(path, "eps-value")
    found = diagnose(model, planting.dump(case, "layers", model, tmp_path), weights=weights)
    assert found.causes[0].fault == "eps-value" and "1e-06" in found.causes[0].how


def test_relations() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 64))
    w = 0.5 + rng.random(64)

    def kinds(y: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> set[str]:
        return {r.kind for r in describe(y, x, weight=w)}

    assert "ratio" in kinds(1.37 * x)
    assert "row ratio" in kinds(x * np.array([[1.0], [2.0], [3.0], [4.0]]))
    assert "weight" in kinds(x / w) and "weight" in kinds(x * w)
    assert "offset" in kinds(x + 0.5)
    assert "permuted" in kinds(x[:, ::-1])
    assert "zero tail" in kinds(np.where(np.arange(64) < 40, x, 0))
    assert "first block" in kinds(np.where(np.arange(64) < 32, x, -x))
    assert "position 0" in kinds(np.where(np.arange(4)[:, None] == 0, x, -x))
    assert "rows moved" in kinds(x[[0, 0, 1, 2]])
    assert not kinds(rng.standard_normal((4, 64)))


# -- the black box --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", [(), ("no-echo",), ("bos-missing",), ("tmpl-missing",), ("pos-reset-decode",)])
def test_endpoint(path: Path, model: Model, faults: tuple[str, ...]) -> None:
    _ask(path, model, faults)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        "bos-double", "tmpl-genprompt", "special-as-text", "tmpl-wrong-family", "kv-refeed", "kv-stale-request",
        "rope-type", "rope-linear", "samp-topp-order", "samp-topp-boundary", "samp-rng",
    ],
)  # fmt: skip
def test_endpoint_more(path: Path, model: Model, fault: str) -> None:
    _ask(path, model, (fault,))


def _ask(path: Path, model: Model, faults: tuple[str, ...]) -> None:
    tokenizer = Tokenizer.from_gguf(model.file)
    with serving(path, *faults) as url:
        found = diagnose_endpoint(model, Client(url, tokenizer))
    expected = [f for f in faults if f != "no-echo"]
    if expected:
        assert found.causes and found.causes[0].fault == expected[0], found.to_json()
    else:
        assert found.verdict == "healthy", found.to_json()
