"""Decoding: the bytes of a file to pixels [row, column, RGB], by Pillow, within limits that are checked first.

The result is llama.cpp's, which decodes with stb_image. Alpha is dropped and not blended, grey becomes three equal
channels, and of 16 bits the upper 8 remain. An animation gives its first frame. The EXIF orientation is not applied.
CMYK is multiplied out. A JPEG file may differ by 1 or 2 in single pixels, because two decoders round differently.
WebP is read as well, which stb_image does not know.
Touch this to read a further format.
"""

from __future__ import annotations

import base64
import importlib
import io
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.system.box import Box
from assay.system.extras import install
from assay.system.terminal import printable

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "PPM")
_T = TypeVar("_T")
MAX_BYTES = 64 << 20
MAX_PIXELS = 64 << 20  # 8192×8192: 192 MiB of RGB
MAX_SIDE = 1 << 16
_box = Box("picture", Path(__file__).with_name("picture_task.py"))


def decode_picture(data: bytes) -> NDArray[np.uint8]:
    """The pixels of a picture. Bytes that are no picture, or too large a one, raise AssayError."""
    _check_bytes(data)
    return _opened(data, _rgb)


def decode_boxed(data: bytes) -> NDArray[np.uint8]:
    """As `decode_picture`, in a process without files, of limited memory and time: decoders are large C programs."""
    _check_bytes(data)
    _pillow()
    reply = _box.ask({"picture": base64.b64encode(data).decode()})
    match reply.get("fault"):
        case None:
            pixels = np.frombuffer(base64.b64decode(reply["pixels"]), np.uint8)
            return pixels.reshape(*reply["size"], 3)
        case "refused":
            raise AssayError(str(reply["message"]))
        case "memory" | "time" | "died":
            raise AssayError("picture: takes too much memory or time to decode; make it smaller")
        case _:
            raise AssayError("picture: too many pictures are being decoded; try again later")


def sample_picture(kind: str) -> bytes:
    """A picture of one pixel in this format."""
    out = io.BytesIO()
    _pillow().new("RGB", (1, 1)).save(out, kind)
    return out.getvalue()


def picture_size(data: bytes) -> tuple[int, int]:
    """Width and height from the header alone, checked against the limits."""
    return _opened(data, lambda picture: (int(picture.width), int(picture.height)))


def _opened(data: bytes, read: Callable[[Any], _T]) -> _T:
    """`read` of a picture whose header is within the limits."""
    pillow = _pillow()
    if most := _NETPBM.match(data):
        _check_netpbm(int(most[1]))
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
    except pillow.UnidentifiedImageError:
        raise AssayError(
            f"picture: cannot be decoded (found another kind or a damaged header, expected {', '.join(FORMATS)}); save "
            "it as PNG"
        ) from None
    except Exception as error:  # Pillow raises errors of many kinds for damaged files
        text = re.sub(r"\s*<_io.*?>", "", str(error))
        raise AssayError(f"picture: cannot be decoded ({printable(text) or type(error).__name__:.120})") from None


def _check_bytes(data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise AssayError(f"picture: too many bytes (found {len(data)}, expected at most {MAX_BYTES}); make it smaller")


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise AssayError(f"pictures: Pillow is not installed; {install('vision')}") from None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of a WebP file; None for another format or a damaged header."""
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


# The largest value of a binary PGM or PPM file, in its header: white space and comments separate the numbers.
_NETPBM = re.compile(rb"P[56](?:(?:\s|#[^\n]*\n){1,64}\d{1,9}){2}(?:\s|#[^\n]*\n){1,64}(\d{1,9})\s")


def _check_netpbm(most: int) -> None:
    """stb_image takes the bytes as they are, whatever their largest value, and of 16 bits the lower 8."""
    if most != 255:
        raise AssayError(
            f"picture: a PGM or PPM file with another range than bytes (found {most} as its largest value, expected "
            "255); save it as PNG"
        )


def _rgb(picture: Any) -> NDArray[np.uint8]:
    """The first frame as RGB."""
    mode = picture.mode
    if picture.format == "GIF":
        extent = picture.tile[0][1] if picture.tile else (0, 0, *picture.size)
        background = _gif_background(picture)
        return _first_frame(picture.convert("RGBA"), extent, background)
    if mode == "CMYK":
        return _from_cmyk(np.asarray(picture))
    if mode.startswith("I"):  # 16 bits of grey
        values = np.asarray(picture)
        grey = (np.clip(values, 0, 65535) >> 8).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if mode in ("1", "L", "LA", "La"):
        grey = np.asarray(picture.convert("L") if mode == "1" else picture.getchannel(0))
        return np.repeat(grey[:, :, None], 3, axis=2)
    if mode in ("RGB", "RGBA", "RGBX"):
        return np.ascontiguousarray(np.asarray(picture)[:, :, :3])
    if mode == "P":
        return np.ascontiguousarray(np.asarray(picture.convert("RGBA"))[:, :, :3])
    raise AssayError(f"picture: pixels of a kind that is not read (found {printable(mode):.20}); save it as RGB")


def _gif_background(picture: Any) -> tuple[int, int, int]:
    """stb_image's border around a GIF's first frame: the background of the global palette, blue first; black for 0."""
    index, palette = picture.info.get("background", 0), picture.global_palette
    if palette is None:  # none, or a ramp of greys
        return index, index, index
    if not index or len(palette.palette) < 3 * index + 3:
        return 0, 0, 0
    red, green, blue = palette.palette[3 * index : 3 * index + 3]
    return blue, green, red


def _first_frame(
    picture: Any, extent: tuple[int, int, int, int], background: tuple[int, int, int]
) -> NDArray[np.uint8]:
    """Transparent pixels of a GIF's first frame are black; those outside the frame have the background."""
    values, (x0, y0, x1, y1) = np.asarray(picture), extent
    found = np.empty((*values.shape[:2], 3), np.uint8)
    found[:] = background
    inside = values[y0:y1, x0:x1]
    found[y0:y1, x0:x1] = np.where(inside[:, :, 3:] == 0, 0, inside[:, :, :3])
    return found


def _from_cmyk(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(255 − c)(255 − k) / 255, rounded, as stb_image multiplies."""
    found = np.empty((*values.shape[:2], 3), np.uint8)
    for i in range(0, len(values), 256):  # in strips, because the products take four times the memory
        light = 255 - values[i : i + 256].astype(np.int32)
        product = light[:, :, :3] * light[:, :, 3:] + 128
        found[i : i + 256] = (product + (product >> 8)) >> 8
    return found
