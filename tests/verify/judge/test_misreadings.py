"""Wrong nodes whose consumers are right are misreadings, not faults."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.models import Model
from assay.verify.diagnosis import answer
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.dumps.observation import Dump, Observation
from assay.verify.judge.misreadings import misreadings
from assay.verify.judge.verdict import judge


def printed(truth: Dump, node: str, template: str, led: bool = False) -> Observation:
    """The first values of the last row; `led` by a norm, as a misread line has them."""
    row = next(o for o in truth.observations if o.name == node).array()[-1].reshape(-1)
    data = ([float(np.linalg.norm(row))] if led else []) + [float(v) for v in row[:6]]
    rows = len(truth.tokens) - 1, len(truth.tokens)
    where = f"x.log: line {template}"
    return Observation(
        node, "first", tuple(data), rows=rows, printed=(5e-6,) * len(data), template=template, where=where
    )


def log(truth: Dump, *seen: Observation) -> Dump:
    return Dump("x", truth.tokens, truth.positions, truth.steps, seen, "x.log", log=True)


@pytest.mark.parametrize(
    ("template", "wrong_later", "expected"),
    [
        ("layer # q rot", False, ["Qcur-0"]),
        ("qcur #", False, []),  # llama.cpp's own name: the dump is wrong
        ("layer # q rot", True, []),  # its consumers follow it
    ],
)
def test_a_wrong_node_with_right_consumers(
    model: Model, truth: Dump, template: str, wrong_later: bool, expected: list[str]
) -> None:
    later = printed(truth, "attn_out-0", "wo", led=wrong_later)
    dump = log(truth, printed(truth, "Qcur-0", template, led=True), later, printed(truth, "l_out-0", "x"),
               printed(truth, "l_out-1", "x"))  # fmt: skip
    found = judge(model, dump)
    assert found.first_wrong is not None and found.first_wrong.name == "Qcur-0"
    assert [m.node.name for m in misreadings(model.graph, dump, found)] == expected


def test_other_rows_or_too_few_values_settle_nothing(model: Model, truth: Dump) -> None:
    off, right = printed(truth, "Qcur-0", "q", led=True), printed(truth, "l_out-0", "x")
    more = [printed(truth, name, "x") for name in ("attn_norm-0", "embd", "Vcur-0")]
    first = next(o for o in truth.observations if o.name == "l_out-0").array()[0]
    for later in (replace(right, rows=(0, 1), data=tuple(map(float, first[:6]))), replace(right, data=right.data[:2])):
        dump = log(truth, off, replace(later, printed=(5e-6,) * len(later.data)), *more)
        assert misreadings(model.graph, dump, judge(model, dump)) == []


def test_the_answer_is_undecided_with_the_line_and_a_question(model: Model, truth: Dump) -> None:
    seen = [printed(truth, name, "x") for name in ("embd", "attn_norm-0", "attn_out-0", "l_out-0", "l_out-1")]
    found = diagnose(model, log(truth, printed(truth, "Qcur-0", "layer # q rot", led=True), *seen), seconds=20)
    assert found.verdict == "undecided" and "'layer # q rot'" in found.because and "attn_out-0" in found.because
    assert "Print Qcur-0 under this name" in answer.text(found, model)
