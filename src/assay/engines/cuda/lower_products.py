"""Lower products to launches: their arguments (native/cuda/product.h) and grids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.engines.cuda import structs
from assay.engines.cuda.abi.enumerations import Prologue
from assay.engines.cuda.abi.shared_memory import few_floats_bytes, sort_pairs_bytes
from assay.engines.cuda.arrange import arrange, by_kernel, warps_for
from assay.engines.cuda.device import Launch
from assay.engines.cuda.device_values import HALVES, Quantised, padded_rows
from assay.engines.cuda.layout import UNIT
from assay.engines.cuda.product_steps import (
    ExpertProduct,
    FloatTiles,
    Part,
    QuantisePairs,
    RowProduct,
    SortedProduct,
    SortPairs,
    TileProduct,
)
from assay.engines.cuda.resolver import Resolver
from assay.engines.cuda.schedule_products import ROW_COPIES
from assay.engines.cuda.tiles import count_tiles
from assay.errors import AssayError

_GRID = 32768  # most blocks of threads along the second axis of a grid


def _row_product(r: Resolver, w: RowProduct) -> Launch:
    matrix = w.parts[0].matrix
    array, groups = r.parts(w.parts, lambda m: m.groups)
    prologue = Prologue.GIVEN if w.acts else Prologue.NORMED_ROWS if w.norm else Prologue.PLAIN_ROWS
    args = structs.ProductArgs(
        parts=array,
        acts=r.acts(w.acts),
        x=r.at(w.x),
        norm=r.weights(w.norm.weights[0]) if w.norm else 0,
        n_parts=len(w.parts),
        groups=groups,
        tokens=w.rows,
        columns=matrix.columns,
        x_stride=matrix.columns,
        prologue=prologue,
        rows_of_x=ROW_COPIES,
        eps=float(w.norm.attr("eps")) if w.norm else 0.0,
    )
    if w.kernel:
        return _one_row(r, w.kernel, args, w.parts, groups, (1, 1))
    shared = {n: few_floats_bytes(n, matrix.units, matrix.tiles) for n in (4, 2, 1)}  # by rows of x at a time
    fit = next((n for n in (4, 2) if shared[n] <= r.context.limits.shared), 1)
    grid = (groups, -(-w.rows // fit), 1)
    return Launch(f"product_floats_{fit}", grid, 32 * warps_for(matrix.tiles), args, shared[fit])


def _one_row(r: Resolver, kernel: str, args: Any, parts: Sequence[Part], groups: int, rest: tuple[int, int]) -> Launch:
    """product_one: one row of x for each of `rest` blocks of threads."""
    limits = r.context.limits
    processors = max(1, limits.processors // (rest[0] * rest[1]))
    found = arrange([p.matrix for p in parts], groups, processors=processors, most=limits.shared)
    if found is None:
        columns = parts[0].matrix.columns
        raise AssayError(
            f"node {parts[0].name}: rows of {columns} values do not fit this GPU's shared memory; use --engine cpu"
        )
    args.slots, args.stages, args.share, args.extra = found.slots, found.piece, found.share, found.extra
    args.shift = parts[0].matrix.group.bit_length() - 1
    return Launch(f"product_one_{kernel}", (found.blocks, *rest), found.threads, args, found.shared)


def _float_tiles(r: Resolver, w: FloatTiles) -> Launch:
    matrix = w.parts[0].matrix
    array, tiles = r.parts(w.parts, lambda m: count_tiles(m, w.tile.rows))
    args = structs.ProductArgs(
        parts=array, x=r.at(w.x), n_parts=len(w.parts), groups=tiles, tokens=w.rows, columns=matrix.columns,
        x_stride=matrix.columns, prologue=Prologue.PLAIN_ROWS,
    )  # fmt: skip
    return Launch(w.tile.kernel, (-(-w.rows // w.tile.tokens), tiles, 1), w.tile.threads, args, w.tile.shared)


def _tile_product(r: Resolver, w: TileProduct) -> Launch:
    matrix, tile, rows = w.parts[0].matrix, w.tile, padded_rows(w.rows)
    array, tiles = r.parts(w.parts, lambda m: count_tiles(m, tile.rows))
    acts = r.acts(w.x) if isinstance(w.x, Quantised) else structs.Acts(r.at(w.x), 0, 0, matrix.units * UNIT, rows)
    out = w.parts[0].out
    halved_rows = rows if out and out.layout in HALVES else 0
    args = structs.ProductArgs(
        parts=array,
        acts=acts,
        n_parts=len(w.parts),
        groups=tiles,
        tokens=w.rows,
        columns=matrix.columns,
        prologue=Prologue.GIVEN,
        stages=tile.stages,
        share=halved_rows,
    )
    grid = (-(-w.rows // tile.tokens), tiles)
    if tile.kernel in structs.HALF_TILES:  # blocks of threads take tiles in turn
        blocks = min(grid[0] * grid[1], r.context.limits.processors)
        return Launch(tile.kernel, (blocks, 1, 1), tile.threads, args, tile.shared)
    if w.factors:
        args = structs.TensorArgs(
            product=args,
            partial=r.at(w.partial),
            arrived=r.base.counters,
            room=halved_rows,
            chains=w.chains,
            split=int(w.split),
        )
        for i, p in enumerate(w.parts):
            args.factors[i] = r.context.tensors.factors_of(p.matrix)
            args.codes[i], args.pairs[i] = p.matrix.format.codes, p.matrix.format.pairs
    return Launch(tile.kernel, (*grid, w.chains if w.split else 1), tile.threads, args, tile.shared)


def _expert_product(r: Resolver, w: ExpertProduct) -> Launch:
    matrix = w.part.matrix
    array, groups = r.parts([w.part], lambda m: m.groups)
    args = structs.ProductArgs(
        parts=array,
        acts=r.acts(w.acts),
        x=r.at(w.x),
        experts=r.at(w.choices),
        expert_bytes=matrix.size,
        n_parts=1,
        groups=groups,
        tokens=w.pairs,
        columns=matrix.columns,
        x_stride=matrix.columns,
        prologue=Prologue.PLAIN_ROWS,
        rows_of_x=w.pairs_per_row,
        n_experts=matrix.count,
    )
    rest = (min(w.pairs, _GRID), -(-w.pairs // _GRID))
    return _one_row(r, by_kernel([w.part])[0][0], args, [w.part], groups, rest)


def _sort_pairs(r: Resolver, w: SortPairs) -> Launch:
    args = structs.SortArgs(r.at(w.choices), r.at(w.order), r.at(w.matrices), w.pairs, w.count, w.tokens, w.tiles)
    threads = min(1024, max(256, -(-w.pairs // 256) * 32))
    return Launch("sort_pairs", (w.count, 1, 1), threads, args, sort_pairs_bytes(w.count, threads // 32))


def _quantise_pairs(r: Resolver, w: QuantisePairs) -> Launch:
    args = structs.PairArgs(
        x=r.at(w.x), pairs=r.at(w.order), acts=r.acts(w.out), width=w.columns, share=w.pairs_per_row
    )
    if g := w.gating:
        args.up, args.act, args.oai, args.alpha, args.limit = r.at(g.up), g.act, g.oai, g.alpha, g.limit
    return Launch("quantise_pairs", (w.out.padded_rows, -(-w.out.stride // 2048), 1), 256, args)


def _sorted_product(r: Resolver, w: SortedProduct) -> Launch:
    matrix, tile = w.part.matrix, w.tile
    array, rows = r.parts([w.part], lambda m: count_tiles(m, tile.rows))
    args = structs.ProductArgs(
        parts=array,
        acts=r.acts(w.acts),
        expert_bytes=matrix.size,
        n_parts=1,
        groups=rows,
        tokens=w.pairs,
        columns=matrix.columns,
        prologue=Prologue.GIVEN,
        stages=tile.stages,
    )
    args = structs.SortedArgs(args, r.at(w.order), r.at(w.matrices))
    return Launch(tile.kernel, (w.tiles, rows, 1), tile.threads, args, tile.shared)


PRODUCTS: Mapping[type, Callable[[Resolver, Any], Launch]] = {
    RowProduct: _row_product,
    FloatTiles: _float_tiles,
    TileProduct: _tile_product,
    ExpertProduct: _expert_product,
    SortPairs: _sort_pairs,
    QuantisePairs: _quantise_pairs,
    SortedProduct: _sorted_product,
}
