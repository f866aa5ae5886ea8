"""One function sets every confidence: rivals share it, a guess stays one."""

from __future__ import annotations

from assay.verify.diagnosis.candidates import COMPOSED, Candidate, other_readings, same_name
from assay.verify.diagnosis.fault_trials import Hypothesis, ObservationFit
from assay.verify.diagnosis.posterior import SURE, gained, posterior
from assay.verify.faults import Variant
from assay.verify.faults.edit_grammar import INDEX
from assay.verify.thresholds import A_GUESS


def test_bits_rivals_and_bounds() -> None:
    assert posterior(0.0) == 0.5 and posterior(100.0) == SURE and posterior(-100.0) < 1e-9
    assert posterior(100.0, rivals=1) < 0.5 < 0.9
    assert posterior(100.0, leaves_much=True) == A_GUESS
    assert posterior(100.0, most=0.3) == 0.3
    assert gained(30.0, 1024, False) == 20.0 and gained(30.0, 1024, True) == 10.0


def _candidate(fault: str, words: str, residual: float) -> Candidate:
    return Candidate(Hypothesis(fault, Variant(words, lambda c, node, p: None)), ObservationFit(0.1, residual, 10, 0.1))


def test_composed_edits_that_fit_as_well_are_rivals_and_second_texts_are_not() -> None:
    best = _candidate(INDEX, "rows 1 and 2", 1e-9)
    same_values, other = _candidate(INDEX, "the same in other words", 1e-9), _candidate(INDEX, "rows 3 and 4", 2e-9)
    assert INDEX in COMPOSED and not same_name(best, other)
    assert other_readings(best, [same_values, other]) == ["rows 3 and 4"]
    named = _candidate("rope-type", "a", 1e-9)
    assert same_name(named, _candidate("rope-type", "b", 2e-9)) and other_readings(named, [other]) == []
