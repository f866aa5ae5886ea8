"""Inputs of a tower's graph beside the pixels: which rows form a token, angles, weights of a resized table.

All of it follows from the grid of patches, gx columns and gy rows. `INPUTS` has a row for each projector. Tables are in
float64; an engine rounds them once. Touch this when a tower reads another layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.models.vision.projector_keys import ProjectorKeys

Array = NDArray[Any]
WINDOW = 112  # pixels a side of a window of qwen2.5vl


@dataclass(frozen=True)
class Grid:
    """The patches of an image, and the table of positions that the file has."""

    keys: ProjectorKeys
    gx: int
    gy: int
    table: int  # rows of the file's table of positions

    @property
    def n(self) -> int:
        return self.gx * self.gy


@dataclass(frozen=True)
class PictureInputs:
    """Values by the name that the graph gives them. `order` lists patches in the order of the tower's rows."""

    order: Array
    values: dict[str, Array]
    positions: Array | None = None  # equal inside a window, 2 apart between windows
    extra: int = field(default=0)  # rows behind the patches, before positions are added: the class row


def patch_rows(pixels: NDArray[np.float32], patch: int, order: Array) -> NDArray[np.float32]:
    """Pixels [channel, row, column] as a row [c, y, x] for each patch, in this order of the raster."""
    channels, height, width = pixels.shape
    gy, gx = height // patch, width // patch
    cut = np.ascontiguousarray(pixels[:, : gy * patch, : gx * patch], np.float32).reshape(-1, gx * patch)
    lines = cut.view(np.dtype((np.void, 4 * patch))).reshape(channels, gy, patch, gx)  # a line of a patch is one item
    row, column = np.divmod(np.asarray(order), gx)
    in_raster = np.array_equal(order, np.arange(gy * gx))
    found = lines.transpose(1, 3, 0, 2) if in_raster else lines[:, row, :, column]  # [.., channel, line]
    return np.ascontiguousarray(found).view(np.float32).reshape(len(row), -1)


