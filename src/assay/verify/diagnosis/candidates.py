"""Which hypotheses explain a unit of evidence (an observed node and the segment before it), with which confidence.

`hypotheses` lists what is tried and in which order. `candidates_at` tries it. `confidence` turns a fit into a
probability, from the number of bits by which the fault shortens the description of the observed values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np

from assay.graph import split
from assay.verify.diagnosis.damage import damage_in_prints, damage_in_tensor
from assay.verify.diagnosis.fault_trials import NEVER, EvidenceUnit, FaultTrials, Hypothesis, ObservationFit
from assay.verify.diagnosis.phases import Phase, phase
from assay.verify.diagnosis.posterior import SURE, gained, posterior
from assay.verify.diagnosis.result import Cause
from assay.verify.diagnosis.screen import Screen
from assay.verify.faults import FAULTS, FaultKind, Stage, Variant, decode_only, prompt_only
from assay.verify.faults.description import (
    AXES,
    COMPOSED,
    COUNTED,
    EXCHANGED,
    INDEX,
    LAYERS,
    OPERAND,
    TOKEN,
    Description,
)
from assay.verify.faults.edit_grammar import descriptions
from assay.verify.faults.scope_grammar import in_decode, in_prompt
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.thresholds import (
    ACCEPT,
    COARSE,
    ENOUGH,
    GAIN,
    LARGE_LAYER,
    LONG_RUN,
    MOST_DECODED,
    NARROW,
    ONE_BIT,
    TIE,
)

SECOND_NAMES = {  # faults that another row describes more plainly
    "gguf-default-hparam", "qk-gguf-in-halfsplit", "norm-inplace-residual", "head-gemm-ld", OPERAND, INDEX, TOKEN, AXES,
    COUNTED, EXCHANGED,
}  # fmt: skip
PATH_SPLIT = "path-split"
MOST_READINGS = 2  # that are named beside the best
SINGLE = {
    "gguf-missing-tensor",
    "weight-damaged",
}  # happens to one tensor, so right values of other tensors do not speak against it


SCANNED = {"weight-torn", "weight-damaged"}  # the place is the best of thousands, which is a long description
_VARIANTS = sum(len(fault.variants) for fault in FAULTS.values())
Scope = Callable[[Iterable[Description]], Iterable[Description]]
_OF_THE_FILE = (Stage.PARSING, Stage.DEQUANTISATION)


@dataclass(frozen=True)
class Candidate:
    """A hypothesis that explains the first unit, with how it fares elsewhere."""

    hypothesis: Hypothesis
    fit: ObservationFit
    explained: int = 0
    contradicted: int = 0
    lost: float = 0.0  # bits by which it lengthens the description of right nodes

    @property
    def fitted(self) -> bool:
        h = self.hypothesis
        return h.variant.search is not None and h.p not in h.variant.search.common

    @property
    def short(self) -> bool:
        """Is it a mistake without a number, which leaves float32's noise alone?"""
        return self.fit.exact and self.hypothesis.variant.search is None

    @property
    def rank(self) -> tuple[float, ...]:
        fault = self.hypothesis.fault
        bit = fault == "weight-damaged"  # the best of thousands, as a fitted parameter is
        family = bit or self.hypothesis.variant.search is not None
        second = (fault in SECOND_NAMES) + 2 * (fault == LAYERS)  # one tensor is less than all of a layer
        return (not self.fit.exact, -self.explained, self.contradicted, bit or self.fitted, second, family)


def representatives(units: Sequence[EvidenceUnit]) -> list[EvidenceUnit]:
    """A few units in place of all: the first and the last of each role."""
    by_role: dict[str, list[EvidenceUnit]] = {}
    for unit in units:
        by_role.setdefault(split(unit.target)[0], []).append(unit)
    return [many[0] for many in by_role.values()] + [many[-1] for many in by_role.values() if len(many) > 1]


# The same mistake in the kernels of some calls.
_IN: dict[Phase, Callable[[Variant], Variant]] = {Phase.DECODE: decode_only, Phase.PROMPT: prompt_only}


