"""The cpu engine: the graph compiled to a native program, run on batches over a paged cache.

    precision fast    activations quantised to int8 blocks for quantised weights, cache in float16
    precision exact   float32 activations everywhere, cache in float32

The logits of a sequence have the same bits for any number of threads, with any other sequences in the batch, and for
any cut of the prompt. Neither a cached prefix nor a trace changes a bit.

`compile.py` turns a graph into native steps, and `foreign_kernels.py` lets another package add a kernel. The C++ code
that runs the steps is in the repository's folder `native/program`, its kernels in `native/kernels`. Touch this file for
weights, cache and options of the engine.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from operator import mul

import numpy as np
from numpy.typing import NDArray

from assay import _native
from assay.engines.contract import (
    PAGE,
    Arithmetic,
    CacheBytes,
    Chunk,
    Emit,
    MemoryUse,
    Output,
    PagedEngine,
    check_batch,
    hand_over,
    pages_for,
)
from assay.engines.cpu.compile import GATES, Compiled, compile_program
from assay.engines.plan.batching import Results, Step, in_turns, steps, whole
from assay.engines.plan.fuse import Attention, Gated, fuse
from assay.engines.plan.graph_variants import PLAIN, GraphVariant, GraphVariants
from assay.engines.plan.state_layout import KV_TYPES, cache_pools, slot_offsets
from assay.engines.plan.state_layout import state_slots as count_slots
from assay.engines.plan.state_places import StatePlaces, Targets
from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.gguf.types import by_name
from assay.graph import Graph, Trait
from assay.models import Model
from assay.models.adapters import Adapter, joined_file
from assay.models.pictures import EVERYTHING
from assay.system import machine

PRECISIONS = {"fast": "f16", "exact": "f32"}  # precision -> default type of the cache
_PROGRAMS = 8  # most compiled programs in memory, one for each set of kept nodes
_F32 = by_name("F32").id


def available_memory() -> int:
    """Bytes that the system can allocate without swapping."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return machine.memory()


