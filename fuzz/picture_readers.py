"""Fuzzed readers of pictures and of mmproj files: bytes that are nearly right, decoded and run through a tiny tower."""

from __future__ import annotations

import io
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from assay.errors import AssayError
from assay.gguf import GGUFFile, Tensor, open_file, write
from assay.models.vision.projector_keys import read_projector_keys
from assay.vision.encode import encode_picture
from assay.vision.picture import decode_picture, picture_size
from assay.vision.picture_plan import plan_picture
from assay.vision.preprocess import preprocess
from assay.vision.projector import open_projector
from fuzz import mutate

TOWERS = sorted((Path(__file__).parents[1] / "tests" / "data" / "vision").glob("*-mmproj.gguf"))
PIXELS = np.arange(9 * 30 * 3, dtype=np.uint8).reshape(9, 30, 3)
HEADER = 6000  # bytes at the beginning of a tiny mmproj file that hold its keys and the list of its tensors
SMALL = 64 * 64  # pixels of a picture that is preprocessed too


@cache
def _pictures() -> tuple[bytes, ...]:
    """Small files of every format and kind of pixels that is read."""
    from PIL import Image

    rng = np.random.default_rng(0)
    rgba = Image.fromarray(rng.integers(0, 256, (7, 10, 4), dtype=np.uint8))
    rgb = rgba.convert("RGB")
    turned = Image.Exif()
    turned[0x0112] = 6
    kinds: list[tuple[Any, str, dict[str, Any]]] = [
        *((image, "PNG", {}) for image in (rgb, rgba, rgb.convert("L"), rgba.convert("LA"), rgb.convert("1"))),
        (Image.fromarray(rng.integers(0, 1 << 16, (7, 10), dtype=np.uint16)), "PNG", {}),
        (rgb.quantize(8), "PNG", {"transparency": 3}),
        (rgb, "PNG", {"save_all": True, "append_images": [rgb.rotate(180)]}),
        *((rgb, "JPEG", options) for options in ({}, {"progressive": True}, {"exif": turned}, {"subsampling": 0})),
        (rgb.convert("CMYK"), "JPEG", {}),
        (rgb.convert("L"), "JPEG", {}),
        (rgb.quantize(8), "GIF", {"transparency": 1}),
        (rgb.quantize(8), "GIF", {"save_all": True, "append_images": [rgb.rotate(180).quantize(8)]}),
        (rgb, "WEBP", {}),
        (rgba, "WEBP", {"lossless": True, "exif": turned}),
        (rgb, "WEBP", {"save_all": True, "append_images": [rgb.rotate(180)], "lossless": True}),
        *((image, "BMP", {}) for image in (rgb, rgba, rgb.quantize(8), rgb.convert("1"))),
        *((image, "PPM", {}) for image in (rgb, rgb.convert("L"), rgb.convert("1"))),
    ]
    found = []
    for image, kind, options in kinds:
        out = io.BytesIO()
        image.save(out, kind, **options)
        found.append(out.getvalue())
    return tuple(found)


@cache
def _keys() -> tuple[Any, ...]:
    return tuple(read_projector_keys(open_file(path).metadata, path.name) for path in TOWERS)


def make_picture(rng: random.Random) -> tuple[bytes, int]:
    """A file, and which projector's rules its pixels go through."""
    return mutate.data(rng, rng.choice(_pictures())), rng.randrange(len(TOWERS))


def read_picture(item: tuple[bytes, int]) -> None:
    """Decode a picture; plan it for a tower, and preprocess it if it is small."""
    raw, which = item
    width, height = picture_size(raw)
    plan_picture(_keys()[which], (width, height))
    found = decode_picture(raw)
    if found.shape != (height, width, 3) or found.dtype != np.uint8:
        raise ValueError(f"a picture of {width}×{height} was decoded to {found.dtype} {found.shape}")
    if width * height <= SMALL:
        preprocess(_keys()[which], found)


def make_tower(rng: random.Random) -> bytes:
    """An mmproj file with bytes changed in its header, or with other values of its keys and other tensors."""
    path = rng.choice(TOWERS)
    if rng.random() < 0.5:
        raw = path.read_bytes()
        return mutate.data(rng, raw[:HEADER]) + raw[HEADER:]
    try:
        return _rewritten(rng, open_file(path))
    except (AssayError, ValueError, TypeError, OverflowError):  # a value that no file can hold
        return b""


def _rewritten(rng: random.Random, file: GGUFFile) -> bytes:
    from tempfile import TemporaryDirectory

    keys = {key: file.metadata[key] for key in file.metadata}
    for key in rng.sample(sorted(keys), rng.choice((0, 1, 1, 2))):
        if rng.random() < 0.2:
            del keys[key]
        elif isinstance(keys[key], int) and not isinstance(keys[key], bool):
            keys[key] = mutate.number(rng) % 2**31 if rng.random() < 0.5 else max(0, keys[key] + rng.choice((-1, 1, 7)))
        elif isinstance(keys[key], float):
            keys[key] = rng.choice(mutate.FLOATS[:-4])
        elif isinstance(keys[key], np.ndarray):
            keys[key] = np.array(
                [rng.choice((0.0, 1e-38, 1e38, -1.0, 0.5)) for _ in range(rng.choice((1, 3, 3)))], "f4"
            )
        else:
            keys[key] = rng.choice((True, False, "gemma3", "lfm2", "pixtral"))
    tensors = []
    for name, info in file.tensors.items():
        values, chance = file.decode(name), rng.random()
        if chance < 0.01:
            continue
        if chance < 0.03:
            values = values.reshape(-1)[: max(1, values.size // 2)]
        elif chance < 0.05:
            values = np.where(rng.random() < 0.5, np.nan, 1e38) * np.ones_like(values)
        elif chance < 0.06 and values.ndim == 2:
            values = np.ascontiguousarray(values.T)
        tensors.append(Tensor(name, values.shape, info.type, lambda values=values: values.astype(np.float32)))
    with TemporaryDirectory() as folder:
        write(Path(folder) / "tower.gguf", keys, tensors)
        return (Path(folder) / "tower.gguf").read_bytes()


def read_tower(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    projector = open_projector(path, threads=1)
    encode_picture(projector, PIXELS)
    projector.close()
