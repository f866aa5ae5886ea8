"""Pipeline parallelism as an engine: the graph is cut at layer borders, and a process computes each part.

Rows cross the borders in the engine's float type, unchanged, so the bits are those of one machine. A step is cut into
as many micro-batches as there are stages, so that all stages compute at the same time. Each stage maps the copy of the
file on its own host and reads only its layers.

State of a fixed size (windows of convolutions, recurrent matrices) stays with its layers: every stage has the same
number of state slots and computes the micro-batches of a sequence in order. Copies of a slot, for snapshots, pass
through the stages like work does.

When a stage dies, its part of the cache and of the states is lost. The engine starts a new stage, connects all stages
again, and raises `CacheLost`. The scheduler then recomputes the running sequences from their tokens, with the same
bits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from assay.cluster.chunk_frames import pack_chunks
from assay.cluster.frame_schema import checked
from assay.cluster.frames import Array, Channel, ConnectionBroken, Frame, connect
from assay.cluster.launchers import Handle, Launcher
from assay.engines.contract import (
    Arithmetic,
    CacheLost,
    Chunk,
    Emit,
    MemoryUse,
    Output,
    PagedEngine,
    check_batch,
    check_state_lengths,
    hand_over,
)  # fmt: skip
from assay.engines.plan.batching import Piece
from assay.engines.plan.state_layout import state_slots as count_slots
from assay.errors import AssayError
from assay.graph import Graph
from assay.models import Model
from assay.runtime.opening import Opened

RECEIVED = "stage to head"
SILENT_S = 3.0  # a stage without a frame for this long is dead
WIRE_S = 30.0  # seconds to connect the stages
LEAST = 8  # tokens of a micro-batch: smaller ones cost more steps than the overlap saves
T = TypeVar("T")
Group = list[tuple[int, Chunk]]  # one micro-batch: positions in the batch, and their chunks


def layer_bytes(model: Model) -> list[int]:
    """Bytes of weights of each layer. The first layer includes the embedding, the last one the output head."""
    layers = model.graph.layers
    return [
        sum(model.file.tensors[name].nbytes for name in {w for n in model.graph.part(i, i + 1) for w in n.weights})
        for i in layers
    ]


def cuts(model: Model, split: int | str) -> list[int]:
    """The layers at which to cut: into `split` stages of about equal size; a text is the largest size in bytes."""
    sizes, first = layer_bytes(model), model.graph.layers.start
    if isinstance(split, str):
        for n in range(1, len(sizes) + 1):
            found = _balanced(sizes, n)
            if max(sum(sizes[a:b]) for a, b in pairwise(found)) <= int(split):
                return [first + i for i in found]
        raise AssayError(f"--split: a single layer takes {max(sizes)} bytes, more than {split}")
    if not 1 <= split <= len(sizes):
        raise AssayError(f"--split: must be 1 to {len(sizes)}, the number of layers (found {split})")
    return [first + i for i in _balanced(sizes, split)]


def _balanced(sizes: Sequence[int], n: int) -> list[int]:
    """Borders of n parts that minimise the size of the largest part (dynamic programming)."""
    total = np.concatenate([[0], np.cumsum(sizes)])
    best: dict[tuple[int, int], tuple[int, list[int]]] = {(0, 0): (0, [0])}
    for parts in range(1, n + 1):
        for end in range(parts, len(sizes) + 1):
            best[parts, end] = min(
                (max(best[parts - 1, start][0], int(total[end] - total[start])), [*best[parts - 1, start][1], end])
                for start in range(parts - 1, end)
                if (parts - 1, start) in best
            )
    return best[n, len(sizes)][1]


def micro_batches(batch: Sequence[Chunk], n: int, *, cut: bool) -> list[Group]:
    """Cut a batch into about n micro-batches. The tokens of a sequence keep their order."""
    total = sum(chunk.n_tokens for chunk in batch)
    size = max(-(-total // n), LEAST if cut else 1)
    parts: list[tuple[int, Chunk]] = []
    for i, chunk in enumerate(batch):
        if not cut or chunk.n_tokens <= size or not chunk.ascending:
            parts.append((i, chunk))
            continue
        for at in range(0, chunk.n_tokens, size):
            parts.append((i, Piece(chunk, at, min(at + size, chunk.n_tokens)).alone))
    groups: list[Group] = [[]]
    filled = 0
    for i, chunk in parts:
        if groups[-1] and (filled + chunk.n_tokens > size or any(other == i for other, _ in groups[-1])):
            groups.append([])
            filled = 0
        groups[-1].append((i, chunk))
        filled += chunk.n_tokens
    return groups


@dataclass
class _Work:
    """A micro-batch that the stages are computing."""

    places: list[int]
    done: asyncio.Future[dict[str, Array]]
    kept: dict[str, Array] = field(default_factory=dict)


@dataclass
class _Stage:
    """The head's end of one stage."""

    first: int
    last: int
    graph: Graph
    handle: Handle
    channel: Channel | None = None
    hello: dict[str, Any] = field(default_factory=dict)
    heard: float = 0.0


