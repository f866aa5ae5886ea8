"""A dump of a picture: arrays by name, sorted into the pixels and the nodes of each image.

    pixels_J, pixel_values       what the tower reads of image J: [channel, row, column], [row, column, channel], or the
                                 rows of patches; bytes or floats
    embd_J, image_embeds, …      the rows for the language model
    NODE, NODE@J                 a node of the tower, of image 0 or J
    decoded                      the picture as the engine decoded it

This is what `assay trace MMPROJ --image` writes; names without a number belong to image 0. Touch this to read another
name or layout.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.graph import split
from assay.models.vision.picture_inputs import PictureInputs, patch_rows
from assay.models.vision.projector_keys import ProjectorKeys
from assay.verify.dumps.observation import Dump, Observation
from assay.vision.picture_plan import Size

Array = NDArray[Any]
PIXELS = ("pixels", "pixel_values", "inp_raw", "preprocessed", "image_pixels")
ROWS = ("embd", "embeddings", "image_embeds", "image_embeddings", "image_features", "mm_embd", "result_embd")
_THEIR_ROWS = ("image_embeds", "image_embeddings", "image_features", "mm_embd")  # of a picture whatever was run
DECODED = ("decoded", "picture")
_LAST = re.compile(r"(?:_|@)(\d{1,4})$")
_OF_DEEPSTACK = {"ffn_up": "deepstack_up", "ffn_up_b": "deepstack_up_b", "ffn_gelu": "deepstack_gelu"} | {
    "ffn_down": "deepstack_down"
}


@dataclass
class PictureDump:
    """The arrays of a dump, by image."""

    source: str
    pixels: dict[int, Array] = field(default_factory=dict)
    nodes: dict[int, dict[str, Array]] = field(default_factory=dict)
    decoded: Array | None = None
    tokens: tuple[int, ...] = ()
    unmatched: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def sort_arrays(dump: Dump, graph_names: Iterable[str], output: str) -> PictureDump:
    """The whole arrays of a dump. Printed values are refused: a picture has too many rows for ten of them to tell."""
    known = set(graph_names)
    found = PictureDump(dump.source, tokens=dump.tokens, notes=list(dump.notes))
    for obs in dump.observations:
        name = obs.foreign or obs.name
        if obs.kind != "values":
            found.unmatched.append(name)
            continue
        _sort(found, name, obs, known, output)
    if not found.pixels and not found.nodes:
        theirs = ", ".join(found.unmatched[:12]) or "none"
        raise AssayError(
            f"{dump.source}: holds nothing of a picture (found the names {theirs}; expected pixels_0, embd_0 or "
            f"nodes such as {', '.join(sorted(known)[:4])}); `assay inspect MMPROJ --graph` lists the nodes; for a run "
            "of the language model give its prompt with -p TEXT"
        )
    return found


def of_picture(name: str) -> bool:
    """Does a name of a dump of a prompt belong to a picture? `embd` alone is the language model's."""
    last = _LAST.search(name)
    plain = (name[: last.start()] if last else name).lower()
    return plain in PIXELS or name.lower() in DECODED or (plain in ROWS and (last is not None or plain in _THEIR_ROWS))


def rows_of_images(dump: Dump) -> dict[int, Array]:
    """The rows of pictures that a dump of a prompt has, by image."""
    found: dict[int, Array] = {}
    for obs in dump.observations:
        name = obs.foreign or obs.name
        last = _LAST.search(name)
        if obs.kind == "values" and of_picture(name) and (name[: last.start()] if last else name).lower() in ROWS:
            found[int(last[1]) if last else 0] = obs.array()
    return found


def _sort(found: PictureDump, name: str, obs: Observation, known: set[str], output: str) -> None:
    plain, image = name, 0
    if name not in known and (last := _LAST.search(name)):
        plain, image = name[: last.start()], int(last[1])
    if plain.lower() in PIXELS:
        found.pixels[image] = obs.array()
    elif plain in known:
        found.nodes.setdefault(image, {})[plain] = obs.array()
    elif plain.lower() in ROWS:
        found.nodes.setdefault(image, {})[output] = obs.array()
    elif name.lower() in DECODED and obs.array().dtype == np.uint8:
        found.decoded = obs.array()
    else:
        found.unmatched.append(name)


def planes(value: Array, keys: ProjectorKeys, size: Size, inputs: PictureInputs) -> Array | None:
    """Pixels as [channel, row, column]; None if the array has another size than the image."""
    width, height = size
    value = np.asarray(value)
    while value.ndim > 3 and value.shape[0] == 1:
        value = value[0]
    if value.shape == (3, height, width):
        return value
    if value.shape == (height, width, 3):
        return np.ascontiguousarray(value.transpose(2, 0, 1))
    p, n = keys.patch, len(inputs.order)
    if value.ndim != 2 or len(value) != n or value.shape[1] not in (3 * p * p, 6 * p * p):
        return None
    if value.shape[1] == 6 * p * p:  # two frames of the same picture: [c, frame, y, x]
        value = value.reshape(n, 3, 2, p, p)[:, :, 0].reshape(n, -1)
    raster = np.empty_like(value)
    raster[inputs.order] = value
    grid = raster.reshape(height // p, width // p, 3, p, p).transpose(2, 0, 3, 1, 4)
    return np.ascontiguousarray(grid.reshape(3, height // p * p, width // p * p))


def any_planes(value: Array) -> Array | None:
    """Pixels of an image of whatever size, as [channel, row, column]."""
    while value.ndim > 3 and value.shape[0] == 1:
        value = value[0]
    if value.ndim != 3:
        return None
    if value.shape[0] == 3:
        return value
    return np.ascontiguousarray(value.transpose(2, 0, 1)) if value.shape[2] == 3 else None


@dataclass(frozen=True)
class NamedNodes:
    """The nodes of one image: those of the definition's shape, and those of another."""

    values: dict[str, Array]
    misshapen: dict[str, Array]


def in_layout(
    nodes: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]], keys: ProjectorKeys, order: Array
) -> NamedNodes:
    """The values in the graph's layout. `shapes` are those that the definition gives for this image."""
    values: dict[str, Array] = {}
    misshapen: dict[str, Array] = {}
    for name, value in nodes.items():
        value = np.asarray(value)
        if split(name)[0].startswith("inp_raw") and value.ndim == 3 and value.shape[0] == 3:
            value = patch_rows(value.astype(np.float32), keys.patch, order)
        role, layer = split(name)
        other = f"{_OF_DEEPSTACK.get(role, '')}-{layer}"
        if not _fits(value, shapes[name]) and other in shapes and _fits(value, shapes[other]):
            name = other  # llama.cpp gives both the same name, and the later one is dumped
        shape = shapes[name]
        if _fits(value, shape):
            values[name] = value.reshape(shape)
        elif value.ndim == 2 and value.T.shape == shape:
            values[name] = np.ascontiguousarray(value.T)
        else:
            while value.ndim > 2 and value.shape[0] == 1:
                value = value[0]
            misshapen[name] = value
    return NamedNodes(values, misshapen)


def _fits(value: Array, shape: tuple[int, ...]) -> bool:
    """Is it the shape, perhaps with heads split or joined, or with axes of one?"""
    rows = tuple(n for n in value.shape if n != 1)
    return value.size == int(np.prod(shape)) and bool(rows[:1] == tuple(n for n in shape if n != 1)[:1])
