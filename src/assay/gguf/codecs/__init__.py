"""Block codecs: the bytes of a ggml tensor to float32 and back.

    decode("Q4_K", raw)   uint8[..., row_bytes] -> float32[..., n]
    encode("Q4_K", x)     float32[..., n] -> uint8[..., row_bytes]
    fields("Q4_K", raw)   the integers and scales inside, in element order

Decoding is the definition of a weight: every type is bit for bit what gguf-py gives. It runs over the
tensor in chunks that fit a cache, so the only large memory is the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.errors import AssayError

from . import floats, iquants, kquants, legacy, microscaling, ternary
from .base import Bytes, Codec, Fields, Floats

if TYPE_CHECKING:
    from assay.gguf.types import GGMLType

__all__ = ["CODECS", "Codec", "byteswap", "can_decode", "decode", "decode_with", "fields"]

CODECS: dict[str, Codec] = {
    codec.name: codec for module in (legacy, kquants, iquants, ternary, microscaling) for codec in module.CODECS
}

CHUNK = 1 << 16  # elements decoded at a time: 256 KiB of float32 and its temporaries stay in cache


def _name(type: GGMLType | str) -> str:
    return type if isinstance(type, str) else type.name


def can_decode(type: GGMLType | str) -> bool:
    name = _name(type)
    return name in CODECS or name in floats.DTYPES or name == "BF16"


def decode(type: GGMLType | str, raw: Bytes) -> Floats:
    """`uint8[..., row_bytes] -> float32[..., n]`. An F32 result may share memory with `raw`."""
    name = _name(type)
    if name in CODECS:
        return decode_with(CODECS[name], raw)
    width = floats.DTYPES[name].itemsize if name in floats.DTYPES else 2
    if not can_decode(name):
        raise AssayError(f"type {name}: no decoder (known: {', '.join(_known())})")
    _check_rows(name, raw, width)
    raw = np.ascontiguousarray(raw)
    with np.errstate(all="ignore"):
        return floats.decode_bf16(raw) if name == "BF16" else floats.decode_plain(name, raw)


def decode_with(codec: Codec, raw: Bytes) -> Floats:
    """Decode with this codec, a variant of a standard one perhaps."""
    _check_rows(codec.name, raw, codec.type_size)
    blocks = raw.reshape(-1, codec.type_size)
    out = np.empty((len(blocks), codec.block_size), np.float32)
    step = max(1, CHUNK // codec.block_size)
    with np.errstate(all="ignore"):
        for i in range(0, len(blocks), step):
            codec.combine(codec.unpack(blocks[i : i + step]), out[i : i + step])
    return out.reshape(*raw.shape[:-1], raw.shape[-1] // codec.type_size * codec.block_size)


def fields(type: GGMLType | str, raw: Bytes) -> Fields:
    """The named fields of every block, `[n_blocks, ...]`, quants as stored integers in element order."""
    name = _name(type)
    if name not in CODECS:
        raise AssayError(f"type {name}: has no blocks to take apart (block types: {', '.join(CODECS)})")
    codec = CODECS[name]
    _check_rows(name, raw, codec.type_size)
    with np.errstate(all="ignore"):
        return codec.unpack(raw.reshape(-1, codec.type_size))


def byteswap(type: GGMLType | str, raw: Bytes) -> Bytes:
    """A copy of `raw` with every multi-byte number turned round: big-endian rows to little-endian ones."""
    name = _name(type)
    if name in CODECS:
        size, wide = CODECS[name].type_size, CODECS[name].wide
    else:
        size = floats.DTYPES[name].itemsize if name in floats.DTYPES else 2
        wide = ((0, size, 1),)
    _check_rows(name, raw, size)
    blocks = np.array(raw).reshape(-1, size)
    for offset, width, count in wide:
        numbers = blocks[:, offset : offset + width * count].reshape(-1, count, width)
        blocks[:, offset : offset + width * count] = numbers[:, :, ::-1].reshape(-1, count * width)
    return blocks.reshape(raw.shape)


def _known() -> list[str]:
    return [*floats.DTYPES, "BF16", *CODECS]


def _check_rows(name: str, raw: Bytes, size: int) -> None:
    if raw.dtype != np.uint8:
        raise AssayError(f"type {name}: raw data is {raw.dtype} (expected uint8)")
    if raw.ndim == 0 or raw.shape[-1] % size:
        found = raw.shape[-1] if raw.ndim else "no axis"
        raise AssayError(f"type {name}: row of {found} bytes (expected a multiple of {size})")