class SplitEngine(PagedEngine):
    """The engine contract over stages. Call it from one thread; another thread runs the connections."""

    name = "split"

    def __init__(self, opened: Opened, spec: Mapping[str, Any], launcher: Launcher) -> None:
        self.model, self.graph, self.n_pages = opened.model, opened.model.graph, opened.n_pages
        self.state_slots = count_slots(self.graph, opened.options.state_slots)
        self._lengths: dict[int, int] = {}  # the tokens in the state of each slot
        self._spec = {
            **spec, "kind": "stage", "n_pages": self.n_pages, "path": str(opened.file.path.resolve()),
            "state_slots": self.state_slots,
        }  # fmt: skip
        self._token = str(spec["token"])
        self._launcher = launcher
        self._epoch = 0
        self._numbers = 0
        self._work: dict[int, _Work] = {}
        self._broken: str | None = "not connected yet"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="assay-split", daemon=True)
        self._thread.start()
        self._readers: set[asyncio.Task[None]] = set()
        try:
            spans = list(pairwise(cuts(self.model, spec["split"])))
            with ThreadPoolExecutor(len(spans)) as threads:
                self._stages = list(threads.map(lambda span: self._spawn(*span), spans))
            self._call(self._connect())
            self.state_slots = min([self.state_slots, *self._slots_of_stages()])
        except BaseException:
            self._launcher.close()
            raise
        hello = self._stages[0].hello
        found = {tuple(sorted(stage.hello["arithmetic"].items())) for stage in self._stages}
        if len(found) > 1:
            raise AssayError("--split: the stages compute differently; use one engine and one version on all hosts")
        try:
            self.arithmetic = Arithmetic(**hello["arithmetic"])
            self.dtype = np.dtype(hello["dtype"])
            self.memory  # noqa: B018 (raises if a stage describes it in another way)
        except TypeError as error:
            raise AssayError(
                f"--split: a stage describes itself in another way ({error}); install the same version of assay on "
                "every machine"
            ) from None
        self.isa = "+".join(dict.fromkeys(stage.hello["isa"] for stage in self._stages))

    @property
    def memory(self) -> MemoryUse:
        rows = [MemoryUse(**stage.hello["memory"]) for stage in self._stages]
        return MemoryUse(*(sum(getattr(row, key.name) for row in rows) for key in fields(MemoryUse)))

    @property
    def stages(self) -> list[tuple[int, int, Handle]]:
        """First layer, last layer and handle of each stage."""
        return [(stage.first, stage.last, stage.handle) for stage in self._stages]

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Emit | None = None) -> list[Output]:
        check_batch(self, batch, keep)
        check_state_lengths(self, batch, self._lengths)
        cut = not keep and not self.graph.whole
        groups = micro_batches(batch, len(self._stages), cut=cut)
        slots = [chunk.state_slot for chunk in batch]
        # Until the step is complete, some stages may have these tokens in their states and others not.
        self._lengths.update(dict.fromkeys(slots, 0))
        try:
            found = self._call(self._run(groups, list(keep)))
        except ConnectionBroken as error:
            self._rebuild(str(error))
        self._lengths.update((chunk.state_slot, chunk.end) for chunk in batch)
        logits: list[list[Array]] = [[] for _ in batch]
        nodes: list[dict[str, Array]] = [{} for _ in batch]
        for work, rows in found:
            for at, place in enumerate(work.places):
                logits[place].append(rows[str(at)])
            for key, value in work.kept.items():
                where, name = key.split("/", 1)
                nodes[work.places[int(where)]][name] = value
        outputs = [
            Output(np.concatenate(rows), {name: kept[name] for name in keep})
            for rows, kept in zip(logits, nodes, strict=True)
        ]
        return hand_over(outputs, emit)

    def copy_page(self, source: int, to: int) -> None:
        self._loop.call_soon_threadsafe(self._send_first, {"op": "copy", "source": source, "to": to})

    def copy_state(self, source: int, to: int, length: int | None = None) -> None:
        if length not in (None, self._lengths.get(source)):
            raise AssayError(f"split: keeps the state after the last token only (found a copy after {length} tokens)")
        self._lengths[to] = self._lengths.get(source, 0)
        self._loop.call_soon_threadsafe(self._send_first, {"op": "copy_state", "source": source, "to": to})

    def close(self) -> None:
        self._call(self._leave())
        self._launcher.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    # --- stages

    def _spawn(self, first: int, last: int) -> _Stage:
        handle = self._launcher.spawn({**self._spec, "first": first, "last": last})
        return _Stage(first, last, self.graph.part(first, last), handle)

    def _rebuild(self, why: str) -> None:
        """Start dead stages again and connect all of them. Always raises, because the cache is empty afterwards."""
        for stage in self._stages:
            if stage.channel is None and stage.handle.alive():
                stage.handle.kill()  # it hangs or cannot be reached
        dead = [i for i, stage in enumerate(self._stages) if not stage.handle.alive()]
        for i in dead:
            self._stages[i] = self._spawn(self._stages[i].first, self._stages[i].last)
        try:
            self._call(self._connect())
        except ConnectionBroken as error:
            raise AssayError(f"split: the stages cannot be connected again ({error})") from None
        self._lengths.clear()
        if (least := min([self.state_slots, *self._slots_of_stages()])) < self.state_slots:
            raise AssayError(
                f"split: a stage has too few state slots (found {least}, expected {self.state_slots}); start it on a "
                "machine with more memory, or choose fewer with --state-slots"
            )
        raise CacheLost(f"split: {why}; {len(dead)} stages were started again")

    def _slots_of_stages(self) -> list[int]:
        """The state slots of each stage whose layers keep state of a fixed size."""
        return [stage.hello.get("state_slots", 0) for stage in self._stages if stage.graph.state.per_sequence]

    async def _connect(self) -> None:
        """Connect to every stage, and tell each the address of the next one."""
        self._epoch += 1
        for work in self._work.values():
            if not work.done.done():
                work.done.cancel()
        self._work.clear()
        for stage in self._stages:
            if stage.channel is None:
                stage.channel = await connect(stage.handle.host, stage.handle.port, self._token)
                stage.channel.send({"op": "hello"})
                found = await _within(WIRE_S, stage.channel.receive(), stage.handle.name)
                stage.hello = checked(found, RECEIVED, only="hello").head
                stage.heard = time.monotonic()
                task = asyncio.ensure_future(self._read(stage, stage.channel))
                self._readers.add(task)
                task.add_done_callback(self._readers.discard)
        self._broken = None
        self._wired = asyncio.Event()
        self._left = len(self._stages)
        for i, stage in enumerate(self._stages):
            behind = self._stages[i + 1 :]
            assert stage.channel
            stage.channel.send(
                {
                    "op": "wire",
                    "epoch": self._epoch,
                    "next": [behind[0].handle.host, behind[0].handle.port] if behind else None,
                    "needed": sorted({name for other in behind for name in other.graph.given}),
                }
            )
        await _within(WIRE_S, self._wired.wait(), f"connecting {len(self._stages)} stages")
        if self._broken:
            raise ConnectionBroken(self._broken)

    async def _leave(self) -> None:
        readers = list(self._readers)
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

    async def _read(self, stage: _Stage, channel: Channel) -> None:
        """Handle the frames of one stage until its connection ends."""
        why = f"stage {stage.handle.name} (layers {stage.first} to {stage.last - 1}) on {stage.handle.node}"
        try:
            while True:
                async with asyncio.timeout(SILENT_S):
                    message = checked(await channel.receive(), RECEIVED, never="hello")
                if message.op == "beat" or message.head.get("epoch") != self._epoch:
                    continue
                if message.op == "wired":
                    self._left -= 1
                    if not self._left:
                        self._wired.set()
                elif message.op == "failed":
                    self._fail(f"{why}: {message.head['error']}", message.head.get("id"))
                elif work := self._work.get(message.head["id"]):
                    _check_rows(message, work)
                    if message.op == "kept":
                        work.kept |= message.arrays
                    elif not work.done.done():
                        work.done.set_result(message.arrays)
        except (ConnectionBroken, TimeoutError) as error:
            channel.close()
            if stage.channel is channel:
                stage.channel = None
            self._fail(f"{why} was lost ({error or f'silent for {SILENT_S:g} s'})", None)

    def _fail(self, why: str, number: int | None) -> None:
        """Fail one micro-batch or, without a number, all of them: the pipeline is broken."""
        if number is not None:
            if (work := self._work.get(number)) and not work.done.done():
                work.done.set_exception(AssayError(why))
            return
        self._broken = why
        self._wired.set()
        for work in self._work.values():
            if not work.done.done():
                work.done.set_exception(ConnectionBroken(why))

    # --- work

    async def _run(self, groups: list[Group], keep: list[str]) -> list[tuple[_Work, dict[str, Array]]]:
        """Send all micro-batches at once and wait for their results. The stages keep their order."""
        if self._broken:
            raise ConnectionBroken(self._broken)
        works: dict[int, _Work] = {}
        for group in groups:
            self._numbers += 1
            heads, arrays = pack_chunks([chunk for _, chunk in group])
            works[self._numbers] = _Work([place for place, _ in group], self._loop.create_future())
            self._work[self._numbers] = works[self._numbers]
            self._send_first({"op": "work", "id": self._numbers, "chunks": heads, "keep": keep}, arrays)
        try:
            return [(work, await work.done) for work in works.values()]
        finally:
            for number, work in works.items():
                self._work.pop(number, None)
                if work.done.done() and not work.done.cancelled():
                    work.done.exception()  # marks the exception as retrieved

    def _send_first(self, head: dict[str, Any], arrays: Mapping[str, Array] | None = None) -> None:
        if channel := self._stages[0].channel:
            channel.send({**head, "epoch": self._epoch}, arrays)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the connections' thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _check_rows(message: Frame, work: _Work) -> None:
    """Refuse results that do not belong to the micro-batch."""
    places = {key.partition("/")[0] for key in message.arrays}
    expected = {str(i) for i in range(len(work.places))}
    wrong = places != expected if message.op == "done" else not places <= expected
    if wrong or any(value.ndim == 0 for value in message.arrays.values()):
        raise ConnectionBroken(f"frame {message.op}: its arrays are not those of the {len(expected)} chunks")


async def _within(seconds: float, work: Coroutine[Any, Any, T], what: str) -> T:
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError:
        raise ConnectionBroken(f"{what}: no answer within {seconds:g} s") from None
