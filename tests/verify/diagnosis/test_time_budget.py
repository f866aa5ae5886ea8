"""A search ends in time, says what it left out, and is then less sure."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis import answer
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.diagnosis.early_layers import early_part
from assay.verify.diagnosis.time_budget import TimeBudget, working_clock
from assay.verify.dumps.observation import Dump, Observation
from assay.verify.thresholds import BUSY, CUT_SHORT
from tests import planting, tiny

BUG = "rope-type"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_stage_stops_when_the_time_is_up_and_is_named_once() -> None:
    clock = Clock()
    budget, seen = TimeBudget(10, clock), []
    for i in budget.each(range(20), "l_out-0: trying edits"):
        seen.append(i)
        clock.now += 1
    assert len(seen) == 8 and budget.cut  # a fifth of the time compares what was found
    assert not list(budget.each(range(3), "l_out-1: trying edits"))
    assert budget.untried() == (
        "the search stopped after 10 s and did not finish: trying edits at l_out-0 and 1 more nodes. "
        "--thorough gives it 60 s, --seconds N gives N s",
    )
    assert list(budget.each(range(2), "comparing", share=1.0)) == [0, 1]


def test_without_a_limit_nothing_is_cut() -> None:
    budget = TimeBudget()
    assert list(budget.each(range(3), "x")) == [0, 1, 2] and budget.untried() == ()


def test_the_clock_of_a_busy_machine_goes_on() -> None:
    """A thread that computes nothing for a while has spent a tenth of it."""
    clock = working_clock()
    before = time.monotonic()
    time.sleep(0.5)
    spent, passed = clock(), time.monotonic() - before
    assert passed / BUSY * 0.9 < spent < passed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(tiny.make(tmp_path_factory.mktemp("time") / "tiny.gguf", type="F32")))


def _dump(model: Model, folder: Path) -> Dump:
    tokens = tuple(t % model.hparams.n_vocab for t in planting.TOKENS)
    return planting.dump(planting.second(model.file.path, BUG, tokens=tokens), "full", model, folder, tokens)


def test_a_search_that_was_cut_says_so_and_is_not_sure(model: Model, tmp_path: Path) -> None:
    dump = _dump(model, tmp_path)
    cut = diagnose(model, dump, seconds=1e-9)
    assert cut.first_wrong == "Qcur-0" and not cut.causes and "the search stopped" in cut.notes[-1]
    whole = diagnose(model, dump, seconds=1e6)
    assert whole.causes[0].fault == BUG and whole.causes[0].confidence > CUT_SHORT
    assert whole.to_dict() == diagnose(model, dump).to_dict()


def test_the_first_layers_of_a_large_model_are_judged_first(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.verify.diagnosis import early_layers

    dump = _dump(model, tmp_path)
    assert early_part(model, dump) is None
    monkeypatch.setattr(early_layers, "LARGE_MODEL", 1)
    monkeypatch.setattr(early_layers, "FIRST_WEIGHTS", 1)
    early = early_part(model, dump)
    assert early is not None
    cut, part, count = early
    assert count == 1 and {o.name for o in part.observations} <= {n.name for n in cut.graph}
    found = diagnose(model, dump, seconds=1e6)
    assert found.causes[0].fault == BUG and "layer 0 alone" in found.notes[-1]
    logits = replace(dump, observations=tuple(o for o in dump.observations if o.name == "result_output"))
    assert early_part(model, logits) is None  # nothing of the first layers to judge


def test_ranks_that_were_printed_are_followed() -> None:
    import numpy as np

    from assay.verify.judge.routing import with_printed

    ranked = np.array([[0, 2, 1], [1, 0, 2]])
    seen = Observation("ffn_moe_argsort-0", "first", (2.0, 0.0, 1.0), (0, 1))
    assert with_printed([seen], ranked, 3).tolist() == [[2, 0, 1], [1, 0, 2]]
    odd = replace(seen, data=(7.0, 0.0, math.pi))
    assert with_printed([odd], ranked, 3).tolist() == ranked.tolist()


def test_a_model_that_cannot_be_judged_in_time_is_compared_with_the_native_engine(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("assay._native", reason="the native module is not built")
    from assay.verify.diagnosis import early_layers, native_runs

    monkeypatch.setattr(early_layers, "LARGE_MODEL", 1)
    monkeypatch.setattr(native_runs, "JUDGED_A_SECOND", 1e-9)
    dump = _dump(model, tmp_path)
    logits = replace(dump, observations=tuple(o for o in dump.observations if o.name == "result_output"))
    found = diagnose(model, logits, seconds=1e6)
    assert [c.fault for c in found.causes] == [BUG] and found.causes[0].confidence <= CUT_SHORT, found
    assert "native engine" in found.notes[0]
    cut = diagnose(model, logits, seconds=1e-9)
    assert (cut.verdict, cut.first_wrong) == ("unexplained", "result_output") and "did not finish" in cut.notes[-1]
    right = planting.second(model.file.path, tokens=logits.tokens)
    healthy = planting.dump(right, "full", model, tmp_path, logits.tokens)
    near = replace(healthy, observations=tuple(o for o in healthy.observations if o.name == "result_output"))
    undecided = diagnose(model, near, seconds=1e-9)
    assert (undecided.verdict, undecided.first_wrong) == ("undecided", None), undecided
    assert answer.text(undecided, model).startswith(answer.UNJUDGED)


def test_a_part_of_the_time_ends_earlier_and_leaves_no_note() -> None:
    """A search that must leave time for others: what it leaves out is not the answer's."""
    now = [0.0]
    budget = TimeBudget(10.0, lambda: now[0])
    with budget.part(0.25) as cut:
        now[0] = 1.9
        assert not budget.over("a: a stage") and not cut()
        now[0] = 2.1  # a quarter of 80 % of ten seconds
        assert budget.over("a: a stage") and cut()
    assert not budget.cut and not budget.over("a: another stage")
