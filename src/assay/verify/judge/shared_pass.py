"""One pass over a graph that several computations share, so that every weight is decoded once.

A visitor is shown each node in turn, together with the weights. The definition's run, the recomputation from the dump's
own inputs and the runs of the noise model are visitors. Together they need the memory of one tensor and of the live
activations, whatever the size of the model.

The runs of the noise model are generators. Each yields the inputs on which it wants the current node evaluated, and
receives the results. `Together` collects the inputs of all runs and `evaluate_all` stacks their rows: one matrix
product with the weight then serves all runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import evaluate
from assay.engines.reference.weights import Table, Weights
from assay.gguf import GGUFFile
from assay.graph import INPUTS, Graph, Node, Trait
from assay.models import Model
from assay.system.stages import stage
from assay.verify.judge.arithmetic import product_rows

Array = NDArray[Any]
_BATCHED = frozenset({"linear", "rms_norm", "rope"})  # operations that are faster on the rows of all lanes at once
_CALLS = Trait.ELEMENTWISE | Trait.NORM | Trait.EXPERTS  # of these, calls on small values cost more than their work
_SMALL = 1 << 15  # values of a lane up to which joining lanes costs less than a call for each
MOST_KEPT = 16 << 20  # bytes of a file's decoded tensors up to which they are kept for the next pass
LARGEST = 2 << 30  # bytes of one decoded tensor; a larger one is decoded by rows, and again for every visitor


class Visitor(Protocol):
    def visit(self, node: Node, weights: Weights) -> None: ...


class Streamed(Weights):
    """The file's tensors in float32 (exact: no block type holds more), one at a time. Those of a small file stay."""

    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file, np.float32, budget=0)
        self._name, self._value = "", np.empty(0, np.float32)
        self._shared = _decoded_tensors(file)

    def __getitem__(self, name: str) -> Array | Table:
        if math.prod(self.file.tensors[name].shape) * 4 > LARGEST:
            return Table(self.file, name, np.float32)
        if self._shared is not None:
            if name not in self._shared:
                self._shared[name] = self.file.decode(name)
                self._shared[name].flags.writeable = False
            return self._shared[name]
        if name != self._name:
            self._name, self._value = name, self.file.decode(name)
        return self._value


_decoded: WeakKeyDictionary[GGUFFile, dict[str, Array]] = WeakKeyDictionary()


def _decoded_tensors(file: GGUFFile) -> dict[str, Array] | None:
    """The tensors of a small file that earlier passes have decoded; None for a large file."""
    if file not in _decoded and sum(math.prod(t.shape) for t in file.tensors.values()) * 4 > MOST_KEPT:
        return None
    return _decoded.setdefault(file, {})


class Squares(Weights):
    """The squares of other weights, decoded and squared as they are asked for."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights.file, np.float32, budget=0)
        self.of = weights

    def __getitem__(self, name: str) -> Any:
        return _Squared(self.of[name])

    def rows(self, name: str) -> Any:
        return _Squared(self.of.rows(name))


class _Squared:
    """A matrix whose blocks are squared as they are read."""

    def __init__(self, matrix: Array | Table) -> None:
        self._matrix, self.shape = matrix, matrix.shape

    def __getitem__(self, rows: Any) -> Array:
        return np.square(self._matrix[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)


def sweep(model: Model, visitors: Sequence[Visitor], label: str = "computing the definition") -> None:
    """Show every node of the model's graph to every visitor, in order. `label` names the stage of progress."""
    weights = Streamed(model.file)
    with stage(label, len(model.graph), "nodes") as tell:
        for done, node in enumerate(model.graph, 1):
            for visitor in () if node.has(Trait.SHOWS_STATE) else visitors:  # a state follows from no single node
                visitor.visit(node, weights)
            tell(done)


Lanes = Sequence[Sequence[Array]]
Asking = Generator[tuple[Lanes, bool], list[Array], None]  # sets of inputs, and whether to use squared weights


class Together:
    """Visitor: several runs, whose values of a node are computed at once."""

    def __init__(self, runs: Sequence[Callable[[Node, Weights], Asking]]) -> None:
        self._runs = runs
        self._squares: Squares | None = None

    def visit(self, node: Node, weights: Weights) -> None:
        if self._squares is None or self._squares.of is not weights:
            self._squares = Squares(weights)
        kinds = (weights, self._squares)
        asking = [run(node, weights) for run in self._runs]
        asked = [next(run) for run in asking]
        while asking:
            answers: list[list[Array]] = [[] for _ in asking]
            for squared in {which for _, which in asked}:
                mine = [i for i, (_, which) in enumerate(asked) if which == squared]
                values = iter(evaluate_all(node, [lane for i in mine for lane in asked[i][0]], kinds[squared]))
                for i in mine:
                    answers[i] = [next(values) for _ in asked[i][0]]
            more = []
            for run, answer in zip(asking, answers, strict=True):
                with suppress(StopIteration):
                    more.append((run, run.send(answer)))
            asking, asked = [run for run, _ in more], [which for _, which in more]


def evaluate_all(node: Node, lanes: Lanes, weights: Weights) -> list[Array]:
    """The node for several sets of inputs. Equal sets are computed once, some operations on the rows of all sets."""
    unique: dict[tuple[int, ...], int] = {}
    index = [unique.setdefault(tuple(map(id, lane)), len(unique)) for lane in lanes]
    todo = [lanes[index.index(i)] for i in range(len(unique))]
    if len(todo) > 1 and (node.op in _BATCHED or _joins(node, todo)):
        first = [product_rows(node, lane[0]) for lane in todo]
        rest = [[lane[i] for lane in todo] for i in range(1, len(node.inputs))]
        whole = evaluate(node, [np.concatenate(rows) for rows in (first, *rest)], weights)
        ends = list(accumulate(map(len, first)))
        parts = [whole[end - len(rows) : end] for rows, end in zip(first, ends, strict=True)]
        return [parts[i] for i in index]
    values = [evaluate(node, lane, weights) for lane in todo]
    return [values[i] for i in index]


def _joins(node: Node, lanes: Lanes) -> bool:
    """Does the operation treat each row by itself, and are the lanes small enough to be joined for one call?"""
    if not node.has(_CALLS) or any(x.size > _SMALL for x in lanes[0]):
        return False
    return len({len(x) for x in lanes[0]}) == 1


class Last:
    """The last reader of every value: after it the value is dropped."""

    def __init__(self, graph: Graph) -> None:
        self._after: dict[str, list[str]] = {}
        last: dict[str, str] = {}
        for node in graph:
            last |= dict.fromkeys((*node.inputs, node.name), node.name)
        for name, user in last.items():
            if name not in INPUTS:
                self._after.setdefault(user, []).append(name)

    def forget(self, node: Node, *stores: dict[str, Any]) -> None:
        for name in self._after.get(node.name, ()):
            for store in stores:
                store.pop(name, None)