@lru_cache(32)
def picture_inputs(keys: ProjectorKeys, size: tuple[int, int], table: int) -> PictureInputs:
    """The inputs of an image of this size in pixels. They are kept for the next image, so callers must not change
    them."""
    grid = Grid(keys, size[0] // keys.patch, size[1] // keys.patch, table)
    return _INPUTS[keys.projector](grid)


def blocks_of(g: Grid) -> Array:
    """The m×m patches of each token, row by row: [tokens, m·m] indices into the raster."""
    m = g.keys.merge
    columns, rows = g.gx // m, g.gy // m
    raster = np.arange(g.n).reshape(g.gy, g.gx)[: rows * m, : columns * m]
    return raster.reshape(rows, m, columns, m).transpose(0, 2, 1, 3).reshape(-1, m * m)


def raster_of(g: Grid) -> tuple[Array, Array]:
    """Row and column of every patch."""
    at = np.arange(g.n)
    return at // g.gx, at % g.gx


def _plain_table(g: Grid, rows: int) -> dict[str, Array]:
    """The table as it is: row i for row i."""
    if g.table != rows:
        raise AssayError(f"v.position_embd.weight: not one row a patch (found {g.table}, expected {rows})")
    return {"inp_table_rows": np.arange(rows)[:, None], "inp_table_weights": np.ones((rows, 1))}


def table_side(g: Grid) -> int:
    side = isqrt(g.table)
    if side * side != g.table or not side:
        raise AssayError(f"v.position_embd.weight: not a square of rows (found {g.table})")
    return side


def resized_table(g: Grid, weights: Callable[[int, int], tuple[Array, Array]]) -> dict[str, Array]:
    """A square table resized to the grid: rows and columns apart. `weights(n, g)` gives the taps of an axis."""
    side = table_side(g)
    (y, cy), (x, cx) = weights(side, g.gy), weights(side, g.gx)
    row, column = raster_of(g)
    rows = (y[row][:, :, None] * side + x[column][:, None, :]).reshape(g.n, -1)
    return {
        "inp_table_rows": rows,
        "inp_table_weights": (cy[row][:, :, None] * cx[column][:, None, :]).reshape(g.n, -1),
    }


def aligned_corners(n: int, g: int) -> tuple[Array, Array]:
    """Bilinear with aligned corners: source = k (n − 1) / (g − 1)."""
    source = np.arange(g) * ((n - 1) / (g - 1) if g > 1 else 0.0)
    first = np.minimum(source.astype(int), n - 1)
    share = source - first
    return np.stack([first, np.minimum(first + 1, n - 1)], 1), np.stack([1 - share, share], 1)


def triangle_filter(n: int, g: int) -> tuple[Array, Array]:
    """A triangle around (k + ½) n / g, stretched where the axis shrinks, its weights summing to 1."""
    stretch = max(1.0, n / g)
    centre = (np.arange(g) + 0.5) * n / g
    weights = np.maximum(0.0, 1 - np.abs(np.arange(n) + 0.5 - centre[:, None]) / stretch)
    weights /= weights.sum(1, keepdims=True)
    width = int((weights > 0).sum(1).max())
    first = np.minimum((weights > 0).argmax(1), n - width)
    at = first[:, None] + np.arange(width)
    return at, np.take_along_axis(weights, at, 1)


def cosines_and_sines(*parts: Array) -> Array:
    """A table of cosines and then sines, of angles [rows, pairs]."""
    angles = np.concatenate(parts, 1)
    return np.concatenate([np.cos(angles), np.sin(angles)], 1)


def frequencies(base: float, n: int) -> Array:
    """base^(−2i/n) for i < n/2."""
    return base ** (-2.0 * np.arange(n // 2) / n)


def _fixed(g: Grid) -> PictureInputs:
    return PictureInputs(np.arange(g.n), {"inp_blocks": blocks_of(g), **_plain_table(g, g.n)})


def _lfm2(g: Grid) -> PictureInputs:
    table = _plain_table(g, g.n) if g.gx == g.gy == table_side(g) else resized_table(g, triangle_filter)
    return PictureInputs(np.arange(g.n), {"inp_blocks": blocks_of(g), **table})


def _qwen(g: Grid) -> PictureInputs:
    """Patches block by block; RoPE by row in the first half of the pairs, by column in the second."""
    order = blocks_of(g).reshape(-1)
    row, column = raster_of(g)
    theta = frequencies(10000.0, g.keys.head_dim // 2)
    rope = cosines_and_sines(row[order, None] * theta, column[order, None] * theta)
    return PictureInputs(order, {"inp_rope": rope, "inp_blocks": np.arange(len(order)).reshape(-1, 4)})


def _qwen3(g: Grid) -> PictureInputs:
    plain = _qwen(g)
    table = _plain_table(g, g.n) if g.gx == g.gy == table_side(g) else resized_table(g, aligned_corners)
    return PictureInputs(plain.order, {**plain.values, **{name: value[plain.order] for name, value in table.items()}})


def _qwen25(g: Grid) -> PictureInputs:
    return in_windows(g, max(1, WINDOW // g.keys.patch // 2))


def in_windows(g: Grid, side: int) -> PictureInputs:
    """Tokens window by window; windows of `side` tokens in raster order from the top left, cut at the right and at the
    bottom."""
    plain, columns = _qwen(g), g.gx // 2
    token = np.arange(g.n // 4)
    window = token // columns // side * -(-columns // side) + token % columns // side
    sort = np.argsort(window, kind="stable")
    patches = (sort[:, None] * 4 + np.arange(4)).reshape(-1)
    raster = np.empty_like(sort)
    raster[sort] = token
    values = {**plain.values, "inp_rope": plain.values["inp_rope"][patches], "inp_raster": raster[:, None]}
    return PictureInputs(plain.order[patches], values, positions=2 * np.repeat(window[sort], 4))


def _gemma4(g: Grid) -> PictureInputs:
    """Table 0 by column and table 1 by row; the first half of a head turns by column, the second by row."""
    n = g.table // 2
    row, column = raster_of(g)
    if max(g.gx, g.gy) > n:
        raise AssayError(
            f"picture: more patches a side than the table of positions has (found {max(g.gx, g.gy)}, expected at most "
            f"{n}); make the picture smaller, or limit its tokens"
        )
    theta = frequencies(100.0, g.keys.head_dim // 2)
    values = {
        "inp_table_rows": np.stack([column, n + row], 1),
        "inp_table_weights": np.ones((g.n, 2)),
        "inp_rope_x": cosines_and_sines(column[:, None] * theta),
        "inp_rope_y": cosines_and_sines(row[:, None] * theta),
        "inp_blocks": blocks_of(g),
    }
    return PictureInputs(np.arange(g.n), values)


def _pixtral(g: Grid) -> PictureInputs:
    """RoPE by row with frequencies 0, 2, 4, …, by column with 1, 3, 5, …; a break behind each row but the last."""
    row, column = raster_of(g)
    theta = frequencies(10000.0, g.keys.head_dim)
    columns, rows = g.gx // g.keys.merge, g.gy // g.keys.merge
    tokens = np.arange(columns * rows).reshape(rows, columns)
    breaks = np.concatenate([tokens, np.full((rows, 1), columns * rows)], 1).reshape(-1)[:-1]
    values = {
        "inp_rope": cosines_and_sines(row[:, None] * theta[0::2], column[:, None] * theta[1::2]),
        "inp_blocks": blocks_of(g),
        "inp_breaks": breaks[:, None],
    }
    return PictureInputs(np.arange(g.n), values)


def _with_class(g: Grid, blocks: Array) -> PictureInputs:
    values = {"inp_class_rows": np.arange(g.n + 1)[:, None], "inp_blocks": blocks, **_plain_table(g, g.n + 1)}
    return PictureInputs(np.arange(g.n), values, extra=1)


def _internvl(g: Grid) -> PictureInputs:
    return _with_class(g, blocks_of(g))


def _mlp(g: Grid) -> PictureInputs:
    return _with_class(g, np.arange(1, g.n + 1)[:, None])


_INPUTS: dict[str, Callable[[Grid], PictureInputs]] = {
    "gemma3": _fixed,
    "qwen2vl_merger": _qwen,
    "qwen2.5vl_merger": _qwen25,
    "qwen3vl_merger": _qwen3,
    "idefics3": _fixed,
    "gemma4v": _gemma4,
    "lfm2": _lfm2,
    "pixtral": _pixtral,
    "internvl": _internvl,
    "mlp": _mlp,
}
