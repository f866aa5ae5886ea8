"""The result of a comparison: a verdict for every observed node, and the summary of all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from assay.verify.judge.arithmetic import SimulatedArithmetic
from assay.verify.judge.evidence import Evidence
from assay.verify.judge.known import Known, known, sentence, tally
from assay.verify.judge.overflow import NonFiniteOrigin

Verdict = Literal["same", "noise", "wrong"]


@dataclass(frozen=True, repr=False)
class NodeVerdict:
    """The verdict on one node.

    `own` is True where the node itself is at fault, and False where it only passes on a wrong input. None
    means a right node, or a dump that does not hold enough to tell.
    """

    name: str
    verdict: Verdict
    own: bool | None
    explained_by: str | None
    evidence: Evidence

    @property
    def known(self) -> Known:
        """Evidence of the dump about the node."""
        return known(self)

    def __repr__(self) -> str:
        return f"<{self.name}: {sentence(self)}, nmse {self.evidence.nmse:.2e}>"

    def to_dict(self) -> dict[str, Any]:
        e = self.evidence
        found: dict[str, Any] = {
            "name": self.name,
            "nmse": e.nmse,
            "cosine": e.cosine,
            "verdict": self.verdict,
            "own": self.own,
            "known": self.known.id,
            "explained_by": self.explained_by,
            "max_error": e.worst,
            "at": list(e.where),
            **({"place": e.place} if e.place else {}),
            "found": e.found,
            "expected": e.expected,
            "own_nmse": e.own_nmse,
        }
        if len(e.segment) > 1:
            found["segment"] = list(e.segment)
        if e.top1 is not None:
            found["same_best_token"] = e.top1
        return found


@dataclass(frozen=True, repr=False)
class Diff:
    """The result; true when nothing is wrong."""

    a: str
    b: str
    arithmetic: SimulatedArithmetic
    nodes: tuple[NodeVerdict, ...]
    unmatched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    broken: NonFiniteOrigin | None = None  # the first value that is not finite; `nodes` were computed before it

    def __bool__(self) -> bool:
        return self.verdict != "wrong"

    def __repr__(self) -> str:
        return f"<Diff of {self.b} against {self.a}, {len(self.nodes)} nodes: {self.summary}>"

    @property
    def verdict(self) -> Verdict:
        found = {n.verdict for n in self.nodes} | ({"wrong"} if self.broken else set())
        return "wrong" if "wrong" in found else "noise" if "noise" in found else "same"

    @property
    def first_wrong(self) -> NodeVerdict | None:
        return next((n for n in self.nodes if n.verdict == "wrong"), None)

    @property
    def first_name(self) -> str | None:
        """The first node that is wrong, or not finite."""
        first = self.first_wrong
        return first.name if first is not None else self.broken.found.node if self.broken is not None else None

    @property
    def at_fault(self) -> tuple[NodeVerdict, ...]:
        return tuple(n for n in self.nodes if n.own)

    def beside(self, other: Diff) -> Diff:
        """One result for two dumps that were judged against the definition: the wrong one of them, if one is wrong."""
        worse = other if self and not other else self
        fine = self if worse is other else other
        return replace(worse, a=fine.b, notes=(*worse.notes, f"{fine.b} against the definition: {fine.summary}"))

    @property
    def summary(self) -> str:
        if self.verdict == "wrong":
            return f"wrong, first at {self.first_name}"
        return f"noise (explained by {self.arithmetic.name})" if self.verdict == "noise" else "same"

    def to_dict(self) -> dict[str, Any]:
        return {
            "a": self.a,
            "b": self.b,
            "verdict": self.verdict,
            "explained_by": self.arithmetic.name if self.verdict == "noise" else None,
            "first_wrong": self.first_name,
            "at_fault": [n.name for n in self.at_fault],
            "known": tally(self.nodes),
            "nodes": [n.to_dict() for n in self.nodes],
            "unmatched": list(self.unmatched),
            "contradictions": list(self.contradictions),
            "notes": list(self.notes),
            "not_finite": self.broken.to_dict() if self.broken is not None else None,
        }
