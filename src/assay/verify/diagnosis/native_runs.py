"""An answer in seconds for a large model of which only late values were dumped: runs of the native engine.

Judging such a model runs the definition in many arithmetics, which takes longer than a user waits. The native engine
runs it in a second. It cannot tell noise from a small fault, but it shows that values are far off. It also tries the
faults that are another attribute, operand or weight of a node, because the engine compiles such a graph as any other.

Touch this module to change what is said when the definition cannot be run in time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from assay.engines import ENGINES
from assay.engines.contract import Chunk, PagedEngine, pages_for
from assay.errors import AssayError
from assay.graph import Graph, Trait
from assay.models import Model
from assay.verify.diagnosis.candidates import SECOND_NAMES
from assay.verify.diagnosis.fault_trials import Hypothesis
from assay.verify.diagnosis.result import Cause, Diagnosis
from assay.verify.diagnosis.time_budget import TimeBudget
from assay.verify.dumps.observation import Dump, token_axis
from assay.verify.faults import FAULTS, Change, Context
from assay.verify.judge.evidence import deviation
from assay.verify.thresholds import CUT_SHORT, FEW, JUDGED_A_SECOND, MATCHED, NATIVE_NMSE, TIE

NEXT = "dump l_out-0, or a few values of every layer's output: a layer is judged in seconds, a whole model in minutes"
ONLY = "tried: mistakes that are another attribute, operand or weight of a node; other formulas need the definition"
TRIED = "trying mistakes in runs of the native engine"


@dataclass(frozen=True)
class NativeRuns:
    """The native engine, and the dump that its runs are compared with."""

    model: Model
    dump: Dump
    names: tuple[str, ...]  # the observed nodes, in the order of the graph
    engine: PagedEngine

    @staticmethod
    def of(model: Model, dump: Dump, budget: TimeBudget) -> NativeRuns | None:
        """None where the definition ends in time, or the native engine cannot run these tokens."""
        graph = model.graph
        weights = sum(math.prod(shape) for shape in graph.weights.values())
        slow = weights > JUDGED_A_SECOND * budget.seconds
        plain = tuple(dump.positions) == tuple(range(len(dump.tokens))) and not graph.state.per_sequence
        hidden = Trait.SHOWS_STATE | Trait.CACHES
        names = tuple(n.name for n in graph if n.name in dump.by_name and not n.has(hidden))
        if not slow or not plain or not names or "cpu" not in ENGINES:
            return None
        try:
            return NativeRuns(
                model, dump, names, ENGINES["cpu"](model, n_pages=pages_for(len(dump.tokens)), pack=False)
            )
        except AssayError:
            return None

    def nmse(self, graph: Graph | None = None) -> dict[str, float]:
        """Of every observed node: the squared deviation from a run of this graph, relative to its size."""
        engine = self.engine
        if graph is not None and engine.beside is not None:
            engine = engine.beside(graph, engine.n_pages)
        pages = np.arange(self.engine.n_pages, dtype=np.int32)
        chunk = Chunk(np.asarray(self.dump.tokens, np.int32), 0, pages, "none")
        made = engine.forward([chunk], self.names)[0].nodes
        found = {name: self._off(name, made[name].astype(np.float64)) for name in self.names}
        if engine is not self.engine:
            engine.close()
        return found

    def _off(self, name: str, value: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
        axis, squares, size = token_axis(self.model.graph, name), 0.0, 0.0
        for obs in self.dump.by_name[name]:
            error, expected = deviation(obs, value, axis, self.model.hparams.n_embd_head, None)
            squares, size = squares + float(np.sum(error**2)), size + float(np.sum(expected**2))
        return squares / (size + 1e-30)


def by_native_runs(runs: NativeRuns, budget: TimeBudget, say: Callable[[str], None]) -> Diagnosis | None:
    """The answer where some node is far off; None where all are near, which the definition must judge."""
    before = runs.nmse()
    first = next((name for name in runs.names if not before[name] <= MATCHED), None)
    if first is None:
        worst = max(runs.names, key=lambda name: before[name])
        say(f"{worst} is within nmse {before[worst]:.1e} of a run of the native engine; judging it takes longer")
        return None
    wrong = tuple(name for name in runs.names if not before[name] <= MATCHED)
    say(f"{first} is wrong: nmse {before[first]:.1e} against a run of the native engine; looking for the mistake")
    found = list(_fitting(runs, budget, first))
    note = f"compared with runs of the native engine, in its arithmetic: {first} has nmse {before[first]:.1e}"
    result = Diagnosis("unexplained", first, wrong, (), NEXT, (first,), notes=(note, ONLY))
    if not found or len(found) > FEW:
        return result
    least = min(off for off, _ in found)
    near = [(off, h) for off, h in found if off <= TIE * least]
    left, best = min(near, key=lambda pair: (pair[1].fault in SECOND_NAMES, pair[0]))
    same = tuple(dict.fromkeys(h.fault for _, h in near if h.fault != best.fault))
    rivals = len(set(same) - SECOND_NAMES)
    cause = Cause(
        fault=best.fault,
        node=first,
        how=str(best),
        nodes=wrong,
        confidence=CUT_SHORT / (1 + rivals),
        explains=1 - left / before[first],
        equivalent=same,
        before=math.sqrt(before[first] / NATIVE_NMSE),
        after=math.sqrt(left / NATIVE_NMSE),
        fitted=best.variant.search is not None,
        exact=False,
    )
    return Diagnosis("fault", first, wrong, (cause,), NEXT, notes=(note, ONLY))


def _fitting(runs: NativeRuns, budget: TimeBudget, first: str) -> Iterator[tuple[float, Hypothesis]]:
    """The faults whose run is near the dump at every observed node, with what they leave at the first one."""
    edits = list(_graphs(runs))
    for h, graph in budget.each(edits, TRIED, "mistakes"):
        try:
            off = runs.nmse(graph)
        except AssayError:
            continue  # the native engine has no such operation
        if all(value <= NATIVE_NMSE for value in off.values()):
            yield off[first], h


def _graphs(runs: NativeRuns) -> Iterator[tuple[Hypothesis, Graph]]:
    """The faults that need no function of their own, each in the whole graph."""
    context = Context(runs.model, runs.dump.steps)
    graph = runs.model.graph
    for fault in FAULTS.values():
        for variant in fault.variants if not fault.id.startswith("eps-") else ():  # too small to be told from noise
            for p in (0.0,) if variant.search is None else variant.search.usual(len(runs.dump.tokens)):
                changes: dict[str, Change] = {}
                for node in graph:
                    if (change := variant.at(context, node, p)) is not None:
                        changes[node.name] = change
                if changes and all(change.function is None for change in changes.values()):
                    made = graph.rewrite(lambda n, c=changes: c[n.name].node if n.name in c else None)  # type: ignore[misc]
                    yield Hypothesis(fault.id, variant, p), made
