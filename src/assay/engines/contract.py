"""What every engine offers: run a graph on a batch of sequences over a paged cache, keep any node.

The runtime owns *which* page belongs to whom; the engine owns the memory behind the pages. Position p of a
sequence lives in slot `pages[p // PAGE] * PAGE + p % PAGE` of every layer's K and V pool, so two sequences
that share a prefix simply name the same pages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.graph import Graph
from assay.models import Model

try:  # positions per page, the same in every engine: the native code lays its memory out by it
    from assay._native import PAGE as PAGE
except ImportError:  # not built: the reference alone, to which any size is the same
    PAGE = 32

BEST = 64  # values of a row that an engine may be asked for in the place of the row
Array = NDArray[Any]
Emit = Callable[[int, str, Array], None]  # place in the batch, node, value


def pages_for(positions: int) -> int:
    """How many pages hold that many positions."""
    return -(-positions // PAGE)


@dataclass(frozen=True)
class Chunk:
    """One sequence's part of a step: `tokens` go to cache slots start, start+1, …

    `pages` is the page table: it must cover start + n_tokens + follow slots. `windows` has a page table for each
    sliding window whose layers have pages of their own. Each is as long as `pages`, and -1 marks an evicted page. A
    chunk brings all of them or none; without them `pages` serves these layers too. `state_slot` is where the engine
    keeps state of a fixed size (`Graph.state.per_sequence`). A chunk with start 0 begins a sequence, so the engine
    zeroes that state first. Two chunks of a batch never name the same state slot. `outputs` says which rows of the
    output are wanted.
    `positions` are the RoPE positions when they differ from the slots (probes shift them); keys keep the
    positions they were written with. `rows` has a row a token for each value that the graph is `given`; where it is
    given any, the tokens themselves may be left out.
    """

    tokens: NDArray[np.int32]
    start: int
    pages: NDArray[np.int32]
    outputs: str = "last"  # "last" | "all" | "none"
    positions: NDArray[np.int32] | None = None
    rows: Mapping[str, Array] = field(default_factory=dict)  # in the engine's float type
    windows: Mapping[int, NDArray[np.int32]] = field(default_factory=dict)
    state_slot: int = 0
    best: int = 0  # of the last row only so many largest values are wanted; an engine may give the row all the same
    follow: int = 0  # with best 1: so many tokens more, each the best of the row before; an engine may stop earlier
    ahead: int = 1  # so many of them are begun before anybody has seen the one before

    @cached_property
    def n_tokens(self) -> int:
        return len(next(iter(self.rows.values()))) if self.rows else len(self.tokens)

    @cached_property
    def end(self) -> int:
        """The slot after its last token: how many keys that one sees."""
        return self.start + self.n_tokens

    @cached_property
    def n_outputs(self) -> int:
        """How many rows of the output are wanted; always the last ones."""
        return self.n_tokens if self.outputs == "all" else int(self.outputs == "last")

    @property
    def ascending(self) -> bool:
        """No token sees a later one by its position: the chunk may be run in pieces."""
        return self.positions is None or bool(np.all(np.diff(self.positions.astype(np.int64)) > 0))

    def all_positions(self) -> NDArray[np.int32]:
        """The RoPE position of each token."""
        return np.arange(self.start, self.end, dtype=np.int32) if self.positions is None else self.positions


class Best(NamedTuple):
    """The largest values of a row, falling, equal ones by lower id. One that is NaN comes first."""

    ids: NDArray[np.int64]
    logits: Array


@dataclass(frozen=True)
class Output:
    """What a step gives for one chunk: rows of the graph's output (a whole model's logits) and kept nodes by name; or
    no rows, and the best values of the last, and `more` of the tokens that followed it: they may still be on their way,
    and are waited for by whoever looks at them."""

    logits: Array
    nodes: dict[str, Array] = field(default_factory=dict)
    best: Best | None = None
    more: Sequence[Best] = ()


@dataclass(frozen=True)
class Arithmetic:
    """What the bits of the results depend on beside file, tokens and positions: two engines that say the same of
    themselves give the same bits."""

    name: str  # whose sums and roundings: "native" is the compiled engine's, on any machine; "cuda" are tensor cores'
    precision: str
    kv_type: str
    version: int = 1  # of the definition; a change of any bit is another version

    @property
    def steady(self) -> bool:
        """Whether a sequence has the same bits however it is cut into steps and whoever shares them."""
        return self.name in ("native", "cuda")


@dataclass(frozen=True)
class Memory:
    """Bytes that an engine holds: weights of its own, buffers of its programs, a page of its cache, and all pages of
    layers with a window, where they are apart."""

    weights: int = 0
    buffers: int = 0
    page: int = 0
    windows: int = 0


class CacheLost(AssayError):
    """The pages hold nothing any more, but the engine can go on: what was in them must be computed again."""


class Engine(Protocol):
    """An engine is bound to one model and runs its graph or another one over the same file."""

    name: str
    model: Model
    graph: Graph
    n_pages: int  # the size of its cache
    windows: Mapping[int, int] = MappingProxyType({})  # windows whose layers have pages of their own, and how many
    state_slots: int = 0  # states of a fixed size that it has room for, where the graph keeps any
    arithmetic: Arithmetic
    dtype: np.dtype[Any] = np.dtype(np.float32)  # of the values it hands out
    isa: str = ""  # the instruction set or device that computes, where it knows
    threads: int = 0  # 0: none of its own
    unseen: tuple[str, ...] = ()  # roles whose nodes it cannot keep
    follows: bool = False  # whether it goes on by itself where a chunk asks it to
    meanwhile: Callable[[], None] | None = None  # called by one that follows, while a step is under way

    @property
    def memory(self) -> Memory:
        return Memory()

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Emit | None = None) -> list[Output]:
        """Run one step; results in the order of the batch. Logits are float32 or wider.

        With `emit`, kept nodes are handed over in the order of the graph, a few at a time, instead of collected: so a
        trace of any length needs the memory of a few nodes.
        """
        ...

    def halt(self) -> None:
        """Begin no more of the tokens that follow: `more` ends with those that are on their way."""
        return

    def close(self) -> None: ...


class PagedEngine(Engine, Protocol):
    """An engine whose pages are real ones, for many sequences; a witness follows one and has none."""

    def copy_page(self, source: int, to: int) -> None:
        """Make page `to` hold what page `source` holds. One with `windows` takes a window as a third argument, and then
        copies of these layers' pages."""
        ...

    def copy_state(self, source: int, to: int) -> None:
        """Make state slot `to` hold what `source` holds. Called only where the graph keeps state of a fixed size."""
        raise AssayError(f"engine {self.name}: it has no state slots (found {source} and {to})")


