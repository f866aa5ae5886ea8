"""Pictures, pixels and embeddings of llama.cpp's mtmd, recorded for tiny random mmproj files.

`tests/data/vision` has seven projectors: the files, and in `golden.npz` the picture, a digest of the preprocessed
pixels of every image, and its embeddings in exact arithmetic (llama.cpp's formulas without its half-precision
roundings). The reference data has the others.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from assay.vision.encode import encode_picture
from assay.vision.projector import Projector, open_projector
from assay.vision.rows import ImageRows

DATA = Path(__file__).parents[1] / "data" / "vision"
HERE = ("gemma3", "gemma4", "idefics3", "internvl", "llava", "pixtral", "qwen3vl")
SHARED = ("idefics3-old", "lfm2", "lfm2-tiles", "qwen25vl", "qwen2vl")
NAMES = (*HERE, *SHARED)


@dataclass(frozen=True)
class Golden:
    """One recorded picture."""

    path: Path
    image: np.ndarray
    embeddings: list[np.ndarray]
    pixels: dict[int, bytes]  # digest by image; large ones are not recorded
    limits: dict[str, int]

    def open(self, engine: str = "cpu", threads: int = 1) -> Projector:
        return open_projector(self.path, engine, threads=threads, **self.limits)


@cache
def golden(name: str) -> Golden:
    if name in HERE:
        with np.load(DATA / "golden.npz") as found:
            values = {key.removeprefix(f"{name}/"): found[key] for key in found.files if key.startswith(f"{name}/")}
        pixels = {int(key[7:]): value.tobytes() for key, value in values.items() if key.startswith("pixels_")}
        return Golden(DATA / f"{name}-mmproj.gguf", values["image"], _numbered(values, "embd_"), pixels, {})
    folder = Path(os.environ.get("ASSAY_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data" / "vision"
    if not folder.is_dir():
        pytest.skip(f"no reference data at {folder}; set ASSAY_SHARED")
    with np.load(folder / f"{name}.npz") as found:
        values = {key: found[key] for key in found.files if key.startswith(("image_", "exact_embd_", "pixels_", "m"))}
    pixels = {int(key[7:]): digest(value) for key, value in values.items() if key.startswith("pixels_")}
    limits = {key: int(values[key]) for key in ("min_tokens", "max_tokens") if values[key]}
    embeddings = _numbered(values, "exact_embd_")
    return Golden(folder / f"{name}-mmproj.gguf", values["image_0"], embeddings, pixels, limits)


def _numbered(values: dict[str, np.ndarray], prefix: str) -> list[np.ndarray]:
    return [values[f"{prefix}{i}"] for i in range(sum(key.startswith(prefix) for key in values))]


def digest(pixels: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).digest()


def rows(projector: Projector, picture: np.ndarray) -> list[ImageRows]:
    return [piece for piece in encode_picture(projector, picture).pieces if isinstance(piece, ImageRows)]


def nmse(found: np.ndarray, wanted: np.ndarray) -> float:
    difference = found.astype(np.float64) - wanted.astype(np.float64)
    return float((difference**2).sum() / (wanted.astype(np.float64) ** 2).sum())
