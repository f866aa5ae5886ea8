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

import io
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from assay.engines.contract import (
    PAGE,
    Arithmetic,
    CacheBytes,
    Chunk,
    Emit,
    Output,
    PagedEngine,
    check_batch,
    check_state_lengths,
    hand_over,
    pages_for,
    with_scales,
    with_types,
)
from assay.engines.plan.given_rows import picture_form, with_pictures
from assay.engines.plan.state_layout import state_slots as count_slots
from assay.engines.reference.functions import FUNCTIONS
from assay.engines.reference.weights import DEFAULT_BUDGET, Weights
from assay.errors import AssayError
from assay.graph import KINDS, OPS, Graph, Node, Trait
from assay.graph.state import POSITION
from assay.models import Model
from assay.models.adapters import Adapter, adapted, joined_file
from assay.models.pictures import EVERYTHING, PictureForm, pictured
from assay.models.token_types import typed

Array = NDArray[Any]


@dataclass(frozen=True)
class Hooks:
    """How an arithmetic differs from exact: `operand` rounds each input before use, `result` each value after."""

    operand: Callable[[Node, int, Array], Array] | None = None
    result: Callable[[Node, Array], Array] | None = None
    state: Callable[[Node, Array], Array] | None = None  # what a node keeps for a sequence, after each step


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

    def stored(self, name: str) -> Array:
        """The value that was stored last, in this step."""
        ...


