"""The contract of an engine: what it must do, and which capabilities it may offer.

An engine is bound to one model file. It computes the model's graph, or another graph over the same weights, for a
batch of sequences over a paged cache. The runtime decides *which* page belongs to which sequence; the engine owns the
memory behind the pages. Position p of a sequence is in slot `pages[p // PAGE] * PAGE + p % PAGE` of every layer's
cache. Two sequences that share a prefix therefore name the same pages.

Every engine must
    run a batch      `forward` computes one step: the next tokens of several sequences, each a `Chunk`
    keep nodes       `forward(keep=…)` returns the values of graph nodes by name, and computes the same bits as without
    refuse           `forward` calls `check_batch` first, so that a bad chunk raises AssayError and changes nothing
    close            `close` frees weights and cache; it may be called twice, and is the last use of an engine
    state its bits   `arithmetic`: two engines with equal `Arithmetic` produce equal bits

An engine may offer capabilities. Each is an attribute. In an engine without the capability it has no value: None, or an
empty collection. Callers test the attribute, never the engine's name.
    top_values       returns the k largest logits of a row instead of the row (`TopValues`)
    decode_runner    continues decoding by itself, several steps per call (`DecodeRunner`)
    copy_page        copies a page, so that sequences can share the first part of a page (`CopyPage`)
    windows          keeps separate, smaller page pools for layers with a sliding window (`separate_windows`)
    spare_states     keeps the state after each drafted token, so that `cut_state` can take drafted tokens back
    cache_bytes      reads and writes pages and states as bytes, so that they outlive the engine (`CacheBytes`)
    adapters         applies LoRA adapters, others for each chunk; its constructor takes `adapters`
    token_types      takes chunks of two texts, for models that tell them apart (`Chunk.second`)
    pictures         takes chunks in which some rows are given instead of looked up by token (`PictureRows`)
    beside           makes an engine for another graph over the same weights, such as a draft head
    warm_up          makes the machine code that any request can need, so that none waits for a compiler
    cannot_keep      roles of nodes that `keep` cannot return
    precisions       precision modes, each with the cache type that it uses unless another is asked for
    answering        the precision in which requests are answered, where it is not the default of `precisions`

`assay.engines.contract_tests` has a test for each rule. Subclass `PagedEngine`, set the five required attributes,
write `forward` and `close`, and run those tests; `tests/engines/test_contract.py` does so with an engine of 40 lines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.graph import Graph
from assay.models import Model
from assay.models.adapters import Adapter, scale_name
from assay.models.pictures import AXES, PictureForm
from assay.models.token_types import TYPES, has_second_type

try:  # positions per page, the same in every engine: the native code lays its memory out by it
    from assay._native import PAGE as PAGE
except ImportError:  # the native module is not built: only the reference engine runs, and it works with any page size
    PAGE = 32

MAX_TOP_VALUES = 64  # the largest k that a caller asks `top_values` for
Array = NDArray[Any]
Emit = Callable[[int, str, Array], None]  # index of the chunk in the batch, node name, value


def pages_for(positions: int) -> int:
    """The number of pages that hold this many positions."""
    return -(-positions // PAGE)


@dataclass(frozen=True)
class PictureRows:
    """Inputs of a chunk with pictures, beside its token ids.

    `rows` [len(at), (1 + parts) * n_embd] are given at the places `at` of the chunk, in ascending order; the token ids
    there are 0. Part 0 takes the place of the token's embedding, part i + 1 is added to the output of layer i.
    `last` has the last slot that each token sees, if some see later ones: rows of a picture that see each other both
    ways. The chunk holds all of these rows.
    `positions` [n_tokens, 3] are the positions t, y, x of a model with M-RoPE; the mask goes by slots. Every chunk
    after a picture has them, because later positions differ from the slots, too.
    """

    at: NDArray[np.int32]
    rows: NDArray[np.float32]
    last: NDArray[np.int32] | None = None
    positions: NDArray[np.int32] | None = None

    def part(self, begin: int, end: int) -> PictureRows:
        """The same for tokens [begin, end) of the chunk."""
        inside = (self.at >= begin) & (self.at < end)
        last, positions = (None if x is None else x[begin:end] for x in (self.last, self.positions))
        return PictureRows(self.at[inside] - np.int32(begin), self.rows[inside], last, positions)


@dataclass(frozen=True)
class Chunk:
    """The tokens of one sequence in one step. They are written to cache slots start, start + 1, …

    `pages` is the sequence's page table and covers at least start + n_tokens slots.
    `windows` has a page table for each sliding window whose pages the engine keeps apart. Such a table is as long as
    `pages`; -1 marks an evicted page, which none of the chunk's tokens can see. A chunk brings all of these tables or
    none. Without them the engine uses `pages` for every layer.
    `state_slot` is where the engine keeps state of a fixed size (`Graph.state.per_sequence`). A chunk with start 0
    begins a sequence, so the engine zeroes that state first. Two chunks of a batch never name the same state slot.
    `drafted` of its last tokens are guesses. Where the graph keeps state of a fixed size, the engine keeps the state
    after each token from the last certain one on, until its next step: `cut_state` takes guesses back.
    `prompt` of its first tokens are prompt, without the last token of the prompt. In precision `mixed` the engine
    computes these in another arithmetic than all other tokens (`Arithmetic.mixed`). They do not end inside a picture
    whose rows see each other.
    `outputs` selects the output rows to return: the last one, all, or none.
    `positions` are the RoPE positions if they differ from the slots, as in a probe that shifts them. A cached key keeps
    the position that it was written with.
    `adapters` has the number and the scale of each adapter that is applied to the chunk's tokens, in ascending order;
    the prefix in `pages` was computed with the same.
    `rows` holds the values that the graph is `given` instead of computing them, one row per token. If the graph reads
    no token ids, `tokens` may then be empty.
    `pictures` are given where the sequence holds pictures.
    `digest` asks for the hash of the output row with its largest logits (`TopValues.digests`, `DecodeRunner`).
    `second` is the first token of the second text of a pair, whose token type is 1 (BERT); 0: there is one text.
    """

    tokens: NDArray[np.int32]
    start: int
    pages: NDArray[np.int32]
    outputs: str = "last"  # "last" | "all" | "none"
    positions: NDArray[np.int32] | None = None
    rows: Mapping[str, Array] = field(default_factory=dict)  # in the engine's float type
    windows: Mapping[int, NDArray[np.int32]] = field(default_factory=dict)
    state_slot: int = 0
    drafted: int = 0
    adapters: tuple[tuple[int, float], ...] = ()
    pictures: PictureRows | None = None
    prompt: int = 0
    second: int = 0
    digest: bool = False

    @cached_property
    def n_tokens(self) -> int:
        return len(next(iter(self.rows.values()))) if self.rows else len(self.tokens)

    @cached_property
    def end(self) -> int:
        """The slot after the last token, which is also the number of keys that the last token sees."""
        return self.start + self.n_tokens

    @cached_property
    def n_outputs(self) -> int:
        """The number of output rows to return; they belong to the last tokens of the chunk."""
        return self.n_tokens if self.outputs == "all" else int(self.outputs == "last")

    @property
    def ascending(self) -> bool:
        """True if positions rise from token to token. Then no token sees a later one, and the chunk can be cut."""
        return self.positions is None or bool(np.all(np.diff(self.positions.astype(np.int64)) > 0))

    def cut(self, begin: int, end: int) -> int:
        """Where a piece from `begin` on ends that should end at `end`: before a picture whose rows see each other, or
        behind it if the piece begins with it."""
        if self.pictures is None or self.pictures.last is None or end >= self.n_tokens:
            return end
        farthest = np.maximum.accumulate(self.pictures.last) - self.start  # the last place that the tokens so far see
        places = 1 + np.flatnonzero(farthest <= np.arange(self.n_tokens))  # cuts that separate nothing
        before = places[(places > begin) & (places <= end)]
        return int(before[-1] if before.size else places[places > end][0])

    def all_positions(self) -> NDArray[np.int32]:
        """The RoPE position of each token."""
        return np.arange(self.start, self.end, dtype=np.int32) if self.positions is None else self.positions


class TopK(NamedTuple):
    """The largest logits of a row in descending order; equal logits are ordered by id. A NaN comes first. `digest` is
    the row's hash for a receipt (`Chunk.digest`)."""

    ids: NDArray[np.int64]
    logits: Array
    digest: bytes | None = None


