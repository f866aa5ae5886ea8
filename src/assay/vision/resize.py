"""Resizing bytes as Pillow does: integers throughout, so that every machine gives the same picture.

Columns are resized first, rows second, and the picture between the two passes is bytes again. A pass whose size stays
is skipped. For output k of a pass from `n_in` to `n_out`:

    centre c = (k + ½) · n_in / n_out      stretch w = max(1, n_in / n_out)
    taps from trunc(c − r·w + ½) to trunc(c + r·w + ½), cut at the borders
    weight = filter((x + ½ − c) / w), divided by their sum, then an integer of 22 fraction bits
    value = (2²¹ + Σ weight · byte) >> 22, within 0 … 255

The filter is stretched when a side shrinks, so that reducing always antialiases. Touch this to add a filter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
_Floats = NDArray[np.float64]
_BITS = 22


def _bilinear(x: _Floats) -> _Floats:
    x = np.abs(x)
    return np.where(x < 1, 1 - x, 0.0)


def _cubic(a: float) -> Callable[[_Floats], _Floats]:
    """Keys' cubic: a = −½ in Pillow, −¾ in OpenCV and PyTorch."""

    def weight(x: _Floats) -> _Floats:
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = (((x - 5) * x + 8) * x - 4) * a
        return np.where(x < 1, near, np.where(x < 2, far, 0.0))

    return weight


def _sinc(x: _Floats) -> _Floats:
    at = np.where(x == 0, 1.0, x * math.pi)
    return np.where(x == 0, 1.0, np.sin(at) / at)


def _lanczos(x: _Floats) -> _Floats:
    return np.where((x >= -3) & (x < 3), _sinc(x) * _sinc(x / 3), 0.0)


# filter -> its function and its radius
FILTERS: dict[str, tuple[Callable[[_Floats], _Floats], float]] = {
    "bilinear": (_bilinear, 1.0),
    "bicubic": (_cubic(-0.5), 2.0),
    "sharper bicubic": (_cubic(-0.75), 2.0),
    "lanczos": (_lanczos, 3.0),
}


@lru_cache(maxsize=64)
def taps(n_in: int, n_out: int, name: str, antialias: bool = True) -> tuple[NDArray[np.intp], _Floats]:
    """For each output: its taps [n_out, k], cut to the input, and their weights; 0 for taps that it has not."""
    function, radius = FILTERS[name]
    stretch = max(1.0, n_in / n_out) if antialias else 1.0
    support, step = radius * stretch, 1.0 / stretch
    centre = (np.arange(n_out) + 0.5) * (n_in / n_out)
    first = np.maximum(np.trunc(centre - support + 0.5).astype(np.intp), 0)
    last = np.minimum(np.trunc(centre + support + 0.5).astype(np.intp), n_in)
    at = first[:, None] + np.arange(int((last - first).max()))
    weights = np.where(at < last[:, None], function((at - centre[:, None] + 0.5) * step), 0.0)
    total = np.zeros(n_out)
    for column in weights.T:  # in order: NumPy's own sum adds in pairs
        total += column
    weights /= np.where(total == 0, 1.0, total)[:, None]
    return np.minimum(at, n_in - 1), weights


def _pass(picture: Bytes, n_out: int, name: str, antialias: bool) -> Bytes:
    """Axis 0 of a picture resized to `n_out`."""
    at, weights = taps(len(picture), n_out, name, antialias)
    scaled = weights * (1 << _BITS)
    whole = np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5)).astype(np.int32)
    total: NDArray[Any] = np.full((n_out, *picture.shape[1:]), 1 << (_BITS - 1), np.int32)
    for j in range(at.shape[1]):
        total += picture[at[:, j]] * whole[:, j, None, None]
    return np.asarray(np.clip(total >> _BITS, 0, 255), np.uint8)


def resize(picture: Bytes, width: int, height: int, name: str, *, antialias: bool = True) -> Bytes:
    """A picture [row, column, channel] of another size. Towers want `antialias`; faulty engines lack it."""
    if picture.shape[1] != width:
        picture = _pass(picture.transpose(1, 0, 2), width, name, antialias).transpose(1, 0, 2)
    if picture.shape[0] != height:
        picture = _pass(picture, height, name, antialias)
    return picture
