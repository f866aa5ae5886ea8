"""The result of a diagnosis: the causes, each a fault that reproduces the wrong values, and the open questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from assay.graph import split
from assay.verify.diagnosis.relations import Relation
from assay.verify.faults import FAULTS
from assay.verify.judge.compare_nodes import Diff
from assay.verify.judge.overflow import NonFiniteOrigin


@dataclass(frozen=True)
class Cause:
    """A fault that reproduces the wrong values."""

    fault: str
    node: str  # the first it explains
    how: str  # the variant in words, with its parameter
    nodes: tuple[str, ...]
    confidence: float  # that this fault happened, and not one of its equivalents
    explains: float  # share of the deviation at its nodes
    equivalent: tuple[str, ...]
    before: float  # deviation over noise, under the definition
    after: float  # and with the fault planted
    fitted: bool = False  # a parameter was solved for
    exact: bool = True  # only float32's noise is left
    facts: Mapping[str, Any] = field(default_factory=dict)  # values for the sentences about it, beside the model's

    @property
    def fix(self) -> str:
        return FAULTS[self.fault].right

    def to_dict(self) -> dict[str, Any]:
        return {
            "fault": self.fault,
            "node": self.node,
            "how": self.how,
            "nodes": list(self.nodes),
            "confidence": round(self.confidence, 4),
            "explains": round(self.explains, 6),
            "equivalent": list(self.equivalent),
            "fix": self.fix,
            "deviation_before": self.before,
            "deviation_after": self.after,
        }


# Undecided: noise covers every deviation, and the observations cannot tell whether a fault hides in it.
Answer = Literal["healthy", "undecided", "fault", "unexplained", "inconclusive"]


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The answer of a diagnosis; true when no fault was found."""

    verdict: Answer
    first_wrong: str | None
    wrong_nodes: tuple[str, ...]
    causes: tuple[Cause, ...]
    next_observation: str  # what to dump next; for an undecided verdict, what would show a fault below the noise
    unexplained: tuple[str, ...] = ()
    relations: tuple[Relation, ...] = ()  # of the first unexplained node, or of the first wrong one
    segment: tuple[str, ...] = ()  # the nodes in which the first fault must lie
    notes: tuple[str, ...] = ()
    diff: Diff | None = None
    rounds: str = ""  # the coarsest arithmetic that is possible under the engine's rounding rule, if it shows one
    broken: NonFiniteOrigin | None = None  # the first value that is not finite
    because: str = ""  # of an undecided verdict: why, where it is not the noise

    def __bool__(self) -> bool:
        return self.verdict in ("healthy", "undecided")

    def __repr__(self) -> str:
        where = f" at {self.first_wrong}" if self.first_wrong else ""
        causes = ", ".join(f"{c.fault} ({c.how}), confidence {c.confidence:.2f}" for c in self.causes)
        return f"<Diagnosis: {self.verdict}{where}{': ' if causes else ''}{causes}>"

    def to_dict(self) -> dict[str, Any]:
        first = self.first_wrong
        return {
            "verdict": self.verdict,
            "first_wrong": None if first is None else {"node": first, "layer": split(first)[1]},
            "wrong_nodes": list(self.wrong_nodes),
            "causes": [cause.to_dict() for cause in self.causes],
            "because": self.because,
            "next_observation": self.next_observation,
            "unexplained": list(self.unexplained),
            "relations": [r.text for r in self.relations],
            "segment": list(self.segment),
            "notes": list(self.notes),
            "not_finite": self.broken.to_dict() if self.broken is not None else None,
        }
