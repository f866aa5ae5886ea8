"""Encoders of the IQ types: uses of `fit` whose values come from a table, or from a code book of 4 or 8 values.

The code books hold magnitudes, and signs are stored separately. Where seven bits store eight signs, the number of minus
signs must be even. If it is odd, the sign of the least important element is flipped. The value to fit for that element
(its absolute value) is then negated, so that the fit prefers a small magnitude for it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from .codec import Bytes, Encoder, Floats
from .encode_kquants import pack_crumbs
from .encode_legacy import half_bytes, pack_low_high
from .fit import BlockForm, Snap, columns, encode_blocks, fit_symmetric, halves, reciprocal, rows, steps
from .grids import LATTICES, grid
from .iquants import EVEN, IQ4_VALUES

# --- a table of sixteen values

# The nearest value of v is NEAREST[floor(2 v) + 256]: values are integers, so the nearest one changes at halves.
_AT = np.arange(-256, 256) / 2 + 0.25
NEAREST = IQ4_VALUES[np.abs(_AT[:, None] - IQ4_VALUES).argmin(axis=1)]
INDEX = np.zeros(256, np.uint8)
INDEX[IQ4_VALUES.astype(int) + 128] = np.arange(16)

STARTS = (*steps(110, 136, 14), *steps(-98, -121, 12))  # starts for the lowest value, -127, and the highest, 113


def to_values(v: Floats, _w: Floats) -> Floats:
    """In place: the nearest of the sixteen values."""
    np.floor(np.multiply(v, 2, out=v), out=v)
    np.clip(v, -256, 255, out=v)
    return np.take(NEAREST, v.astype(np.int16) + 256, out=v, mode="clip")


IQ4_XS = BlockForm(32, to_values, (-32, 31), 0, STARTS)


def indices(values: Floats) -> Bytes:
    return INDEX[values.astype(np.int16) + 128]


def encode_iq4_nl(x: Floats, w: Floats | None) -> Bytes:
    groups = columns(x, 32)
    weights = np.ones_like(groups) if w is None else columns(w, 32)
    d = half_bytes(fit_symmetric(groups, weights, to_values, STARTS)[:, None])
    values = to_values(groups * reciprocal(d.view("<f2").astype(np.float32)[:, 0]), weights)
    return np.hstack([d, pack_low_high(indices(rows(values, len(x))), 16)])


def encode_iq4_xs(x: Floats, w: Floats | None) -> Bytes:
    b = encode_blocks(x, w, IQ4_XS)
    codes = (b.scales + 32).astype(np.uint8)
    high, low = pack_crumbs(codes >> 4, 1), pack_low_high(codes & 15, 1)
    return np.hstack([halves(b.d), high, low, pack_low_high(indices(rows(b.values, len(x))), 16)])


# --- a code book


NEAR = 32  # code book points considered per lattice point


@cache
def neighbours(name: str) -> tuple[Floats, NDArray[np.uint16]]:
    """The midpoints between coordinate values, and the nearest code book points of every lattice point."""
    values, width, _ = LATTICES[name]
    book, level = grid(name), np.array(values, np.float32)
    lattice = level[np.arange(len(values) ** width)[:, None] // len(values) ** np.arange(width) % len(values)]
    near = np.empty((len(lattice), NEAR), np.uint16)
    for part in (slice(i, i + 1024) for i in range(0, len(lattice), 1024)):
        distance = np.square(book).sum(axis=1) - 2 * lattice[part] @ book.T
        near[part] = np.argsort(distance, axis=1, kind="stable")[:, :NEAR]
    return (level[1:] + level[:-1]) / np.float32(2), near


def nearest_points(name: str, v: Floats, w: Floats) -> NDArray[np.int32]:
    """For every row of v `[n, width]`, the neighbouring code book point with the least weighted distance."""
    book, (middles, near) = grid(name), neighbours(name)
    found = np.empty(len(v), np.int32)
    try:
        from assay import _native

        _native.nearest_points(v, w, book, middles, near, found)
    except ImportError:  # native module missing: the same search in NumPy, a thousand rows at a time
        for part in (slice(i, i + 1000) for i in range(0, len(v), 1000)):
            listed = near[_code(name, v[part], middles)]
            lost = (w[part, None] * np.square(book[listed] - v[part, None])).sum(axis=2)
            found[part] = np.take_along_axis(listed, lost.argmin(axis=1)[:, None], axis=1)[:, 0]
    return found


def by_points(x: Floats, width: int) -> Floats:
    """Columns `[size, groups]` as points `[groups * size / width, width]`."""
    return np.ascontiguousarray(x.T).reshape(-1, width)


def from_points(points: Floats, out: Floats) -> Floats:
    out[...] = points.reshape(out.shape[1], -1).T
    return out


def to_points(name: str) -> Snap:
    """Snaps every four or eight elements to a point of a code book."""

    def snap(v: Floats, w: Floats) -> Floats:
        width = LATTICES[name][1]
        return from_points(grid(name)[nearest_points(name, by_points(v, width), by_points(w, width))], v)

    return snap


DELTA = np.float32(0.125)


def to_shifted(each: int) -> Snap:
    """Snaps every eight elements to a point of IQ1's code book shifted by +1/8 or -1/8, one shift per `each` points."""

    def snap(v: Floats, w: Floats) -> Floats:
        targets, weights = by_points(v, 8), by_points(w, 8)
        found, lost = [], []
        for delta in (DELTA, -DELTA):
            points = grid("IQ1_S")[nearest_points("IQ1_S", targets - delta, weights)] + delta
            found.append(points)
            lost.append((weights * np.square(points - targets)).sum(axis=1).reshape(-1, each).sum(axis=1))
        up = np.repeat(lost[0] <= lost[1], each)[:, None]
        return from_points(np.where(up, found[0], found[1]), v)

    return snap


