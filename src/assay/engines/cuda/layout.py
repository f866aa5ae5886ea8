"""Weights on the device: the format of each GGUF type (native/cuda/formats.h), and loading tensors into it.

How a matrix is stored, from the smallest part to the largest:

    item    256 neighbouring columns of one row. These 256 columns are a *unit*: their products are summed first.
    tile    32 items, one for each lane of a warp, in chunks of 16 bytes a lane
    group   16 or 32 rows with all their units: its items, by unit and then by row, are cut into tiles

The last tile of a group is padded. The size of a group is chosen so that there is little padding. Touch this module
when a GGUF type gets a format of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay import _native
from assay.engines.cuda import structs
from assay.engines.cuda.abi.enumerations import FORMAT_ROWS
from assay.engines.cuda.device import Device, Launch
from assay.gguf import GGUFFile
from assay.graph import Node, Trait

UNIT, LANES = 256, 32
CHAIN = 16  # most units of a chain
_STAGED = 256 << 20  # most bytes of a tensor that are staged on the device at a time, as they are in the file


@dataclass(frozen=True)
class Format:
    """A weight format: its number in formats.h, the 16-byte chunks of an item, and whether a word follows them."""

    number: int
    chunks: int
    name: str = ""
    word: bool = False
    floats: bool = False
    sums: bool = False  # products need sums of half blocks of activations
    scales: int = 1  # chunks that hold scales instead of codes

    @property
    def tile_bytes(self) -> int:
        return self.chunks * 512 + (128 if self.word else 0)

    @property
    def codes(self) -> int:
        return self.chunks - self.scales

    @property
    def pairs(self) -> int:
        """Chunks of factors that products on tensor cores read in the place of scales."""
        return 4 if self.sums else 2


_FORMATS = {
    row.name: Format(row.format, row.chunks, row.name, row.word, row.floats, row.half_sums, row.scale_chunks)
    for row in FORMAT_ROWS
}
WIDE, WIDE_MIN = _FORMATS["wide16"], _FORMATS["wide16_min"]
FORMATS = {name.upper(): form for name, form in _FORMATS.items() if form not in (WIDE, WIDE_MIN)}  # by ggml's type name
_WITH_MINIMA = ("Q2_K",)
_AS_FLOATS = ("Q8_K",)


@dataclass(frozen=True)
class Matrix:
    """A tensor in device memory, or a gate and its up with alternating half groups."""

    format: Format
    rows: int
    columns: int
    units: int
    group: int
    data: int
    count: int = 1
    paired: bool = False

    @property
    def tiles(self) -> int:
        return -(-self.group * self.units // LANES)

    @property
    def group_bytes(self) -> int:
        return self.tiles * self.format.tile_bytes

    @property
    def groups(self) -> int:
        return -(-self.rows // (self.group // 2 if self.paired else self.group))

    @property
    def chains(self) -> int:
        """Chains of units into which gemm_tensor.cu divides a row; each is summed on its own."""
        return 1 if self.paired else -(-self.units // CHAIN)

    @property
    def size(self) -> int:
        """Bytes of one expert."""
        return self.groups * self.group_bytes

    @property
    def bytes(self) -> int:
        return self.size * self.count

    def struct(self) -> Any:
        return structs.Matrix(
            self.data,
            self.group_bytes,
            self.format.number,
            self.rows,
            self.columns,
            self.units,
            self.group,
            self.tiles,
            self.format.tile_bytes,
            self.groups * self.group,
        )


def rows_per_group(units: int, paired: bool) -> int:
    """Rows of a group, one or two `mma` fragments: the choice that pads tiles least."""
    return min((16, 32), key=lambda group: -(-group * units // LANES) * LANES / (group * units))


class DeviceWeights:
    """The weights of a graph, loaded when a program first asks for them, each once."""

    def __init__(self, device: Device, file: GGUFFile, precision: str) -> None:
        self.device, self.file, self.exact = device, file, precision == "exact"
        self.halves = precision == "tensor"  # products run on tensor cores with 16-bit floats
        self._wide_groups = precision in ("tensor", "mixed")  # gemm_halves.cu needs groups of 32 rows
        self.matrices: dict[tuple[str, ...], Matrix] = {}
        self.factors: dict[int, int] = {}  # by the matrix's address
        self.vectors: dict[str, int] = {}
        self.constants: dict[bytes, int] = {}
        self.owned: list[int] = []
        self.staged: dict[int, tuple[int, int]] = {}  # staging buffers: address and bytes
        self.pending: list[Callable[[], None]] = []  # fills memory that is allocated

    def for_prompts(self) -> DeviceWeights:
        """The same weights in the same memory, for products on tensor cores."""
        found = copy(self)
        found.halves = True
        return found

    @property
    def bytes(self) -> int:
        factors = sum(_factor_bytes(m) for m in self.matrices.values() if m.data in self.factors)
        return sum(m.bytes for m in self.matrices.values()) + factors

    def planned(self, nodes: Iterable[Node]) -> int:
        """Bytes that the weights of these nodes will take, and the largest staging buffer."""
        readers = {name: node for node in nodes for name in node.weights}
        infos = self.file.tensors
        empty = {name: self._empty((name,)) for name, node in readers.items() if node.has(Trait.MATRIX)}
        matrices = sum(m.bytes for m in empty.values())
        linear = {name for name, node in readers.items() if node.op == "linear"}
        matrices += sum(_factor_bytes(m) for name, m in empty.items() if name in linear and self.has_factors(m.format))
        vectors = sum(4 * math.prod(infos[name].shape) for name in readers.keys() - empty.keys())
        return matrices + vectors + min(max((infos[name].nbytes for name in readers), default=0), _STAGED)

    def format(self, name: str) -> str:
        """The form into which a product with this weight needs its input converted."""
        found = self.layout(name)
        if self.on_tensor_cores(found):
            return found.name if found.floats else "half"
        return "f32" if found.floats else "q8"

    def on_tensor_cores(self, form: Format) -> bool:
        """Whether products with this format run on tensor cores with 16-bit floats."""
        return self.halves and form.name != "f32"

    def has_factors(self, form: Format) -> bool:
        """Whether products with this format read factors in the place of scales."""
        return self.on_tensor_cores(form) and not form.floats

    def factors_of(self, matrix: Matrix) -> int:
        """The address of a matrix's factors for gemm_tensor.cu, which are computed at the first call."""
        if matrix.data not in self.factors:
            size = _factor_bytes(matrix)
            at = self.factors[matrix.data] = self.device.alloc(size, "factors of weights")
            self.owned.append(at)
            tiles = size // (512 * matrix.format.pairs)
            args = structs.FactorArgs(matrix.struct(), at, tiles, matrix.format.pairs)
            grid = max(1, min(tiles, 64 * self.device.multiprocessors))
            launch = Launch("make_factors", (grid, 1, 1), 256, args)
            self.pending.append(partial(self.device.launch, launch, early=False))
        return self.factors[matrix.data]

    def layout(self, name: str) -> Format:
        kind = self.file.tensors[name].type.name
        if kind in FORMATS and (not self.exact or FORMATS[kind].floats):
            return FORMATS[kind]
        if self.exact or kind in _AS_FLOATS or not _native.supported(self.file.tensors[name].type.id):
            return FORMATS["F32"]
        return WIDE_MIN if kind in _WITH_MINIMA else WIDE

    def same_format(self, a: str, b: str) -> bool:
        return self.layout(a) == self.layout(b) and self.file.tensors[a].shape == self.file.tensors[b].shape

    def matrix(self, *names: str) -> Matrix:
        """One tensor, or two (gate and up) side by side."""
        if names not in self.matrices:
            self.matrices[names] = self._load(names)
        return self.matrices[names]

    def _empty(self, names: tuple[str, ...]) -> Matrix:
        """The matrix without memory."""
        shape, form = self.file.tensors[names[0]].shape, self.layout(names[0])
        count, rows, columns = (*(1,) * (3 - len(shape)), *shape)  # one axis: one row
        units, paired = -(-columns // UNIT), len(names) == 2
        wide = self._wide_groups and form.floats and form.name != "f32"
        group = 32 if wide else rows_per_group(units, paired)
        return Matrix(form, rows, columns, units, group, 0, count, paired)

    def _load(self, names: tuple[str, ...]) -> Matrix:
        empty = self._empty(names)
        data = self.device.alloc(empty.bytes, f"{names[0]} ({empty.count} x {empty.rows} x {empty.columns})")
        self.owned.append(data)
        self.device.zero(data, empty.bytes)
        matrix = replace(empty, data=data)
        for part, name in enumerate(names):
            self.pending.append(partial(self._fill, matrix, name, matrix.group // len(names), part))
        return matrix

    def fill(self) -> None:
        """Copy the weights that programs have asked for to the device. Programs are compiled before, so that the
        machine code of their kernels is made at the same time."""
        for work in self.pending:
            work()
        self.pending.clear()

    def _fill(self, to: Matrix, name: str, half: int, part: int) -> None:
        """Stage some rows of the file at a time, of all experts, and let a kernel repack them into the format."""
        info, all_rows = self.file.tensors[name], to.count * to.rows
        struct = to.struct()
        raw = self.file.raw(name).reshape(all_rows, -1)
        decoded = to.format.number == 0 and info.type.name != "F32"
        wide = to.format in (WIDE, WIDE_MIN)
        row_bytes = 4 * to.columns if decoded else raw.shape[1]
        at_once = max(1, min(all_rows, _STAGED // max(row_bytes, to.columns)))
        for first in range(0, all_rows, at_once):
            rows = raw[first : first + at_once]
            arrays: list[NDArray[Any]] = [rows]
            if wide:
                arrays = list(_native.unpack(np.ascontiguousarray(rows), info.type.id, to.columns))
            elif decoded:
                arrays = [_decoded(self.file, name, to)[first : first + at_once].view(np.uint8)]
            staged = [self._stage(i, np.ascontiguousarray(array), name) for i, array in enumerate(arrays)]
            raw_at, d, m = (*staged, 0, 0)[:3]
            width = to.columns if wide else row_bytes
            args = structs.RepackArgs(raw_at, d, m, struct, first, len(rows), width, to.size, half, part)
            blocks = len(rows) * -(-to.columns // (256 if to.format.floats else 32))
            grid = max(1, min(-(-blocks // 256), 64 * self.device.multiprocessors))
            self.device.launch(Launch("repack", (grid, 1, 1), 256, args), early=False)

    def _stage(self, place: int, array: NDArray[Any], name: str) -> int:
        """Copy an array into staging buffer `place`. Copies and kernels run in order, so it can be reused at once."""
        at, size = self.staged.get(place, (0, 0))
        if size < array.nbytes:
            self.release_staging(place)
            at = self.device.alloc(array.nbytes, f"loading {name}")
            self.staged[place] = at, array.nbytes
        self.device.load(at, array)
        return at

    def release_staging(self, *places: int) -> None:
        """Free these staging buffers, or all."""
        for place in places or tuple(self.staged):
            at, _ = self.staged.pop(place, (0, 0))
            if at:
                self.device.sync()
                self.device.free(at)

    def array(self, name: str) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.file.decode(name), np.float32)

    def vector(self, name: str) -> int:
        """A norm's weights or a bias, as floats."""
        if name not in self.vectors:
            self.vectors[name] = self.constant(self.array(name))
        return self.vectors[name]

    def floats(self, name: str) -> int:
        """A whole tensor as floats, in the order of the file."""
        if name not in self.vectors:
            self.vectors[name] = self._upload(self.array(name), name)
        return self.vectors[name]

    def constant(self, values: NDArray[Any]) -> int:
        """Upload constant data; equal data is uploaded once for all programs."""
        key = values.tobytes()
        if key not in self.constants:
            self.constants[key] = self._upload(values, "constants")
        return self.constants[key]

    def _upload(self, values: NDArray[Any], what: str) -> int:
        at = self.device.alloc(values.nbytes, what)
        self.owned.append(at)
        self.device.upload(at, values)
        self.device.sync()
        return at

    def close(self) -> None:
        for at, _ in self.staged.values():
            self.device.free(at)
        self.staged.clear()
        for at in self.owned:
            self.device.free(at)
        self.owned.clear()


def _factor_bytes(matrix: Matrix) -> int:
    return matrix.count * matrix.groups * matrix.tiles * 512 * matrix.format.pairs


def _decoded(file: GGUFFile, name: str, to: Matrix) -> NDArray[np.float32]:
    return np.ascontiguousarray(file.decode(name), np.float32).reshape(to.count * to.rows, to.columns)
