"""The data of an audit: how it is done, what differs, and the answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from assay.verify.endpoint.asking import Reading
from assay.verify.endpoint.standings import Standing

AuditVerdict = Literal["as claimed", "differs", "inconclusive"]
ALPHA = 1e-3


@dataclass(frozen=True)
class AuditFinding:
    """One thing that differs from the claim."""

    area: str  # model | prompt | sampling | requests
    words: str
    confidence: float
    fault: str = ""  # its id in the catalogue of faults
    evidence: float = 0.0  # ln of the odds against the claim
    equivalent: tuple[str, ...] = ()  # words of alternatives that fit as well
    equivalent_faults: tuple[str, ...] = ()  # and their ids, where they have one
    fits: bool = True  # it reproduces the answers within honest noise


@dataclass(frozen=True)
class AuditOptions:
    """How an audit is done."""

    alpha: float = ALPHA
    tokens: int | None = None  # None: by what the server shows
    seed: int = 0
    prompts: tuple[str, ...] = ()  # texts to ask about, in the place of drawn ones
    others: tuple[Path, ...] = ()  # files of other models that may be served
    threads: int | None = None
    chat: bool = True
    draws: bool = True
    compute: str = "cpu"  # the engine that computes the claim and the alternatives
    engine: bool = False  # search the catalogue of engine faults, which takes minutes


@dataclass(frozen=True)
class AuditResult:
    """The answer of an audit; true if nothing differs."""

    verdict: AuditVerdict
    findings: tuple[AuditFinding, ...]
    standings: tuple[Standing, ...]
    reading: Reading
    alpha: float
    evidence: float  # ln of the capital against the claim, at its highest
    path: tuple[float, ...]  # after every block
    places: int
    blocks: int
    noise: float  # nats, at the usual block
    distance: float  # nats, of the server from the claim
    requests: int
    generated: int  # tokens of all answers, as the server counts them
    seconds: float
    more_tokens: int | None
    notes: tuple[str, ...] = ()
    unanswered: int = 0  # requests that got no answer
    area: str = ""  # where it differs first: model | prompt | sampling | requests

    def __bool__(self) -> bool:
        return self.verdict != "differs"

    @property
    def excluded(self) -> list[Standing]:
        return [s for s in self.standings if s.state == "excluded"]
