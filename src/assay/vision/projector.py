"""An opened mmproj file: the tower, ready to encode pictures with one engine.

    projector = open_projector("mmproj-gemma3.gguf")
    prompt = encode_picture(projector, data)        # encode.py

The cpu engine runs the tower in float32, the same bits with any number of threads; `reference` is the definition in
float64. The cuda engine and the wgpu engine give the cpu engine's bits; a tower that does not fit an adapter, or an
adapter without these bits, leaves the tower to the cpu engine. Precision `tensor` of the cuda engine has bits of its
own, which no other engine can give. Precision `fast` rounds the activations that meet
quantised matrices to int8 blocks, as it does in language models; F32, F16 and BF16 matrices have the same bits in both
precisions. Touch this for how a tower is run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import PAGE, Chunk, PagedEngine, pages_for
from assay.engines.plan.segments import Segment, joined_windows, last_uses, regroup_rows, segments
from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.errors import AssayError
from assay.gguf import GGUFFile, open_file
from assay.graph import Node
from assay.models import Model
from assay.models.hparams import HParams, RopeParams
from assay.models.vision import Tower, load_tower
from assay.models.vision.picture_inputs import PictureInputs

Array = NDArray[Any]
ENGINES = ("reference", "cpu", "cuda", "wgpu")  # another engine's towers are run by the cpu engine
_DEVICES = ("cuda", "wgpu")  # whose memory is freed before more of it is taken
_NATIVE = "native"  # the arithmetic of the cpu engine, and of engines that have its bits
SIZES = 8  # sizes of images whose rows of the table of positions are kept
ROWS = 4096  # rows of patches that are run together at most, unless one image has more


@dataclass(frozen=True)
class TowerInput:
    """An image as the graph reads it."""

    patches: NDArray[np.float32]
    inputs: PictureInputs

    @property
    def n_rows(self) -> int:
        return len(self.patches) + self.inputs.extra

    def values(self, dtype: type[np.floating[Any]]) -> dict[str, Array]:
        floats = {"inp_patches": self.patches, **self.inputs.values}
        return {name: x.astype(dtype, copy=False) if x.dtype.kind == "f" else x for name, x in floats.items()}

    @property
    def windows(self) -> list[int]:
        """The ends of the windows, where rows attend inside windows: [0, …, n_rows]."""
        found = self.inputs.positions
        if found is None:
            return [0, self.n_rows]
        return [0, *(np.flatnonzero(np.diff(found)) + 1).tolist(), self.n_rows]


class Projector:
    """A tower bound to an engine. One thread at a time runs it."""

    def __init__(
        self, tower: Tower, file: GGUFFile, engine: str = "cpu", threads: int | None = None, precision: str = "fast",
        **options: Any,
    ) -> None:  # fmt: skip
        self.tower, self.file, self.path = tower, file, file.path
        self.engine = "cuda" if engine == "auto" else engine if engine in ENGINES else "cpu"
        self.precision = precision_of(self.engine, precision)
        self._falls_back = engine in ("auto", "wgpu") and self.precision != "tensor"  # no other engine has its bits
        self._options: dict[str, Any] = {"threads": threads, **options}
        self._lock = threading.Lock()
        self._segments = segments(tower.graph)
        self._engines: list[PagedEngine | None] = []
        self._pages = 0
        self._weights: Weights | None = None
        self._tables: dict[str, NDArray[np.float32]] = {}
        self._by_size: dict[tuple[object, ...], tuple[list[Array | None], Array]] = {}

    @property
    def arithmetic(self) -> str:
        """Identifies the bits of the rows: the cpu and the cuda engine have the same, but in precision `tensor`."""
        if self.engine == "reference":
            return self.engine
        return f"{'cuda' if self.precision == 'tensor' else _NATIVE} {self.precision}"

    @property
    def digest(self) -> bytes:
        """Identifies the file's values; computed once."""
        return bytes.fromhex(self.file.sha256)

    def run(
        self, images: Sequence[TowerInput], keep: Collection[str] = ()
    ) -> list[tuple[NDArray[np.float32], dict[str, Array]]]:
        """For each image the rows for the language model, and the values of the nodes in `keep`."""
        for name in keep:
            if name not in self.tower.graph:
                raise AssayError(
                    f"node {name}: not in the graph of {self.path.name}; `assay inspect --graph` lists them"
                )
        with self._lock:
            if self.engine == "reference":
                return [self._interpreted(image, set(keep)) for image in images]
            found: list[tuple[NDArray[np.float32], dict[str, Array]]] = []
            for group in _grouped(images):
                found += self._with_fallback(group, set(keep))
            return found

    def _with_fallback(
        self, images: Sequence[TowerInput], keep: set[str]
    ) -> list[tuple[NDArray[np.float32], dict[str, Array]]]:
        try:
            return self._compiled(images, keep)
        except AssayError:  # the tower does not fit the GPU, perhaps beside the language model
            if not (self._falls_back and self.engine in _DEVICES):
                raise
            self._close_engines()
            self.engine = "cpu"  # which has the same bits
            for name in ("device", "tier"):
                self._options.pop(name, None)
            return self._compiled(images, keep)

    def _interpreted(self, image: TowerInput, keep: set[str]) -> tuple[NDArray[np.float32], dict[str, Array]]:
        graph = self.tower.graph
        self._weights = self._weights or Weights(self.tower.file)
        positions = image.inputs.positions
        env = {**image.values(np.float64), "inp_pos": np.arange(image.n_rows) if positions is None else positions}
        values = interpret(graph, self._weights, env, keep | {graph.output})
        return values[graph.output].astype(np.float32), {name: values[name] for name in keep}

    def _compiled(
        self, images: Sequence[TowerInput], keep: set[str]
    ) -> list[tuple[NDArray[np.float32], dict[str, Array]]]:
        engines = self._opened(sum(pages_for(b - a) for image in images for a, b in pairwise(image.windows)))
        values = [image.values(np.float32) for image in images]
        kept: list[dict[str, Array]] = [{} for _ in images]
        uses = last_uses(self._segments)
        for i, (segment, engine) in enumerate(zip(self._segments, engines, strict=True)):
            for image, known in zip(images, values, strict=True):
                known |= {node.name: self._regrouped(node, image, known) for node in segment.regroup}
            if engine is not None:
                self._run_segment(segment, engine, images, values, kept, keep)
            for known, own in zip(values, kept, strict=True):
                own |= {node.name: known[node.name] for node in segment.regroup if node.name in keep}
                for name in [n for n in known if uses.get(n, -1) <= i and n != self.tower.graph.output]:
                    del known[name]
        output = self.tower.graph.output
        if self.engine == "cuda":  # whose results are valid until its next forward pass
            kept = [{name: np.array(value) for name, value in own.items()} for own in kept]
            return [(np.array(known[output]), own) for known, own in zip(values, kept, strict=True)]
        return [(known[output], own) for known, own in zip(values, kept, strict=True)]

    def _regrouped(self, node: Node, image: TowerInput, known: dict[str, Array]) -> Array:
        """Rows that follow from the size of the image alone are kept for the next image of this size."""
        inputs = [image.inputs.values.get(name) for name in node.inputs]
        if any(value is None for value in inputs):
            return regroup_rows(node, known, self._table)
        key = node.name, *map(id, inputs)
        if key not in self._by_size:
            while len(self._by_size) >= SIZES:
                self._by_size.pop(next(iter(self._by_size)))
            self._by_size[key] = inputs, regroup_rows(node, known, self._table)  # inputs: so that their ids stay theirs
        return self._by_size[key][1]

    def _run_segment(
        self,
        segment: Segment,
        engine: PagedEngine,
        images: Sequence[TowerInput],
        values: Sequence[dict[str, Array]],
        kept: Sequence[dict[str, Array]],
        keep: set[str],
    ) -> None:
        graph, nothing = engine.graph, np.zeros(0, np.int32)
        batch, page, counts = [], 0, []
        for image, known in zip(images, values, strict=True):
            rows = {name: np.ascontiguousarray(known[name], np.float32) for name in graph.given}
            ends = image.windows if segment.windows else [0, len(next(iter(rows.values())))]
            counts.append(len(ends) - 1)
            for a, b in pairwise(ends):
                pages = np.arange(page, page + pages_for(b - a), dtype=np.int32)
                page += len(pages)
                batch.append(Chunk(nothing, 0, pages, "all", rows={name: x[a:b] for name, x in rows.items()}))
        wanted = {name for name in (*segment.results, *keep) if name in graph and name != graph.output}
        outputs = iter(engine.forward(batch, wanted))
        for known, own, count in zip(values, kept, counts, strict=True):
            parts = [{**output.nodes, graph.output: output.logits} for output in islice(outputs, count)]
            found = {name: joined_windows(graph, name, [part[name] for part in parts]) for name in parts[0]}
            known |= {name: found[name] for name in segment.results}
            own |= {name: found[name] for name in keep if name in found}

    def _opened(self, pages: int) -> list[PagedEngine | None]:
        """An engine for each segment, with room for this many pages of rows. They share weights and threads."""
        if pages > self._pages:
            tower, keys, make = self.tower, self.tower.keys, _engine_class(self.engine)
            rope = RopeParams(keys.head_dim, 10000.0)
            pages = max(pages, ROWS // PAGE if self.engine in _DEVICES else 0)
            hparams = HParams("clip", keys.n_embd, 1, pages * PAGE, keys.eps, rope, ())
            lender = self._lender()
            self._engines = []
            for segment in self._segments:
                if segment.graph is None:
                    self._engines.append(None)
                    continue
                options = self._options if lender is None else {**self._options, "lender": lender}
                if self.engine == "cuda":
                    options = {**options, "reuse_results": True}
                engine = make(
                    Model(tower.file, hparams, segment.graph), precision=self.precision, kv_type="f32", n_pages=pages,
                    **options,
                )  # fmt: skip
                lender = lender or engine
                self._engines.append(engine)
                if engine.arithmetic.name != _NATIVE and self.precision != "tensor":
                    raise AssayError(f"tower: this adapter does not give the cpu engine's bits ({engine.isa})")
            self._pages = pages
        return self._engines

    def _lender(self) -> Any:
        """An engine whose weights the next ones use. Memory of a device is freed first, weights included."""
        if self.engine in _DEVICES:
            self._close_engines()
        return next((engine for engine in self._engines if engine is not None), None)

    def _close_engines(self) -> None:
        """The first engine owns the weights, so it is closed last."""
        for engine in reversed(self._engines):
            if engine is not None:
                engine.close()
        self._engines, self._pages = [], 0

    def _table(self, name: str) -> NDArray[np.float32]:
        if name not in self._tables:
            self._tables[name] = self.tower.file.decode(name)
        return self._tables[name]

    def close(self) -> None:
        """Free the weights."""
        with self._lock:
            self._close_engines()
            self._weights = None
            self._tables.clear()
            self._by_size.clear()


def _engine_class(name: str) -> Callable[..., PagedEngine]:
    if name == "cuda":
        from assay.engines.cuda import CudaEngine

        return CudaEngine
    if name == "wgpu":
        from assay.engines.wgpu import WgpuEngine

        return WgpuEngine
    from assay.engines.cpu import CpuEngine

    return CpuEngine


def precision_of(engine: str, precision: str) -> str:
    """The precision of a tower beside a language model in this one: `tensor` where prompts are computed in `tensor`."""
    if engine == "cuda" and precision in ("tensor", "mixed"):
        return "tensor"
    return precision if precision == "exact" else "fast"


def _grouped(images: Sequence[TowerInput]) -> list[list[TowerInput]]:
    """Images that are run together: at most `ROWS` rows, or one image."""
    found: list[list[TowerInput]] = []
    room = 0
    for image in images:
        if image.n_rows > room:
            found.append([])
            room = ROWS
        found[-1].append(image)
        room -= image.n_rows
    return found


def open_projector(
    path: str | Path,
    engine: str = "cpu",
    *,
    threads: int | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    precision: str = "fast",
    **options: Any,
) -> Projector:
    """Open an mmproj file. `min_tokens` and `max_tokens` replace the limits of a picture of free size.

    Engine `auto` is cuda, or cpu where the tower does not fit the GPU. `precision` is fast, exact or, on the cuda
    engine, tensor. Further options go to the engine, such as the device of the cuda engine.
    """
    file = open_file(Path(path))
    tower = load_tower(file, min_tokens, max_tokens)
    return Projector(tower, file, engine, threads, precision, **options)
