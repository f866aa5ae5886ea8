"""Fuzzed readers of pictures and of mmproj files: bytes that are nearly right, decoded and run through a tiny tower."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from assay.vision.encode import encode_picture
from assay.vision.picture import FORMATS, decode_picture, sample_picture
from assay.vision.projector import open_projector
from fuzz import mutate

TOWERS = sorted((Path(__file__).parents[1] / "tests" / "data" / "vision").glob("*-mmproj.gguf"))
PIXELS = np.arange(9 * 30 * 3, dtype=np.uint8).reshape(9, 30, 3)


def make_picture(rng: random.Random) -> bytes:
    return mutate.data(rng, sample_picture(rng.choice(FORMATS)))


def read_picture(raw: bytes) -> None:
    decode_picture(raw)


def make_tower(rng: random.Random) -> bytes:
    """An mmproj file with bytes changed in its header, which is a few thousand bytes long."""
    raw = rng.choice(TOWERS).read_bytes()
    return mutate.data(rng, raw[:6000]) + raw[6000:]


def read_tower(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    projector = open_projector(path, threads=1)
    encode_picture(projector, PIXELS)
    projector.close()
