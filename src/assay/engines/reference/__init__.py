"""The reference engine: the definition that every other engine is judged by.

It decodes weights exactly, then computes in float64 with one textbook function for each node (`functions.py`). It is
never optimised. `interpret` runs a graph over an environment of values. `ReferenceEngine` wraps it in the engine
contract with a paged cache. Verification calls `interpret` and `evaluate` directly, in three ways: with given values
for some nodes (a foreign engine's own inputs), with a rewritten graph (a fault), or with hooks that round the values.
Such a hook imitates an engine that computes in float32 or less. The difference to the exact run is the noise that a
right engine may have.

Touch `functions.py` when an operation is added, and this file when a graph must be run in a new way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from assay.engines.contract import PAGE, Arithmetic, Chunk, Emit, Output, PagedEngine, check_batch, pages_for
from assay.engines.plan.state_layout import state_slots
from assay.engines.reference.functions import FUNCTIONS
from assay.engines.reference.weights import DEFAULT_BUDGET, Weights
from assay.graph import KINDS, OPS, Graph, Node, Trait
from assay.graph.state import POSITION
from assay.models import Model

Array = NDArray[Any]


@dataclass(frozen=True)
class Hooks:
    """How an arithmetic differs from exact: `operand` rounds each input before use, `result` each value after."""

    operand: Callable[[Node, int, Array], Array] | None = None
    result: Callable[[Node, Array], Array] | None = None


class Cache(Protocol):
    """The state of one sequence."""

    def append(self, name: str, rows: Array) -> Array:
        """Store this step's rows [T, G, D] of a node; give all rows [S, G, D]."""
        ...

    def load(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The state that a node keeps for the whole sequence; zeros at the start."""
        ...

    def store(self, name: str, value: Array) -> None:
        """Keep a node's new value for the next step."""
        ...


class NoCache:
    """A step that begins its sequence and is not continued: nothing came before it, and nothing is kept."""

    def append(self, name: str, rows: Array) -> Array:
        return rows

    def load(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.zeros(shape, dtype)

    def store(self, name: str, value: Array) -> None:
        return


def evaluate(
    node: Node,
    inputs: Sequence[Array],
    weights: Weights,
    cache: Cache | None = None,
    function: Callable[..., Array] | None = None,
) -> Array:
    """One node from the values of its inputs. `function(*inputs, *weights)`, if given, replaces its operation."""
    if function is not None:
        return function(*inputs, *(weights[name] for name in node.weights))
    few = node.has(Trait.TABLE) and node.has(Trait.MATRIX)  # a few rows of a large table are read
    get = weights.rows if few else weights.__getitem__
    operands = [*inputs, *(get(name) for name in node.weights)]
    attrs, compute = node.all_attrs(), FUNCTIONS[node.op]
    if not node.has(Trait.STATE):
        return compute(*operands, **attrs)
    cache = cache or NoCache()
    if KINDS[OPS[node.op].keeps].per == POSITION:
        return cache.append(node.name, compute(*operands, **attrs))
    state = cache.load(node.name, tuple(attrs.pop("state")), inputs[0].dtype)
    value, kept = compute(*operands, state, **attrs)
    cache.store(node.name, kept)
    return np.asarray(value)


def interpret(
    graph: Graph,
    weights: Weights,
    env: Mapping[str, Array],
    targets: Collection[str],
    *,
    cache: Cache | None = None,
    hooks: Hooks | None = None,
    emit: Callable[[str, Array], None] | None = None,
    functions: Mapping[str, Callable[..., Array]] | None = None,
) -> dict[str, Array]:
    """The values of `targets`. Nodes in `env` are taken from there; nodes that no target depends on are skipped.

    `functions` replaces the operation of some nodes, by name: a fault that no operation expresses.

    With `emit`, each target is passed on as soon as it is computed and is not stored. So a trace of any length needs
    the memory of a few nodes.
    """
    needed = graph.ancestors(targets, env)
    last_use = {name: i for i, node in enumerate(graph) if node.name in needed for name in node.inputs}
    values = dict(env)
    found: dict[str, Array] = {}

    def deliver(name: str) -> None:
        if emit:
            emit(name, values[name])
        else:
            found[name] = values[name]

    for i, node in enumerate(graph):
        if node.name in env and node.name in targets:
            deliver(node.name)
        if node.name not in needed or node.name in env:
            continue
        inputs = [values[name] for name in node.inputs]
        if hooks and hooks.operand:
            inputs = [hooks.operand(node, j, x) for j, x in enumerate(inputs)]
        value = evaluate(node, inputs, weights, cache, functions.get(node.name) if functions else None)
        values[node.name] = hooks.result(node, value) if hooks and hooks.result else value
        if node.name in targets:
            deliver(node.name)
        for name in (*node.inputs, node.name):
            if last_use.get(name, i) == i and name not in env:
                values.pop(name, None)
    return found


class _PagedCache:
    """One chunk's view of the engine's pools and of its state slot."""

    def __init__(
        self,
        pools: dict[str, Array],
        slots: NDArray[np.int64],
        start: int,
        n_slots: int,
        state: dict[str, Array] | None = None,
    ) -> None:
        self.pools, self.slots, self.start, self.n_slots = pools, slots, start, n_slots
        self.state = {} if state is None else state
        self.stored: dict[str, Array] = {}

    def load(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.state[name] if self.start and name in self.state else np.zeros(shape, dtype)

    def store(self, name: str, value: Array) -> None:
        self.stored[name] = value

    def finish(self) -> None:
        """Replace the state of the sequence by the state after this step."""
        self.state.update(self.stored)

    def append(self, name: str, rows: Array) -> Array:
        pool = self.pools.get(name)
        top = int(self.slots.max()) + 1
        if pool is None or pool.shape[0] < top:  # grow by doubling: most of a large cache is never used
            grown = np.zeros((min(self.n_slots, max(top, 256, 2 * (pool is not None and len(pool)))), *rows.shape[1:]))
            grown = grown.astype(rows.dtype)
            if pool is not None:
                grown[: len(pool)] = pool
            pool = self.pools[name] = grown
        pool[self.slots[self.start :]] = rows
        return pool[self.slots]


class ReferenceEngine(PagedEngine):
    """The engine contract over `interpret`. Sequences of a batch are computed one after the other."""

    name = "reference"
    precisions = MappingProxyType({"f64": "f64", "f32": "f32"})

    def __init__(
        self,
        model: Model,
        dtype: DTypeLike = np.float64,
        n_pages: int | None = None,
        *,
        budget: int = DEFAULT_BUDGET,
        graph: Graph | None = None,
        weights: Weights | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.model = model
        self.n_pages = n_pages if n_pages is not None else pages_for(model.hparams.n_ctx_train)
        self.graph = graph or model.graph
        self.weights = weights or Weights(model.file, dtype, budget)
        self.dtype = self.weights.dtype
        kind = f"f{8 * self.dtype.itemsize}"
        self.arithmetic = Arithmetic("reference", kind, kind)
        self.hooks = hooks
        self._pools: dict[str, Array] = {}
        self.state_slots = state_slots(self.graph)
        self._states: dict[int, dict[str, Array]] = {}  # by state slot: what each node keeps for the sequence

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Emit | None = None) -> list[Output]:
        """One step. With `emit`, each kept node is passed on as soon as it is computed."""
        check_batch(self, batch, keep)
        done = [self._chunk(i, chunk, set(keep), emit) for i, chunk in enumerate(batch)]
        for _, cache in done:  # only now: a step that raises is run again, and must find the state as it was
            cache.finish()
        return [output for output, _ in done]

    def _chunk(self, i: int, chunk: Chunk, keep: set[str], emit: Emit | None) -> tuple[Output, _PagedCache]:
        at = np.arange(chunk.end)
        slots = chunk.pages.astype(np.int64)[at // PAGE] * PAGE + at % PAGE
        state = self._states.setdefault(chunk.state_slot, {})
        cache = _PagedCache(self._pools, slots, chunk.start, self.n_pages * PAGE, state)
        positions = chunk.all_positions().astype(np.int64)
        env = {
            "inp_tokens": chunk.tokens.astype(np.int64),
            "inp_pos": positions,
            "inp_kpos": cache.append("inp_kpos", positions),
            **chunk.rows,
        }
        output = self.graph.output
        head = {output} if chunk.outputs != "none" else set()
        nodes: dict[str, Array] = {}
        logits = np.empty((0, *map(int, self.graph.shapes[output][1:])), self.dtype)

        def take(name: str, value: Array) -> None:
            nonlocal logits
            if name == output and head:
                logits = value[-1:] if chunk.outputs == "last" else value
            if name in keep:
                if emit:
                    emit(i, name, value)
                else:
                    nodes[name] = value

        targets = keep | head | self.graph.state.by_node.keys()
        interpret(self.graph, self.weights, env, targets, cache=cache, hooks=self.hooks, emit=take)
        return Output(logits, nodes), cache

    def copy_page(self, source: int, to: int) -> None:
        span = np.arange(PAGE)
        for name, pool in self._pools.items():
            found = pool[source * PAGE : (source + 1) * PAGE]
            _PagedCache(self._pools, to * PAGE + span[: len(found)], 0, self.n_pages * PAGE).append(name, found)

    def copy_state(self, source: int, to: int) -> None:
        self._states[to] = dict(self._states.get(source, {}))

    def close(self) -> None:
        self._pools.clear()
        self._states.clear()
