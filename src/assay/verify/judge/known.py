"""Whether a node is right, wrong on its own inputs, or unknown: one table for text, JSON, report, page and library.

A dump rarely holds everything. A node is called wrong *on its own inputs* only if the dump has them: those of the node,
or those of the few operations up to it. A node that must be computed from the token ids, because nothing before it was
dumped whole, is wrong by itself or by something before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from assay.verify.judge.evidence import Evidence


class Verdicted(Protocol):
    """A node with its verdict: a `NodeVerdict`."""

    @property
    def name(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def own(self) -> bool | None: ...
    @property
    def explained_by(self) -> str | None: ...
    @property
    def evidence(self) -> Evidence: ...


@dataclass(frozen=True)
class Known:
    """One of the things that can be known about a node."""

    id: str
    mark: str  # its sign in a map, beside the colour
    short: str  # in the table of `assay diff`
    legend: str  # about one node
    many: str = ""  # about several: what they do
    such_one: str = ""  # after the number 1
    such: str = ""  # after a larger number


OWN = Known(
    "own", "✕", "own", "wrong on its own inputs",
    "are wrong on their own inputs", "wrong on its own inputs", "wrong on their own inputs",
)  # fmt: skip
BETWEEN = Known(
    "between", "✕", "own or before", "wrong by itself, or by an operation before it that was not dumped",
    "are wrong, by themselves or by operations before them that were not dumped",
    "wrong by itself or by an operation before it that was not dumped",
    "wrong by themselves or by operations before them that were not dumped",
)  # fmt: skip
DIFFERS = Known(
    "differs", "?", "inputs unknown", "differs; it cannot be judged by itself, because its inputs were not dumped",
    "differ and cannot be judged by themselves, because their inputs were not dumped",
    "that cannot be judged by itself, because its inputs were not dumped",
    "that cannot be judged by themselves, because their inputs were not dumped",
)  # fmt: skip
INHERITED = Known(
    "inherited", "•", "inherited", "follows from an earlier wrong value",
    "follow from an earlier wrong value", "that follows from an earlier one", "that follow from earlier ones",
)  # fmt: skip
NOT_FINITE = Known("nan", "!", "", "not finite: NaN or infinity")
NOISE = Known("noise", "~", "", "equal within the noise of its arithmetic")
SAME = Known("same", "", "", "equal to the definition")
ABSENT = Known("absent", "·", "", "not in the dump")

KINDS = (NOT_FINITE, OWN, BETWEEN, DIFFERS, INHERITED, NOISE, SAME, ABSENT)  # the worst first
WRONG = (OWN, BETWEEN, DIFFERS, INHERITED)
BLAMED = (OWN, BETWEEN)


def known(node: Verdicted | None) -> Known:
    """The kind of a node; None is a node that the dump does not have."""
    if node is None:
        return ABSENT
    if node.verdict != "wrong":
        return NOISE if node.verdict == "noise" else SAME
    if node.own is None:
        return DIFFERS
    if not node.own:
        return INHERITED
    return OWN if node.evidence.given else BETWEEN


def sentence(node: Verdicted) -> str:
    """One node in words, with the operations in which the mistake must be."""
    kind, segment = known(node), node.evidence.segment
    if kind in BLAMED and len(segment) > 1:
        start = "wrong on its own inputs" if kind is OWN else "wrong"
        return f"{start}; the mistake is in one of {len(segment)} operations, {segment[0]} to {segment[-1]}"
    if kind is NOISE and node.explained_by:
        return f"equal within the noise of {node.explained_by}"
    return kind.legend


def tally(nodes: Iterable[Verdicted]) -> dict[str, int]:
    """How many nodes of each kind there are, the worst first; kinds without a node are left out."""
    found = [known(node).id for node in nodes]
    return {kind.id: found.count(kind.id) for kind in KINDS if kind.id in found}


def told(nodes: Sequence[Verdicted]) -> str:
    """The wrong ones among the nodes: `6 nodes are wrong on their own inputs, Qcur-0 first`."""
    wrong = [node for node in nodes if node.verdict == "wrong"]
    if not wrong:
        return "no node is wrong"
    if len(wrong) == 1:
        return f"{wrong[0].name} is the one node that differs: {sentence(wrong[0])}"
    kinds = tally(wrong)
    does = known(wrong[0]).many if len(kinds) == 1 else "differ"
    return f"{len(wrong)} nodes {does}, {wrong[0].name} first" + (f": {listed(wrong)}" if len(kinds) > 1 else "")


def listed(wrong: Sequence[Verdicted]) -> str:
    """`2 wrong on their own inputs, 50 that follow from earlier ones`."""
    counts = tally(wrong)
    some = [(kind, counts[kind.id]) for kind in WRONG if kind.id in counts]
    return ", ".join(f"{n} {kind.such_one if n == 1 else kind.such}" for kind, n in some)
