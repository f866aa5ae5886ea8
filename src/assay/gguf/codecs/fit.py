"""The search behind the encoders: scales and minima that minimise the weighted squared error.

A group of weights is fitted by `a * v` or `a * v - m`, where v comes from a small set: integers, or the values of a
table. For given v, the best a and m are linear least squares; for given a and m, the best v is the nearest. So the
search tries a few starting scales around the one that covers the range, solves for a and m, and keeps the best. The
scales of a block are integer multiples of a half d (and the minima of dmin). These integers are then moved by one, and
d and dmin are solved again, while the error falls.

Groups are columns, `float32[size, groups]`, because NumPy then sums over groups with fast additions of whole rows. `w`
has the weight of every element: its importance, or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from assay.errors import AssayError

from .codec import Bytes, Floats

TINY = np.float32(1e-30)
SMALLEST_NORMAL = np.finfo(np.float16).smallest_normal
ROUNDS = 3  # rounds of fitting d and dmin, then the integers

Snap = Callable[[Floats, Floats], Floats]
"""In place: snap values `[size, groups]` to the nearest that the type has; the second argument has the weights."""


@dataclass(frozen=True)
class BlockForm:
    """The values that a block of a type can represent.

    It has groups of `size` elements, a function that snaps elements, the integer ranges of scales and minima (0: no
    minimum), and the values to which starting scales map the extreme of a group. With `odd`, scales are the positive
    odd integers of their range.
    """

    size: int
    snap: Snap
    scales: tuple[int, int]
    minima: int
    starts: tuple[float, ...]
    odd: bool = False


@dataclass
class Blocks:
    """Blocks as encoded: value of an element is `d * scale * v - dmin * minimum`."""

    d: Floats  # [n, 1], a half
    dmin: Floats  # [n, 1], a half
    scales: Floats  # [n, g], integers
    minima: Floats  # [n, g], integers
    values: Floats  # [size, n * g]
    error: Floats  # [n, g]


def whole(low: int, high: int) -> Snap:
    """Snaps to the integers from low to high."""

    def snap(v: Floats, _w: Floats) -> Floats:
        np.rint(v, out=v)
        return np.minimum(np.maximum(v, low, out=v), high, out=v)

    return snap


def steps(first: float, last: float, count: int) -> tuple[float, ...]:
    return tuple(float(v) for v in np.linspace(first, last, count))


def reciprocal(d: Floats) -> Floats:
    """1 / d, with 0 for 0."""
    return np.divide(1, d, out=np.zeros_like(d), where=d != 0)


def columns(x: Floats, size: int) -> Floats:
    """Blocks `[n, k]` as groups in columns, `[size, n * k / size]`."""
    return np.ascontiguousarray(x.reshape(-1, size).T)


def rows(v: Floats, n: int) -> Floats:
    """Columns back to blocks `[n, k]`."""
    return np.ascontiguousarray(v.T).reshape(n, -1)


def dot(*factors: Floats) -> Floats:
    """Sums of products over each group."""
    found: Floats = np.einsum(",".join(["ij"] * len(factors)) + "->j", *factors)
    return found


def fit_affine(x: Floats, w: Floats, levels: int, starts: Sequence[float], free: bool = False) -> tuple[Floats, Floats]:
    """Scale a >= 0 and minimum m >= 0 (of any sign if `free`) of every column, for x ~ a * q - m, q in 0 .. levels."""
    low = x.min(axis=0) if free else np.minimum(x.min(axis=0), 0)
    inverse_span = reciprocal(x.max(axis=0) - low)
    wx = w * x
    sum_w, sum_x = w.sum(axis=0), wx.sum(axis=0)
    best_gain = np.full_like(low, -1)
    scale, minimum = np.zeros_like(low), -low
    shifted, q = x - low, np.empty_like(x)
    snap = whole(0, levels)
    for start in starts:
        snap(np.multiply(shifted, inverse_span * np.float32(start), out=q), w)
        sum_q, sum_xq, sum_qq = dot(w, q), dot(wx, q), dot(w, q, q)
        determinant = sum_w * sum_qq - sum_q * sum_q
        a = (sum_w * sum_xq - sum_x * sum_q) / np.maximum(determinant, TINY)
        b = (sum_x - a * sum_q) / np.maximum(sum_w, TINY)
        alone = determinant <= 0 if free else (b > 0) | (determinant <= 0)  # fit without a minimum
        a = np.where(alone, sum_xq / np.maximum(sum_qq, TINY), a)
        b = np.where(alone, 0, b)
        gain = a * sum_xq + b * sum_x  # the sum of squares explained by the fit
        better = (gain > best_gain) & (sum_qq > 0)
        np.copyto(best_gain, gain, where=better)
        np.copyto(scale, a, where=better)
        np.copyto(minimum, -b, where=better)
    return scale, minimum


def fit_symmetric(x: Floats, w: Floats, snap: Snap, starts: Sequence[float], positive: bool = False) -> Floats:
    """Scale a of every column, for x ~ a * v. A start maps the extreme to the negative of its value; with `positive`,
    a is at least 0 and a start maps the extreme to its value."""
    extreme: Floats = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    inverse = reciprocal(np.abs(extreme)) if positive else -reciprocal(extreme)
    wx = w * x
    best_gain, scale = np.zeros_like(extreme), np.zeros_like(extreme)
    v = np.empty_like(x)
    for start in starts:
        snap(np.multiply(x, inverse * np.float32(start), out=v), w)
        sum_xv = np.maximum(dot(wx, v), 0) if positive else dot(wx, v)
        a = sum_xv / np.maximum(dot(w, v, v), TINY)
        gain = a * sum_xv
        better = gain > best_gain
        np.copyto(best_gain, gain, where=better)
        np.copyto(scale, a, where=better)
    return scale


def covering(values: Floats) -> Floats:
    """The nearest half; below the smallest normal half, the next one away from zero. An overflow is an error.

    A subnormal half has few bits. Rounded down, the integers that multiply it would saturate, and the d of a
    Q6_K block is subnormal for all weights below 1/4.
    """
    nearest = values.astype(np.float16)
    away = np.nextafter(nearest, np.copysign(np.float16(np.inf), values).astype(np.float16))
    short = (np.abs(nearest) < np.abs(values)) & (np.abs(values) < SMALLEST_NORMAL)
    halves = np.where(short, away, nearest).astype(np.float32)
    if not np.isfinite(halves).all():
        largest = float(np.abs(values).max())
        raise AssayError(f"scale {largest:g}: too large for a half (at most 65504); keep this tensor F32 or BF16")
    return halves


def nearest_half(values: Floats, fallback: Floats) -> Floats:
    """The nearest half, or the fallback if it overflows."""
    rounded = values.astype(np.float16).astype(np.float32)
    return np.where(np.isfinite(rounded), rounded, fallback)


def encode_blocks(x: Floats, w: Floats | None, form: BlockForm, levels: int = 0) -> Blocks:
    """Blocks `[n, k]` in a form with integer scales; `levels` is the largest value of a form with minima."""
    n = len(x)
    groups = columns(x, form.size)
    weights = np.ones_like(groups) if w is None else columns(w, form.size)
    if form.minima:
        scale, minimum = (part.reshape(n, -1) for part in fit_affine(groups, weights, levels, form.starts))
        d = covering(scale.max(axis=1, keepdims=True) / np.float32(form.scales[1]))
        dmin = covering(minimum.max(axis=1, keepdims=True) / np.float32(form.minima))
    else:
        scale = fit_symmetric(groups, weights, form.snap, form.starts, form.odd).reshape(n, -1)
        minimum = np.zeros_like(scale)
        extreme = np.take_along_axis(scale, np.abs(scale).argmax(axis=1, keepdims=True), axis=1)
        d = covering(extreme / np.float32(form.scales[1 if form.odd else 0]))
        dmin = np.zeros_like(d)
    fit = BlockFit(groups, weights, form)
    best = fit.blocks(d, dmin, fit.integers(scale, d), fit.integers(minimum, dmin, minima=True))
    for _ in range(ROUNDS):
        best = fit.moved(fit.solved(best))
    return best


class BlockFit:
    """The groups of some blocks, and moves that reduce their error. No move increases the error of a block."""

    def __init__(self, x: Floats, w: Floats, form: BlockForm) -> None:
        self.x, self.w, self.form = x, w, form
        self.wx = w * x

    def integers(self, values: Floats, unit: Floats, minima: bool = False) -> Floats:
        """The nearest multiples of a unit."""
        low, high = (0, self.form.minima) if minima else self.form.scales
        multiples = values * reciprocal(unit)
        nearest = 2 * np.rint((multiples - 1) / 2) + 1 if self.form.odd else np.rint(multiples)
        found: Floats = np.clip(nearest, low, high)
        return found

    def blocks(self, d: Floats, dmin: Floats, scales: Floats, minima: Floats) -> Blocks:
        """The nearest values under given scales, and their error."""
        a, m = (d * scales).reshape(-1), (dmin * minima).reshape(-1)
        shifted = self.x + m if self.form.minima else self.x
        v = self.form.snap(shifted * reciprocal(a), self.w)
        lost = v * a
        lost -= shifted
        return Blocks(d, dmin, scales, minima, v, dot(self.w, lost, lost).reshape(scales.shape))

    def solved(self, b: Blocks) -> Blocks:
        """d and dmin by least squares over the block; then the integers of every group for them."""
        n, g = b.scales.shape
        xv, vv = (s.reshape(n, g) for s in (dot(self.wx, b.values), dot(self.w, b.values, b.values)))
        xu, uu = _over(b.scales * xv), _over(np.square(b.scales) * vv)
        d, dmin = ratio(xu, uu), b.dmin
        scale, minimum = ratio(xv, vv), b.dmin * b.minima
        if self.form.minima:
            v, ones, x = (s.reshape(n, g) for s in (dot(self.w, b.values), self.w.sum(axis=0), self.wx.sum(axis=0)))
            uz, zz, xz = _over(b.scales * b.minima * v), _over(np.square(b.minima) * ones), _over(b.minima * x)
            det = uu * zz - uz * uz
            both = (det > 0) & (xu * uz - xz * uu > 0)
            det = np.maximum(det, TINY)
            d = np.where(both, (xu * zz - xz * uz) / det, d)
            dmin = np.where(both, (xu * uz - xz * uu) / det, 0)
            own = ones * vv - v * v
            solvable = own > 0
            own = np.maximum(own, TINY)
            scale = np.where(solvable, (ones * xv - x * v) / own, scale)
            minimum = np.where(solvable, np.maximum((v * xv - x * vv) / own, 0), minimum)
        d, dmin = nearest_half(d, b.d), nearest_half(dmin, b.dmin)
        same = self.blocks(d, dmin, b.scales, b.minima)
        again = self.blocks(d, dmin, self.integers(scale, d), self.integers(minimum, dmin, minima=True))
        return _better(_better(b, same, whole=True), again, whole=True)

    def moved(self, b: Blocks) -> Blocks:
        """Move the integers of each group up or down by one if that reduces the error."""
        (low, high), step = self.form.scales, 2 if self.form.odd else 1
        for more, deeper in ((step, 0), (-step, 0), (0, 1), (0, -1)) if self.form.minima else ((step, 0), (-step, 0)):
            scales = np.clip(b.scales + more, low, high)
            minima = np.clip(b.minima + deeper, 0, self.form.minima)
            b = _better(b, self.blocks(b.d, b.dmin, scales, minima), whole=False)
        return b


def ratio(a: Floats, b: Floats) -> Floats:
    """a / b for b >= 0."""
    found: Floats = np.divide(a, np.maximum(b, TINY))
    return found


def _over(groups: Floats) -> Floats:
    """Sum over the groups of a block, `[n, g] -> [n, 1]`."""
    total: Floats = groups.sum(axis=1, keepdims=True)
    return total


def _better(a: Blocks, b: Blocks, whole: bool) -> Blocks:
    """The better of two, per block, or per group if both have the same d and dmin."""
    if whole:
        take = np.broadcast_to(_over(b.error) < _over(a.error), b.error.shape)
    else:
        take = b.error < a.error
    first = take[:, :1]
    return Blocks(
        np.where(first, b.d, a.d) if whole else a.d,
        np.where(first, b.dmin, a.dmin) if whole else a.dmin,
        np.where(take, b.scales, a.scales),
        np.where(take, b.minima, a.minima),
        np.where(take.reshape(-1), b.values, a.values),
        np.where(take, b.error, a.error),
    )


def halves(values: Floats) -> Bytes:
    """float32 `[n, k]` that are halves, as their bytes `uint8[n, 2k]`."""
    return np.ascontiguousarray(values.astype("<f2")).view(np.uint8)
