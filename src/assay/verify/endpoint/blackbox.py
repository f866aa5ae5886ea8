"""Black box: a diagnosis of the engine behind a server from its answers alone.

This is the half of an audit that looks for bugs. The audit (`audit_run`) decides whether the server computes the
claimed model. If it does not, the catalogue of engine faults is tried, too. If it does, draws under top-p are judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from assay.models import Model
from assay.system.stages import note
from assay.verify.diagnosis.result import Answer, Cause, Diagnosis
from assay.verify.endpoint.audit_findings import AuditFinding, AuditOptions, AuditResult
from assay.verify.endpoint.audit_run import audit_endpoint
from assay.verify.endpoint.claimed_model import COMPANION, ClaimedModel
from assay.verify.endpoint.client import Client
from assay.verify.endpoint.nucleus_draws import sampling
from assay.verify.endpoint.other_requests import OddCompany, company
from assay.verify.endpoint.prompt_ids import TEXT
from assay.verify.endpoint.simulated import SimulatedServer
from assay.verify.faults import FAULTS
from assay.verify.thresholds import ALLOWED, FLOOR

Progress = Callable[[str], None]
PLACES = {"prompt": "inp_tokens", "sampling": "sampled", "requests": "second request"}  # area -> node of a diagnosis
CHAT = "chat prompt"


def diagnose_endpoint(
    model: Model, client: Client, progress: Progress | None = None, options: AuditOptions | None = None
) -> Diagnosis:
    """Ask the server, and name the causes that its answers show."""
    say = progress or note
    notes: list[str] = []
    if model.graph.state.per_sequence:
        # A state that is not cleared spoils every later answer, so this is asked before those are explained.
        odd = _company(model, client, say, notes)
        if odd is not None and odd.certain:
            return _in_company(odd, notes)
    found = audit_endpoint(model, client, replace(options or AuditOptions(), engine=True), say)
    notes += found.notes
    if found.verdict != "differs" and found.reading.top and found.reading.completions:
        odd = _company(model, client, say, notes)
        if odd is not None:
            return _in_company(odd, notes)
    if found.verdict != "differs" and found.reading.top and found.reading.completions:
        with ClaimedModel(model) as claimed, np.errstate(all="ignore"):
            drawn = sampling(claimed, client, say, notes)
        if drawn:
            found = replace(found, verdict="differs", findings=tuple(drawn))
    return diagnosis_of(replace(found, notes=tuple(notes)), model)


def _company(model: Model, client: Client, say: Progress, notes: list[str]) -> OddCompany | None:
    """A short prompt after and beside other requests: in which situation is it answered otherwise?"""
    with np.errstate(all="ignore"):
        return company(SimulatedServer(model), client, _allowed(model, client), say, notes)


def _allowed(model: Model, client: Client) -> float:
    """Nats that an honest answer may be off by: a multiple of the distance of claim and companion."""
    ids = client.tokenizer.encode(TEXT)
    rows = range(1, len(ids) + 1)
    with ClaimedModel(model) as claimed:
        exact, fast = claimed.at(ids, rows), claimed.at(ids, rows, COMPANION)
    best = np.argsort(-exact, axis=-1)[:, :20]
    gap = np.take_along_axis(exact - fast, best, -1)
    noise = float(np.sqrt(np.nanmean(np.square(gap))))
    return ALLOWED * (noise if np.isfinite(noise) else 0.0) + FLOOR


def _in_company(found: OddCompany, notes: list[str]) -> Diagnosis:
    return Diagnosis("fault", found.situation, (found.situation,), (found.cause,), "", notes=tuple(notes))


def diagnosis_of(found: AuditResult, model: Model) -> Diagnosis:
    """An audit in the form of a diagnosis."""
    if found.verdict != "differs":
        verdict: Answer = "healthy" if found.verdict == "as claimed" else "undecided"
        more = f"about {found.more_tokens} more tokens" if found.more_tokens else "more tokens"
        advice = "" if found.verdict == "as claimed" else f"{more} (--max-tokens) or log-probabilities would decide"
        if advice and found.unanswered:
            advice = f"{found.unanswered} of {found.requests} requests got no answer; ask again"
        excluded = "; ".join(s.alternative.words for s in found.excluded)
        power = f"excluded at an error rate of {found.alpha:g} each: {excluded or 'nothing'}"
        return Diagnosis(verdict, None, (), (), advice, notes=(power, *found.notes))
    places = [_place(f, model) for f in found.findings]
    causes = tuple(_cause(f, model, found) for f in found.findings if f.fault in FAULTS)
    unnamed = tuple(p for f, p in zip(found.findings, places, strict=True) if f.fault not in FAULTS)
    notes = tuple(f"{_place(f, model)}: {f.words}" for f in found.findings if f.fault not in FAULTS)
    advice = "" if causes else "dump the engine's layer outputs for these tokens and give them to `assay diagnose`"
    return Diagnosis(
        "fault" if causes else "unexplained", places[0], tuple(dict.fromkeys(places)), causes, advice, unnamed,
        notes=(*notes, *found.notes),
    )  # fmt: skip


def _place(found: AuditFinding, model: Model) -> str:
    if found.area == "prompt" and found.words.startswith(CHAT):
        return CHAT
    return PLACES.get(found.area, model.graph.output)


def _cause(found: AuditFinding, model: Model, result: AuditResult) -> Cause:
    before = result.distance / result.noise if result.noise > 0 else 0.0
    return Cause(
        fault=found.fault,
        node=_place(found, model),
        how=found.words,
        nodes=(_place(found, model),),
        confidence=found.confidence,
        explains=1.0 if found.fits else 0.5,
        equivalent=tuple(f for f in found.equivalent_faults if f in FAULTS and f != found.fault),
        before=before if np.isfinite(before) else 0.0,
        after=1.0 if found.fits else before if np.isfinite(before) else 0.0,
    )
