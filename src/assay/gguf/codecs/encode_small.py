"""Encoders of Q1_0, Q2_0 and NVFP4: one or two bits, or four-bit floats, under one scale."""

from __future__ import annotations

import numpy as np

from assay.errors import AssayError

from .codec import Bytes, Encoder, Floats
from .encode_legacy import half_bytes, pack_low_high
from .fit import columns, fit_symmetric, reciprocal, rows, steps, whole
from .microscaling import E2M1, UE4M3

LARGEST = 0x7E  # code of the largest scale of NVFP4, 448
MIDDLES = (E2M1[1:8] + E2M1[:7]) / 2  # between the magnitudes that four bits can say, doubled as the table is


def encode_q1_0(x: Floats, w: Floats | None) -> Bytes:
    """The signs, and the mean magnitude, which is the scale with the least squared error: ggml's bytes, so the sum is
    taken in order. Weights are ignored, because they could move this one scale alone."""
    d = np.cumsum(np.abs(x), axis=1, dtype=np.float32)[:, -1:] / np.float32(x.shape[1])
    return np.hstack([half_bytes(d), np.packbits(x >= 0, axis=1, bitorder="little")])


def encode_q2_0(x: Floats, w: Floats | None) -> Bytes:
    """d * (-1, 0, 1 or 2), with the d of least error, of either sign. ggml takes the largest magnitude for d: the same
    for weights that are -d, 0 and d."""
    groups = columns(x, 64)
    weights, snap = np.ones_like(groups) if w is None else columns(w, 64), whole(-1, 2)
    d = fit_symmetric(groups, weights, snap, (*steps(0.6, 2.2, 25), *steps(-0.6, -2.2, 25)))
    d = d.astype(np.float16).astype(np.float32) if np.abs(d).max(initial=0) <= 65504 else d
    q = rows(snap(groups * reciprocal(d), weights), len(x)).astype(np.int8) + 1
    fours = q.astype(np.uint8).reshape(len(x), -1, 4)
    packed = fours[..., 0] | fours[..., 1] << 2 | fours[..., 2] << 4 | fours[..., 3] << 6
    return np.hstack([half_bytes(d[:, None]), packed])


def encode_nvfp4(x: Floats, w: Floats | None) -> Bytes:
    """Per 16 weights the scale with the least error among those next to the one that covers them."""
    groups = columns(x, 16)
    weights = np.ones_like(groups) if w is None else columns(w, 16)
    largest = np.abs(groups).max(axis=0)
    if largest.max(initial=0) > 1.001 * 6 * 448:  # a weight divided by its matrix's scale may be rounded upwards
        raise AssayError(f"{largest.max():g}: too large for NVFP4 (at most 2688); keep this tensor F32 or BF16")
    first = np.searchsorted(2 * UE4M3[: LARGEST + 1], largest / 6).clip(0, LARGEST)
    best = np.full(groups.shape[1], np.inf, np.float32)
    scale: Bytes = np.zeros(len(best), np.uint8)
    q: Bytes = np.zeros(groups.shape, np.uint8)
    for step in range(-3, 7):
        code = (first + step).clip(0, LARGEST).astype(np.uint8)
        found = _nearest(groups, UE4M3[code])
        lost = E2M1[found] * UE4M3[code] - groups
        error = np.einsum("ij,ij,ij->j", weights, lost, lost)
        better = error < best
        best, scale = np.where(better, error, best), np.where(better, code, scale)
        q = np.where(better, found, q)
    packed = pack_low_high(np.ascontiguousarray(q.T).reshape(len(x), -1), 8)
    return np.hstack([scale.reshape(len(x), -1), packed])


def _nearest(groups: Floats, scale: Floats) -> Bytes:
    """The codes of the nearest four-bit floats; minus zero is plain zero."""
    v = groups * reciprocal(scale)
    code = np.searchsorted(MIDDLES, np.abs(v)).astype(np.uint8)
    signed: Bytes = np.where((v < 0) & (code > 0), code | np.uint8(8), code).astype(np.uint8)
    return signed


ENCODERS: dict[str, Encoder] = {"Q1_0": encode_q1_0, "Q2_0": encode_q2_0, "NVFP4": encode_nvfp4}
