"""One number of hundreds that is barely beyond the noise is no evidence, and a huge value's rounding moves a norm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from assay.gguf import open_file
from assay.models import load
from assay.verify.dumps.observation import Observation
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.compare_nodes import NodeVerdict
from assay.verify.judge.evidence import ratios
from assay.verify.judge.noise import Level
from assay.verify.judge.verdict import judge, without_outliers
from assay.verify.thresholds import OUTLIERS, RUN
from tests import planting, tiny

NAMES = [a.name for a in ARITHMETICS]


def test_the_rounding_of_a_huge_value_is_noise_of_the_norm() -> None:
    row = np.full((1, 576), 0.5)
    row[0, 3] = 190.0
    quiet = Level(np.full((len(ARITHMETICS), 1), 1e-4), np.full((len(ARITHMETICS), 1), 1e-3))
    expected = np.array([np.sqrt(np.sum(row * row))])
    found = ratios(Observation("l_out-0", "norm", 0.0), np.array([1.2]), expected, row, 0, quiet, RUN)
    assert found[NAMES.index("bf16")] <= 1 < found[NAMES.index("f32")]


def test_few_outliers_among_many_are_noise(tmp_path: Path) -> None:
    model = load(open_file(tiny.make(tmp_path / "m.gguf", type="F32")))
    tokens = tuple(t % model.hparams.n_vocab for t in planting.TOKENS)
    run = planting.second(model.file.path, "rope-type", tokens=tokens)
    diff = judge(model, planting.dump(run, "last", model, tmp_path, tokens), cache=False)
    wrong = next(n for n in diff.nodes if n.verdict == "wrong")
    right = next(n for n in diff.nodes if n.verdict == "same")

    def among(n: int, times: float) -> list[NodeVerdict]:
        local = np.full(len(ARITHMETICS), times)
        one = replace(wrong, evidence=replace(wrong.evidence, local=local, whole=False))
        return without_outliers([*[right] * (n - 1), one], 0)

    assert among(OUTLIERS, 1.5)[-1].verdict == "noise"
    assert among(OUTLIERS, 2.5)[-1].verdict == "wrong"  # far beyond
    assert among(OUTLIERS - 1, 1.5)[-1].verdict == "wrong"  # of few nodes
