"""Decoding: bit for bit what gguf-py gives, and by definition where it gives nothing."""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import quants
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.gguf import TYPES, GGMLType, by_name, codecs
from assay.gguf.codecs import codec, legacy
from tests.gguf import ggml_small

DATA = Path(__file__).parents[1] / "data"
PEER = [
    t
    for t in TYPES.values()
    if t.block_size > 1 and getattr(gguf.GGMLQuantizationType, t.name, None) in quants._type_traits
]
HALVES = np.array(
    # zeros, smallest and largest subnormal, smallest normal, one, largest, infinities, NaNs quiet and signalling
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE00, 0x7C01],
    np.uint16,
)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bits, any NaN being like any other."""
    nan = np.isnan(a)
    return (
        a.dtype == b.dtype
        and np.array_equal(nan, np.isnan(b))
        and np.array_equal(a.view(np.uint32)[~nan], b.view(np.uint32)[~nan])
    )


def peer_decode(kind: GGMLType, raw: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return quants.dequantize(raw, gguf.GGMLQuantizationType[kind.name])


def random_blocks(kind: GGMLType, n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, kind.type_size), dtype=np.uint8)


def adversarial_blocks(kind: GGMLType) -> np.ndarray:
    """Every byte value all over, and every pair of awkward halves in the places of the first and last two."""
    constant = np.repeat(np.arange(256, dtype=np.uint8)[:, None], kind.type_size, axis=1)
    pairs = np.stack(np.meshgrid(HALVES, HALVES), axis=-1).reshape(-1, 2).astype("<u2").view(np.uint8)
    first, last = random_blocks(kind, len(pairs), 1), random_blocks(kind, len(pairs), 2)
    first[:, :4] = pairs
    last[:, -4:] = pairs
    return np.concatenate([constant, first, last])


@pytest.mark.parametrize("kind", PEER, ids=str)
def test_as_gguf_py(kind: GGMLType) -> None:
    raw = np.concatenate([random_blocks(kind, 700), adversarial_blocks(kind)])[None]
    assert same(codecs.decode(kind, raw), peer_decode(kind, raw))


@given(st.sampled_from(PEER), st.data())
def test_any_block_as_gguf_py(kind: GGMLType, data: st.DataObject) -> None:
    raw = np.frombuffer(data.draw(st.binary(min_size=kind.type_size, max_size=kind.type_size)), np.uint8)[None]
    assert same(codecs.decode(kind, raw), peer_decode(kind, raw))


def check_vectors(vectors: np.lib.npyio.NpzFile) -> set[str]:
    types = set()
    for key in vectors:
        stem, _, part = key.rpartition("|")
        if part == "bytes":
            name = stem.split("|")[1]
            assert same(codecs.decode(name, vectors[key]), vectors[f"{stem}|f32"]), key
            types.add(name)
    return types


def test_recorded_vectors() -> None:
    assert check_vectors(np.load(DATA / "dequant_vectors.npz")) >= {t.name for t in PEER}


def test_all_recorded_vectors(shared_dir: Path) -> None:
    golden = shared_dir / "data" / "golden"
    listed = {v["type"] for v in json.loads((golden / "dequant_vectors.json").read_text())["vectors"]}
    assert check_vectors(np.load(golden / "dequant_vectors.npz")) == listed


def test_every_half_is_read_exactly() -> None:
    """All 65536 scales, against the C library's own idea of a half."""
    patterns = np.arange(65536, dtype="<u2")
    raw = np.ones((65536, 34), np.uint8)
    raw[:, :2] = patterns.view(np.uint8).reshape(-1, 2)
    expected = np.array(struct.unpack("<65536e", patterns.tobytes()), np.float32)
    assert same(np.ascontiguousarray(codecs.decode("Q8_0", raw)[:, 0]), expected)


def test_q8_1_by_definition() -> None:
    raw = random_blocks(by_name("Q8_1"), 50)
    for block, row in zip(raw, codecs.decode("Q8_1", raw), strict=True):
        (d,) = struct.unpack("<e", block[:2])
        assert same(row, np.float32(d) * block[4:].view(np.int8).astype(np.float32))


def test_q8_k_by_definition() -> None:
    raw = random_blocks(by_name("Q8_K"), 50)
    with np.errstate(all="ignore"):
        for block, row in zip(raw, codecs.decode("Q8_K", raw), strict=True):
            (d,) = struct.unpack("<f", block[:4])
            assert same(row, np.float32(d) * block[4:260].view(np.int8).astype(np.float32))
    assert np.array_equal(codecs.fields("Q8_K", raw)["bsums"], raw[:, 260:].copy().view("<i2"))


def test_q1_0_by_definition() -> None:
    block = np.array([[0x00, 0x40, 0b00000101, *[0xFF] * 15]], np.uint8)  # d = 2
    assert codecs.decode("Q1_0", block)[0].tolist() == [2, -2, 2, -2, -2, -2, -2, -2] + [2] * 120


def test_q2_0_by_definition() -> None:
    block = np.array([[0x00, 0x40, 0b11100100, *[0b01010101] * 15]], np.uint8)  # d = 2
    assert codecs.decode("Q2_0", block)[0].tolist() == [-2, 0, 2, 4] + [0] * 60


