"""An audit in words, as data and as a page."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from typing import Any

from assay.system.documents import paper, table
from assay.system.terminal import printable
from assay.verify.endpoint.asking import as_dict
from assay.verify.endpoint.audit_findings import AuditFinding, AuditResult
from assay.verify.endpoint.standings import Standing

_TEN = math.log(10)


def odds(evidence: float) -> str:
    """`3e12 : 1` for the logarithm of odds."""
    if evidence < _TEN:
        return f"{math.exp(min(evidence, 50.0)):.1f} : 1"
    exponent = int(evidence // _TEN)
    return f"{math.exp(evidence - exponent * _TEN):.0f}e{exponent} : 1"


def headline(result: AuditResult) -> str:
    """The answer in one line, for a log of CI."""
    if result.verdict == "differs":
        return "differs: " + "; ".join(_finding(f) for f in result.findings)
    if result.verdict == "inconclusive" and result.unanswered:
        return f"inconclusive: {result.unanswered} of {result.requests} requests got no answer; audit again"
    if result.verdict == "inconclusive":
        more = f"about {result.more_tokens} more tokens" if result.more_tokens else "more tokens"
        return f"inconclusive: {more} would decide"
    return f"as claimed: {len(result.excluded)} alternatives are excluded, each at an error rate of {result.alpha:g}"


def _finding(found: AuditFinding) -> str:
    sure = f" (confidence {found.confidence:.2f})" if found.confidence >= 0.005 else ""
    others = f"; as likely: {', '.join(found.equivalent)}" if found.equivalent else ""
    against = f", {odds(found.evidence)} against the claim" if found.evidence > _TEN else ""
    return f"{found.words}{sure}{against}{others}"


def _lines(result: AuditResult) -> Iterator[str]:
    yield headline(result)
    reading = result.reading
    yield f"evidence: {reading.mode} ({reading.dialect}); {result.places} places in {result.blocks} blocks"
    if result.blocks:
        yield (
            f"distance to the claim: {result.distance:.3f} nats; honest noise: {result.noise:.3f} nats; "
            f"odds against the claim: {odds(result.evidence)}"
        )
    groups = {
        "excluded": "excluded",
        "too near": "cannot be told from the claim here",
        "undecided": "undecided",
        "nearer": "nearer than the claim",
    }
    for state, words in groups.items():
        names = [s.alternative.words for s in result.standings if s.state == state]
        if names and (state != "undecided" or result.verdict != "differs"):
            yield f"{words}: {'; '.join(names)}"
    for note in result.notes:
        yield f"note: {note}"
    yield f"cost: {result.requests} requests, {result.generated} generated tokens, {result.seconds:.0f} s"


def text(result: AuditResult) -> str:
    return "\n".join(printable(line, 2000) for line in _lines(result))


def data(result: AuditResult) -> dict[str, Any]:
    """The data of `--json`."""
    return {
        "verdict": result.verdict,
        "findings": [
            {
                "area": f.area, "words": f.words, "fault": f.fault or None, "confidence": round(f.confidence, 4),
                "log10_odds": round(f.evidence / _TEN, 2), "fits": f.fits, "equivalent": list(f.equivalent),
            }
            for f in result.findings
        ],
        "alternatives": [_standing(s) for s in result.standings],
        "alpha": result.alpha,
        "log10_odds": round(result.evidence / _TEN, 2),
        "log10_odds_by_block": [round(v / _TEN, 3) for v in result.path],
        "places": result.places,
        "blocks": result.blocks,
        "noise": _number(result.noise),
        "distance": _number(result.distance),
        "requests": result.requests,
        "generated_tokens": result.generated,
        "unanswered": result.unanswered,
        "seconds": round(result.seconds, 1),
        "more_tokens": result.more_tokens,
        "reading": as_dict(result.reading),
        "notes": list(result.notes),
    }  # fmt: skip


def _standing(s: Standing) -> dict[str, Any]:
    return {
        "name": s.alternative.words, "family": s.alternative.family, "state": s.state, "nearer_blocks": s.wins,
        "further_blocks": s.losses, "distance": _number(s.distance), "apart": _number(s.apart),
        "log10_odds": round(s.favour / _TEN, 2),
    }  # fmt: skip


def _number(value: float) -> float | None:
    return round(value, 5) if math.isfinite(value) else None


def page(result: AuditResult, url: str, name: str) -> str:
    """One self-contained page: the answer, the evidence over blocks, the alternatives."""
    rows = [
        f"<tr><td>{html.escape(s.alternative.words)}<td>{s.state}<td>{s.distance:.3f}<td>{s.wins} : {s.losses}"
        for s in sorted(result.standings, key=lambda s: s.distance)
    ]
    sections = [
        ("Evidence against the claim", plot(result)),
        ("Alternatives", table(["alternative", "state", "distance, nats", "-blocks nearer : further"], rows)),
    ]
    return paper(f"assay: {name} at {url}", text(result).split("\n"), sections)


def plot(result: AuditResult) -> str:
    """The logarithm of the odds against the claim after every block, with the line at which it is rejected."""
    path = [value / _TEN for value in result.path]
    if not path:
        return "<p>no blocks"
    goal = -math.log10(result.alpha)
    low, high = min(-1.0, *path), max(goal + 1, *path)
    width, height = 640.0, 200.0

    def x(i: int) -> float:
        return width * i / max(1, len(path))

    def y(v: float) -> float:
        return height * (high - v) / (high - low)

    points = " ".join(f"{x(i + 1):.1f},{y(v):.1f}" for i, v in enumerate(path))
    said = f"log10 of the odds after {len(path)} blocks: {path[-1]:.1f}; the claim is rejected at {goal:g}"
    return (
        f'<svg viewBox="0 -8 {width:g} {height + 16:g}" role="img" aria-label="{html.escape(said)}">'
        f'<line x1="0" x2="{width:g}" y1="{y(goal):.1f}" y2="{y(goal):.1f}" stroke="currentColor" '
        f'stroke-dasharray="6 4"/><polyline points="0,{y(0):.1f} {points}" fill="none" stroke="currentColor" '
        f'stroke-width="2"/></svg><p>{html.escape(said)}'
    )
