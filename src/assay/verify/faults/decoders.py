"""Planting: the bytes of the file read wrongly (stages `gguf parsing` and `dequantisation`).

Every edit here puts other numbers under a weight's name. Block decoders are variants of the standard codecs:
another `unpack` or another `combine`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from assay.engines.functions import linear
from assay.gguf import by_name, codecs
from assay.gguf.codecs.base import Bytes, Codec, Fields, Floats, half, low_high
from assay.graph import Node
from assay.verify.faults.base import Array, Change, Context, Edit, Search, on_rows, plant, with_weight

PREVIEW = 48  # features computed to see whether a guess is worth decoding everything for
SMALLEST_NORMAL_HALF = np.float32(2.0**-14)


def tensor_type(c: Context, name: str) -> str:
    return c.model.file.tensors[name].type.name


def read(c: Context, name: str, rows: slice, codec: str, *, shift: int = 0, stride: int = 0) -> Floats:
    """The tensor's first rows as a reader would see them that takes another type, place or block size."""
    info = c.model.file.tensors[name]
    shape = info.shape if rows.stop is None else (min(rows.stop, info.shape[0]), *info.shape[1:])
    count = int(np.prod(shape))
    data = c.model.file.parts[info.part].data
    begin = info.offset + shift
    size, width = _sizes(codec)
    n_blocks = -(-count // width)
    step = stride or size
    length = (n_blocks - 1) * step + size
    raw = np.zeros(length, np.uint8)
    lo, hi = max(0, begin), min(len(data), begin + length)
    if lo < hi:
        raw[lo - begin : hi - begin] = data[lo:hi]
    blocks = raw[: n_blocks * size].reshape(n_blocks, size) if step == size else _strided(raw, n_blocks, step, size)
    with np.errstate(all="ignore"):
        return codecs.decode(codec, np.ascontiguousarray(blocks)).reshape(-1)[:count].reshape(shape)


def _strided(raw: Bytes, n_blocks: int, step: int, size: int) -> Bytes:
    return np.lib.stride_tricks.as_strided(raw, (n_blocks, size), (step, 1), writeable=False).copy()


def _sizes(codec: str) -> tuple[int, int]:
    kind = by_name(codec)
    return kind.type_size, kind.block_size


Make = Callable[[str, slice], Array]  # a tensor's rows, as the faulty reader sees them


def with_tensor(node: Node, make: Make) -> Change | None:
    if not node.weights:
        return None
    name = node.weights[0]
    change = with_weight(node, lambda: make(name, slice(None)))
    if node.op != "linear":
        return change

    def first(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return linear(x, make(name, slice(0, PREVIEW)).astype(x.dtype))

    return replace(change, preview=first)


def with_codec(fault: str, label: str, types: tuple[str, ...], change: Callable[[Codec], Codec]) -> None:
    """A fault of the block decoder of these types: wherever a weight has one of them, or has the first of them."""

    def edit_of(kinds: tuple[str, ...]) -> Edit:
        def edit(c: Context, node: Node, p: float) -> Change | None:
            if not node.weights or tensor_type(c, node.weights[0]) not in kinds:
                return None
            codec = change(codecs.CODECS[tensor_type(c, node.weights[0])])
            return with_tensor(node, lambda name, rows: codecs.decode_with(codec, c.model.file.raw(name)[rows]))

        return edit

    plant(fault, label)(edit_of(types))
    if 1 < len(types) <= 4:
        plant(fault, f"{label}, in {types[0]} only")(edit_of(types[:1]))


def quantised(c: Context, node: Node) -> bool:
    return bool(node.weights) and tensor_type(c, node.weights[0]) in codecs.CODECS


# -- gguf parsing ----------------------------------------------------------------------------------------------

_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K")


def _as_type(other: str) -> None:
    @plant("gguf-type-enum", f"the bytes decoded as {other}")
    def edit(c: Context, node: Node, p: float) -> Change | None:
        if not quantised(c, node) or tensor_type(c, node.weights[0]) == other:
            return None
        return with_tensor(node, lambda name, rows: read(c, name, rows, other))


for _other in _TYPES:
    _as_type(_other)


@plant(
    "gguf-block-bytes",
    "blocks {p} bytes too far apart",
    Search(-48, 64, (4, 2, -4, -2, -1, -12, -6, 30), False, True, 113, 0),
)
def block_bytes(c: Context, node: Node, p: float) -> Change | None:
    if not quantised(c, node):
        return None
    kind = tensor_type(c, node.weights[0])
    stride = _sizes(kind)[0] + int(p)
    return with_tensor(node, lambda name, rows: read(c, name, rows, kind, stride=stride)) if stride > 8 else None


@plant("gguf-data-align", "the data begin {p} bytes off", Search(-64, 64, (-32, 32, -16, 16), False, True, 129, 0))
def data_align(c: Context, node: Node, p: float) -> Change | None:
    return with_tensor(node, lambda name, rows: read(c, name, rows, tensor_type(c, name), shift=int(p)))


def _data_start(c: Context, name: str) -> int:
    part = c.model.file.tensors[name].part
    return min(t.offset for t in c.model.file.tensors.values() if t.part == part)


@plant("gguf-offset-base", "the start of the data not added")
def offset_omitted(c: Context, node: Node, p: float) -> Change | None:
    return with_tensor(node, lambda n, rows: read(c, n, rows, tensor_type(c, n), shift=-_data_start(c, n)))


@plant("gguf-offset-base", "the start of the data added twice")
def offset_twice(c: Context, node: Node, p: float) -> Change | None:
    return with_tensor(node, lambda n, rows: read(c, n, rows, tensor_type(c, n), shift=_data_start(c, n)))


def decoded(c: Context, name: str, rows: slice) -> Array:
    return codecs.decode(c.model.file.tensors[name].type, c.model.file.raw(name)[rows])


def _zero_after(c: Context, name: str, rows: slice, per_row: bool) -> Array:
    value = decoded(c, name, rows).copy()
    block = max(32, c.model.file.tensors[name].type.block_size)
    if per_row:
        value[..., block:] = 0
    else:
        value.reshape(-1)[block:] = 0
    return value


@plant("gguf-first-block-only", "only the first block of the tensor decoded")
def first_block(c: Context, node: Node, p: float) -> Change | None:
    return with_tensor(node, lambda n, rows: _zero_after(c, n, rows, False)) if quantised(c, node) else None


@plant("gguf-first-block-only", "only the first block of each row decoded")
def first_block_of_rows(c: Context, node: Node, p: float) -> Change | None:
    return with_tensor(node, lambda n, rows: _zero_after(c, n, rows, True)) if quantised(c, node) else None


@plant("gguf-bf16-raw", "bytes taken for numbers")
def raw_bytes(c: Context, node: Node, p: float) -> Change | None:
    if not node.weights or tensor_type(c, node.weights[0]) not in ("F16", "BF16"):
        return None
    width = c.model.file.tensors[node.weights[0]].shape[-1]
    return with_tensor(node, lambda n, rows: c.model.file.raw(n)[rows][..., :width].astype(np.float32))


@plant("gguf-endian", "the fields' bytes in the other order")
def endian_fields(c: Context, node: Node, p: float) -> Change | None:
    if not node.weights:
        return None
    info = c.model.file.tensors[node.weights[0]]
    if info.type.layout is None:
        return None
    layout = np.dtype(info.type.layout)

    def swapped(name: str, rows: slice) -> Array:
        raw = np.ascontiguousarray(c.model.file.raw(name)[rows])
        return codecs.decode(info.type, raw.view(layout).byteswap().view(np.uint8))

    return with_tensor(node, swapped)


@plant("gguf-endian", "whole blocks turned round")
def endian_blocks(c: Context, node: Node, p: float) -> Change | None:
    if not quantised(c, node):
        return None
    kind = tensor_type(c, node.weights[0])

    def turned(name: str, rows: slice) -> Array:
        raw = c.model.file.raw(name)[rows]
        return codecs.decode(kind, np.ascontiguousarray(raw.reshape(-1, _sizes(kind)[0])[:, ::-1]).reshape(raw.shape))

    return with_tensor(node, turned)


def _missing(label: str, stem: str) -> None:
    @plant("gguf-missing-tensor", label)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        if not node.weights or not (stem == "" or f".{stem}." in f".{node.weights[0]}"):
            return None
        return with_tensor(node, lambda n, rows: np.zeros_like(decoded(c, n, rows)))


_missing("the weight is all zeros", "")
for _stem in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
    _missing(f"{_stem} is all zeros", _stem)


# -- dequantisation ----------------------------------------------------------------------------------------------


def _pairs(q: Array, run: int) -> Array:
    """Elements of low and high halves of `2 * run` interleaved: what comes of taking neighbours from one byte."""
    n, k = q.shape
    return q.reshape(n, k // (2 * run), 2, run).swapaxes(2, 3).reshape(n, k)


def _unpacked(change: Callable[[Fields, Bytes], Fields]) -> Callable[[Codec], Codec]:
    def build(codec: Codec) -> Codec:
        return replace(codec, unpack=lambda blocks: change(dict(codec.unpack(blocks)), blocks))

    return build


def _combined(combine: Callable[[Fields, Floats], None]) -> Callable[[Codec], Codec]:
    return lambda codec: replace(codec, combine=combine)


def _q_pairs(run: int) -> Callable[[Codec], Codec]:
    return _unpacked(lambda f, _b: {**f, "q": _pairs(f["q"], run)})


with_codec("q4_0-interleave", "neighbouring elements from one byte", ("Q4_0", "Q4_1", "Q5_0", "Q5_1"), _q_pairs(16))
with_codec("mxfp4-nibble", "neighbouring elements from one byte", ("MXFP4",), _q_pairs(16))
with_codec("q4_k-nibble-group", "neighbouring elements from one byte", ("Q4_K", "Q5_K"), _q_pairs(32))


def _no_zero_point(f: Fields, out: Floats) -> None:
    out[...] = f["q"]
    out *= f["d"]


def _twos_complement(f: Fields, out: Floats) -> None:
    q = f["q"].astype(np.int8)
    out[...] = np.where(q > 7, q - 16, q)
    out *= f["d"]


with_codec("q4_0-zero-point", "d * q", ("Q4_0", "Q5_0"), _combined(_no_zero_point))
with_codec("q4_0-zero-point", "nibbles in two's complement", ("Q4_0",), _combined(_twos_complement))


@plant("q4_0-dot-sum", "8 sum(xq) without the activation's scale")
def dot_sum(c: Context, node: Node, p: float) -> Change | None:
    if node.op != "linear" or tensor_type(c, node.weights[0]) != "Q4_0":
        return None
    name = node.weights[0]

    def run(x: Array, W: Array) -> Array:
        flat = x.reshape(len(x), -1)
        d = codecs.fields("Q4_0", c.model.file.raw(name))["d"].reshape(W.shape[0], -1).astype(x.dtype)
        blocks = flat.reshape(len(x), -1, 32)
        dx = np.abs(blocks).max(-1, keepdims=True) / 127
        xq = np.round(np.divide(blocks, dx, out=np.zeros_like(blocks), where=dx > 0))
        excess = (xq.sum(-1) * (1 - dx[..., 0])) @ d.T
        return np.asarray(linear((xq * dx).reshape(flat.shape), W) - 8 * excess)

    return on_rows(c, node, Change(node, run))


def _min(sign: float, zero: float) -> Callable[[Codec], Codec]:
    def combine(f: Fields, out: Floats) -> None:
        out[...] = f["q"]
        out -= np.float32(zero)
        out *= f["d"]
        out += np.float32(sign) * f["m"]

    return _combined(combine)


with_codec("q4_1-min", "the minimum left out", ("Q4_1", "Q5_1"), _min(0, 0))
with_codec("q4_1-min", "the minimum subtracted", ("Q4_1", "Q5_1"), _min(-1, 0))
with_codec("q4_1-min", "d * (q - 8) + m", ("Q4_1", "Q5_1"), _min(1, 8))
with_codec("q4_1-min", "d * (q - 8)", ("Q4_1", "Q5_1"), _min(0, 8))


def _fifth_bits_in_pairs(f: Fields, blocks: Bytes) -> Fields:
    at = 4 if "m" in f else 2
    bits = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    moved = np.concatenate([bits[:, 0::2], bits[:, 1::2]], axis=1)
    return {**f, "q": (f["q"] & 15) | (moved << 4)}


with_codec("q5-highbit-index", "bits 2j and 2j+1", ("Q5_0", "Q5_1"), _unpacked(_fifth_bits_in_pairs))

_WITH_HALF = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


def _scales(change: Callable[[Floats], Floats]) -> Callable[[Codec], Codec]:
    def fields(f: Fields, _blocks: Bytes) -> Fields:
        return {k: change(v) if k in ("d", "m", "dmin") else v for k, v in f.items()}

    return _unpacked(fields)


def _as_bf16(d: Floats) -> Floats:
    bits: Array = d.astype("<f2").view("<u2").astype(np.uint32) << 16
    return bits.view(np.float32)


def _flushed(d: Floats) -> Floats:
    return np.where(np.abs(d) < SMALLEST_NORMAL_HALF, np.float32(0), d)


def _halved(d: Floats) -> Floats:
    return np.where(np.abs(d) < SMALLEST_NORMAL_HALF, d / 2, d)


with_codec("f16-as-bf16", "scales as bfloat16", _WITH_HALF, _scales(_as_bf16))
with_codec("f16-subnormal", "subnormal scales flushed to zero", _WITH_HALF, _scales(_flushed))
with_codec("f16-subnormal", "subnormal scales halved", _WITH_HALF, _scales(_halved))


def _plain_half(fault: str, label: str, change: Callable[[Floats], Floats]) -> None:
    @plant(fault, label)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        if not node.weights or tensor_type(c, node.weights[0]) != "F16":
            return None
        return with_tensor(node, lambda n, rows: change(decoded(c, n, rows)))


_plain_half("f16-as-bf16", "halves as bfloat16", _as_bf16)
_plain_half("f16-subnormal", "subnormal weights flushed to zero", _flushed)


def _low_scales_only(f: Fields, blocks: Bytes) -> Fields:
    packed = blocks[:, 4:16]
    return {**f, "scales": packed[:, 0:8] & 63, "mins": packed[:, 4:12] & 63}


def _sequential_scales(f: Fields, blocks: Bytes) -> Fields:
    bits = np.unpackbits(blocks[:, 4:16], axis=1, bitorder="little").reshape(-1, 16, 6)
    six = np.packbits(bits, axis=-1, bitorder="little")[..., 0]
    return {**f, "scales": six[:, :8], "mins": six[:, 8:]}


def _alternating_scales(f: Fields, blocks: Bytes) -> Fields:
    six = _sequential_scales(f, blocks)
    both = np.concatenate([six["scales"], six["mins"]], axis=1)
    return {**f, "scales": both[:, 0::2], "mins": both[:, 1::2]}


_K45 = ("Q4_K", "Q5_K")
with_codec("q4_k-scale-high", "sub-blocks 4 to 7 unpacked like 0 to 3", _K45, _unpacked(_low_scales_only))
with_codec("q4_k-scale-high", "sixteen 6-bit fields, scales first", _K45, _unpacked(_sequential_scales))
with_codec("q4_k-scale-high", "sixteen 6-bit fields, scale and minimum in turn", _K45, _unpacked(_alternating_scales))


def _affine(scale: str, minimum: str, sign: float) -> Callable[[Codec], Codec]:
    def combine(f: Fields, out: Floats) -> None:
        groups = out.reshape(len(out), f["scales"].shape[1], -1)
        out[...] = f["q"]
        groups *= (f["d"] * f[scale].astype(np.float32) if scale else f["d"] + 0 * f["scales"])[..., None]
        groups += (np.float32(sign) * f["dmin"] * (f[minimum].astype(np.float32) if minimum else 1 + 0 * f["mins"]))[
            ..., None
        ]

    return _combined(combine)


with_codec("q4_k-subscale-ignored", "d * q - dmin", _K45, _affine("", "", -1))
with_codec("q4_k-subscale-ignored", "d * sc * q - dmin", _K45, _affine("scales", "", -1))
with_codec("q4_k-min-sign", "+ dmin * m", _K45, _affine("scales", "mins", 1))
with_codec("q4_k-min-sign", "scales and minima exchanged", _K45, _affine("mins", "scales", -1))
with_codec("q4_k-min-sign", "the minimum left out", _K45, _affine("scales", "mins", 0))


def _flat_fifth_bits(sequential: bool) -> Callable[[Fields, Bytes], Fields]:
    def fields(f: Fields, blocks: Bytes) -> Fields:
        bits = np.unpackbits(blocks[:, 16:48], axis=1, bitorder="little")
        low = f["q"] & 15
        return {**f, "q": (_pairs(low, 32) if sequential else low) | (bits << 4)}

    return fields


with_codec("q5_k-qh", "fifth bit i from byte i/8", ("Q5_K",), _unpacked(_flat_fifth_bits(False)))
with_codec("q5_k-qh", "fifth bit i from byte i/8, nibbles in sequence", ("Q5_K",), _unpacked(_flat_fifth_bits(True)))


def _q6_sequential(f: Fields, blocks: Bytes) -> Fields:
    low = _pairs(low_high(blocks[:, 0:128], 128), 128)
    high = blocks[:, 128:192, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    return {**f, "q": low | high.reshape(len(blocks), 256) << 4}


def _q6_transposed(f: Fields, blocks: Bytes) -> Fields:
    return {**f, "q": f["q"].reshape(-1, 2, 4, 32).swapaxes(2, 3).reshape(-1, 256)}


with_codec("q6_k-order", "elements in the order of the bytes", ("Q6_K",), _unpacked(_q6_sequential))
with_codec("q6_k-order", "the four of each l side by side", ("Q6_K",), _unpacked(_q6_transposed))


def _q6_partial(codec: Codec) -> Codec:
    def combine(f: Fields, out: Floats) -> None:
        codec.combine(f, out)
        out.reshape(len(out), 2, 4, 32)[:, :, 1:] = 0

    return replace(codec, combine=combine)


with_codec("q6_k-partial-write", "32 of each 128 written", ("Q6_K",), _q6_partial)


def _q6(zero: float, unsigned: bool) -> Callable[[Codec], Codec]:
    def combine(f: Fields, out: Floats) -> None:
        out[...] = f["q"]
        out -= np.float32(zero)
        scales = f["scales"].view(np.uint8) if unsigned else f["scales"]
        groups = out.reshape(len(out), 16, 16)
        groups *= (f["d"] * scales.astype(np.float32))[..., None]

    return lambda codec: replace(
        codec, unpack=lambda b: {k: np.ascontiguousarray(v) for k, v in codec.unpack(b).items()}, combine=combine
    )


with_codec("q6_k-offset", "the -32 left out", ("Q6_K",), _q6(0, False))
with_codec("q6_k-offset", "scales unsigned", ("Q6_K",), _q6(32, True))


def _q2_lanes(order: Array) -> Callable[[Fields, Bytes], Fields]:
    return lambda f, _blocks: {**f, "scales": f["scales"][:, order], "mins": f["mins"][:, order]}


_LANES = np.arange(16).reshape(2, 4, 2).swapaxes(1, 2).reshape(-1)


def _q2_sequential(f: Fields, blocks: Bytes) -> Fields:
    q = blocks[:, 16:80, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    return {**f, "q": q.reshape(len(blocks), 256)}


with_codec("q2_k-lane-map", "scales by half, then shift", ("Q2_K",), _unpacked(_q2_lanes(np.argsort(_LANES))))
with_codec("q2_k-lane-map", "scales by shift, then half", ("Q2_K",), _unpacked(_q2_lanes(_LANES)))
with_codec("q2_k-lane-map", "elements in the order of the bytes", ("Q2_K",), _unpacked(_q2_sequential))


def _q3_four_bits(codec: Codec) -> Codec:
    def combine(f: Fields, out: Floats) -> None:
        out[...] = f["q"]
        out -= np.float32(4)
        groups = out.reshape(len(out), 16, 16)
        groups *= (f["d"] * ((f["scales"] & 15).astype(np.float32) - 8))[..., None]

    return replace(codec, combine=combine)


def _q3_flat_mask(f: Fields, blocks: Bytes) -> Fields:
    bits = np.unpackbits(blocks[:, 0:32], axis=1, bitorder="little")
    return {**f, "q": (f["q"] & 3) | (bits << 2)}


with_codec("q3_k-scales", "4-bit scales minus 8", ("Q3_K",), _q3_four_bits)
with_codec("q3_k-scales", "the mask as a flat bit array", ("Q3_K",), _unpacked(_q3_flat_mask))


def _d_at_start(f: Fields, blocks: Bytes) -> Fields:
    moved = {**f, "d": half(blocks, 0)}
    return {**moved, "dmin": half(blocks, 2)} if "dmin" in f else moved


with_codec("kquant-d-location", "d from the start of the block", ("Q6_K", "Q2_K", "Q3_K"), _unpacked(_d_at_start))


@plant("dequant-tile-alias", "every block of a row is its first")
def tile_alias(c: Context, node: Node, p: float) -> Change | None:
    if not quantised(c, node):
        return None

    def aliased(name: str, rows: slice) -> Array:
        value = decoded(c, name, rows)
        block = c.model.file.tensors[name].type.block_size
        return np.tile(value[..., :block], value.shape[-1] // block)

    return with_tensor(node, aliased)


@plant("dequant-tile-alias", "each 32 of a super-block are its first")
def group_alias(c: Context, node: Node, p: float) -> Change | None:
    if not quantised(c, node) or c.model.file.tensors[node.weights[0]].shape[-1] % 256:
        return None

    def aliased(name: str, rows: slice) -> Array:
        value = decoded(c, name, rows)
        groups = value.reshape(*value.shape[:-1], -1, 8, 32)
        return np.broadcast_to(groups[..., :1, :], groups.shape).reshape(value.shape)

    return with_tensor(node, aliased)
