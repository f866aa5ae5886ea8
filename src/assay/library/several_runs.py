"""Compare several runs of one engine on the same tokens, for faults that come and go.

The runs are aligned node by node. At each node the runs fall into groups of equal values, where equal means within the
honest noise of the arithmetic that the values themselves show. The first node with more than one group is where the
runs part. The groups are then compared with what differs between the runs: how the tokens were fed (the batch), which
token rows vary (the position), and the order of the runs (time).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.library.notebook import watched
from assay.library.two_runs import graph_axis, side_dump
from assay.library.verdicts import ModelLike, diff, opened
from assay.runtime.opening import Opened
from assay.system.stages import Report, note
from assay.verify.dumps.observation import Dump, Observation, rows_of
from assay.verify.dumps.resolve import resolve

Array = NDArray[Any]
MOST_RUNS = 64
# Squared relative deviation of a row that another order of sums causes, by the arithmetic that the values show.
HONEST = {"float32": 1e-10, "float16": (8 * 2.0**-11) ** 2, "bfloat16": (8 * 2.0**-8) ** 2}
_ENOUGH = 4  # runs from which on an order of the runs can be seen


@dataclass(frozen=True)
class NodeVariation:
    """How much a node varies between runs, as squared relative deviation of its worst row."""

    name: str
    nmse: float
    honest: float
    arithmetic: str
    rows: tuple[int, ...]  # token rows that vary; empty if the dump does not say
    groups: str  # one letter a run: runs with the same letter agree
    stale: tuple[int, int] | None = None  # a row, and the other row of the same node whose values it holds

    @property
    def varies(self) -> bool:
        return len(set(self.groups)) > 1


@dataclass(frozen=True, repr=False)
class RunsComparison:
    """The result over all runs. True if they agree."""

    runs: tuple[str, ...]
    n_tokens: int
    steps: tuple[tuple[int, ...], ...]  # of each run
    nodes: tuple[NodeVariation, ...]
    judged: tuple[tuple[str, str], ...] = ()  # letter of a group, and what the definition says of it

    @property
    def first(self) -> NodeVariation | None:
        return next((node for node in self.nodes if node.varies), None)

    def __bool__(self) -> bool:
        return self.first is None

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def follows(self) -> str:
        """The axis that the difference follows: batch, position or time; empty if the runs agree."""
        return "" if self.first is None else _follows(self.first, self.steps, self.n_tokens)[0]

    def _lines(self) -> list[str]:
        first = self.first
        if first is None:
            equal = sum(node.nmse == 0 for node in self.nodes)
            loudest = max(self.nodes, key=lambda node: node.nmse / node.honest)
            noise = f"; the largest deviation is {_times(loudest)} at {loudest.name}" if loudest.nmse else ""
            return [f"{len(self.runs)} runs agree at {len(self.nodes)} nodes, {equal} of them to the last digit{noise}"]
        at = self.nodes.index(first)
        before, after = self.nodes[:at], self.nodes[at + 1 :]
        told = f"{len(before)} nodes before it agree" if before else "nothing before it was shown"
        lines = [
            f"the runs differ first at {first.name}{_rows(first, self.n_tokens)}: "
            f"nmse {first.nmse:.2e}, {_times(first)}",
            f"  {told}; of {len(after)} nodes after it {sum(node.varies for node in after)} vary",
        ]
        lines += [f"  {letter}  {name}" for letter, name in zip(first.groups, self.runs, strict=True)]
        lines.append(f"  {_follows(first, self.steps, self.n_tokens)[1]}")
        if first.stale is not None:
            lines.append(f"  row {first.stale[0]} holds the values of row {first.stale[1]}: an old step was repeated")
        lines += [f"  {letter}: {words}" for letter, words in self.judged]
        if not self.judged:
            lines.append("  give the model with --model MODEL to see which runs are right")
        return lines

    def to_dict(self) -> dict[str, Any]:
        first = self.first
        return {
            "runs": list(self.runs),
            "agree": first is None,
            "first": None if first is None else first.name,
            "rows": [] if first is None else list(first.rows),
            "groups": None if first is None else first.groups,
            "follows": self.follows() or None,
            "judged": dict(self.judged),
            "nodes": [
                {
                    "name": n.name, "nmse": n.nmse, "honest": n.honest, "arithmetic": n.arithmetic,
                    "varies": n.varies, "rows": list(n.rows), "groups": n.groups,
                }
                for n in self.nodes
            ],
        }  # fmt: skip


def compare_runs(
    runs: Sequence[str],
    model: ModelLike = None,
    *,
    repeat: int = 1,
    dump: Path | None = None,
    tokens: Sequence[int] = (),
    names: Mapping[str, str] | None = None,
    patterns: Sequence[str] = (),
    progress: Report | None = None,
) -> RunsComparison:
    """Compare dumps, or commands that make dumps, each run `repeat` times; in the order in which they ran."""
    with watched(progress):
        sides = [side for _ in range(repeat) for side in runs]
        if not 2 <= len(sides) <= MOST_RUNS:
            raise AssayError(f"--runs: 2 to {MOST_RUNS} runs are compared (found {len(sides)}); name more, or --repeat")
        on = None if model is None else opened(model)
        dumps = [side_dump(side, dump, patterns) for side in sides]
        return _compared(sides, dumps, on, tuple(tokens), names)


def _compared(
    sides: Sequence[str], dumps: list[Dump], on: Opened | None, tokens: tuple[int, ...], names: Mapping[str, str] | None
) -> RunsComparison:
    fed = [d.tokens or tokens for d in dumps]
    other = next((i for i, ids in enumerate(fed) if ids != fed[0]), None)
    if other is not None:
        raise AssayError(
            f"{sides[0]} and {sides[other]}: have different tokens ({list(fed[0])[:8]} and {list(fed[other])[:8]}); "
            "compare runs of the same ids"
        )
    if on is not None:
        dumps = [resolve(d, on.model, names, tokens=() if d.tokens else tokens) for d in dumps]
    n = len(fed[0])
    steps = tuple(d.steps for d in dumps)
    nodes = _variations(dumps, on, n)
    if not nodes:
        shown = [", ".join(list(d.by_name)[:6]) or "nothing" for d in dumps[:2]]
        raise AssayError(f"{sides[0]} and {sides[1]}: no common nodes to compare (found {shown[0]} and {shown[1]})")
    found = RunsComparison(tuple(sides), n, steps, tuple(nodes))
    if on is None or found.first is None:
        return found
    note("comparing one run of each kind with the definition")
    letters = found.first.groups
    judged = []
    for letter in sorted(set(letters))[:3]:
        verdict: Any = diff(on, dumps[letters.index(letter)])
        judged.append((letter, f"{'right' if verdict else 'wrong'} by the definition ({verdict.result.summary})"))
    return RunsComparison(found.runs, n, steps, found.nodes, tuple(judged))


# -- nodes -------------------------------------------------------------------------------------------------------------


def _variations(dumps: Sequence[Dump], on: Opened | None, n: int) -> list[NodeVariation]:
    """The nodes that all runs show, in the order of computation."""
    keyed = [{(o.name, o.kind, o.rows): o for o in d.observations} for d in dumps]
    common = [key for key in keyed[-1] if all(key in other for other in keyed)]
    by_name: dict[str, list[list[Observation]]] = {}
    for key in common:
        several = [other[key] for other in keyed]
        if len({o.target().shape for o in several}) == 1:
            by_name.setdefault(key[0], []).append(several)
    order = {} if on is None else {node.name: i for i, node in enumerate(on.model.graph)}
    return [_variation(name, by_name[name], on, n) for name in sorted(by_name, key=lambda name: order.get(name, 0))]


def _variation(name: str, parts: Sequence[Sequence[Observation]], on: Opened | None, n: int) -> NodeVariation:
    """Deviations of every two runs, row by row; the worst row decides."""
    count = len(parts[0])
    far = np.zeros((count, count))
    rows: set[int] = set()
    arithmetic, stale = "", None
    for several in parts:
        values = [np.asarray(o.target(), np.float64) for o in several]
        kind = _arithmetic(values) if several[0].kind == "values" else "float32"
        arithmetic = kind if not arithmetic or HONEST[kind] < HONEST[arithmetic] else arithmetic
        axis = graph_axis(name, values[0].shape, on, n)
        length = values[0].shape[axis] if several[0].kind == "values" and values[0].ndim else 1
        for t in range(length):
            cut = [rows_of(v, axis, (t, t + 1)) if length > 1 else v for v in values]
            near = _deviations(cut, several)
            far = np.maximum(far, near)
            if near.max() > HONEST[kind]:
                start = several[0].rows[0] if several[0].rows else 0
                rows.add(t + start) if several[0].kind == "values" else rows.update(range(*(several[0].rows or (0, 0))))
                stale = stale or _old_row(values, axis, t, near, HONEST[kind])
    honest = HONEST[arithmetic]
    return NodeVariation(name, float(far.max()), honest, arithmetic, tuple(sorted(rows)), _groups(far, honest), stale)


def _deviations(cut: Sequence[Array], several: Sequence[Observation]) -> Array:
    """The squared relative deviation of every two runs, beyond the rounding of the print."""
    count = len(cut)
    found = np.zeros((count, count))
    for i in range(count):
        for j in range(i):
            x, y = cut[i], cut[j]
            printed = np.maximum(*(np.asarray(several[k].printed or 0.0) for k in (i, j)))
            finite = np.isfinite(x) & np.isfinite(y)
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            off = np.where(finite, np.maximum(np.abs(np.where(finite, x - y, 0)) - 2 * printed, 0), 0)
            if (~finite & ~same).any():
                found[i, j] = found[j, i] = np.inf
                continue
            size = max(float(np.sum(np.where(finite, v, 0) ** 2)) for v in (x, y))
            found[i, j] = found[j, i] = float(np.sum(off**2)) / (size + 1e-30)
    return found


def _arithmetic(values: Sequence[Array]) -> str:
    """The narrowest type that holds all values exactly."""
    flat = np.concatenate([v.ravel() for v in values])
    flat = flat[np.isfinite(flat)].astype(np.float32)
    if not (flat.view(np.uint32) & 0xFFFF).any():
        return "bfloat16"
    with np.errstate(over="ignore"):
        return "float16" if np.array_equal(flat.astype(np.float16).astype(np.float32), flat) else "float32"


def _groups(far: Array, honest: float) -> str:
    """A letter for each run: the first group that it agrees with."""
    leaders: list[int] = []
    letters = ""
    for i in range(len(far)):
        found = next((k for k, leader in enumerate(leaders) if far[i, leader] <= honest), None)
        if found is None:
            leaders.append(i)
            found = len(leaders) - 1
        letters += chr(ord("A") + found) if found < 26 else "?"
    return letters


def _old_row(values: Sequence[Array], axis: int, t: int, near: Array, honest: float) -> tuple[int, int] | None:
    """Where a run's row holds what another row of the same node has in the other runs: a step that was repeated."""
    length = values[0].shape[axis] if values[0].ndim else 1
    if length < 2:
        return None
    odd = int(np.argmax(np.median(near, axis=1)))
    usual = int(np.argmin(np.median(near, axis=1)))
    row = rows_of(values[odd], axis, (t, t + 1))
    for other in range(length):
        old = rows_of(values[usual], axis, (other, other + 1))
        if other != t and np.any(old) and float(np.sum((row - old) ** 2)) <= honest * float(np.sum(old**2)):
            return t, other
    return None


