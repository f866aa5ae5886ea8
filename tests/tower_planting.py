"""The mistakes that are planted in `second_tower.py`, and how a run is dumped.

A case is one picture through one golden mmproj file. Dumps hold the pixels and every node (`tower`), the rows for the
language model alone (`rows`), or the pixels alone (`pixels`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from assay.models.vision import Tower
from assay.verify.pictures.diagnose_picture import PictureDiagnosis, diagnose_picture
from assay.verify.pictures.picture_dump import PictureDump
from assay.vision.projector import open_projector
from tests.second_tower import SecondTower

HERE = Path(__file__).parent / "data" / "vision"
STYLES = ("tower", "rows", "pixels")
# Cheap files first: a mistake is planted in the first ones that show it.
MODELS = ("llava", "pixtral", "qwen2vl", "gemma3", "qwen3vl", "qwen25vl", "idefics3", "lfm2", "gemma4")
PIXELS = [
    "vis-no-255",
    "vis-no-mean-std",
    "vis-no-mean-std/half",
    "vis-mean-std-swapped",
    "vis-bgr",
    "vis-bgr/after",
    "vis-filter/bilinear",
    "vis-filter/bicubic",
    "vis-filter/nearest",
    "vis-no-antialias",
    "vis-stretch",
    "vis-pad-corner",
    "vis-pad-colour",
    "vis-pad-colour/white",
    "vis-pad-colour/zero",
    "vis-align-ceil",
    "vis-tile-order",
    "vis-overview-first",
]
TOWER = [
    "vis-no-2x-1",
    "vis-patch-hwc",
    "vis-patch-hwc/turned",
    "vis-patch-columns",
    "vis-one-kernel",
    "vis-pos-not-resized",
    "vis-pos-mode",
    "vis-pos-transposed",
    "vis-pos-xy",
    "vis-class-first",
    "vis-eps",
    "vis-activation",
    "vis-activation/projector",
    "vis-gelu-erf",
    "vis-attention-scale",
    "vis-tower-causal",
    "vis-rope-xy",
    "vis-rope-pairs",
    "vis-rope-frequency",
    "vis-no-v-norm",
    "vis-no-clamp",
    "vis-no-post-norm",
    "vis-no-post-norm/pre",
    "vis-last-layer",
    "vis-window-none",
    "vis-window-all",
    "vis-window-size",
    "vis-window-order",
    "vis-merge-order",
    "vis-merge-channel",
    "vis-pool-axis",
    "vis-pool-max",
    "vis-pool-scale",
    "vis-norm-plus-one",
    "vis-projection-transposed",
    "vis-deepstack-missing",
    "vis-deepstack-order",
    "vis-no-break",
    "vis-break-last",
]
SHOWS = 1e-6  # of the size of the values: less is float32's own noise


@dataclass(frozen=True)
class GoldenTower:
    """A golden file with its recorded picture."""

    path: Path
    tower: Tower
    picture: np.ndarray
    tokens: tuple[int, int] | None


@cache
def golden_tower(name: str) -> GoldenTower | None:
    """None if the reference data is not here."""
    shared = Path(os.environ.get("ASSAY_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data" / "vision"
    if (shared / f"{name}.npz").exists():
        with np.load(shared / f"{name}.npz") as found:
            picture, limits = found["image_0"], (int(found["min_tokens"]), int(found["max_tokens"]))
        path = shared / f"{name}-mmproj.gguf"
    elif (HERE / f"{name}-mmproj.gguf").exists():
        with np.load(HERE / "golden.npz") as found:
            picture, limits = found[f"{name}/image"], (0, 0)
        path = HERE / f"{name}-mmproj.gguf"
    else:
        return None
    given = {key: n for key, n in zip(("min_tokens", "max_tokens"), limits, strict=True) if n}
    return GoldenTower(path, open_projector(path, "reference", **given).tower, picture, limits if given else None)


Images = list[tuple[np.ndarray, dict[str, np.ndarray]]]


def run(golden: GoldenTower, *bugs: str, picture: np.ndarray | None = None, **options: Any) -> Images:
    engine = SecondTower(golden.path, bugs, tokens=golden.tokens, **options)
    return engine.run(golden.picture if picture is None else picture)


def dumped(images: Images, style: str, output: str) -> PictureDump:
    pixels = {j: image for j, (image, _) in enumerate(images)} if style != "rows" else {}
    nodes = {
        "tower": {j: found for j, (_, found) in enumerate(images)},
        "rows": {j: {output: found["result_embd"]} for j, (_, found) in enumerate(images)},
        "pixels": {},
    }[style]
    return PictureDump(style, dict(pixels), {j: dict(found) for j, found in nodes.items()})


def shown(images: Images, right: Images, style: str) -> bool:
    """Does an observed value move by more than float32's noise?"""
    if len(images) != len(right):
        return True
    for (pixels, nodes), (good_pixels, good) in zip(images, right, strict=True):
        if style != "rows" and (pixels.shape != good_pixels.shape or not np.array_equal(pixels, good_pixels)):
            return True
        names = [] if style == "pixels" else ["result_embd"] if style == "rows" else [n for n in good if n in nodes]
        for name in names:
            found, expected = nodes[name], good[name]
            size = float(np.sqrt(np.mean(np.square(expected, dtype=np.float64)))) + 1e-30
            if found.shape != expected.shape or np.sqrt(np.mean(np.square(found - expected))) > SHOWS * size:
                return True
    return False


def judged(golden: GoldenTower, images: Images, style: str, picture: np.ndarray | None = None) -> PictureDiagnosis:
    dump = dumped(images, style, golden.tower.graph.output)
    return diagnose_picture(golden.tower, golden.picture if picture is None else picture, dump)


def grade(found: PictureDiagnosis, bug: str) -> tuple[str, float]:
    """named, tied, wrong or open, and how sure the answer was."""
    fault, said = bug.split("/")[0], found.diagnosis
    if fault in found.usual:
        return "named", 1.0
    for cause in said.causes:
        if cause.fault == fault:
            return "named", cause.confidence
    for cause in said.causes:
        if fault in cause.equivalent:
            return "tied", cause.confidence
    if said.causes:
        return "wrong", max(cause.confidence for cause in said.causes)
    return "open", 0.0
