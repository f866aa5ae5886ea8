"""From bytes to pixels: Pillow's resize to the bit, llama.cpp's sizes, files of every kind, limits before decoding."""

from __future__ import annotations

import io
import sys
from functools import cache

import numpy as np
import pytest

from assay.errors import AssayError
from assay.gguf import open_file
from assay.models.vision.projector_keys import ProjectorKeys, read_projector_keys
from assay.vision import picture
from assay.vision.picture import decode_boxed, decode_picture, picture_size
from assay.vision.picture_plan import plan_picture
from assay.vision.preprocess import preprocess
from assay.vision.resize import resize
from tests.vision.golden import DATA, SHARED, golden

RNG = np.random.default_rng(7)


@cache
def keys(name: str) -> ProjectorKeys:
    wanted = golden(name)
    return read_projector_keys(open_file(wanted.path).metadata, name, **wanted.limits)


def _planned(name: str, width: int, height: int) -> tuple[str, str]:
    try:
        images = plan_picture(keys(name), (width, height)).images
    except AssayError:
        return "refused", ""
    grid = "x".join(map(str, images[0].grid)) if name.startswith("qwen") else ""
    return ",".join(str(image.tokens) for image in images), grid


def _check_sizes(text: str, names: set[str]) -> int:
    checked = 0
    for line in text.splitlines():
        name, width, height, tokens, *grid = line.removeprefix("golden/").split("\t")
        if name in names:
            assert _planned(name, int(width), int(height)) == (tokens, *grid), line
            checked += 1
    return checked


def test_tokens_of_462_sizes_are_llama_cpps() -> None:
    text = (DATA / "sizes.tsv").read_text()
    assert _check_sizes(text, {line.split("\t")[0] for line in text.splitlines()}) == 462


def test_tokens_of_the_other_projectors(shared_dir) -> None:
    assert _check_sizes((shared_dir / "data" / "vision" / "sizes.tsv").read_text(), set(SHARED)) == 330


def test_extreme_pictures_are_planned_or_refused() -> None:
    for name in ("gemma3", "gemma4", "idefics3", "internvl", "llava", "pixtral", "qwen3vl"):
        for size in ((1, 1), (1, 4000), (4000, 1), (65535, 3), (8191, 8193)):
            try:
                plan = plan_picture(keys(name), size)
            except AssayError as error:
                assert "too extreme" in str(error)
                continue
            assert all(image.tokens > 0 for image in plan.images)
    with pytest.raises(AssayError, match="has no pixels"):
        plan_picture(keys("gemma3"), (0, 5))


