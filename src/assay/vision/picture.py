"""Decoding: the bytes of a file to pixels [row, column, RGB], by Pillow, within limits that are checked first.

The result is llama.cpp's, which decodes with stb_image: alpha is dropped and not blended, grey becomes three equal
channels, of 16 bits the upper 8 remain, an animation gives its first frame, the EXIF orientation is not applied, CMYK
is multiplied out. A JPEG file may differ by a little in single pixels, because two decoders round differently.
Touch this to read a further format.
"""

from __future__ import annotations

import importlib
import io
import re
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.system.extras import install
from assay.system.terminal import printable

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "PPM")
_T = TypeVar("_T")
MAX_BYTES = 64 << 20
MAX_PIXELS = 64 << 20  # 8192×8192: 192 MiB of RGB
MAX_SIDE = 1 << 16


_PPM = re.compile(rb"P6\s+(\d{1,9})\s+(\d{1,9})\s+255\s")  # the plainest form, which needs no Pillow


def decode_picture(data: bytes) -> NDArray[np.uint8]:
    """The pixels of a picture. Bytes that are no picture, or too large a one, raise AssayError."""
    if len(data) > MAX_BYTES:
        raise AssayError(f"picture: too many bytes (found {len(data)}, expected at most {MAX_BYTES}); make it smaller")
    if plain := _PPM.match(data):
        _check(size := (int(plain[1]), int(plain[2])))
        pixels = np.frombuffer(data, np.uint8, offset=plain.end())
        if pixels.size < 3 * size[0] * size[1]:
            raise AssayError(f"picture: truncated (found {pixels.size} bytes of {size[0]}×{size[1]} pixels)")
        return pixels[: 3 * size[0] * size[1]].reshape(size[1], size[0], 3).copy()
    return _opened(data, _rgb)


def picture_size(data: bytes) -> tuple[int, int]:
    """Width and height from the header alone, checked against the limits."""
    return _opened(data, lambda picture: (int(picture.width), int(picture.height)))


def _opened(data: bytes, read: Callable[[Any], _T]) -> _T:
    """`read` of a picture whose header is within the limits."""
    pillow = _pillow()
    _check(_webp_size(data) or (1, 1))  # Pillow allocates a WebP file's canvas when it opens it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata, and of sizes that are checked below
            with pillow.open(io.BytesIO(data), formats=FORMATS) as picture:
                _check(picture.size)
                return read(picture)
    except AssayError:
        raise
    except MemoryError:
        raise AssayError("picture: does not fit into memory; make it smaller") from None
    except Exception as error:  # Pillow raises errors of many kinds for damaged files
        text = re.sub(r"\s*<_io.*?>", "", str(error))
        raise AssayError(f"picture: cannot be decoded ({printable(text) or type(error).__name__:.120})") from None


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise AssayError(f"pictures: Pillow is not installed; {install('vision')}") from None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of a WebP file; None if it is none, or its header is damaged."""
    if len(data) < 30 or data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return None
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(data[26:28], "little") & 0x3FFF or 1, int.from_bytes(data[28:30], "little") & 0x3FFF or 1


def _check(size: tuple[int, int]) -> None:
    """Refuse by the header what would take too much memory or time to decode."""
    width, height = size
    if width < 1 or height < 1 or max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise AssayError(
            f"picture: too large (found {width}×{height} pixels, expected at most {MAX_PIXELS} in all and {MAX_SIDE} a "
            "side); make it smaller"
        )


def _rgb(picture: Any) -> NDArray[np.uint8]:
    """The first frame as RGB."""
    mode = picture.mode
    if picture.format == "GIF":
        return _without_alpha(picture.convert("RGBA"))
    if mode == "CMYK":
        return _from_cmyk(np.asarray(picture))
    if mode.startswith("I"):  # 16 bits of grey
        values = np.asarray(picture)
        grey = np.clip(values.astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if mode in ("1", "L", "LA", "La"):
        grey = np.asarray(picture.convert("L") if mode == "1" else picture.getchannel(0))
        return np.repeat(grey[:, :, None], 3, axis=2)
    if mode in ("RGB", "RGBA", "RGBX"):
        return np.ascontiguousarray(np.asarray(picture)[:, :, :3])
    if mode == "P":
        return np.ascontiguousarray(np.asarray(picture.convert("RGBA"))[:, :, :3])
    raise AssayError(f"picture: pixels of a kind that is not read (found {printable(mode):.20}); save it as RGB")


def _without_alpha(picture: Any) -> NDArray[np.uint8]:
    """Pixels that a GIF's first frame leaves out are black."""
    values = np.asarray(picture)
    return np.where(values[:, :, 3:] == 0, 0, values[:, :, :3]).astype(np.uint8)


def _from_cmyk(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(255 − c)(255 − k) / 255, rounded, as stb_image multiplies."""
    light = 255 - values.astype(np.int32)
    product = light[:, :, :3] * light[:, :, 3:] + 128
    return ((product + (product >> 8)) >> 8).astype(np.uint8)
