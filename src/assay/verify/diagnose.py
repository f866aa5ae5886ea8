"""Naming the bug: which operation is wrong, which known mistake gives these very values, what would be right.

The nodes that are wrong on their own inputs come from `diff`. At each, the faults of the catalogue are tried on the
stranger's own values (`search`); a fault explains a node when what remains is the noise of the engine's arithmetic.
Those that explain it are held against the other wrong nodes, and against the right ones: a fault that would have
shown elsewhere did not happen. What is still wrong afterwards is another fault, and the search goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from assay.engines.weights import Weights
from assay.models import Model
from assay.verify.diff import judge
from assay.verify.explain import Diagnosis
from assay.verify.feeds import other_feed
from assay.verify.nodewise import by_nodes
from assay.verify.observe import Dump
from assay.verify.partial import by_runs
from assay.verify.search import Lab

Progress = Callable[[str], None]


def diagnose(
    model: Model,
    dump: Dump,
    *,
    weights: Weights | None = None,
    progress: Progress | None = None,
    cache: bool = True,
) -> Diagnosis:
    """The whole search on a resolved dump."""
    say = progress or (lambda _: None)
    diff = judge(model, dump, cache=cache)
    if diff.first_wrong is None:
        notes = (f"deviations are the noise of {diff.arithmetic.name}",) if diff.verdict == "noise" else ()
        return Diagnosis("healthy", None, (), (), "", notes=(*notes, *diff.notes), diff=diff)
    lab = Lab(model, dump, diff, weights)
    wrong = [n for n in diff.nodes if n.own] or [diff.first_wrong]
    say(f"{len(wrong)} nodes are wrong on their own inputs, {wrong[0].name} first")
    result = by_nodes(lab, diff, wrong, say) if wrong[0].evidence.whole else by_runs(lab, diff, wrong[0], say)
    if result.verdict in ("unexplained", "inconclusive"):
        cause = other_feed(lab, diff, say)
        if cause is not None:
            result = replace(result, verdict="fault", causes=(cause,), unexplained=(), next_observation="")
    return replace(result, notes=(*result.notes, *diff.notes, *diff.contradictions), diff=diff)
