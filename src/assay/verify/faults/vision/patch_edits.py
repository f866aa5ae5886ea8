"""Mistakes of patches and positions: the layout of a patch, their order, the rows of the table of positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Node
from assay.models.vision.picture_inputs import (
    Grid,
    PictureInputs,
    aligned_corners,
    raster_of,
    resized_table,
    triangle_filter,
)
from assay.models.vision.tower import Tower
from assay.verify.faults.fault import Change
from assay.verify.faults.vision.picture_plants import plant_picture

Array = NDArray[Any]


def _hwc(g: Grid, rows: Array) -> Array:
    """A patch as y, x, c, multiplied by a kernel of c, y, x."""
    p = g.keys.patch
    return np.ascontiguousarray(rows.reshape(-1, 3, p, p).transpose(0, 2, 3, 1)).reshape(len(rows), -1)


def _turned_patch(g: Grid, rows: Array) -> Array:
    p = g.keys.patch
    return np.ascontiguousarray(rows.reshape(-1, 3, p, p).transpose(0, 1, 3, 2)).reshape(len(rows), -1)


def _by_columns(g: Grid, rows: Array) -> Array:
    """Patch i is the i-th counted column by column; its position stays that of the raster."""
    at = np.arange(g.n)
    return np.asarray(rows[at % g.gy * g.gx + at // g.gy])


plant_picture("vis-patch-hwc", "a patch as y, x, c", rows=_hwc)
plant_picture("vis-patch-hwc", "a patch as c, x, y", rows=_turned_patch)
plant_picture("vis-patch-columns", "patches column by column", rows=_by_columns)


def _kernel(index: int) -> Callable[[Tower, Node], Change | None]:
    def edit(tower: Tower, node: Node) -> Change | None:
        if node.name != "inp" or node.op != "add":
            return None
        return Change(node, lambda *both: both[index])

    return edit


plant_picture("vis-one-kernel", "the second kernel is left out", node=_kernel(0))
plant_picture("vis-one-kernel", "the first kernel is left out", node=_kernel(1))


def _only_of(projector: str, role: str) -> Callable[[Tower, Node], Change | None]:
    def edit(tower: Tower, node: Node) -> Change | None:
        return Change(node, lambda x: x) if tower.keys.projector == projector and node.name in role.split() else None

    return edit


plant_picture("vis-no-2x-1", "pixels stay in 0 … 1", node=_only_of("gemma4v", "inp_raw_doubled inp_raw_scaled"))


# -- the table of positions ------------------------------------------------------------------------------------


def _resizable(g: Grid) -> bool:
    side = isqrt(g.table)
    return g.keys.projector in ("lfm2", "qwen3vl_merger") and side * side == g.table and (g.gx, g.gy) != (side, side)


def _with_table(inputs: PictureInputs, table: dict[str, Array]) -> PictureInputs:
    """Other rows of the table, listed in raster order."""
    return replace(inputs, values={**inputs.values, **{name: value[inputs.order] for name, value in table.items()}})


def _rows_alone(rows: Array) -> dict[str, Array]:
    return {"inp_table_rows": rows[:, None], "inp_table_weights": np.ones((len(rows), 1))}


def _counted(g: Grid, inputs: PictureInputs) -> PictureInputs | None:
    """Row i of the table for patch i."""
    return _with_table(inputs, _rows_alone(np.minimum(np.arange(g.n), g.table - 1))) if _resizable(g) else None


def _cropped(g: Grid, inputs: PictureInputs) -> PictureInputs | None:
    """The upper left part of the table."""
    if not _resizable(g):
        return None
    side, (row, column) = isqrt(g.table), raster_of(g)
    return _with_table(inputs, _rows_alone(np.minimum(row, side - 1) * side + np.minimum(column, side - 1)))


def _half_pixel(n: int, g: int) -> tuple[Array, Array]:
    """Bilinear at (k + ½) n / g − ½, without antialiasing."""
    source = np.clip((np.arange(g) + 0.5) * n / g - 0.5, 0, n - 1)
    first = np.minimum(source.astype(int), n - 1)
    share = source - first
    return np.stack([first, np.minimum(first + 1, n - 1)], 1), np.stack([1 - share, share], 1)


def _nearest(n: int, g: int) -> tuple[Array, Array]:
    return np.minimum(((np.arange(g) + 0.5) * n / g).astype(int), n - 1)[:, None], np.ones((g, 1))


def _mode(axis: Callable[[int, int], tuple[Array, Array]], right: str) -> Callable[..., PictureInputs | None]:
    def edit(g: Grid, inputs: PictureInputs) -> PictureInputs | None:
        if not _resizable(g) or g.keys.projector == right:
            return None
        return _with_table(inputs, resized_table(g, axis))

    return edit


plant_picture("vis-pos-not-resized", "row i of the table for patch i", given=_counted)
plant_picture("vis-pos-not-resized", "the upper left part of the table", given=_cropped)
plant_picture("vis-pos-mode", "aligned corners", given=_mode(aligned_corners, "qwen3vl_merger"))
plant_picture("vis-pos-mode", "a triangle with antialiasing", given=_mode(triangle_filter, "lfm2"))
plant_picture("vis-pos-mode", "half-pixel centres without antialiasing", given=_mode(_half_pixel, ""))
plant_picture("vis-pos-mode", "nearest", given=_mode(_nearest, ""))


def _transposed(g: Grid, inputs: PictureInputs) -> PictureInputs | None:
    rows = inputs.values.get("inp_table_rows")
    side = isqrt(g.table - inputs.extra)
    if rows is None or side * side != g.table - inputs.extra or g.keys.projector == "gemma4v":
        return None
    other = np.where(rows < side * side, rows % side * side + rows // side, rows)
    return replace(inputs, values={**inputs.values, "inp_table_rows": other})


def _other_axis(g: Grid, inputs: PictureInputs) -> PictureInputs | None:
    if g.keys.projector != "gemma4v":
        return None
    row, column = raster_of(g)
    return replace(inputs, values={**inputs.values, "inp_table_rows": np.stack([row, g.table // 2 + column], 1)})


plant_picture("vis-pos-transposed", "the table is read column by column", given=_transposed)
plant_picture("vis-pos-xy", "the table of columns by row, and that of rows by column", given=_other_axis)


def _class_first(g: Grid, inputs: PictureInputs) -> PictureInputs | None:
    if "inp_class_rows" not in inputs.values:
        return None
    rows = np.concatenate([[g.n], np.arange(g.n)])[:, None]
    blocks = inputs.values["inp_blocks"]
    blocks = blocks if g.keys.projector == "mlp" else blocks + 1  # mlp drops the first row, which is then the class row
    return replace(inputs, values={**inputs.values, "inp_class_rows": rows, "inp_blocks": blocks})


plant_picture("vis-class-first", "the class row before the patches", given=_class_first, usual=("internvl", "mlp"))
