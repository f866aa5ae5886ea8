"""The values of one node under every simulated arithmetic (`float16`, `q8_0`, …), each distinct one stored once.

The noise simulation runs the model in many arithmetics. Most of them agree at most nodes, so runs with equal inputs
form one *lane*, which is computed once, and each rounding is computed once. Touch this module when an arithmetic gets a
flag that decides how a node is rounded (`arithmetic`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from assay.gguf import GGUFFile
from assay.graph import Graph, Node, Trait
from assay.verify.judge.arithmetic import ARITHMETICS, SimulatedArithmetic, halved, is_gelu, reads_halves, summation

Array = NDArray[Any]
Alike = tuple[int, ...]  # a number for each arithmetic; arithmetics with one number do the same


@dataclass(frozen=True)
class RunValues:
    """A value in the run of each arithmetic; runs that agree share an array."""

    arrays: Sequence[Array]
    of: Alike  # for each arithmetic the index of its array

    @staticmethod
    def same(value: Array) -> RunValues:
        """One value for all runs."""
        return RunValues((value,), _ALL)

    def __getitem__(self, arithmetic: int) -> Array:
        return self.arrays[self.of[arithmetic]]

    def change(self, alike: Alike, make: Callable[[SimulatedArithmetic, Array], Array]) -> RunValues:
        """Each arithmetic's change of its value, computed once for equal values and arithmetics that are `alike`."""
        made: dict[tuple[int, int], int] = {}
        arrays: list[Array] = []
        of: list[int] = []
        for arithmetic, key in zip(ARITHMETICS, zip(alike, self.of, strict=True), strict=True):
            at = made.get(key)
            if at is None:
                value = make(arithmetic, self.arrays[key[1]])
                at = next((i for i, known in enumerate(arrays) if known is value), len(arrays))
                if at == len(arrays):
                    arrays.append(value)
                made[key] = at
            of.append(at)
        return RunValues(arrays, tuple(of))


def distinct_lanes(exact: Sequence[Array], read: Sequence[RunValues]) -> tuple[list[Sequence[Array]], Alike]:
    """The different sets of inputs of a node, the definition's first; and for each arithmetic the index of its set."""
    lanes, known = [exact], {tuple(map(id, exact)): 0}
    found: dict[tuple[int, ...], int] = {}
    of = []
    for key in list(zip(*(values.of for values in read), strict=True)) or [()] * len(ARITHMETICS):
        if key not in found:
            lane = [values.arrays[i] for values, i in zip(read, key, strict=True)]
            found[key] = known.setdefault(tuple(map(id, lane)), len(lanes))
            if found[key] == len(lanes):
                lanes.append(lane)
        of.append(found[key])
    return lanes, tuple(of)


def alike(keys: Iterable[Hashable]) -> Alike:
    """Equal keys get one number."""
    seen: dict[Hashable, int] = {}
    return tuple(seen.setdefault(key, len(seen)) for key in keys)


_ALL = (0,) * len(ARITHMETICS)
_BY_STORAGE = alike(a.storage for a in ARITHMETICS)
# By how the first operand is rounded: of a product, and of other nodes; with and without a table for GELU.
_FIRST = {
    (product, gelu): alike(
        (a.storage, a.q8 if product else (a.f16_cache, a.q8_cache), a.gelu_table and gelu) for a in ARITHMETICS
    )
    for product in (False, True)
    for gelu in (False, True)
}
# By how a result is stored: of a node that is cached, and of other nodes.
STORED = {
    cached: alike((a.storage, cached and (a.f16_cache, a.q8_cache)) for a in ARITHMETICS) for cached in (False, True)
}


def reading(node: Node, index: int) -> Alike:
    """The arithmetics that round this input of the node alike."""
    return _BY_STORAGE if index else _FIRST[node.has(Trait.PRODUCT), reads_halves(node)]


def sizes_of_sums(file: GGUFFile, graph: Graph, node: Node, n_keys: int) -> list[float]:
    """For each arithmetic: the error of the node's sums, relative to the root of the sum of their squared terms."""
    return [summation(a, file, graph, node, n_keys) for a in ARITHMETICS]


def summing(file: GGUFFile, node: Node, sizes: Sequence[float] | None) -> Alike:
    """The arithmetics that compute the node's result alike before it is stored."""
    gelu = is_gelu(node)
    lost = {kind: halved(a, file, node) and kind for kind, a in _BY_WEIGHTS.items()}
    if sizes is None and not gelu and not any(lost.values()):
        return _ALL
    return alike(
        (None if sizes is None else sizes[i], lost[a.weights], gelu and a.gelu_table) for i, a in enumerate(ARITHMETICS)
    )


_BY_WEIGHTS = {a.weights: a for a in ARITHMETICS}