@dataclass(frozen=True)
class Output:
    """The result of a step for one chunk.

    `logits` are the requested rows of the graph's output node (for a whole model: logits). `nodes` are the kept nodes
    by name. `top` is set only by `TopValues.forward`; `logits` then has no rows.
    """

    logits: Array
    nodes: dict[str, Array] = field(default_factory=dict)
    top: TopK | None = None


@dataclass(frozen=True)
class Arithmetic:
    """Identifies the bits that an engine produces. File, tokens and positions being equal, two engines with equal
    `Arithmetic` produce equal bits."""

    name: str  # the definition of sums and rounding: "native" is docs/reference/arithmetic.md, "cuda" is tensor cores
    precision: str
    kv_type: str
    version: int = 1  # of the definition; it rises when any bit changes

    @property
    def steady(self) -> bool:
        """True if a sequence has the same bits however it is cut into steps, and whatever else is in the batch.

        Speculation depends on it: a verified token must be the token that plain decoding would have produced.
        """
        return self.name in ("native", "cuda")

    @property
    def mixed(self) -> bool:
        """True if the prompt without its last token has another arithmetic than all tokens behind (`Chunk.prompt`)."""
        return self.precision == "mixed"


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that an engine holds: its copies of weights, buffers of its programs, one page of its cache, all separate
    pages of layers with a sliding window, and all state slots."""

    weights: int = 0
    buffers: int = 0
    page: int = 0
    windows: int = 0
    states: int = 0


class NoRoom(AssayError):
    """Weights and cache do not fit the memory of the device."""


class CacheLost(AssayError):
    """The contents of all pages are lost, but the engine still works. The caller must recompute its sequences."""


# --- capabilities


class TopValues(Protocol):
    """Capability: transfer the largest logits of each row from the device, not the whole row."""

    digests: bool  # whether the device can hash a row for a receipt, as `runtime.receipts.row_digest` does

    def forward(self, batch: Sequence[Chunk], k: int) -> list[Output]:
        """As `Engine.forward`. Outputs have at least the k largest logits of the last row in `top`, and no rows.

        k is 1 to MAX_TOP_VALUES. The engine may return whole rows instead for a batch that it has no kernel for.
        """
        ...


class DecodeRun(Protocol):
    """Several decode steps of one batch, of which some are still queued on the device."""

    @property
    def results(self) -> Sequence[Sequence[TopK]]:
        """For each chunk, the largest logit of every step. Reading an item waits for it."""
        ...

    def stop(self) -> None:
        """Launch no further steps. `results` then end with the steps that were launched already."""
        ...


class DecodeRunner(Protocol):
    """Capability: continue greedy decoding on the device. Each step feeds its most probable token to the next."""

    max_sequences: int  # the largest batch that a run can have
    on_launch: Callable[[], None] | None  # called after every launch, before the engine waits for its result

    def start(self, batch: Sequence[Chunk], max_tokens: Sequence[int], queue_depth: int) -> DecodeRun:
        """Decode a batch of one-token chunks, and then up to `max_tokens[i]` further tokens of chunk i.

        A chunk's pages must cover these tokens, too. The first result is ready when `start` returns. `queue_depth`
        steps are launched before the result of their predecessor is read. The next call of the engine ends the run.
        """
        ...


# Capability: `copy_page(source, to)` makes page `to` hold the same values as page `source`. An engine with `windows`
# takes a window's size as the third argument, and then copies between that window's pages.
CopyPage = Callable[..., None]


class CacheBytes(Protocol):
    """Capability: the content of a page or of a state slot as bytes, to be written back later or by another process.

    Bytes may be written to an engine with the same file, graph, `Arithmetic` and `layout` only. It then computes the
    same bits as if it had computed the page itself. The engine checks the number of bytes, not their meaning.
    """

    layout: str  # identifies the order of the bytes

    def read_page(self, page: int, window: int = 0) -> Array:
        """The bytes of a page, or with `window` of a slot of that window."""
        ...

    def write_page(self, page: int, content: Array, window: int = 0) -> None: ...

    def read_state(self, slot: int) -> Array:
        """The bytes of a state slot."""
        ...

    def write_state(self, slot: int, content: Array, length: int) -> None:
        """Write a state slot: the state after `length` tokens."""
        ...


class Beside(Protocol):
    """Capability: make an engine of the same kind and precision, on the same device, for another graph.

    It has a cache of its own. A graph of this model shares the weights with this engine. With `model`, the graph is one
    of another file, whose weights are loaded. Close it before this engine.
    """

    def __call__(self, graph: Graph, n_pages: int, model: Model | None = None) -> PagedEngine: ...


WarmUp = Callable[[], None]


# --- the engine


class Engine(Protocol):
    """An engine that computes one sequence at least. The first five attributes are required."""

    name: str
    model: Model
    graph: Graph
    n_pages: int  # pages of its cache
    state_slots: int = 0  # slots for state of a fixed size, if the graph keeps any
    arithmetic: Arithmetic
    dtype: np.dtype[Any] = np.dtype(np.float32)  # of all values that it returns
    isa: str = ""  # the instruction set or device it computes with, for reports
    threads: int = 0  # its own threads; 0 if it has none

    # Capabilities
    cannot_keep: tuple[str, ...] = ()  # roles of nodes that `keep` cannot return
    windows: Mapping[int, int] = MappingProxyType({})  # window size -> its number of pages, if they are separate
    separate_windows: bool = False  # its constructor takes `window_pages`: window size -> pages to allocate
    precisions: Mapping[str, str] = MappingProxyType({})  # precision mode -> its cache type; the default mode is first
    answering: str = ""  # the mode in which requests are answered if none is asked for; empty: the default mode
    top_values: TopValues | None = None
    decode_runner: DecodeRunner | None = None
    exact_drafts: bool = False  # drafted tokens get the bits of plain decoding, though its arithmetic is not steady
    spare_states: int = 0  # a batch takes one for each chunk and one for each drafted token; 0: it takes nothing back
    beside: Beside | None = None
    warm_up: WarmUp | None = None  # a server calls it before it serves
    adapters: Sequence[Adapter] = ()  # its constructor takes them; a chunk names them by number (`models/adapters.py`)
    token_types: bool = False  # takes chunks with a `second` text, where the model has token types
    pictures: Collection[str] = ()  # of `PictureRows`, what it takes: some of `models.pictures.EVERYTHING`

    @property
    def memory(self) -> MemoryUse:
        return MemoryUse()

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Emit | None = None) -> list[Output]:
        """Run one step of at least one chunk. Outputs are in the order of the batch; logits are float32 or wider.

        `keep` names nodes to return; a kept node has a row for every token of its chunk. With `emit`, the engine passes
        each kept node to the callback in the order of the graph instead of collecting them. A long trace then needs the
        memory of a few nodes only.
        """
        ...

    def close(self) -> None:
        """Free weights and cache. A second call does nothing."""
        ...

    def copy_state(self, source: int, to: int, length: int | None = None) -> None:
        """Make state slot `to` hold what `source` holds. Called only where the graph keeps state of a fixed size.

        With `length`, the state after that many tokens of the sequence: the last one, or one that `drafted` has kept.
        """
        raise AssayError(f"engine {self.name}: it has no state slots (found {source} and {to})")

    def cut_state(self, slot: int, length: int) -> None:
        """Take drafted tokens back from a state slot: its sequence has `length` tokens now. Needs `spare_states`."""
        raise AssayError(f"engine {self.name}: it cannot take tokens back (found state slot {slot}, length {length})")


class PagedEngine(Engine, Protocol):
    """An engine with a real page cache, so that it can compute many sequences. Schedulers need one.

    An `Engine` that is not paged computes one sequence from start to end and ignores page numbers.
    """

    copy_page: CopyPage | None = None

    @property
    def cache_bytes(self) -> CacheBytes | None:
        return None


# --- helpers that engines call


def with_scales(chunk: Chunk, active: Sequence[int]) -> Chunk:
    """The chunk with rows that tell an adapted graph the scale of each of its adapters: 0 for those it does not use."""
    chosen = dict(chunk.adapters)
    n = chunk.n_tokens
    scales = {scale_name(i): np.full((n, 1), chosen.get(i, 0.0), np.float32) for i in active}
    return replace(chunk, rows={**chunk.rows, **scales})


def with_types(chunk: Chunk, dtype: np.dtype[Any]) -> Chunk:
    """The chunk with rows that tell a graph with token types the type of each token."""
    types = np.arange(chunk.n_tokens) >= (chunk.second or chunk.n_tokens)
    return replace(chunk, rows={**chunk.rows, TYPES: types.astype(dtype)[:, None]})


def hand_over(outputs: list[Output], emit: Emit | None) -> list[Output]:
    """Pass the kept nodes of all outputs to `emit`, and return the outputs without them; unchanged without `emit`."""
    if emit is None:
        return outputs
    for i, output in enumerate(outputs):
        for name, value in output.nodes.items():
            emit(i, name, value)
    return [Output(output.logits) for output in outputs]


def check_batch(
    engine: Engine, batch: Sequence[Chunk], keep: Collection[str] = (), max_tokens: Sequence[int] = ()
) -> None:
    """Refuse a batch that would read or write outside the cache or the vocabulary.

    Every engine calls this first in `forward`. `max_tokens` are the further tokens of a decode run.
    """
    windows, whole, n_positions = engine.windows, engine.graph.whole, engine.graph.max_positions
    for i, chunk in enumerate(batch):
        where = f"chunk {i} of the batch"
        _check_rows(engine, chunk, where)
        last = chunk.end + (max_tokens[i] if max_tokens else 0)
        if chunk.start < 0 or len(chunk.pages) * PAGE < last:
            raise AssayError(
                f"{where}: its page table is too short (found {len(chunk.pages)} pages of {PAGE} positions, "
                f"expected room for positions up to {last})"
            )
        for window, n in windows.items():
            table = chunk.windows.get(window, chunk.pages)
            if len(table) != len(chunk.pages) or int(table.max()) >= n:
                raise AssayError(
                    f"{where}: page outside the cache of the layers with a window of {window} (expected 0 to {n - 1})"
                )
        if chunk.positions is not None and chunk.positions.shape != (chunk.n_tokens,):
            raise AssayError(
                f"{where}: positions and tokens differ in number "
                f"(found {len(chunk.positions)} positions, expected {chunk.n_tokens})"
            )
        if whole and chunk.start:
            raise AssayError(
                f"{where}: attention is not causal or the output is pooled, so a text must be computed in one chunk "
                f"(found a start of {chunk.start}, expected 0)"
            )
        if n_positions is not None:
            positions = chunk.all_positions()
            if not 0 <= int(positions.min()) <= int(positions.max()) < n_positions:
                raise AssayError(
                    f"{where}: position outside the table of learned positions "
                    f"(found {int(positions.min())} to {int(positions.max())}, expected 0 to {n_positions - 1})"
                )
        if chunk.drafted and not 0 <= chunk.drafted < chunk.n_tokens:
            raise AssayError(
                f"{where}: a chunk begins with a certain token (found {chunk.drafted} drafted of {chunk.n_tokens})"
            )
        if not 0 <= chunk.prompt <= chunk.n_tokens:
            raise AssayError(f"{where}: more prompt than tokens (found {chunk.prompt}, expected 0 to {chunk.n_tokens})")
        if chunk.adapters and not all(0 <= n < len(engine.adapters) and s and s - s == 0 for n, s in chunk.adapters):
            raise AssayError(
                f"{where}: no such adapter, or a scale that is 0 or not finite (found {chunk.adapters}, "
                f"expected numbers below {len(engine.adapters)})"
            )
        if chunk.second and not (
            engine.token_types and has_second_type(engine.graph) and 0 < chunk.second < chunk.n_tokens
        ):
            raise AssayError(
                f"{where}: no token type for a second text from token {chunk.second} on (found {chunk.n_tokens} tokens "
                f"on engine {engine.name}); use a model with two token types on --engine cpu, cuda or reference"
            )
        if chunk.pictures:
            _check_pictures(engine, chunk, chunk.pictures, where)
        if chunk.outputs not in ("last", "all", "none"):
            raise AssayError(f"{where}: outputs must be last, all or none (found {chunk.outputs!r})")
    _check_state_slots(engine, batch)
    n_vocab = engine.model.hparams.n_vocab
    for i, bad in _out_of_range([chunk.pages for chunk in batch], engine.n_pages):
        raise AssayError(
            f"chunk {i} of the batch: page outside the cache (found {bad}, expected 0 to {engine.n_pages - 1})"
        )
    for i, bad in _out_of_range([chunk.tokens for chunk in batch], n_vocab):
        raise AssayError(
            f"chunk {i} of the batch: token id outside the vocabulary (found {bad}, expected 0 to {n_vocab - 1})"
        )
    for name in keep:
        if name not in engine.graph:
            raise AssayError(f"node {name}: not in the graph of this model; `assay inspect --graph` lists them")


def _check_pictures(engine: Engine, chunk: Chunk, given: PictureRows, where: str) -> None:
    """The rows of pictures fit the chunk and the model."""
    form = PictureForm(engine.model.hparams.n_deepstack, given.last is not None, engine.model.hparams.axes)
    if not form.needs <= set(engine.pictures) or engine.graph.whole or engine.graph.given:
        raise AssayError(
            f"{where}: this engine takes no pictures for this model (found {engine.name}); use --engine cpu"
        )
    hparams, n = engine.model.hparams, chunk.n_tokens
    wanted = (len(given.at), (1 + hparams.n_deepstack) * hparams.n_embd)
    if given.rows.shape != wanted:
        raise AssayError(
            f"{where}: rows of a picture do not fit (found {list(given.rows.shape)}, expected {list(wanted)}); use "
            "the mmproj file that was made for it"
        )
    if given.at.size and not (given.at[0] >= 0 and given.at[-1] < n and np.all(np.diff(given.at) > 0)):
        raise AssayError(f"{where}: places of given rows must rise and lie in the chunk of {n} tokens")
    if (given.positions is not None) != bool(hparams.axes) or (
        given.positions is not None and given.positions.shape != (n, AXES)
    ):
        raise AssayError(f"{where}: a model with M-RoPE, and no other, takes {AXES} positions for each token")
    own, first = np.arange(chunk.start, chunk.end), chunk.prompt
    if engine.arithmetic.mixed and given.last is not None and np.any(given.last[:first] >= chunk.start + first):
        raise AssayError(
            f"{where}: the prompt ends inside a picture whose rows see each other, and precision mixed would compute "
            f"them in two arithmetics (found {first} tokens of prompt); end it before the picture or behind it"
        )
    if given.last is not None and not (
        given.last.shape == (n,) and np.all(given.last >= own) and np.all(given.last < chunk.end)
    ):
        raise AssayError(f"{where}: a token sees itself at least, and no slot beyond its chunk")


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


def check_state_lengths(engine: Engine, batch: Sequence[Chunk], lengths: Mapping[int, int]) -> None:
    """Refuse a chunk that does not go on where its state slot stands. `lengths` has the tokens in each slot's state.

    State of a fixed size cannot be cut or shifted: taking tokens back, or dropping the first ones of a context that is
    full, would need the state as it was without them.
    """
    for i, chunk in enumerate(batch if engine.graph.state.per_sequence else ()):
        found = lengths.get(chunk.state_slot, 0)
        if chunk.start not in (0, found):
            raise AssayError(
                f"chunk {i} of the batch: its state cannot be cut or shifted (found a start of {chunk.start}, expected "
                f"{found}, the tokens in state slot {chunk.state_slot}); compute the sequence again from its start"
            )


def _out_of_range(arrays: Sequence[NDArray[np.int32]], limit: int) -> Iterator[tuple[int, int]]:
    """The first number of each array that is not in 0 … limit - 1, with the array's index.

    All arrays are checked together first: a batch has many of them, and each NumPy reduction costs microseconds.
    """
    if not arrays:
        return
    joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    seen = joined.tolist() if joined.size < 64 else [joined.min(), joined.max()]  # a short list is faster in Python
    if seen and not 0 <= min(seen) <= max(seen) < limit:
        for i, array in enumerate(arrays):
            for bad in array[(array < 0) | (array >= limit)][:1]:
                yield i, int(bad)


def _check_rows(engine: Engine, chunk: Chunk, where: str) -> None:
    """The chunk has a row of token ids, and for each value that the graph is given a row per token."""
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
