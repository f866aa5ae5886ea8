"""Mistakes between the file and the tower's pixels, as records of choices, and the pixels that such choices make.

`images_by` is the preprocessing of `assay.vision.preprocess` with every choice open. Touch this to add a choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.models.vision.projector_keys import ProjectorKeys
from assay.verify.faults.vision.picture_plants import PixelHabits, plant_picture
from assay.vision.picture_plan import Image, PicturePlan, Scaling, plan_picture
from assay.vision.preprocess import fitted_size
from assay.vision.resize import FILTERS, Bytes, resize, taps

Floats = NDArray[np.float32]
_f32 = np.float32
GREY, WHITE, BLACK = (127.0,) * 3, (255.0,) * 3, (0.0,) * 3
HALF = ((0.5,) * 3, (0.5,) * 3)
PLAIN = ((0.0,) * 3, (1.0,) * 3)
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP_MEAN = ("the mean colour, 122, 116, 104", (122.0, 116.0, 104.0))
QWEN = ("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger")


@dataclass(frozen=True)
class MadeImage:
    """One image for the tower; `inside` is false where padding lies."""

    image: Image
    pixels: Floats  # [channel, row, column]


def images_by(keys: ProjectorKeys, picture: Bytes, habits: PixelHabits) -> list[MadeImage] | None:
    """The images that an engine with these habits makes; None where a habit does not apply to the projector."""
    plan = _plan(keys, picture, habits)
    if plan is None:
        return None
    if habits.bgr == "decoded":
        picture = picture[:, :, ::-1]
    tiled = _Canvas.of(picture)
    for step in plan.tiled:
        tiled = _scaled(keys, tiled, step, habits)
    whole = _scaled(keys, tiled if plan.overview_of_tiled else _Canvas.of(picture), plan.whole, habits)
    found = []
    for image in plan.images:
        canvas = whole
        if image.kind == "tile":
            (x, y), (width, height) = image.at, image.size
            canvas = tiled.cut(slice(y * height, (y + 1) * height), slice(x * width, (x + 1) * width))
        found.append(MadeImage(image, _normalised(keys, canvas, habits)))
    if habits.columns_first:
        found.sort(key=lambda made: (made.image.kind == "overview", made.image.at))
    if habits.overview_first:
        found.sort(key=lambda made: made.image.kind != "overview")
    return found


@dataclass(frozen=True)
class _Canvas:
    """Pixels [row, column, RGB] of 0 to 255, and where they come from the picture."""

    values: NDArray[Any]
    inside: NDArray[np.bool_]

    @staticmethod
    def of(picture: Bytes) -> _Canvas:
        return _Canvas(picture, np.ones(picture.shape[:2], bool))

    def cut(self, rows: slice, columns: slice) -> _Canvas:
        return _Canvas(self.values[rows, columns], self.inside[rows, columns])


def _plan(keys: ProjectorKeys, picture: Bytes, habits: PixelHabits) -> PicturePlan | None:
    size = picture.shape[1], picture.shape[0]
    plan = plan_picture(keys, size)
    scalings = (plan.whole, *plan.tiled)
    padded, tiles = any(s.pad is not None for s in scalings), plan.tiles
    if (habits.stretch or habits.corner or habits.pad or habits.pad_zero) and not padded:
        return None
    if (habits.columns_first and min(tiles) < 2) or (habits.overview_first and not math.prod(tiles)):
        return None
    if habits.filter and all(s.filter == habits.filter for s in scalings):
        return None
    if habits.pad_first and (keys.projector != "mlp" or size[0] == size[1]):
        return None
    if habits.ceil:
        unit = keys.patch * keys.merge
        if keys.min_tokens is None or plan.tiled or keys.projector in ("gemma3", "internvl", "mlp"):
            return None
        up = plan_picture(keys, (-(-size[0] // unit) * unit, -(-size[1] // unit) * unit))
        return None if up.whole.size == plan.whole.size else up
    return replace(plan, whole=_other(plan.whole, habits), tiled=tuple(_other(s, habits) for s in plan.tiled))


def _other(scaling: Scaling, habits: PixelHabits) -> Scaling:
    return replace(scaling, filter=habits.filter or scaling.filter, pad=None if habits.stretch else scaling.pad)


def _scaled(keys: ProjectorKeys, canvas: _Canvas, to: Scaling, habits: PixelHabits) -> _Canvas:
    """The picture resized, with its padding around it."""
    height, width = canvas.values.shape[:2]
    if to.pad is None or (width, height) == to.size:
        values = _resized(canvas.values, *to.size, to.filter, habits)
        return _Canvas(values, np.ones((to.size[1], to.size[0]), bool))
    if habits.pad_first:
        side = max(width, height)
        square = np.empty((side, side, 3), canvas.values.dtype)
        square[:] = [int(255 * mean) for mean in keys.mean]
        x, y = (side - width) // 2, (side - height) // 2
        square[y : y + height, x : x + width] = canvas.values
        return _Canvas(_resized(square, *to.size, to.filter, habits), np.ones((to.size[1], to.size[0]), bool))
    w, h = fitted_size((width, height), to.size)
    inner = _resized(canvas.values, w, h, to.filter, habits)
    values = np.empty((to.size[1], to.size[0], 3), inner.dtype)
    values[:] = to.pad if habits.pad is None else habits.pad
    x, y = (0, 0) if habits.corner else ((to.size[0] - w) // 2, (to.size[1] - h) // 2)
    values[y : y + h, x : x + w] = inner
    inside = np.zeros(values.shape[:2], bool)
    inside[y : y + h, x : x + w] = True
    return _Canvas(values, inside)


def _resized(picture: NDArray[Any], width: int, height: int, name: str, habits: PixelHabits) -> NDArray[Any]:
    if name == "nearest":
        rows, columns = (
            np.minimum(((np.arange(n) + 0.5) * (m / n)).astype(int), m - 1)
            for n, m in ((height, picture.shape[0]), (width, picture.shape[1]))
        )
        return np.asarray(picture[rows][:, columns])
    if not habits.floats:
        return resize(picture, width, height, name, antialias=habits.antialias)
    found = picture.astype(np.float64)
    for axis, n in ((1, width), (0, height)):
        if found.shape[axis] != n:
            at, weights = taps(found.shape[axis], n, name, habits.antialias)
            moved = np.moveaxis(found, axis, 0)
            found = np.moveaxis(np.einsum("nk,nk...->n...", weights, moved[at]), 0, axis)
    return np.clip(np.floor(found + 0.5) if habits.floats == "rounded" else found, 0, 255)


@np.errstate(all="ignore")
def _normalised(keys: ProjectorKeys, canvas: _Canvas, habits: PixelHabits) -> Floats:
    mean, std = (np.array(three, np.float32) for three in habits.normal or (keys.mean, keys.std))
    if habits.exchanged:
        mean, std = std, mean
    values = canvas.values[..., ::-1] if habits.bgr == "before" else canvas.values
    scaled = values.astype(np.float32) / _f32(255 if habits.divide else 1)
    found = (scaled - mean) / std
    if habits.pad_zero:
        found = np.where(canvas.inside[..., None], found, _f32(0))
    if habits.bgr == "after":
        found = found[..., ::-1]
    return np.ascontiguousarray(found.transpose(2, 0, 1), np.float32)


def _pixels(fault: str, label: str, usual: tuple[str, ...] = (), **habits: object) -> None:
    plant_picture(fault, label, habits=PixelHabits(**habits), usual=usual)  # type: ignore[arg-type]


_pixels("vis-no-255", "bytes are not divided by 255", divide=False)
_pixels("vis-no-mean-std", "pixels stay in 0 … 1: mean and deviation are not used", normal=PLAIN)
_pixels("vis-no-mean-std", "pixels in −1 … 1, mean and deviation ½, in place of the file's", normal=HALF)
_pixels("vis-no-mean-std", "CLIP's mean and deviation in place of the file's", normal=CLIP)
_pixels("vis-no-mean-std", "ImageNet's mean and deviation in place of the file's", normal=IMAGENET)
_pixels("vis-mean-std-swapped", "mean and deviation exchanged", exchanged=True)
_pixels("vis-bgr", "blue, green, red", bgr="decoded")
_pixels("vis-bgr", "blue, green, red, padding included", bgr="before")
_pixels("vis-bgr", "channels reversed after normalising", bgr="after")
for _name in (*FILTERS, "nearest"):
    _pixels("vis-filter", f"{_name}", filter=_name)
_pixels("vis-no-antialias", "the filter is not stretched when a side shrinks", antialias=False)
_pixels("vis-stretch", "the ratio is not kept", ("gemma3", "pixtral", *QWEN), stretch=True)
_pixels("vis-pad-corner", "padding right and below only", corner=True)
for _label, _colour in (
    ("grey, 127", GREY),
    ("grey, 128", (128.0,) * 3),
    ("white", WHITE),
    ("black", BLACK),
    CLIP_MEAN,
):
    _pixels("vis-pad-colour", f"padded with {_label}", pad=_colour)
_pixels("vis-pad-colour", "padded before it is resized", ("mlp",), pad_first=True)
_pixels("vis-pad-colour", "zeros after normalising", pad_zero=True)
_pixels("vis-align-ceil", "the size is rounded up", ceil=True)
_pixels("vis-tile-order", "tiles column by column", columns_first=True)
_pixels("vis-overview-first", "the overview comes first", overview_first=True)
# Roundings that differ from Pillow's by a byte at most. They are an engine's choice.
FLOAT_RESIZES = (PixelHabits(floats="rounded"), PixelHabits(floats="kept"))