def hypotheses(trials: FaultTrials, unit: EvidenceUnit, calls: Phase = Phase.BOTH) -> Iterable[Hypothesis]:
    """Everything in the catalogue that can be planted in the segment, the cheap and likely first.

    The order is: fixed mistakes, families, misread weights where each trial decodes a whole model. Where `calls` are
    the decode steps or the prompt, the same mistakes in these calls alone come last.
    """
    families: list[Hypothesis] = []
    misread: list[Hypothesis] = []
    for fault in FAULTS.values():
        if trials.terms.subtle and FaultKind.WEIGHTS in fault.kinds:
            continue
        for variant in fault.variants:
            if variant.search is not None:
                families.append(Hypothesis(fault.id, variant))
            elif trials.touches(variant, unit):
                if costly(trials, fault.id, unit):
                    misread.append(Hypothesis(fault.id, variant))
                else:
                    yield Hypothesis(fault.id, variant)
    yield from families
    yield from misread
    if calls in _IN:
        for fault in FAULTS.values():
            for variant in fault.variants:
                if variant.search is None and trials.touches(variant, unit):
                    yield in_calls(Hypothesis(fault.id, variant), calls)


def in_calls(h: Hypothesis, calls: Phase) -> Hypothesis:
    """The same mistake in some calls alone. A row of the catalogue is named in the words of `path-split`."""
    variant = _IN[calls](h.variant)
    if h.fault in COMPOSED:
        return replace(h, variant=variant)
    return replace(h, fault=PATH_SPLIT, variant=replace(variant, label=f"{h.fault}: {variant.label}"))


def costly(trials: FaultTrials, fault: str, unit: EvidenceUnit) -> bool:
    """Does a trial decode a whole model, or a large layer?"""
    if FAULTS[fault].stage not in _OF_THE_FILE:
        return False
    return len(unit.segment) >= LONG_RUN or (len(unit.segment) > 1 and trials.size(unit.segment) >= LARGE_LAYER)


@dataclass(frozen=True)
class Found:
    """The hypotheses that explain a unit, the number tried, and the trials on whose terms they explain it."""

    candidates: list[Candidate]
    tried: int
    trials: FaultTrials
    composed: bool = False  # the grammar was tried as well


Share = Callable[
    [EvidenceUnit], Mapping[int, ObservationFit]
]  # of the hypotheses about a unit, those that were tried elsewhere


def tried_here(trials: FaultTrials, unit: EvidenceUnit, part: int, parts: int) -> dict[int, ObservationFit]:
    """Every `parts`-th hypothesis without a parameter: the share of one of several machines."""
    screen = Screen(trials, unit)
    listed = enumerate(hypotheses(trials, unit, phase(trials, unit)))
    return {i: screen.fit(h) for i, h in listed if h.variant.search is None and i % parts == part}


def candidates_at(
    trials: FaultTrials,
    unit: EvidenceUnit,
    before: ObservationFit,
    *,
    deep: bool = True,
    share: Share | None = None,
    within: Sequence[str] | None = (),
) -> Found:
    """The hypotheses that explain the unit: the catalogue, then the grammar, then scans if nothing simple fits.

    `within` are the nodes in which the fault must lie, if they are fewer than the unit's segment; None leaves the
    grammar out.
    """
    elsewhere = share(unit) if share else {}
    found: list[Candidate] = []
    rough: list[Candidate] = []
    scans: list[Hypothesis] = []
    tried = 0
    screen, budget, most = Screen(trials, unit), trials.budget, max(GAIN, COARSE) * before.residual
    listed = hypotheses(trials, unit, phase(trials, unit))
    for i, h in budget.counting(enumerate(listed), _VARIANTS, f"{unit.target}: trying known mistakes", "mistakes"):
        if h.fault == PATH_SPLIT and (found or screen.long):
            break  # where each trial is a run, the scans come first
        if FAULTS[h.fault].kinds == (FaultKind.PRECISION,) and before.residual > NARROW:
            continue
        if costly(trials, h.fault, unit) and any(c.fit.residual < ENOUGH * before.residual for c in found):
            continue  # a mistake in a formula that fits to that many digits is no misread file
        tried += 1
        if screen.right_at_first and FAULTS[h.fault].stage in _OF_THE_FILE:
            continue  # misread weights would show in every row
        if h.variant.search is None:
            fit = elsewhere[i] if i in elsewhere else screen.fit(h, most)
        else:
            h, fit = screen.search(h, deep=False)
            scans.append(replace(h, p=0.0))
        if better(fit, before):
            found.append(Candidate(h, fit))
        elif fit.residual < COARSE * before.residual:
            rough.append(Candidate(h, fit))
    composed = deep and within is not None and not screen.long and not any(c.short for c in found)
    if composed:
        edits = composed_at(trials, unit, before, within or unit.segment, screen)
        found += edits.candidates
        tried += edits.tried
    bits: list[Candidate] = []
    if not found:
        damage = chain(damage_in_tensor(trials, unit), damage_in_prints(trials, unit, (unit.target,)))
        for h in budget.counting(damage, 0, f"{unit.target}: looking for a damaged weight"):
            tried += 1
            bits.append(Candidate(h, trials.fit(h, unit)))
        bits = [c for c in bits if c.fit.residual < ONE_BIT * before.residual]
        found = [c for c in bits if c.fit.explained]
    if (
        deep and not any(c.fit.exact for c in found) and (bits or not found)
    ):  # one of thousands of bits is near any deviation
        ordered = sorted(scans, key=lambda h: _points(trials, h))
        for h in budget.each(ordered, f"{unit.target}: fitting the numbers of mistakes", "mistakes"):
            tried += 1
            h, fit = screen.search(h, deep=affordable(trials, unit, h))
            if better(fit, before):
                found.append(Candidate(h, fit))
            elif fit.residual < COARSE * before.residual:
                rough.append(Candidate(h, fit))
            if screen.long and fit.residual < ENOUGH * before.residual:
                break  # every further point costs a run of the model
    if screen.long and not found and not rough and phase(trials, unit) is Phase.DECODE:
        listed = hypotheses(trials, unit, Phase.DECODE)
        for h in budget.counting(listed, _VARIANTS, f"{unit.target}: trying mistakes of decode steps", "mistakes"):
            if h.fault == PATH_SPLIT and better(fit := screen.fit(h), before):
                found.append(Candidate(h, fit))
    if not found and trials.terms.guessed and not trials.terms.subtle:
        coarser = _coarser(trials, [*rough, *bits], tried)
        if coarser is not None:
            return replace(coarser, composed=composed)
    return Found(found, tried, trials, composed)


