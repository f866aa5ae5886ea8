"""Dumps, comparisons, diagnoses and checks from Python: paths and dictionaries of arrays alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assay
from tests import tiny

PROMPT = "hello the world"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("verdicts") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[assay.LanguageModel]:
    with assay.load(path, engine="reference") as model:
        yield model


@pytest.fixture
def right(model: assay.LanguageModel) -> dict[str, Any]:
    trace = model.trace(PROMPT)
    return dict(trace) | {"tokens": trace.tokens}


@pytest.fixture
def wrong(right: dict[str, Any]) -> dict[str, Any]:
    """One node is doubled, and what follows is as it was."""
    return right | {"ffn_out-0": right["ffn_out-0"] * 2}


def test_arrays_in_a_dictionary(path: Path, right: dict[str, Any], wrong: dict[str, Any]) -> None:
    good, bad = assay.diff(str(path), right), assay.diff(str(path), wrong)
    assert (bool(good), good.verdict, good.first_wrong) == (True, "same", None)
    assert (bool(bad), bad.verdict, bad.first_wrong) == (False, "wrong", "ffn_out-0")
    assert repr(bad).startswith("wrong: ffn_out-0 is the first wrong node")
    assert json.loads(json.dumps(bad.to_dict()))["first_wrong"] == "ffn_out-0"


def test_the_same_from_a_file(path: Path, model: assay.LanguageModel, wrong: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "dump.npz", **wrong)
    by_path = assay.diff(str(path), tmp_path / "dump.npz")
    by_name = assay.diff(model, str(tmp_path / "dump.npz"))
    by_dump = assay.diff(model, assay.load_dump(tmp_path / "dump.npz"))
    assert by_path.first_wrong == by_name.first_wrong == by_dump.first_wrong == "ffn_out-0"
    by_path.save_html(tmp_path / "page.html")
    assert "ffn_out-0" in (tmp_path / "page.html").read_text()


def test_two_sets_of_values_without_a_model(right: dict[str, Any], wrong: dict[str, Any]) -> None:
    assert assay.diff(right, dict(right))
    found = assay.diff(right, wrong)
    assert found.first_wrong == "ffn_out-0"
    with pytest.raises(assay.AssayError, match="this verdict has no page"):
        found.save_html("nowhere.html")


def test_an_engine_beside_the_definition(path: Path, right: dict[str, Any]) -> None:
    with assay.load(path) as model:
        assert assay.diff(path.as_posix(), model, prompt=PROMPT)
        assert assay.diff(model, model.trace(PROMPT, decode=2))
        assert assay.diff(model, right)
    assert assay.diff(right, f"{path}@cpu")
    with pytest.raises(assay.AssayError, match="both are the definition"):
        assay.diff(str(path), f"{path}@reference")


def test_two_files_of_a_model(path: Path, tmp_path: Path) -> None:
    other = tiny.make(tmp_path / "q8.gguf", type="Q8_0")
    found = assay.diff(str(path), str(other), prompt=PROMPT)
    assert isinstance(found, assay.TwoFiles)
    assert "KL divergence" in repr(found)
    assert found.to_dict()["logits"]["n_tokens"] > 100
    assert found and repr(found).startswith("yes, their types explain the difference: every tensor differs by about")


def test_files_that_differ_more_than_their_types(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another seed's weights are no rounding; and the answer has a page."""
    from assay.cli import main

    other, page = tiny.make(tmp_path / "q4.gguf", type="Q4_0"), tmp_path / "pair.html"
    assert main(["diff", str(path), str(other), "--html", str(page)]) == 0
    assert "yes, their types explain" in capsys.readouterr().out
    text = page.read_text()
    assert "yes, their types explain the difference" in text and "blk.0.attn_q.weight" in text and "{{" not in text
    spoilt = tmp_path / "spoilt.gguf"
    data = bytearray(other.read_bytes())
    tensor = assay.load(other).opened.file.tensors["blk.0.ffn_up.weight"]
    start = data.rindex(bytes(assay.load(other).opened.file.raw(tensor.name)[0]))
    data[start : start + 600] = bytes(600)
    spoilt.write_bytes(data)
    found = assay.diff(str(path), str(spoilt), prompt=PROMPT)
    assert not found and "no, their types do not explain the difference: 1 of" in repr(found)
    assert tensor.name in repr(found)


def test_a_diagnosis(model: assay.LanguageModel, right: dict[str, Any]) -> None:
    assert assay.diagnose(model, right)
    told: list[tuple[str, int, int]] = []
    planted = right | {"Qcur-0": right["Qcur_proj-0"].reshape(right["Qcur-0"].shape)}  # no rotation in layer 0
    found = assay.diagnose(model, planted, progress=lambda *step: told.append(step))
    assert not found
    stages = {label: (done, total) for label, done, total in told if total}
    assert stages["comparing with the definition"] == (len(model.model.graph),) * 2
    assert "Qcur-0: trying known mistakes" in stages and all(0 <= done <= total for done, total in stages.values())
    assert any("wrong on" in label for label, _, total in told if not total), "notes have no total"
    assert found.first_wrong == "Qcur-0"
    assert found.result.causes[0].fix
    assert "Qcur-0" in repr(found)
    assert found.to_dict()["causes"]
    with pytest.raises(assay.AssayError, match="needs values"):
        assay.diagnose(model)


def test_a_dump_prints(model: assay.LanguageModel, right: dict[str, Any]) -> None:
    raw, resolved = assay.load_dump(right), assay.load_dump(right, model)
    assert "43 observations" in repr(raw)
    assert "embd" in repr(resolved)
    assert json.loads(json.dumps(raw.to_dict()))["tokens"] == right["tokens"]
    with pytest.raises(assay.AssayError, match="embd: must have numbers"):
        assay.load_dump({"embd": ["a", "b"]})


def test_an_engine_is_checked(path: Path) -> None:
    found = assay.check(path, "cpu", lengths=[1, 5])
    assert (bool(found), found.verdict) == (True, "right")
    assert repr(found).endswith("7 of 7 checks passed")
    assert len(found.to_dict()["checks"]) == 7
    with pytest.raises(assay.AssayError, match="--lengths: must be 1 to"):
        assay.check(path, lengths=[0])


def test_a_log_without_ids_is_judged_with_the_text_of_its_prompt(tmp_path: Path) -> None:
    """People have the prompt of a run, not its ids."""
    path = tiny.make(tmp_path / "tiny.gguf")
    with assay.load(path, "reference") as model:
        truth = model.trace("hello world")
    theirs = dict(truth)
    theirs["Qcur-0"] = theirs["Qcur_proj-0"].reshape(theirs["Qcur-0"].shape)  # the rotation is missing
    with pytest.raises(assay.AssayError, match="which tokens were fed; give them with --tokens, or their text"):
        assay.diagnose(path, theirs)
    said: list[str] = []
    found = assay.diagnose(path, theirs, prompt="hello world", progress=lambda what, done, total: said.append(what))
    assert found.first_wrong == "Qcur-0"
    assert any("has no token ids; those of the prompt are taken: " in line for line in said)
