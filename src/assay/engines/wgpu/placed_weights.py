"""Weights of a graph on the device: stacks of tensors that are multiplied together, vectors, and constants.

Tensors that one input is multiplied by (q, k and v; gate and up) lie in one stack, so that one dispatch computes them.
A stack larger than a binding is cut into slices of whole tiles. Touch this module when weights should be placed in
another way; `weight_tiles.py` has the layout inside a tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from hashlib import sha256
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.engines.plan.fuse import Gated, Products, fuse
from assay.engines.wgpu.graph_dispatches import GATES
from assay.engines.wgpu.program_builder import WeightPart, WeightSlice
from assay.engines.wgpu.weight_tiles import CHUNK, ROWS, TileFormat, pack, tile_format, tiles_of, units_of
from assay.gguf import GGUFFile
from assay.graph import Graph, Trait


class WeightMemory(Protocol):
    """Where weights are put: the device, or the arrays of an export."""

    max_binding: int

    def loaded(self, data: NDArray[Any], what: str) -> Any: ...


class StackedWeights:
    """The weights of a graph, loaded when they are first asked for."""

    def __init__(self, memory: WeightMemory, file: GGUFFile, graph: Graph, exact: bool) -> None:
        self.memory, self.file, self.exact = memory, file, exact
        self.buffers: dict[str, Any] = {}
        self.parts: dict[str, WeightPart] = {}
        self._stack_of: dict[str, tuple[str, ...]] = {}
        self.add(graph)

    def add(self, graph: Graph) -> None:
        """Decide which tensors of a graph lie in one stack, and load all of them."""
        for group in fuse(graph, (), self.format, GATES).groups:
            names: list[str] = []
            if isinstance(group, Products):
                names = [p.linear.weights[0] for p in group.products]
            elif isinstance(group, Gated):
                names = [group.gate.weights[0], group.up.weights[0]]
            by_form: dict[TileFormat, list[str]] = {}
            for name in dict.fromkeys(names):
                if name not in self._stack_of:
                    by_form.setdefault(self._form(name), []).append(name)
            for together in by_form.values():
                self._stack_of |= dict.fromkeys(together, tuple(together))
        for node in graph:
            for name in node.weights:
                if node.has(Trait.MATRIX):
                    self.part(name)

    @property
    def bytes(self) -> int:
        return sum(int(buffer.size) for buffer in self.buffers.values())

    def _form(self, name: str) -> TileFormat:
        return tile_format(self.file, name, self.exact)

    def format(self, name: str) -> str:
        """The form in which a product with this weight reads its input."""
        return "f32" if self._form(name).floats else "q8"

    def part(self, name: str) -> WeightPart:
        if name not in self.parts:
            self._load(self._stack_of.get(name, (name,)))
        return self.parts[name]

    def _load(self, names: tuple[str, ...]) -> None:
        form, stack = self._form(names[0]), " ".join(names)
        shapes = [(1, *self.file.tensors[name].shape)[-2:] for name in names]
        tiles, columns = sum(tiles_of(rows) for rows, _ in shapes), shapes[0][1]
        count = math.prod(self.file.tensors[names[0]].shape[:-2])
        tile_bytes = units_of(columns) * form.chunks * CHUNK * ROWS
        at_once = max(1, self.memory.max_binding // (tile_bytes * count))
        packed = self.packed(names, form, (count, tiles, tile_bytes))
        slices = []
        for first in range(0, tiles, at_once):
            buffer = f"weights {stack} {first}"
            self.buffers[buffer] = self.memory.loaded(packed[:, first : first + at_once], f"{stack} from tile {first}")
            slices.append(WeightSlice(buffer, first, min(at_once, tiles - first)))
        at = 0
        for name, (rows, _) in zip(names, shapes, strict=True):
            self.parts[name] = WeightPart(stack, form, at, tiles_of(rows), rows, columns, tuple(slices))
            at += tiles_of(rows)

    def packed(self, names: tuple[str, ...], form: TileFormat, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
        """A stack in tiles: [matrices, tiles, bytes of a tile]."""
        return np.concatenate([pack(self.file, name, form) for name in names], axis=1)

    def array(self, name: str) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.file.decode(name), np.float32)

    def vector(self, name: str) -> str:
        """A norm's weights or a bias, as floats."""
        return self.floats(f"vector {name}", ((name, 0),), lambda: self.array(name))

    def constant(self, values: NDArray[np.float32]) -> str:
        """Numbers that are no whole tensor."""
        return self.floats(f"constant {sha256(values.tobytes()).hexdigest()} {values.size}", (), lambda: values)

    def bias_row(self, parts: tuple[tuple[WeightPart, str], ...]) -> str:
        """Biases of tensors of a stack, one after the other, each padded to whole tiles as the products are."""

        def row() -> NDArray[np.float32]:
            return np.concatenate([np.pad(self.array(name), (0, ROWS * p.tiles - p.rows)) for p, name in parts])

        starts = accumulate((ROWS * p.tiles for p, _ in parts), initial=0)
        tensors = tuple((name, first) for (_, name), first in zip(parts, starts, strict=False))
        return self.floats("biases " + " ".join(name for _, name in parts), tensors, row)

    def floats(self, buffer: str, tensors: tuple[tuple[str, int], ...], make: Callable[[], NDArray[np.float32]]) -> str:
        """A buffer of floats, made once. `tensors` are those that it holds, each with its first element in the buffer;
        elements between them are zeros. A buffer of other numbers names none."""
        if buffer not in self.buffers:
            self.buffers[buffer] = self.memory.loaded(make(), buffer)
        return buffer
