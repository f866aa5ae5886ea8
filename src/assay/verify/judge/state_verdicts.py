"""Verdicts on states, and what they tell: the call at which a state parts, and a state kept in 16 bits.

A state is judged after the nodes. Where the node that keeps it is wrong itself, the state passes that on. Where all of
its values that were dumped are right and the state is not, the state itself is at fault: the next call would show it.
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.graph import Graph, split
from assay.verify.dumps.observation import Dump
from assay.verify.judge.arithmetic import ARITHMETICS, SimulatedArithmetic
from assay.verify.judge.compare_nodes import NodeVerdict, Verdict
from assay.verify.judge.state_evidence import StateEvidence, narrow_type
from assay.verify.thresholds import CLEARLY_OWN

_TYPES = {"f16": "float16", "bf16": "bfloat16"}


def decide_states(
    graph: Graph,
    steps: Sequence[int],
    evidence: Sequence[StateEvidence],
    nodes: Sequence[NodeVerdict],
    arithmetic: SimulatedArithmetic,
) -> tuple[NodeVerdict, ...]:
    """One verdict per observed state, for a run whose arithmetic is known and whose nodes were judged.

    A state that is wrong after a call, before the node that keeps it shows a wrong row, is at fault itself.
    """
    i, wrong = ARITHMETICS.index(arithmetic), {n.name for n in nodes if n.verdict == "wrong"}
    found = []
    for one in evidence:
        e = one.overall
        keepers, call = graph[e.name].inputs, one.first_call(i)
        earlier = call is not None and sum(steps[: call + 1]) <= one.keeper_from[i]
        sources = {*keepers, *(name for keeper in keepers for name in graph[keeper].inputs), *e.segment}
        verdict: Verdict
        own: bool | None = None
        if e.carried[0] <= 1 and not (e.whole and e.local[i] > CLEARLY_OWN):
            verdict = "same"
        elif e.local[i] > 1:
            verdict = "wrong"
            own = None if wrong & set(e.segment) else bool(earlier or not wrong & sources)
        elif wrong & sources and e.carried[i] > 1:
            verdict, own = "wrong", False
        else:
            verdict = "noise" if e.carried[0] > 1 else "same"
        if verdict == "wrong":
            wrong.add(e.name)
        found.append(NodeVerdict(e.name, verdict, own, arithmetic.name if verdict == "noise" else None, e))
    return tuple(found)


def in_order(graph: Graph, nodes: Sequence[NodeVerdict]) -> tuple[NodeVerdict, ...]:
    """The verdicts in the graph's order: a state follows the node that keeps it."""
    order = {node.name: i for i, node in enumerate(graph)}
    return tuple(sorted(nodes, key=lambda n: order[n.name]))


def state_notes(
    dump: Dump, evidence: Sequence[StateEvidence], nodes: Sequence[NodeVerdict], arithmetic: SimulatedArithmetic
) -> list[str]:
    """The call after which a state first parts, and the type of wrong states whose digits end after 16 bits."""
    notes = []
    names = {one.overall.name for one in evidence}
    states = [n for n in nodes if n.name in names]
    i, at_fault = ARITHMETICS.index(arithmetic), {n.name for n in states if n.own}
    firsts = ((one.first_call(i), one.overall.name) for one in evidence if one.overall.name in at_fault)
    parts = [(call, name) for call, name in firsts if call is not None]
    if parts:
        call, name = min(parts, key=lambda part: part[0])
        hidden = all(n.name in names for n in nodes if n.verdict == "wrong")
        then = "; the dumped values do not show it, those of the next call would" if hidden else ""
        side = "before" if split(name)[0].endswith("_before") else "after"
        notes.append(f"{name} is wrong {side} call {call + 1}{then}")
    wrong = {n.name for n in states if n.verdict == "wrong"}
    kinds: dict[str, list[str]] = {}
    for obs in dump.states:
        if obs.kind == "values" and obs.name in wrong and (kind := narrow_type(obs.array())):
            kinds.setdefault(kind, []).append(obs.name)
    for kind, held in kinds.items():
        shown = ", ".join(dict.fromkeys(held))
        notes.append(f"{shown}: every value is a {_TYPES[kind]}; keep states in float32, because they add up rounding")
    return notes
