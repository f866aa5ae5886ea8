"""Encoding: ggml's own bytes for the simple types, at most llama.cpp's error for the K-quants."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import quants
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from assay.errors import AssayError
from assay.gguf import by_name, codecs

from . import ggml_small, witness

DATA = Path(__file__).parents[1] / "data"
LLAMACPP: dict[str, float] = json.loads((DATA / "encode_rms.json").read_text())
LEGACY = list(codecs.encode_legacy.ENCODERS)
WHOLE = [*LEGACY, *codecs.encode_kquants.ENCODERS]  # types whose elements are whole numbers times a scale


@pytest.mark.parametrize("name", codecs.ENCODERS)
def test_error_on_gaussian_rows(name: str) -> None:
    x = witness.gaussian()
    error = witness.rms(codecs.decode(name, codecs.encode(name, x)) - x)
    assert error <= 1.002 * LLAMACPP[name], f"{error / LLAMACPP[name]:.4f} times llama.cpp's"


@pytest.mark.parametrize("name", codecs.ENCODERS)
def test_importance_moves_the_error_to_where_it_matters_less(name: str) -> None:
    """The weighted error is less than the plain encoder's, and about llama.cpp's or less with the same weights."""
    x, importance = witness.weighted_gaussian()
    plain, weighted = (
        witness.lost(codecs.decode(name, codecs.encode(name, x, w)) - x, importance) for w in (None, importance)
    )
    assert weighted == plain if name in ("Q8_0", "Q1_0") else weighted < plain
    assert weighted <= 1.005 * LLAMACPP[f"{name} weighted"]


def test_importance_of_nothing_and_of_one_column() -> None:
    x = witness.gaussian()[:2, :256]
    for name in codecs.ENCODERS:
        assert np.isfinite(codecs.decode(name, codecs.encode(name, x, np.zeros(256, np.float32)))).all()
        one = np.zeros(256, np.float32)
        one[7] = 1
        assert np.isfinite(codecs.decode(name, codecs.encode(name, x, one))).all()
    with pytest.raises(AssayError, match="importance"):
        codecs.encode("Q4_K", x, np.full(256, np.nan, np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in codecs.ENCODERS if name not in witness.SMALL])
def test_error_beside_llamacpp(name: str) -> None:
    """Other rows than the recorded ones: heavy tails, an offset, tiny and large scales."""
    pytest.importorskip("llama_cpp")
    rng = np.random.default_rng(5)
    for x in (
        rng.standard_t(4, (16, 1024)),
        rng.standard_normal((16, 1024)) * 1e-4 + 1e-4,
        rng.uniform(0, 900, (16, 1024)),
    ):
        x = x.astype(np.float32)
        peer = witness.rms(codecs.decode(name, witness.llamacpp_encode(name, x)) - x)
        assert witness.rms(codecs.decode(name, codecs.encode(name, x)) - x) <= 1.05 * peer


@pytest.mark.parametrize("name", [*LEGACY, "F16", "BF16"])
def test_bytes_of_simple_types_are_gguf_pys(name: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((64, 256)).astype(np.float32) * np.exp(rng.uniform(-8, 8, (64, 1))).astype(np.float32)
    x[0], x[1, ::2], x[2], x[3] = 0, 0, 1.5, -x[3, 0]
    peer = quants.quantize(x, gguf.GGMLQuantizationType[name])
    assert np.array_equal(codecs.encode(name, x), peer.view(np.uint8).reshape(64, -1))


def test_q1_0_has_ggmls_bytes() -> None:
    x = witness.gaussian()[:4, :512]
    x[0, :128], x[1, 5] = 0, -0.0
    expected = b"".join(ggml_small.encode("Q1_0", block) for block in x.reshape(-1, 128))
    assert codecs.encode("Q1_0", x).tobytes() == expected


@pytest.mark.parametrize("d", [0.75, -0.75])
def test_ternary_weights_are_kept_exactly(d: float) -> None:
    """Q2_0 is the type of models whose weights are -d, 0 and d; it also has 2 d."""
    steps = np.random.default_rng(2).integers(-1, 3, (8, 256))
    steps[:, ::64], steps[:, 1::64] = -1, 2
    x = (steps * d).astype(np.float32)
    assert np.array_equal(codecs.decode("Q2_0", codecs.encode("Q2_0", x)), x)
    x[x == 2 * d] = d
    assert np.array_equal(codecs.decode("Q2_0", codecs.encode("Q2_0", x)), x)


def test_four_bit_floats_are_kept_exactly() -> None:
    x = codecs.decode("NVFP4", np.random.default_rng(3).integers(0, 0x7E, (64, 36), np.uint8))
    assert np.array_equal(codecs.decode("NVFP4", codecs.encode("NVFP4", x)), x)


def test_bfloat16_rounds_to_even_and_keeps_the_odd_ones() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x80000001], np.uint32)
    encoded = codecs.encode("BF16", bits.view(np.float32)).view("<u2")
    assert [hex(v) for v in encoded] == ["0x3f80", "0x3f82", "0x3f81", "0x7f80", "0x7f80", "0x7fc0", "0x8000"]


@pytest.mark.parametrize("name", WHOLE)
def test_what_the_type_can_say_is_said_exactly(name: str) -> None:
    """A block of whole steps, with both ends of the range in every group, comes back unchanged."""
    bits = int(name[1])
    steps = np.random.default_rng(1).integers(0, 2**bits, (8, 256))
    steps[:, ::16], steps[:, 1::16] = 0, 2**bits - 1
    centred = name in ("Q4_0", "Q5_0", "Q8_0", "Q3_K", "Q6_K")
    x = ((steps - 2 ** (bits - 1) if centred else steps - 1) * 0.25).astype(np.float32)
    if name == "Q8_0":
        x = np.maximum(x, -127 * 0.25)
        x[:, ::16] = 127 * 0.25
    decoded = codecs.decode(name, codecs.encode(name, x))
    scales = {"Q2_K": 15, "Q4_K": 63, "Q5_K": 63}.get(name)
    tolerance = 0.25 * 2**bits * 2**-11 if scales else 0  # d = 0.25 / 15 or / 63 is not a half exactly
    np.testing.assert_allclose(decoded, x, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", codecs.encode_iquants.ENCODERS)
def test_decoded_points_are_found_again(name: str) -> None:
    """Any bytes of a code-book type, decoded and encoded, come back close to themselves."""
    rng = np.random.default_rng(4)
    x = codecs.decode(name, codecs.encode(name, rng.standard_normal((16, 256)).astype(np.float32)))
    again = codecs.decode(name, codecs.encode(name, x))
    assert witness.rms(again - x) <= 0.05 * witness.rms(x)


@pytest.mark.parametrize("name", ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"])
def test_the_point_found_is_the_nearest(name: str) -> None:
    """The search looks at the neighbours of a lattice point only; what it misses costs little."""
    rng = np.random.default_rng(8)
    book = codecs.encode_iquants.grid(name)
    v = (rng.standard_normal((300, book.shape[1])) * book.std() + book.mean()).astype(np.float32)
    for w, misses in ((np.ones_like(v), 0.05), (rng.lognormal(0, 1, v.shape).astype(np.float32), 0.25)):
        lost = (w[:, None] * np.square(book - v[:, None])).sum(axis=2)
        found = lost[np.arange(len(v)), codecs.encode_iquants.nearest_points(name, v, w)]
        assert np.mean(found > lost.min(axis=1) * (1 + 1e-5)) <= misses
        assert found.sum() <= 1.03 * lost.min(axis=1).sum()


floats = st.floats(-1e4, 1e4, width=32)


@given(st.sampled_from(list(codecs.ENCODERS)), st.data())
def test_any_row_comes_back_near(name: str, data: st.DataObject) -> None:
    x = data.draw(hnp.arrays(np.float32, 256, elements=floats, fill=st.sampled_from([0.0, 1.0, -3.0])))
    x = x / np.float32(4) if name == "NVFP4" else x  # its largest value is 2688
    decoded = codecs.decode(name, codecs.encode(name, x))
    largest = float(np.abs(x).max())
    assert np.isfinite(decoded).all()
    bits = 3 if name == "NVFP4" else int(name.removeprefix("I")[1])  # four bits of a float: 4 is next to 6
    smallest = 2.0**-11 if name == "NVFP4" else 1e-6  # half of its smallest number
    assert witness.rms(decoded - x) <= largest * 1.2 / (2**bits - 1) + smallest


@pytest.mark.parametrize("name", codecs.ENCODERS)
def test_rows_of_nothing(name: str) -> None:
    assert not codecs.decode(name, codecs.encode(name, np.zeros(256, np.float32))).any()


@pytest.mark.parametrize("name", WHOLE)
def test_rows_of_one_value(name: str) -> None:
    for value in (3.0, -3.0, 1e-3):
        row = codecs.decode(name, codecs.encode(name, np.full(256, value, np.float32)))
        np.testing.assert_allclose(row, value, rtol=1e-2)


@pytest.mark.parametrize("name", codecs.ENCODERS)
def test_blocks_do_not_touch_each_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(2).standard_normal((3, 4, 512)).astype(np.float32)
    whole = codecs.encode(name, x)
    assert whole.shape == (3, 4, by_name(name).row_bytes(512))
    monkeypatch.setattr(codecs, "CHUNK", 768)
    assert np.array_equal(codecs.encode(name, x), whole)
    assert np.array_equal(codecs.encode(name, x[1, 2]), whole[1, 2])


def test_faults_of_the_caller() -> None:
    x = np.ones((1, 256), np.float32)
    with pytest.raises(AssayError, match=r"Q4_K: a row of 100 elements \(expected a multiple of 256\)"):
        codecs.encode("Q4_K", x[:, :100])
    with pytest.raises(AssayError, match="TQ1_0: can be read but not written"):
        codecs.encode("TQ1_0", x)
    for bad in (np.nan, np.inf):
        with pytest.raises(AssayError, match="NaN or infinity"):
            codecs.encode("Q8_0", x * bad)
    for name in codecs.ENCODERS:
        with pytest.raises(AssayError, match="too large for NVFP4" if name == "NVFP4" else "too large for a half"):
            codecs.encode(name, x * 1e12)
    with pytest.raises(AssayError, match="too large"):
        codecs.encode("F16", x * 1e5)
