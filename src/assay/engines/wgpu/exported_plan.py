"""A model's programs as JSON, for a host that is not Python (`library/website/runner.js`).

The kernels, dispatches and buffers are those that the engine runs. The host reads the weights from the model's own file
and packs them (`library/website/repack.js`); the plan says where each tensor lies in the file and in the buffers. A
further file has the data that the host cannot make itself: constants, RoPE tables, and tensors of types that it does
not pack. Touch this module together with the runner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import PAGE, pages_for
from assay.engines.plan.state_layout import cache_pools
from assay.engines.wgpu.dispatches import NOTHING, SPARE, DispatchPlan
from assay.engines.wgpu.graph_dispatches import compile_dispatches
from assay.engines.wgpu.placed_weights import StackedWeights
from assay.engines.wgpu.program_builder import ProgramShape, cache_words
from assay.engines.wgpu.shaders import TIERS, Kernel, arithmetic
from assay.engines.wgpu.step_words import HEADER, RECORD, RopeRows
from assay.engines.wgpu.tier_probe import expected_results, probe_vectors
from assay.engines.wgpu.weight_tiles import CHUNK, TileFormat, pack, units_of
from assay.engines.wgpu.weight_tiles import ROWS as TILE_ROWS
from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.graph import Graph
from assay.models import Model

ROWS = (1, 16)  # tokens of a step, a program each: decoding, and a part of a prompt
KV_TYPE = "f16"


# Types that the page packs itself (`library/website/repack.js`). Tensors of other types are packed here.
PAGE_PACKS = frozenset({
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
    "IQ4_XS", "MXFP4",
})  # fmt: skip
_PAGE_FLOATS = frozenset({"F32", "F16", "BF16"})  # types that the page reads as floats
_ALIGNED = 32  # bytes, of tensors in the file of packed ones


class _Sizes:
    """Arrays in place of device memory, each small enough for a binding of any WebGPU device."""

    max_binding = 128 << 20

    def loaded(self, data: NDArray[Any], what: str) -> NDArray[Any]:
        return data


class _PlacedWeights(StackedWeights):
    """Weights whose places are decided here and which the page packs."""

    def __init__(self, file: GGUFFile, graph: Graph) -> None:
        self.made_of: dict[str, tuple[tuple[str, int], ...]] = {}  # the tensors of each buffer of floats
        super().__init__(_Sizes(), file, graph, exact=False)

    def packed(self, names: tuple[str, ...], form: TileFormat, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
        return np.broadcast_to(np.uint8(0), shape)

    def floats(self, buffer: str, tensors: tuple[tuple[str, int], ...], make: Callable[[], NDArray[np.float32]]) -> str:
        if all(self.file.tensors[name].type.name in _PAGE_FLOATS for name, _ in tensors):
            self.made_of[buffer] = tensors
        return super().floats(buffer, tensors, make)


@dataclass(frozen=True)
class PackedTensor:
    """A tensor that the page does not pack: `make` gives its bytes."""

    bytes: int
    make: Callable[[], NDArray[Any]]


def exported_plan(model: Model, context: int) -> tuple[dict[str, Any], list[PackedTensor]]:
    """The plan as data for JSON, and the tensors of the packed file in its order.

    The plan's `tensors` are in the order in which they lie in their files, so that a page can read each file from
    beginning to end. File 0 is the packed one, the others are the parts of the model.
    """
    file = model.file
    if file.byteorder == "big":
        raise AssayError(f"{file.path.name}: a page reads little-endian files alone; convert the model again")
    weights = _PlacedWeights(file, model.graph)
    plans = [compile_dispatches(model.graph, weights, ProgramShape(n, context, KV_TYPE, best=True)) for n in ROWS]
    primitives = Kernel("primitives")
    kernels = list(dict.fromkeys([primitives, *(d.kernel for plan in plans for d in plan.dispatches)]))
    number = {kernel: i for i, kernel in enumerate(kernels)}
    used = {name for plan in plans for d in plan.dispatches for name in d.buffers.values()}
    sizes = {name: data.nbytes for name, data in weights.buffers.items() if name in used}
    tables = plans[0].rope_tables
    ropes = RopeRows(tables).at(np.arange(context, dtype=np.int32))
    hosted = {f"rope {i}": np.ascontiguousarray(rows, np.float32) for i, rows in enumerate(ropes)}
    packed, tensors = _tensors(weights, used, hosted)
    vectors = probe_vectors()
    plan = {
        "context": context,
        "arithmetic": [arithmetic(tier) for tier in TIERS],
        "kernels": [
            {"name": k.name, "source": k.template, "writes": list(k.bindings.values())} for k in kernels
        ],
        "programs": [_program(n, plan, number) for n, plan in zip(ROWS, plans, strict=True)],
        "buffers": _engine_buffers(model, context, sum(table.n_rot for table in tables)),
        "weights": [
            {"name": name, "bytes": size, "host": name in hosted}
            for name, size in {**sizes, **{name: rows.nbytes for name, rows in hosted.items()}}.items()
        ],
        "tensors": tensors,
        "ropes": [{"name": f"rope {i}", "width": table.n_rot} for i, table in enumerate(tables)],
        "primitives": {
            "kernel": number[primitives],
            "count": len(vectors),
            "vectors": vectors.ravel().tolist(),
            "expected": expected_results().ravel().tolist(),
        },
    }  # fmt: skip
    return plan, packed


def _tensors(
    weights: _PlacedWeights, used: set[str], hosted: Mapping[str, NDArray[np.float32]]
) -> tuple[list[PackedTensor], list[dict[str, Any]]]:
    """The tensors of the packed file, and all tensors as the page finds and places them."""
    file = weights.file
    found: dict[str, dict[str, Any]] = {}
    packed: list[PackedTensor] = []

    def row(name: str) -> dict[str, Any]:
        info = file.tensors[name]
        place = {"file": 1 + info.part, "at": info.offset, "bytes": info.nbytes, "type": info.type.name}
        return found.setdefault(name, {**place, "floats": []})

    def add(bytes: int, make: Callable[[], NDArray[Any]], **rest: Any) -> None:
        at = sum(-(-t.bytes // _ALIGNED) * _ALIGNED for t in packed)
        packed.append(PackedTensor(bytes, make))
        found[f"{len(packed)} packed"] = {"file": 0, "at": at, "bytes": bytes, **rest}

    for name, part in weights.parts.items():
        if used.isdisjoint(s.buffer for s in part.slices):
            continue
        matrices = math.prod(file.tensors[name].shape[:-2])
        tiles = {
            "matrices": matrices, "rows": part.rows, "columns": part.columns,
            "first": part.first, "slices": [[s.buffer, s.first, s.tiles] for s in part.slices],
        }  # fmt: skip
        if file.tensors[name].type.name in PAGE_PACKS:
            row(name)["tiles"] = tiles
        else:
            each = units_of(part.columns) * part.form.chunks * CHUNK * TILE_ROWS
            made = partial(pack, file, name, part.form)
            add(matrices * part.tiles * each, made, type="tiles", floats=[], tiles=tiles)
    sliced = {s.buffer for part in weights.parts.values() for s in part.slices}
    for buffer, data in weights.buffers.items():
        if buffer not in used or buffer in sliced:
            continue
        made_of = weights.made_of.get(buffer, ())
        if made_of and not any("tiles" in found.get(name, ()) for name, _ in made_of):
            for name, first in made_of:
                row(name)["floats"].append([buffer, first])
        else:
            add(data.nbytes, partial(np.ascontiguousarray, data, np.float32), type="F32", floats=[[buffer, 0]])
    for buffer, rows in hosted.items():
        add(rows.nbytes, partial(np.ascontiguousarray, rows), type="F32", floats=[[buffer, 0]])
    return packed, sorted(found.values(), key=lambda tensor: (tensor["file"], tensor["at"]))


def write_packed(packed: Sequence[PackedTensor], file: BinaryIO) -> int:
    """Write the packed file; returns its size."""
    written = 0
    for tensor in packed:
        written += file.write(tensor.make().tobytes())
        written += file.write(bytes(-written % _ALIGNED))
    return written


def _program(rows: int, plan: DispatchPlan, number: dict[Kernel, int]) -> dict[str, Any]:
    return {
        "rows": rows,
        "sizes": dict(plan.sizes),
        "logits": {"buffer": plan.logits.buffer, "at": plan.logits.at, "width": plan.logits.width},
        "dispatches": [
            {
                "kernel": number[d.kernel],
                "words": d.words,
                "buffers": list(d.buffers.values()),
                "groups": list(d.groups),
            }
            for d in plan.dispatches
        ],
    }


def _engine_buffers(model: Model, context: int, rope_width: int) -> dict[str, int]:
    """Bytes of the buffers that all programs share."""
    pages = pages_for(context)
    words = HEADER + RECORD * max(ROWS) + pages + 1 + rope_width * max(ROWS)
    pools = set(cache_pools(model.graph).values())
    return {
        NOTHING: 16,
        SPARE: 16,
        "step": 4 * words,
        "positions": 4 * PAGE * pages,
        "chosen": 16,  # the most probable token and its logit
        **{
            f"pool {p.index}": 4 * PAGE * pages * p.heads * cache_words(p.dim, p.type(KV_TYPE))
            for p in sorted(pools, key=lambda pool: pool.index)
        },
    }
