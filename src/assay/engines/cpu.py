"""The cpu engine: the graph compiled to a native program, run on batches over a paged cache.

    precision fast    activations quantised to int8 blocks for quantised weights, cache in float16
    precision exact   float32 activations everywhere, cache in float32

The logits of a sequence do not depend on the number of threads, on the rest of the batch, on how a prompt is cut,
on whether a prefix was in the cache, or on what is kept.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from assay import _native
from assay.engines.base import (
    Arithmetic,
    Chunk,
    Emit,
    Memory,
    Output,
    PagedEngine,
    check_batch,
    hand_over,
    pages_for,
)
from assay.engines.batch import Results, Step, in_turns, steps, whole
from assay.engines.cache import KV_TYPES, cache_pools
from assay.engines.cpu_compile import Compiled, compile_program
from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.gguf.types import by_name
from assay.graph import Graph
from assay.models import Model

PRECISIONS = {"fast": "f16", "exact": "f32"}  # and the type of the cache that goes with it
_PROGRAMS = 8  # compiled programs kept: one for each set of kept nodes
_F32 = by_name("F32").id


def available_memory() -> int:
    """Bytes the system can give without swapping."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class _Tensors:
    """Weights in native form, each loaded once: interleaved copies, or the mapped file where memory is short."""

    def __init__(self, file: GGUFFile, graph: Graph, pool: _native.Pool, exact: bool, pack: bool) -> None:
        self.file, self.pool, self.exact = file, pool, exact
        self.pack = pack
        self.arena = _native.Arena()
        self.products = {name for node in graph if "linear" in node.op for name in node.weights}
        self.matrices: dict[str, _native.Weight] = {}
        self.arrays: dict[str, NDArray[np.float32]] = {}
        self.vectors: dict[str, _native.Vector] = {}
        for node in graph:
            for name in node.weights:
                if node.op in ("linear", "embed", "expert_linear"):
                    self.matrix(name)
                else:
                    self.vector(name)

    def matrix(self, name: str) -> _native.Weight:
        found = self.matrices.get(name)
        if found is None:
            info = self.file.tensors[name]
            raw, kind = self.file.raw(name), info.type.id
            mapped = self.file.byteorder == "little"
            if not _native.supported(kind):  # no kernel decodes it: decode once, here
                raw, kind, mapped = self.file.decode(name).view(np.uint8), _F32, False
            count = info.shape[0] if len(info.shape) == 3 else 1
            pack = self.pack and name in self.products  # a table only looked up stays in the file
            shape = (count, info.shape[-2], info.shape[-1])
            found = self.matrices[name] = _native.Weight(self.arena, self.pool, raw, kind, shape, pack, mapped)
        return found

    def array(self, name: str) -> NDArray[np.float32]:
        if name not in self.arrays:
            self.arrays[name] = np.ascontiguousarray(self.file.decode(name), np.float32)
        return self.arrays[name]

    def vector(self, name: str) -> _native.Vector:
        if name not in self.vectors:
            self.vectors[name] = _native.Vector(self.array(name))
        return self.vectors[name]

    def format(self, name: str) -> str:
        kind = self.file.tensors[name].type.id
        return _native.acts_format(kind if _native.supported(kind) else _F32, self.exact)


class CpuEngine(PagedEngine):
    """The engine contract over compiled programs."""

    name = "cpu"

    def __init__(
        self,
        model: Model,
        *,
        threads: int | None = None,
        precision: str = "fast",
        kv_type: str | None = None,
        n_pages: int | None = None,
        pack: bool | None = None,
        graph: Graph | None = None,
        isa: str | None = None,
    ) -> None:
        if precision not in PRECISIONS:
            raise AssayError(f"engine cpu: no such precision (found {precision}, expected {' or '.join(PRECISIONS)})")
        kv_type = kv_type or PRECISIONS[precision]
        if kv_type not in KV_TYPES:
            raise AssayError(f"engine cpu: no such cache type (found {kv_type}, expected {', '.join(KV_TYPES)})")
        threads = threads or len(os.sched_getaffinity(0))
        if not 1 <= threads <= 1024:
            raise AssayError(f"engine cpu: threads must be 1 to 1024 (found {threads})")
        try:
            self._pool = _native.Pool(threads, isa or "")
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
            pack = model.file.size * 1.2 < available_memory()
        self._programs: dict[frozenset[str], Compiled] = {}
        pools = [(p.keys, p.heads, p.dim) for p in cache_pools(self.graph).values()]
        try:
            self._cache = _native.Cache(self.n_pages, kv_type, pools)
            self._tensors: _Tensors | None = _Tensors(model.file, self.graph, self._pool, precision == "exact", pack)
        except ValueError as error:
            raise AssayError(f"{model.file.path}: {error}") from None
        except MemoryError as error:
            raise AssayError(f"{model.file.path}: {error}; use fewer pages or pack=False") from None

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Emit | None = None) -> list[Output]:
        """One step; results in the order of the batch. Kept nodes have a row for every token."""
        check_batch(self, batch, keep)
        outputs: list[Output] = []
        for names in in_turns(self.graph, keep, batch) if emit else (keep,):
            outputs = hand_over(self._forward(batch, frozenset(names)), emit)
        return outputs

    def _forward(self, batch: Sequence[Chunk], keep: frozenset[str]) -> list[Output]:
        compiled = self._compiled(keep)
        scores = any(e.domain in ("keys", "scores") for e in compiled.externals)
        results = Results(compiled.externals, batch)
        for step in whole(batch) if scores else steps(batch):
            self._run(compiled, step, results.take(step))
        return results.outputs(self.graph, keep, compiled.aliases)

    def _compiled(self, keep: frozenset[str]) -> Compiled:
        if self._tensors is None:
            raise AssayError("engine cpu: it has been closed")
        found = self._programs.pop(keep, None)
        if found is None:
            exact = self.arithmetic.precision == "exact"
            found = compile_program(self.graph, self._tensors, self._pool, self._cache, keep, exact=exact)
            if len(self._programs) >= _PROGRAMS:
                del self._programs[next(iter(self._programs))]  # the one used longest ago
        self._programs[keep] = found
        return found

    def _run(self, compiled: Compiled, step: Step, arrays: list[NDArray[np.float32]]) -> None:
        interruptible = threading.current_thread() is threading.main_thread()
        try:
            compiled.program.run(step.tokens(), step.positions(), step.table(), step.pages(), arrays, interruptible)
        except MemoryError as error:
            raise AssayError(f"engine cpu: {error}; use smaller batches") from None

    def copy_page(self, source: int, to: int) -> None:
        self._cache.copy_page(source, to)

    def close(self) -> None:
        """Let go of weights and cache; nothing can be computed afterwards."""
        self._programs.clear()
        self._tensors = None

    @property
    def memory(self) -> Memory:
        weights = sum(w.bytes for w in self._tensors.matrices.values()) if self._tensors else 0
        buffers = sum(c.program.arena_bytes for c in self._programs.values())
        return Memory(weights, buffers, self._cache.page_bytes)
