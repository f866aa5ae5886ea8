"""Block codecs: the bytes of a ggml tensor to float32 and back.

    decode("Q4_K", raw)   uint8[..., row_bytes] -> float32[..., n]
    encode("Q4_K", x)     float32[..., n] -> uint8[..., row_bytes]; `importance` weights the columns
    fields("Q4_K", raw)   the stored integers and scales, in element order

Decoding defines the value of a weight: every type is bit-identical to gguf-py. A tensor is decoded in chunks that fit
the CPU cache, so only the result takes much memory.

A new block type begins with a row in the table of `gguf/types.py` (id, block size, bytes). Then its `Codec` goes into
`CODECS` of the module of its kind: `legacy` (32 elements), `kquants`, `iquants`, `ternary` or `microscaling`. Its
encoder goes into `ENCODERS` of `encode_legacy`, `encode_kquants`, `encode_iquants` or `encode_small`; a type without
one is decoded and never written.
"""

from __future__ import annotations

import numpy as np

from assay.errors import AssayError
from assay.gguf.types import GGMLType, by_name

from . import (
    encode_iquants,
    encode_kquants,
    encode_legacy,
    encode_small,
    floats,
    iquants,
    kquants,
    legacy,
    microscaling,
    ternary,
)
from .codec import Bytes, Codec, Encoder, Fields, Floats

__all__ = ["CODECS", "ENCODERS", "FLOATS", "Codec", "decode", "decode_with", "encode", "fields"]

CODECS: dict[str, Codec] = {
    codec.type.name: codec for module in (legacy, kquants, iquants, ternary, microscaling) for codec in module.CODECS
}

ENCODERS: dict[str, Encoder] = (
    encode_legacy.ENCODERS | encode_kquants.ENCODERS | encode_iquants.ENCODERS | encode_small.ENCODERS
)

FLOATS = ("F32", "F16", "BF16", "F64")  # writable types without blocks

CHUNK = 1 << 16  # elements per chunk: 256 KiB of float32 and its temporaries fit the cache


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
    """Decode with the given codec, which may be a variant of a standard one."""
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
        raise AssayError(f"{type.name}: has no blocks (block types: {', '.join(CODECS)})")
    _check_rows(type, raw)
    with np.errstate(all="ignore"):
        return CODECS[type.name].unpack(raw.reshape(-1, type.type_size))


def encode(type: GGMLType | str, x: Floats, importance: Floats | None = None) -> Bytes:
    """`float32[..., n] -> uint8[..., row_bytes]`, with the least squared error that the search finds.

    `importance` (`[n]`, or any shape that broadcasts to x's) weights the squared errors: the mean square of the inputs
    of each column, from an importance matrix.
    """
    type = by_name(type) if isinstance(type, str) else type
    x = np.asarray(x, np.float32)
    if x.ndim == 0 or x.shape[-1] % type.block_size:
        found = f"a row of {x.shape[-1]} elements" if x.ndim else "a single number"
        raise AssayError(f"{type.name}: {found} (expected a multiple of {type.block_size})")
    if type.name in FLOATS:
        with np.errstate(all="ignore"):
            return floats.encode_bf16(x) if type.name == "BF16" else floats.encode_plain(type.name, x)
    if type.name not in ENCODERS:
        known = ", ".join([*FLOATS, *ENCODERS])
        raise AssayError(f"{type.name}: can be read but not written (writable: {known})")
    blocks = x.reshape(-1, type.block_size)
    weights = None if importance is None else weigh(x, importance).reshape(blocks.shape)
    out = np.empty((len(blocks), type.type_size), np.uint8)
    step = max(1, CHUNK // type.block_size)
    with np.errstate(all="ignore"):
        for i in range(0, len(blocks), step):
            chunk = blocks[i : i + step]
            if not np.isfinite(chunk).all():
                raise AssayError(f"{type.name}: the data has NaN or infinity in it; keep this tensor F32 or F16")
            out[i : i + step] = ENCODERS[type.name](chunk, None if weights is None else weights[i : i + step])
    return out.reshape(*x.shape[:-1], x.shape[-1] // type.block_size * type.type_size)


def weigh(x: Floats, importance: Floats) -> Floats:
    """The weight of each element's squared error: importance * sqrt(mean square of its row + x^2).

    The root is llama.cpp's: large weights are rare, and errors in them do not average out.
    """
    mean = np.mean(np.square(x), axis=-1, keepdims=True)
    weights: Floats = np.asarray(importance, np.float32) * np.sqrt(mean + np.square(x))
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise AssayError("importance: negative or not finite; compute the importance matrix again")
    largest = weights.max(axis=-1, keepdims=True)  # only ratios matter; normalise to keep sums in range
    return np.where(largest > 0, np.maximum(weights / np.maximum(largest, 1e-37), 1e-6), np.float32(1))


def _check_rows(type: GGMLType, raw: Bytes) -> None:
    if raw.dtype != np.uint8:
        raise AssayError(f"{type.name}: raw data is {raw.dtype} (expected uint8)")
    if raw.ndim == 0 or raw.shape[-1] % type.type_size:
        found = f"a row of {raw.shape[-1]} bytes" if raw.ndim else "a single byte"
        raise AssayError(f"{type.name}: {found} (expected a multiple of {type.type_size} bytes)")
