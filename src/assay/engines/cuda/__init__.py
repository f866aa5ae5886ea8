"""The cuda engine: runs a graph on an NVIDIA GPU, on batches of sequences over a paged cache.

    precision fast    the cpu engine's bits: int8 activations for quantised weights, cache in float16
    precision exact   the cpu engine's exact bits: every weight as float32, cache in float32
    precision tensor  products and attention on 16-bit tensor cores, faster for prompts and many streams. Weights,
                      activations, queries and the softmax are rounded to f16 (bf16 for BF16 weights), so it has bits
                      of its own. They do not depend on the batch, the cut of the prompt or the cache, but may differ
                      between kinds of GPU.
    precision mixed   a prompt without its last token (`Chunk.prompt`) in `tensor`, all other tokens in `fast`

Four terms that all modules of this package use (docs/glossary.md has the others):

    step         one forward pass of a batch, or of a part of it where the batch is too large for one pass
    program      the launches of one step, compiled for its *shape* (tokens, output rows, pages …) and kept
    kernel step  one record of a program (steps.py, KernelStep): one launch, or one entry in the list of a walk
    walk         consecutive kernel steps that one kernel, a megakernel, computes without a launch between them
                 (walk.py). Thread blocks wait for each other's results by spinning on the results' memory.

In the modules of the compiler (steps, step_list, schedule, folding, place, lower, walk) "step" alone means a kernel
step. "The shape of a step", here, shapes.py, step_tables.py and plan/decode_run.py mean a forward pass.

program.py compiles a graph for one shape. This module chooses the shape of each batch, fills the tables of a step
(step_tables.py), and launches the program on the device (device.py). Touch this module when a batch should be cut,
padded or run in another way; program.py lists the modules of the compiler.

The first two precisions compute docs/reference/arithmetic.md, as the cpu engine does. So the logits are the same bits,
whatever the batch, the cut of the prompt or the cache. `docs/explanation/gpu.md` has the figures.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, chain, pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay import _native
from assay.engines.contract import (
    MAX_TOP_VALUES,
    PAGE,
    Arithmetic,
    Chunk,
    Emit,
    MemoryUse,
    NoRoom,
    Output,
    PagedEngine,
    check_batch,
    hand_over,
    pages_for,
)
from assay.engines.cuda.context import DeviceLimits
from assay.engines.cuda.device import Device, DeviceError, Driver, HostCall
from assay.engines.cuda.host_experts import made_for
from assay.engines.cuda.layout import DeviceWeights
from assay.engines.cuda.program import Program, compile_program
from assay.engines.cuda.resolver import Addresses
from assay.engines.cuda.shapes import Shape, cache_layout, tile_cuts
from assay.engines.cuda.sources import Kernels
from assay.engines.cuda.step_tables import fill_decode_step, fill_states, fill_step
from assay.engines.cuda.warm_up import PROMPTS, STREAMS, of_all_sizes
from assay.engines.plan.batching import Piece, Results, Step, by_prompt, in_turns, joined, pieces_of, steps_of
from assay.engines.plan.decode_run import DeviceDecodeRunner, DeviceRun, DeviceTopValues, StepQueue
from assay.engines.plan.fuse import Single, fuse
from assay.engines.plan.graph_variants import PLAIN, GraphVariant, GraphVariants
from assay.engines.plan.state_layout import KV_TYPES, slot_offsets
from assay.engines.plan.state_layout import state_slots as count_slots
from assay.engines.plan.state_places import StatePlaces, Targets
from assay.errors import AssayError
from assay.graph import Graph, Trait
from assay.models import Model
from assay.models.adapters import Adapter, joined_file
from assay.models.pictures import EVERYTHING

PRECISIONS = {"fast": "f16", "exact": "f32", "tensor": "f16", "mixed": "f16"}  # With the default cache type of each.
STEP, ROOMY = 1024, 8 << 30  # Most tokens computed at once; doubled if ROOMY bytes of device memory are free.
_PROGRAMS = 64  # Most compiled programs; the least recently used one is dropped.
_GRAPHED = 64  # Most tokens of a step that is captured as a CUDA graph.
_SPARE = 512 << 20  # Bytes left free for buffers and graphs beside weights and cache.


class CudaEngine(PagedEngine):
    """The engine contract, implemented by compiled programs on one device."""

    name = "cuda"
    pictures: Collection[str] = EVERYTHING
    token_types = True
    precisions = PRECISIONS
    answering = "mixed"

    def __init__(
        self,
        model: Model,
        *,
        precision: str = "fast",
        kv_type: str | None = None,
        n_pages: int | None = None,
        graph: Graph | None = None,
        device: Device | None = None,
        threads: int | None = None,
        state_slots: int | None = None,
        lender: CudaEngine | None = None,
        adapters: Sequence[Adapter] = (),
        cpu_experts: int = 0,
        reuse_results: bool = False,
    ) -> None:
        """`reuse_results`: results are in page-locked memory, and valid until the next forward pass."""
        if precision not in PRECISIONS:
            raise AssayError(f"engine cuda: no such precision (found {precision}, expected {', '.join(PRECISIONS)})")
        kv_type = kv_type or PRECISIONS[precision]
        if kv_type not in KV_TYPES:
            raise AssayError(f"engine cuda: no such cache type (found {kv_type}, expected {', '.join(KV_TYPES)})")
        self.model, self.graph, self._asked_slots = model, graph or model.graph, state_slots
        self.adapters = tuple(adapters)
        name = "cuda" if precision in ("tensor", "mixed") else "native"
        self.arithmetic = Arithmetic(name, precision, kv_type, _native.ARITHMETIC)
        self.n_pages = n_pages if n_pages is not None else pages_for(model.hparams.n_ctx_train)
        if self.n_pages < 1:
            raise AssayError(f"engine cuda: the cache needs at least one page (found {self.n_pages})")
        self._layout = cache_layout(self.graph, kv_type, precision == "tensor")
        self._loose = _loose(self.graph)
        self._host_experts = made_for(model, self.graph, cpu_experts, precision, threads)
        # A decode step is one CUDA graph.
        self._decodes = not (self.graph.whole or self._loose or self.graph.given or self._host_experts)
        if self._decodes:
            self.top_values = DeviceTopValues(self._forward_top, digests=True)
            self.decode_runner = DeviceDecodeRunner(self._start_run, _GRAPHED)
        self._busy = threading.Lock()
        self._programs: dict[tuple[Shape, frozenset[str], bool, GraphVariant], Program] = {}
        self._variants = GraphVariants(self, self._values)
        self._arena_size = self._step_words = 0
        self._at = Addresses(0, 0, 0, 0)
        self._host: NDArray[np.int32] = np.empty(0, np.int32)
        self._landing: NDArray[np.float32] = np.empty(0, np.float32)  # pinned memory that results are copied to
        self._reused: dict[int, NDArray[np.float32]] | None = {} if reuse_results else None  # by the external's number
        self._queue_in_flight: StepQueue | None = None  # steps whose results may not have been read yet
        self._shifted = False  # once a position differs from its slot, masks compare positions
        self._borrows = lender is not None and lender.model.file is model.file  # weights
        self._owns_device = lender is None
        self._device: Any = lender._device if lender else device or Driver(Kernels)
        self.isa = self._device.name
        self._tensors: DeviceWeights | None = (
            lender._tensors
            if lender and self._borrows
            else DeviceWeights(self._device, joined_file(model.file, self.adapters), precision)
        )
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def beside(self, graph: Graph, n_pages: int, model: Model | None = None) -> PagedEngine:
        a = self.arithmetic
        return CudaEngine(
            model or self.model, precision=a.precision, kv_type=a.kv_type, n_pages=n_pages, graph=graph, lender=self
        )  # fmt: skip

    def _load(self) -> None:
        """Load the weights and allocate the cache; an error says in one line why this is not possible."""
        assert self._tensors
        self._prompts = self._tensors.for_prompts() if self.arithmetic.mixed and not self.graph.whole else None
        weights = self._prompts or self._tensors
        self._cuts = tile_cuts(self.graph, self._layout, self._device.shared_bytes, weights.halves)
        away = self._host_experts.names if self._host_experts else frozenset[str]()
        here = [node for node in self.graph if node.name not in away]
        pairs = sum(4 * math.prod(t.shape) for a in self.adapters for t in a.file.tensors.values())
        self._check_room(0 if self._borrows else weights.planned(here) + pairs)
        self._positions: NDArray[np.int32] = np.zeros((self.n_pages, PAGE), np.int32)
        size = self._layout.page_bytes * self.n_pages
        self._at.cache = self._device.alloc(size, f"a cache of {self.n_pages} pages")
        self._device.zero(self._at.cache, size)
        self._allocate_states()
        self._step = STEP if self._device.memory()[0] < ROOMY else 2 * STEP
        heads = max((int(self.graph.shapes[n.name][0]) for n in self.graph if n.op == "kqv"), default=1)
        counters = 4 * max(self._step * heads, 65536)
        self._at.counters = self._device.alloc(counters, "counters")
        self._device.zero(self._at.counters, counters)
        shapes = self._first_shapes()  # they load every weight, and refuse unsupported graphs before the first request
        for shape in shapes:
            self._program(shape, frozenset(), fill=False)
        if self._prompts:
            self._program(shapes[-1], frozenset(), fill=False, prompt=True)
        self._tensors.fill()  # while kernels are compiled
        self._tensors.release_staging()
        self._device.loaded()

    def _allocate_states(self) -> None:
        """Memory for state of a fixed size: two places for each slot, of at most an eighth of the free memory."""
        self._state_bytes = 4 * slot_offsets(self.graph)[1]
        if wanted := count_slots(self.graph, self._asked_slots):
            fit = self._device.memory()[0] // 8 // (2 * self._state_bytes)
            self.state_slots = min(wanted, max(2, fit))
            size = 2 * self.state_slots * self._state_bytes
            self._at.states = self._device.alloc(size, f"the state of {self.state_slots} sequences")
        self.spare_states = self.state_slots
        self._states = StatePlaces(self.state_slots)

    def _first_shapes(self) -> list[Shape]:
        cuts, state = max(1, len(self._cuts)), int(self.state_slots > 0)
        keys, scores = 8 * self._loose, 64 * self._loose
        many = Shape(8, 8, False, 1, 8, 8, cuts, chunks=1, longest=8, keys=keys, scores=scores, states=state)
        return [many] if self._loose or self.graph.whole else [Shape(1, 1, True, 1, 8, states=state), many]

    def _check_room(self, weights: int) -> None:
        """Refuse a model whose weights, pages and buffers do not fit the free memory."""
        free, total = self._device.memory()
        pages = self._layout.page_bytes * self.n_pages
        if weights + pages + _SPARE > free:
            raise NoRoom(
                f"{self.model.file.path}: does not fit {self._device.name} ({weights >> 20} MB of weights, "
                f"{pages >> 20} MB for {self.n_pages} pages and {_SPARE >> 20} MB for buffers, {free >> 20} of "
                f"{total >> 20} MB free); use fewer pages or --engine cpu"
            )

    def warm_up(self) -> None:
        with self._ready():
            kernels = of_all_sizes(chain.from_iterable(self._kernels(*step) for step in self._served()))
            self._device.prepare(kernels)
            assert self._tensors
            self._tensors.fill()
            self._device.ready(kernels)

    def _served(self) -> Iterator[tuple[Shape, frozenset[str], bool]]:
        """Steps of all kinds that a server computes: shapes, kept nodes, and whether in the arithmetic of prompts."""
        room, whole_text = self.n_pages * PAGE, self.graph.whole
        none, everything = frozenset[str](), frozenset(node.name for node in self.graph)

        def shape(tokens: int, outputs: str = "last", exact: bool = False) -> Shape:
            tokens = min(tokens, room)
            chunk = Chunk(np.zeros(tokens, np.int32), 0, np.zeros(pages_for(tokens), np.int32), outputs)
            return self._shape(Step(tuple(pieces_of([chunk]))), exact=exact or self._loose, together=whole_text)

        prompts = [*(shape(n) for n in (*PROMPTS, self._step)), shape(PROMPTS[-1], "all")]
        for prompt in (False, True)[: 1 + bool(self._prompts)]:
            yield from ((found, none, prompt) for found in prompts)
            if self.graph.embedding:
                yield shape(1, "none"), frozenset([self.graph.embedding]), prompt
            yield from ((shape(n, "all", exact=True), everything, prompt) for n in (1, 16))
        if self._decodes:
            yield from ((self._one(n, room), none, False) for n in STREAMS)
            yield from ((self._one(1, 1, best=best), none, False) for best in (0, 1))

    def _kernels(self, shape: Shape, keep: frozenset[str], prompt: bool) -> set[str]:
        """The kernels of a program, which is never run: it has no memory."""
        return {launch.kernel for launch in self._compile(shape, keep, prompt, lambda arena: self._at).launches}

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Emit | None = None) -> list[Output]:
        """Compute the batch; results are in its order. Kept nodes have a row for every token."""
        check_batch(self, batch, keep)
        self._states.check(self, batch)
        with self._ready(), self._states.updated(batch) as places:
            outputs: list[Output] = []
            for names in in_turns(self.graph, keep, batch) if emit else (keep,):
                outputs = hand_over(self._forward(batch, frozenset(names), places), emit)
            return outputs

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Hold the lock, with the device's context current on this thread."""
        with self._busy:
            if self._tensors is None:
                raise AssayError("engine cuda: it has been closed")
            self._device.use()
            yield

    def _forward(self, batch: Sequence[Chunk], keep: frozenset[str], places: Targets) -> list[Output]:
        variant, batch = self._variants.of(batch)
        if not keep and self._is_decode(batch):
            rows = self._decode(batch, 0, [0] * len(batch), places).results(0)[0].reshape(len(batch), -1)
            return [Output(row[None]) for row in rows]
        heads, others = by_prompt(batch) if self._prompts else ([], pieces_of(batch))
        if not heads:
            return self._pass(others, keep, places, variant)
        first = iter(self._pass(heads, keep, places, variant, prompt=True))
        second = iter(self._pass(others, keep, places, variant))
        found = []
        for c in batch:
            parts = [next(outputs) for outputs, n in ((first, c.prompt), (second, c.n_tokens - c.prompt)) if n]
            found.append(joined(self.graph, *parts) if len(parts) == 2 else parts[0])
        return found

    def _pass(
        self,
        pieces: Sequence[Piece],
        keep: frozenset[str],
        places: Targets,
        variant: GraphVariant,
        prompt: bool = False,
    ) -> list[Output]:
        """Compute the pieces in one arithmetic; `prompt`: that of prompts."""
        if not pieces:
            return []
        whole_text, pooled = self.graph.whole, bool(self.graph.pooled & {*keep, self.graph.output})
        pooled = pooled or any(self.graph[name].has(Trait.SHOWS_STATE) for name in keep)
        scored = any("S" in self.graph.shapes[name] or self._is_scores(name) for name in keep)
        results: Results | None = None
        found: list[Output] = []
        program = None
        batch = [piece.alone for piece in pieces]
        if (scored or pooled) and any(p.end - p.begin < p.chunk.n_tokens for p in pieces):
            raise AssayError(
                f"engine cuda: precision mixed computes a prompt in two parts, so that nodes of a whole text cannot be "
                f"kept (found {', '.join(sorted(keep)[:3])}); keep others, or use --precision fast or tensor"
            )
        steps = [Step(tuple(pieces))] if scored else steps_of(pieces, self._step, cut=not (whole_text or pooled))
        for step in steps:
            self._note_positions([p.chunk for p in step.pieces])
            shape = self._shape(step, exact=scored or self._loose, together=whole_text or pooled)
            program = self._program(shape, keep, prompt=prompt, variant=variant)
            if results is None:
                results = Results([e for e, _ in program.results], batch, self._result_memory)
            self._run(program, step, places, results.take(step))
        if results is not None and program is not None:
            found = results.outputs(self.graph, keep, program.aliases)
        return found

    # -- decode steps and runs of them -------------------------------------------------------------------------------

    def _is_decode(self, batch: Sequence[Chunk]) -> bool:
        """One token of each sequence, with its output: the usual step of serving, kept as a CUDA graph."""
        if not self._decodes or len(batch) > _GRAPHED or (self._prompts and any(c.prompt for c in batch)):
            return False
        return all(c.n_tokens == 1 == c.n_outputs and not c.pictures and not c.adapters for c in batch)

    def _forward_top(self, batch: Sequence[Chunk], k: int) -> list[Output]:
        """`TopValues.forward`. Any batch other than a decode step gives whole rows."""
        check_batch(self, batch)
        self._states.check(self, batch)
        with self._ready(), self._states.updated(batch) as places:
            if k > MAX_TOP_VALUES or not self._is_decode(batch):
                return self._forward(batch, frozenset(), places)
            run = self._run_of(batch, k if k == 1 else MAX_TOP_VALUES, [0] * len(batch), places)
        nothing = np.empty((0, int(self.graph.shapes[self.graph.output][1])), np.float32)
        return [Output(nothing, top=top) for top in run.step(0)]

    def _start_run(self, batch: Sequence[Chunk], max_tokens: Sequence[int], queue_depth: int) -> DeviceRun:
        """`DecodeRunner.start`."""
        check_batch(self, batch, max_tokens=max_tokens)
        self._states.check(self, batch)
        if not self._is_decode(batch):
            raise AssayError(
                f"engine cuda: a decode run takes one token of each sequence, and its output, from at most {_GRAPHED} "
                f"sequences (found {len(batch)} chunks of {sum(c.n_tokens for c in batch)} tokens); use forward"
            )
        with self._ready(), self._states.updated(batch) as places:
            run = self._run_of(batch, 1, max_tokens, places, queue_depth)
        self._states.run_on(batch)
        return run

    def _run_of(
        self, batch: Sequence[Chunk], k: int, max_tokens: Sequence[int], places: Targets, queue_depth: int = 1
    ) -> DeviceRun:
        return DeviceRun(self._decode(batch, k, max_tokens, places, queue_depth), max_tokens, k)

    def _decode(
        self, batch: Sequence[Chunk], k: int, max_tokens: Sequence[int], places: Targets, queue_depth: int = 1
    ) -> StepQueue:
        """Launch a decode step and its followers. The results are whole rows, or for k > 0 the k largest logits."""
        self._note_positions(batch)
        longest = max(c.end + n for c, n in zip(batch, max_tokens, strict=True))
        digest = k > 0 and any(c.digest for c in batch)
        program = self._program(self._one(len(batch), longest, k, digest), frozenset())
        return self._play(program, Step(tuple(pieces_of(batch))), places, max_tokens, queue_depth)

    def _play(
        self,
        program: Program,
        step: Step,
        places: Targets,
        max_tokens: Sequence[int] = (),
        queue_depth: int = 1,
    ) -> StepQueue:
        """Run a decode step as a captured graph; each result has a row per sequence. The following steps replay the
        graph on the tables and the token that their predecessor left, until every sequence has its `max_tokens`."""
        self._drain_queue()
        chunks, further = [p.alone for p in step.pieces], max(max_tokens, default=0)
        if program.play is None:
            words = self._words(program)
            self._device.ready(launch.kernel for launch in program.launches)
            program.play = self._device.capture(lambda: self._queue(program, words, []))
        if further and program.again is None:
            program.again = self._device.capture(lambda: self._launch(program))
        fill_decode_step(program.tables, self._positions, chunks, max_tokens)
        self._fill_states(program, step, places)
        n = len(program.results)
        sizes = [external.width * len(chunks) for external, _ in program.results] * (1 + further)
        ends = [0, *accumulate(sizes)]
        if ends[-1] > self._landing.size:
            self._landing = self._device.pinned(4 * max(ends[-1], 2 * self._landing.size)).view(np.float32)
        landed = [self._landing[a:b] for a, b in pairwise(ends)]

        def launch(i: int) -> None:
            replay = program.again if i else program.play
            assert replay
            replay()
            self._fetch(program, landed[i * n : (i + 1) * n])
            self._device.mark(i)

        def wait(i: int) -> list[NDArray[np.float32]]:
            self._device.reach(i)
            return [part.copy() for part in landed[i * n : (i + 1) * n]]

        queue = self._queue_in_flight = StepQueue(launch, wait, 1 + further, queue_depth)
        self._launched()
        return queue

    def _launched(self) -> None:
        """Let the caller work on the host while the device computes."""
        if self.decode_runner and self.decode_runner.on_launch:
            self.decode_runner.on_launch()

    def _drain_queue(self) -> None:
        """Read the results of the last run before its tables and its buffer of results are written again."""
        if self._queue_in_flight:
            queue, self._queue_in_flight = self._queue_in_flight, None
            queue.drain()

    # -- shapes ----------------------------------------------------------------------------------------------------

    def _note_positions(self, chunks: Sequence[Chunk]) -> None:
        """Record whether a position has ever differed from its slot: from then on, masks compare positions."""
        for c in chunks:
            if c.positions is not None and not self._shifted:
                self._shifted = not np.array_equal(np.arange(c.start, c.end), c.positions)

    def _one(self, sequences: int, longest: int, best: int = 0, digest: bool = False) -> Shape:
        """The shape of a decode step: one token of each sequence, and all rows are outputs."""
        m, blocks = _power(sequences), _power(-(-longest // 256))
        states = m if self.state_slots else 0
        room = m * blocks * 8
        return Shape(m, m, True, blocks, room, irregular=self._shifted, best=best, digest=digest, states=states)

    def _shape(self, step: Step, *, exact: bool = False, together: bool = False) -> Shape:
        """The shape of a step, padded. `exact`: with the exact number of keys and scores. `together`: with the number
        of sequences, which are not cut."""
        sizes = [p.end - p.begin for p in step.pieces]
        ends = [p.chunk.start + p.end for p in step.pieces]
        m, n, cuts, pieces = step.n_tokens, step.n_outputs, max(1, len(self._cuts)), len(sizes)
        blocks = _power(max(-(-end // 256) for end in ends))
        tables = sum(pages_for(end) for end in ends)
        tiles = sum(self._tiles(size) for size in sizes)
        drafted = sum(p.chunk.drafted for p in step.pieces)
        states = _power(pieces + drafted) if self.state_slots else 0
        if exact:
            keys, scores = sum(ends), sum(a * b for a, b in zip(sizes, ends, strict=True))
            return Shape(
                m, n, False, blocks, tables, tiles, cuts, pieces, max(sizes), keys, scores, self._shifted, states=states
            )
        if max(sizes) == 1 and n == m and not together:
            return self._one(m, max(ends))
        m = _power(m) if m <= 64 else -(-m // 64) * 64
        outputs = 0 if n == 0 else min(m, _power(n))
        chunks = _power(pieces) if together else 0
        sizes_of = (_power(tables), _power(tiles), cuts, chunks)
        return Shape(m, outputs, False, blocks, *sizes_of, irregular=self._shifted, states=states)

    def _tiles(self, tokens: int) -> int:
        return max((-(-tokens * group // rows) for group, rows in self._cuts), default=1)

    def _is_scores(self, name: str) -> bool:
        return sum(isinstance(d, str) for d in self.graph.shapes[name]) == 2

    def _program(
        self, shape: Shape, keep: frozenset[str], fill: bool = True, prompt: bool = False,
        variant: GraphVariant = PLAIN,
    ) -> Program:  # fmt: skip
        key = shape, keep, prompt, variant
        found = self._programs.pop(key, None)
        if found is None:
            assert self._tensors is not None
            found = self._compile(shape, keep, prompt, self._reserve(shape), variant)
            self._device.prepare({launch.kernel for launch in found.launches})
            if fill:
                self._tensors.fill()
            if len(self._programs) >= _PROGRAMS:
                self._programs.pop(next(iter(self._programs))).close()  # the least recently used one
        self._programs[key] = found
        return found

    def _compile(
        self, shape: Shape, keep: frozenset[str], prompt: bool, reserve: Callable[[int], Addresses],
        variant: GraphVariant = PLAIN,
    ) -> Program:  # fmt: skip
        weights = self._prompts if prompt else self._tensors
        assert weights is not None
        limits = DeviceLimits(self._device.multiprocessors, self._device.shared_bytes)
        graph = self._variants.graph(variant)
        host = self._host_experts.parts if self._host_experts else None
        return compile_program(graph, weights, self._layout, shape, keep, limits, self._cuts, reserve, host)

    def _values(self, name: str) -> NDArray[np.float32]:
        assert self._tensors is not None
        return self._tensors.array(name)

    def _reserve(self, shape: Shape) -> Callable[[int], Addresses]:
        def reserve(arena: int) -> Addresses:
            if arena > self._arena_size or shape.words > self._step_words:
                self._grow(max(arena, self._arena_size), max(shape.words, self._step_words, 65536))
            return self._at

        return reserve

    def _grow(self, arena: int, words: int) -> None:
        """Replace the buffers by larger ones. If the allocation fails, none are left, and the next step allocates its
        own size."""
        self._device.sync()
        self._forget_programs()  # their launches hold the old addresses
        for at in (self._at.arena, self._at.step):
            if at:
                self._device.free(at)
        self._at.arena = self._at.step = self._arena_size = self._step_words = 0
        self._at.arena = self._device.alloc(arena, "buffers")
        self._at.step = self._device.alloc(4 * words, "tables of a step")
        self._host = self._device.pinned(4 * words).view(np.int32)
        self._arena_size, self._step_words = arena, words

    def _forget_programs(self) -> None:
        self._drain_queue()
        for program in self._programs.values():
            program.close()
        self._programs.clear()

    # -- a run -----------------------------------------------------------------------------------------------------

    def _fill_states(self, program: Program, step: Step, places: Targets) -> None:
        """The state of each sequence of a step, where the graph keeps any."""
        if not places:
            return
        rows = self._states.read_and_written(step, places).tolist()
        first = accumulate((row[0] for row in rows), initial=0)
        found = [(at, n, -1 if begins else a, b) for at, (n, a, b, begins) in zip(first, rows, strict=False)]
        fill_states(program.tables, found)

    def _run(self, program: Program, step: Step, places: Targets, arrays: list[NDArray[np.float32]]) -> None:
        shape = program.shape
        rows = {"tokens": step.n_tokens, "outputs": step.n_outputs, "keys": shape.keys, "scores": shape.scores}
        rows["sequences"] = len(step.pieces)
        sizes = [e.width * rows[e.domain] for e, _ in program.results]
        given = any(external.given for external, _ in program.results)
        if shape.one and not given and shape.tokens <= _GRAPHED and not program.calls:
            found = self._play(program, step, places).results(0)
            for size, array, landed in zip(sizes, arrays, found, strict=True):
                array[:size] = landed
            return
        self._drain_queue()
        words = self._words(program)
        if shape.one:
            fill_decode_step(program.tables, self._positions, [p.alone for p in step.pieces], ())
        else:
            fill_step(program.tables, self._positions, step, shape, self._cuts)
        self._fill_states(program, step, places)
        self._queue(program, words, [a[:size] for size, a in zip(sizes, arrays, strict=True)], rows)
        self._launched()
        self._device.sync()

    def _result_memory(self, i: int, size: int) -> NDArray[np.float32]:
        if self._reused is None:
            return np.empty(size, np.float32)
        if i not in self._reused or self._reused[i].size < size:
            self._reused[i] = self._device.pinned(4 * size).view(np.float32)
        return self._reused[i][:size]

    def _words(self, program: Program) -> NDArray[np.int32]:
        """The host copy of a step's tables; the program keeps a view of each table."""
        words = self._host[: program.shape.words]
        if not program.tables:
            program.tables = {name: words[at : at + size] for name, (at, size) in program.shape.tables().items()}
        return words

    def _queue(
        self, program: Program, words: NDArray[np.int32], results: list[NDArray[np.float32]],
        rows: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self._device.upload(self._at.step, words)
        for (external, offset), array in zip(program.results, results, strict=False):
            if external.given:
                self._device.upload(self._at.arena + offset, array)
        self._launch(program, rows or {})
        self._fetch(program, results)

    def _launch(self, program: Program, rows: Mapping[str, int] = MappingProxyType({})) -> None:
        """Queue the launches, with the host's calls between them. `rows`: how many each domain has, where there are
        calls."""
        for i, launch in enumerate(program.launches):
            for call in program.calls.get(i, ()):
                self._call(call, rows[call.domain])
            self._device.launch(launch, early=i > 0 and i not in program.calls)
        for call in program.calls.get(len(program.launches), ()):
            self._call(call, rows[call.domain])

    def _call(self, call: HostCall, n: int) -> None:
        """Rows from the device, the experts on the host, and their results back."""
        assert self._host_experts
        shapes = self.graph.shapes
        rows = {name: np.empty((n, *map(int, shapes[name][1:])), np.float32) for name in call.reads}
        for name, (at, _) in call.reads.items():
            self._device.download(rows[name], at)
        self._device.sync()
        found = self._host_experts.compute(call.part, rows, call.writes.keys() - {call.part}) if n else {}
        for name, value in found.items():
            self._device.upload(call.writes[name][0], np.ascontiguousarray(value, np.float32))
        self._device.sync()

    def _fetch(self, program: Program, results: list[NDArray[np.float32]]) -> None:
        for (external, offset), array in zip(program.results, results, strict=False):
            if array.size and not external.given:
                self._device.download(array, self._at.arena + offset)

    def copy_page(self, source: int, to: int) -> None:
        for page in (source, to):
            if not 0 <= page < self.n_pages:
                raise AssayError(f"engine cuda: no page {page} of {self.n_pages}")
        with self._busy:
            self._device.use()
            size = self._layout.page_bytes
            self._device.copy(self._at.cache + to * size, self._at.cache + source * size, size)
            self._positions[to] = self._positions[source]

    def copy_state(self, source: int, to: int, length: int | None = None) -> None:
        with self._busy:
            self._device.use()
            a, b = self._states.at(source, length), self._states.place[to]
            size = self._state_bytes
            self._device.copy(self._at.states + b * size, self._at.states + a * size, size)
            self._states.copied(source, to, length)

    def cut_state(self, slot: int, length: int) -> None:
        self._states.cut(slot, length)

    def close(self) -> None:
        """Free weights and cache; the engine cannot compute afterwards."""
        with self._busy:
            if self._tensors is None:
                return
            with suppress(DeviceError):  # a lost device has no memory to free
                self._device.use()
            self._forget_programs()
            if self._host_experts:
                self._host_experts.close()
            if not self._borrows:
                self._tensors.close()
            self._tensors = None
            for at in (self._at.arena, self._at.step, self._at.cache, self._at.counters, self._at.states):
                if at:
                    self._device.free(at)
            if self._owns_device:
                self._device.close()

    @property
    def memory(self) -> MemoryUse:
        weights = self._tensors.bytes if self._tensors else 0
        states = 2 * self.state_slots * self._state_bytes
        return MemoryUse(weights, self._arena_size + 4 * self._step_words, self._layout.page_bytes, states=states)


def _loose(graph: Graph) -> bool:
    """Whether scores are computed one operation at a time: then a program depends on their number."""
    plan = fuse(graph)
    return any(isinstance(g, Single) and plan.domains[g.node.name] == "scores" for g in plan.groups)


def _power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