@pytest.mark.parametrize("name", ["bilinear", "bicubic", "lanczos"])
def test_resize_is_pillows_to_the_bit(name: str) -> None:
    """Pass by pass: newer versions of Pillow choose the order of the two."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for _ in range(12):
        height, width, new_height, new_width = (int(n) for n in RNG.integers(1, 70, 4))
        found = RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)
        filter_ = getattr(image.Resampling, name.upper())
        columns = image.fromarray(found).resize((new_width, height), filter_)
        wanted = np.asarray(columns.resize((new_width, new_height), filter_))
        assert np.array_equal(resize(found, new_width, new_height, name), wanted)


def test_stages_keep_the_ratio_and_pad_with_black() -> None:
    found = preprocess(keys("gemma3"), np.full((10, 20, 3), 200, np.uint8)).images[0]
    assert found.resized.shape == (24, 48, 3) and found.padded.shape == (48, 48, 3)
    assert (found.padded[12:36] == 200).all() and not found.padded[:12].any() and not found.padded[36:].any()
    mean, std = np.float32(keys("gemma3").mean[0]), np.float32(keys("gemma3").std[0])
    assert found.pixels[0, 0, 0] == (np.float32(0) - mean) / std  # padding is normalised as well


# --- decoding


def _saved(values: np.ndarray, kind: str, mode: str | None = None, **options: object) -> bytes:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    out = io.BytesIO()
    made = image.fromarray(values) if mode is None else image.frombytes(mode, values.shape[1::-1], values.tobytes())
    made.save(out, kind, **options)
    return out.getvalue()


def test_pixels_of_lossless_files() -> None:
    rgb = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    for kind, options in (("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True}), ("PPM", {})):
        data = _saved(rgb, kind, **options)
        assert np.array_equal(decode_picture(data), rgb), kind
        assert picture_size(data) == (7, 5)


def test_kinds_of_pixels_as_stb_image_reads_them() -> None:
    rgba = RNG.integers(0, 256, (4, 6, 4), dtype=np.uint8)
    assert np.array_equal(decode_picture(_saved(rgba, "PNG")), rgba[:, :, :3])  # alpha is dropped, not blended
    grey = rgba[:, :, 0].copy()
    assert np.array_equal(decode_picture(_saved(grey, "PNG")), np.repeat(grey[:, :, None], 3, 2))
    deep = RNG.integers(0, 1 << 16, (4, 6), dtype=np.uint16)
    assert np.array_equal(decode_picture(_saved(deep, "PNG"))[:, :, 1], (deep >> 8).astype(np.uint8))
    both = np.ascontiguousarray(rgba[:, :, :2])
    assert np.array_equal(decode_picture(_saved(both, "PNG", "LA"))[:, :, 2], both[:, :, 0])


def test_cmyk_is_multiplied_out() -> None:
    cmyk = np.zeros((16, 16, 4), np.uint8)
    cmyk[:] = (255, 0, 51, 102)
    found = decode_picture(_saved(cmyk, "JPEG", "CMYK", quality=100)).astype(int)
    assert np.abs(found - (0, 153, 122)).max() <= 2


def test_orientation_is_not_applied_and_the_first_frame_counts() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    exif = image.Exif()
    exif[0x0112] = 6  # turned by 90°
    picture_ = RNG.integers(0, 256, (6, 9, 3), dtype=np.uint8)
    assert np.array_equal(decode_picture(_saved(picture_, "PNG", exif=exif)), picture_)
    frames = [image.new("RGB", (3, 2), colour) for colour in ("red", "blue")]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    assert (decode_picture(out.getvalue()) == (255, 0, 0)).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1), (13, 17)])
def test_long_and_odd_pictures_of_every_kind(size: tuple[int, int]) -> None:
    """As llama.cpp reads them, from the bytes of the file to the tower's pixels: equal to those of the raw picture."""
    rgb = RNG.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    grey = np.repeat(rgb[:, :, :1], 3, 2)
    for data, wanted in (
        (_saved(rgb, "PNG"), rgb), (_saved(rgb, "BMP"), rgb), (_saved(rgb, "WEBP", lossless=True), rgb),
        (_saved(np.ascontiguousarray(grey[:, :, 0]), "PPM"), grey),
        (_saved(rgb[:, :, 0] > 127, "PNG"), 255 * (grey > 127)),
    ):  # fmt: skip
        found = decode_picture(data)
        assert np.array_equal(found, wanted)
        assert np.array_equal(
            preprocess(keys("gemma3"), found).images[0].pixels,
            preprocess(keys("gemma3"), wanted.astype(np.uint8)).images[0].pixels,
        )


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_of_16_bits_the_upper_8_remain(channels: int) -> None:
    """Pillow writes no such PNG file."""
    values = RNG.integers(0, 1 << 16, (5, 7, channels), dtype=np.uint16)
    found = decode_picture(_png(values, {2: 4, 3: 2, 4: 6}[channels]))
    wanted = (values >> 8).astype(np.uint8)[:, :, :3]
    assert np.array_equal(found, wanted[:, :, :1].repeat(3, 2) if channels == 2 else wanted)


def _png(values: np.ndarray, kind: int) -> bytes:
    import zlib

    def part(name: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + name + data + _crc(name + data)

    height, width = values.shape[:2]
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([16, kind, 0, 0, 0])
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(lines)) + part(b"IEND", b"")


