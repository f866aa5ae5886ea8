"""Diagnosis from the states that a dump holds (`cache_r_lN`, `cache_s_lN`).

A state whose every value is a bfloat16 or a half names its own fault. A state that is wrong while every value is right
is reported as the first wrong thing: the values of the next call would show it. The search for other faults sees the
nodes alone, because no operation of the graph computes a state.
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph, Trait
from assay.verify.diagnosis.posterior import posterior
from assay.verify.diagnosis.result import Cause, Diagnosis
from assay.verify.dumps.observation import Dump
from assay.verify.faults import FAULTS
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.compare_nodes import Diff, NodeVerdict
from assay.verify.judge.state_evidence import narrow_type

_FAULT = {"bf16": "st-bf16", "f16": "st-f16"}
_BITS = 40.0  # of a narrow state: hundreds of values have no digit beyond 16 bits, and the node that keeps it is wrong
_NEXT = "a dump of one more call, which shows what reads this state"


def without_states(diff: Diff, graph: Graph) -> Diff:
    """The verdicts on nodes alone."""
    return replace(diff, nodes=tuple(n for n in diff.nodes if not graph[n.name].has(Trait.SHOWS_STATE)))


def by_states(diff: Diff, dump: Dump, graph: Graph) -> Diagnosis | None:
    """Diagnosis from the states alone; None where the nodes must be searched."""
    states = [n for n in diff.nodes if graph[n.name].has(Trait.SHOWS_STATE) and n.verdict == "wrong"]
    if not states:
        return None
    own = [n for n in diff.nodes if n.own]
    cause = _narrow(diff, dump, graph, states, own)
    names = tuple(n.name for n in own) or tuple(n.name for n in states)
    if cause is not None:
        return Diagnosis("fault", names[0], names, (cause,), "", notes=diff.notes, diff=diff)
    if all(graph[n.name].has(Trait.SHOWS_STATE) for n in diff.nodes if n.verdict == "wrong"):
        segment = (*graph[names[0]].inputs, names[0])
        return Diagnosis("unexplained", names[0], names, (), _NEXT, names, segment=segment, notes=diff.notes, diff=diff)
    return None


def _narrow(diff: Diff, dump: Dump, graph: Graph, states: list[NodeVerdict], own: list[NodeVerdict]) -> Cause | None:
    """The fault of a state kept in 16 bits, where it accounts for every node that is wrong on its own inputs."""
    i = ARITHMETICS.index(diff.arithmetic)
    if ARITHMETICS[i].storage != "f32":
        return None  # every result of such an engine is narrow
    wrong = {n.name for n in states}
    kinds = {o.name: narrow_type(o.array()) for o in dump.states if o.kind == "values" and o.name in wrong}
    found = {kind for kind in kinds.values() if kind}
    if len(found) != 1:
        return None
    kind = found.pop()
    keepers = {keeper for name, one in kinds.items() if one for keeper in graph[name].inputs}
    beyond = [n for n in own if n.name not in keepers and n.name not in kinds]
    if beyond or _FAULT[kind] not in FAULTS:
        return None
    deviations = [float(n.evidence.local[i]) for n in states]
    named = tuple(n.name for n in own) or tuple(kinds)
    how = f"every value of {', '.join(kinds)} is a {'bfloat16' if kind == 'bf16' else 'half'}"
    sure = posterior(_BITS, leaves_much=not own)
    return Cause(_FAULT[kind], named[0], how, named, sure, 1.0, (), max(deviations), 0.0)
