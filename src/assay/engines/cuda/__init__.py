"""The cuda engine: the graph as launches on an NVIDIA GPU, run on batches over a paged cache.

    precision fast    the cpu engine's bits: int8 activations for quantised weights, cache in float16
    precision exact   the cpu engine's exact bits: every weight as float32, cache in float32
    precision tensor  products and attention on 16-bit tensor cores; weights, activations, queries and the softmax are
                      rounded to f16 (bf16 for BF16 weights): faster for prompts and many streams, bits of its own, the
                      same whatever the batch, the cut of the prompt or the cache; they may differ between kinds of GPU

The first two compute docs/reference/arithmetic.md, as the cpu engine does, so the logits are the same bits, whatever
the batch, the cut of the prompt or the cache. `docs/explanation/gpu.md` has the figures.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay import _native
from assay.engines.contract import (
    BEST,
    PAGE,
    Arithmetic,
    Best,
    Chunk,
    Emit,
    Memory,
    Output,
    PagedEngine,
    check_batch,
    hand_over,
    pages_for,
)
from assay.engines.cuda.compile import compile_program
from assay.engines.cuda.device import Device, DeviceError, Driver
from assay.engines.cuda.layout import Tensors
from assay.engines.cuda.program import Memory as Addresses
from assay.engines.cuda.program import Program
from assay.engines.cuda.shapes import Shape, cache_layout, tile_cuts
from assay.engines.cuda.sources import cubins
from assay.engines.plan.batching import Results, Step, in_turns, steps, whole
from assay.engines.plan.cache import KV_TYPES
from assay.engines.plan.fuse import Single, fuse
from assay.errors import AssayError
from assay.graph import Graph
from assay.models import Model

PRECISIONS = {"fast": "f16", "exact": "f32", "tensor": "f16"}  # and the type of the cache that goes with it
STEP, ROOMY = 1024, 8 << 30  # most tokens computed at once; twice as many where so many bytes are free
_PROGRAMS = 64
_GRAPHED = 64  # steps of at most so many tokens are kept as CUDA graphs
_SPARE = 512 << 20  # bytes left for buffers and graphs when the cache takes what is free


class _Run:
    """A step and those that follow it, `most` rounds in all. Some are queued ahead of the one that is looked at, and
    looking waits for it."""

    def __init__(
        self, begin: Callable[[int], None], wait: Callable[[int], list[NDArray[np.float32]]], most: int, ahead: int
    ) -> None:
        self.most, self.begun = most, 0
        self._begin, self._wait, self._ahead = begin, wait, ahead
        self._found: list[list[NDArray[np.float32]]] = []
        self._go_on()

    def _go_on(self) -> None:
        seen = len(self._found)  # who comes soon after another does not wait for long: at first few are ahead
        while self.begun < min(self.most, seen + 1 + min(self._ahead, 2 + seen)):
            self._begin(self.begun)
            self.begun += 1

    def results(self, i: int) -> list[NDArray[np.float32]]:
        """Of round i."""
        while i >= len(self._found):
            self._go_on()
            self._found.append(self._wait(len(self._found)))
        return self._found[i]


class _Following(Sequence[Best]):
    """What comes for one sequence after its first token."""

    def __init__(self, run: _Run, of: Callable[[int], list[Best]], sequence: int, n: int) -> None:
        self._run, self._of, self._sequence, self._n = run, of, sequence, n

    def __len__(self) -> int:
        return min(self._n, self._run.most - 1)

    def __getitem__(self, i: Any) -> Any:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self._of(1 + i)[self._sequence]


class CudaEngine(PagedEngine):
    """The engine contract over compiled programs and one device."""

    name = "cuda"
    follows = True

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
    ) -> None:
        if precision not in PRECISIONS:
            raise AssayError(f"engine cuda: no such precision (found {precision}, expected {', '.join(PRECISIONS)})")
        kv_type = kv_type or PRECISIONS[precision]
        if kv_type not in KV_TYPES:
            raise AssayError(f"engine cuda: no such cache type (found {kv_type}, expected {', '.join(KV_TYPES)})")
        self.model, self.graph = model, graph or model.graph
        name = "cuda" if precision == "tensor" else "native"
        self.arithmetic = Arithmetic(name, precision, kv_type, _native.ARITHMETIC)
        self.n_pages = n_pages if n_pages is not None else pages_for(model.hparams.n_ctx_train)
        if self.n_pages < 1:
            raise AssayError(f"engine cuda: the cache needs at least one page (found {self.n_pages})")
        self._layout = cache_layout(self.graph, kv_type)
        self._loose = _loose(self.graph)
        self._busy = threading.Lock()
        self._programs: dict[tuple[Shape, frozenset[str]], Program] = {}
        self._arena_size = self._step_words = 0
        self._at = Addresses(0, 0, 0, 0)
        self._host: NDArray[np.int32] = np.empty(0, np.int32)
        self._landing: NDArray[np.float32] = np.empty(0, np.float32)  # where results of graphs come to the host
        self._run_on: _Run | None = None  # rounds that somebody may still look at
        self._shifted = False  # a position has differed from its slot: masks go by positions from then on
        self._device: Any = device or Driver(partial(cubins, tensor=precision == "tensor"))
        self.isa = self._device.name
        self._tensors: Tensors | None = Tensors(self._device, model.file, precision)
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        """Weights and cache onto the device, or one line that says why not."""
        assert self._tensors
        self._cuts = tile_cuts(self.graph, self._layout, self._device.shared_bytes, self._tensors.halves)
        self._check_room(self._tensors.planned(self.graph))
        self._positions: NDArray[np.int32] = np.zeros((self.n_pages, PAGE), np.int32)
        size = self._layout.page_bytes * self.n_pages
        self._at.cache = self._device.alloc(size, f"a cache of {self.n_pages} pages")
        self._device.zero(self._at.cache, size)
        self._step = STEP if self._device.memory()[0] < ROOMY else 2 * STEP
        heads = max((int(self.graph.shapes[n.name][0]) for n in self.graph if n.op == "kqv"), default=1)
        counters = 4 * max(self._step * heads, 65536)
        self._at.counters = self._device.alloc(counters, "counters")
        self._device.zero(self._at.counters, counters)
        for shape in self._first_shapes():  # loads every weight, or refuses the graph
            self._program(shape, frozenset())
        self._tensors.settle()
        self._device.loaded()

    def _first_shapes(self) -> list[Shape]:
        cuts = max(1, len(self._cuts))
        many = Shape(8, 8, False, 1, 8, 8, cuts, chunks=1, longest=8, keys=8 * self._loose, scores=64 * self._loose)
        return [many] if self._loose or self.graph.whole else [Shape(1, 1, True, 1, 8), many]

    def _check_room(self, weights: int) -> None:
        """Weights, pages and some buffers must fit what is free."""
        free, total = self._device.memory()
        pages = self._layout.page_bytes * self.n_pages
        if weights + pages + _SPARE > free:
            raise AssayError(
                f"{self.model.file.path}: does not fit {self._device.name} ({weights >> 20} MB of weights, "
                f"{pages >> 20} MB for {self.n_pages} pages and {_SPARE >> 20} MB for buffers, {free >> 20} of "
                f"{total >> 20} MB free); use fewer pages or --engine cpu"
            )

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Emit | None = None) -> list[Output]:
        """One step; results in the order of the batch. Kept nodes have a row for every token."""
        check_batch(self, batch, keep)
        with self._busy:
            if self._tensors is None:
                raise AssayError("engine cuda: it has been closed")
            self._device.use()
            outputs: list[Output] = []
            for names in in_turns(self.graph, keep, batch) if emit else (keep,):
                outputs = hand_over(self._forward(batch, frozenset(names)), emit)
            return outputs

    def _forward(self, batch: Sequence[Chunk], keep: frozenset[str]) -> list[Output]:
        whole_text, pooled = self.graph.whole, bool(self.graph.pooled & {*keep, self.graph.output})
        plain = not (keep or whole_text or self._loose or self.graph.given)
        if plain and len(batch) <= _GRAPHED and all(c.n_tokens == 1 == c.n_outputs for c in batch):
            return self._tokens(batch)
        scored = any("S" in self.graph.shapes[name] or self._is_scores(name) for name in keep)
        results: Results | None = None
        found: list[Output] = []
        program = None
        for step in whole(batch) if scored else steps(batch, self._step, cut=not (whole_text or pooled)):
            self._note_positions([p.chunk for p in step.pieces])
            shape = self._shape(step, exact=scored or self._loose, together=whole_text or pooled)
            program = self._program(shape, keep)
            if results is None:
                results = Results([e for e, _ in program.results], batch)
            self._run(program, step, results.take(step))
        if results is not None and program is not None:
            found = results.outputs(self.graph, keep, program.aliases)
        return found

    def _tokens(self, batch: Sequence[Chunk]) -> list[Output]:
        """A token a sequence and nothing kept, the usual step of serving: its graph, and one copy of the logits."""
        self._note_positions(batch)
        most = max(c.best for c in batch) if all(c.best for c in batch) else 0
        best = 0 if most > BEST else BEST if most > 1 else most
        follow = [c.follow if best == 1 else 0 for c in batch]
        longest = max(c.end + n for c, n in zip(batch, follow, strict=True))
        program = self._program(self._one(len(batch), longest, best), frozenset())
        width = program.results[0][0].width
        run = self._play(program, batch, follow)
        if not best:
            return [Output(row[None]) for row in run.results(0)[0].reshape(len(batch), width)]

        @cache
        def of(i: int) -> list[Best]:
            """Round i, a row a sequence."""
            found = run.results(i)[0].reshape(len(batch), width)
            return list(map(Best, found[:, best:].astype(np.int64), found[:, :best]))

        nothing = np.empty((0, int(self.graph.shapes[self.graph.output][1])), np.float32)
        firsts = zip(of(0), follow, strict=True)
        return [Output(nothing, {}, first, _Following(run, of, i, n)) for i, (first, n) in enumerate(firsts)]

    # -- shapes ----------------------------------------------------------------------------------------------------

    def _note_positions(self, chunks: Sequence[Chunk]) -> None:
        """Whether positions differ from slots: masks go by positions then, and from then on."""
        for c in chunks:
            if c.positions is not None and not self._shifted:
                self._shifted = not np.array_equal(np.arange(c.start, c.end), c.positions)

    def _one(self, sequences: int, longest: int, best: int = 0) -> Shape:
        """A token for each sequence, all of them outputs."""
        m, blocks = _power(sequences), _power(-(-longest // 256))
        return Shape(m, m, True, blocks, m * blocks * 8, irregular=self._shifted, best=best)

    def _shape(self, step: Step, *, exact: bool = False, together: bool = False) -> Shape:
        """`exact`: keys and scores are counted; `together`: sequences are, which are not cut."""
        sizes = [p.end - p.begin for p in step.pieces]
        ends = [p.chunk.start + p.end for p in step.pieces]
        m, n, cuts, pieces = step.n_tokens, step.n_outputs, max(1, len(self._cuts)), len(sizes)
        blocks = _power(max(-(-end // 256) for end in ends))
        tables = sum(pages_for(end) for end in ends)
        tiles = sum(self._tiles(size) for size in sizes)
        if exact:
            keys, scores = sum(ends), sum(a * b for a, b in zip(sizes, ends, strict=True))
            return Shape(m, n, False, blocks, tables, tiles, cuts, pieces, max(sizes), keys, scores, self._shifted)
        if max(sizes) == 1 and n == m and not together:
            return self._one(m, max(ends))
        m = _power(m) if m <= 64 else -(-m // 64) * 64
        outputs = 0 if n == 0 else min(m, _power(n))
        chunks = _power(pieces) if together else 0
        return Shape(m, outputs, False, blocks, _power(tables), _power(tiles), cuts, chunks, irregular=self._shifted)

    def _tiles(self, tokens: int) -> int:
        return max((-(-tokens * group // rows) for group, rows in self._cuts), default=1)

    def _is_scores(self, name: str) -> bool:
        return sum(isinstance(d, str) for d in self.graph.shapes[name]) == 2

    def _program(self, shape: Shape, keep: frozenset[str]) -> Program:
        key = shape, keep
        found = self._programs.pop(key, None)
        if found is None:
            assert self._tensors is not None
            found = compile_program(
                self.graph,
                self._tensors,
                self._layout,
                shape,
                keep,
                self._device.shared_bytes,
                self._cuts,
                self._place(shape),
            )
            if len(self._programs) >= _PROGRAMS:
                self._programs.pop(next(iter(self._programs))).close()  # the one used longest ago
        self._programs[key] = found
        return found

    def _place(self, shape: Shape) -> Callable[[int], Addresses]:
        def place(arena: int) -> Addresses:
            if arena > self._arena_size or shape.words > self._step_words:
                self._grow(max(arena, self._arena_size), max(shape.words, self._step_words, 65536))
            return self._at

        return place

    def _grow(self, arena: int, words: int) -> None:
        """Larger buffers. Where the device has no room, there are none, and the next step asks for its own size."""
        self._device.sync()
        self._forget_programs()  # they hold addresses
        for at in (self._at.arena, self._at.step):
            if at:
                self._device.free(at)
        self._at.arena = self._at.step = self._arena_size = self._step_words = 0
        self._at.arena = self._device.alloc(arena, "buffers")
        self._at.step = self._device.alloc(4 * words, "tables of a step")
        self._host = self._device.pinned(4 * words).view(np.int32)
        self._arena_size, self._step_words = arena, words

    def _forget_programs(self) -> None:
        self._settle()
        for program in self._programs.values():
            program.close()
        self._programs.clear()

    # -- a run -----------------------------------------------------------------------------------------------------

    def _run(self, program: Program, step: Step, arrays: list[NDArray[np.float32]]) -> None:
        shape = program.shape
        rows = {"tokens": step.n_tokens, "outputs": step.n_outputs, "keys": shape.keys, "scores": shape.scores}
        rows["sequences"] = len(step.pieces)
        sizes = [e.width * rows[e.domain] for e, _ in program.results]
        if shape.one and not self.graph.given and shape.tokens <= _GRAPHED:
            found = self._play(program, [p.chunk for p in step.pieces]).results(0)
            for size, array, landed in zip(sizes, arrays, found, strict=True):
                array[:size] = landed
            return
        self._settle()
        words = self._words(program)
        if shape.one:
            self._fill_one(program.tables, [p.chunk for p in step.pieces], ())
        else:
            self._fill(shape, program.tables, step)
        self._queue(program, words, [a[:size] for size, a in zip(sizes, arrays, strict=True)])
        if self.meanwhile:
            self.meanwhile()
        self._device.sync()

    def _words(self, program: Program) -> NDArray[np.int32]:
        """The tables of the step on the host, and views of each."""
        words = self._host[: program.shape.words]
        if not program.tables:
            program.tables = {name: words[at : at + size] for name, (at, size) in program.shape.tables().items()}
        return words

    def _play(self, program: Program, chunks: Sequence[Chunk], follow: Sequence[int] = ()) -> _Run:
        """A step of a token a sequence as one graph; a row a sequence of each result. Then the same with the tables as
        the step before left them and its results, until every sequence has as many tokens more as `follow` says."""
        self._settle()
        more = max(follow, default=0)
        if program.play is None:
            words = self._words(program)
            program.play = self._device.capture(lambda: self._queue(program, words, []))
        if more and program.again is None:
            program.again = self._device.capture(lambda: self._launch(program))
        self._fill_one(program.tables, chunks, follow)
        n = len(program.results)
        sizes = [external.width * len(chunks) for external, _ in program.results] * (1 + more)
        ends = [0, *accumulate(sizes)]
        if ends[-1] > self._landing.size:
            self._landing = self._device.pinned(4 * max(ends[-1], 2 * self._landing.size)).view(np.float32)
        landed = [self._landing[a:b] for a, b in pairwise(ends)]

        def begin(i: int) -> None:
            again = program.again if i else program.play
            assert again
            again()
            self._fetch(program, landed[i * n : (i + 1) * n])
            self._device.mark(i)

        def wait(i: int) -> list[NDArray[np.float32]]:
            self._device.reach(i)
            return [part.copy() for part in landed[i * n : (i + 1) * n]]

        self._run_on = _Run(begin, wait, 1 + more, max(c.ahead for c in chunks))
        if self.meanwhile:
            self.meanwhile()
        return self._run_on

    def _settle(self) -> None:
        """Take what is on its way: the memory it lands in, and the tables it reads, are wanted."""
        if self._run_on:
            run, self._run_on = self._run_on, None
            run.most = run.begun
            for i in range(run.most):
                run.results(i)

    def halt(self) -> None:
        if self._run_on:
            self._run_on.most = self._run_on.begun

    def _queue(self, program: Program, words: NDArray[np.int32], results: list[NDArray[np.float32]]) -> None:
        self._device.upload(self._at.step, words)
        for (external, offset), array in zip(program.results, results, strict=False):
            if external.given:
                self._device.upload(self._at.arena + offset, array)
        self._launch(program)
        self._fetch(program, results)

    def _launch(self, program: Program) -> None:
        for i, launch in enumerate(program.launches):
            self._device.launch(launch, early=i > 0)

    def _fetch(self, program: Program, results: list[NDArray[np.float32]]) -> None:
        for (external, offset), array in zip(program.results, results, strict=False):
            if array.size and not external.given:
                self._device.download(array, self._at.arena + offset)

    def _fill_one(self, at: dict[str, NDArray[np.int32]], chunks: Sequence[Chunk], follow: Sequence[int]) -> None:
        """The tables of a step in which every sequence has one token, and those that `follow` it."""
        if len(chunks) == 1 == at["slots"].size and not any(follow):  # one stream: its time counts most
            c = chunks[0]
            last, position = c.start // PAGE, c.start if c.positions is None else int(c.positions[0])
            at["positions"][0], at["slots"][0], at["tables"][0], at["left"][0] = position, c.start, 0, 0
            at["tokens"][0] = c.tokens[0] if c.tokens.size else 0
            at["pages"][: last + 1] = c.pages[: last + 1]
            self._positions[c.pages[last], c.start % PAGE] = position
            return
        n, slots = len(chunks), [c.start for c in chunks]
        later = list(follow) or [0] * n
        used = [pages_for(c.end + m) for c, m in zip(chunks, later, strict=True)]
        first = [0, *accumulate(used)]
        positions = [c.start if c.positions is None else int(c.positions[0]) for c in chunks]
        rows = {"positions": positions, "tables": first[:n], "slots": slots, "left": later}
        rows["tokens"] = [int(c.tokens[0]) if c.tokens.size else 0 for c in chunks]  # rows may be given in their place
        for name, values in rows.items():
            at[name][:n] = values
            at[name][n:] = -1 if name == "slots" else 0  # rows of padding
        pages = [c.pages[:count] for c, count in zip(chunks, used, strict=True)]
        at["pages"][: first[n]] = np.concatenate(pages)
        self._positions[[c.pages[c.start // PAGE] for c in chunks], np.mod(slots, PAGE)] = positions
        for c, position, m in zip(chunks, positions, later, strict=True):
            if m:
                at_slots = np.arange(c.end, c.end + m)
                self._positions[c.pages[at_slots // PAGE], at_slots % PAGE] = position - c.start + at_slots

    def _fill(self, shape: Shape, at: dict[str, NDArray[np.int32]], step: Step) -> None:
        """The tables of any other step."""
        for name, words in at.items():
            words[:] = -1 if name == "slots" else 0
        row = output = page = tile = output_tile = key = score = 0
        for i, p in enumerate(step.pieces):
            n, start, end = p.end - p.begin, p.chunk.start + p.begin, p.chunk.start + p.end
            positions, slots = p.chunk.all_positions()[p.begin : p.end], np.arange(start, end)
            at["tokens"][row : row + n] = p.chunk.tokens[p.begin : p.end] if p.chunk.tokens.size else 0
            at["positions"][row : row + n] = positions
            at["slots"][row : row + n] = slots
            at["tables"][row : row + n] = page
            self._positions[p.chunk.pages[slots // PAGE], slots % PAGE] = positions
            outs = np.arange(row + n - p.n_outputs, row + n)
            at["outputs"][output : output + len(outs)] = outs
            at["output_positions"][output : output + len(outs)] = positions[n - len(outs) :]
            table = p.chunk.pages[: pages_for(end)]
            at["pages"][page : page + len(table)] = table
            tile += self._cut(at["tiles"], shape, tile, row, n, end, score)
            output_tile += self._cut(at["output_tiles"], shape, output_tile, output, len(outs), end, score)
            if shape.chunks:
                words = np.array((row, n, key, end, score & 0xFFFFFFFF, score >> 32), np.int64)
                at["chunks"].reshape(-1, 6)[i] = words.astype(np.uint32).view(np.int32)
            if shape.keys:
                of_keys = np.arange(end)
                pages = p.chunk.pages[of_keys // PAGE]
                at["keys"].reshape(-1, 2)[key : key + end] = np.stack([pages, of_keys % PAGE], 1)
                at["key_positions"][key : key + end] = self._positions[pages, of_keys % PAGE]
            row, output, page, key, score = row + n, output + len(outs), page + len(table), key + end, score + n * end

    def _cut(
        self, words: NDArray[np.int32], shape: Shape, at: int, first: int, tokens: int, keys: int, score: int
    ) -> int:
        """Tiles of a piece's query rows, 8 words each (attention.h, AttentionArgs::tiles), from place `at` of every cut
        on; how many places they take."""
        most = 0
        for (group, size), table in zip(self._cuts, words.reshape(shape.cuts, -1, 8), strict=False):
            rows = tokens * group
            begins = np.arange(0, rows, size)
            made = np.zeros((len(begins), 8), np.int64)
            made[:, 0], made[:, 1], made[:, 2] = first, begins, np.minimum(size, rows - begins)
            made[:, 3], made[:, 4], made[:, 7] = keys, tokens, first
            made[:, 5], made[:, 6] = score & 0xFFFFFFFF, score >> 32
            table[at : at + len(made)] = made.astype(np.uint32).view(np.int32)
            most = max(most, len(made))
        return most

    def copy_page(self, source: int, to: int) -> None:
        for page in (source, to):
            if not 0 <= page < self.n_pages:
                raise AssayError(f"engine cuda: no page {page} of {self.n_pages}")
        with self._busy:
            self._device.use()
            size = self._layout.page_bytes
            self._device.copy(self._at.cache + to * size, self._at.cache + source * size, size)
            self._positions[to] = self._positions[source]

    def close(self) -> None:
        """Let go of weights and cache; nothing can be computed afterwards."""
        with self._busy:
            if self._tensors is None:
                return
            with suppress(DeviceError):  # one that is lost has nothing to give back
                self._device.use()
            self._forget_programs()
            self._tensors.close()
            self._tensors = None
            for at in (self._at.arena, self._at.step, self._at.cache, self._at.counters):
                if at:
                    self._device.free(at)
            self._device.close()

    @property
    def memory(self) -> Memory:
        weights = self._tensors.bytes if self._tensors else 0
        return Memory(weights, self._arena_size + 4 * self._step_words, self._layout.page_bytes)


def _loose(graph: Graph) -> bool:
    """Whether scores are computed one operation at a time: their number is part of a program then."""
    plan = fuse(graph)
    return any(isinstance(g, Single) and plan.domains[g.node.name] == "scores" for g in plan.groups)


def _power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
