"""From a decoded picture to the pixels that a tower reads, with every stage between.

    decoded → resized → padded → cut into tiles → normalised: (byte / 255 − mean) / std in float32

Pixels that padding made are normalised as well. `picture_plan.py` decides sizes; this module moves bytes. A trace
shows the stages, so that a difference is named where it begins. Touch this when a stage is added.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.models.vision.projector_keys import ProjectorKeys
from assay.vision.picture_plan import Image, PicturePlan, Scaling, Size, plan_picture
from assay.vision.resize import Bytes, resize

_f32 = np.float32


@dataclass(frozen=True)
class PreparedImage:
    """One image for the tower, with its stages: `resized` before padding, `padded` as it is normalised."""

    image: Image
    resized: Bytes
    padded: Bytes
    pixels: NDArray[np.float32]  # [channel, row, column]


@dataclass(frozen=True)
class PreparedPicture:
    """A picture and the images made of it, in the order of the plan."""

    decoded: Bytes
    plan: PicturePlan
    images: tuple[PreparedImage, ...]


def preprocess(keys: ProjectorKeys, picture: Bytes) -> PreparedPicture:
    """The images of a picture [row, column, RGB]."""
    plan = plan_picture(keys, (picture.shape[1], picture.shape[0]))
    tiled = (picture, picture)
    for step in plan.tiled:
        tiled = scaled(tiled[1], step)
    whole = scaled(tiled[1] if plan.overview_of_tiled else picture, plan.whole)
    found = []
    for image in plan.images:
        if image.kind == "tile":
            (x, y), (width, height) = image.at, image.size
            cut = tiled[1][y * height : (y + 1) * height, x * width : (x + 1) * width]
            found.append(PreparedImage(image, cut, cut, normalise(keys, cut)))
        else:
            found.append(PreparedImage(image, *whole, normalise(keys, whole[1])))
    return PreparedPicture(picture, plan, tuple(found))


def scaled(picture: Bytes, to: Scaling) -> tuple[Bytes, Bytes]:
    """The picture resized, and with its padding around it."""
    width, height = to.size
    if to.pad is None or picture.shape[:2] == (height, width):
        found = resize(picture, width, height, to.filter)
        return found, found
    w, h = fitted_size((picture.shape[1], picture.shape[0]), to.size)
    found = resize(picture, w, h, to.filter)
    padded = np.empty((height, width, 3), np.uint8)
    padded[:] = to.pad
    x, y = (width - w) // 2, (height - h) // 2
    padded[y : y + h, x : x + w] = found
    return found, padded


def fitted_size(size: Size, most: Size) -> Size:
    """The largest size within `most` that keeps the ratio, rounded up."""
    scale = min(_f32(b) / _f32(a) for a, b in zip(size, most, strict=True))
    width, height = (min(int(np.ceil(_f32(a) * scale)), b) for a, b in zip(size, most, strict=True))
    return width, height


@np.errstate(all="ignore")  # the file's mean and deviation may be huge; the results say so
def normalise(keys: ProjectorKeys, picture: Bytes) -> NDArray[np.float32]:
    """(byte / 255 − mean) / std in float32, [channel, row, column]."""
    mean, std = (np.array(three, np.float32) for three in (keys.mean, keys.std))
    values = (picture.astype(np.float32) / _f32(255) - mean) / std
    return np.ascontiguousarray(values.transpose(2, 0, 1), np.float32)
