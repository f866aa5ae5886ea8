"""Two faults in one operation are named together. (A fault outside the catalogue stays unexplained: test_named.py.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.engines.reference.weights import Weights
from assay.models import Model
from assay.verify.diagnosis.diagnose_dump import diagnose
from tests import planting


@pytest.mark.parametrize(
    "pair", [("rope-type", "rope-base"), ("rope-type", "rope-linear"), ("rope-type", "rope-partial")]
)
def test_both_are_named(path: Path, model: Model, weights: Weights, tmp_path: Path, pair: tuple[str, str]) -> None:
    case = planting.second(path, *pair)
    found = diagnose(model, planting.dump(case, "full", model, tmp_path), weights=weights)
    named = [{cause.fault, *cause.equivalent} for cause in found.causes]
    assert all(any(fault in names for names in named) for fault in pair), found.to_dict()
    assert not found.unexplained and len(found.causes) == 2
    assert {cause.node for cause in found.causes} == {found.first_wrong}