def hand_over(outputs: list[Output], emit: Emit | None) -> list[Output]:
    """The outputs, or with `emit` what is left of them once their nodes are handed over."""
    if emit is None:
        return outputs
    for i, output in enumerate(outputs):
        for name, value in output.nodes.items():
            emit(i, name, value)
    return [Output(output.logits) for output in outputs]


def check_batch(engine: Engine, batch: Sequence[Chunk], keep: Collection[str] = ()) -> None:
    """Every engine's first line: refuse what would read or write outside the cache or the vocabulary."""
    windows, whole, most = engine.windows, engine.graph.whole, engine.graph.max_positions
    for i, chunk in enumerate(batch):
        where = f"chunk {i} of the batch"
        _check_rows(engine, chunk, where)
        last = chunk.end + chunk.follow
        if chunk.start < 0 or len(chunk.pages) * PAGE < last:
            raise AssayError(f"{where}: {len(chunk.pages)} pages of {PAGE} do not hold positions up to {last}")
        for window, n in windows.items():
            table = chunk.windows.get(window, chunk.pages)
            if len(table) != len(chunk.pages) or int(table.max()) >= n:
                raise AssayError(
                    f"{where}: page outside the cache of the layers with a window of {window} (expected 0 to {n - 1})"
                )
        if chunk.positions is not None and chunk.positions.shape != (chunk.n_tokens,):
            raise AssayError(f"{where}: positions and tokens differ in number")
        if whole and chunk.start:
            raise AssayError(
                f"{where}: attention is not causal (or the output is pooled), so the text is run whole "
                f"(found a start of {chunk.start})"
            )
        if most is not None and not 0 <= int(chunk.all_positions().min()) <= int(chunk.all_positions().max()) < most:
            raise AssayError(f"{where}: position outside the table of learned ones (expected 0 to {most - 1})")
        if chunk.outputs not in ("last", "all", "none"):
            raise AssayError(f"{where}: outputs must be last, all or none (found {chunk.outputs!r})")
    _check_state_slots(engine, batch)
    n_vocab = engine.model.hparams.n_vocab
    for i, bad in _outside([chunk.pages for chunk in batch], engine.n_pages):
        raise AssayError(
            f"chunk {i} of the batch: page outside the cache (found {bad}, expected 0 to {engine.n_pages - 1})"
        )
    for i, bad in _outside([chunk.tokens for chunk in batch], n_vocab):
        raise AssayError(
            f"chunk {i} of the batch: token id outside the vocabulary (found {bad}, expected 0 to {n_vocab - 1})"
        )
    for name in keep:
        if name not in engine.graph:
            raise AssayError(f"node {name}: not in the graph of this model; `assay inspect --graph` lists them")