def test_a_palette_and_its_transparency() -> None:
    """A transparent colour of a PNG keeps its colour; in a GIF it is black."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    few = image.fromarray(RNG.integers(0, 256, (9, 11, 3), dtype=np.uint8)).quantize(8)
    wanted, index = np.asarray(few.convert("RGB")), np.asarray(few)
    for kind in ("PNG", "GIF"):
        out = io.BytesIO()
        few.save(out, kind, transparency=3)
        clear = np.where((index == 3)[:, :, None] & (kind == "GIF"), 0, wanted)
        assert np.array_equal(decode_picture(out.getvalue()), clear), kind


@pytest.mark.parametrize(("background", "around"), [(0, (0, 0, 0)), (2, (110, 120, 130))])
def test_a_gif_whose_first_frame_is_smaller(background: int, around: tuple[int, int, int]) -> None:
    """stb_image fills with the background of the palette, blue first, and with black for colour 0."""
    palette = bytes(v for i in range(4) for v in (60 * i + 10, 50 * i + 20, 40 * i + 30))
    head = b"GIF89a" + bytes([4, 0, 3, 0, 0x81, background, 0]) + palette
    frame = b"," + bytes([1, 0, 1, 0, 2, 0, 1, 0, 0])  # 2×1 pixels at (1, 1): colours 1 and 3
    found = decode_picture(head + frame + b"\x02\x02\xcc\x0a\0;")
    wanted = np.full((3, 4, 3), around, np.uint8)
    wanted[1, 1], wanted[1, 2] = (70, 70, 70), (190, 170, 150)
    assert np.array_equal(found, wanted)


def test_netpbm_files_hold_bytes() -> None:
    pixels = bytes(range(18))
    assert decode_picture(b"P6\n# a comment\n3 2\n255\n" + pixels).tobytes() == pixels
    for head in (b"P6 3 2 100\n", b"P5 3 3 65535\n", b"P6 3 2\n# 255\n7\n"):
        with pytest.raises(AssayError, match="save it as PNG"):
            decode_picture(head + pixels)


def test_other_formats_are_refused() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for kind in ("TIFF", "TGA", "ICO"):
        out = io.BytesIO()
        image.new("RGB", (16, 16)).save(out, kind)
        with pytest.raises(AssayError, match=r"picture: cannot be decoded .*expected PNG, JPEG, .*; save it as PNG"):
            decode_picture(out.getvalue())


def test_limits_are_checked_before_decoding() -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    small = bytearray(_saved(np.zeros((1, 1, 3), np.uint8), "PNG"))
    for width, height in ((70_000, 1), (9000, 9000), (60_000, 60_000)):
        small[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
        small[29:33] = _crc(small[12:29])
        with pytest.raises(AssayError, match=r"too large|cannot be decoded"):
            decode_picture(bytes(small))
    canvas = b"RIFF\x20\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + 2 * (16382).to_bytes(3, "little") + b"\0" * 8
    with pytest.raises(AssayError, match=r"too large .found 16383×16383 pixels"):
        decode_picture(canvas)
    with pytest.raises(AssayError, match="too many bytes"):
        decode_picture(bytes(picture.MAX_BYTES + 1))


def _crc(data: bytes) -> bytes:
    import zlib

    return zlib.crc32(data).to_bytes(4, "big")


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("JPEG", {}), ("GIF", {}), ("WEBP", {}), ("PPM", {})])
def test_damaged_pictures_give_errors(kind: str, options: dict[str, object]) -> None:
    good = _saved(RNG.integers(0, 256, (9, 11, 3), dtype=np.uint8), kind, **options)
    for i in range(60):
        bad = bytearray(good[: len(good) if i % 3 else int(RNG.integers(len(good)))])
        for at in RNG.integers(0, max(1, len(bad)), 2):
            if bad:
                bad[at] = RNG.integers(256)
        try:
            found = decode_picture(bytes(bad))
            assert found.dtype == np.uint8 and found.ndim == 3 and found.shape[2] == 3
        except AssayError as error:
            assert "\n" not in str(error) and len(str(error)) < 250


def test_strangers_pictures_are_decoded_in_the_box() -> None:
    rgb = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True}), ("BMP", {})):
        assert np.array_equal(decode_boxed(_saved(rgb, kind, **options)), rgb)
    with pytest.raises(AssayError, match="picture: cannot be decoded"):
        decode_boxed(b"no picture")
    large = _saved(np.zeros((900, 1100), np.uint8), "PNG")
    assert decode_boxed(large).shape == (900, 1100, 3)


def test_without_pillow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(AssayError, match=r"Pillow is not installed; pip install .*"):
        decode_picture(b"")
