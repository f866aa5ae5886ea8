"""A picture of a difference: expected pixels, found pixels, and how far they are apart, side by side as one PNG."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MOST = 480  # pixels a side of each of the three pictures
GAP = 4


def png(picture: NDArray[np.uint8]) -> bytes:
    """A picture [row, column, RGB] as a PNG file."""
    height, width, _ = picture.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with its filter, 0: none
    rows[:, 1:] = picture.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


def side_by_side(expected: Array, found: Array, mean: Array, std: Array) -> NDArray[np.uint8]:
    """Normalised pixels [channel, row, column] as bytes: expected, found, difference. Sizes may differ."""
    parts = [_bytes(x, mean, std) for x in (expected, found)]
    if parts[0].shape == parts[1].shape:
        apart = np.abs(parts[0].astype(np.float32) - parts[1]).max(-1)
        level = apart * (255 / max(float(apart.max()), 1.0))
        parts.append(np.stack([level, np.zeros_like(level), 0.4 * level], -1).astype(np.uint8))
    parts = [_shown(part) for part in parts]
    height = max(len(part) for part in parts)
    canvas = np.full((height, sum(part.shape[1] + GAP for part in parts) - GAP, 3), 255, np.uint8)
    at = 0
    for part in parts:
        canvas[: len(part), at : at + part.shape[1]] = part
        at += part.shape[1] + GAP
    return canvas


def data_url(picture: NDArray[np.uint8]) -> str:
    return "data:image/png;base64," + base64.b64encode(png(picture)).decode()


def _bytes(pixels: Array, mean: Array, std: Array) -> NDArray[np.uint8]:
    values = pixels.transpose(1, 2, 0).astype(np.float64)
    values = values if pixels.dtype == np.uint8 else (values * std + mean) * 255
    return np.clip(np.nan_to_num(np.round(values)), 0, 255).astype(np.uint8)


def _shown(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Small pictures enlarged by a whole factor, large ones with rows and columns left out."""
    longest = max(picture.shape[:2])
    if longest > MOST:
        step = -(-longest // MOST)
        return picture[::step, ::step]
    times = max(1, min(6, 160 // longest))
    return picture.repeat(times, 0).repeat(times, 1)
