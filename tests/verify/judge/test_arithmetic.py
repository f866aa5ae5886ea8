"""Roundings stay within half a unit."""

from __future__ import annotations

import numpy as np

from assay.verify.judge.arithmetic import q8_0, q8_k, round_to


def test_roundings() -> None:
    x = np.random.default_rng(3).standard_normal((4, 256)).astype(np.float32)
    assert np.abs(round_to(x, "bf16") - x).max() <= np.abs(x).max() * 2**-8
    assert np.array_equal(round_to(x, "f16"), x.astype(np.float16).astype(np.float32))
    for quantise, n in ((q8_0, 32), (q8_k, 256)):
        step = np.abs(x.reshape(-1, n)).max(-1) / 127
        assert (np.abs(quantise(x) - x).reshape(-1, n).max(-1) <= 0.51 * step + 1e-3 * step * 127).all()
        assert not quantise(np.zeros_like(x)).any()
