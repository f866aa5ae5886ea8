"""The diagnosis as text for a terminal: the place, the cause, the evidence, the right formula, the next step."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from assay.graph import split
from assay.models import Model
from assay.verify.diagnosis.result import Cause, Diagnosis
from assay.verify.diagnosis.wording import Words, joint, tied, words
from assay.verify.judge.known import WRONG, listed, tally
from assay.verify.judge.text import non_finite_lines

PAGE = "docs/reference/faults.md"
_WIDTH = 100
BELOW_NOISE = "undecided: nothing is beyond the noise of an arithmetic, and a fault smaller than that would not show"
UNJUDGED = "undecided: the time was up before all values were compared; nothing that was compared is wrong"


def text(d: Diagnosis, model: Model | None = None) -> str:
    """The answer for a terminal."""
    return "\n".join(_lines(d, model))


def _lines(d: Diagnosis, model: Model | None) -> Iterator[str]:
    if d.verdict == "healthy":
        yield "healthy: nothing is wrong that arithmetic does not explain"
        yield from _notes(d)
        return
    if d.verdict == "undecided":
        if d.because:
            yield from _wrapped(f"undecided: {d.because}")
        else:
            yield BELOW_NOISE if d.diff is not None else UNJUDGED
        yield from _wrapped(f"next: {d.next_observation}", "  ")
        yield from _notes(d)
        return
    if d.broken is not None:
        yield from non_finite_lines(d.broken, len(d.diff.nodes) if d.diff is not None else 0)
        if not d.wrong_nodes and not d.causes:
            if d.diff is not None and d.diff.nodes:
                yield "  everything before it is right, or the noise of an arithmetic"
            yield from _notes(d)
            return
        yield "  something before it is wrong already, and may be why:"
        yield ""
    yield _headline(d, model)
    if d.first_wrong and d.diff is not None:
        yield from _place(d, model)
    for i, cause in enumerate(d.causes):
        yield ""
        yield from _cause(cause, words(cause, model, d.diff), i + 1 if len(d.causes) > 1 else 0)
    if d.unexplained:
        yield ""
        yield f"unexplained: {_names(d.unexplained)}"
        if not d.relations:
            yield "  no simple relation and no fault of the catalogue gives these values"
    if d.relations and (d.unexplained or d.verdict == "inconclusive"):
        yield from _wrapped("what can be said: " + "; ".join(r.text for r in d.relations))
    if d.next_observation:
        yield ""
        yield from _wrapped(f"next: {d.next_observation}")
    yield from _notes(d)


def _headline(d: Diagnosis, model: Model | None) -> str:
    if d.causes and d.verdict == "fault":
        first = d.causes[0]
        also = f" and {len(d.causes) - 1} more" if len(d.causes) > 1 else ""
        said = words(first, model)
        kind = "fault" if said.title == "cause" else said.title
        return f"{kind}: {first.fault}{also} at {first.node}: {said.wrong}"
    where = d.first_wrong or "the run"
    if d.verdict == "inconclusive":
        return f"inconclusive: {where} is wrong, and what was observed does not tell why"
    return f"unexplained: {where} is wrong, and no known fault gives its values"


def _place(d: Diagnosis, model: Model | None) -> Iterator[str]:
    assert d.diff is not None
    found = next((n for n in d.diff.nodes if n.name == d.first_wrong), None)
    if found is None:
        return
    e = found.evidence
    layer = split(found.name)[1]
    yield (f"  place     {found.name}" + (f" (layer {layer})" if layer is not None else "") + _of_how_many(d))
    if len(d.segment) > 1:
        yield f"            between {d.segment[0]} and {d.segment[-1]}: {len(d.segment)} nodes, the last one dumped"
    if model is not None and found.name in model.graph:
        yield f"            {model.graph[found.name].formula}"
    yield f"  seen      {e.spot}: found {e.found:.7g}, expected {e.expected:.7g} (nmse {e.nmse:.1e})"


def _of_how_many(d: Diagnosis) -> str:
    """How many nodes are wrong, and what is known about them: `, first of 6 wrong on their own inputs`.

    Where more than one kind is among them, all that differ are counted, as in the report and by `assay diff`:
    `, first of 92 that differ (1 own or before, 89 inputs unknown, 2 inherited)`.
    """
    assert d.diff is not None
    wrong = [n for n in d.diff.nodes if n.name in set(d.wrong_nodes)]
    if len(wrong) < 2:
        return ""
    counts = tally(wrong)
    if len(counts) == 1:
        return f", first of {len(wrong)} {listed(wrong).removeprefix(str(len(wrong))).lstrip()}"
    wrong = [n for n in d.diff.nodes if n.verdict == "wrong"]
    counts = tally(wrong)
    kinds = ", ".join(f"{counts[kind.id]} {kind.short}" for kind in WRONG if kind.id in counts)
    return f", first of {len(wrong)} that differ ({kinds})"


def _cause(c: Cause, said: Words, number: int) -> Iterator[str]:
    title = f"{said.title} {number}" if number else said.title
    yield from _wrapped(f"{title}: {' or '.join((c.fault, *tied(c)[:3]))} ({c.how})")
    yield from _wrapped(f"wrong: {said.wrong}", "  ")
    yield from _wrapped(f"right: {said.right}", "  ")
    if said.fix:
        yield from _wrapped(f"fix: {said.fix}", "  ")
    if said.look_for:
        yield "  look for a line like"
        yield from (f"    {language:<8}{line}" for language, line in said.look_for.items())
    yield f"  evidence: deviation {c.before:.3g} times the noise, {c.after:.2g} with the fault planted; " + (
        f"explains {_names(c.nodes)}"
    )
    same = f"; gives the same values as {', '.join(c.equivalent)}" if c.equivalent else ""
    yield f"  confidence {joint(c):.2f}" + (f" that it is one of these, {c.confidence:.2f} each" if tied(c) else same)
    if said.otherwise:
        yield from _wrapped(f"if it is not that: {said.otherwise}", "  ")
    yield f"  see {PAGE}#{c.fault}"


def _notes(d: Diagnosis) -> Iterator[str]:
    for note in dict.fromkeys(d.notes):
        yield f"  note: {note}"


def _names(names: tuple[str, ...], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _wrapped(line: str, indent: str = "") -> Iterator[str]:
    yield from textwrap.wrap(line, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
