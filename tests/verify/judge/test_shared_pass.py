"""What passes over one model share, and that leaving out work changes no bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.gguf import open_file
from assay.verify.judge import evidence, shared_pass
from assay.verify.judge.shared_pass import Streamed
from tests import tiny

NAME = "blk.0.ffn_up.weight"


def test_a_small_file_is_decoded_once(tmp_path: Path) -> None:
    with open_file(tiny.make(tmp_path / "m.gguf")) as file:
        read: list[str] = []
        file.reading = lambda tensor: read.append(tensor.name)
        kept = Streamed(file)[NAME]
        assert Streamed(file)[NAME] is kept and read == [NAME]
        assert not kept.flags.writeable  # type: ignore[union-attr]
        assert np.array_equal(kept, file.decode(NAME))


def test_a_larger_file_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_pass, "MOST_KEPT", 1000)
    with open_file(tiny.make(tmp_path / "m.gguf")) as file:
        first, second = (Streamed(file)[NAME] for _ in range(2))
        assert first is not second and np.array_equal(first, second)


@pytest.mark.parametrize("rows", [3, 1])  # one a token; one of a pooled node, of which the noise is kept for each token
@pytest.mark.parametrize("width", [40, 4000])  # all arithmetics in one array, and one after the other
@pytest.mark.parametrize("noise", [0.0, 1e-38, 1e-11, 1e-9, 1e-3])
def test_terms_that_are_left_out_change_no_bit(noise: float, width: int, rows: int) -> None:
    rng = np.random.default_rng(1)
    error, size = (np.abs(rng.standard_normal((rows, width))) for _ in range(2))
    top = (noise * rng.random((4, 3))).astype(np.float32)
    top[3] = top[1]
    units, least = np.array([0.0, 2.0**-24, 2.0**-11, 2.0**-24]), np.array([0.0, 0.0, 2.0**-25, 0.0])
    whole = [
        (error / ((one[:, None] + unit * size + more) * 3.0 + 1e-30)).max()
        for one, unit, more in zip(top, units, least, strict=True)
    ]
    assert evidence._peaks(error, size, top, 3.0, units, least).tolist() == whole


def test_means_have_the_bits_of_numpy() -> None:
    rng = np.random.default_rng(2)
    for x in (rng.standard_normal(7), rng.standard_normal((13, 300)), rng.standard_normal((9, 33), np.float32)):
        assert evidence._mean(x) == np.mean(x)
        assert np.array_equal(evidence._mean(x, x.ndim - 1), np.mean(x, axis=x.ndim - 1))
