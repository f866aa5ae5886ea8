"""Wrong nodes that cannot be wrong in the engine: what is computed from them is right.

A fault at a node changes what is computed from it, at the latest behind the next product, which mixes all elements of
a row. Where a node's printed values are grossly off and a later node, behind a product, is right in the same rows, the
engine had the right value. The line shows something else: it was misread. A node under llama.cpp's own name stays
wrong.

All wrong nodes must be contradicted so. One that is not may be the fault, and the others its consequences.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from assay.graph import Graph, Trait, split
from assay.verify.dumps.observation import STATISTICS, Dump, Observation
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.compare_nodes import Diff, NodeVerdict

_GROSS = 0.01  # of the node's square: a tenth of its size, where noise of any arithmetic is a hundredth
_ENOUGH = 3  # values of the later node in the same rows; a statistic counts one


@dataclass(frozen=True)
class Misreading:
    """A wrong node, one of its lines that is off, and the later node that is right."""

    node: NodeVerdict
    line: Observation
    witness: str

    @property
    def text(self) -> str:
        """The contradiction in words, with the line."""
        line, evidence = self.line, self.node.evidence
        shown = ", ".join(f"{v:g}" for v in line.target().reshape(-1)[:4])
        said = f" ({line.template!r})" if line.template else ""
        return (
            f"{line.where or line.foreign}{said} was read as {self.node.name} and shows {shown} there "
            f"({evidence.found:g} for {evidence.place or 'an element'}, expected {evidence.expected:g}), but "
            f"{self.witness}, which is computed from it, is right"
        )

    @property
    def question(self) -> str:
        """The question whose answer would settle it."""
        name = self.node.name
        return f"what are the numbers of this line? Print {name} under this name, with its values alone behind a colon"


def misreadings(graph: Graph, dump: Dump, diff: Diff) -> list[Misreading]:
    """A misreading for every wrong node; empty if one of them may be wrong in the engine."""
    wrong = [n for n in diff.nodes if n.verdict == "wrong"]
    right = [n.name for n in diff.nodes if n.verdict != "wrong" and n.name in dump.by_name]
    if not wrong or diff.broken is not None or len(right) <= len(wrong):
        return []
    at = ARITHMETICS.index(diff.arithmetic)
    found: list[Misreading] = []
    for node in wrong:
        seen = dump.by_name.get(node.name, ())
        if not seen or node.evidence.nmse < _GROSS or not all(_is_guess(o, graph) for o in seen):
            return []
        each = node.evidence.each if len(node.evidence.each) == len(seen) else ()
        off = [o for o, ratios in zip(seen, each, strict=True) if ratios[at] > 1] if each else list(seen)
        behind = _behind_a_product(graph, node.name)
        witness = next((name for name in right if name in behind and _covers(dump.by_name[name], off)), "")
        if not witness or not off:
            return []
        found.append(Misreading(node, off[0], witness))
    return found


def _is_guess(obs: Observation, graph: Graph) -> bool:
    """Whether the name was read from words, and is not llama.cpp's own."""
    if obs.template:
        return split(obs.name)[0].lower() not in obs.template.lower().replace(" ", "_")
    return bool(obs.foreign) and obs.foreign not in graph


def _behind_a_product(graph: Graph, name: str) -> Collection[str]:
    """The nodes that are computed from this one through a product."""
    reached, mixed = {name}, set[str]()
    for node in graph:
        if reached & {*node.inputs}:
            reached.add(node.name)
            if node.has(Trait.PRODUCT) or mixed & {*node.inputs}:
                mixed.add(node.name)
    return mixed


def _covers(later: Sequence[Observation], off: Sequence[Observation]) -> bool:
    """Whether the later node shows enough values in the rows of every line that is off."""
    return all(
        sum(
            1 if o.kind in STATISTICS else o.target().size
            for o in later
            if o.rows is None or (obs.rows is not None and o.rows[0] <= obs.rows[0] and obs.rows[1] <= o.rows[1])
        )
        >= _ENOUGH
        for obs in off
    )