# -- words -------------------------------------------------------------------------------------------------------------


def _follows(first: NodeVariation, steps: Sequence[tuple[int, ...]], n: int) -> tuple[str, str]:
    """The axis that the difference follows (batch, position or time), in one word and in a sentence."""
    groups = first.groups
    if len(set(steps)) > 1:
        feeds = {feed: {g for g, s in zip(groups, steps, strict=True) if s == feed} for feed in set(steps)}
        if all(len(letters) == 1 for letters in feeds.values()):
            told = "; ".join(
                f"{next(iter(feeds[feed]))} is fed as {'+'.join(map(str, feed))}" for feed in dict.fromkeys(steps)
            )
            return "batch", f"it follows the batch: {told}"
    if (order := _order(groups)) is not None:
        return "time", f"it follows the order of the runs: {order}"
    where = _pattern(first.rows, n)
    few = "" if len(groups) >= _ENOUGH else f"; {_ENOUGH} or more runs would show whether it follows their order"
    if where:
        verb = "varies" if len(first.rows) == 1 else "vary"
        return "position", f"it follows the position: {where} {verb}, in no order of the runs{few}"
    return "nothing", f"it follows neither batch, position nor order: a race, or memory that was never written{few}"


def _order(groups: str) -> str | None:
    """The order that the letters show, if there are enough runs."""
    if len(groups) < _ENOUGH:
        return None
    changes = [i for i, (a, b) in enumerate(pairwise(groups), 1) if a != b]
    if len(changes) == 1 and changes[0] not in (len(groups) - 1,):
        return f"runs 1 to {changes[0]} agree, and runs {changes[0] + 1} to {len(groups)} agree"
    for period in range(2, len(groups) // 2 + 1):
        if all(groups[i] == groups[i - period] for i in range(period, len(groups))):
            return f"the values return every {period} runs"
    return None


def _pattern(rows: tuple[int, ...], n: int) -> str:
    """The token rows in words; empty where all of them vary, or where they are not known."""
    if not rows or not n or len(rows) >= n:
        return ""
    if rows == tuple(range(rows[0], n)) and len(rows) > 1:
        return f"tokens {rows[0]} to {n - 1}"
    gaps = {b - a for a, b in pairwise(rows)}
    if len(rows) > 2 and len(gaps) == 1 and (gap := gaps.pop()) > 1:
        return f"every {gap}th token from {rows[0]} on"
    return ("token " if len(rows) == 1 else "tokens ") + ", ".join(map(str, rows[:8])) + (" …" if len(rows) > 8 else "")


def _rows(first: NodeVariation, n: int) -> str:
    if not first.rows:
        return ""
    return f", on {_pattern(first.rows, n) or f'all {n} tokens'}"


def _times(node: NodeVariation) -> str:
    if not np.isfinite(node.nmse):
        return "NaN or Inf in some runs only"
    return f"{np.sqrt(node.nmse / node.honest):.2g} times the honest noise of {node.arithmetic}"
