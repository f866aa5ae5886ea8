"""Comparing a dump with the definition: the verdicts, the first wrong node, and how to say it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from assay.errors import AssayError
from assay.models import Model
from assay.verify.dumps.contradictions import contradictions
from assay.verify.dumps.observation import Dump
from assay.verify.judge.arithmetic import ARITHMETICS, Arithmetic
from assay.verify.judge.evidence import Evidence, examine, follows, infer
from assay.verify.judge.noise import Level

CLEAR = 3.0  # times what is allowed of one step


@dataclass(frozen=True)
class NodeVerdict:
    """`own` is True where the node itself is at fault, False where it only passes on what it was given, and None where
    the dump does not hold enough to tell, or where nothing is wrong."""

    name: str
    verdict: str  # "same" | "noise" | "wrong"
    own: bool | None
    explained_by: str | None
    evidence: Evidence

    def to_json(self) -> dict[str, Any]:
        e = self.evidence
        found: dict[str, Any] = {
            "name": self.name,
            "nmse": e.nmse,
            "cosine": e.cosine,
            "verdict": self.verdict,
            "own": self.own,
            "explained_by": self.explained_by,
            "max_error": e.worst,
            "at": list(e.where),
            "found": e.found,
            "expected": e.expected,
            "own_nmse": e.own_nmse,
        }
        if len(e.segment) > 1:
            found["segment"] = list(e.segment)
        if e.top1 is not None:
            found["same_best_token"] = e.top1
        return found


@dataclass(frozen=True)
class Diff:
    """The result; true when nothing is wrong."""

    a: str
    b: str
    arithmetic: Arithmetic
    nodes: tuple[NodeVerdict, ...]
    unmatched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.verdict != "wrong"

    @property
    def verdict(self) -> str:
        found = {n.verdict for n in self.nodes}
        return next(v for v in ("wrong", "noise", "same") if v in found)

    @property
    def first_wrong(self) -> NodeVerdict | None:
        return next((n for n in self.nodes if n.verdict == "wrong"), None)

    @property
    def at_fault(self) -> tuple[NodeVerdict, ...]:
        return tuple(n for n in self.nodes if n.own)

    def beside(self, other: Diff) -> Diff:
        """This result, where the other side was judged as well: a wrong one of the two is the result."""
        worse = other if self and not other else self
        fine = self if worse is other else other
        return replace(worse, a=fine.b, notes=(*worse.notes, f"{fine.b} against the definition: {fine.summary}"))

    @property
    def summary(self) -> str:
        if self.verdict == "wrong":
            return f"wrong, first at {self.first_wrong.name if self.first_wrong else ''}"
        return f"noise (explained by {self.arithmetic.name})" if self.verdict == "noise" else "same"

    def to_json(self) -> dict[str, Any]:
        first = self.first_wrong
        return {
            "a": self.a,
            "b": self.b,
            "verdict": self.verdict,
            "explained_by": self.arithmetic.name if self.verdict == "noise" else None,
            "first_wrong": first.name if first else None,
            "at_fault": [n.name for n in self.at_fault],
            "nodes": [n.to_json() for n in self.nodes],
            "unmatched": list(self.unmatched),
            "contradictions": list(self.contradictions),
            "notes": list(self.notes),
        }


def judge(model: Model, dump: Dump, progress: Callable[[int, int], None] | None = None, cache: bool = True) -> Diff:
    """The verdict on a resolved dump."""
    if not dump.by_name:
        known = ", ".join(node.name for node in list(model.graph)[:20])
        theirs = ", ".join(dump.unmatched[:20]) or "none"
        raise AssayError(
            f"{dump.source}: no name in common (found {theirs}, expected names such as {known}); use --map"
        )
    evidence = examine(model, dump, progress, cache)
    arithmetic = infer(model, evidence)
    return Diff(
        a=f"{model.file.path.name}@definition",
        b=dump.source,
        arithmetic=arithmetic,
        nodes=tuple(decide(model, dump, evidence, arithmetic)),
        unmatched=dump.unmatched,
        notes=dump.notes,
        contradictions=tuple(contradictions(dump)),
    )


def compare(a: Dump, b: Dump) -> Diff:
    """Two files of values without a model: what agrees to float32, and no more than that can be said."""
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
        verdict = "same" if nmse < 1e-10 and error.max() <= 1e-4 * np.sqrt(base / x.size) else "wrong"
        nodes.append(NodeVerdict(obs.name, verdict, None, None, evidence))
    left = tuple(n for n in b.by_name if n not in {o.name for o in common})
    note = "no model is known, so neither noise nor whose fault it is can be told; give --model"
    return Diff(a.source, b.source, ARITHMETICS[0], tuple(nodes), left, (note,), tuple(contradictions(b)))


def decide(model: Model, dump: Dump, evidence: Sequence[Evidence], arithmetic: Arithmetic) -> list[NodeVerdict]:
    """One verdict per node, for a run whose arithmetic is known.

    A node that follows from its inputs is wrong only if one of them is and it shows: legitimate steps from
    legitimate values are legitimate, however far the noise has carried them. A node that clearly does not follow
    is wrong even where the noise of a whole run would hide it: a rotation left out that turns by 1e-4. Nor is a
    node to blame that follows from what a faulty input should have been: then the input's print is wrong and not
    what was computed with.
    """
    i = ARITHMETICS.index(arithmetic)
    wrong: set[str] = set()
    faulty: set[str] = set()
    found = []
    for e in evidence:
        sources = {name for part in e.segment for name in model.graph[part].inputs} | set(e.segment[:-1])
        suspect = faulty & sources
        verdict: str
        own: bool | None = None
        if e.carried[0] <= 1 and not (e.whole and e.local[i] > CLEAR):
            verdict = "same"
        elif e.local[i] > 1 and not (suspect and follows(model, dump, e, suspect)[i] <= 1):
            verdict = "wrong"
            own = None if wrong & set(e.segment[:-1]) else True  # a part of the segment was wrong already
        elif wrong & sources and e.carried[i] > 1:
            verdict, own = "wrong", False
        else:
            verdict = "noise" if e.carried[0] > 1 else "same"
        if verdict == "wrong":
            wrong.add(e.name)
            if own and any(o.kind == "values" for o in dump.by_name[e.name]):
                faulty.add(e.name)  # its values stand in for what the definition gives: they may be misprinted
        found.append(NodeVerdict(e.name, verdict, own, arithmetic.name if verdict == "noise" else None, e))
    return found


def text(diff: Diff, model: Model | None = None, rows: int = 12) -> str:
    """The result for a person: the headline, the nodes at fault, then the table around the first wrong node."""
    first = diff.first_wrong
    counts = {v: sum(n.verdict == v for n in diff.nodes) for v in ("same", "noise", "wrong")}
    lines = []
    if first is None:
        excuse = f" (explained by {diff.arithmetic.name})" if diff.verdict == "noise" else ""
        lines.append(f"{diff.verdict}{excuse}: {len(diff.nodes)} nodes of {diff.b} against {diff.a}")
    else:
        lines.append(f"wrong: {first.name} is the first wrong node of {diff.b}; {_blame(first)}")
        e = first.evidence
        lines.append(f"  at {list(e.where)}: found {e.found:.9g}, expected {e.expected:.9g} (nmse {e.nmse:.2e})")
        if model is not None:
            lines.append(f"  {model.graph[first.name]}")
        others = [n.name for n in diff.at_fault if n is not first]
        if others:
            lines.append(f"  also at fault themselves: {_some(others)}")
    lines.append("  " + ", ".join(f"{n} {v}" for v, n in counts.items() if n))
    lines += [f"  contradiction: {c}" for c in diff.contradictions]
    lines += [f"  note: {n}" for n in diff.notes]
    if diff.unmatched:
        lines.append(f"  {len(diff.unmatched)} names matched no node: {_some(diff.unmatched)}")
    lines.append("")
    lines.append(f"{'node':<24}{'verdict':<10}{'fault':<11}{'nmse':>10}{'cosine':>12}{'max error':>11}")
    at = diff.nodes.index(first) if first else 0
    shown = diff.nodes if len(diff.nodes) <= rows else diff.nodes[max(0, at - 3) : max(0, at - 3) + rows]
    for n in shown:
        e = n.evidence
        whose = {True: "own", False: "inherited", None: "unknown" if n.verdict == "wrong" else ""}[n.own]
        lines.append(f"{n.name:<24}{n.verdict:<10}{whose:<11}{e.nmse:>10.2e}{e.cosine:>12.8f}{e.worst:>11.2e}")
    if len(shown) < len(diff.nodes):
        lines.append(f"… {len(diff.nodes) - len(shown)} more; --all shows every node")
    return "\n".join(lines)


def _blame(n: NodeVerdict) -> str:
    segment = n.evidence.segment
    if len(segment) > 1:
        return (
            f"the fault lies between {segment[0]} and {n.name}, {len(segment)} nodes of which only the last was dumped"
        )
    return "recomputed from the dump's own inputs it differs, so the fault is its own"


def _some(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
