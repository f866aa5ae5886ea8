"""Are an engine's pixels right? If not, which mistake makes them?

Pixels are defined to the bit, but an engine may resize in floats: up to one byte's step is a choice of rounding and not
a fault. Every mistake of `faults/vision/pixel_habits.py` is a record of choices. The pixels that these choices make
are compared with the engine's; two mistakes at once are tried if one does not explain them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.models.vision.projector_keys import ProjectorKeys
from assay.models.vision.tower import Tower
from assay.verify.faults.vision import PICTURE_PLANTS, PictureVariant
from assay.verify.faults.vision.picture_plants import RIGHT_HABITS, PixelHabits
from assay.verify.faults.vision.pixel_habits import FLOAT_RESIZES, MadeImage, images_by
from assay.vision.resize import Bytes

Array = NDArray[Any]
STEP = 1.02  # bytes: the most that another rounding of the resize may move a pixel
EXACT = 0.02  # bytes: float32's rounding of the normalisation
PAIRS_SECONDS = 10.0


@dataclass(frozen=True)
class PixelDistance:
    """How far two sets of pixels are apart, in steps of a byte."""

    largest: float
    rms: float

    @property
    def same(self) -> bool:
        return self.largest <= EXACT

    @property
    def rounding(self) -> bool:
        return self.largest <= STEP


FAR = PixelDistance(np.inf, np.inf)


@dataclass(frozen=True)
class PixelFault:
    """One mistake, or two, that make the engine's pixels."""

    mistakes: tuple[tuple[str, PictureVariant], ...]
    left: PixelDistance
    tied: tuple[str, ...] = ()  # other faults whose pixels are the same


@dataclass(frozen=True)
class PixelVerdict:
    """The judgement of a dump's pixels."""

    distance: PixelDistance  # from the right ones; over all images
    worst: int  # the image that is furthest away
    faults: tuple[PixelFault, ...] = ()
    tried: int = 0
    habits: PixelHabits = RIGHT_HABITS  # what the engine does, as far as it is known

    @property
    def right(self) -> bool:
        return self.distance.rounding


def step_of(keys: ProjectorKeys, pixels: Array) -> Array:
    """The size of one step of a byte in each channel."""
    if pixels.dtype == np.uint8:
        return np.ones((3, 1, 1))
    return (1 / (255 * np.array(keys.std, np.float64))).reshape(3, 1, 1)


def distance(keys: ProjectorKeys, found: Array, made: Array) -> PixelDistance:
    """How far the found pixels of an image are from these."""
    if found.dtype == np.uint8:
        mean, std = (np.array(x, np.float64).reshape(3, 1, 1) for x in (keys.mean, keys.std))
        made = (made * std + mean) * 255
    if found.shape != made.shape:
        return FAR
    with np.errstate(all="ignore"):
        apart = np.abs(found.astype(np.float64) - made) / step_of(keys, found)
    return PixelDistance(float(apart.max()), float(np.sqrt(np.mean(apart**2)))) if np.isfinite(apart).all() else FAR


def judge_pixels(tower: Tower, picture: Bytes, found: Mapping[int, Array]) -> PixelVerdict:
    """The verdict on pixels [channel, row, column] of some images of a picture."""
    keys, tried = tower.keys, 0
    right = images_by(keys, picture, RIGHT_HABITS)
    assert right is not None
    here = _over_images(keys, found, right)
    worst = max(found, key=lambda j: distance(keys, found[j], right[j].pixels).rms if j < len(right) else np.inf)
    if here.rounding:
        return PixelVerdict(here, worst)
    explained: list[PixelFault] = []
    for mistakes, habits in _guesses():
        tried += 1
        left = _best(keys, picture, found, habits)
        if left.rounding and left.rms < 0.5 * here.rms:
            explained.append(PixelFault(mistakes, left))
        elif len(mistakes) == 2 and explained:
            break
    if not explained:
        return PixelVerdict(here, worst, tried=tried)
    explained.sort(key=lambda fault: (len(fault.mistakes), fault.left.rms))
    best = explained[0]
    names = {name for name, _ in best.mistakes}
    tied = {
        name
        for fault in explained[1:]
        if len(fault.mistakes) == len(best.mistakes) and fault.left.rms <= max(EXACT, 2 * best.left.rms)
        for name, _ in fault.mistakes
    }
    habits = best.mistakes[0][1].habits
    for _, variant in best.mistakes[1:]:
        habits = _both(habits, variant.habits) or habits
    return PixelVerdict(here, worst, (replace(best, tied=tuple(sorted(tied - names))),), tried, habits)


def _guesses() -> Iterator[tuple[tuple[tuple[str, PictureVariant], ...], PixelHabits]]:
    """Single mistakes, then pairs of them, for a while."""
    single = [(name, v) for name, many in PICTURE_PLANTS.items() for v in many if v.of_pixels]
    for name, variant in single:
        yield ((name, variant),), variant.habits
    end = monotonic() + PAIRS_SECONDS
    for a, b in combinations(single, 2):
        both = _both(a[1].habits, b[1].habits) if a[0] != b[0] else None
        if monotonic() > end:
            return
        if both is not None:
            yield (a, b), both


def _both(a: PixelHabits, b: PixelHabits) -> PixelHabits | None:
    """Two sets of habits at once; None where they concern the same choice."""
    other = {f.name: getattr(b, f.name) for f in fields(b) if getattr(b, f.name) != getattr(RIGHT_HABITS, f.name)}
    if any(getattr(a, name) != getattr(RIGHT_HABITS, name) for name in other):
        return None
    return replace(a, **other)


def _best(keys: ProjectorKeys, picture: Bytes, found: Mapping[int, Array], habits: PixelHabits) -> PixelDistance:
    """The distance with these habits, resizing as Pillow does or in floats."""
    best = FAR
    for more in (RIGHT_HABITS, *FLOAT_RESIZES):
        made = images_by(keys, picture, replace(habits, floats=more.floats))
        if made is None:
            return FAR
        left = _over_images(keys, found, made)
        if left.same:
            return left
        best = min(best, left, key=lambda d: d.rms)
        if best.largest > 64:  # another rounding does not bring it near
            break
    return best


def _over_images(keys: ProjectorKeys, found: Mapping[int, Array], made: Sequence[MadeImage]) -> PixelDistance:
    each = [distance(keys, x, made[j].pixels) if j < len(made) else FAR for j, x in found.items()]
    return PixelDistance(max(d.largest for d in each), float(np.sqrt(np.mean([d.rms**2 for d in each]))))
