"""An opened mmproj file: the tower, ready to encode pictures with one engine.

    projector = open_projector("mmproj-gemma3.gguf")
    prompt = encode_picture(projector, data)        # encode.py

The cpu engine runs the tower in float32, the same bits with any number of threads; `reference` is the definition in
float64. The cuda and wgpu engines leave towers to the cpu engine. Touch this for how a tower is run.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Chunk, PagedEngine, pages_for
from assay.engines.plan.segments import Segment, last_uses, regroup_rows, segments
from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.errors import AssayError
from assay.gguf import GGUFFile, open_file
from assay.models import Model
from assay.models.hparams import HParams, RopeParams
from assay.models.vision import Tower, load_tower
from assay.models.vision.picture_inputs import PictureInputs

Array = NDArray[Any]
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
        return {name: x.astype(dtype) if x.dtype.kind == "f" else x for name, x in floats.items()}

    def positions(self, rows: int) -> NDArray[np.int32] | None:
        """Positions that tell windows apart; None where all rows see each other."""
        found = self.inputs.positions
        return None if found is None or len(found) != rows else found.astype(np.int32)


class Projector:
    """A tower bound to an engine. One thread at a time runs it."""

    def __init__(self, tower: Tower, file: GGUFFile, engine: str = "cpu", threads: int | None = None) -> None:
        self.tower, self.file, self.path = tower, file, file.path
        self.engine = "reference" if engine == "reference" else "cpu"
        self._threads, self._lock = threads, threading.Lock()
        self._segments = segments(tower.graph)
        self._engines: list[PagedEngine | None] = []
        self._pages = 0
        self._weights: Weights | None = None
        self._tables: dict[str, NDArray[np.float32]] = {}

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
                found += self._compiled(group, set(keep))
            return found

    def _interpreted(self, image: TowerInput, keep: set[str]) -> tuple[NDArray[np.float32], dict[str, Array]]:
        graph = self.tower.graph
        self._weights = self._weights or Weights(self.tower.file)
        positions = image.positions(image.n_rows)
        env = {**image.values(np.float64), "inp_pos": np.arange(image.n_rows) if positions is None else positions}
        values = interpret(graph, self._weights, env, keep | {graph.output})
        return values[graph.output].astype(np.float32), {name: values[name] for name in keep}

    def _compiled(
        self, images: Sequence[TowerInput], keep: set[str]
    ) -> list[tuple[NDArray[np.float32], dict[str, Array]]]:
        engines = self._opened(sum(image.n_rows for image in images))
        values = [image.values(np.float32) for image in images]
        kept: list[dict[str, Array]] = [{} for _ in images]
        uses = last_uses(self._segments)
        for i, (segment, engine) in enumerate(zip(self._segments, engines, strict=True)):
            for known in values:
                known |= {node.name: regroup_rows(node, known, self._table) for node in segment.regroup}
            if engine is not None:
                self._run_segment(segment, engine, images, values, kept, keep)
            for known, own in zip(values, kept, strict=True):
                own |= {node.name: known[node.name] for node in segment.regroup if node.name in keep}
                for name in [n for n in known if uses.get(n, -1) <= i and n != self.tower.graph.output]:
                    del known[name]
        return [(known[self.tower.graph.output], own) for known, own in zip(values, kept, strict=True)]

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
        batch, page = [], 0
        for image, known in zip(images, values, strict=True):
            rows = {name: np.ascontiguousarray(known[name], np.float32) for name in graph.given}
            n = len(next(iter(rows.values())))
            pages = np.arange(page, page + pages_for(n), dtype=np.int32)
            page += len(pages)
            batch.append(Chunk(nothing, 0, pages, "all", positions=image.positions(n), rows=rows))
        wanted = {name for name in (*segment.results, *keep) if name in graph and name != graph.output}
        for known, own, output in zip(values, kept, engine.forward(batch, wanted), strict=True):
            found: Mapping[str, Array] = {**output.nodes, graph.output: output.logits}
            known |= {name: found[name] for name in segment.results}
            own |= {name: found[name] for name in keep if name in found}

    def _opened(self, rows: int) -> list[PagedEngine | None]:
        """An engine for each segment, with room for this many rows. They share weights and threads."""
        from assay.engines.cpu import CpuEngine

        pages = pages_for(rows) + len(self._segments) + 64
        if pages > self._pages:
            tower, keys = self.tower, self.tower.keys
            rope = RopeParams(keys.head_dim, 10000.0)
            hparams = HParams("clip", keys.n_embd, 1, rows, keys.eps, rope, ())
            lender: CpuEngine | None = self._lender()
            self._engines = []
            for segment in self._segments:
                if segment.graph is None:
                    self._engines.append(None)
                    continue
                lender = CpuEngine(
                    Model(tower.file, hparams, segment.graph), threads=self._threads, precision="exact",
                    n_pages=pages, lender=lender,
                )  # fmt: skip
                self._engines.append(lender)
            self._pages = pages
        return self._engines

    def _lender(self) -> Any:
        return next((engine for engine in self._engines if engine is not None), None)

    def _table(self, name: str) -> NDArray[np.float32]:
        if name not in self._tables:
            self._tables[name] = self.tower.file.decode(name)
        return self._tables[name]

    def close(self) -> None:
        """Free the weights."""
        with self._lock:
            for engine in self._engines:
                if engine is not None:
                    engine.close()
            self._engines, self._pages, self._weights = [], 0, None
            self._tables.clear()


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
) -> Projector:
    """Open an mmproj file. `min_tokens` and `max_tokens` replace the limits of a picture of free size."""
    file = open_file(Path(path))
    tower = load_tower(file, min_tokens, max_tokens)
    return Projector(tower, file, engine, threads)
