"""transformers' image processors: the pixels that Hugging Face makes of a picture, with the numbers of an mmproj file.

They are its processors on Pillow, which need neither torch nor torchvision. A tower is not run. Touch this when a
projector gets a processor, or a processor another setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.models.vision.projector_keys import ProjectorKeys
from assay.vision.resize import Bytes

Array = NDArray[Any]
Settings = dict[str, Any]


def _square(keys: ProjectorKeys) -> Settings:
    return {"size": {"height": keys.image_size, "width": keys.image_size}}


def _free(keys: ProjectorKeys) -> Settings:
    area = (keys.patch * keys.merge) ** 2
    size = {"shortest_edge": area * (keys.min_tokens or 0), "longest_edge": area * (keys.max_tokens or 0)}
    return {"patch_size": keys.patch, "merge_size": keys.merge, "size": size}


def _split(keys: ProjectorKeys) -> Settings:
    return {"size": {"longest_edge": keys.longest_edge}, "max_image_size": {"longest_edge": keys.image_size}}


def _longest(keys: ProjectorKeys) -> Settings:
    side = keys.patch * keys.merge
    return {"size": {"longest_edge": keys.image_size}, "patch_size": {"height": side, "width": side}}


def _tiles(keys: ProjectorKeys) -> Settings:
    return {**_square(keys), "crop_to_patches": True, "min_patches": keys.min_tiles, "max_patches": keys.max_tiles}


def _padded(keys: ProjectorKeys) -> Settings:
    return {"size": {"shortest_edge": keys.image_size}, "crop_size": _square(keys)["size"], "do_pad": True}


_QWEN = ("qwen2_vl", "Qwen2VL", _free)
PROCESSORS: Mapping[str, tuple[str, str, Callable[[ProjectorKeys], Settings]]] = {
    "gemma3": ("gemma3", "Gemma3", _square),
    "qwen2vl_merger": _QWEN,
    "qwen2.5vl_merger": _QWEN,
    "qwen3vl_merger": _QWEN,
    "idefics3": ("idefics3", "Idefics3", _split),
    "pixtral": ("pixtral", "Pixtral", _longest),
    "internvl": ("got_ocr2", "GotOcr2", _tiles),
    "mlp": ("llava", "Llava", _padded),
}


def processed_pixels(keys: ProjectorKeys, picture: Bytes) -> dict[int, Array]:
    """The pixels of each image that a processor makes of a picture [row, column, RGB], or the rows of its patches."""
    if keys.projector not in PROCESSORS:
        raise AssayError(
            f"engine transformers: has no processor of {keys.projector} on Pillow (expected {', '.join(PROCESSORS)}); "
            "use --engine llamacpp"
        )
    module, name, settings = PROCESSORS[keys.projector]
    try:
        kind = getattr(
            import_module(f"transformers.models.{module}.image_processing_pil_{module}"), f"{name}ImageProcessorPil"
        )
        from PIL import Image
    except (ImportError, AttributeError) as error:
        raise AssayError(
            "engine transformers: its image processors on Pillow cannot be imported "
            f"({str(error).splitlines()[0]:.120}); pip install 'transformers>=5.20' pillow"
        ) from None
    made = kind(image_mean=list(keys.mean), image_std=list(keys.std), **settings(keys))
    try:
        found = made(images=[Image.fromarray(picture)], return_tensors="np")["pixel_values"]
    except (ValueError, ZeroDivisionError) as error:
        raise AssayError(f"engine transformers: refuses the picture ({' '.join(str(error).split()):.200})") from None
    values = np.asarray(found, np.float32)
    while values.ndim > 4:
        values = values[0]
    return {0: values} if values.ndim < 4 else dict(enumerate(values))