@pytest.mark.parametrize("name", ggml_small.NAMES)
def test_small_types_as_ggml(name: str) -> None:
    """Any bytes, against a decoder written apart; the values of a NaN or infinite scale are compared as such."""
    kind = by_name(name)
    raw = np.concatenate([random_blocks(kind, 200), adversarial_blocks(kind)])
    expected = np.array([ggml_small.decode(name, block.tobytes()) for block in raw], np.float32)
    found = codecs.decode(name, raw)
    assert np.array_equal(found, expected, equal_nan=True)
    assert kind.id == {"NVFP4": 40, "Q1_0": 41, "Q2_0": 42}[name]


def test_every_bfloat16_and_half() -> None:
    raw = np.arange(65536, dtype="<u2").view(np.uint8)
    assert same(codecs.decode("BF16", raw), peer_decode(by_name("BF16"), raw[None])[0])
    assert same(codecs.decode("F16", raw), peer_decode(by_name("F16"), raw))


@pytest.mark.parametrize("name", ["I8", "I16", "I32", "I64", "F64", "F32", "F16"])
def test_plain_numbers(name: str) -> None:
    values = np.array([[0, 1, -1, 100, -128, 127]]).astype(codecs.floats.DTYPES[name])
    assert codecs.decode(name, values.view(np.uint8)).tolist() == values.tolist()


def test_wide_numbers_round_to_float32() -> None:
    assert codecs.decode("F64", np.array([0.1, 1e300]).view(np.uint8)).tolist() == [np.float32(0.1), np.inf]
    assert codecs.decode("I64", np.array([2**53 + 1]).view(np.uint8)).tolist() == [2.0**53]


@pytest.mark.parametrize("kind", TYPES.values(), ids=str)
def test_every_type_has_a_decoder(kind: GGMLType) -> None:
    raw = np.zeros((2, 3, 2 * kind.type_size), np.uint8)
    decoded = codecs.decode(kind, raw)
    assert decoded.shape == (2, 3, 2 * kind.block_size) and decoded.dtype == np.float32


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "IQ2_XXS"])
def test_chunks_strides_and_read_only_input(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = np.repeat(random_blocks(by_name(name), 24), 2, axis=0).reshape(24, -1)[:, : by_name(name).type_size]
    raw.flags.writeable = False
    whole = codecs.decode(name, raw)
    monkeypatch.setattr(codecs, "CHUNK", 5 * by_name(name).block_size)
    assert same(codecs.decode(name, raw), whole)
    assert same(codecs.decode(name, raw[::-3]), np.ascontiguousarray(whole[::-3]))
    assert codecs.decode(name, raw[:0]).shape == (0, by_name(name).block_size)


def test_fields_are_in_element_order() -> None:
    """Q4_K: a block whose quants, scales and minima count upwards."""
    raw = codecs.encode_kquants.pack_scales_and_mins(
        np.arange(8, dtype=np.uint8)[None] * 9, np.arange(8, dtype=np.uint8)[None] * 8 + 7
    )
    q = (np.arange(256) % 16).astype(np.uint8)[None]
    block = np.hstack([np.array([[0, 0x3C, 0, 0x40]], np.uint8), raw, codecs.encode_legacy.pack_low_high(q, 32)])
    fields = codecs.fields("Q4_K", block)
    assert fields["d"].tolist() == [[1.0]] and fields["dmin"].tolist() == [[2.0]]
    assert fields["scales"].tolist() == [[0, 9, 18, 27, 36, 45, 54, 63]]
    assert fields["mins"].tolist() == [[7, 15, 23, 31, 39, 47, 55, 63]]
    assert np.array_equal(fields["q"], q)
    group = np.arange(256) // 32
    expected = 9 * group * (np.arange(256) % 16) - 2 * (8 * group + 7)
    assert np.array_equal(codecs.decode("Q4_K", block)[0], expected.astype(np.float32))


def test_a_faulty_decoder_is_a_small_variant() -> None:
    """Nibbles read as pairs permute a block; a forgotten zero point shifts it."""
    raw = random_blocks(by_name("Q4_0"), 40)
    raw[:, 1] &= 0x3F  # finite scales
    right = codecs.decode("Q4_0", raw)
    pairs = dataclasses.replace(
        codecs.CODECS["Q4_0"], unpack=lambda b: {"d": codec.half(b, 0), "q": codec.low_high(b[:, 2:], 1)}
    )
    order = np.arange(32).reshape(2, 16).T.reshape(-1)
    assert same(codecs.decode_with(pairs, raw), np.ascontiguousarray(right[:, order]))
    unshifted = dataclasses.replace(codecs.CODECS["Q4_0"], combine=legacy.combine_scale)
    d = codecs.fields("Q4_0", raw)["d"]
    np.testing.assert_allclose(codecs.decode_with(unshifted, raw) - right, np.repeat(8 * d, 32, axis=1), rtol=1e-5)


def test_faults_of_the_caller() -> None:
    with pytest.raises(AssayError, match=r"Q4_0: a row of 19 bytes \(expected a multiple of 18 bytes\)"):
        codecs.decode("Q4_0", np.zeros((2, 19), np.uint8))
    with pytest.raises(AssayError, match=r"raw data is float32 \(expected uint8\)"):
        codecs.decode("Q4_0", np.zeros((2, 18), np.float32))  # type: ignore[arg-type]
    with pytest.raises(AssayError, match="no such tensor type"):
        codecs.decode("Q4_7", np.zeros((2, 18), np.uint8))
    with pytest.raises(AssayError, match="F32: has no blocks"):
        codecs.fields("F32", np.zeros((2, 4), np.uint8))
