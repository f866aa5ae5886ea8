"""An answer says where it rests on a log that may have been misread."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from assay.models import Model
from assay.verify.diagnosis import answer
from assay.verify.diagnosis.diagnose_dump import MISREAD, SAY_WHICH, diagnose
from assay.verify.diagnosis.result import Diagnosis
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.resolve import resolve
from tests.verify.conftest import TOKENS


def log_of(truth: Dump, model: Model, *, wrong: bool = False, twice: bool = False) -> Dump:
    """A print of the last row's first values. `twice`: each node is printed again, with other values."""
    random, lines = np.random.default_rng(1), [f"tokens: {TOKENS}"]
    for name in ("attn_norm-0", "ffn_inp-0", "l_out-0", "l_out-1"):
        row = next(o for o in truth.observations if o.name == name).array()[-1, :6]
        other = random.normal(size=6) * 3
        lines += [f"{name}: {np.array2string(other if wrong else row, separator=', ', precision=6)}"]
        lines += [f"{name}: {np.array2string(other, separator=', ', precision=6)}"] if twice else []
    return resolve(read_log(Path("x.log"), text="\n".join(lines)), model)


def test_the_share_of_prints_that_contradict_others_is_kept(model: Model, truth: Dump) -> None:
    assert log_of(truth, model, twice=True).set_aside >= 0.4 and log_of(truth, model).set_aside == 0


def test_a_log_that_contradicts_itself_is_undecided(model: Model, truth: Dump) -> None:
    log = log_of(truth, model)
    assert diagnose(model, log).verdict == "healthy"
    found = diagnose(model, replace(log, set_aside=0.5))
    assert found.verdict == "undecided" and found.next_observation == SAY_WHICH
    assert answer.text(found, model).startswith("undecided: 50% of what the log prints was not used")


def test_where_nothing_is_right_the_reading_is_doubted(model: Model, truth: Dump) -> None:
    found = diagnose(model, log_of(truth, model, wrong=True))
    assert found.verdict in ("unexplained", "inconclusive") and MISREAD in found.notes


def test_small_deviations_are_undecided_because_of_the_noise(model: Model, truth: Dump) -> None:
    """Not because the time was up, even where a stricter arithmetic would call a value wrong."""
    judged = diagnose(model, log_of(truth, model, wrong=True), seconds=5).diff
    assert judged is not None and judged.verdict == "wrong"
    undecided = Diagnosis("undecided", None, (), (), "dump more", diff=judged)
    assert answer.text(undecided, model).startswith(answer.BELOW_NOISE)
