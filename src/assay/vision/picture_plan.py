"""Plan of a picture of a given size: the images that a tower gets, their sizes, their tokens.

Sizes alone decide, so that tokens and memory are known before a picture is decoded. `RECIPES` has a row for each
projector. All sizes follow llama.cpp, whose arithmetic is float32 where a number is not whole. Touch this when a
projector cuts or sizes pictures in a new way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from assay.errors import AssayError
from assay.models.vision.projector_keys import ProjectorKeys

BLACK = (0, 0, 0)
LFM2_TILE = 512
MAX_TILES = 1024
MAX_PIXELS = 1 << 25  # of a picture as the tower reads it: 400 MB in float32
_SLACK = 4  # a picture may exceed the most pixels this many times, where its ratio is extreme
_f32 = np.float32
Size = tuple[int, int]  # width, height in pixels


@dataclass(frozen=True)
class Image:
    """One image of a picture: what is cut out of which enlarged picture, and the tokens that it becomes."""

    kind: str  # "picture", "tile", "overview"
    size: Size
    grid: Size  # columns and rows in tokens
    tokens: int
    at: Size = (0, 0)  # a tile's column and row, from 0


@dataclass(frozen=True)
class Scaling:
    """How a picture is brought to a size. `pad` is the colour around it where the ratio is kept; None: stretched."""

    size: Size
    filter: str
    pad: tuple[int, int, int] | None


@dataclass(frozen=True)
class PicturePlan:
    """The images of a picture in the order in which the tower's rows come."""

    images: tuple[Image, ...]
    whole: Scaling  # of the picture, or of the overview
    tiled: tuple[Scaling, ...] = ()  # of the picture that is cut into tiles, one after the other
    overview_of_tiled: bool = False  # the overview is made of the picture that is cut into tiles

    @property
    def tiles(self) -> Size:
        """Columns and rows of tiles."""
        at = [image.at for image in self.images if image.kind == "tile"]
        return (max(x for x, _ in at) + 1, max(y for _, y in at) + 1) if at else (0, 0)

    @property
    def tokens(self) -> int:
        return sum(image.tokens for image in self.images)


@dataclass(frozen=True)
class Recipe:
    """A projector's way with pictures: fixed or free size, filter, padding."""

    plan: Callable[[ProjectorKeys, Recipe, Size], PicturePlan]
    filter: str
    pad: tuple[int, int, int] | None = BLACK
    squares: bool = False  # every image has the tower's own size


def plan_picture(keys: ProjectorKeys, size: Size) -> PicturePlan:
    """The images of a picture of this size."""
    if min(size) < 1:
        raise AssayError(f"picture: has no pixels (found {size[0]}×{size[1]})")
    recipe = RECIPES[keys.projector]
    plan = recipe.plan(keys, recipe, size)
    pixels = max(math.prod(scaling.size) for scaling in (plan.whole, *plan.tiled))
    if pixels > MAX_PIXELS:
        raise AssayError(
            f"picture: would be enlarged to too many pixels (found {pixels}, expected at most {MAX_PIXELS}); limit its "
            "tokens"
        )
    return plan


def _image(keys: ProjectorKeys, kind: str, size: Size, at: Size = (0, 0)) -> Image:
    """An image of the tower: whole tokens of merged patches. The pixels beyond the last whole token are not seen."""
    unit = keys.patch * keys.merge
    columns, rows = size[0] // unit, size[1] // unit
    tokens = columns * rows
    if keys.projector == "pixtral":
        tokens += rows - 1  # a break behind each row but the last
    return Image(kind, size, (columns, rows), tokens, at)


def image_of_size(keys: ProjectorKeys, size: Size) -> Image:
    """An image that was prepared elsewhere: of a size that a picture can get here. Others are refused."""
    unit, side = keys.patch * keys.merge, keys.image_size
    if RECIPES[keys.projector].squares:
        fits = size == (side, side)
    else:
        fits = min(size) >= unit and not (size[0] % unit or size[1] % unit) and math.prod(size) <= MAX_PIXELS
    if not fits:
        wanted = f"{side}×{side}" if RECIPES[keys.projector].squares else f"multiples of {unit}"
        raise AssayError(f"picture: not an image for this tower (found {size[0]}×{size[1]} pixels, expected {wanted})")
    return _image(keys, "picture", size)


