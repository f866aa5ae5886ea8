"""A picture as the prompt gets it: decoded, preprocessed, encoded by the tower, with its markers around it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.models.vision.picture_inputs import patch_rows, picture_inputs
from assay.vision.markers import marked
from assay.vision.picture import decode_boxed
from assay.vision.picture_plan import Image, PicturePlan, image_of_size, plan_picture
from assay.vision.preprocess import PreparedImage, PreparedPicture, normalise, preprocess
from assay.vision.projector import Projector, TowerInput
from assay.vision.resize import Bytes
from assay.vision.rows import ImagePrompt, ImageRows

Picture = bytes | bytearray | memoryview | Bytes


@dataclass(frozen=True)
class TracedPicture:
    """A picture with its stages and, for each image, the values of the nodes that were kept."""

    prepared: PreparedPicture
    rows: tuple[NDArray[np.float32], ...]
    nodes: tuple[dict[str, NDArray[Any]], ...]


def encode_picture(projector: Projector, data: Picture) -> ImagePrompt:
    """The text and the rows of one picture: the bytes of a file, or pixels [row, column, RGB]."""
    return encode_pictures(projector, [data])[0]


def encode_pictures(projector: Projector, pictures: Sequence[Picture]) -> list[ImagePrompt]:
    """Several pictures, run together. Each has the bits that it has alone."""
    prepared = [prepare_picture(projector, data) for data in pictures]
    done = iter(projector.run([tower_input(projector, image) for p in prepared for image in p.images]))
    return [_prompt(projector, p, [next(done)[0] for _ in p.images]) for p in prepared]


def trace_picture(projector: Projector, data: Picture, keep: Collection[str]) -> TracedPicture:
    """A picture with its stages and the values of these nodes."""
    prepared = prepare_picture(projector, data)
    done = projector.run([tower_input(projector, image) for image in prepared.images], keep)
    return TracedPicture(prepared, tuple(rows for rows, _ in done), tuple(nodes for _, nodes in done))


def prepare_picture(projector: Projector, data: Picture) -> PreparedPicture:
    """A picture decoded and preprocessed, with every stage."""
    return preprocess(projector.tower.keys, _pixels(data))


def picture_tokens(projector: Projector, width: int, height: int) -> PicturePlan:
    """Images, sizes and tokens that a picture of this size will have, before it is computed."""
    return plan_picture(projector.tower.keys, (width, height))


def planned_prompt(projector: Projector, width: int, height: int) -> ImagePrompt:
    """The text and the number of rows of a picture of this size, without their values: to count its tokens."""
    tower, plan = projector.tower, picture_tokens(projector, width, height)
    images = [
        ImageRows(np.empty((image.tokens, 0), np.float32), image.grid if tower.mrope else None, b"", tower.sees_itself)
        for image in plan.images
    ]
    pieces = marked(tower.keys.projector, plan)
    return ImagePrompt(tuple(piece if isinstance(piece, str) else images[piece] for piece in pieces))


def prepared_prompt(projector: Projector, data: Picture) -> ImagePrompt:
    """The text and the pixels of a picture, for another process to encode (`encode_prepared`). No tower is run."""
    return _prompt(projector, prepare_picture(projector, data))


def prepared_image(projector: Projector, pixels: Bytes) -> tuple[bytes, PreparedImage]:
    """The digest of an image that another process prepared, and the image."""
    keys = projector.tower.keys
    found = PreparedImage(prepared_plan(projector, pixels), pixels, pixels, normalise(keys, pixels))
    return _digest(projector, found), found


def prepared_plan(projector: Projector, pixels: Bytes) -> Image:
    """The grid and the tokens of an image that another process prepared. Sizes that no picture can get are refused."""
    height, width, _ = _pixels(pixels).shape
    return image_of_size(projector.tower.keys, (width, height))


def encode_prepared(projector: Projector, images: Mapping[bytes, PreparedImage]) -> dict[bytes, ImageRows]:
    """The rows of images by their digests."""
    done = projector.run([tower_input(projector, image) for image in images.values()])
    return {
        digest: _image_rows(projector, image, digest, rows)
        for (digest, image), (rows, _) in zip(images.items(), done, strict=True)
    }


def tower_input(projector: Projector, image: PreparedImage) -> TowerInput:
    tower = projector.tower
    inputs = picture_inputs(tower.keys, image.image.size, tower.table_rows)
    return TowerInput(patch_rows(image.pixels, tower.keys.patch, inputs.order), inputs)


def _pixels(data: Picture) -> Bytes:
    if not isinstance(data, np.ndarray):
        return decode_boxed(bytes(data))
    if data.dtype != np.uint8 or data.ndim != 3 or data.shape[2] != 3 or not data.size:
        raise AssayError(f"picture: not bytes [row, column, RGB] (found {data.dtype} {list(data.shape)})")
    return data


def _prompt(
    projector: Projector, prepared: PreparedPicture, rows: Sequence[NDArray[np.float32]] | None = None
) -> ImagePrompt:
    """Without rows, another process runs the tower: the images have their pixels instead."""
    found = [None] * len(prepared.images) if rows is None else rows
    images = [
        _image_rows(projector, image, _digest(projector, image), own)
        for image, own in zip(prepared.images, found, strict=True)
    ]
    pieces = marked(projector.tower.keys.projector, prepared.plan)
    return ImagePrompt(tuple(piece if isinstance(piece, str) else images[piece] for piece in pieces))


def _image_rows(
    projector: Projector, image: PreparedImage, digest: bytes, rows: NDArray[np.float32] | None
) -> ImageRows:
    tower, pixels = projector.tower, None
    if rows is None:
        rows, pixels = np.broadcast_to(np.float32(0), (image.image.tokens, tower.width)), image.padded
    return ImageRows(rows, image.image.grid if tower.mrope else None, digest, tower.sees_itself, pixels)


def _digest(projector: Projector, image: PreparedImage) -> bytes:
    """The name of an image's rows: the mmproj file, the engine's arithmetic, the pixels that the tower reads."""
    found = hashlib.sha256(projector.digest)
    found.update(f"{projector.arithmetic} {image.pixels.shape}".encode())
    found.update(image.pixels.data)
    return found.digest()
