"""The wgpu engine: runs a graph on any GPU that WebGPU reaches (Vulkan, Metal, Direct3D), with the cpu engine's bits.

    precision fast    int8 activations for quantised weights, cache in float16
    precision exact   every weight as float32, cache in float32

Both compute docs/reference/arithmetic.md. WGSL leaves a device much freedom with floats, so kernels compute them in one
of three tiers: with the device's fma(), with an error-free transformation, or with integers alone. A probe
(`tier_probe.py`) chooses the first tier that gives the right bits on this adapter.

One token through the engine:

    step_words.py        its id, position, cache slot, page table and rope row become the words of a step
    graph_dispatches.py  the graph was compiled to a list of dispatches (`dispatches.py`, plain data)
    recording.py         pipelines and bind groups of that list are submitted in one pass
    steps_ahead.py       greedy steps are submitted before the results of their predecessors are read
    shaders/             embed · norm · matvec · rope · cache_write · attention · attention_fold · elementwise · best

`adapter.py` is the device, `placed_weights.py` and `weight_tiles.py` the weights on it. Touch this module for memory,
batching and options of the engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay import _native
from assay.engines.contract import (
    PAGE,
    Arithmetic,
    CacheLost,
    Chunk,
    Emit,
    MemoryUse,
    Output,
    PagedEngine,
    TopK,
    check_batch,
    hand_over,
    pages_for,
)
from assay.engines.plan.batching import External, Results, Step, in_turns, steps, whole
from assay.engines.plan.decode_run import DeviceDecodeRunner, DeviceRun, StepQueue
from assay.engines.plan.graph_variants import PLAIN, GraphVariant, GraphVariants
from assay.engines.plan.state_layout import KV_TYPES, CachePool, cache_pools, slot_offsets
from assay.engines.plan.state_layout import state_slots as count_slots
from assay.engines.plan.state_places import StatePlaces, Targets
from assay.engines.wgpu.adapter import Copy, Gpu, GpuError, forget, gpu
from assay.engines.wgpu.attention_dispatches import KEY_BLOCK
from assay.engines.wgpu.dispatches import NOTHING, SPARE, KeptScores, View
from assay.engines.wgpu.graph_dispatches import compile_dispatches
from assay.engines.wgpu.placed_weights import StackedWeights
from assay.engines.wgpu.program_builder import TOKENS, ProgramShape, cache_words
from assay.engines.wgpu.recording import Recording
from assay.engines.wgpu.step_words import HEADER, MAX_TABLES, RECORD, RopeRows, step_words
from assay.engines.wgpu.steps_ahead import StepsAhead
from assay.engines.wgpu.tier_probe import Verdict, probe
from assay.errors import AssayError
from assay.graph import Graph, Trait
from assay.models import Model
from assay.models.pictures import EVERYTHING

PRECISIONS = {"fast": "f16", "exact": "f32"}  # precision -> default type of the cache
STEP = 64  # most tokens of a step
_STEP_WORDS = HEADER + (RECORD + 512) * STEP  # of a step without its page tables, with room for rope tables
_SCRATCH = 64 << 20  # most bytes of attention's blocks: longer sequences take fewer tokens a step
_RECORDINGS = 12  # most programs on the device; the least recently used one is dropped


class WgpuEngine(PagedEngine):
    """The engine contract over recorded programs."""

    name = "wgpu"
    precisions = PRECISIONS
    pictures: Collection[str] = EVERYTHING

    def __init__(
        self,
        model: Model,
        *,
        precision: str = "fast",
        kv_type: str | None = None,
        n_pages: int | None = None,
        graph: Graph | None = None,
        tier: int | None = None,
        threads: int | None = None,
        state_slots: int | None = None,
        lender: WgpuEngine | None = None,
    ) -> None:
        if precision not in PRECISIONS:
            raise AssayError(f"engine wgpu: no such precision (found {precision}, expected {' or '.join(PRECISIONS)})")
        kv_type = kv_type or PRECISIONS[precision]
        if kv_type not in KV_TYPES:
            raise AssayError(f"engine wgpu: no such cache type (found {kv_type}, expected {', '.join(KV_TYPES)})")
        self.model, self.graph = model, graph or model.graph
        self.n_pages = n_pages if n_pages is not None else pages_for(model.hparams.n_ctx_train)
        if self.n_pages < 1:
            raise AssayError(f"engine wgpu: the cache needs at least one page (found {self.n_pages})")
        self._precision, self._kv_type, self._asked_slots = precision, kv_type, state_slots
        self._lender, self._busy, self._open = lender, threading.Lock(), True
        self._run_queue: StepQueue | None = None  # of the last decode run, if it may go on
        self._variants = GraphVariants(self, lambda name: self._weights.array(name))
        self._load()
        shapes = [
            ProgramShape(4, KEY_BLOCK, kv_type, fixed=self._fixes), ProgramShape(8, 2 * KEY_BLOCK, kv_type)
        ]  # with all kernels  # fmt: skip
        plans = [compile_dispatches(self.graph, self._weights, shape) for shape in shapes]
        self.verdict: Verdict = lender.verdict if lender else probe(self._gpu, plans, self._shared, tier)
        self.tier = self.verdict.tier
        name = "native" if self.verdict.proven else f"wgpu tier {self.tier}"
        self.arithmetic = Arithmetic(name, precision, kv_type, _native.ARITHMETIC)
        self.isa = f"{self._gpu.name}, {self.verdict}"
        if not (self.graph.whole or self.graph.given):
            self.top_values = LargestLogits(self, self._forward_best)
            if not self.graph.state.per_sequence:
                self.decode_runner = DeviceDecodeRunner(self._start_run, STEP)

    def _load(self) -> None:
        """Weights and cache on the device."""
        lender = self._lender
        self._borrows = lender is not None and lender.model.file is self.model.file  # weights
        self._gpu: Gpu = lender._gpu if lender else gpu()
        self._recordings: dict[tuple[ProgramShape, frozenset[str], GraphVariant], Recording] = {}
        self._fixes = not self._gpu.software  # on a processor they cost compilation and save nothing
        exact = self._precision == "exact"
        self._weights: StackedWeights = (
            lender._weights
            if lender and self._borrows
            else StackedWeights(self._gpu, self.model.file, self.graph, exact)
        )
        if self._borrows:
            self._weights.add(self.graph)
        self._pools: list[CachePool] = sorted(set(cache_pools(self.graph).values()), key=lambda pool: pool.index)
        self._check_heads()
        self._buffers: dict[str, Any] = {
            NOTHING: self._gpu.buffer(4, "nothing"),
            SPARE: self._gpu.buffer(4, "nothing"),
            "positions": self._gpu.buffer(4 * PAGE * self.n_pages, "positions of keys"),
            "chosen": self._gpu.buffer(8 * STEP, "chosen tokens"),
            "step": self._gpu.buffer(4 * (_STEP_WORDS + 2 * self.n_pages), "a step"),
        }
        for pool in self._pools:
            what = f"a cache of {self.n_pages} pages"
            self._buffers[f"pool {pool.index}"] = self._gpu.buffer(self._page_bytes(pool) * self.n_pages, what)
        self._allocate_states()
        self._ropes: RopeRows | None = None

    def _allocate_states(self) -> None:
        """Memory for state of a fixed size: two places for each slot, in one binding."""
        size = self._state_bytes = 4 * slot_offsets(self.graph)[1]
        if wanted := count_slots(self.graph, self._asked_slots):
            self.state_slots = min(wanted, max(2, self._gpu.max_binding // (2 * size)))
            what = f"the state of {self.state_slots} sequences"
            self._buffers["states"] = self._gpu.buffer(2 * self.state_slots * size, what)
        self._states = StatePlaces(self.state_slots)

    def _check_heads(self) -> None:
        for pool in self._pools:
            if pool.type(self._kv_type) == "q8_0" and pool.dim % 32:
                raise AssayError(
                    f"engine wgpu: a q8_0 cache needs heads of a multiple of 32 values (found {pool.dim}); "
                    "use --kv-type f16"
                )

    def _page_bytes(self, pool: CachePool) -> int:
        return 4 * PAGE * pool.heads * cache_words(pool.dim, pool.type(self._kv_type))

    @property
    def memory(self) -> MemoryUse:
        buffers = sum(r.bytes for r in self._recordings.values()) + int(self._buffers["step"].size)
        page = 4 * PAGE + sum(self._page_bytes(pool) for pool in self._pools)
        states = 2 * self.state_slots * self._state_bytes
        return MemoryUse(weights=self._weights.bytes, buffers=buffers, page=page, states=states)

    def beside(self, graph: Graph, n_pages: int, model: Model | None = None) -> PagedEngine:
        return WgpuEngine(
            model or self.model,
            precision=self._precision,
            kv_type=self._kv_type,
            n_pages=n_pages,
            graph=graph,
            lender=self,
        )

    # -- one step ------------------------------------------------------------------------------------------

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Emit | None = None) -> list[Output]:
        """One step; results in the order of the batch. Kept nodes have a row for every token."""
        check_batch(self, batch, keep)
        self._end_run()
        self._states.check(self, batch)
        outputs: list[Output] = []
        with self._states.updated(batch) as places:
            for names in in_turns(self.graph, keep, batch) if emit else (keep,):
                with self._ready():
                    outputs = self._forward(batch, frozenset(names), places)
                outputs = hand_over(outputs, emit)
        return outputs

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Hold the device, which may be lost meanwhile: then it is opened again, and the cache is lost."""
        with self._busy:
            if not self._open:
                raise AssayError("engine wgpu: it has been closed; open another")
            try:
                yield
            except GpuError as error:
                if "lost" not in str(error).lower():
                    raise
                forget(self._gpu)
                self._load()
                raise CacheLost(f"engine wgpu: the device was lost and opened again ({error})") from error

    def _forward(self, batch: Sequence[Chunk], keep: frozenset[str], places: Targets) -> list[Output]:
        variant, batch = self._variants.of(batch)
        scored = any(_is_scores(self.graph, name) for name in keep)
        results: Results | None = None
        for step in whole(batch) if scored or self.graph.whole else steps(batch, self._limit(batch)):
            recording = self._recording(step, keep, variant=variant)
            if results is None:
                results = Results([external for external, _ in recording.plan.results], batch)
            self._run(recording, step, places, results.take(step))
        assert results is not None
        return results.outputs(self.graph, keep, {})

    def _limit(self, batch: Sequence[Chunk]) -> int:
        """Tokens of a step, so that attention's blocks fit their memory."""
        blocks = -(-_room(max(chunk.end for chunk in batch)) // KEY_BLOCK)
        return max(1, min(STEP, _SCRATCH // (4 * blocks * self._block_words)))

    @cached_property
    def _block_words(self) -> int:
        """The most words of a token's blocks of 256 keys."""
        shapes = [self.graph.shapes[node.name] for node in self.graph if node.op == "kqv"]
        return max((int(shape[0]) * (int(shape[-1]) + 2) for shape in shapes), default=1)

    def _recording(
        self, step: Step, keep: frozenset[str], best: bool = False, variant: GraphVariant = PLAIN
    ) -> Recording:
        keys = max(piece.chunk.start + piece.end for piece in step.pieces)
        rows = next((n for n in (1, 8, STEP) if n >= step.n_tokens), step.n_tokens)
        fixed = rows < TOKENS and self._fixes
        return self._recorder(ProgramShape(rows, _room(keys), self._kv_type, best, fixed), keep, variant)

    def _recorder(self, shape: ProgramShape, keep: frozenset[str], variant: GraphVariant) -> Recording:
        """The program of a shape, compiled once."""
        found = self._recordings.pop((shape, keep, variant), None)
        if found is None:
            plan = compile_dispatches(self._variants.graph(variant), self._weights, shape, keep)
            if len(plan.rope_tables) > MAX_TABLES:
                raise AssayError(f"engine wgpu: too many rope tables (found {len(plan.rope_tables)}); use --engine cpu")
            found = Recording(self._gpu, plan, self.tier, self._shared)
            if len(self._recordings) >= _RECORDINGS:
                self._recordings.pop(next(iter(self._recordings))).close()
        self._recordings[shape, keep, variant] = found
        return found

    def _shared(self, name: str) -> Any:
        return self._buffers[name] if name in self._buffers else self._weights.buffers[name]

    def _run(self, recording: Recording, step: Step, places: Targets, arrays: list[NDArray[np.float32]]) -> None:
        """Write the words of a step, submit its pass, and read the results."""
        self._submit(recording, step, places, arrays)
        for (external, found), array in zip(recording.plan.results, arrays, strict=True):
            if not external.given:
                values = self._result(recording, step, external, found)
                array[: values.size] = values.reshape(-1)

    def _submit(
        self, recording: Recording, step: Step, places: Targets, arrays: Sequence[NDArray[np.float32]] = (),
        before: Sequence[Copy] = (), after: Sequence[Copy] = (),
    ) -> None:  # fmt: skip
        tables = recording.plan.rope_tables
        if self._ropes is None or self._ropes.tables != tables:
            self._ropes = RopeRows(tables)
        words = step_words(step, self._ropes.at(step.positions()), self._states.read_and_written(step, places))
        kept = next(key for key, found in self._recordings.items() if found is recording)
        if self._reserve(words.size):
            recording = self._recorder(*kept)
        self._gpu.write(self._buffers["step"], words)
        for (external, found), array in zip(recording.plan.results, arrays, strict=False):
            if external.given and isinstance(found, View):
                rows = np.zeros((step.n_tokens, found.stride), np.float32)
                rows[:, : found.width] = array[: step.n_tokens * found.width].reshape(-1, found.width)
                self._gpu.write(recording.buffer(found.buffer), rows)
        keys = max(piece.chunk.start + piece.end for piece in step.pieces)
        recording.run(step.n_tokens, step.n_outputs, -(-keys // KEY_BLOCK), len(step.pieces), before, after)

    def _reserve(self, words: int) -> bool:
        """Make room for the words of a step; True if all programs are gone, because they name the old buffer."""
        if 4 * words <= self._buffers["step"].size:
            return False
        self._buffers["step"] = self._gpu.buffer(8 * words, "a step")
        self._recordings.clear()
        return True

    def _result(
        self, recording: Recording, step: Step, external: External, found: View | KeptScores | str
    ) -> NDArray[np.float32]:
        """A result of the step that has just run, in the order in which `Results` has it."""
        if isinstance(found, View):
            rows = step.n_outputs if external.domain == "outputs" else step.n_tokens
            values = (
                recording.rows(found.buffer, rows, found.stride) if rows else np.empty((0, found.stride), np.float32)
            )
            return values[:, found.at : found.at + external.width]
        if isinstance(found, KeptScores):
            shape = (step.n_tokens, found.heads, found.keys, 3)
            flat = recording.rows(found.buffer, step.n_tokens, found.heads * found.keys * 3)
            scores, first, parts = flat.reshape(shape)[..., found.which], 0, []
            for piece in step.pieces:
                count, end = piece.end - piece.begin, piece.chunk.start + piece.end
                parts.append(scores[first : first + count, :, :end].transpose(1, 0, 2).ravel())
                first += count
            return np.concatenate(parts)
        pool = next(p for p in self._pools if f"pool {p.index}" == found)
        return np.concatenate([self._cached(pool, piece.chunk) for piece in step.pieces])

    def _cached(self, pool: CachePool, chunk: Chunk) -> NDArray[np.float32]:
        """The cached rows of a chunk's sequence, as floats."""
        kind, size = pool.type(self._kv_type), self._page_bytes(pool)
        pages = chunk.pages[: pages_for(chunk.end)].tolist()
        raw = [self._gpu.read(self._buffers[f"pool {pool.index}"], size // 4, page * size) for page in pages]
        shape = (len(pages), pool.heads, -1, PAGE) if pool.keys else (len(pages), PAGE, pool.heads, -1)
        words = np.stack(raw).reshape(shape)
        by_slot = np.ascontiguousarray(words.transpose(0, 3, 1, 2) if pool.keys else words)
        return _floats(by_slot.reshape(len(pages) * PAGE, pool.heads, -1), kind, pool.dim)[: chunk.end].reshape(-1)

    # -- the best logit on the device ----------------------------------------------------------------------

    def _forward_best(self, batch: Sequence[Chunk]) -> list[Output]:
        """The best logit of each chunk's last token; only it is read from the device."""
        check_batch(self, batch)
        self._end_run()
        self._states.check(self, batch)
        with self._states.updated(batch) as places, self._ready():
            found: dict[int, TopK] = {}
            for step in steps(batch, self._limit(batch)):
                recording = self._recording(step, frozenset(), best=True)
                self._submit(recording, step, places)
                words = self._gpu.read(self._buffers["chosen"], 2 * max(1, step.n_outputs)).reshape(-1, 2)
                ended = [piece.chunk for piece in step.pieces if piece.n_outputs]
                for chunk, word in zip(ended, words, strict=False):
                    found[id(chunk)] = TopK(word[:1].astype(np.int64), word[1:].view(np.float32))
        nothing = np.empty((0, int(self.graph.shapes[self.graph.output][1])), np.float32)
        return [Output(nothing, top=found[id(chunk)]) for chunk in batch]

    def _start_run(self, batch: Sequence[Chunk], max_tokens: Sequence[int], queue_depth: int) -> DeviceRun:
        """`DecodeRunner.start`."""
        check_batch(self, batch, max_tokens=max_tokens)
        if len(batch) > STEP or any(c.n_tokens != 1 or c.outputs != "last" or c.pictures for c in batch):
            raise AssayError(
                f"engine wgpu: a decode run takes one token of each sequence, and its output, from at most {STEP} "
                f"sequences (found {len(batch)} chunks of {sum(c.n_tokens for c in batch)} tokens); use forward"
            )

        def submit(step: Step, before: Sequence[Copy], after: Sequence[Copy]) -> None:
            self._submit(self._recording(step, frozenset(), best=True), step, {}, before=before, after=after)

        self._end_run()
        with self._ready():
            self._reserve(_STEP_WORDS + sum(len(c.pages) for c in batch))
        ahead = StepsAhead(
            self._gpu, batch, max_tokens, lambda chunks: steps(chunks, self._limit(chunks)), submit, self._shared
        )

        def launch(i: int) -> None:
            with self._ready():
                ahead.launch(i)
            if self.decode_runner and self.decode_runner.on_launch:
                self.decode_runner.on_launch()

        def wait(i: int) -> list[NDArray[np.float32]]:
            with self._ready():
                return ahead.wait(i)

        self._run_queue = StepQueue(launch, wait, 1 + max(max_tokens), queue_depth)
        return DeviceRun(self._run_queue, max_tokens, 1)

    def _end_run(self) -> None:
        """Submit no further step of the last run. Results of those submitted can still be read."""
        if self._run_queue:
            self._run_queue.stop()
            self._run_queue = None

    # -- memory --------------------------------------------------------------------------------------------

    def copy_page(self, source: int, to: int, window: int = 0) -> None:
        parts = [(f"pool {pool.index}", self._page_bytes(pool)) for pool in self._pools]
        self._gpu.copy(
            [(self._buffers[name], source * size, to * size, size) for name, size in (*parts, ("positions", 4 * PAGE))]
        )

    def copy_state(self, source: int, to: int, length: int | None = None) -> None:
        size = self._state_bytes
        self._gpu.copy(
            [(self._buffers["states"], self._states.at(source, length) * size, self._states.place[to] * size, size)]
        )
        self._states.copied(source, to, length)

    def close(self) -> None:
        """Free weights and cache. Nothing can be computed afterwards."""
        self._end_run()
        with self._busy:
            if self._open:
                self._open = False
                for recording in self._recordings.values():
                    recording.close()
                self._recordings.clear()
                owned = [*self._buffers.values(), *(() if self._borrows else self._weights.buffers.values())]
                for buffer in owned:
                    buffer.destroy()


class LargestLogits:
    """Capability `top_values`: the best logit alone leaves the device; for more of them, whole rows do."""

    digests = False

    def __init__(self, engine: WgpuEngine, best: Callable[[Sequence[Chunk]], list[Output]]) -> None:
        self._engine, self._best = engine, best

    def forward(self, batch: Sequence[Chunk], k: int) -> list[Output]:
        if k == 1 and all(chunk.outputs == "last" and not chunk.pictures for chunk in batch):
            return self._best(batch)
        return self._engine.forward(batch)


def _room(keys: int) -> int:
    """Keys that a program is compiled for: a power of two, so that a growing sequence seldom needs another."""
    return max(KEY_BLOCK, 1 << (keys - 1).bit_length())


def _is_scores(graph: Graph, name: str) -> bool:
    shape = graph.shapes[name]
    return "S" in shape or graph[name].has(Trait.SCORES)


def _floats(words: NDArray[np.uint32], kind: str, dim: int) -> NDArray[np.float32]:
    """Cached words of heads as floats."""
    if kind == "f32":
        return words.view(np.float32)
    if kind == "f16":
        return np.ascontiguousarray(words).view(np.float16)[..., :dim].astype(np.float32)
    if kind == "bf16":
        halves = np.ascontiguousarray(words).view(np.uint16)[..., :dim].astype(np.uint32)
        return (halves << 16).view(np.float32)
    blocks = words.reshape(*words.shape[:-1], dim // 32, 9)
    codes = np.ascontiguousarray(blocks[..., 1:]).view(np.int8).astype(np.float32)
    return (codes * np.ascontiguousarray(blocks[..., :1]).view(np.float32)).reshape(*words.shape[:-1], dim)
