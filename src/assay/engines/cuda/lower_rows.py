"""Lower row-by-row steps: the arguments and the grid of each launch (native/cuda/steps.cu, rows.cu, best.cu)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from assay.engines.cuda import structs
from assay.engines.cuda.abi.enumerations import HALVED, MAP_OPS, POOLINGS
from assay.engines.cuda.abi.shared_memory import best_lists_bytes, halved_row_bytes, normed_row_bytes
from assay.engines.cuda.device import Launch
from assay.engines.cuda.device_values import padded_rows
from assay.engines.cuda.resolver import Resolver
from assay.engines.cuda.steps import (
    BestLogits,
    CacheRead,
    CacheWrite,
    Embed,
    FillRopeTable,
    HalveRows,
    Map,
    NormRows,
    PoolRows,
    QuantiseRows,
    RotateRows,
    ScaleByPosition,
    SortRow,
    TakeOutputRows,
    TotalExperts,
)

SHORT_PART = 256  # values of a part of a row that a warp norms


def _step_args(r: Resolver, **fields: Any) -> Any:
    return structs.StepArgs(rows=r.rows(), cache=r.cache(), **fields)


def _blocks(elements: int, most: int) -> tuple[int, int, int]:
    """A grid of blocks of 256 elements."""
    return max(1, min(-(-elements // 256), most)), 1, 1


def _embed(r: Resolver, w: Embed) -> Launch:
    args = _step_args(r, table=w.table.struct(), out=r.at(w.out), which=r.table(w.index), width=w.width)
    return Launch("embed", (r.context.shape.tokens, 1, 1), 256, args)


def _take_output_rows(r: Resolver, w: TakeOutputRows) -> Launch:
    args = _step_args(r, x=r.at(w.x), out=r.at(w.out), which=r.table("outputs"), width=w.width)
    return Launch("take_rows", (r.context.shape.outputs, 1, 1), 256, args)


def _fill_rope_table(r: Resolver, w: FillRopeTable) -> Launch:
    args = _step_args(
        r,
        out=r.at(w.out),
        frequencies=r.context.tensors.constant(np.array(w.rope.frequencies, np.float64)),
        which=r.table(w.positions),
        n=w.rows,
        n_rot=w.rope.n_rot,
        magnitude=w.rope.magnitude,
    )
    return Launch("rope_table", _blocks(w.rows * w.rope.n_rot, 1024), 128, args)


def _rope(r: Resolver, w: RotateRows) -> Launch:
    values = r.at(w.x), r.at(w.table), r.at(w.out)
    args = structs.RopeArgs(*values, w.rows, w.width, w.heads, w.n_rot, int(w.neox), w.offset)
    return Launch("rope", _blocks(w.rows * w.width, 4096), 256, args)


def _cache_write(r: Resolver, w: CacheWrite) -> Launch:
    args = _step_args(r, pool=w.pool.struct(), x=r.at(w.x))
    return Launch("cache_write", (r.context.shape.tokens, 1, 1), 256, args)


def _cache_read(r: Resolver, w: CacheRead) -> Launch:
    args = _step_args(r, pool=w.pool.struct(), out=r.at(w.out), which=r.table("keys"), width=w.width)
    return Launch("cache_read", (r.context.shape.keys, 1, 1), 256, args)


def _scale_by_position(r: Resolver, w: ScaleByPosition) -> Launch:
    args = structs.PositionArgs(r.at(w.x), r.at(w.out), r.table(w.positions), w.beta, w.unit, w.offset, w.width)
    return Launch("pos_scale", (w.rows, 1, 1), 256, args)


def _pool_rows(r: Resolver, w: PoolRows) -> Launch:
    kind = POOLINGS[w.kind]
    args = _step_args(r, x=r.at(w.x), out=r.at(w.out), which=r.table("chunks"), width=w.width, kind=kind)
    return Launch("pool_rows", (r.context.shape.chunks, 1, 1), 256, args)


def _map(r: Resolver, w: Map) -> Launch:
    y, z = r.at(w.y), r.at(w.z)
    if w.vector:
        y = r.weights(w.vector) + 4 * w.vector_row * w.y_width
    elif w.constant:
        y = r.context.tensors.constant(np.array(w.constant, np.float32))
    if w.table or w.weight:
        z = r.weights(w.table or w.weight) + 4 * w.weight_row * w.z_width
    args = structs.MapArgs(
        x=r.at(w.x),
        y=y,
        z=z,
        out=r.at(w.out),
        rows=w.rows,
        width=w.width,
        x_width=w.x_width,
        y_width=w.y_width,
        op=MAP_OPS[w.op],
        integer=w.integer,
        z_rows=w.table_rows,
        parts=w.parts,
        z_width=w.z_width,
        number=w.number,
        second=w.second,
    )
    return Launch("map", _blocks(w.rows * w.width, 4096), 256, args)


def _norm_rows(r: Resolver, w: NormRows) -> Launch:
    weights, bias = (*map(r.weights, w.weights), 0, 0)[:2]
    each = w.width // w.parts
    short = w.kernel == "rms_norm" and w.parts > 1 and w.rows > 1 and each % 4 == 0 and each <= SHORT_PART
    args = structs.RowArgs(
        x=r.at(w.x),
        w=weights,
        b=bias,
        out=r.at(w.out),
        width=w.width,
        parts=w.parts,
        eps=w.eps,
        w_step=each if w.own_weights else 0,
    )
    parts = w.rows * w.parts
    if short:
        warps = math.gcd(parts, 8)
        return Launch("part_norm", (parts // warps, 1, 1), 32 * warps, args)
    return Launch(w.kernel, (parts, 1, 1), 256 if each >= 256 else 64, args, normed_row_bytes(each))


def _total_experts(r: Resolver, w: TotalExperts) -> Launch:
    args = structs.TotalArgs(r.at(w.x), r.at(w.weights), r.at(w.residual), r.at(w.out), w.rows, w.width, w.count)
    return Launch("total_experts", (w.rows, -(-w.width // 1024), 1), 256, args)


def _sort_row(r: Resolver, w: SortRow) -> Launch:
    args = structs.RowArgs(x=r.at(w.x), out=r.at(w.out), width=w.width, parts=w.groups, w_step=w.used)
    return Launch(w.kernel, (w.rows, 1, 1), structs.KERNELS[w.kernel][1], args)


def _quantise_rows(r: Resolver, w: QuantiseRows) -> Launch:
    args = structs.RowArgs(
        x=r.at(w.x),
        w=r.weights(w.norm.weights[0]) if w.norm else 0,
        acts=r.acts(w.out),
        width=w.columns,
        parts=w.rows,
        eps=float(w.norm.attr("eps")) if w.norm else 0.0,
    )
    if w.norm:
        threads = min(1024, w.out.stride // 8)
        return Launch("quantise_rows", (w.copies, 1, 1), threads, args, normed_row_bytes(w.columns))
    return Launch("quantise_rows", (w.copies, -(-w.out.stride // 2048), 1), 256, args)


def _halve_rows(r: Resolver, w: HalveRows) -> Launch:
    weights, bias, eps = 0, 0, 0.0
    if w.norm:
        weights, eps = r.weights(w.norm.weights[0]), float(w.norm.attr("eps"))
    elif w.layer_norm:
        weights, bias, eps = *(*map(r.weights, w.layer_norm.weights), 0)[:2], w.layer_norm.eps
    sizes, kind = (w.columns, w.stride, padded_rows(w.rows)), int(HALVED[w.out.layout.value])
    centred = int(w.layer_norm is not None)
    args = structs.HalveArgs(r.at(w.x), weights, bias, r.at(w.out), *sizes, eps, kind, centred, w.act)
    return Launch("halve_rows", (w.rows, 1, 1), min(512, w.stride // 8), args, halved_row_bytes(w.columns))


def _best_logits(r: Resolver, w: BestLogits) -> Launch:
    """Of a single best value, the kernel also writes the tables of the next step."""
    tables = [r.table(t) if w.k == 1 else 0 for t in ("tokens", "positions", "slots", "left")]
    sums = r.at(w.sums) if w.sums else 0
    args = structs.BestArgs(r.at(w.x), r.at(w.lists), sums, r.at(w.out), *tables, w.width, w.n_lists, w.k)
    if w.merge:
        return Launch("best_of_lists", (w.rows, 1, 1), 32, args, best_lists_bytes(w.n_lists))
    return Launch("best_lists", (-(-w.n_lists // 8), w.rows, 1), 256, args)


ROWS: Mapping[type, Callable[[Resolver, Any], Launch]] = {
    Embed: _embed,
    TakeOutputRows: _take_output_rows,
    FillRopeTable: _fill_rope_table,
    RotateRows: _rope,
    CacheWrite: _cache_write,
    CacheRead: _cache_read,
    ScaleByPosition: _scale_by_position,
    PoolRows: _pool_rows,
    Map: _map,
    TotalExperts: _total_experts,
    NormRows: _norm_rows,
    SortRow: _sort_row,
    QuantiseRows: _quantise_rows,
    HalveRows: _halve_rows,
    BestLogits: _best_logits,
}
