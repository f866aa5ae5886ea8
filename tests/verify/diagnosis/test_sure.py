"""The confidence of a diagnosis, and the values that a scan for a parameter tries."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from assay.engines.reference.weights import Weights
from assay.models import Model
from assay.verify.diagnosis.candidates import confidence
from assay.verify.diagnosis.fault_trials import EvidenceUnit, FaultTrials, Hypothesis, ObservationFit
from assay.verify.diagnosis.parameter import least
from assay.verify.faults import FAULTS
from assay.verify.judge.verdict import judge
from tests import planting


def test_what_noise_covers_is_no_evidence_for_a_fault() -> None:
    """Ten values within the noise are nearer by chance with one of some hundred faults, equally at eight nodes."""
    within, nearer = ObservationFit(0.51, 0.0132, 11, 1100.0), ObservationFit(0.15, 0.0025, 11, 324.0)
    assert confidence(within, nearer, 233, False, nodes=8) <= 0.5
    assert confidence(ObservationFit(51.0, 1.32, 11, 1e5), nearer, 233, False, nodes=8) > 0.9


def test_a_fault_that_leaves_more_than_noise_is_a_guess() -> None:
    before = ObservationFit(4.82, 0.00236, 65536, 1e4)
    assert confidence(before, ObservationFit(1.99, 0.000485, 65536, 6.9e3), 264, False) <= 0.5
    assert confidence(before, ObservationFit(0.6, 0.00002, 65536, 900.0), 264, False) > 0.9


def test_right_nodes_that_a_fault_would_have_made_wrong_speak_against_it() -> None:
    before, after = ObservationFit(100.0, 1.0, 10, 1e5), ObservationFit(0.4, 1e-6, 10, 0.4)
    assert confidence(before, after, 200, False) > 0.9
    assert confidence(before, after, 200, False, lost=60.0) < 0.5


def test_a_scan_tries_only_what_can_show() -> None:
    """A parameter that counts rows is tried for all rows; a limit is tried below the largest value."""
    held = FAULTS["pos-clamped"].variants[0].search
    clipped = FAULTS["clamp-silent"].variants[0].search
    assert held is not None and clipped is not None
    assert held.grid(rows=8) == [1, 2, 3, 4, 5, 6, 7] and not held.usual(rows=8)
    grid = sorted(clipped.grid(met=(1.5, 56.7)))
    assert min(grid) >= 1.5 and max(grid) < 56.7 and all(b / a < 1.2 for a, b in pairwise(grid))


def test_the_least_cost_is_found_with_one_try_a_step() -> None:
    tried: list[float] = []

    def cost(p: float) -> float:
        tried.append(p)
        return (p - 31415.0) ** 2

    assert abs(least(cost, 1e4, 1e5, True) - 31415.0) < 1e-3
    assert len(tried) == len(set(tried)) <= 50


def test_a_shaken_run_moves_by_float32s_noise_and_no_more(model: Model, weights: Weights, tmp_path: Path) -> None:
    dump = planting.dump(planting.second(model.file.path), "logits", model, tmp_path)
    trials = FaultTrials(model, dump, judge(model, dump, cache=False), weights)
    unit = EvidenceUnit(
        "l_out-0", tuple(n.name for n in model.graph)[: [n.name for n in model.graph].index("l_out-0") + 1]
    )
    still, first, second = (bench.base(unit)["l_out-0"] for bench in (trials, trials.shaken(1), trials.shaken(2)))
    size = float((still**2).mean() ** 0.5)
    for other in (first, second):
        assert 0 < float(((other - still) ** 2).mean() ** 0.5) < 1e-5 * size
    assert (first != second).any()
    h = Hypothesis("rope-type", FAULTS["rope-type"].variants[0])
    one, other = (bench.predict(h, unit) for bench in (trials, trials.shaken(1)))
    assert (
        one is not None and other is not None and (one["l_out-0"] != other["l_out-0"]).any()
    )  # not the cached run of the other
