"""The one parameter of a family of faults: common values, a scan, a refinement around the best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from assay.verify.diagnosis.lab import NEVER, Fit, Hypothesis, Lab, Unit
from assay.verify.thresholds import A_LAYERS_WORTH, FEEDS_FIRST, PROMISING


def search_parameter(
    lab: Lab,
    h: Hypothesis,
    unit: Unit,
    fit: Callable[[Hypothesis], Fit] | None = None,
    *,
    deep: bool = True,
    around: float = 0.0,
) -> tuple[Hypothesis, Fit]:
    """The best member of a family at this unit: common values, then a scan, then a refinement around the best.

    With `around`, only the refinement, that near to the hypothesis's own parameter.
    """
    search = h.variant.search
    assert search is not None
    tried: dict[float, Fit] = {}

    def at(p: float) -> Fit:
        if p not in tried:
            usable, guess = lab.touches(h.variant, unit, p), replace(h, p=p)
            tried[p] = (fit(guess) if fit else lab.fit(guess, unit)) if usable else NEVER
        return tried[p]

    def best() -> float:
        return min(tried, key=lambda p: tried[p].residual)

    if around:
        _golden(at, h.p * (1 - around), h.p * (1 + around), False)
        return replace(h, p=best()), tried[best()]
    of_file = search.scan(lab.context, [lab.graph[name] for name in unit.segment]) if search.scan is not None else ()
    for p in (*search.common, *of_file[: len(of_file) if deep else A_LAYERS_WORTH]):
        if at(p).explained:
            return replace(h, p=p), tried[p]
    if not deep or (search.points == 0 and not of_file):
        return (replace(h, p=best()), tried[best()]) if tried else (h, NEVER)
    grid = sorted(search.grid())
    if search.nominal:
        for p in grid:
            if at(p).explained:
                break
        return replace(h, p=best()), tried[best()]
    if lab.terms.subtle and grid:  # most likely nothing is wrong: go on only where a rough scan gains something
        fine = not search.whole and len(unit.segment) <= FEEDS_FIRST
        stride = 1 if len(unit.segment) == 1 else max(1, len(grid) // (16 if fine else 8))
        near = () if search.neutral is None else (search.neutral * 0.95, search.neutral * 1.05)
        least = min(at(p).residual for p in (*search.common, *near, *grid[::stride]))
        if least > PROMISING * lab.before(unit).residual:
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
        _golden(at, lo, hi, search.log and lo > 0)
    return replace(h, p=best()), tried[best()]


def _walk(at: Any, lo: int, hi: int) -> None:
    """Narrow a bracket of whole numbers by thirds; residuals are unimodal near the truth."""
    while hi - lo > 8:
        third = (hi - lo) // 3
        if at(float(lo + third)).residual < at(float(hi - third)).residual:
            hi -= third
        else:
            lo += third
    for p in range(lo, hi + 1):
        if at(float(p)).explained:
            return


def _golden(at: Any, lo: float, hi: float, log: bool, steps: int = 48) -> None:
    """Golden-section search for the least residual."""
    to, back = (np.log, np.exp) if log else (float, float)
    a, b, g = float(to(lo)), float(to(hi)), (np.sqrt(5) - 1) / 2
    for _ in range(steps):
        c, d = b - g * (b - a), a + g * (b - a)
        left, right = at(float(back(c))), at(float(back(d)))
        if min(left.ratio, right.ratio) < 0.2:
            return
        if left.residual < right.residual:
            b = d
        else:
            a = c