class _Tensors:
    """Weights in native form, each loaded once: interleaved copies, or the mapped file if memory is short.

    The copies are made in the background, after the first step or a second of rest; later steps wait for them."""

    def __init__(self, file: GGUFFile, graph: Graph, pool: _native.Pool, exact: bool, pack: bool) -> None:
        self.file, self.exact = file, exact
        self.pack = pack
        self.loader = _native.Loader(pool)
        self.products: set[str] = set()
        self.matrices: dict[str, _native.Weight] = {}
        self.split: dict[str, tuple[_native.Weight, _native.Weight]] = {}
        self.arrays: dict[str, NDArray[np.float32]] = {}
        self.vectors: dict[str, _native.Vector] = {}
        self.adapters: dict[tuple[str, str], _native.Vector] = {}
        self.others: dict[str, NDArray[np.uint8]] = {}  # blocks that replace those of the file
        self.add(graph)

    def add(self, graph: Graph) -> None:
        """Load the weights of a graph that are not loaded yet."""
        self.products |= {name for node in graph if node.has(Trait.PRODUCT) for name in node.weights}
        for group in fuse(graph, (), self.format, GATES).groups:
            if isinstance(group, Gated) and group.one_matrix:
                self.halves(group.gate.weights[0])
        for node in graph:
            for name in node.weights if node.op != "add_adapter" else ():  # pairs are loaded by `adapter`
                if not node.has(Trait.MATRIX):
                    self.vector(name)
                elif name not in self.split:
                    self.matrix(name)

    def matrix(self, name: str) -> _native.Weight:
        found = self.matrices.get(name)
        if found is None:
            # A table that is only looked up stays in the file. So does a whole matrix whose halves are loaded.
            pack = name in self.products and name not in self.split
            found = self.matrices[name] = self._load(name, slice(None), pack)
        return found

    def halves(self, name: str) -> tuple[_native.Weight, _native.Weight]:
        """The first and the second half of a matrix's rows."""
        if name not in self.split:
            half = self.file.tensors[name].shape[0] // 2
            self.split[name] = self._load(name, slice(half), True), self._load(name, slice(half, None), True)
        return self.split[name]

    def _load(self, name: str, rows: slice, pack: bool) -> _native.Weight:
        info = self.file.tensors[name]
        shape, kind, mapped = info.shape, info.type.id, self.file.byteorder == "little"
        if name in self.others and _native.supported(kind):
            raw, mapped = self.others[name], False
        elif _native.supported(kind):
            raw = self.file.raw(name)
        else:  # no kernel decodes this type: decode it once, here
            raw, kind, mapped = self.file.decode(name).view(np.uint8), _F32, False
        shape = (1, *shape) if len(shape) == 1 else shape  # a vector is a matrix of one row
        raw = raw.reshape(*shape[:-1], -1)[rows]
        count = raw.shape[0] if len(shape) == 3 else 1
        size = (count, raw.shape[-2], shape[-1])
        return _native.Weight(self.loader, raw, kind, size, self.pack and pack, mapped)

    def swap(self, name: str, raw: NDArray[np.uint8]) -> Callable[[], None]:
        """Replace a tensor's blocks by others of the same type. Call the result to restore them."""
        matrix, pair = self.matrices.pop(name, None), self.split.pop(name, None)
        self.others[name] = raw
        if pair is not None:
            self.halves(name)
        if matrix is not None:
            self.matrix(name)

        def undo() -> None:
            del self.others[name]
            if matrix is not None:
                self.matrices[name] = matrix
            if pair is not None:
                self.split[name] = pair

        return undo

    def weights(self) -> Iterator[_native.Weight]:
        yield from self.matrices.values()
        for pair in self.split.values():
            yield from pair

    def array(self, name: str) -> NDArray[np.float32]:
        if name not in self.arrays:
            self.arrays[name] = np.ascontiguousarray(self.file.decode(name), np.float32)
        return self.arrays[name]

    def vector(self, name: str) -> _native.Vector:
        if name not in self.vectors:
            self.vectors[name] = _native.Vector(self.array(name).ravel())
        return self.vectors[name]

    def adapter(self, a: str, b: str) -> _native.Vector:
        """The two matrices of an adapter in float32: A, then the transpose of B."""
        if (a, b) not in self.adapters:
            values = (self.file.decode(a).ravel(), self.file.decode(b).T.ravel())
            self.adapters[a, b] = _native.Vector(np.concatenate(values, dtype=np.float32))
        return self.adapters[a, b]

    def format(self, name: str) -> str:
        kind = self.file.tensors[name].type.id
        return _native.acts_format(kind if _native.supported(kind) else _F32, self.exact)


class _CpuBytes:
    """The capability `cache_bytes` of the cpu engine."""

    def __init__(self, engine: CpuEngine, cache: _native.Cache, states: StatePlaces) -> None:
        self._cache, self._states, self._groups = cache, states, [0, *engine.windows]
        self._state_bytes = 4 * slot_offsets(engine.graph)[1]
        self.layout = f"cpu {engine.isa} {PAGE} {cache.page_bytes} {self._groups} {self._state_bytes}"

    def read_page(self, page: int, window: int = 0) -> NDArray[np.uint8]:
        group = self._groups.index(window)
        found = np.empty(self._cache.page_bytes[group], np.uint8)
        self._cache.read_page(page, group, found)
        return found

    def write_page(self, page: int, content: NDArray[np.uint8], window: int = 0) -> None:
        self._cache.write_page(page, self._groups.index(window), content)

    def read_state(self, slot: int) -> NDArray[np.uint8]:
        found = np.empty(self._state_bytes, np.uint8)
        self._cache.read_state(self._states.place[slot], found)
        return found

    def write_state(self, slot: int, content: NDArray[np.uint8], length: int) -> None:
        self._cache.write_state(self._states.place[slot], content)
        self._states.written(slot, length)


