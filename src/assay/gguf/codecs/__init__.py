"""Block codecs: the bytes of a ggml tensor to float32 and back.

    decode("Q4_K", raw)   uint8[..., row_bytes] -> float32[..., n]
    encode("Q4_K", x)     float32[..., n] -> uint8[..., row_bytes]
    fields("Q4_K", raw)   the integers and scales inside, in element order

Decoding is the definition of a weight: every type is bit for bit what gguf-py gives. It runs over the
tensor in chunks that fit a cache, so the only large memory is the result.
"""

from __future__ import annotations

import numpy as np

from assay.errors import AssayError
from assay.gguf.types import GGMLType, by_name

from . import floats, iquants, kquants, legacy, microscaling, ternary
from .base import Bytes, Codec, Fields, Floats

__all__ = ["CODECS", "Codec", "decode", "decode_with", "fields"]

CODECS: dict[str, Codec] = {
    codec.type.name: codec for module in (legacy, kquants, iquants, ternary, microscaling) for codec in module.CODECS
}

CHUNK = 1 << 16  # elements decoded at a time: 256 KiB of float32 and its temporaries stay in cache


def decode(type: GGMLType | str, raw: Bytes) -> Floats:
    """`uint8[..., row_bytes] -> float32[..., n]`. An F32 result may share memory with `raw`."""
    type = by_name(type) if isinstance(type, str) else type
    if type.name in CODECS:
        return decode_with(CODECS[type.name], raw)
    _check_rows(type, raw)
    raw = np.ascontiguousarray(raw)
    with np.errstate(all="ignore"):
        return floats.decode_bf16(raw) if type.name == "BF16" else floats.decode_plain(type.name, raw)


def decode_with(codec: Codec, raw: Bytes) -> Floats:
    """Decode with this codec, a variant of a standard one perhaps."""
    block_size, type_size = codec.type.block_size, codec.type.type_size
    _check_rows(codec.type, raw)
    blocks = raw.reshape(-1, type_size)
    out = np.empty((len(blocks), block_size), np.float32)
    step = max(1, CHUNK // block_size)
    with np.errstate(all="ignore"):
        for i in range(0, len(blocks), step):
            codec.combine(codec.unpack(blocks[i : i + step]), out[i : i + step])
    return out.reshape(*raw.shape[:-1], raw.shape[-1] // type_size * block_size)


def fields(type: GGMLType | str, raw: Bytes) -> Fields:
    """The named fields of every block, `[n_blocks, ...]`, quants as stored integers in element order."""
    type = by_name(type) if isinstance(type, str) else type
    if type.name not in CODECS:
        raise AssayError(f"{type.name}: has no blocks to take apart (block types: {', '.join(CODECS)})")
    _check_rows(type, raw)
    with np.errstate(all="ignore"):
        return CODECS[type.name].unpack(raw.reshape(-1, type.type_size))


def _check_rows(type: GGMLType, raw: Bytes) -> None:
    if raw.dtype != np.uint8:
        raise AssayError(f"{type.name}: raw data is {raw.dtype} (expected uint8)")
    if raw.ndim == 0 or raw.shape[-1] % type.type_size:
        found = f"a row of {raw.shape[-1]} bytes" if raw.ndim else "a single byte"
        raise AssayError(f"{type.name}: {found} (expected a multiple of {type.type_size} bytes)")
