"""The pictures of a job as parts of its frame: the replica runs the tower.

    head["images"]   for each image its place in `ids` and its digest, in order
    arrays           "image/0", "image/1", …: the prepared pixels, bytes [row, column, RGB]

The router decodes and resizes a picture, which decides its tokens, and runs no tower. `ids` has 0 at the rows of an
image. The replica's own digest covers its mmproj file, its arithmetic and the pixels, so that rows of another file are
never taken for these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from assay.cluster.frame_schema import COUNT, TEXT, Fields
from assay.cluster.frames import Array
from assay.errors import AssayError
from assay.runtime.image_places import Images, PlacedImage, row_ids
from assay.runtime.pictured_prompt import PictureReader

MAX_BYTES = 128 << 20  # of the pixels of one job
_IMAGE = Fields({"at": COUNT, "digest": TEXT})


def check_sendable(images: Images) -> None:
    """Refuse pictures that no frame can hold."""
    if any(p.image.pixels is None for p in images):
        raise AssayError("picture: was encoded in this process; a replica encodes its pictures itself")
    if (size := sum(p.image.pixels.nbytes for p in images if p.image.pixels is not None)) > MAX_BYTES:
        raise AssayError(
            f"pictures: too many pixels for one request to a replica (found {size} bytes, at most {MAX_BYTES}); send "
            "fewer or smaller pictures"
        )


def pack_images(images: Images) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    """The heads and the arrays of the images of a job."""
    check_sendable(images)
    heads = [{"at": p.start, "digest": p.image.digest.hex()} for p in images]
    return heads, {f"image/{i}": np.asarray(p.image.pixels) for i, p in enumerate(images)}


def unpack_images(
    heads: Any, arrays: Mapping[str, Array], ids: Sequence[int], reader: PictureReader | None
) -> tuple[tuple[int, ...], Images]:
    """The ids and the pictures of a job. Slow: the tower is run here.

    Places and sizes are checked first: no more rows are computed than the prompt has ids. Raises ValueError if the
    frame is malformed, AssayError if this replica cannot encode its pictures.
    """
    if not isinstance(heads, list) or len(heads) > len(ids):
        raise ValueError("images are not a list of places in ids")
    if reader is None:
        raise AssayError("picture: this replica has no mmproj file; put it beside the model on every machine")
    pixels, end = [], 0
    for i, head in enumerate(heads):
        fault = _IMAGE.fault(head) if isinstance(head, dict) else "not an object"
        if fault:
            raise ValueError(f"image {i}: {fault}")
        pixels.append(arrays[f"image/{i}"])
        if head["at"] < end or (end := head["at"] + reader.count_prepared(pixels[-1])) > len(ids):
            raise ValueError(f"image {i} does not lie behind the one before it and within {len(ids)} ids")
    if sum(one.nbytes for one in pixels) > MAX_BYTES:
        raise ValueError(f"images have more than {MAX_BYTES} bytes")
    found, placed = list(ids), []
    for head, image in zip(heads, reader.read_prepared(pixels), strict=True):
        if image.digest.hex() != head["digest"]:
            raise AssayError("picture: the mmproj file of this replica is another one than the router's")
        placed.append(PlacedImage(head["at"], image))
        found[placed[-1].start : placed[-1].end] = row_ids(image)
    return tuple(found), tuple(placed)