@cache
def _codes(name: str) -> NDArray[np.int64]:
    return _code(name, grid(name), neighbours(name)[0])


def _code(name: str, points: Floats, middles: Floats) -> NDArray[np.int64]:
    """The nearest lattice point as a number with the first coordinate as lowest digit, the order of a code book."""
    values, width, _ = LATTICES[name]
    digits = np.searchsorted(middles, points)
    found: NDArray[np.int64] = (digits * len(values) ** np.arange(width)).sum(axis=-1)
    return found


def index_of(name: str, values: Floats) -> NDArray[np.uint16]:
    """Indices of points `[n, 256] -> [n, 256 / width]`."""
    points = values.reshape(len(values), -1, LATTICES[name][1])
    return np.searchsorted(_codes(name), _code(name, points, neighbours(name)[0])).astype(np.uint16)


def magnitudes(x: Floats, w: Floats | None, even: bool) -> tuple[Floats, Bytes]:
    """The magnitudes to fit, and the sign byte of every eight elements, `[n, 256] -> [n, 32]`."""
    minus = (x < 0).reshape(-1, 8)
    targets = np.abs(x).reshape(-1, 8)
    if even:
        odd = np.flatnonzero(minus.sum(axis=1) % 2)
        cost = np.square(targets) if w is None else w.reshape(-1, 8) * np.square(targets)
        least = cost[odd].argmin(axis=1)
        minus[odd, least] ^= True
        targets[odd, least] *= -1
    signs = np.packbits(minus, axis=1, bitorder="little").reshape(len(x), -1)
    return targets.reshape(x.shape), signs


def form(name: str, size: int, most: int, first: float = 0.6, last: float = 1.15) -> BlockForm:
    """A form with odd scales up to `most`. Starts put the extreme of a group at shares of the book's largest value."""
    top = max(LATTICES[name][0])
    return BlockForm(size, to_points(name), (1, most), 0, steps(first * top, last * top, 8), odd=True)


def encode_points(x: Floats, w: Floats | None, name: str, form: BlockForm, even: bool, unit: float) -> list[Bytes]:
    """d (half), 4-bit scales, indices and signs of a type with signs; d is in units of `unit`."""
    targets, signs = magnitudes(x, w, even)
    b = encode_blocks(targets, w, form)
    scales = ((b.scales - 1) / 2).astype(np.uint8)
    index = index_of(name, rows(b.values, len(x)))
    return [half_bytes(b.d * np.float32(unit)), scales, index, signs]  # type: ignore[list-item]


def words(signs: Bytes, scales: Bytes) -> Bytes:
    """Inverse of `iquants.packed_signs`: a word of four 7-bit sign codes and a scale, `[n, 32], [n, 8] -> [n, 32]`."""
    assert np.array_equal(EVEN[signs & 127], signs)
    codes = (signs.reshape(-1, 8, 4) & 127).astype(np.uint32) << np.arange(0, 28, 7, dtype=np.uint32)
    word = codes.sum(axis=2, dtype=np.uint32) | scales.astype(np.uint32) << np.uint32(28)
    return np.ascontiguousarray(word.astype("<u4")).view(np.uint8)