class NoCache:
    """A step that begins its sequence and is not continued: nothing came before it."""

    def __init__(self) -> None:
        self._stored: dict[str, Array] = {}

    def append(self, name: str, rows: Array) -> Array:
        return rows

    def load(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.zeros(shape, dtype)

    def store(self, name: str, value: Array) -> None:
        self._stored[name] = value

    def stored(self, name: str) -> Array:
        return self._stored[name]


class _GivenState:
    """A cache whose state before the step is given for some nodes: a foreign engine's own."""

    def __init__(self, cache: Cache, given: Mapping[str, Array]) -> None:
        self._cache, self._given = cache, given
        self.append, self.store, self.stored = cache.append, cache.store, cache.stored

    def load(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if name in self._given:
            return self._given[name].reshape(shape).astype(dtype)
        return self._cache.load(name, shape, dtype)


def evaluate(
    node: Node,
    inputs: Sequence[Array],
    weights: Weights,
    cache: Cache | None = None,
    function: Callable[..., Any] | None = None,
    keep: Callable[[Node, Array], Array] | None = None,
) -> Array:
    """One node from the values of its inputs. `function(*inputs, *weights)`, if given, replaces its operation.

    A function for a node that keeps state of a fixed size takes the state last and returns value and new state.
    """
    with np.errstate(all="ignore"):  # weights and a stranger's values may be NaN, infinite or huge; the results say so
        return _evaluate(node, inputs, weights, cache, function, keep)


def _evaluate(
    node: Node,
    inputs: Sequence[Array],
    weights: Weights,
    cache: Cache | None,
    function: Callable[..., Any] | None,
    keep: Callable[[Node, Array], Array] | None,
) -> Array:
    stateful = node.has(Trait.STATE)
    if function is not None and not stateful:
        return np.asarray(function(*inputs, *[weights[name] for name in node.weights]))
    few = node.has(Trait.TABLE) and node.has(Trait.MATRIX)  # a few rows of a large table are read
    get = weights.rows if few else weights.__getitem__
    operands = [*inputs, *[get(name) for name in node.weights]]
    attrs, compute = node.all_attrs(), FUNCTIONS[node.op]
    if not stateful:
        return np.asarray(compute(*operands, **attrs))
    cache = cache or NoCache()
    if KINDS[OPS[node.op].keeps].per == POSITION:
        return cache.append(node.name, function(*operands) if function else compute(*operands, **attrs))
    state = cache.load(node.name, tuple(attrs.pop("state")), inputs[0].dtype)
    value, kept = function(*operands, state) if function else compute(*operands, state, **attrs)
    cache.store(node.name, kept if keep is None else keep(node, kept))
    return np.asarray(value)


def show_state(graph: Graph, node: Node, cache: Cache, dtype: np.dtype[Any]) -> Array:
    """The value of a node that shows state: what the nodes that it reads keep, before or after this step."""
    shapes = [tuple(graph[name].attr("state")) for name in node.inputs]
    if node.op == "state_before":
        states = [cache.load(name, shape, dtype) for name, shape in zip(node.inputs, shapes, strict=True)]
    else:
        states = [cache.stored(name) for name in node.inputs]
    return np.asarray(FUNCTIONS[node.op](*states, **node.all_attrs()))


def _given_state(graph: Graph, showing: Sequence[Node], env: Mapping[str, Array]) -> dict[str, Array]:
    """State that `env` gives: the value of a `state_before` node, cut into the parts of the nodes that keep it."""
    found: dict[str, Array] = {}
    for node in showing:
        if node.op == "state_before" and node.name in env:
            at, value = 0, env[node.name].reshape(-1)
            for name in node.inputs:
                size = math.prod(graph[name].attr("state"))
                found[name] = value[at : at + size]
                at += size
    return found


@np.errstate(all="ignore")  # as `evaluate`
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
    A `state_before` node in `env` is the state that this step begins with. A `state_after` target is computed even
    where `env` has the value of the node that keeps it, because the value does not tell the state.

    With `emit`, each target is passed on as soon as it is computed and is not stored. So a trace of any length needs
    the memory of a few nodes.
    """
    needed = graph.ancestors(targets, env)
    showing = [node for node in graph.nodes if node.has(Trait.SHOWS_STATE)]
    forced = {
        name for node in showing if node.op == "state_after" and node.name in needed and node.name not in env
        for name in node.inputs
    }  # fmt: skip
    if forced:
        needed = graph.ancestors({*targets, *forced}, env.keys() - forced)
    given = _given_state(graph, showing, env)
    cache = _GivenState(cache or NoCache(), given) if given else cache or NoCache()
    last_use = {name: i for i, node in enumerate(graph.nodes) if node.name in needed for name in node.inputs}
    values = dict(env)
    found: dict[str, Array] = {}

    def deliver(name: str) -> None:
        if emit:
            emit(name, values[name])
        else:
            found[name] = values[name]

    keep = hooks.state if hooks else None
    for i, node in enumerate(graph.nodes):
        if node.name not in needed:  # targets are
            continue
        if node.name in env:
            if node.name in targets:
                deliver(node.name)
            if node.name not in forced:
                continue
        if node.has(Trait.SHOWS_STATE):
            values[node.name] = show_state(graph, node, cache, weights.dtype)
            if node.name in targets:
                deliver(node.name)
            continue
        inputs = [values[name] for name in node.inputs]
        if hooks and hooks.operand:
            inputs = [hooks.operand(node, j, x) for j, x in enumerate(inputs)]
        function = functions.get(node.name) if functions else None
        value = _evaluate(node, inputs, weights, cache, function, keep)
        if node.name not in env:
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
        self._new: dict[str, Array] = {}

    def load(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.state[name] if self.start and name in self.state else np.zeros(shape, dtype)

    def store(self, name: str, value: Array) -> None:
        self._new[name] = value

    def stored(self, name: str) -> Array:
        return self._new[name]

    def finish(self) -> None:
        """Replace the state of the sequence by the state after this step."""
        self.state.update(self._new)

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


def _packed(arrays: Mapping[str, Array]) -> NDArray[np.uint8]:
    """Arrays by name as bytes, without pickled objects."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return np.frombuffer(buffer.getbuffer(), np.uint8)


def _unpacked(content: Array) -> dict[str, Array]:
    with np.load(io.BytesIO(content.tobytes()), allow_pickle=False) as found:
        return dict(found)


class _ReferenceBytes:
    """The capability `cache_bytes` of the reference engine: arrays by the name of their node."""

    layout = f"reference {PAGE} npz"

    def __init__(self, engine: ReferenceEngine) -> None:
        self._engine = engine

    def read_page(self, page: int, window: int = 0) -> Array:
        return _packed({name: pool[page * PAGE : (page + 1) * PAGE] for name, pool in self._engine._pools.items()})

    def write_page(self, page: int, content: Array, window: int = 0) -> None:
        engine = self._engine
        for name, rows in _unpacked(content).items():
            slots = page * PAGE + np.arange(len(rows))
            _PagedCache(engine._pools, slots, 0, engine.n_pages * PAGE).append(name, rows)

    def read_state(self, slot: int) -> Array:
        return _packed(self._engine._states.get(slot, {}))

    def write_state(self, slot: int, content: Array, length: int) -> None:
        engine = self._engine
        engine._states[slot], engine._lengths[slot] = _unpacked(content), length
        engine._earlier.pop(slot, None)


class ReferenceEngine(PagedEngine):
    """The engine contract over `interpret`. Sequences of a batch are computed one after the other."""

    name = "reference"
    pictures = EVERYTHING
    token_types = True
    precisions = MappingProxyType({"f64": "f64", "f32": "f32"})
    exact_drafts = True  # drafted tokens are computed one by one
    spare_states = 1 << 20  # as many as memory holds

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
        state_slots: int | None = None,
        adapters: Sequence[Adapter] = (),
    ) -> None:
        self.model, self.adapters = model, tuple(adapters)
        self.n_pages = n_pages if n_pages is not None else pages_for(model.hparams.n_ctx_train)
        self.graph = graph or model.graph
        self.weights = weights or Weights(joined_file(model.file, self.adapters), dtype, budget)
        self.dtype = self.weights.dtype
        kind = f"f{8 * self.dtype.itemsize}"
        self.arithmetic = Arithmetic("reference", kind, kind)
        self.hooks = hooks
        # By the adapters that a chunk uses, and the form of its pictures.
        self._graphs: dict[tuple[tuple[int, ...], PictureForm | None, bool], Graph] = {((), None, False): self.graph}
        self._pools: dict[str, Array] = {}
        self.state_slots = count_slots(self.graph, state_slots)
        self._states: dict[int, dict[str, Array]] = {}  # by state slot: what each node keeps for the sequence
        self._lengths: dict[int, int] = {}  # by state slot: after how many tokens its state is
        self._earlier: dict[int, dict[int, dict[str, Array]]] = {}  # by slot and length: states before drafted tokens

    def beside(self, graph: Graph, n_pages: int, model: Model | None = None) -> PagedEngine:
        if model is not None:
            return ReferenceEngine(model, self.dtype, n_pages, graph=graph)
        return ReferenceEngine(self.model, n_pages=n_pages, graph=graph, weights=self.weights)

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Emit | None = None) -> list[Output]:
        """One step. With `emit`, each kept node is passed on as soon as it is computed."""
        check_batch(self, batch, keep)
        check_state_lengths(self, batch, self._lengths)
        with np.errstate(all="ignore"):  # as in `evaluate`
            done = [self._pieces(i, chunk, set(keep), emit) for i, chunk in enumerate(batch)]
        self._earlier.clear()
        for chunk, (_, states) in zip(batch, done, strict=True):
            # Only now: a step that raises is run again, and must find the state as it was.
            slot, self._lengths[chunk.state_slot] = chunk.state_slot, chunk.end
            self._states[slot] = states.pop(chunk.end)
            self._earlier[slot] = states
        return [output for output, _ in done]

    def _pieces(
        self, i: int, chunk: Chunk, keep: set[str], emit: Emit | None
    ) -> tuple[Output, dict[int, dict[str, Array]]]:
        """The result of a chunk, and the states that it leaves, by length. Drafted tokens are computed one by one."""
        state, states = self._states.get(chunk.state_slot, {}), dict[int, dict[str, Array]]()
        if not chunk.drafted:
            output, cache = self._chunk(i, chunk, keep, emit, dict(state))
            cache.finish()
            return output, {chunk.end: cache.state}
        cuts = [0, *range(chunk.n_tokens - chunk.drafted, chunk.n_tokens + 1)]
        outputs = []
        for a, b in pairwise(cuts):
            rows = {name: value[a:b] for name, value in chunk.rows.items()}
            positions = None if chunk.positions is None else chunk.positions[a:b]
            wanted = chunk.outputs if b == chunk.n_tokens or chunk.outputs == "all" else "none"
            piece = replace(chunk, tokens=chunk.tokens[a:b], start=chunk.start + a, rows=rows, positions=positions)
            given = chunk.pictures.part(a, b) if chunk.pictures else None
            piece = replace(piece, outputs=wanted, drafted=0, pictures=given, prompt=0)
            output, cache = self._chunk(i, piece, keep, None, dict(state))
            cache.finish()
            state = states[piece.end] = cache.state
            outputs.append(output)
        joined = Output(
            np.concatenate([output.logits for output in outputs]),
            {name: self._joined(name, [output.nodes[name] for output in outputs]) for name in outputs[0].nodes},
        )
        return hand_over([joined], (lambda _, name, value: emit(i, name, value)) if emit else None)[0], states

    def _joined(self, name: str, values: list[Array]) -> Array:
        """A kept node of the pieces of a chunk, as of the whole chunk."""
        shape = self.graph.shapes[name]
        if self.graph[name].has(Trait.SHOWS_STATE):
            return values[0 if self.graph[name].op == "state_before" else -1]
        if "S" in shape or "T" not in shape:
            raise AssayError(f"node {name}: cannot be kept where a chunk has drafted tokens; keep it without a draft")
        return np.concatenate(values, axis=shape.index("T"))

    def _chunk(
        self, i: int, chunk: Chunk, keep: set[str], emit: Emit | None, state: dict[str, Array]
    ) -> tuple[Output, _PagedCache]:
        active = tuple(number for number, _ in chunk.adapters)
        form = picture_form(self, [chunk])
        variant = active, form, bool(chunk.second)
        if variant not in self._graphs:
            graph = adapted(self.graph, self.adapters, active) if active else self.graph
            graph = typed(graph) if chunk.second else graph
            self._graphs[variant] = pictured(graph, form) if form else graph
        chunk = with_scales(chunk, active) if active else chunk
        chunk = with_types(chunk, self.dtype) if chunk.second else chunk
        chunk = with_pictures(chunk, form, self.model.hparams.n_embd, self.dtype) if form else chunk
        at = np.arange(chunk.end)
        slots = chunk.pages.astype(np.int64)[at // PAGE] * PAGE + at % PAGE
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
        interpret(self._graphs[variant], self.weights, env, targets, cache=cache, hooks=self.hooks, emit=take)
        return Output(logits, nodes), cache

    def copy_page(self, source: int, to: int) -> None:
        span = np.arange(PAGE)
        for name, pool in self._pools.items():
            found = pool[source * PAGE : (source + 1) * PAGE]
            _PagedCache(self._pools, to * PAGE + span[: len(found)], 0, self.n_pages * PAGE).append(name, found)

    def copy_state(self, source: int, to: int, length: int | None = None) -> None:
        self._states[to] = dict(self._state_at(source, length))
        self._lengths[to] = self._lengths.get(source, 0) if length is None else length

    def cut_state(self, slot: int, length: int) -> None:
        self._states[slot] = self._state_at(slot, length)
        self._lengths[slot] = length

    @property
    def cache_bytes(self) -> CacheBytes | None:
        return _ReferenceBytes(self)

    def _state_at(self, slot: int, length: int | None) -> dict[str, Array]:
        if length in (None, self._lengths.get(slot, 0)):
            return self._states.get(slot, {})
        kept = self._earlier.get(slot, {})
        if length not in kept:
            raise AssayError(f"state slot {slot}: no state after {length} tokens is kept (found {list(kept)})")
        return kept[length]

    def close(self) -> None:
        for kept in (self._pools, self._states, self._lengths, self._earlier):
            kept.clear()