def composed_at(
    trials: FaultTrials,
    unit: EvidenceUnit,
    before: ObservationFit,
    within: Sequence[str],
    screen: Screen | None = None,
) -> Found:
    """The descriptions of the grammar, of mistakes in the nodes `within`, that explain the unit."""
    screen, tried = screen or Screen(trials, unit), 0
    found: list[Candidate] = []
    calls = phase(trials, unit)
    for scope in _SCOPES[calls]:
        if found and calls is Phase.UNSEEN:
            break  # unobserved rows are taken to have the same mistake
        split_paths = scope is in_prompt and calls is Phase.UNSEEN
        make = partial(_composed, trials, unit, within, scope, split_paths)
        listed = trials.composed(unit, (tuple(within), scope, split_paths), make)
        for h in trials.budget.each(listed, f"{unit.target}: trying the grammar of edits", "edits"):
            if trials.touches(h.variant, unit):
                tried += 1
                if better(fit := _composed_fit(screen, h, GAIN * before.residual), before):
                    found.append(Candidate(h, fit))
    return Found(found, tried, trials, composed=True)


def _composed(
    trials: FaultTrials, unit: EvidenceUnit, within: Sequence[str], scope: Scope, split_paths: bool
) -> list[Hypothesis]:
    """Those of a scope, and the catalogue's mistakes in the prompt alone, if paths are split."""
    listed = [Hypothesis(*d) for d in scope(descriptions(trials.context, within))]
    if split_paths:
        listed += [h for h in hypotheses(trials, unit, Phase.PROMPT) if h.fault == PATH_SPLIT]
    return listed


# The calls that have a composed edit, in the order of trying, by the calls that show a deviation.
_SCOPES: dict[Phase, tuple[Scope, ...]] = {
    Phase.BOTH: (list,),
    Phase.DECODE: (list, in_decode),
    Phase.UNSEEN: (list, in_decode, in_prompt),
    Phase.PROMPT: (list, in_prompt),
}


def _composed_fit(screen: Screen, h: Hypothesis, most: float) -> ObservationFit:
    """The fit of a composed edit. One that an operation refuses, although its shapes agree, explains nothing."""
    try:
        return screen.fit(h, most)
    except (ValueError, IndexError, TypeError, KeyError):
        return NEVER


def _coarser(trials: FaultTrials, rough: list[Candidate], tried: int) -> Found | None:
    """Where the arithmetic was a guess: the next coarser one under which some hypothesis explains the unit."""
    for i in range(trials.terms.arithmetic + 1, len(ARITHMETICS)):
        found = [replace(c, fit=replace(c.fit, ratio=c.fit.every[i])) for c in rough if c.fit.every[i] <= ACCEPT]
        if found:
            return Found(found, tried, trials.on(replace(trials.terms, arithmetic=i)))
    return None


