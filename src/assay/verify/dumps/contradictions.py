"""Finds contradictions inside one dump: statistics that its values cannot have, rows read with a wrong stride.

The checks need no model. They show that two printed lines describe different arrays, before anyone trusts either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from assay.verify.dumps.observation import STATISTICS, Dump, Observation, statistic_near

_SLACK = 1e-6  # relative, beyond the rounding of the print
_PARTS = ("first", "last", "at", "top")


def contradictions(dump: Dump) -> list[str]:
    """One line for every contradiction found."""
    found: list[str] = []
    groups: dict[tuple[str, tuple[int, int] | None], list[Observation]] = {}
    for obs in dump.observations:
        groups.setdefault((obs.name, obs.rows), []).append(obs)
    for (name, rows), group in groups.items():
        where = name if rows is None else f"{name}, row {rows[0]}"
        found += [f"{where}: {line}" for line in _within(group)]
    found += _strides(dump.observations)
    return found


def _within(group: Sequence[Observation]) -> Iterator[str]:
    """Statistics of one array against each other and against the values shown of it."""
    stats = {o.kind: (float(o.data), max(o.printed, default=0.0)) for o in group if o.kind in STATISTICS}
    shown = [(float(v), max(o.printed, default=0.0), o.kind) for o in group if o.kind in _PARTS for v in o.target()]

    def above(x: float, y: float, print_x: float, print_y: float) -> bool:
        return x - y > print_x + print_y + _SLACK * max(abs(x), abs(y))

    for value, rounding, kind in shown:
        for bound, sign in (("max", 1), ("min", -1)):
            if bound in stats and above(sign * value, sign * stats[bound][0], rounding, stats[bound][1]):
                side = "above the maximum" if sign > 0 else "below the minimum"
                best = "a top value" if kind == "top" else "a shown value"
                yield f"{best} of {value:g} lies {side} of {stats[bound][0]:g}; the two lines describe different arrays"
                return
    for small, large in (("min", "max"), ("min", "mean"), ("mean", "max"), ("mean", "rms"), ("min", "rms")):
        if (
            small in stats
            and large in stats
            and above(stats[small][0], stats[large][0], stats[small][1], stats[large][1])
        ):
            yield f"the {small} {stats[small][0]:g} exceeds the {large} {stats[large][0]:g}; no array has both"
    if "rms" in stats and "min" in stats and "max" in stats:
        peak = max(abs(stats["min"][0]), abs(stats["max"][0]))
        if above(stats["rms"][0], peak, stats["rms"][1], max(stats["min"][1], stats["max"][1])):
            yield f"the rms {stats['rms'][0]:g} exceeds the largest value {peak:g}; no array has both"
    for obs in group:
        if obs.kind == "values":
            array = obs.array()
            for kind, (claimed, rounding) in stats.items():
                actual = statistic_near(kind, array, claimed)
                if abs(actual - claimed) > rounding + 1e-4 * max(abs(actual), STATISTICS["rms"](array)):
                    yield f"the {kind} is said to be {claimed:g} but the values give {actual:g}"


def _strides(observations: Sequence[Observation]) -> Iterator[str]:
    """Two lists under one name, where one is the other read at a wrong stride or offset."""
    lists = [o for o in observations if o.kind == "first" and len(o.data) >= 2]
    for i, one in enumerate(lists):
        for other in lists[i + 1 :]:
            if one.foreign == other.foreign or one.name != other.name or one.rows != other.rows:
                continue
            yield from _stride(one, other)


def _stride(one: Observation, other: Observation) -> Iterator[str]:
    x, y = one.target(), other.target()
    n = min(len(x), len(y))
    close = 2e-6 * float(np.abs(np.concatenate([x, y])).max())
    if np.allclose(x[:n], y[:n], rtol=0, atol=close):
        return
    for stride in range(2, len(y)):
        known = -(-len(y) // stride)
        if known >= 2 and np.allclose(x[:known], y[::stride][: len(x)], rtol=0, atol=close):
            yield (
                f"{one.name}: {one.foreign} and {other.foreign} are not the same values: element 1 of the first "
                f"({x[1]:g}) is element {stride} of the second, whose element 1 is {y[1]:g}; a stride of {stride}"
            )
            return
    same = int((np.abs(x[:n] - y[:n]) <= close).sum())
    if same:
        yield (
            f"{one.name}: {one.foreign} and {other.foreign} agree in only {same} of {n} shown values; "
            f"element {int((np.abs(x[:n] - y[:n]) > close).argmax())} differs"
        )