def _tiles(keys: ProjectorKeys, columns: int, rows: int, side: int) -> list[Image]:
    return [_image(keys, "tile", (side, side), (x, y)) for y in range(rows) for x in range(columns)]


def free_size(size: Size, unit: int, least: int | None, most: int | None) -> Size:
    """The nearest size whose sides are multiples of `unit` and whose pixels lie within the limits, ratio kept."""
    width, height = (_f32(side) for side in size)
    by = _f32(unit)

    def rounded(side: np.float32) -> int:
        return max(unit, math.floor(float(side / by) + 0.5) * unit)  # halves away from zero

    w, h = rounded(width), rounded(height)
    if most and w * h > most:
        beta = np.sqrt(height * width / _f32(most))
        w, h = (max(unit, math.floor(side / beta / by) * unit) for side in (width, height))
        if w * h > _SLACK * most:
            raise AssayError(
                f"picture: its ratio is too extreme (found {size[0]}×{size[1]}, which becomes {w}×{h} pixels, expected "
                f"at most {_SLACK} times {most}); cut it"
            )
    elif least and w * h < least:
        beta = np.sqrt(_f32(least) / (height * width))
        w, h = (math.ceil(side * beta / by) * unit for side in (width, height))
    return w, h


def _limits(keys: ProjectorKeys) -> tuple[int | None, int | None]:
    area = (keys.patch * keys.merge) ** 2
    return (keys.min_tokens or 0) * area or None, (keys.max_tokens or 0) * area or None


def _fixed(keys: ProjectorKeys, recipe: Recipe, _size: Size) -> PicturePlan:
    square = (keys.image_size, keys.image_size)
    return PicturePlan((_image(keys, "picture", square),), Scaling(square, recipe.filter, recipe.pad))


def _free(keys: ProjectorKeys, recipe: Recipe, size: Size) -> PicturePlan:
    target = free_size(size, keys.patch * keys.merge, *_limits(keys))
    return PicturePlan((_image(keys, "picture", target),), Scaling(target, recipe.filter, recipe.pad))