def better(fit: ObservationFit, before: ObservationFit) -> bool:
    return fit.explained and fit.residual < GAIN * before.residual


def affordable(trials: FaultTrials, unit: EvidenceUnit, h: Hypothesis) -> bool:
    """A scan of a weight's layout decodes it at every point of the grid: not for large tables."""
    search = h.variant.search
    if FaultKind.WEIGHTS not in FAULTS[h.fault].kinds or search is None:
        return True
    return trials.size(unit.segment) * search.points < MOST_DECODED


def _points(trials: FaultTrials, h: Hypothesis) -> int:
    """How many a scan has."""
    search = h.variant.search
    if search is None or search.scan is not None:
        return sys.maxsize  # those of a file are many
    return len(search.grid(trials.rows))


def same_name(best: Candidate, other: Candidate) -> bool:
    """Would naming either say the same? Composed edits differ in their words, not in their row of the catalogue."""
    a, b = best.hypothesis, other.hypothesis
    return a.fault == b.fault and (a.fault not in COMPOSED or str(a) == str(b))


def tied(best: Candidate, other: Candidate) -> bool:
    if same_name(best, other):
        return False
    if (other.explained, other.contradicted, other.fit.exact) != (best.explained, best.contradicted, best.fit.exact):
        return False
    return other.fit.ratio <= max(1.0, TIE * best.fit.ratio)


def make_cause(
    best: Candidate,
    same: Sequence[Candidate],
    node: str,
    nodes: Sequence[str],
    before: ObservationFit,
    tried: int,
    most: float = SURE,
    apart: Sequence[Candidate] = (),
) -> Cause:
    """The cause that a candidate is; `same` are those that fit as well, `most` bounds the confidence. `apart` are the
    composed edits among them that differ from the best in values that were not observed."""
    h = best.hypothesis
    equivalent = tuple(dict.fromkeys(c.hypothesis.fault for c in same if c.hypothesis.fault != h.fault))
    readings = other_readings(best, same) or [str(c.hypothesis) for c in apart]
    rivals = len(set(equivalent) - SECOND_NAMES) + len(readings)
    if h.fault == PATH_SPLIT:  # the mistake that some calls have is another name for the same thing
        equivalent = tuple(dict.fromkeys((h.variant.label.split(":")[0], *equivalent)))
    return Cause(
        fault=h.fault,
        node=node,
        how="; or as well: ".join((str(h), *readings[:MOST_READINGS])),
        nodes=tuple(nodes),
        confidence=confidence(before, best.fit, tried, best.fitted, len(nodes), best.lost, rivals, most),
        explains=max(0.0, 1 - best.fit.residual / max(before.residual, 1e-300)),
        equivalent=equivalent,
        before=before.ratio,
        after=best.fit.ratio,
        fitted=best.fitted,
        exact=best.fit.exact,
    )


def confidence(
    before: ObservationFit,
    after: ObservationFit,
    tried: int,
    fitted: bool,
    nodes: int = 1,
    lost: float = 0.0,
    rivals: int = 0,
    most: float = SURE,
) -> float:
    """The probability that the fault happened (`posterior`), from its fit to the first wrong node.

    Each observed number is described with log2(deviation before / after) fewer bits.
    """
    leaves_much = after.ratio > 1 and not after.exact and after.residual > COARSE * before.residual
    bits = gained(described(before, after), tried, fitted, nodes, lost)
    return posterior(bits, rivals=rivals, leaves_much=leaves_much, most=most)


def other_readings(best: Candidate, same: Sequence[Candidate]) -> list[str]:
    """If the best is a composed edit: the other composed edits that fit as well.

    Two texts for one computation leave the same residual, to the last bit; they are one reading. One tensor and all of
    a layer are two: nodes that were not observed would differ.
    """
    if best.hypothesis.fault not in COMPOSED:
        return []
    others = {_reading(c): str(c.hypothesis) for c in reversed(same) if c.hypothesis.fault in COMPOSED}
    return [words for reading, words in reversed(others.items()) if reading != _reading(best)]


def _reading(c: Candidate) -> tuple[float, bool]:
    return c.fit.residual, c.hypothesis.fault == LAYERS


def described(before: ObservationFit, after: ObservationFit) -> float:
    """Bits by which the description of a node's numbers gets shorter, where they were beyond the noise."""
    gain = np.log2(max(before.ratio, 1.0) / max(after.ratio, 0.5)) if before.ratio > 1 else 0.0
    return float(min(after.count, 64) * max(gain, 0.0) / 2)
