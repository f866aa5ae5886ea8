"""Edits of stage `dequantisation`: blocks decoded wrongly, by a standard codec with another `unpack` or `combine`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from assay.engines.reference.functions import linear
from assay.gguf import codecs
from assay.gguf.codecs.codec import Bytes, Codec, Fields, Floats, half, low_high
from assay.graph import Node
from assay.verify.faults.fault import Array, Change, Context, Edit, on_rows, plant
from assay.verify.faults.tensors import decoded, quantised, tensor_type, with_tensor

SMALLEST_NORMAL_HALF = np.float32(2.0**-14)


def with_codec(fault: str, label: str, types: tuple[str, ...], change: Callable[[Codec], Codec]) -> None:
    """A fault of the block decoder of these types; a second variant has it in the first of these types alone."""

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


def _pairs(q: Array, run: int) -> Array:
    """Low and high halves of `2 * run` elements interleaved, as if one byte held two neighbours."""
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
with_codec("mxfp4-nibble", "neighbouring elements from one byte, in each 16", ("NVFP4",), _q_pairs(8))
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


def _other_sign(read: Callable[[Array], Array]) -> Callable[[Codec], Codec]:
    def combine(f: Fields, out: Floats) -> None:
        out[...] = read(f["q"].astype(np.int16))
        out *= f["d"]

    return _combined(combine)


with_codec("q8_0-sign", "signed bytes read as unsigned", ("Q8_0",), _other_sign(lambda q: q & 255))
with_codec("q8_0-sign", "bytes read as unsigned, less 128", ("Q8_0",), _other_sign(lambda q: (q & 255) - 128))
with_codec("q8_0-sign", "seven bits read, without the sign", ("Q8_0",), _other_sign(lambda q: q & 127))


@plant(
    "q4_0-dot-sum", "8 sum(xq) without the activation's scale", op="linear",
    when=lambda c, node: tensor_type(c, node.weights[0]) == "Q4_0",
)  # fmt: skip
def dot_sum(c: Context, node: Node, p: float) -> Change | None:
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


def _whole_zero(f: Fields, out: Floats) -> None:
    z = np.divide(-f["m"], f["d"], out=np.zeros_like(f["m"]), where=f["d"] != 0)
    out[...] = f["q"]
    out -= np.mod(np.floor(z + np.float32(0.5)), 16)
    out *= f["d"]


with_codec("q4_1-min", "d * (q - z), with z = round(-m / d) in four bits", ("Q4_1",), _combined(_whole_zero))


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
