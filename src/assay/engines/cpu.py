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
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay import _native
from assay.engines.base import PAGE, Chunk, Output, check_batch
from assay.engines.cpu_compile import Compiled, External, cache_pools, compile_program
from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.gguf.types import by_name
from assay.graph import Graph
from assay.models import Model

Array = NDArray[Any]

PRECISIONS = {"fast": "f16", "exact": "f32"}  # and the type of the cache that goes with it
KV_TYPES = ("f16", "f32", "bf16", "q8_0")
STEP = 512  # most tokens computed at once; longer batches are cut, which changes no bit
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


@dataclass(frozen=True)
class _Part:
    """Tokens [begin, end) of a chunk, run in one step; logits of its last `n_outputs`."""

    chunk: Chunk
    begin: int
    end: int
    n_outputs: int


class CpuEngine:
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
            self.isa = _native.isa()
        except ValueError as error:
            raise AssayError(f"engine cpu: {error}") from None
        self.model = model
        self.graph = graph or model.graph
        self.precision, self.kv_type, self.threads = precision, kv_type, threads
        self.n_pages = n_pages if n_pages is not None else -(-model.hparams.n_ctx_train // PAGE)
        if self.n_pages < 1:
            raise AssayError(f"engine cpu: the cache needs at least one page (found {self.n_pages})")
        if pack is None:
            pack = model.file.size * 1.2 < available_memory()
        self._pool = _native.Pool(threads)
        self._programs: dict[frozenset[str], Compiled] = {}
        pools = [(p.keys, p.heads, p.dim) for p in cache_pools(self.graph).values()]
        try:
            self._cache = _native.Cache(self.n_pages, kv_type, pools)
            self._tensors: _Tensors | None = _Tensors(model.file, self.graph, self._pool, precision == "exact", pack)
        except ValueError as error:
            raise AssayError(f"{model.file.path}: {error}") from None
        except MemoryError as error:
            raise AssayError(f"{model.file.path}: {error}; use fewer pages or pack=False") from None

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = ()) -> list[Output]:
        """One step; results in the order of the batch. Kept nodes have a row for every token."""
        check_batch(self, batch, keep)
        compiled = self._compiled(frozenset(keep))
        whole = any(e.domain in ("keys", "scores") for e in compiled.externals)
        arrays = _Arrays(compiled.externals, batch)
        for parts in [_whole(batch)] if whole else _steps(batch):
            self._run(compiled, parts, arrays)
        return arrays.outputs(self.graph, compiled, frozenset(keep), batch)

    def _compiled(self, keep: frozenset[str]) -> Compiled:
        if self._tensors is None:
            raise AssayError("engine cpu: it has been closed")
        found = self._programs.pop(keep, None)
        if found is None:
            exact = self.precision == "exact"
            found = compile_program(self.graph, self._tensors, self._pool, self._cache, keep, exact=exact)
            if len(self._programs) >= _PROGRAMS:
                del self._programs[next(iter(self._programs))]  # the one used longest ago
        self._programs[keep] = found
        return found

    def _run(self, compiled: Compiled, parts: list[_Part], arrays: _Arrays) -> None:
        tokens = np.concatenate([p.chunk.tokens[p.begin : p.end] for p in parts]).astype(np.int32, copy=False)
        positions = np.concatenate([_positions(p) for p in parts]).astype(np.int32, copy=False)
        pages = np.concatenate([p.chunk.pages for p in parts]).astype(np.int32, copy=False)
        rows, at = [], 0
        for p in parts:
            rows.append((p.end - p.begin, p.chunk.start + p.begin, at, len(p.chunk.pages), p.n_outputs))
            at += len(p.chunk.pages)
        interruptible = threading.current_thread() is threading.main_thread()
        slices = arrays.take(len(tokens), sum(p.n_outputs for p in parts))
        try:
            compiled.program.run(tokens, positions, np.array(rows, np.int32), pages, slices, interruptible)
        except MemoryError as error:
            raise AssayError(f"engine cpu: {error}; use smaller batches") from None

    def copy_page(self, source: int, to: int) -> None:
        self._cache.copy_page(source, to)

    def close(self) -> None:
        """Let go of weights and cache; nothing can be computed afterwards."""
        self._programs.clear()
        self._tensors = None

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by purpose: interleaved weights, buffers of compiled programs, and a page of the cache."""
        weights = sum(w.bytes for w in self._tensors.matrices.values()) if self._tensors else 0
        buffers = sum(c.program.arena_bytes for c in self._programs.values())
        return {"weights": weights, "buffers": buffers, "page": self._cache.page_bytes}


def _positions(part: _Part) -> Array:
    if part.chunk.positions is not None:
        return part.chunk.positions[part.begin : part.end]
    return np.arange(part.chunk.start + part.begin, part.chunk.start + part.end)


def _outputs(chunk: Chunk, begin: int, end: int) -> int:
    """How many of the tokens [begin, end) give logits; always the last ones."""
    return {"none": 0, "all": end - begin, "last": int(end == len(chunk.tokens))}[chunk.outputs]


def _whole(batch: Sequence[Chunk]) -> list[_Part]:
    return [_Part(c, 0, len(c.tokens), _outputs(c, 0, len(c.tokens))) for c in batch]


def _steps(batch: Sequence[Chunk]) -> list[list[_Part]]:
    """The batch cut into steps of at most STEP tokens, in order."""
    steps: list[list[_Part]] = [[]]
    room = STEP
    for chunk in batch:
        begin = 0
        while begin < len(chunk.tokens):
            if not room:
                steps.append([])
                room = STEP
            end = min(len(chunk.tokens), begin + room)
            steps[-1].append(_Part(chunk, begin, end, _outputs(chunk, begin, end)))
            room -= end - begin
            begin = end
    return steps


class _Arrays:
    """The memory that a forward pass writes its results to, filled step by step."""

    def __init__(self, externals: tuple[External, ...], batch: Sequence[Chunk]) -> None:
        tokens = [len(c.tokens) for c in batch]
        keys = [c.start + len(c.tokens) for c in batch]
        self.counts = {
            "tokens": tokens,
            "outputs": [_outputs(c, 0, len(c.tokens)) for c in batch],
            "keys": keys,
            "scores": [t * k for t, k in zip(tokens, keys, strict=True)],
        }
        self.externals = externals
        self.flat = [np.empty(e.width * sum(self.counts[e.domain]), np.float32) for e in externals]
        self.done = {"tokens": 0, "outputs": 0}

    def take(self, n_tokens: int, n_outputs: int) -> list[NDArray[np.float32]]:
        """What is left of each array, from the rows of this step on."""
        left = [flat[self.done.get(e.domain, 0) * e.width :] for e, flat in zip(self.externals, self.flat, strict=True)]
        self.done["tokens"] += n_tokens
        self.done["outputs"] += n_outputs
        return left

    def outputs(self, graph: Graph, compiled: Compiled, keep: frozenset[str], batch: Sequence[Chunk]) -> list[Output]:
        index = {e.node: i for i, e in enumerate(self.externals)}
        ends = {domain: [0, *accumulate(counts)] for domain, counts in self.counts.items()}

        def rows(name: str, i: int) -> tuple[External, Array]:
            e = self.externals[index[compiled.aliases.get(name, name)]]
            first, last = ends[e.domain][i : i + 2]
            return e, self.flat[index[e.node]][first * e.width : last * e.width]

        found = []
        for i, chunk in enumerate(batch):
            e, flat = rows(graph.output, i)
            logits = flat.reshape(-1, e.width)
            logits = logits[len(logits) - _outputs(chunk, 0, len(chunk.tokens)) :]
            sizes = {"T": len(chunk.tokens), "S": chunk.start + len(chunk.tokens)}
            nodes = {name: _shaped(graph, name, rows(name, i)[1], sizes) for name in keep}
            found.append(Output(logits, nodes))
        return found


def _shaped(graph: Graph, name: str, flat: Array, sizes: dict[str, int]) -> Array:
    """A node's rows in the shape the graph gives it."""
    shape = [sizes[d] if isinstance(d, str) else d for d in graph.shapes[name]]
    if graph[name].op == "kqv":  # stored token by token
        heads, tokens, width = shape
        return flat.reshape(tokens, heads, width).transpose(1, 0, 2)
    value = flat.reshape(shape)
    return value.astype(np.int64) if graph[name].op in ("argsort", "topk") else value
