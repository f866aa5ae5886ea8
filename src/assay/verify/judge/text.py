"""A comparison in words: the headline, the nodes at fault, the table around the first wrong node."""

from __future__ import annotations

from collections.abc import Sequence

from assay.models import Model
from assay.system.counting import counted
from assay.verify.judge.compare_nodes import Diff, NodeVerdict
from assay.verify.judge.known import BLAMED, OWN, told
from assay.verify.judge.overflow import NonFiniteOrigin


def text(diff: Diff, model: Model | None = None, rows: int = 12) -> str:
    """The result for a person: the headline, the nodes at fault, then the table around the first wrong node."""
    first = diff.first_wrong
    counts = {v: sum(n.verdict == v for n in diff.nodes) for v in ("same", "noise", "wrong")}
    lines = []
    if diff.broken is not None:
        lines += non_finite_lines(diff.broken, len(diff.nodes))
    if first is None and diff.broken is not None:
        lines += [f"  before it, {len(diff.nodes)} judged: {_before(diff)}"] if diff.nodes else []
    elif first is None:
        excuse = f" (explained by {diff.arithmetic.name})" if diff.verdict == "noise" else ""
        lines.append(f"{diff.verdict}{excuse}: {counted(len(diff.nodes), 'node')} of {diff.b} against {diff.a}")
    else:
        lines.append(f"wrong: {first.name} is the first wrong node of {diff.b}; {_blame(first)}")
        e = first.evidence
        lines.append(f"  {e.spot}: found {e.found:.9g}, expected {e.expected:.9g} (nmse {e.nmse:.2e})")
        if model is not None:
            lines.append(f"  {model.graph[first.name].formula}")
        others = [n.name for n in diff.at_fault if n is not first]
        if others:
            lines.append(f"  {_also(diff)}: {_some(others)}")
        lines.append(f"  {told(diff.nodes)}")
    lines += ["  " + ", ".join(f"{n} {v}" for v, n in counts.items() if n)] if diff.nodes else []
    lines += [f"  contradiction: {c}" for c in diff.contradictions]
    lines += [f"  note: {n}" for n in diff.notes]
    if diff.unmatched:
        lines.append(f"  {len(diff.unmatched)} names matched no node: {_some(diff.unmatched)}")
    if not diff.nodes:
        return "\n".join(lines)
    lines.append("")
    lines.append(f"{'node':<24}{'verdict':<10}{'fault':<15}{'nmse':>10}{'cosine':>12}{'max error':>11}")
    at = diff.nodes.index(first) if first else 0
    shown = diff.nodes if len(diff.nodes) <= rows else diff.nodes[max(0, at - 3) : max(0, at - 3) + rows]
    for n in shown:
        e = n.evidence
        lines.append(f"{n.name:<24}{n.verdict:<10}{n.known.short:<15}{e.nmse:>10.2e}{e.cosine:>12.8f}{e.worst:>11.2e}")
    if len(shown) < len(diff.nodes):
        lines.append(f"… {len(diff.nodes) - len(shown)} more; --all shows every node")
    return "\n".join(lines)


def non_finite_lines(broken: NonFiniteOrigin, judged: int) -> list[str]:
    """The first value that is not finite: what, where, how it came about, what to do."""
    lines = [f"wrong: {broken.words}"]
    if broken.between:
        lines.append(
            f"  not dumped: {_some(broken.between[:-1], 5)}; it is one of these {len(broken.between)} operations"
        )
    if broken.hidden_rows:
        lines.append(
            "  or an operation of an earlier layer in the row of another token, which attention reads and which was "
            "not dumped: print all rows to tell"
        )
    fault = f" (docs/reference/faults.md#{broken.fault})" if broken.fault else ""
    lines.append(f"  {'fix' if broken.sure else 'best guess'}: {broken.fix}{fault}")
    rest = broken.found.left - 1
    before = f"{counted(judged, 'node')} before it {'is' if judged == 1 else 'are'} judged"
    after = "one dumped after it only passes it on" if rest == 1 else f"{rest} dumped after it only pass it on"
    if rest or not judged:
        lines.append(f"  {before if judged else 'no node before it was dumped'}{f'; the {after}' if rest else ''}")
    return lines


def _before(diff: Diff) -> str:
    return "the same" if all(n.verdict == "same" for n in diff.nodes) else f"within the noise of {diff.arithmetic.name}"


def _blame(n: NodeVerdict) -> str:
    segment = n.evidence.segment
    if n.known in BLAMED and len(segment) > 1:
        many = f"{len(segment)} operations"
        return f"the fault lies between {segment[0]} and {n.name}: {many}, and nothing between them was dumped whole"
    if n.known is OWN:
        return "recomputed from the dump's own inputs it differs, so the fault is its own"
    return "no model was given, so nothing tells whose fault it is"


def _also(diff: Diff) -> str:
    sure = all(n.known is OWN for n in diff.at_fault)
    return "also at fault themselves" if sure else "also at fault, as far as the dump tells"


def _some(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