class CpuEngine(PagedEngine):
    """The engine contract over compiled programs."""

    name = "cpu"
    pictures = EVERYTHING
    token_types = True
    precisions = PRECISIONS
    separate_windows = True

    def __init__(
        self,
        model: Model,
        *,
        threads: int | None = None,
        precision: str = "fast",
        kv_type: str | None = None,
        n_pages: int | None = None,
        window_pages: Callable[[int], int] | None = None,
        pack: bool | None = None,
        graph: Graph | None = None,
        isa: str | None = None,
        state_slots: int | None = None,
        lender: CpuEngine | None = None,
        adapters: Sequence[Adapter] = (),
    ) -> None:
        if precision not in PRECISIONS:
            raise AssayError(f"engine cpu: no such precision (found {precision}, expected {' or '.join(PRECISIONS)})")
        kv_type = kv_type or PRECISIONS[precision]
        if kv_type not in KV_TYPES:
            raise AssayError(f"engine cpu: no such cache type (found {kv_type}, expected {', '.join(KV_TYPES)})")
        threads = threads or machine.cores()
        if not 1 <= threads <= 1024:
            raise AssayError(f"engine cpu: threads must be 1 to 1024 (found {threads})")
        try:
            self._pool: _native.Pool = lender._pool if lender else _native.Pool(threads, isa or "")
        except ValueError as error:
            raise AssayError(f"engine cpu: {error}") from None
        self.isa = self._pool.isa
        self.model = model
        self.graph = graph or model.graph
        self.arithmetic, self.threads = Arithmetic("native", precision, kv_type, _native.ARITHMETIC), threads
        self.n_pages = n_pages if n_pages is not None else pages_for(model.hparams.n_ctx_train)
        if self.n_pages < 1:
            raise AssayError(f"engine cpu: the cache needs at least one page (found {self.n_pages})")
        if pack is None:
            sizes = ((t.type.id, math.prod(t.shape[:-1]), t.shape[-1]) for t in model.file.tensors.values())
            pack = 1.1 * sum(self._pool.weight_bytes(*size) for size in sizes) < available_memory()
        self.adapters = tuple(adapters)
        self._variants = GraphVariants(self, lambda name: self._weights().array(name))
        self._programs: dict[tuple[frozenset[str], GraphVariant], Compiled] = {}
        if window_pages:  # pages of all sequences together for each window; chunks then bring window tables
            masks = sum(node.has(Trait.MASKS) for node in self.graph)
            fused = sum(isinstance(group, Attention) for group in fuse(self.graph).groups) == masks
            found = self.graph.state.windows if fused else ()  # else some step would read evicted keys
            self.windows = {w: n for w in found if (n := window_pages(w)) < self.n_pages}
        groups = [0, *self.windows]
        pools = sorted(set(cache_pools(self.graph).values()), key=lambda pool: pool.index)
        try:
            shapes = [
                (p.type(kv_type), p.keys, p.heads, p.dim, groups.index(p.window) if p.window in groups else 0)
                for p in pools
            ]
            self._shapes = shapes if all(pool.passing for pool in pools) else None
            if lender and self._shapes and (lender._shapes, lender.n_pages) == (shapes, self.n_pages):
                self._cache: _native.Cache = lender._cache  # rows of one pass, and the engines take turns
            else:
                self._cache = _native.Cache([(0, self.n_pages), *self.windows.items()], shapes)
            self._states = self._state_memory(state_slots)
            same = lender and lender.model.file is model.file
            self._tensors: _Tensors | None = lender._tensors if lender and same else None
            if self._tensors:
                self._tensors.add(self.graph)
            else:
                self._tensors = _Tensors(
                    joined_file(model.file, self.adapters), self.graph, self._pool, precision == "exact", pack
                )
        except ValueError as error:
            raise AssayError(f"{model.file.path}: {error}") from None
        except MemoryError as error:
            raise AssayError(f"{model.file.path}: {error}; use fewer pages or pack=False") from None

    def beside(self, graph: Graph, n_pages: int, model: Model | None = None) -> PagedEngine:
        a = self.arithmetic
        return CpuEngine(
            model or self.model, threads=self.threads, precision=a.precision, kv_type=a.kv_type, n_pages=n_pages,
            graph=graph, lender=self,
        )  # fmt: skip

    def _state_memory(self, asked: int | None) -> StatePlaces:
        """State slots, two for each that a chunk can name: a batch that fails leaves the state as it was."""
        _, floats = slot_offsets(self.graph)
        self.state_slots = count_slots(self.graph, asked)
        if self.state_slots:
            self.state_slots = min(self.state_slots, max(2, machine.memory() // 4 // (8 * floats)))
            self._cache.add_states(2 * self.state_slots, floats)
        self.spare_states = self.state_slots
        return StatePlaces(self.state_slots)

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Emit | None = None) -> list[Output]:
        """One step; results in the order of the batch. Kept nodes have a row for every token."""
        check_batch(self, batch, keep)
        self._states.check(self, batch)
        variant, batch = self._variants.of(batch)
        outputs: list[Output] = []
        with self._states.updated(batch) as targets:
            for names in in_turns(self.graph, keep, batch) if emit else (keep,):
                outputs = hand_over(self._forward(batch, frozenset(names), targets, variant), emit)
        return outputs

    def _forward(
        self, batch: Sequence[Chunk], keep: frozenset[str], targets: Targets, variant: GraphVariant
    ) -> list[Output]:
        compiled = self._compiled(keep, variant)
        domains = {e.domain for e in compiled.externals}
        cut = not self.graph.whole and "sequences" not in domains
        results = Results(compiled.externals, batch)
        if domains & {"keys", "scores"} and any(int(t.min()) < 0 for c in batch for t in c.windows.values()):
            raise AssayError(
                "engine cpu: cannot trace attention scores: keys outside the window were evicted; keep fewer nodes"
            )
        for step in whole(batch) if domains & {"keys", "scores"} else steps(batch, cut=cut):
            self._run(compiled, step, self._states.read_and_written(step, targets), results.take(step))
        return results.outputs(self.graph, keep, compiled.aliases)

    def _compiled(self, keep: frozenset[str], variant: GraphVariant = PLAIN) -> Compiled:
        """The program that keeps these nodes, in the variant of the graph that the batch needs."""
        weights = self._weights()
        found = self._programs.pop((keep, variant), None)
        if found is None:
            exact, graph = self.arithmetic.precision == "exact", self._variants.graph(variant)
            if variant != PLAIN:
                weights.add(graph)
            found = compile_program(graph, weights, self._pool, self._cache, keep, exact=exact)
            if len(self._programs) >= _PROGRAMS:
                del self._programs[next(iter(self._programs))]  # the least recently used one
        self._programs[keep, variant] = found
        return found

    def _weights(self) -> _Tensors:
        if self._tensors is None:
            raise AssayError("engine cpu: it has been closed; open another")
        return self._tensors

    def _run(
        self, compiled: Compiled, step: Step, states: NDArray[np.int32], arrays: list[NDArray[np.float32]]
    ) -> None:
        interruptible = threading.current_thread() is threading.main_thread()
        try:
            compiled.program.run(
                step.tokens(), step.positions(), step.table(1 + len(self.windows)), step.pages(self.windows), states,
                arrays, interruptible,
            )  # fmt: skip
        except MemoryError as error:
            raise AssayError(f"engine cpu: {error}; use smaller batches") from None
        self.model.file.check()  # tables that are only looked up are read from the mapped file

    @contextmanager
    def swapped(self, name: str, raw: NDArray[np.uint8]) -> Iterator[None]:
        """While inside, a matrix has other values: blocks of the same type, laid out as in `file.raw`."""
        undo = self._weights().swap(name, raw)
        self._programs.clear()
        try:
            yield
        finally:
            undo()
            self._programs.clear()

    def copy_page(self, source: int, to: int, window: int = 0) -> None:
        self._cache.copy_page(source, to, [0, *self.windows].index(window))

    def copy_state(self, source: int, to: int, length: int | None = None) -> None:
        self._cache.copy_state(self._states.at(source, length), self._states.place[to])
        self._states.copied(source, to, length)

    def cut_state(self, slot: int, length: int) -> None:
        self._states.cut(slot, length)

    @property
    def cache_bytes(self) -> CacheBytes | None:
        return _CpuBytes(self, self._cache, self._states)

    def close(self) -> None:
        """Free weights and programs. Nothing can be computed afterwards."""
        self._programs.clear()
        self._tensors = None

    @property
    def memory(self) -> MemoryUse:
        weights = sum(w.bytes for w in self._tensors.weights()) if self._tensors else 0
        buffers = sum(c.program.arena_bytes for c in self._programs.values())
        page, *others = self._cache.page_bytes
        states = 8 * slot_offsets(self.graph)[1] * self.state_slots  # two float32 copies of each slot
        return MemoryUse(weights, buffers, page, sum(map(mul, others, self.windows.values())), states)