def _check_state_slots(engine: Engine, batch: Sequence[Chunk]) -> None:
    """Each chunk names a state slot of its own, where the graph keeps state of a fixed size."""
    kept = engine.graph.state.per_sequence
    if not kept:
        return
    if not engine.state_slots:
        kinds = ", ".join(dict.fromkeys(state.kind.name for state in kept))
        raise AssayError(f"engine {engine.name}: it keeps no {kinds} state; use --engine reference")
    named = [chunk.state_slot for chunk in batch]
    for i, slot in enumerate(named):
        if not 0 <= slot < engine.state_slots or slot in named[:i]:
            raise AssayError(
                f"chunk {i} of the batch: state slot outside the cache or named twice (found {slot}, "
                f"expected 0 to {engine.state_slots - 1})"
            )


def _outside(arrays: Sequence[NDArray[np.int32]], most: int) -> Iterator[tuple[int, int]]:
    """The first number of each array that is not from 0 to most - 1. All are looked at together: a batch has many."""
    if not arrays:
        return
    joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    seen = joined.tolist() if joined.size < 64 else [joined.min(), joined.max()]  # reductions cost more
    if seen and not 0 <= min(seen) <= max(seen) < most:
        for i, array in enumerate(arrays):
            for bad in array[(array < 0) | (array >= most)][:1]:
                yield i, int(bad)


def _check_rows(engine: Engine, chunk: Chunk, where: str) -> None:
    """A row of tokens, and a row of each given value for every token."""
    given, tokens = engine.graph.given, chunk.tokens
    if chunk.rows.keys() != given.keys():
        raise AssayError(
            f"{where}: rows must be given for what the graph reads "
            f"(found {', '.join(chunk.rows) or 'none'}, expected {', '.join(given) or 'none'})"
        )
    n_tokens = chunk.n_tokens
    for name, rows in chunk.rows.items():
        shape = (n_tokens, *given[name][1:])
        if rows.dtype != engine.dtype or rows.shape != shape:
            raise AssayError(
                f"{where}: rows of {name} do not fit (found {rows.dtype}{rows.shape}, expected {engine.dtype}{shape})"
            )
    if given and n_tokens and not tokens.size and "inp_tokens" not in engine.graph.users:
        return
    if tokens.ndim != 1 or not len(tokens) or tokens.dtype.kind not in "iu":
        raise AssayError(f"{where}: tokens must be a non-empty row of integers (found {tokens.dtype}{tokens.shape})")
    if len(tokens) != n_tokens:
        raise AssayError(f"{where}: tokens and rows differ in number (found {len(tokens)} and {n_tokens})")