def _idefics3(keys: ProjectorKeys, _recipe: Recipe, size: Size) -> PicturePlan:
    """Tiles and an overview of every picture. Newer files say how long the longer side shall be."""
    side, edge = keys.image_size, keys.longest_edge
    square = (side, side)
    if edge and not keys.limited:
        longer = max(size)
        sides = [edge if n == longer else int(edge * (n / longer)) for n in size]
        first = (sides[0] + sides[0] % 2, sides[1] + sides[1] % 2)
        if 0 in first:
            raise AssayError(
                f"picture: its ratio is too extreme (found {size[0]}×{size[1]}, expected sides within a factor of "
                f"{edge}); cut it"
            )
        grid = (-(-first[0] // side), -(-first[1] // side))
        whole = (grid[0] * side, grid[1] * side)
        steps = [Scaling(first, "lanczos", None), Scaling(whole, "lanczos", None)]
        overview = Scaling(square, "lanczos", None)
    else:
        limits = _limits(keys) if keys.limited else (None, None)
        whole = free_size(size, side, *limits)
        grid = (whole[0] // side, whole[1] // side)
        if math.prod(grid) > MAX_TILES:  # files without a longest edge set no limit themselves
            raise AssayError(
                f"picture: makes too many tiles (found {size[0]}×{size[1]}, which is {grid[0]}×{grid[1]} tiles, "
                f"expected at most {MAX_TILES}); make it smaller, or limit the tokens of a picture"
            )
        steps = [Scaling(whole, "bicubic", BLACK)]
        overview = Scaling(square, "bicubic", None)
    images = [*_tiles(keys, *grid, side), _image(keys, "overview", square)]
    return PicturePlan(tuple(images), overview, tuple(steps), overview_of_tiled=bool(edge and not keys.limited))


def _lfm2(keys: ProjectorKeys, recipe: Recipe, size: Size) -> PicturePlan:
    """The free size; tiles of 512 beside it where the picture is more than twice too large."""
    unit = keys.patch * keys.merge
    whole = _free(keys, recipe, size)
    most = _limits(keys)[1] or 0
    area = math.prod(max(keys.patch, round(side / unit) * unit) for side in size)  # `round`: halves to even
    if area <= 2 * most:
        return whole
    if LFM2_TILE % unit:
        raise AssayError(f"clip.vision.patch_size: tiles of {LFM2_TILE} have no whole tokens of {unit} pixels a side")
    grid = _nearest_grid(size)
    target = (grid[0] * LFM2_TILE, grid[1] * LFM2_TILE)
    images = [*_tiles(keys, *grid, LFM2_TILE), _image(keys, "overview", whole.whole.size)]
    return PicturePlan(tuple(images), whole.whole, (Scaling(target, recipe.filter, BLACK),))


def _nearest_grid(size: Size, least: int = 2, most: int = 10) -> Size:
    """The grid of tiles whose ratio is nearest; of equally near ones the larger, if the picture fills half of it."""
    ratio, area = _f32(size[0]) / _f32(size[1]), _f32(size[0] * size[1])
    grids = [(w, h) for w in range(1, most + 1) for h in range(1, most + 1) if least <= w * h <= most]
    best, found = _f32(np.inf), (1, 1)
    for grid in sorted(grids, key=math.prod):
        distance = abs(ratio - _f32(grid[0]) / _f32(grid[1]))
        if distance < best or (distance == best and area > _f32(0.5) * _f32(LFM2_TILE**2 * math.prod(grid))):
            best, found = distance, grid
    return found


def _internvl(keys: ProjectorKeys, recipe: Recipe, size: Size) -> PicturePlan:
    """Tiles where a side exceeds the tower's; the grid that keeps most pixels, then wastes least."""
    side = keys.image_size
    square = (side, side)
    overview, scaling = _image(keys, "overview", square), Scaling(square, recipe.filter, None)
    if max(size) <= side:
        return PicturePlan((overview,), scaling)
    grids = [
        (a, b)
        for a in range(keys.min_tiles, keys.max_tiles + 1)
        for b in range(keys.min_tiles, keys.max_tiles // a + 1)
    ]
    if not grids:
        raise AssayError(f"clip.vision.preproc_min_tiles: no grid has {keys.min_tiles} to {keys.max_tiles} tiles")

    def worth(grid: Size) -> tuple[int, int]:
        target = (grid[0] * side, grid[1] * side)
        scale = min(_f32(t) / _f32(n) for t, n in zip(target, size, strict=True))
        kept = min(math.prod(int(_f32(n) * scale) for n in size), math.prod(size))
        return kept, kept - math.prod(target)

    grid = max(grids, key=worth)  # the first of equal ones
    target = (grid[0] * side, grid[1] * side)
    return PicturePlan((*_tiles(keys, *grid, side), overview), scaling, (Scaling(target, recipe.filter, recipe.pad),))


RECIPES: dict[str, Recipe] = {
    "gemma3": Recipe(_fixed, "bilinear", squares=True),
    "qwen2vl_merger": Recipe(_free, "bicubic"),
    "qwen2.5vl_merger": Recipe(_free, "bicubic"),
    "qwen3vl_merger": Recipe(_free, "bicubic"),
    "idefics3": Recipe(_idefics3, "lanczos", None, squares=True),
    "gemma4v": Recipe(_free, "bicubic"),
    "lfm2": Recipe(_lfm2, "bilinear", None),
    "pixtral": Recipe(_free, "bicubic"),
    "internvl": Recipe(_internvl, "bicubic", squares=True),
    "mlp": Recipe(_fixed, "bicubic", (122, 116, 104), squares=True),
}