def encode_iq2_xxs(x: Floats, w: Floats | None) -> Bytes:
    d, scales, index, signs = encode_points(x, w, "IQ2_XXS", form("IQ2_XXS", 32, 31), True, 8)
    low = index.astype(np.uint8).reshape(-1, 8, 4)
    return np.hstack([d, np.concatenate([low, words(signs, scales).reshape(-1, 8, 4)], axis=2).reshape(len(x), 64)])


def encode_iq2_xs(x: Floats, w: Floats | None) -> Bytes:
    d, scales, index, signs = encode_points(x, w, "IQ2_XS", form("IQ2_XS", 16, 31), True, 8)
    packed = index.astype("<u2") | (signs & 127).astype("<u2") << 9
    return np.hstack([d, np.ascontiguousarray(packed).view(np.uint8), pack_low_high(scales, 1)])


def encode_iq2_s(x: Floats, w: Floats | None) -> Bytes:
    d, scales, index, signs = encode_points(x, w, "IQ2_S", form("IQ2_S", 16, 31), False, 8)
    low, high = index.astype(np.uint8), pack_crumbs((index >> 8).astype(np.uint8), 1)
    return np.hstack([d, low, signs, high, pack_low_high(scales, 1)])


def encode_iq3_xxs(x: Floats, w: Floats | None) -> Bytes:
    d, scales, index, signs = encode_points(x, w, "IQ3_XXS", form("IQ3_XXS", 32, 31), True, 4)
    return np.hstack([d, index.astype(np.uint8), words(signs, scales)])


def encode_iq3_s(x: Floats, w: Floats | None) -> Bytes:
    d, scales, index, signs = encode_points(x, w, "IQ3_S", form("IQ3_S", 32, 31), False, 1)
    ninth = np.packbits((index >> 8).astype(np.uint8), axis=1, bitorder="little")
    return np.hstack([d, index.astype(np.uint8), ninth, signs, pack_low_high(scales, 1)])


IQ1_S = BlockForm(32, to_shifted(4), (1, 15), 0, steps(0.9, 2.6, 8), odd=True)
IQ1_M = BlockForm(16, to_shifted(1), (1, 15), 0, steps(0.9, 2.6, 8), odd=True)


def encode_iq1(x: Floats, w: Floats | None, form: BlockForm) -> tuple[Floats, Bytes, NDArray[np.uint16], Bytes]:
    """d, 3-bit scales, indices `[n, 32]`, and 1 for eight elements whose points are shifted down."""
    b = encode_blocks(x, w, form)
    values = rows(b.values, len(x))
    down = (np.abs(values - np.rint(values + DELTA) + DELTA) < DELTA / 2).reshape(len(x), 32, 8)[:, :, 0]
    points = values - np.where(np.repeat(down, 8, axis=1), -DELTA, DELTA)
    return b.d, ((b.scales - 1) / 2).astype(np.uint8), index_of("IQ1_S", points), down.astype(np.uint8)


def encode_iq1_s(x: Floats, w: Floats | None) -> Bytes:
    d, scales, index, down = encode_iq1(x, w, IQ1_S)
    tops = ((index >> 8).reshape(-1, 8, 4) << np.arange(0, 12, 3, dtype=np.uint16)).sum(axis=2, dtype=np.uint16)
    qh = tops | scales.astype(np.uint16) << 12 | down[:, ::4].astype(np.uint16) << 15
    return np.hstack([halves(d), index.astype(np.uint8), np.ascontiguousarray(qh.astype("<u2")).view(np.uint8)])


def encode_iq1_m(x: Floats, w: Floats | None) -> Bytes:
    d, scales, index, down = encode_iq1(x, w, IQ1_M)
    qh = pack_low_high((index >> 8).astype(np.uint8) | down << 3, 1)
    bits = d.astype(np.float16).view(np.uint16) >> np.arange(0, 16, 4, dtype=np.uint16) & 15
    packed = (scales.reshape(-1, 4, 4).astype(np.uint16) << np.arange(0, 12, 3, dtype=np.uint16)).sum(
        axis=2, dtype=np.uint16
    )
    words16 = np.ascontiguousarray((packed | bits << 12).astype("<u2")).view(np.uint8)
    return np.hstack([index.astype(np.uint8), qh, words16])


ENCODERS: dict[str, Encoder] = {
    "IQ4_NL": encode_iq4_nl,
    "IQ4_XS": encode_iq4_xs,
    "IQ3_S": encode_iq3_s,
    "IQ3_XXS": encode_iq3_xxs,
    "IQ2_S": encode_iq2_s,
    "IQ2_XS": encode_iq2_xs,
    "IQ2_XXS": encode_iq2_xxs,
    "IQ1_M": encode_iq1_m,
    "IQ1_S": encode_iq1_s,
}
