"""Judging a dump: from its observations to one verdict a node.

`judge` is the way through the package: gather the inputs, examine every node, infer the arithmetic, decide. `compare`
compares two dumps without a model. Touch `decide` to change when a node counts as wrong, and whose fault it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from assay.engines.reference.blas import one_thread
from assay.errors import AssayError
from assay.models import Model
from assay.system import heap
from assay.verify.dumps.contradictions import contradictions
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.state_rows import with_states_apart
from assay.verify.judge.arithmetic import ARITHMETICS, SimulatedArithmetic
from assay.verify.judge.compare_nodes import Diff, NodeVerdict, Verdict
from assay.verify.judge.evidence import Evidence
from assay.verify.judge.examine import Examined, examine, follows
from assay.verify.judge.inferred import infer
from assay.verify.judge.noise import Level
from assay.verify.judge.routing import Route
from assay.verify.judge.run_inputs import RunInputs, run_inputs
from assay.verify.judge.state_verdicts import decide_states, in_order, state_notes
from assay.verify.thresholds import CLEARLY_OWN, MISPRINTS, OUTLIER, OUTLIERS


def judge(
    model: Model,
    dump: Dump,
    cache: bool = True,
    inputs: RunInputs | None = None,
) -> Diff:
    """The verdict on a resolved dump. `inputs` is the record of its tokens, where the caller has it already."""
    dump = with_states_apart(dump, model.graph)
    if not dump.by_name and not dump.states and dump.not_finite is None:
        known = ", ".join(node.name for node in list(model.graph)[:20])
        theirs = ", ".join(dump.unmatched[:20]) or "none"
        raise AssayError(
            f"{dump.source}: no name in common (found {theirs}, expected names such as {known}); use --map"
        )
    inputs = inputs or run_inputs(model, dump.tokens, dump.positions, dump.given)
    cache = cache and not dump.given  # noise is kept by tokens alone
    with one_thread(model.graph), heap.kept():
        found = examine(inputs, dump, cache) if dump.by_name or dump.states else Examined([], [], [])
    evidence = found.evidence
    arithmetic = infer(model, evidence) if evidence else ARITHMETICS[0]
    nodes = tuple(decide(inputs, dump, evidence, arithmetic))
    states = decide_states(model.graph, dump.steps, found.states, nodes, arithmetic)
    nodes = in_order(model.graph, (*nodes, *states))
    return Diff(
        a=f"{model.file.path.name}@definition",
        b=dump.source,
        arithmetic=arithmetic,
        nodes=nodes,
        unmatched=dump.unmatched,
        notes=(
            *dump.notes,
            *_rerouted(found.routes, nodes, arithmetic),
            *state_notes(dump, found.states, nodes, arithmetic),
        ),
        contradictions=tuple(contradictions(dump)),
    )


def _rerouted(routes: Sequence[Route], nodes: Sequence[NodeVerdict], arithmetic: SimulatedArithmetic) -> list[str]:
    """Notes on the tokens that got, or may have got, another expert by rounding and not by a fault."""
    i, wrong = ARITHMETICS.index(arithmetic), {n.name for n in nodes if n.verdict == "wrong"}
    found = [route for route in routes if route.ratios[i] <= 1 and route.node not in wrong]
    maybe = sorted((route for route in found if not route.seen), key=lambda route: route.ratios[i])
    more = f" (and {len(maybe) - 1} more such choices)" if len(maybe) > 1 else ""
    return [route.text(i) for route in found if route.seen] + [route.text(i) + more for route in maybe[:1]]


def compare(a: Dump, b: Dump) -> Diff:
    """Compare two files of values without a model: each node agrees to float32, or does not."""
    if a.tokens and b.tokens and a.tokens != b.tokens:
        raise AssayError(
            f"{a.source} and {b.source}: hold other tokens ({list(a.tokens)[:8]} and {list(b.tokens)[:8]})"
        )
    common = [o for o in b.observations if o.kind == "values" and (x := a.values(o.name)) is not None
              and x.shape == o.array().shape]  # fmt: skip
    if not common:
        names = [", ".join(sorted(d.by_name)[:20]) for d in (a, b)]
        raise AssayError(f"{a.source} and {b.source}: no name and shape in common (found {names[0]} and {names[1]})")
    nodes, none = [], np.zeros(0)
    for obs in common:
        x, y = np.asarray(a.values(obs.name), np.float64), obs.array().astype(np.float64)
        error = np.abs(y - x)
        at = np.unravel_index(int(error.argmax()), error.shape)
        base = float(np.sum(x * x))
        nmse = float(np.sum(error**2)) / (base + 1e-30)
        evidence = Evidence(
            obs.name, nmse, float(np.sum(x * y) / (np.sqrt(base * np.sum(y * y)) + 1e-30)), float(error.max()),
            tuple(map(int, at)), float(y[at]), float(x[at]), none, none, nmse, None, True, (obs.name,),
            Level(none, none), Level(none, none),
        )  # fmt: skip
        verdict: Verdict = "same" if nmse < 1e-10 and error.max() <= 1e-4 * np.sqrt(base / x.size) else "wrong"
        nodes.append(NodeVerdict(obs.name, verdict, None, None, evidence))
    left = tuple(n for n in b.by_name if n not in {o.name for o in common})
    note = "no model is known, so neither noise nor whose fault it is can be told; give --model"
    return Diff(a.source, b.source, ARITHMETICS[0], tuple(nodes), left, (note,), tuple(contradictions(b)))


def decide(
    inputs: RunInputs, dump: Dump, evidence: Sequence[Evidence], arithmetic: SimulatedArithmetic
) -> list[NodeVerdict]:
    """One verdict per node, for a run whose arithmetic is known.

    A node that follows from its inputs is wrong only if one of them is wrong and the error shows: legitimate steps from
    legitimate values are legitimate, however far the noise has carried them. A node that clearly does not follow from
    its inputs is wrong even where the noise of a whole run would hide it (a missing rotation by 1e-4). A node is not at
    fault if it follows from the right value of a faulty input: then only the dump of that input is wrong.
    """
    i, graph = ARITHMETICS.index(arithmetic), inputs.model.graph
    wrong: set[str] = set()
    faulty: set[str] = set()
    refuted = 0  # suspected misprints in a row that were none: each costs a run, and a real fault has many
    found = []
    for e in evidence:
        sources = {name for part in e.segment for name in graph[part].inputs} | set(e.segment[:-1])
        suspect = faulty & sources if refuted < MISPRINTS else set()
        verdict: Verdict
        own: bool | None = None
        if e.carried[0] <= 1 and not (e.whole and e.local[i] > CLEARLY_OWN):
            verdict = "same"
        elif e.local[i] > 1 and not (suspect and follows(inputs, dump, e, suspect)[i] <= 1):
            verdict, refuted = "wrong", refuted + bool(suspect)
            own = None if wrong & set(e.segment[:-1]) else True  # a part of the segment was wrong already
        elif wrong & sources and e.carried[i] > 1:
            verdict, own = "wrong", False
        else:
            verdict = "noise" if e.carried[0] > 1 else "same"
            refuted = 0 if suspect and e.local[i] > 1 else refuted
        if verdict == "wrong":
            wrong.add(e.name)
            if own and any(o.kind == "values" for o in dump.by_name[e.name]):
                faulty.add(e.name)  # its dump may be wrong although the engine computed with the right value
        found.append(NodeVerdict(e.name, verdict, own, arithmetic.name if verdict == "noise" else None, e))
    return without_outliers(found, i)


def without_outliers(nodes: list[NodeVerdict], i: int) -> list[NodeVerdict]:
    """Of many printed numbers a few exceed what the noise allows by a little, in a right engine too.

    The limits are set for one node. Among hundreds, the largest ratio of all is compared with a wider one. A fault
    would show in later nodes as well, and the search for small faults still looks at these.
    """
    out = [n for n in nodes if n.verdict == "wrong"]
    few = len(out) * OUTLIERS <= len(nodes)
    if not out or not few or any(n.evidence.whole or n.evidence.local[i] > OUTLIER for n in out):
        return nodes
    noise = ARITHMETICS[i].name
    return [replace(n, verdict="noise", own=None, explained_by=noise) if n.verdict == "wrong" else n for n in nodes]
