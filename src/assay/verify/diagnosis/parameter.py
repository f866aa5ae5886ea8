"""The one parameter of a family of faults: common values, a scan, a refinement around the best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from assay.verify.diagnosis.fault_trials import NEVER, EvidenceUnit, FaultTrials, Hypothesis, ObservationFit
from assay.verify.thresholds import A_LAYERS_WORTH, FEEDS_FIRST, PROMISING

MOSTLY = 0.9  # Share of the values that pass a limit which stays unnoticed.
_NOISE_LEFT = 0.2  # times the allowed noise: a smaller residual needs no refinement.
_FLAT = 1e-5  # Relative change of the cost at which it no longer depends on the parameter.


def search_parameter(
    trials: FaultTrials,
    h: Hypothesis,
    unit: EvidenceUnit,
    fit: Callable[[Hypothesis], ObservationFit] | None = None,
    *,
    deep: bool = True,
    around: float = 0.0,
) -> tuple[Hypothesis, ObservationFit]:
    """The best member of a family at this unit: common values, then a scan, then a refinement around the best.

    With `around`, only the refinement is done, within this relative distance of the hypothesis's own parameter.
    """
    search = h.variant.search
    assert search is not None
    tried: dict[float, ObservationFit] = {}

    def at(p: float) -> ObservationFit:
        if p not in tried:
            usable, guess = trials.touches(h.variant, unit, p), replace(h, p=p)
            usable = usable and not trials.budget.over(f"{unit.target}: fitting the numbers of mistakes")
            tried[p] = (fit(guess) if fit else trials.fit(guess, unit)) if usable else NEVER
        return tried[p]

    def best() -> float:
        return min(tried, key=lambda p: tried[p].residual)

    def cost(p: float) -> float:
        return -np.inf if at(p).ratio < _NOISE_LEFT else at(p).residual

    if around:
        least(cost, h.p * (1 - around), h.p * (1 + around), False)
        return replace(h, p=best()), tried[best()]
    of_file = (
        search.scan(trials.context, [trials.graph[name] for name in unit.segment]) if search.scan is not None else ()
    )
    rows, met = trials.rows, _met(trials, h, unit) if search.limit else (0.0, 0.0)
    common = search.usual(rows, met)
    for p in (*common, *of_file[: len(of_file) if deep else A_LAYERS_WORTH]):
        if at(p).explained:
            return replace(h, p=p), tried[p]
    if not deep or (search.points == 0 and not of_file):
        return (replace(h, p=best()), tried[best()]) if tried else (h, NEVER)
    grid = sorted(search.grid(rows, met))
    if not grid and not tried:
        return h, NEVER
    if search.nominal:
        for p in grid:
            if at(p).explained:
                break
        return replace(h, p=best()), tried[best()]
    if trials.terms.subtle and grid:  # most likely no fault: continue only if a rough scan gains something
        fine = not search.whole and len(unit.segment) <= FEEDS_FIRST
        stride = 1 if len(unit.segment) == 1 else max(1, len(grid) // (16 if fine else 8))
        near = () if search.neutral is None else (search.neutral * 0.95, search.neutral * 1.05)
        gained = min(at(p).residual for p in (*common, *near, *grid[::stride]))
        if gained > PROMISING * trials.before(unit).residual:
            return replace(h, p=best()), tried[best()]
    for p in grid:
        if at(p).explained and search.whole:
            return replace(h, p=p), tried[p]
    start = best()
    if not np.isfinite(tried[start].residual):
        return replace(h, p=start), tried[start]
    order = sorted(tried)
    i = order.index(start)
    lo, hi = order[max(i - 1, 0)], order[min(i + 1, len(order) - 1)]
    if search.whole:
        _walk(at, int(lo), int(hi))
    else:
        least(cost, lo, hi, search.log and lo > 0)
    return replace(h, p=best()), tried[best()]


def _met(trials: FaultTrials, h: Hypothesis, unit: EvidenceUnit) -> tuple[float, float]:
    """Sizes of the values that a limit would clip, in the definition: the 90 % quantile and the largest."""
    base = trials.base(unit)
    met = [base[name] for name in unit.segment if h.variant.at(trials.context, trials.graph[name], 1.0) is not None]
    if not met:
        return 0.0, 0.0
    sizes = [np.abs(x) for x in met]
    return min(float(np.quantile(x, MOSTLY)) for x in sizes), max(float(x.max()) for x in sizes)


def _walk(at: Any, lo: int, hi: int) -> None:
    """Narrow a bracket of integers by thirds; residuals are unimodal near the true value."""
    while hi - lo > 8:
        third = (hi - lo) // 3
        if at(float(lo + third)).residual < at(float(hi - third)).residual:
            hi -= third
        else:
            lo += third
    for p in range(lo, hi + 1):
        if at(float(p)).explained:
            return


def least(cost: Callable[[float], float], lo: float, hi: float, log: bool, steps: int = 48) -> float:
    """Golden-section search for the parameter of least cost; it ends where the cost is flat, or -inf."""
    to, back = (np.log, np.exp) if log else (float, float)
    a, b, g = float(to(lo)), float(to(hi)), (np.sqrt(5) - 1) / 2
    c, d = b - g * (b - a), a + g * (b - a)
    left, right = cost(float(back(c))), cost(float(back(d)))
    for _ in range(steps):
        if min(left, right) == -np.inf or abs(left - right) <= _FLAT * abs(left):
            break
        if left < right:
            b, d, right = d, c, left
            c = b - g * (b - a)
            left = cost(float(back(c)))
        else:
            a, c, left = c, d, right
            d = a + g * (b - a)
            right = cost(float(back(d)))
    return float(back(c if left < right else d))
