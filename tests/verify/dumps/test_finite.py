"""NaN and infinities are evidence: what stands before the first is judged, and the operation that made it is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assay
from assay.cli import main
from assay.models import Model
from assay.verify.dumps.observation import Dump
from tests.verify.conftest import TOKENS

AFTER = ("ffn_norm-1", "ffn_gate-1", "ffn_up-1", "ffn_swiglu-1", "ffn_out-1", "l_out-1", "result_norm", "result_output")


def arrays(truth: Dump) -> dict[str, Any]:
    return {"tokens": np.array(TOKENS)} | {o.name: np.array(o.array()) for o in truth.observations}


def spoilt(truth: Dump, first: str, value: float, row: int = 2) -> dict[str, Any]:
    """The run with `value` at one place of `first`, and NaN in that row of all that follow."""
    found = arrays(truth)
    names = list(found)
    found[first][row, 3] = value
    for name in names[names.index(first) + 1 :]:
        if name in AFTER:
            found[name][row] = np.nan
    return found


def test_judged_up_to_the_first(model: Model, truth: Dump, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = spoilt(truth, "ffn_norm-1", np.nan)
    found: Any = assay.diff(str(model.file.path), values)
    assert not found and found.verdict == "wrong" and found.first_wrong == "ffn_norm-1"
    assert {n.verdict for n in found.result.nodes} == {"same"} and "ffn_inp-1" in {n.name for n in found.result.nodes}
    broken = found.to_dict()["not_finite"]
    assert broken["made_by"] == "ffn_norm-1" and broken["row"] == 2 and broken["count"] == 1
    assert broken["nodes_not_judged"] == len(AFTER)
    assert "ffn_norm-1 holds NaN (1 of" in repr(found) and "in token row 2" in repr(found)
    path = tmp_path / "run.npz"
    np.savez(path, **values)
    assert main(["diagnose", str(model.file.path), str(path), "--html", str(tmp_path / "r.html")]) == 1
    out = capsys.readouterr().out
    assert "ffn_norm-1 holds NaN" in out and "everything before it is right" in out
    assert "ffn_norm-1 holds NaN" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["ffn_out-0: rms=nan"], "ffn_out-0 holds NaN (the rms of "),
        (["layer 0 ffn_out first 4 values: 0.5, nan, inf, 1.0"], "holds NaN (2 of 4 values, the first: value 1 of the"),
    ],
)
def test_a_printed_number_that_is_not_finite(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], said: str
) -> None:
    log = tmp_path / "run.log"
    log.write_text("\n".join([*lines, "l_out-1: rms=nan"]))
    for verb in ("diff", "diagnose"):
        page = tmp_path / f"{verb}.html"
        assert main([verb, str(model.file.path), str(log), "--tokens", "1,2,3", "--html", str(page)]) == 1
        out, err = capsys.readouterr()
        assert said in out and "at [" not in out, out
        assert "no node before it was dumped; the one dumped after it only passes it on" in out
        assert "0 nodes" not in out + err and "0 judged" not in out and "before it is right" not in out
        assert not any(line.isspace() for line in out.splitlines())
        assert "no node before it was dumped" in page.read_text()


def test_how_it_came_about(model: Model, truth: Dump) -> None:
    def why(values: dict[str, Any]) -> str:
        found: Any = assay.diff(str(model.file.path), values)
        return str(found.result.broken.why)

    zero = spoilt(truth, "ffn_norm-1", np.nan)
    zero["ffn_inp-1"][4] = 0
    zero["ffn_norm-1"][4] = np.nan
    assert "0/0 in a norm: row 4 of ffn_inp-1 is all zeros" in why(zero)
    large = spoilt(truth, "ffn_norm-1", np.inf)
    large["ffn_inp-1"][2, 3] = 300
    assert "its square 90000" in why(large)
    product = spoilt(truth, "ffn_swiglu-1", np.inf)
    product["ffn_gate-1"][2, 3], product["ffn_up-1"][2, 3] = 400, 400
    assert "overflow in half precision: the definition's values reach 1.6e+05" in why(product)
    masked = arrays(truth)
    masked["kq-1"][:, 3, :] = -np.inf
    masked["kq_soft_max-1"][:, 3, :] = np.nan
    assert "every key of row 3 is masked" in why(masked)
    steep = arrays(truth)
    steep["kq-1"][0, 3, 1] = 1e4
    steep["kq_soft_max-1"][0, 3, :] = np.nan
    assert "exp overflow: scores reach" in why(steep)
    assert "memory that was never written" in why(spoilt(truth, "ffn_inp-1", np.nan))


def test_of_unseen_operations_the_one_that_overflows(model: Model, truth: Dump) -> None:
    values = spoilt(truth, "ffn_swiglu-1", np.inf)
    values["ffn_gate-1"][2, 3], values["ffn_up-1"][2, 3] = 400, 400
    values["ffn_out-1"][2] = np.nan
    del values["ffn_swiglu-1"]
    found: Any = assay.diff(str(model.file.path), values)
    broken = found.result.broken
    assert broken.found.node == "ffn_out-1" and broken.node == "ffn_swiglu-1"
    assert "it is one of these 2 operations" in repr(found)


@pytest.mark.parametrize("text", ["null", "NaN", "Infinity", "1e999"])
def test_in_json_lines(model: Model, truth: Dump, tmp_path: Path, text: str) -> None:
    embd = np.asarray(truth.values("embd"))[-1, :4].tolist()
    lines = [
        json.dumps({"assay_dump": 1, "tokens": TOKENS}),
        json.dumps({"name": "embd", "row": -1, "first": embd}),
        f'{{"name": "l_out-0", "row": -1, "first": [0.5, {text}, 1], "rms": null}}',
        f'{{"name": "result_norm", "values": {[[None] * model.hparams.n_embd] * len(TOKENS)}}}'.replace("None", text),
    ]
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(lines))
    found: Any = assay.diff(str(model.file.path), path)
    assert found.first_wrong == "l_out-0" and [n.verdict for n in found.result.nodes] == ["same"]
    assert found.result.broken.between[-1] == "l_out-0"


def test_in_a_log_and_from_the_start(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("embd: [nan, nan, nan]\nlayer 0: [nan, nan, nan]\n")
    for found in (
        assay.diff(str(model.file.path), path, tokens=TOKENS),
        assay.diagnose(str(model.file.path), path, tokens=TOKENS),
    ):
        assert not found and found.first_wrong == "embd"  # type: ignore[union-attr]
        assert "embd holds NaN" in repr(found)


def test_a_fault_before_it_keeps_its_place(model: Model, truth: Dump) -> None:
    values = spoilt(truth, "ffn_norm-1", np.nan)
    values["attn_norm-0"][1:] *= 1.5
    found: Any = assay.diff(str(model.file.path), values)
    assert found.first_wrong == "attn_norm-0" and found.result.broken.found.node == "ffn_norm-1"
