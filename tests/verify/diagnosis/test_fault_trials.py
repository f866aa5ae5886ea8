"""Trials of hypotheses: what is left out for speed changes no answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis import fault_trials
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.diagnosis.fault_trials import FaultTrials
from tests import planting, tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(tiny.make(tmp_path_factory.mktemp("model") / "tiny.gguf", type="Q8_0", n_layer=1)))


def _counted(calls: Counter[str], name: str, call: Callable[..., Any], *args: Any) -> Any:
    calls[name] += 1
    return call(*args)


@pytest.mark.parametrize(("bug", "style"), [("x-norm-abs", "layers"), ("rope-type", "last"), ("gqa-modulo", "layers")])
def test_a_hypothesis_that_leaves_much_is_not_compared_with_noise(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str, style: str
) -> None:
    dump = planting.dump(planting.second(model.file.path, bug), style, model, tmp_path)
    calls, compare = Counter[str](), FaultTrials.compare
    for name in ("deviation", "ratios"):
        monkeypatch.setattr(fault_trials, name, partial(_counted, calls, name, getattr(fault_trials, name)))
    quick = diagnose(model, dump).to_dict()
    assert calls["deviation"] > 100 and calls["ratios"] < 0.7 * calls["deviation"], calls

    def whole(self: FaultTrials, *args: Any, most: float = np.inf, **given: Any) -> Any:
        return compare(self, *args, **given)

    monkeypatch.setattr(FaultTrials, "compare", whole)
    assert diagnose(model, dump).to_dict() == quick
